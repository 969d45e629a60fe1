"""One accepted WebSocket: ordered sends from plain functions, bounded, and the end of it all."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

from starlette.websockets import WebSocket, WebSocketDisconnect

from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.access_control import Right

logger = logging.getLogger(__name__)

# RFC 6455 forbids Pulsar's close codes 1 to 8 on the wire: ours are 4001 to 4008.
CLOSE_BASE = 4000
_UNSENT_MAX = 4096  # frames
_TEXTS_AT_ONCE = 64
_TURN_S = 0.001
CLOSE_S = 5.0
"""When the broker ends a session, the queued frames have so long to go out."""
GOING_AWAY, TOO_BIG, INTERNAL, RESTART = 1001, 1009, 1011, 1012


class WebSocketChannel:
    """Text frames out through one writer task, so that callers on the loop never wait.

    Callers bound what they queue: producers by pending messages, consumers by credit and bytes.
    The task begins with the first frame: a socket that has never been sent one costs less.
    """

    def __init__(self, websocket: WebSocket, idle_timeout_s: float, text_bytes_max: int) -> None:
        self._websocket = websocket
        self._idle_timeout_s = idle_timeout_s
        self._text_bytes_max = text_bytes_max
        # Lists and futures, made when somebody waits: an idle socket is to cost little, and a
        # deque or an asyncio.Event (which has one) takes 760 bytes.
        self._queue: list[tuple[Sequence[str], Callable[[], None] | None]] = []
        self._unsent = 0  # queued, or taken by the writer and not yet sent
        self.is_blocked = False
        """The writer waits until the socket takes more. Otherwise sending doesn't wait."""
        self._writing: asyncio.Task[None] | None = None
        self._writer: asyncio.Future[None] | None = None  # waits for something to write
        self._end_reading: Callable[[], object] | None = None
        self._reader: asyncio.Future[None] | None = None  # waits for room
        self._read: Iterator[str] = iter(())  # what came together and isn't handed on yet
        self._turn_end_s = 0.0
        self._last_frame_s = asyncio.get_running_loop().time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self.closed = False
        self._close_code: int | None = None
        self._close_reason = ""

    @property
    def queued(self) -> int:
        return self._unsent

    @property
    def ending(self) -> bool:
        """We are about to close it; what is queued goes out first."""
        return self._close_code is not None

    def send(self, *texts: str, on_sent: Callable[[], None] | None = None) -> None:
        """Queue text frames; ``on_sent`` is called when the socket has taken them all."""
        self._queue.append((texts, on_sent))
        self._unsent += len(texts)
        self._wake_writer()

    def close_soon(self, code: int, reason: str) -> None:
        """End the session after what is queued; only the first call counts."""
        if self._close_code is None:
            self._close_code, self._close_reason = code, reason
            self._wake_writer()
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(CLOSE_S, self._give_up)

    def _give_up(self) -> None:
        """The client takes nothing any more: end without a word."""
        self.closed = True
        if self._end_reading is not None:
            self._end_reading()

    async def run(self, read: Callable[[WebSocketChannel], Awaitable[None]]) -> None:
        """Let ``read`` take what comes, until it returns or we have closed the socket."""
        task = asyncio.current_task()
        assert task is not None
        self._end_reading = task.cancel
        try:
            await read(self)
        except asyncio.CancelledError:
            if not self.closed or task.uncancel():  # somebody else's
                raise
        finally:
            self._end_reading = None

    async def finish(self, close_s: float = CLOSE_S) -> None:
        """The end; what is queued before a close of ours still goes out."""
        for timer in (self._idle_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        if (writing := self._writing) is None:
            return
        if self.ending and not self.closed and not writing.done():
            await asyncio.wait((writing,), timeout=close_s)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        self._writing = None  # its error holds the frames that hold this channel

    async def receive(self) -> list[str] | None:
        """The next text frames, which came together; None when the session is over.

        A few, with turns for others in between: a read may bring thousands, each worth 15 µs.
        """
        while not self.closed and self._close_code is None:
            if found := list(islice(self._read, _TEXTS_AT_ONCE)):
                if time.perf_counter() > self._turn_end_s:
                    await asyncio.sleep(0)
                    self._turn_end_s = time.perf_counter() + _TURN_S
                return found
            try:
                event = await self._websocket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return None
            if event["type"] != "websocket.receive" or self._close_code is not None:
                return None
            self._last_frame_s = asyncio.get_running_loop().time()
            texts: list[str] | None = event.get("texts")
            if texts is None:
                self.close_soon(1003, "Only text frames are understood")
                return None
            if max(map(len, texts), default=0) > self._text_bytes_max:
                self.close_soon(TOO_BIG, f"Frame larger than {self._text_bytes_max} bytes")
                return None
            if self._unsent > _UNSENT_MAX:  # a client that sends and never reads
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            self._read = iter(texts)
            self._turn_end_s = time.perf_counter() + _TURN_S
        return None

    def _wake_writer(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        else:
            _finish(self._writer)

    async def _write(self) -> None:
        """Write what is queued until the session ends."""
        try:
            await self._write_all()
        except (WebSocketDisconnect, OSError):
            _finish(self._reader)  # which hears of the end where it reads on
            return
        except Exception:
            logger.exception("WebSocket session failed")
            self.closed = True  # as far as we can
        if self._end_reading is not None:
            self._end_reading()

    async def _write_all(self) -> None:
        websocket = self._websocket
        loop = asyncio.get_running_loop()
        while True:
            while self._queue:
                batch, self._queue = self._queue, []
                for texts, on_sent in batch:
                    self.is_blocked = True
                    await websocket.send({"type": "websocket.send", "texts": texts})
                    self.is_blocked = False
                    self._last_frame_s = loop.time()  # slow, but alive
                    self._unsent -= len(texts)
                    if on_sent is not None:
                        on_sent()
            _finish(self._reader)
            if self._close_code is not None:
                await self._close()
                return
            self._writer = loop.create_future()
            await self._writer

    def watch_idle(self) -> None:
        """End the session when no frame went either way for the idle timeout."""
        loop = asyncio.get_running_loop()
        left_s = self._last_frame_s + self._idle_timeout_s - loop.time()
        if left_s <= 0:
            self.close_soon(GOING_AWAY, "Idle for too long")
        else:
            self._idle_timer = loop.call_later(left_s, self.watch_idle)

    async def _close(self) -> None:
        if not self.closed:
            self.closed = True
            assert self._close_code is not None
            await self._websocket.close(self._close_code, self._close_reason[:120])


def _finish(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Session(ABC):
    """One socket's session: ``open`` before the upgrade, ``run`` after it, ``close`` at the end."""

    @property
    def writes_to(self) -> Sequence[TopicName]:
        """Topics that it may publish to beside the one in its path."""
        return ()

    @property
    def rights(self) -> Sequence[Right]:
        """The rights that it has asked for by itself since it was opened."""
        return ()

    @abstractmethod
    async def open(self, remote: str, client_version: str) -> None:
        """Raises ApiError, BrokerError: the upgrade is to be refused with its status."""

    @abstractmethod
    async def run(self, channel: WebSocketChannel) -> None:
        """Serve until the client leaves."""

    @abstractmethod
    def close(self) -> None:
        """Free the session; a second call does nothing."""
