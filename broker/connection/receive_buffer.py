"""Where a connection's bytes land before they are frames.

All connections of a loop share one large buffer, because the loop asks for a buffer, reads into it
and hands it over without running anything else in between: 10,000 idle connections cost no receive
memory. What a read leaves behind, the head of a frame still under way, is kept by the connection: a
small one as bytes that go in front of its next read, a large one in a buffer of its own that grows
up to the frame's size, so that the rest is received in place. A frame of middle size goes in front
of the next read, too, while reads fill the shared buffer: then its rest is there already, and is
read together with what follows.
"""

from enum import IntEnum
from struct import Struct

SHARED_BYTES = 512 * 1024
_OWN_BUFFER_FROM = 64 * 1024
"""Frames of at least this size are received into their own buffer. Below half of the shared one
they aren't after a read that has filled it."""
_OWN_BUFFER_FIRST = 256 * 1024
"""First size of an own buffer: what a peer only announces must not cost memory."""
_U32 = Struct(">I")


class PauseReason(IntEnum):
    """Why a connection isn't read, as bits; it is read again when no reason is left."""

    IN_FLIGHT = 1  # too many bytes of it aren't stored yet
    PROCESS = 2  # or of all connections together
    OUTGOING = 4  # it doesn't read what it is sent
    TASKS = 8  # too many of its requests are under way
    RATE = 16  # a publish limit
    ACCESS = 32  # its rights are being looked up
    TURN = 64  # it has sent more commands than a turn of the loop has time for


class SharedBuffer:
    """The receive buffer of one event loop."""

    __slots__ = ("view",)

    def __init__(self, size: int = SHARED_BYTES) -> None:
        self.view = memoryview(bytearray(size))


class FrameBuffer:
    """Receive side of one connection: where to read to, and what is left from the last read."""

    __slots__ = ("_filled", "_own", "_own_size", "_rest", "_shared")

    def __init__(self, shared: SharedBuffer) -> None:
        self._shared = shared.view
        self._rest = b""  # begins a frame, of less than half of _shared
        self._own: memoryview | None = None
        self._own_size = 0  # of the frame that is received into _own, size field included
        self._filled = 0

    def target(self) -> memoryview:
        """Where the next read goes; valid until ``received``."""
        if self._own is not None:
            return self._own[self._filled :]
        if rest := self._rest:
            self._shared[: len(rest)] = rest
            return self._shared[len(rest) :]
        return self._shared

    def received(self, count: int) -> tuple[memoryview, int]:
        """``count`` bytes were read: the buffer and the end of what it holds, from 0 on.

        What is not handled now has to be kept. While a large frame is incomplete, the end is 0:
        there is nothing to look at.
        """
        own = self._own
        if own is None:
            end, self._rest = len(self._rest) + count, b""
            return self._shared, end
        self._filled += count
        if self._filled < self._own_size:
            if self._filled == len(own):
                self._grow()
            return own, 0
        self._own = None
        return own, self._own_size

    def keep(self, view: memoryview, start: int, end: int) -> None:
        """Keep ``view[start:end]``, the beginning of a frame, for the next read."""
        if self._own is not None:
            return
        length = end - start
        if length >= 4:
            size = 4 + _U32.unpack_from(view, start)[0]
            room = len(self._shared)
            if size >= (room // 2 if end == room else _OWN_BUFFER_FROM):
                own = memoryview(bytearray(min(size, max(_OWN_BUFFER_FIRST, 2 * length))))
                own[:length] = view[start:end]
                self._own, self._own_size, self._filled, self._rest = own, size, length, b""
                return
        self._rest = bytes(view[start:end])

    def _grow(self) -> None:
        old = self._own
        assert old is not None
        self._own = memoryview(bytearray(min(self._own_size, 2 * len(old))))
        self._own[: len(old)] = old
