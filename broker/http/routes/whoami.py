"""Who asks, and what he may do: for tools that offer only what is allowed. Our own route."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from magnetar.bookkeeper.auth.certificates import end_s
from magnetar.broker.auth.authorization import Permission, Resource
from magnetar.broker.http.dependencies import Flag, Service, flag
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, declared_routes
from magnetar.broker.http.routing.route_permissions import caller_of, resource_of
from magnetar.broker.http.routing.scatter_gather import each
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.access_control import AccessControl
from magnetar.broker.service.broker_service import BrokerService

routes = Routes("/admin/v2", tag="access", access=Access.FREE, mode=RoutingMode.LOCAL)

_ASKED_MAX: Final = 100
"""Names in one call."""
_TENANTS_MAX: Final = 1000
"""Tenants that one call looks at."""
_PERMISSIONS: Final = {
    "lookup": Access.LOOKUP_401,
    "produce": Access.PRODUCE_401,
    "consume": Access.CONSUME_401,
    "consume every subscription": Access.CONSUME_ALL_401,
    "tenant admin": Access.ADMIN_401,
    "superuser": Access.SUPERUSER,
}
_EXAMPLE: Final = {
    "role": "billing",
    "originalRole": None,
    "method": "token",
    "expiresAt": 1764321000000,
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "superuser": False,
    "adminOf": ["shop"],
    "nextTenant": None,
    "rights": {
        "persistent://public/default/orders": {
            "permissions": ["lookup", "consume"],
            "operations": ["GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats"],
        }
    },
}
_LEVELS: Final = ("topic", "namespace", "tenant")
Asked = Annotated[list[str], Query(default_factory=list, description="May be repeated")]


@routes.get(
    "/whoami",
    example=_EXAMPLE,
    statuses={400: "More than 100 names", 412: "Not the name of a namespace or a topic"},
)
async def whoami(
    request: Request,
    service: Service,
    tenant: Asked,
    namespace: Asked,
    topic: Asked,
    subscription: Annotated[str, Query(description="That `consume` is asked for; none: any")] = "",
    operations: Annotated[str | None, Flag(False, "`true`: name each call that is allowed")] = None,
    after: Annotated[str, Query(description="`nextTenant` of the answer before")] = "",
) -> Response:
    """Who asks, how he has authenticated and until when, and what he may do.

    `adminOf` has the tenants that he administers, of 1,000 tenants by name; `nextTenant` is the
    last one of these if there are more. `rights` has what he may do with the tenants, namespaces
    and topics that were asked about, whether they exist or not: permissions, and with `operations`
    each call that is allowed there. While authorization is off everybody may do everything.
    """
    if len(tenant) + len(namespace) + len(topic) > _ASKED_MAX:
        raise ApiError(400, f"More than {_ASKED_MAX} names")
    app: Starlette = request.app
    rights = _Rights(app.state.access, request)
    resources = dict(_resources(tenant, namespace, topic, subscription))
    tenants, following = await _tenants(service, after)
    admin_of = await each(tenants, rights.administers)
    return JsonResponse(
        {
            **_login(request),
            "authenticationEnabled": service.authenticator is not None,
            "authorizationEnabled": app.state.access is not None,
            "superuser": await rights.may(Access.SUPERUSER, "", {}),
            "adminOf": [name for name, may in zip(tenants, admin_of, strict=True) if may],
            "nextTenant": following,
            "rights": {
                name: await rights.on(names, operations=flag(operations))
                for name, names in resources.items()
            },
        }
    )


def _login(request: Request) -> dict[str, Any]:
    """Role, method, and the end of the credentials in milliseconds since 1970."""
    state = request.scope["state"]
    caller = caller_of(request.scope)
    method, until_s = state.get("login", (None, None))
    if method == "tls":
        until_s = end_s(state["client_certificate"])
    return {
        "role": caller.role,
        "originalRole": caller.original,
        "method": "anonymous" if method == "none" else method,
        "expiresAt": None if until_s is None else int(until_s * 1000),
    }


def _resources(
    tenants: list[str], namespaces: list[str], topics: list[str], subscription: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Full name -> the names that a path to it has, encoded.

    Raises:
        InvalidTopicNameError.
    """
    for tenant in tenants:
        yield tenant, _encoded(tenant=tenant)
    for namespace in namespaces:
        parent, _, child = namespace.partition("/")
        yield namespace, _encoded(tenant=parent, namespace=child, subscription=subscription)
    for text in topics:
        topic = TopicName.parse(text)
        tenant, _, namespace = topic.namespace.partition("/")
        yield (
            str(topic),
            _encoded(
                domain=topic.domain,
                tenant=tenant,
                namespace=namespace,
                topic=topic.local,
                subscription=subscription,
            ),
        )


def _encoded(**names: str) -> dict[str, str]:
    return {key: quote(name, safe="") for key, name in names.items()}


async def _tenants(service: BrokerService, after: str) -> tuple[list[str], str | None]:
    """Those of one page, and its last one if there are more. Raises MetadataError."""
    names = sorted(await service.resources.tenants())
    start = bisect_right(names, after)
    page = names[start : start + _TENANTS_MAX]
    return page, page[-1] if len(names) > start + _TENANTS_MAX else None


class _Rights:
    """What the caller of a request may do, by the rules that routes declare."""

    def __init__(self, access: AccessControl | None, request: Request) -> None:
        self._access, self._app = access, request.app
        self._caller = caller_of(request.scope)

    async def may(self, rule: Access, template: str, names: Mapping[str, str]) -> bool:
        """Whether ``authorize`` would let the caller pass at a route with such a path.

        Raises:
            ApiError: 412, the path names nothing; BrokerMetadataError, MetadataError.
        """
        if self._access is None or rule.permission is Permission.NOTHING:
            return True
        resource = resource_of(rule, template, names)
        return await self._access.may(self._caller, rule.permission, resource)

    async def administers(self, tenant: str) -> bool:
        return self._access is None or await self._access.may(
            self._caller, Permission.TENANT_ADMIN, Resource(tenant)
        )

    async def on(self, names: Mapping[str, str], *, operations: bool) -> dict[str, list[str]]:
        """Permissions, and on request operations, on what the names are of."""
        allowed = [name for name, rule in _PERMISSIONS.items() if await self.may(rule, "", names)]
        found = {"permissions": allowed}
        if operations:
            found["operations"] = await self.operations(names)
            await asyncio.sleep(0)  # a hundred of them take a while
        return found

    async def operations(self, names: Mapping[str, str]) -> list[str]:
        """Method and template of each documented route about these that the caller may use."""
        known: dict[tuple[Access, bool], bool] = {}
        found = []
        for route in declared_routes(self._app):
            template = route.path_format
            if route.options["include_in_schema"] and _is_about(template, names):
                # Without it in the path, a route isn't about the subscription.
                has_subscription = "{subscription}" in template
                asked = names if has_subscription else {**names, "subscription": ""}
                key = route.access, has_subscription
                if key not in known:
                    known[key] = await self.may(route.access, template, asked)
                if known[key]:
                    found.append(f"{route.method} {template}")
        return found


def _is_about(template: str, names: Mapping[str, str]) -> bool:
    """Whether a path is of a tenant, of a namespace or of a topic, as the names are."""
    level = next(key for key in _LEVELS if key in names)
    return level == next((key for key in _LEVELS if f"{{{key}}}" in template), None)
