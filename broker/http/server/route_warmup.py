"""Makes all routes ready before the first request is routed, in a thread.

FastAPI analyses the parameters of a router's routes when the search for a request's route first
gets there. For a route behind all others, such as that of the metrics page, that is everything at
once: 0.2 s, and above a second on a busy machine, which the first request would hold the loop for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

# FastAPI sets the warning filters while it analyses, and they belong to the process: brokers of two
# threads would undo each other's, and where warnings are errors the analysis would fail.
_ANALYSIS = threading.Lock()


class RouteWarmup:
    """The innermost layer: only the first requests wait for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ready = False
        self._preparing: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._ready:
            if self._preparing is None:
                routes = list(scope["app"].router.routes)
                self._preparing = asyncio.get_running_loop().create_task(self._prepare(routes))
            await asyncio.shield(self._preparing)  # others wait as well
        await self._app(scope, receive, send)

    async def _prepare(self, routes: list[BaseRoute]) -> None:
        try:
            await asyncio.to_thread(_look_at, routes)
        except Exception:  # the search itself will say what is wrong
            logger.exception("the routes can't be prepared")
        self._ready = True


def _look_at(routes: list[BaseRoute]) -> None:
    """Search each of them for what none has, and load what answers in pieces need."""
    anyio.run(asyncio.sleep, 0)  # loads its part for asyncio, which takes a while
    scope = {"type": "http", "method": "GET", "path": "/\0", "root_path": "", "headers": []}
    with _ANALYSIS:
        for route in routes:
            route.matches(dict(scope))
