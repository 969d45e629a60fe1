"""uvicorn's WebSocket protocol with one socket write per turn of the loop.

uvicorn writes every frame by itself: one system call each, a third of the loop's time when answers
are small (py-spy, WebSocket produce). Here text frames are collected and leave together.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["CorkedWebSocketProtocol", "text_frame_head"]

_TEXT_FINAL = 0x81
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_SMALL = Struct(">BB")
_MEDIUM = Struct(">BBH")
_LARGE = Struct(">BBQ")


def text_frame_head(size: int) -> bytes:
    """Head of an unmasked, final text frame of ``size`` bytes (RFC 6455 5.2)."""
    if size < 126:
        return _SMALL.pack(_TEXT_FINAL, size)
    if size < 65_536:
        return _MEDIUM.pack(_TEXT_FINAL, 126, size)
    return _LARGE.pack(_TEXT_FINAL, 127, size)


class CorkedWebSocketProtocol(WebSocketsSansIOProtocol):
    """REQUIRES: no extensions are negotiated (``ws_per_message_deflate=False``)."""

    on_lost: Callable[[], None] | None = None
    """Called when the connection is gone."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out: list[bytes] = []
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            # No request that its parser understands: uvicorn would leave the client waiting.
            self.transport.write(_BAD_REQUEST)
            self.transport.close()

    async def send(self, message: Any) -> None:
        text = message.get("text") if message["type"] == "websocket.send" else None
        if text is None or not self.handshake_complete or self.close_sent:
            self._write_out()  # a close frame is the last one: what is collected goes first
            await super().send(message)
            if self.close_sent and not self.handshake_complete:
                # Refused with an HTTP answer, which is an end in itself: uvicorn would log an error
                # for each, and so let anybody fill the log.
                self.handshake_complete = True
            return
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.transport.is_closing():
            raise ClientDisconnected
        data = text.encode()
        if not self._out:
            self.loop.call_soon(self._write_out)
        self._out += (text_frame_head(len(data)), data)

    def _write_out(self) -> None:
        out, self._out = self._out, []
        if out and not self.close_sent and not self.transport.is_closing():
            self.transport.write(b"".join(out))
