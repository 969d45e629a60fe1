"""A bookie's small HTTP server: probes, state, metrics. One request a connection.

Not the broker's HTTP stack: a storage node needs no routes, sessions or framework, and this must
answer while the bookie is still replaying its journal.
"""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

from magnetar.bookkeeper.bookie.http.admin_access import AdminAccess
from magnetar.bookkeeper.origin_check import OriginCheck

_log = logging.getLogger(__name__)

_HEAD_BYTES_MAX: Final = 8192
_HEAD_S_MAX: Final = 10.0
_ANSWER_S_MAX: Final = 60.0  # a reader that is slower is cut off
_CONNECTIONS_MAX: Final = 64  # more are closed at once
_ADDRESS_MAX: Final = _CONNECTIONS_MAX // 2  # of one address: the rest is for others' probes
_CHALLENGE: Final = 'WWW-Authenticate: Bearer realm="magnetar"\r\n'
_BODY_BYTES_MAX: Final = 8192  # of a request to a page that reads it
_DISCARDED_BYTES_MAX: Final = 1024 * 1024  # of what else follows a request


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One page."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class BodyPage:
    """A page that is given the body of its request; empty without ``Content-Length``."""

    answer: Callable[[bytes], Awaitable[HttpResponse]]


class AdminServer:
    """Serves ``pages`` by path, those of other methods by "PUT /path": ``await listen(...)``,
    ``await close()``."""

    def __init__(
        self,
        pages: Mapping[str, Page | BodyPage],
        access: AdminAccess | None = None,
        otherwise: Page | None = None,
        sites: OriginCheck | None = None,
    ) -> None:
        """
        Args:
            access: judges requests; None: every page is open.
            otherwise: the answer to all that isn't in ``pages``; None: 404 and 405.
            sites: which web pages may ask; None: all.
        """
        self._pages, self._otherwise = dict(pages), otherwise
        self._access = access
        self._sites = sites
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], str] = {}  # with their addresses

    async def listen(self, host: str, port: int) -> int:
        """Bind; the port, which 0 leaves to the system.

        Raises:
            OSError: the address can't be used.
        """
        server = await asyncio.start_server(self._accept, host, port, limit=_HEAD_BYTES_MAX)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def listen_on(self, listener: socket.socket) -> None:
        """Serve a socket that is bound, and own it."""
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=_HEAD_BYTES_MAX
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = _address_of(writer).rpartition(":")[0]
        addresses = list(self._connections.values())
        if len(addresses) >= _CONNECTIONS_MAX or addresses.count(address) >= _ADDRESS_MAX:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = address
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # OSError: also of a socket that was reset and whose stream doesn't know it yet.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                method, answer = await self._answer(reader, _address_of(writer))
                if writer.transport.is_closing():
                    return
                writer.write(_encode(method, answer))
                async with asyncio.timeout(_ANSWER_S_MAX):
                    await writer.drain()
                    if not writer.transport.is_closing():
                        writer.write_eof()
                        await _discard(reader)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, address: str) -> tuple[str, HttpResponse]:
        try:
            async with asyncio.timeout(_HEAD_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "GET", _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "GET", _plain(HTTPStatus.BAD_REQUEST)
        method = words[0].decode("latin-1")
        path = words[1].partition(b"?")[0].decode("latin-1")
        sites, access, headers = self._sites, self._access, _headers(head)
        if sites is not None and (page_refused := sites.refusal(method, headers)):
            return method, _plain(*page_refused)
        if access is not None and (refused := access.refusal(method, path, headers, address)):
            return method, _plain(refused)
        page = self._pages.get(path if method in ("GET", "HEAD") else f"{method} {path}")
        page = page or self._otherwise
        if page is None:
            known = path in self._pages
            return method, _plain(HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND)
        if isinstance(page, BodyPage):
            size = _body_size(headers)
            if size is None:
                return method, _plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            async with asyncio.timeout(_HEAD_S_MAX):
                page = partial(page.answer, await reader.readexactly(size))
        try:
            return method, await page()
        except Exception:  # a bug in a page is an answer, not the end of the connection
            _log.exception("no page for %s", words[1])
            return method, _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _body_size(headers: list[tuple[bytes, bytes]]) -> int | None:
    """0: there is no body, or nobody says how long it is. None: longer than is read."""
    text = next((value for name, value in headers if name == b"content-length"), b"")
    digits = text.lstrip(b"0") if text.isdigit() else b""
    size = int(digits or b"0") if len(digits) <= len(str(_BODY_BYTES_MAX)) else None
    return None if size is None or size > _BODY_BYTES_MAX else size


def _address_of(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"


async def _discard(reader: asyncio.StreamReader) -> None:
    """Until the other side has closed: it has got everything. Nothing of it is kept."""
    left = _DISCARDED_BYTES_MAX
    while left > 0 and (words := await reader.read(_HEAD_BYTES_MAX)):
        left -= len(words)


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return [(name.strip().lower(), value.strip()) for name, _, value in lines]


def text_page(status: HTTPStatus, text: str) -> HttpResponse:
    return HttpResponse(status, "text/plain; charset=utf-8", text.encode())


def json_page(document: object, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(status, "application/json", json.dumps(document).encode())


def metrics_page(body: bytes) -> HttpResponse:
    """``body`` in Prometheus' text format."""
    return HttpResponse(HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", body)


def _plain(status: HTTPStatus, reason: str = "") -> HttpResponse:
    return text_page(status, f"{reason or status.phrase}\n")


def _encode(method: str, answer: HttpResponse) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        f"{_CHALLENGE if answer.status == HTTPStatus.UNAUTHORIZED else ''}"
        "Connection: close\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + answer.body
