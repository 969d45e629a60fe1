"""Hands WebSockets to their endpoints, past the framework's own layers.

An open socket keeps the frames of everything that it came through for as long as it lives. Those of
the framework below our own layers (error handling, exit stacks, routing) do nothing for a socket
and were a fifth of what an idle one cost.
"""

from collections.abc import Awaitable, Sequence

from starlette.routing import Match, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket


class WebSocketMiddleware:
    """Nothing of a WebSocket goes further; layers that it needs lie outside of this one."""

    def __init__(self, app: ASGIApp, routes: Sequence[WebSocketRoute]) -> None:
        """``routes``: tried in turn; the last one matches everything."""
        self._app = app
        self._routes = routes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "websocket":
            return self._app(scope, receive, send)
        return self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                # Not the route's own app, which would add its layers.
                await route.endpoint(WebSocket(scope, receive, send))
                return
