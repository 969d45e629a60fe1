"""The web console below ``/console/``; its code is loaded by the first request for it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.console_sessions import ConsoleSessions
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.console.console import Console
    from magnetar.broker.service.memory import CollectionPlan

routes = Routes(access=Access.FREE, mode=RoutingMode.LOCAL, include_in_schema=False)

_PREFIX = "/console/"


@routes.get("/", "")
async def start(request: Request) -> Response:
    """Browsers are sent to the console; others find nothing here, as at Pulsar."""
    if not _is_served(request) or "text/html" not in request.headers.get("accept", ""):
        raise ApiError(404, "Not Found")
    return Response(status_code=303, headers={"Location": "./console/"})


@routes.get("/console/login", "")
@routes.post("/console/login", "")
@routes.post("/console/logout", "")
async def login(request: Request) -> Response:
    """Credentials for a cookie; only where authentication is on."""
    if not _is_served(request) or request.app.state.service.authenticator is None:
        raise ApiError(404, "Not Found")
    console = await _console(request)
    from magnetar.broker.console.login import Login  # loaded with it

    service, state = request.app.state.service, request.app.state
    return await Login(console, service.authenticator, state.console_sessions).respond(request)


@routes.get("/console", "")
@routes.get("/console/{path:path}", "")
async def page(request: Request) -> Response:
    """A page, or a file of one. Links are relative, so that it may be behind any prefix."""
    if not _is_served(request):
        raise ApiError(404, "Not Found")
    raw: bytes = request.scope["raw_path"]
    path = raw.split(b"?", 1)[0].decode("latin-1")
    if not path.startswith(_PREFIX):
        return Response(status_code=303, headers={"Location": "./console/"})
    return await (await _console(request)).respond(request, path[len(_PREFIX) :])


@routes.post("/console/{path:path}", "")
async def act(request: Request) -> Response:
    """A form of a page."""
    if not _is_served(request):
        raise ApiError(404, "Not Found")
    path = request.scope["raw_path"].split(b"?", 1)[0].decode("latin-1")
    return await (await _console(request)).act(request, path[len(_PREFIX) :])


def _is_served(request: Request) -> bool:
    return bool(request.app.state.service.config.web_console_enabled)


async def _console(request: Request) -> Console:
    """Made by the first request, in a thread: modules and templates take a tenth of a second.

    Others wait for it meanwhile: a hundred pages that come back at once, as after a restart, had
    each made one.
    """
    state = request.app.state
    if getattr(state, "console", None) is None:
        form_key = b""
        with suppress(MetadataError):  # pages are needed then more than ever; forms may be refused
            await state.console_sessions.refresh()
            form_key = state.console_sessions.form_key()
        sessions = state.console_sessions
        async with state.console_lock:
            if getattr(state, "console", None) is None:
                with _without_collections(state.service.periodic_tasks.collections):
                    made = await asyncio.to_thread(_made, state.service.config, form_key, sessions)
                if not form_key:
                    return made
                state.console = made
    return cast("Console", state.console)


@contextmanager
def _without_collections(plan: CollectionPlan) -> Iterator[None]:
    """Modules are 40,000 objects, which no collection needs to walk."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        plan.keep()
        if was_enabled:
            gc.enable()


def _made(config: BrokerConfig, form_key: bytes, sessions: ConsoleSessions) -> Console:
    import magnetar.broker.console.login  # noqa: F401 # so that nobody loads it on the loop
    from magnetar.broker.console.broker_view import LoadReports
    from magnetar.broker.console.console import ClusterLook, Console
    from magnetar.broker.console.local_api import LocalApi
    from magnetar.broker.console.source import Source
    from magnetar.broker.http.server.app import product_version

    look = ClusterLook.of(
        config.cluster_name,
        Source.product,
        product_version(),
        config.web_console_environment,
        config.web_console_read_only,
    )
    reports, masked = LoadReports(), config.web_console_masked_fields

    def source(visitor: Request) -> Source:
        return Source(LocalApi(visitor), reports, masked)

    async def has_ended(visitor: Request) -> bool:
        return await sessions.has_ended(visitor.scope)

    return Console(look, source, config.web_console_messages, form_key, has_ended)
