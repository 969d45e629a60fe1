"""The last changes over HTTP, of all brokers. Our own route."""

import heapq
from itertools import islice
from typing import Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerCall
from magnetar.broker.http.dependencies import Flag, Service, flag
from magnetar.broker.http.middleware.audit import CHANGES_MAX, AuditLog
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread

routes = Routes("/admin/v2", tag="access", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)

_ANSWER_S: Final = 2.0
"""Until another broker is named in `failed`."""
_EXAMPLE: Final = {
    "changes": [
        {
            "at": 1764321000000,
            "broker": "10.0.0.7:8080",
            "role": "shop-admin",
            "method": "DELETE",
            "path": "/admin/v2/persistent/shop/orders/paid",
            "status": 204,
            "request": "5d1f0c2a-1b",
            "address": "10.0.3.9:41514",
        }
    ],
    "since": {"10.0.0.7:8080": 1764310000000},
    "failed": {"10.0.0.8:8080": "Broker 10.0.0.8:8080 can't be reached"},
}


@routes.get("/audit", example=_EXAMPLE)
async def audit(
    request: Request,
    service: Service,
    spread: Spread,
    role: Annotated[str, Query(description="Only changes of this role, or in its name")] = "",
    path: Annotated[str, Query(description="Only calls whose address has this text")] = "",
    limit: Annotated[int, Query(ge=1, le=CHANGES_MAX, description="Changes")] = CHANGES_MAX,
    local: Annotated[str | None, Flag(False, "`true`: only of the asked broker")] = None,
) -> Response:
    """The last changes over HTTP, the youngest first.

    Each broker keeps the last 1,000 calls that change something, in memory, refused ones too;
    `since` says from when on a broker has all of them. `failed` has the brokers that gave no
    answer: their changes are missing.
    """
    log: AuditLog = request.app.state.audit_log

    async def here() -> dict[str, Any]:
        own = islice(log.changes(role, path), limit)
        changes = [{"broker": service.broker_id, **change} for change in own]
        return {"changes": changes, "since": {service.broker_id: log.since_ms}, "failed": {}}

    if flag(local):
        return JsonResponse(await here())
    query = f"{request.scope['query_string'].decode('latin-1')}&local=true"
    call = BrokerCall("GET", "/admin/v2/audit", query)
    found = await spread.brokers(here, call, answer_s=_ANSWER_S)
    lists = [answer["changes"] for answer in found.values]
    merged = heapq.merge(*lists, key=lambda change: change["at"], reverse=True)
    return JsonResponse(
        {
            "changes": list(islice(merged, limit)),
            "since": {name: at for answer in found.values for name, at in answer["since"].items()},
            "failed": found.failures(),
        }
    )
