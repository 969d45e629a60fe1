"""Holds accepted sockets until their clients have authenticated.

An unauthenticated client costs a socket, an entry in a bounded set and the first bytes that it has
sent: no transport, no protocol, no TLS session. The acceptor of a port looks at these bytes; it
refuses the client with some bytes, or takes the socket and makes a real connection of it.
Accepting, reading and looking are paced, so that authenticated clients are served in between
(time_sliced_queue.py).

Most unauthenticated clients are turned away at once, so each system call counts, 1 to 5 us of 30.
Their sockets stay in blocking mode, where only the calls don't wait; the last bytes leave with the
end.
"""

import asyncio
import contextlib
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from magnetar.broker.listener.time_sliced_queue import TURN_S, TimeSlicedQueue
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 16 * 1024
_HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""First words of all pending sockets of one port together; above it the oldest pending sockets are
cut."""
_BEHIND: Final = 64
"""Pending sockets with unread bytes; above it the next ones wait in the kernel's queue."""
_AFTER_FAILURE_S: Final = 1.0
_SWEEP_S: Final = 1.0
_AT_ONCE: Final = socket.MSG_DONTWAIT
_WITH_THE_END: Final = _AT_ONCE | getattr(socket, "MSG_MORE", 0)
"""One packet for the last bytes and the end of the connection, where the system can do that."""


class PendingSocket:
    """One accepted socket."""

    __slots__ = ("_acceptor", "_is_read", "_socket", "ended", "ip", "port", "received", "state")

    def __init__(self, acceptor: "PreAuthAcceptor", accepted: socket.socket, peer: Any) -> None:
        self._acceptor = acceptor
        self._socket = accepted
        self._is_read = False  # the loop waits for more bytes
        self.ip: str = peer[0]
        self.port: int = peer[1]
        self.received = bytearray()
        """What was read and not used yet; only ``use`` takes from it."""
        self.ended = False
        """Nothing can be done any more, or the socket was taken."""
        self.state: Any = None
        """The acceptor's own."""

    @property
    def remote(self) -> str:
        return f"{self.ip}:{self.port}"

    def use(self, count: int) -> bytes:
        """The first bytes of ``received``, which are not looked at here any more."""
        used = bytes(self.received[:count])
        del self.received[:count]
        if not self.ended:
            self._acceptor.held_bytes -= len(used)
        return used

    def wait(self) -> None:
        """``look`` again when there is more; a pending socket that has ended doesn't mind."""
        if not self.ended and not self._is_read:
            self._is_read = True
            self._acceptor.loop.add_reader(self._socket, self._acceptor.on_readable, self)

    def send(self, data: bytes) -> None:
        """At once and whole, or the socket is closed: a client that doesn't read gets no memory."""
        if self.ended or not data:
            return
        try:
            if self._socket.send(data, _AT_ONCE) == len(data):
                return
        except OSError:
            pass  # gone, or its buffer is full
        self.end()

    def end(self, answer: bytes = b"") -> None:
        """Send this, as far as the socket takes it, and close."""
        if self.ended:
            return
        accepted = self._leave()
        if answer:
            with contextlib.suppress(OSError):
                accepted.send(answer, _WITH_THE_END)
        accepted.close()
        self._acceptor.gone(self)

    def close(self, reason: str, *, level: int = logging.INFO) -> None:
        """As ``end``; with a line for the log."""
        if not self.ended:
            logger.log(level, "connection %s: closed: %s", self.remote, reason)
            self.end()

    def read(self) -> None:
        """Read what was peeked at: with unread bytes in the socket the end of an answer would be a
        reset."""
        with contextlib.suppress(OSError):
            self._socket.recv(len(self.received), _AT_ONCE)

    def take(self) -> socket.socket:
        """The socket, which is the caller's from now on. REQUIRES: it has not ended."""
        assert not self.ended
        taken = self._leave()
        taken.setblocking(False)
        with contextlib.suppress(OSError):  # gone: the next read or write tells it
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return taken

    def stop_reading(self) -> None:
        if self._is_read:
            self._is_read = False
            self._acceptor.loop.remove_reader(self._socket)

    def read_into(self, buffer: memoryview, flags: int) -> int:
        """Raises OSError."""
        return self._socket.recv_into(buffer, len(buffer), flags)

    def _leave(self) -> socket.socket:
        self.stop_reading()
        self.ended = True
        self._acceptor.left(self)
        return self._socket


