"""Routes on the path as it came, so that an encoded slash stays inside its segment.

Servers hand on the decoded path, where ``a%2Fb`` has become two segments. This layer puts the raw
path back for the router; ``form_decode`` then decodes each segment once, by form rules (``+`` is a
space). It also takes a trailing slash off: Pulsar accepts both and redirects neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class RawPathMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            path = raw.split(b"?", 1)[0].decode("latin-1")
            scope["path"] = path.rstrip("/") or "/"
        await self._app(scope, receive, send)


def form_decode(segment: str) -> str:
    """One path segment's text. Bytes that aren't UTF-8 become U+FFFD, as in Java."""
    return unquote_plus(segment, errors="replace")
