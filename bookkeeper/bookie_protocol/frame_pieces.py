"""Bytes of frames that are not whole yet. Pure."""

from struct import Struct
from typing import Final

from magnetar.bookkeeper.errors import FrameError

LENGTH: Final = Struct(">I")


class FramePieces:
    """Joins what a connection brings once a frame is whole, not at each piece of it."""

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max``: BookKeeper's ``nettyMaxFrameSizeBytes``."""
        self.frame_bytes_max = frame_bytes_max
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 0

    def take(self, data: bytes) -> memoryview | None:
        """All that is there, to be decoded; None: too little for the frame that was begun."""
        if not self._parts:
            return memoryview(data)
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return None
        view, self._parts = memoryview(b"".join(self._parts)), []
        return view

    def end_of_frame(self, view: memoryview, at: int) -> int | None:
        """Where the frame at ``at`` ends; None: it isn't whole, and is kept until it is.

        Raises:
            FrameError: it is too large.
        """
        left = len(view) - at
        wanted = LENGTH.size
        if left >= wanted:
            size: int = LENGTH.unpack_from(view, at)[0]
            wanted += size
            if wanted > self.frame_bytes_max:
                raise FrameError(f"a frame of {size} bytes")
            if wanted <= left:
                return at + wanted
        if left:
            self._parts, self._size, self._wanted = [bytes(view[at:])], left, wanted
        return None
