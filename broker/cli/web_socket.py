"""A WebSocket for callers that wait.

The library's own blocking client reads in one thread and writes in another. Over TLS both use one
``ssl.SSLSocket``, which Python doesn't guard against that: now and then what is written
is lost, or the connection breaks (python/cpython#143756; measured on a busy machine: 2 of 1,000
upgrades never reach the server). Here one thread, an event loop, reads and writes; it also answers
pings while the caller is busy. Frames are handed over without a switch of threads for each, which
would take eight times as long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from broker.cli.loop_thread import LoopThread

__all__ = ["WebSocket", "open_web_socket"]

_UNSENT_MAX: Final = 1024 * 1024
"""Characters of the frames that wait to be sent; ``send`` waits above that."""
_CLOSE_S: Final = 10.0
_UNREAD_MAX: Final = 64
"""Frames that wait to be taken; above that nothing is read. The library keeps some, too."""


class WebSocket:
    """Frames in order. Its methods raise ``websockets.exceptions.ConnectionClosed``, ``recv`` after
    the last frame that came.
    """

    def __init__(self, connection: ClientConnection) -> None:
        """REQUIRES: the connection's event loop runs this."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._changed = Condition()  # guards what follows
        self._unsent: deque[str] = deque()
        self._unsent_size = 0
        self._is_writing = False
        self._unread: deque[str | bytes] = deque()
        self._is_full = False
        self._end: Exception | None = None
        # The loop's own
        self._room = asyncio.Event()
        self._is_closing = False
        self._writing: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())

    def send(self, text: str) -> None:
        """Returns when it is on its way, which takes a while when the server doesn't read."""
        with self._changed:
            self._changed.wait_for(lambda: self._unsent_size < _UNSENT_MAX or self._end)
            if self._end is not None:
                raise self._end
            self._unsent.append(text)
            self._unsent_size += len(text)
            if self._is_writing:
                return
            self._is_writing = True
        self._loop.call_soon_threadsafe(self._start_writing)

    def recv(self, timeout_s: float | None = None) -> str | bytes:
        """The next frame. Raises TimeoutError: none in that time; a later call has it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._unread or self._end, timeout_s):
                raise TimeoutError(f"nothing received in {timeout_s} s")
            if not self._unread:
                assert self._end is not None
                raise self._end
            frame = self._unread.popleft()
            if not self._is_full or self._unread:
                return frame
            self._is_full = False
        self._loop.call_soon_threadsafe(self._room.set)
        return frame

    # --- on the loop

    def _start_writing(self) -> None:
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._unsent:
                        self._is_writing = False
                        return
                    text = self._unsent.popleft()
                    self._unsent_size -= len(text)
                    if self._unsent_size < _UNSENT_MAX:
                        self._changed.notify_all()
                await self._connection.send(text)
        except Exception as error:
            self._fail(error)

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._connection.recv()
                if self._is_closing:
                    continue  # the server's own end comes behind all that it has sent
                with self._changed:
                    self._unread.append(frame)
                    self._is_full = len(self._unread) >= _UNREAD_MAX
                    self._changed.notify_all()
                    if not self._is_full:
                        continue
                    self._room.clear()
                await self._room.wait()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self._end is None:
                self._end = error
            self._changed.notify_all()

    async def close(self, unsent_s: float) -> None:
        """End in order; what is still to be sent has so many seconds."""
        if (writing := self._writing) is not None:
            await asyncio.wait((writing,), timeout=unsent_s)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        self._is_closing = True
        self._room.set()
        await self._connection.close()
        await self._reading


@contextmanager
def open_web_socket(url: str, **options: Any) -> Iterator[WebSocket]:
    """A connection for the time of a block.

    Args:
        options: of ``websockets.asyncio.client.connect``.
    Raises:
        OSError: nobody answers there. InvalidHandshake, InvalidURI (both of ``websockets``).
    """
    thread = LoopThread("web-socket")
    try:
        socket = thread.call(_opened(url, options))
        try:
            yield socket
        except BaseException:
            thread.call(socket.close(0))
            raise
        thread.call(socket.close(_CLOSE_S))
    finally:
        thread.close()


async def _opened(url: str, options: dict[str, Any]) -> WebSocket:
    return WebSocket(await connect(url, **options))
