"""A broker that asks for rights, and clients of roles that are set in front of the application.

Tenant ``t1`` has the admin ``ten``. In ``t1/ns`` ``prod`` may produce and ``cons`` may consume.
``admin`` is the superuser.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
from starlette.applications import Starlette

from tests.unit.broker.doubles import Broker


@asynccontextmanager
async def authorized_broker(**settings: object) -> AsyncIterator[Broker]:
    broker = Broker(
        authentication_enabled=True,
        anonymous_user_role="anonymous",
        authorization_enabled=True,
        super_user_roles="admin",
        **settings,
    )
    await broker.start()
    # Roles are set by the tests, in front of the application.
    broker.service.config = replace(
        broker.service.config, authentication_enabled=False, authorization_enabled=False
    )
    grants = {"prod": ["produce"], "cons": ["consume"]}
    resources = broker.service.resources
    await resources.create_tenant("t1", {"adminRoles": ["ten"]})
    await resources.create_namespace(
        "t1/ns", ["c"], 4, {"auth_policies": {"namespace_auth": grants}}
    )
    try:
        yield broker
    finally:
        await broker.close()


def acting_as(app: Starlette, role: str | None, original: str | None = None) -> Any:
    """The application behind an authentication that always finds the same role."""

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        state = scope.setdefault("state", {})
        if role is not None:
            state["role"] = role
        if original is not None:
            state["original_role"] = original
        await app(scope, receive, send)

    return layer


def client_of(app: Starlette, role: str | None, original: str | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(acting_as(app, role, original), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")
