"""A WebSocket for callers that wait.

The library's own blocking client reads in one thread and writes in another. Over TLS both use one
``ssl.SSLSocket``, which Python doesn't guard against that: now and then what is written is lost, or
the connection breaks (python/cpython#143756; measured on a busy machine: 2 of 1,000 upgrades never
reach the server). Here one thread, an event loop, reads and writes; it also answers pings while the
caller is busy. Frames are handed over without a switch of threads for each, which would take eight
times as long, and without a lock: Ctrl-C may end a caller that holds one, and the loop would wait
for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from magnetar.broker.cli.loop_thread import LoopThread

_UNSENT_MAX: Final = 1024 * 1024
"""Characters of the frames that wait to be sent; ``send`` waits above that."""
_UNREAD_MAX: Final = 64 * 1024 * 1024
"""Characters of the frames that wait to be taken; above that nothing is read, pings neither."""
_CLOSE_S: Final = 10.0


class WebSocket:
    """Frames in order. Its methods raise ``websockets.exceptions.ConnectionClosed``, ``recv`` after
    the last frame that came. One caller at a time.
    """

    def __init__(self, connection: ClientConnection) -> None:
        """REQUIRES: the connection's event loop runs this."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        # Each number is written by one side only. Who is about to wait says so, then looks at the
        # other side's number again; who changes a number looks for somebody who waits afterwards.
        self._unsent: deque[str | None] = deque()  # None: nothing comes any more
        self._given_size = self._sent_size = 0
        self._is_waiting = False  # the caller, for `_tokens`: it is told once too often, at worst
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._end: Exception | None = None  # nothing can be sent any more
        self._received: SimpleQueue[str | bytes | Exception] = SimpleQueue()
        self._read_size = self._taken_size = 0
        self._is_full = False  # the reader waits for `_room`
        self._is_closing = False
        self._something = asyncio.Event()
        self._is_woken = False  # `_something` is set, or will be
        self._room = asyncio.Event()
        self._writing = asyncio.create_task(self._write())
        self._reading = asyncio.create_task(self._read())

    def send(self, text: str) -> None:
        """Returns when it is on its way, which takes a while when the server doesn't read."""
        while self._is_stuck():
            self._is_waiting = True
            if self._is_stuck():
                self._tokens.get()
        if self._end is not None:
            raise self._end
        self._given_size += len(text)
        self._unsent.append(text)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._something.set)

    def _is_stuck(self) -> bool:
        return self._end is None and self._given_size - self._sent_size >= _UNSENT_MAX

    def recv(self, timeout_s: float | None = None) -> str | bytes:
        """The next frame. Raises TimeoutError: none in that time; a later call has it."""
        try:
            frame = self._received.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError(f"nothing received in {timeout_s} s") from None
        if isinstance(frame, Exception):
            self._received.put(frame)  # also for the next call
            raise frame
        self._taken_size += len(frame)
        if self._is_full and not self._is_half_full():
            self._loop.call_soon_threadsafe(self._room.set)
        return frame

    def _is_half_full(self) -> bool:
        return self._read_size - self._taken_size > _UNREAD_MAX // 2

    # --- on the loop

    async def _write(self) -> None:
        try:
            while True:
                await self._something.wait()
                self._something.clear()
                self._is_woken = False
                while self._unsent:
                    if (text := self._unsent.popleft()) is None:
                        return
                    await self._connection.send(text)
                    self._sent_size += len(text)
                    self._tell_caller()
        except Exception as error:
            self._fail(error)

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._connection.recv()
                if self._is_closing:
                    continue  # the server's own end comes behind all that it has sent
                self._read_size += len(frame)
                self._received.put(frame)
                if self._read_size - self._taken_size >= _UNREAD_MAX:
                    await self._wait_for_room()
        except Exception as error:
            self._fail(error)
            self._received.put(error)

    async def _wait_for_room(self) -> None:
        self._is_full = True
        while self._is_half_full() and not self._is_closing:
            await self._room.wait()
            self._room.clear()
        self._is_full = False

    def _fail(self, error: Exception) -> None:
        self._end = self._end or error
        self._tell_caller()

    def _tell_caller(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._tokens.put(None)

    async def close(self, unsent_s: float) -> None:
        """End in order; what is still to be sent has so many seconds."""
        self._unsent.append(None)
        self._something.set()
        await asyncio.wait((self._writing,), timeout=unsent_s)
        self._writing.cancel()
        self._is_closing = True
        self._room.set()
        # The library waits until all is written, for ever where the server doesn't read.
        ending = asyncio.create_task(self._connection.close())
        await asyncio.wait((ending,), timeout=self._connection.close_timeout)
        if not ending.done():
            self._connection.transport.abort()
        await asyncio.gather(ending, self._writing, self._reading, return_exceptions=True)


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
