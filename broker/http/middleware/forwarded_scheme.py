"""What a proxy tells of a request: the scheme that its client used, and the client's address."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

_FOR_MAX: Final = 200


class ForwardedSchemeMiddleware:
    """Believes ``X-Forwarded-Proto: https``; of several values the first, as Pulsar does.

    ``X-Forwarded-For`` is kept as ``scope["state"]["forwarded_for"]``, for the audit, and is
    believed nowhere: its first addresses are whatever the client wrote, only the last one is
    the proxy's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            told = next((v for k, v in scope["headers"] if k == b"x-forwarded-proto"), b"")
            if told.split(b",")[0].strip().lower() == b"https":
                scope = {**scope, "scheme": "https"}
            if told_for := b", ".join(v for k, v in scope["headers"] if k == b"x-forwarded-for"):
                # The end: it is what the nearest proxy has added.
                text = told_for.decode("latin-1")[-_FOR_MAX:]
                scope = {**scope, "state": {**scope.get("state", {}), "forwarded_for": text}}
        await self._app(scope, receive, send)
