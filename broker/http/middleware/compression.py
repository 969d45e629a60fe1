"""gzip for clients that ask, where it is worth it: whole answers of some size.

Not Starlette's GZipMiddleware: it also compresses streams and keeps what the compressor holds back,
so that a message of an NDJSON stream would arrive with the next one; and it compresses on the loop.
Answers that are sent in pieces pass through here untouched, unless ``allow_compression`` said that
nobody waits for single pieces.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magnetar.broker.http.streamed_answers import IN_PIECES

_WORTH_BYTES: Final = 1024  # less fits in one packet anyway
_THREAD_BYTES: Final = 32 * 1024  # 0.3 ms of the loop at level 4
_LEVEL: Final = 4
_PIECES_LEVEL: Final = 1  # of large pages: half the time for 7 % more bytes
_GZIP_BITS: Final = 31  # the largest window, in gzip's format
_TEXT: Final = re.compile(rb"application/(json|javascript)\b|text/(?!event-stream)|image/svg")
_ALWAYS_EXCLUDED: Final = b"/topics/"
"""Produce and consume: their callers wait for latency, and answers are read once."""


class GzipMiddleware:
    def __init__(self, app: ASGIApp, excluded_paths: Iterable[str] = ()) -> None:
        """
        Args:
            excluded_paths: path prefixes (a trailing ``*`` is ignored), or regular expressions
                where they begin with ``^``; ``^.*`` switches compression off.
        """
        self._app = app
        self._prefixes = tuple(
            path.rstrip("*").encode() for path in excluded_paths if not path.startswith("^")
        )
        self._patterns = [
            re.compile(path.encode()) for path in excluded_paths if path.startswith("^")
        ]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and self._wanted(scope):
            send = _Gzip(scope, send).send
        return self._app(scope, receive, send)

    def _wanted(self, scope: Scope) -> bool:
        path: bytes = scope.get("raw_path") or b""
        if path.startswith(_ALWAYS_EXCLUDED) or scope["method"] == "HEAD":
            return False
        for name, value in scope["headers"]:
            if name == b"accept-encoding":
                return (
                    accepts_gzip(value)
                    and not (self._prefixes and path.startswith(self._prefixes))
                    and not any(pattern.search(path) for pattern in self._patterns)
                )
        return False


def accepts_gzip(header: bytes) -> bool:
    """Whether an Accept-Encoding header allows gzip (``gzip;q=0`` doesn't)."""
    for choice in header.lower().split(b","):
        coding, _, parameters = choice.partition(b";")
        if coding.strip() in (b"gzip", b"x-gzip", b"*"):
            weight = parameters.replace(b" ", b"")
            return re.fullmatch(rb"q=0(\.0*)?", weight) is None
    return False


class _Gzip:
    """``send`` of one answer: holds its head until the first piece shows whether it is whole."""

    __slots__ = ("_compressor", "_head", "_scope", "_send")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._head: Message | None = None
        self._compressor: zlib._Compress | None = None  # of an answer in pieces

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        head, self._head = self._head, None
        if head is None:
            if self._compressor is not None:
                message = await self._piece(self._compressor, message)
            await self._send(message)
            return
        body = message.get("body", b"")
        if not _compressible(head):
            pass
        elif message.get("more_body"):
            if IN_PIECES in self._scope.get("state", ()):
                self._compressor = zlib.compressobj(_PIECES_LEVEL, zlib.DEFLATED, _GZIP_BITS)
                _tell(head)
                message = await self._piece(self._compressor, message)
        elif len(body) >= _WORTH_BYTES:
            large = len(body) >= _THREAD_BYTES
            body = await asyncio.to_thread(_gzip, body) if large else _gzip(body)
            message = {**message, "body": body}
            _tell(head, (b"content-length", str(len(body)).encode()))
        await self._send(head)
        await self._send(message)

    async def _piece(self, compressor: zlib._Compress, message: Message) -> Message:
        body, last = message.get("body", b""), not message.get("more_body")
        if len(body) >= _THREAD_BYTES:
            body = await asyncio.to_thread(compressor.compress, body)
        else:
            body = compressor.compress(body)
        return {**message, "body": body + compressor.flush() if last else body}


def _tell(head: Message, *more: tuple[bytes, bytes]) -> None:
    """The headers of a compressed answer."""
    kept = [each for each in head["headers"] if each[0] != b"content-length"]
    head["headers"] = [
        *kept,
        *more,
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
    ]


def _compressible(head: Message) -> bool:
    headers = dict(head.get("headers", ()))
    kind = headers.get(b"content-type", b"")
    return (
        head["status"] not in (204, 304)
        and b"content-encoding" not in headers
        and b"content-range" not in headers
        and _TEXT.match(kind) is not None
    )


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, _LEVEL, _GZIP_BITS)
