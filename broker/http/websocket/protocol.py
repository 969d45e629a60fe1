"""uvicorn's WebSocket protocol with one socket write per turn of the loop, and one event per read.

uvicorn writes every frame by itself: one system call each, a third of the loop's time when answers
are small (py-spy, WebSocket produce). Here text frames are collected and leave together. Those that
were read together are one event, too: ``texts``, an extension of ASGI both ways. Parsing them one
by one, and handing them through all layers, took 15 of 40 µs a message.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from magnetar.broker.http.websocket.frame_reader import WebSocketFrameReader
from magnetar.broker.listener.tcp_socket import (
    KERNEL_UNSENT_FIRST_BYTES,
    grow_kernel_buffer,
    limit_kernel_buffer,
)

ABORT_S = 15.0
"""After the end of a session; the close handshake has ten of them (uvicorn)."""
_UNSENT_BYTES_MAX = 4 * 1024
"""Of one socket, beyond what the system takes: nothing more is sent meanwhile."""
_SLICE_BYTES = 4 * 1024
_TURN_S = 0.001
"""Of the loop, for what one read brought: a frame may be six bytes, and takes 15 µs."""
_TEXT_FINAL = 0x81
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_SMALL = Struct(">BB")
_MEDIUM = Struct(">BBH")
_LARGE = Struct(">BBQ")


@lru_cache(1024)  # receipts are of few sizes
def text_frame_head(size: int) -> bytes:
    """Head of an unmasked, final text frame of ``size`` bytes (RFC 6455 5.2)."""
    if size < 126:
        return _SMALL.pack(_TEXT_FINAL, size)
    if size < 65_536:
        return _MEDIUM.pack(_TEXT_FINAL, 126, size)
    return _LARGE.pack(_TEXT_FINAL, 127, size)


class _Inbox:
    """The part of an asyncio.Queue that uvicorn uses, for one reader.

    A queue's three deques take 2.3 KiB in each idle socket.
    """

    __slots__ = ("_items", "_newest_first", "_reader")

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._newest_first: list[Any] = []  # taken from its end: popping at the front is slow
        self._reader: asyncio.Future[None] | None = None

    def put_nowait(self, item: Any) -> None:
        self._items.append(item)
        _finish(self._reader)

    def empty(self) -> bool:
        return not self._items and not self._newest_first

    async def get(self) -> Any:
        if not self._newest_first:
            while not self._items:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            self._newest_first, self._items = self._items[::-1], []
        return self._newest_first.pop()


class _OpenEvent:
    """The part of an asyncio.Event that uvicorn uses; open most of the time, one task waits."""

    __slots__ = ("_open", "_waiting")

    def __init__(self) -> None:
        self._open = True
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._open

    def set(self) -> None:
        self._open = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            _finish(each)

    def clear(self) -> None:
        self._open = False

    async def wait(self) -> bool:
        while not self._open:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        return True


def _finish(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class CorkedWebSocketProtocol(WebSocketsSansIOProtocol):
    """REQUIRES: no extensions are negotiated (``ws_per_message_deflate=False``)."""

    on_lost: Callable[[], None] | None = None
    """Called when the connection is gone."""
    on_garbage: Callable[[], None] | None = None
    """Called once when the client's bytes end the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # The frames of these hold what holds them.
        self.conn.parser_exc = self.conn.handshake_exc = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self.on_lost is not None:
            self.on_lost()

    _abort_timer: asyncio.TimerHandle | None = None
    _kernel_unsent_bytes = KERNEL_UNSENT_FIRST_BYTES

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        if not self.disconnected:
            # Closing waits for what is unsent, for ever where the client takes nothing any more.
            self._abort_timer = self.loop.call_later(ABORT_S, self._abort)

    def _abort(self) -> None:
        if not self.disconnected:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out: list[bytes] = []
        self.queue = _Inbox()  # type: ignore[assignment]  # as much of a queue as is used
        self.writable = _OpenEvent()  # type: ignore[assignment]  # the same of an event
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(_UNSENT_BYTES_MAX)
        limit_kernel_buffer(transport, self._kernel_unsent_bytes)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._kernel_unsent_bytes = grow_kernel_buffer(self.transport, self._kernel_unsent_bytes)

    _frames: WebSocketFrameReader | None = None  # from the first bytes behind the handshake on
    _texts: list[str] | None = None  # of an event that the application has not taken yet
    _rest = b""  # read, and to be parsed when it is its turn

    def data_received(self, data: bytes) -> None:
        if self._rest:  # a transport may hand over what it had read before it was paused
            self._rest += data
        elif len(data) <= _SLICE_BYTES:
            self._parse(data)
        else:
            self._parse_some(data)

    def _parse_some(self, data: bytes) -> None:
        """As much as a turn of the loop has time for."""
        end_s = time.perf_counter() + _TURN_S
        for start in range(0, len(data), _SLICE_BYTES):
            if time.perf_counter() > end_s:
                self._rest = data[start:]
                self.transport.pause_reading()
                self.loop.call_soon(self._go_on)
                return
            self._parse(data[start : start + _SLICE_BYTES])
            if self.transport.is_closing():
                return

    def _go_on(self) -> None:
        rest, self._rest = self._rest, b""
        if not self.transport.is_closing():
            self._parse_some(rest)
            if not self._rest and not self.read_paused:
                self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        self._texts = None
        if self._rest:
            self.transport.pause_reading()  # which uvicorn has just resumed
        return message

    def _parse(self, data: bytes) -> None:
        if self._frames is None and self.handshake_complete:
            self._frames = WebSocketFrameReader(self.config.ws_max_size)
        if self._frames is None:
            self._parse_by_library(data)
            return
        for part in self._frames.read(data):
            if isinstance(part, bytes):
                self._parse_by_library(part)
            elif self.conn.state is State.OPEN:
                self._receive(part)

    def _parse_by_library(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # No request that its parser understands: uvicorn would leave the client waiting.
            self.transport.write(_BAD_REQUEST)
            self.transport.close()

    def handle_parser_exception(self) -> None:
        if self.on_garbage is not None:
            self.on_garbage()
            self.on_garbage = None
        if self.conn.close_sent is not None:
            if not self.transport.is_closing():
                super().handle_parser_exception()
            return
        # No frames, before the handshake is answered or behind a close frame: nothing can say why.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1002, "reason": ""})
        self.close_sent = True
        self.transport.close()

    def send_receive_event_to_app(self) -> None:
        # As uvicorn has it, which writes a traceback for text that isn't UTF-8.
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            self._receive((data,))
        else:
            self._texts = None
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
            self._pause()

    def _receive(self, payloads: Iterable[bytes]) -> None:
        if self.close_sent:
            return
        if self._texts is None:
            self._texts = []
            self.queue.put_nowait({"type": "websocket.receive", "texts": self._texts})  # type: ignore[arg-type]  # no event of plain ASGI
        try:
            for payload in payloads:
                self._texts.append(payload.decode())
        except UnicodeDecodeError:
            self.conn.fail(1007)
            self.handle_parser_exception()
            return
        self._pause()

    def _pause(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        if not self.handshake_complete and self.transport.is_closing():
            raise ClientDisconnected  # there is nobody to be accepted or refused
        texts = message.get("texts") if message["type"] == "websocket.send" else None
        if texts is None or not self.handshake_complete or self.close_sent:
            self._write_out()  # a close frame is the last one: what is collected goes first
            await super().send(message)
            if self.close_sent and not self.handshake_complete:
                # Refused with an HTTP answer, which is an end in itself: uvicorn would log an error
                # for each, and so let anybody fill the log.
                self.handshake_complete = True
            if self.handshake_complete:
                # Nobody reads the headers of both sides any more; several objects hold them, all
                # of them together 4 KiB.
                self.request.headers.clear()
                self.response.headers.clear()
                self.scope["headers"].clear()  # type: ignore[attr-defined]  # it is a list
            return
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.transport.is_closing():
            raise ClientDisconnected
        if not self._out:
            self.loop.call_soon(self._write_out)
        for text in texts:
            data = text.encode()
            self._out += (text_frame_head(len(data)), data)

    def _write_out(self) -> None:
        out, self._out = self._out, []
        if out and not self.close_sent and not self.transport.is_closing():
            self.transport.write(b"".join(out))
