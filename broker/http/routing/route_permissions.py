"""Who may do what over HTTP and WebSocket: the rules that routes declare, and their application.

Every route names its ``Access``: the permission that a role needs, on the tenant, namespace,
topic or subscription of the path. ``authorize`` applies it before a route runs (route.py), where
authorization is on; WebSocket endpoints call ``authorize_websocket``.

Permissions and statuses are those of Apache Pulsar 4.2.4, asked route by route and role by role.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from magnetar.broker.auth.authorization import EVERY_SUBSCRIPTION, Caller, Permission, Resource
from magnetar.broker.errors import AuthorizationError, BrokerMetadataError
from magnetar.broker.http.dependencies import form_decode, make_namespace, make_topic_name
from magnetar.broker.http.errors import ApiError
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import HTTPConnection
    from starlette.types import Scope
    from starlette.websockets import WebSocket

    from magnetar.broker.service.access_control import AccessControl, Right


class Access(Enum):
    """The permission that a route asks for, and the status of its refusal: 403 is Pulsar's for what
    concerns namespaces and policies. ``ALL``: of every subscription at once.
    """

    FREE = (Permission.NOTHING, 401)
    LOOKUP_401 = (Permission.LOOKUP, 401)
    LOOKUP_403 = (Permission.LOOKUP, 403)
    PRODUCE_401 = (Permission.PRODUCE, 401)
    PRODUCE_403 = (Permission.PRODUCE, 403)
    CONSUME_401 = (Permission.CONSUME, 401)
    CONSUME_403 = (Permission.CONSUME, 403)
    CONSUME_ALL_401 = (Permission.CONSUME, 401, True)
    CONSUME_ALL_403 = (Permission.CONSUME, 403, True)
    ADMIN_401 = (Permission.TENANT_ADMIN, 401)
    ADMIN_403 = (Permission.TENANT_ADMIN, 403)
    SUPERUSER = (Permission.SUPERUSER, 401)

    def __init__(
        self, permission: Permission, status: int, every_subscription: bool = False
    ) -> None:
        self.permission, self.status = permission, status
        self.every_subscription = every_subscription


async def authorize(request: Request, rule: Access) -> None:
    """Before anything else of a route. REQUIRES: authorization is on.

    Raises:
        ApiError: 401 or 403, the role may not do this; 404, there is no such tenant; 412, the path
            names nothing.
    """
    scope = request.scope
    access: AccessControl = scope["app"].state.access
    if rule.permission is Permission.NOTHING:
        return
    template: str = scope["route"].path
    right = (caller_of(scope), rule.permission, resource_of(rule, template, scope["path_params"]))
    scope["state"]["right"] = right
    try:
        await require(access, scope, (right,), rule.status)
    except ApiError:
        # Pulsar looks at the tenant first, except where tenants themselves are meant.
        if template.startswith(("/admin/v2/tenants", "/topics/")) or right[2].tenant == "":
            raise
        if await access.has_tenant(right[2].tenant):
            raise
        raise ApiError(404, "Tenant does not exist") from None


async def authorize_websocket(
    websocket: WebSocket, rule: Access, resources: Iterable[Resource]
) -> list[Right]:
    """The rights that a socket lives on. Empty while authorization is off.

    Raises:
        ApiError: 403.
    """
    scope = websocket.scope
    access: AccessControl | None = scope["app"].state.access
    if access is None:
        return []
    caller = caller_of(scope)
    rights = [(caller, rule.permission, resource) for resource in resources]
    if not rights:  # nothing that could be asked about
        rights = [(caller, Permission.SUPERUSER, Resource())]
    await require(access, scope, rights, rule.status)
    return rights


async def require(
    access: AccessControl, scope: Scope, rights: Iterable[Right], status: int
) -> None:
    """Raises ApiError: with ``status``, one of them is not given; BrokerMetadataError."""
    client = scope.get("client")
    remote = f"{client[0]}:{client[1]}" if client else "unknown"
    try:
        for right in rights:
            await access.require(*right, scope["type"], remote)
    except AuthorizationError as error:
        raise ApiError(status, f"Unauthorized: {error}") from error
    except MetadataError as error:
        raise BrokerMetadataError(str(error)) from error


def caller_of(scope: Scope) -> Caller:
    """As authentication has found out (authentication.py)."""
    state = scope["state"]
    return Caller(state.get("role"), state.get("original_role"))


def right_of(connection: HTTPConnection) -> Right | None:
    """The right that ``authorize`` has asked for; None while authorization is off."""
    right: Right | None = connection.scope["state"].get("right")
    return right


def resource_of(rule: Access, template: str, names: Mapping[str, Any]) -> Resource:
    """The resource in the path, decoded exactly as its route will do (dependencies.py).

    Raises:
        ApiError: 404 unknown domain, 412 bad name.
    """
    if rule.permission is Permission.SUPERUSER:
        return Resource(form_decode(names["tenant"])) if "tenant" in names else Resource()
    subscription = form_decode(names.get("subscription", ""))
    if rule.every_subscription:
        subscription = EVERY_SUBSCRIPTION
    if "topic" in names:
        volatile = template.startswith("/admin/v2/non-persistent/")
        domain = names.get("domain", "non-persistent" if volatile else "persistent")
        topic = make_topic_name(domain, names["tenant"], names["namespace"], names["topic"])
        return Resource.of_topic(topic, form_decode(subscription))
    if "namespace" in names:
        return Resource.of_namespace(
            make_namespace(names["tenant"], names["namespace"]), subscription
        )
    return Resource(form_decode(names["tenant"]))
