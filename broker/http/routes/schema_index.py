"""Which topics have a schema, of all namespaces, a page at a time. Magnetar's own."""

import asyncio
from typing import Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import each
from magnetar.broker.http.routing.visitors import sight_of, visitor_of
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.schema_checks import rules_of
from magnetar.broker.service.broker_service import BrokerService
from magnetar.metadata.loop_turns import in_turns

routes = Routes("/admin/v2", tag="index", access=Access.FREE, mode=RoutingMode.LOCAL)

_LIMIT_MAX: Final = 1_000
_SLICE: Final = 1_000
"""Names looked at before others get their turn on the loop."""
_ROW: Final = {
    "topic": "persistent://public/default/orders",
    "type": "AVRO",
    "version": 3,
    "timestamp": 1_795_269_004_889,
    "compatibility": "FULL",
}


@routes.get(
    "/schemas-index",
    example={
        "total": 214,
        "matching": 1,
        "next": "persistent://public/default/orders",
        "schemas": [_ROW],
    },
)
async def schemas_index(
    request: Request,
    service: Service,
    q: Annotated[str, Query(description="A part of the name, in any case of letters")] = "",
    after: Annotated[str, Query(description="`next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="Rows of a page")] = 50,
    namespace: Annotated[
        str, Query(description="Only of this one, `tenant/namespace`, or of a tenant")
    ] = "",
) -> Response:
    """Topics that have a schema, in the order of names: type, newest version, compatibility.

    Partitions share a schema, and a persistent and a non-persistent topic of one name do, too.
    `type` is null where the schema was deleted; versions count on there. `timestamp` is when the
    version was stored. Only topics that the caller may look up are there.
    """
    spaces = [namespace] if "/" in namespace else await _namespaces(service)
    if namespace and "/" not in namespace:
        spaces = [each for each in spaces if each.startswith(f"{namespace}/")]
    sight = None
    if (visitor := visitor_of(request, None, None)) is not None:
        assert service.access is not None
        sight = await sight_of(service.access, visitor, spaces)
    lists = await each(spaces, service.schemas.names)
    text, start = q.lower(), _place(after)
    total = matching = 0
    page: list[TopicName] = []
    async for number, (space, names) in in_turns(enumerate(zip(spaces, lists, strict=True))):
        if sight is not None and number not in sight:
            continue
        may_see = None if sight is None else sight[number]
        prefix = f"persistent://{space}/"
        for first in range(0, len(names), _SLICE):
            some = names[first : first + _SLICE]
            if may_see is not None:
                some = [name for name in some if may_see(prefix + name)]
            total += len(some)
            if text:
                some = [name for name in some if text in f"{prefix}{name}".lower()]
            matching += len(some)
            room = limit + 1 - len(page)
            if room:
                shown = [name for name in some if (space, name) > start][:room]
                page += [TopicName.parse(prefix + name) for name in shown]
            await asyncio.sleep(0)
    rows = [await _row(service, name) for name in page[:limit]]
    following = rows[-1]["topic"] if len(page) > limit else None
    return JsonResponse({"total": total, "matching": matching, "next": following, "schemas": rows})


async def _namespaces(service: BrokerService) -> list[str]:
    tenants = await service.resources.tenants()
    lists = await each(tenants, service.resources.namespaces)
    return sorted(name for some in lists for name in some)


def _place(after: str) -> tuple[str, str]:
    """Namespace and topic of a full name."""
    tenant, _, rest = after.partition("://")[2].partition("/")
    namespace, _, local = rest.partition("/")
    return f"{tenant}/{namespace}", local


async def _row(service: BrokerService, name: TopicName) -> dict[str, Any]:
    found = await service.schemas.latest_known(name)
    rules = rules_of(await service.policies.of(name))
    return {
        "topic": str(name),
        "type": found and found.definition.type,
        "version": found and found.version,
        "timestamp": found and found.timestamp_ms,
        "compatibility": rules.strategy.value,
    }
