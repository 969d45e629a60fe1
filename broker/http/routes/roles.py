"""Roles, and all grants of one: the documents of tenants and namespaces, walked by page."""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, Final

from starlette.responses import Response

from magnetar.broker.auth.authorization import NO_GRANTS
from magnetar.broker.auth.role_grants import count_roles, grants_of_namespace, grants_of_tenant
from magnetar.broker.http.dependencies import DECODED, Service
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import each
from magnetar.broker.resources.resources import Resources, RoleGrants
from magnetar.broker.service.access_control import roles_of
from magnetar.metadata.loop_turns import in_turns

routes = Routes("/admin/v2", tag="access", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)

_PLACES_MAX: Final = 1000
"""Tenants and namespaces that one call reads."""
_AT_ONCE: Final = 64
_FOUND_MAX: Final = 2000
"""Grants, or roles, at which a page ends."""
_SOURCES: Final = ("tenant", "namespace", "topic", "subscription")
Place = tuple[str, str]
"""A tenant, and "" or ``tenant/ns``; places are walked in this order."""
Role = Annotated[str, Path(description="Role, percent-encoded once", examples=["billing"]), DECODED]
After = Annotated[str, Query(description="`next` of the page before")]

_ROLES_EXAMPLE: Final = {
    "roles": {"billing": {"tenant": 0, "namespace": 1, "topic": 12, "subscription": 0}},
    "superUserRoles": ["admin"],
    "proxyRoles": [],
    "next": None,
}
_ROLE_EXAMPLE: Final = {
    "role": "billing",
    "superuser": False,
    "proxy": False,
    "grants": [
        {
            "source": "topic",
            "resource": "persistent://shop/orders/paid",
            "actions": ["consume"],
            "role": "billing",
            "subscription": "",
        }
    ],
    "next": None,
}


@routes.get("/roles", example=_ROLES_EXAMPLE)
async def list_roles(service: Service, after: After = "") -> Response:
    """Roles that have grants, and how many of each source.

    One call reads 1,000 tenants and namespaces; `next` is null on the last page. A role with grants
    in several namespaces may be on several pages: add its numbers up.
    """
    counts: dict[str, Counter[str]] = {source: Counter() for source in _SOURCES}

    def count(place: Place, access: RoleGrants) -> int:
        if not place[1]:
            counts["tenant"].update(access.admins or ())
        elif access.grants is not None:
            count_roles(access.grants, counts)
        return sum(map(len, counts.values()))

    following = await _walk(service.resources, after, count)
    shown = {
        role: {source: counts[source].get(role, 0) for source in _SOURCES}
        for role in sorted(set().union(*counts.values()))
    }
    config = service.config
    return JsonResponse(
        {
            "roles": shown,
            "superUserRoles": roles_of(config.super_user_roles),
            "proxyRoles": roles_of(config.proxy_roles),
            "next": following,
        }
    )


@routes.get("/roles/{role}", example=_ROLE_EXAMPLE)
async def get_role(service: Service, role: Role, after: After = "") -> Response:
    """All grants of a role, each with the document that has it.

    `source` is `tenant` (the role is its admin), `namespace`, `topic` or `subscription` (one that
    is for the roles alone that it names). Where grants may have wildcards, `role` is the pattern.
    One call reads 1,000 tenants and namespaces; `next` is null on the last page. A role that
    nobody has heard of has no grants.
    """
    config = service.config
    wildcards = config.authorization_allow_wildcards_matching
    found: list[dict[str, Any]] = []

    def collect(place: Place, access: RoleGrants) -> int:
        tenant, namespace = place
        if not namespace:
            grants = grants_of_tenant(role, tenant, access.admins or ())
        else:
            own = access.grants or NO_GRANTS
            grants = grants_of_namespace(role, namespace, own, wildcards=wildcards)
        found.extend(map(asdict, grants))
        return len(found)

    following = await _walk(service.resources, after, collect)
    return JsonResponse(
        {
            "role": role,
            "superuser": role in roles_of(config.super_user_roles),
            "proxy": role in roles_of(config.proxy_roles),
            "grants": found,
            "next": following,
        }
    )


async def _walk(
    resources: Resources, after: str, visit: Callable[[Place, RoleGrants], int]
) -> str | None:
    """Visit the places of one page.

    Args:
        visit: answers how much it has found so far.
    Returns:
        The last place, as ``after`` of the next page; None: there is none.
    Raises:
        BrokerMetadataError, MetadataError.
    """
    places = await _places(resources, after)
    for start in range(0, min(len(places), _PLACES_MAX), _AT_ONCE):
        some = places[start : min(start + _AT_ONCE, _PLACES_MAX)]
        for place, access in zip(some, await each(some, _reader(resources)), strict=True):
            if visit(place, access) >= _FOUND_MAX and place != places[-1]:
                return _name(place)
            await asyncio.sleep(0)  # a namespace may have ten thousand grants
    return _name(places[_PLACES_MAX - 1]) if len(places) > _PLACES_MAX else None


def _reader(resources: Resources) -> Callable[[Place], Awaitable[RoleGrants]]:
    return lambda place: resources.access(*place)


def _name(place: Place) -> str:
    return place[1] or place[0]


async def _places(resources: Resources, after: str) -> list[Place]:
    """Those behind a place, in order; a few more than a page has, if there are more."""
    tenant = after.partition("/")[0]
    start = (tenant, after if "/" in after else "")
    found: list[Place] = []
    for name in sorted(await resources.tenants()):
        if name >= tenant:
            namespaces = sorted(await resources.namespaces(name))
            places = [(name, namespace) async for namespace in in_turns(("", *namespaces))]
            found += places[bisect_right(places, start) :]
        if len(found) > _PLACES_MAX:
            break
    return found
