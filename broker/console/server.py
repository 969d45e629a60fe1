"""``magnetar console``: the console as a process of its own, in front of any cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from magnetar.bookkeeper.origin_check import OriginCheck, names_to_answer
from magnetar.broker.cli.version import product_version
from magnetar.broker.console.admin_api import RemoteApi, get
from magnetar.broker.console.connection_steps import network_steps, rights
from magnetar.broker.console.console import ClusterLook, Console
from magnetar.broker.console.kind_of_cluster import connect
from magnetar.broker.console.pulsar_messages import PulsarMessages
from magnetar.broker.http.errors import error_response, response_of
from magnetar.broker.http.middleware.origin_middleware import OriginMiddleware
from magnetar.broker.http.page_answers import refusal_for

if TYPE_CHECKING:
    from magnetar.broker.auth.client_auth import ClientAuth

_PREFIX: Final = "/console/"


@asynccontextmanager
async def console_app(
    admin_url: str,
    access: ClientAuth,
    *,
    bind_address: str,
    say: Callable[[str, str], None] = lambda step, result: None,
    service_url: str = "",
    environment: str = "",
    read_only: bool = False,
    contents: str = "full",
    masked_fields: str = "",
) -> AsyncIterator[ASGIApp]:
    """The application, and its connections to the cluster until the end of the block.

    Args:
        access: credentials; everybody who reaches the console uses them.
        say: is told each step of the way to the cluster, and what came of it.
        service_url: for the binary protocol, of Apache Pulsar; "": as the cluster tells it.
        environment: as the setting ``webConsoleEnvironment``.
        contents: as ``webConsoleMessages``.
        masked_fields: as ``webConsoleMaskedFields``.
    Raises:
        AdminError: nothing answers there (503), or something else; or it refuses.
    """
    tls = access.tls() if admin_url.startswith("https:") else None
    async for step, result in network_steps(admin_url, tls):
        say(step, result)
    async with httpx.AsyncClient(verify=tls or True, trust_env=False) as client:
        source = await connect(
            lambda url: RemoteApi(client, url, access.headers),
            admin_url,
            lambda api: PulsarMessages(api, access, service_url, over_tls=tls is not None),
            masked_fields,
        )
        name = next(each for each in await get(source.api, "clusters") if each != "global")
        visitor = await source.visitor()
        say("login", f"as {visitor['role']}" if visitor else "accepted")
        version = str(await get(source.api, "brokers/version"))
        say("version", f"{source.product} {version}")
        say("rights", await rights(source))
        look = ClusterLook.of(name, source.product, version, environment, read_only)
        look = replace(look, own_version=product_version())
        console = Console(look, lambda _: source, contents)

        async def page(request: Request) -> Response:
            path = request.scope["raw_path"].split(b"?", 1)[0].decode("latin-1")
            if not path.startswith(_PREFIX):
                return Response(status_code=303, headers={"Location": "./console/"})
            below = path[len(_PREFIX) :]
            if request.method == "POST":
                return await console.act(request, below)
            return await console.respond(request, below)

        hosts = names_to_answer("", bind_address=bind_address, own=(), is_authenticated=False)
        check = OriginCheck(hosts=hosts, hosts_setting="--bind")
        watching = asyncio.create_task(source.watch())
        try:
            yield Starlette(
                routes=[
                    Route(each, page, methods=["GET", "POST"])
                    for each in ("/", "/console", "/console/{path:path}")
                ],
                exception_handlers={HTTPException: _refused, Exception: _failed},
                middleware=[Middleware(OriginMiddleware, sites=check)],
            )
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await console.close()
            await source.close()


async def _refused(request: Request, error: Exception) -> Response:
    return refusal_for(request.scope, response_of(error))


async def _failed(request: Request, error: Exception) -> Response:
    """Starlette raises it once more, and the server logs it."""
    reason = "Internal server error, see what the console writes"
    return refusal_for(request.scope, error_response(500, reason))
