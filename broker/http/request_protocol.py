"""uvicorn's HTTP protocol, lenient where widely used clients bend HTTP/1.1."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LenientHttpProtocol"]


class LenientHttpProtocol(HttpToolsProtocol):
    """Answers a good request even when what follows it on the connection is no HTTP.

    Node's ``http`` module sends the body of a DELETE without Content-Length or chunks (the official
    Node client's tests do): the parser takes it for the next request. uvicorn would answer 400 at
    once, before the answer of the request in front of it, which the client then takes for its own.
    """

    def send_400_response(self, msg: str) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
            return
        cycle.keep_alive = False  # nothing more can be parsed: closed once it is answered
        self.flow.pause_reading()
