"""One accepted WebSocket: ordered sends from plain functions, bounded, and the end of it all."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from starlette.websockets import WebSocketDisconnect

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.websockets import WebSocket

__all__ = ["Channel"]

# RFC 6455 forbids Pulsar's close codes 1 to 8 on the wire (http-api 6.4): ours are 4001 to 4008.
CLOSE_BASE = 4000
GOING_AWAY, TOO_BIG, INTERNAL, RESTART = 1001, 1009, 1011, 1012


class Channel:
    """Text frames out through one writer task, so that callers on the loop never wait.

    Callers bound what they queue: producers by pending messages, consumers by credit and bytes.
    """

    def __init__(self, websocket: WebSocket, idle_timeout_s: float, text_bytes_max: int) -> None:
        self._websocket = websocket
        self._idle_timeout_s = idle_timeout_s
        self._text_bytes_max = text_bytes_max
        self._queue: deque[tuple[str, Callable[[], None] | None]] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._last_frame_s = asyncio.get_running_loop().time()
        self.closed = False
        self._close_code: int | None = None
        self._close_reason = ""

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def ending(self) -> bool:
        """We are about to close it; what is queued goes out first."""
        return self._close_code is not None

    def send(self, text: str, on_sent: Callable[[], None] | None = None) -> None:
        """Queue one text frame; ``on_sent`` is called when the socket has taken it."""
        self._queue.append((text, on_sent))
        self._wake.set()

    def close_soon(self, code: int, reason: str) -> None:
        """End the session after what is queued; only the first call counts."""
        if self._close_code is None:
            self._close_code, self._close_reason = code, reason
            self._wake.set()

    async def receive(self) -> str | None:
        """The next text frame; None when the session is over."""
        while not self.closed and self._close_code is None:
            try:
                event = await self._websocket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return None
            if event["type"] != "websocket.receive":
                return None
            self._last_frame_s = asyncio.get_running_loop().time()
            text = event.get("text")
            if text is None:
                self.close_soon(1003, "Only text frames are understood")
                return None
            if len(text) > self._text_bytes_max:
                self.close_soon(TOO_BIG, f"Frame larger than {self._text_bytes_max} bytes")
                return None
            if len(self._queue) > 4096:  # a client that sends and never reads
                self._room.clear()
                await self._room.wait()
            return str(text)
        return None

    async def run_writer(self) -> None:
        """Write what is queued until the session ends; cancelled by the session's owner."""
        queue, websocket = self._queue, self._websocket
        loop = asyncio.get_running_loop()
        while True:
            while queue:
                text, on_sent = queue.popleft()
                await websocket.send({"type": "websocket.send", "text": text})
                if on_sent is not None:
                    on_sent()
            self._last_frame_s = loop.time()
            self._room.set()
            if self._close_code is not None:
                await self._close()
                return
            self._wake.clear()
            await self._wake.wait()

    async def watch_idle(self) -> None:
        """End the session when no frame went either way for the idle timeout."""
        loop = asyncio.get_running_loop()
        while True:
            left = self._last_frame_s + self._idle_timeout_s - loop.time()
            if left <= 0:
                self.close_soon(GOING_AWAY, "Idle for too long")
                return
            await asyncio.sleep(left)

    async def _close(self) -> None:
        if not self.closed:
            self.closed = True
            assert self._close_code is not None
            await self._websocket.close(self._close_code, self._close_reason[:120])
