"""The scheme that a client used, where a proxy has ended TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class ForwardedSchemeMiddleware:
    """Believes ``X-Forwarded-Proto: https``; of several values the first, as Pulsar does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            told = next((v for k, v in scope["headers"] if k == b"x-forwarded-proto"), b"")
            if told.split(b",")[0].strip().lower() == b"https":
                scope = {**scope, "scheme": "https"}
        await self._app(scope, receive, send)
