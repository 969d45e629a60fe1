"""Refuses what pages of other sites, or by other names, make their visitors' browsers send.

Why and how: bookkeeper/origin_check.py. This layer is in front of every route and WebSocket,
whether authentication is on or not, and of CORS.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.origin_check import OriginCheck
from magnetar.broker.http.errors import error_response, refuse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


_TAKING: Final = b"/topics/"


def may_last(scope: Scope) -> bool:
    """Whether a request may go on for longer than a moment; such a GET takes messages."""
    if scope["type"] == "websocket":
        return True
    raw: bytes = scope.get("raw_path") or b""
    return scope["method"] == "GET" and raw.startswith(_TAKING)


class OriginMiddleware:
    """Pure ASGI. Sets ``scope["state"]["is_foreign"]`` where only ``*`` lets a page's request in:
    then what its visitor's browser shows by itself is not good enough."""

    def __init__(self, app: ASGIApp, sites: OriginCheck) -> None:
        self._app = app
        self._sites = sites

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] in ("http", "websocket"):
            method, headers = scope.get("method", "GET"), scope["headers"]
            is_page = not may_last(scope)
            if (refusal := self._sites.refusal(method, headers, is_page=is_page)) is not None:
                return refuse(error_response(*refusal), scope, receive, send)
            if self._sites.is_open and self._sites.is_foreign(method, headers, is_page=is_page):
                scope["state"]["is_foreign"] = True
        return self._app(scope, receive, send)