class PreAuthAcceptor(ABC):
    """All pending sockets of one listening socket; a subclass knows what its clients say first."""

    def __init__(
        self,
        limiter: UnauthenticatedLimiter,
        *,
        what: str,
        deadline_s: Callable[[], float],
        admits: Callable[[int], bool] = lambda pending_sockets: True,
        peek_bytes: int = 0,
    ) -> None:
        """
        Args:
            limiter: bounds their number.
            what: name of the port, for the log.
            deadline_s: how long a pending socket may take, at most.
            admits: whether there may be so many now, beside what else holds files; if not, the
                oldest is cut.
            peek_bytes: ``look`` sees the first bytes, at most so many, once; they stay in the
                socket. 0: bytes are read, and no others than these.
        """
        self._flags = _AT_ONCE | (socket.MSG_PEEK if peek_bytes else 0)
        self.loop = asyncio.get_running_loop()
        self.limiter = limiter
        self._what = what
        self._deadline_s = deadline_s
        self._admits = admits
        self._pending_sockets: dict[PendingSocket, float] = {}  # when they came, in that order
        self.held_bytes = 0  # of all their ``received``
        self._buffer = memoryview(bytearray(peek_bytes or _READ_BYTES))
        self._queue: TimeSlicedQueue[PendingSocket] = TimeSlicedQueue(self.loop, self._read)
        self._listener: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._pending_sockets)

    @abstractmethod
    def look(self, pending: PendingSocket) -> None:
        """``pending.received`` has grown. One of ``wait``, ``end``, ``take`` follows, soon or now.

        Until then nothing more is read.
        """

    def gone(self, pending: PendingSocket) -> None:  # noqa: B027  # most keep nothing
        """The client has left, or was refused; not called after ``take``."""

    def listen(self, listener: socket.socket, backlog: int) -> int:
        """Listen on a bound socket, which belongs to the acceptor now; its port."""
        listener.setblocking(False)
        listener.listen(backlog)
        self._listener = listener
        self._listen()
        port: int = listener.getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening; pending sockets are ended, connections stay."""
        for timer in (self._again, self._sweep):
            if timer is not None:
                timer.cancel()
        if self._listener is not None:
            self.loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for pending in list(self._pending_sockets):
            pending.end()
        for task in self._tasks:
            task.cancel()

    def run(self, doing: Coroutine[Any, Any, object], end: Callable[[], None]) -> None:
        """A task that decides about a pending socket, or makes a connection of one that was taken.

        Args:
            end: closes the socket when the task fails or is cancelled.
        """
        task = self.loop.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, end))

    def _done(self, end: Callable[[], None], task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            end()  # perhaps before its first step, so that no transport owns the socket
        elif (error := task.exception()) is not None:
            end()
            level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
            logger.log(level, "%s: a connection failed", self._what, exc_info=error)

    # --- accepting

    def _listen(self) -> None:
        self._again = None
        assert self._listener is not None
        self.loop.add_reader(self._listener, self._on_listener, self._listener)

    def _on_listener(self, listener: socket.socket) -> None:
        if len(self._queue) > _BEHIND:
            return  # asked again in the next turn, of which there is one at once
        end_s = time.perf_counter() + TURN_S
        while True:
            try:
                accepted, peer = listener.accept()
            except BlockingIOError:
                return
            except (ConnectionError, InterruptedError):
                continue  # gone before it was taken
            except OSError as error:
                logger.error("%s: can't accept connections: %s", self._what, error)
                # No files are left, perhaps: not to be asked again in every turn of the loop
                self.loop.remove_reader(listener)
                self._again = self.loop.call_later(_AFTER_FAILURE_S, self._listen)
                return
            self._on_accepted(accepted, peer)
            if time.perf_counter() >= end_s:
                return

    def _on_accepted(self, accepted: socket.socket, peer: Any) -> None:
        pending = PendingSocket(self, accepted, peer)
        if not self._admits(len(self._pending_sockets) + 1):
            if not self._pending_sockets:
                accepted.close()
                return
            self._close_oldest()
        try:
            if self._read_from(pending):  # of most the first bytes are here already
                self.look(pending)
        finally:
            if not pending.ended:
                self._add_pending(pending)

    def _add_pending(self, pending: PendingSocket) -> None:
        self.limiter.enter(pending)
        self._pending_sockets[pending] = time.monotonic()
        if self._sweep is None:
            self._sweep = self.loop.call_later(_SWEEP_S, self._on_sweep)
        while self.held_bytes > _HELD_BYTES_MAX:
            self._close_oldest()

    # --- reading

    def on_readable(self, pending: PendingSocket) -> None:
        pending.stop_reading()  # until its turn comes
        self._queue.add(pending)

    def _read(self, pending: PendingSocket) -> None:
        if pending.ended or not self._read_from(pending):
            return
        while self.held_bytes > _HELD_BYTES_MAX:
            self._close_oldest()
        if not pending.ended:
            self.look(pending)

    def _read_from(self, pending: PendingSocket) -> bool:
        """Whether something was read; if not, the socket is waited for, or closed."""
        try:
            count = pending.read_into(self._buffer, self._flags)
        except BlockingIOError:
            pending.wait()
            return False
        except OSError:
            count = 0
        if not count:
            pending.end()
            return False
        pending.received += self._buffer[:count]
        self.held_bytes += count
        return True

    def _close_oldest(self) -> None:
        oldest = next(iter(self._pending_sockets))
        self.limiter.cut += 1
        oldest.close("too much is kept for those who wait", level=logging.DEBUG)

    def left(self, pending: PendingSocket) -> None:
        """It isn't kept here any more, if it was."""
        self.held_bytes -= len(pending.received)
        if self._pending_sockets.pop(pending, None) is not None:
            self.limiter.leave(pending)

    def _on_sweep(self) -> None:
        self._sweep = None
        late_s = time.monotonic() - self._deadline_s()
        for pending, came_s in list(self._pending_sockets.items()):
            if came_s > late_s:
                break
            pending.close("handshake timeout", level=logging.DEBUG)
        if self._pending_sockets:
            self._sweep = self.loop.call_later(_SWEEP_S, self._on_sweep)
