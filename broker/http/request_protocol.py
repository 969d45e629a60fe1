"""uvicorn's HTTP protocol, lenient where widely used clients bend HTTP/1.1."""

from __future__ import annotations

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from broker.service.file_limit import SocketQuota

__all__ = ["LenientHttpProtocol"]

_OFFER = frozenset((b"upgrade", b"http2-settings"))
"""Headers, and options of the Connection header, of an offer to change the protocol."""


class LenientHttpProtocol(HttpToolsProtocol):
    """Answers a good request even when what follows it on the connection is no HTTP, and one that
    offers to speak another protocol.

    Node's ``http`` module sends the body of a DELETE without Content-Length or chunks (the official
    Node client's tests do): the parser takes it for the next request. uvicorn would answer 400 at
    once, before the answer of the request in front of it, which the client then takes for its own.

    Java's ``java.net.http`` offers HTTP/2 with its first request to a server (``Upgrade: h2c``). A
    server may ignore that (RFC 9110, 7.8), but httptools ends such a request after its headers and
    takes the body for something else. So the request is parsed again without the offer.
    """

    quota: SocketQuota
    """Of all HTTP and WebSocket connections of the process; set by the server."""
    _declined = False  # the request being parsed offers another protocol than WebSocket

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's own narrowing
        super().connection_made(transport)
        if not self.quota.admits(len(self.connections)):
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            if self._declined:
                self._stay_with_http(data[upgrade.args[0] :])
            else:
                self.handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        self._declined = self.parser.should_upgrade() and not self._should_upgrade()
        if not self._declined:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._declined:
            super().on_message_complete()

    def _stay_with_http(self, rest: bytes) -> None:
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(each for each in options if each.lower() not in _OFFER)
            if name not in _OFFER and (value or name != b"connection"):
                head += (name, b": ", value, b"\r\n")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"".join(head) + b"\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
            return
        cycle.keep_alive = False  # nothing more can be parsed: closed once it is answered
        self.flow.pause_reading()
