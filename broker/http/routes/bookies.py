"""Bookies and the racks they stand in."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from magnetar.bookkeeper.client.bookie_states import BookieState, bookie_states
from magnetar.bookkeeper.client.placement.config import RACK_AWARE, REGION_AWARE, ZONE_AWARE
from magnetar.broker.bookie_client_settings import policy_of
from magnetar.broker.http.dependencies import DECODED, Body, Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.service.broker_service import BrokerService

routes = Routes("/admin/v2/bookies", tag="bookies", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)


class BookieInfo(BaseModel):
    """Where a bookie stands: ``/rack``; ``/region/rack`` with region-aware placement,
    ``/zone/upgrade-domain`` with zone-aware."""

    model_config = ConfigDict(extra="ignore")

    rack: str | None = None
    hostname: str | None = None


_EXAMPLE = {"rack": "/rack-1", "hostname": "bookie-1"}
_ANSWER_S: Final = 5.0
"""For each bookie; all are asked at once."""
_STATE_EXAMPLE: Final = {
    "bookies": [
        {
            "bookieId": "bookie-1:3181",
            "state": "writable",
            "location": "/rack-1",
            "address": "10.0.0.1:3181",
            "quarantined": False,
            "freeBytes": 812345678901,
            "totalBytes": 1099511627776,
            "addLatencyMs": {"p50": 0.8, "p99": 3.4},
            "version": "0.1.0",
            "answerMs": 1.2,
            "error": None,
        }
    ],
    "repair": {
        "enabled": True,
        "offReason": None,
        "offSince": None,
        "auditor": "auditor-1",
        "ledgers": 12,
        "lostBookieRecoveryDelay": 0,
    },
}


Bookie = Annotated[str, Path(description="Bookie id", examples=["bookie-1:3181"]), DECODED]


@routes.get("/all", example={"bookies": [{"bookieId": "b1:3181"}]})
async def list_bookies(service: Service) -> Response:
    """Registered bookies, those that only read included."""
    bookies = service.bookie_cluster
    ids = () if bookies is None else bookies.pool.registered
    return JsonResponse({"bookies": [{"bookieId": each} for each in sorted(ids)]})


@routes.get("/state", example=_STATE_EXAMPLE)
async def state(service: Service) -> Response:
    """Bookies with their state, their disk and their latency, and the ledgers that need repair.

    `state` is `writable`, `readOnly` or `absent`: the bookie isn't registered, and its data were
    not moved. `quarantined`: this broker makes no new ledgers there for a while, because requests
    failed. `answerMs` is how long the bookie took to answer just now, `error` why it didn't.
    `addLatencyMs` is the time until an entry is on the bookie's disk; null where the bookie had
    none lately. `repair` is null in a standalone process. `lostBookieRecoveryDelay`
    is in seconds; null: there was no auditor yet.
    """
    bookies = service.bookie_cluster
    states = []
    if bookies is not None:
        states = await bookie_states(
            bookies.pool, bookies.store, answer_s=_ANSWER_S, clock_ms=service.wall_clock
        )
    found = {"bookies": list(map(_shown, states)), "repair": await _repair(service)}
    return JsonResponse(found)


def _shown(bookie: BookieState) -> dict[str, Any]:
    status = bookie.status
    state = "writable" if bookie.is_writable else "readOnly" if bookie.is_registered else "absent"
    latency = None
    if status is not None and status.add_p99_us:
        latency = {"p50": status.add_p50_us / 1000, "p99": status.add_p99_us / 1000}
    return {
        "bookieId": bookie.bookie_id,
        "state": state,
        "location": bookie.location,
        "address": bookie.address,
        "quarantined": bookie.is_quarantined,
        "freeBytes": None if status is None else status.free_bytes,
        "totalBytes": None if status is None else status.total_bytes,
        "addLatencyMs": latency,
        "version": (status and status.version) or None,
        "answerMs": None if bookie.answer_ms is None else round(bookie.answer_ms, 3),
        "error": bookie.error or None,
    }


async def _repair(service: BrokerService) -> dict[str, Any] | None:
    cluster = service.bookie_cluster
    if cluster is None or not cluster.has_auto_recovery:
        return None
    # Loaded here: a broker doesn't need it otherwise.
    from magnetar.bookkeeper.replication.repair_state import repair_state

    found = await repair_state(cluster.store, service.clock, 0, cluster.ledgers().layout)
    return {
        "enabled": found.off_reason is None,
        "offReason": found.off_reason,
        "offSince": found.off_since_ms,
        "auditor": found.auditor or None,
        "ledgers": found.marked,
        "lostBookieRecoveryDelay": found.lost_bookie_delay_s,
    }


@routes.get("/racks-info", example={"default": {"bookie-1:3181": _EXAMPLE}})
async def racks(service: Service) -> Response:
    """Racks by group and bookie."""
    return JsonResponse(await service.cluster_documents.racks())


@routes.get("/racks-info/{bookie}", example=_EXAMPLE, statuses={404: "None is set"})
async def rack(service: Service, bookie: Bookie) -> Response:
    """Rack of one bookie."""
    for members in (await service.cluster_documents.racks()).values():
        if bookie in members:
            return JsonResponse(members[bookie])
    raise _not_found(bookie)


@routes.post(
    "/racks-info/{bookie}",
    statuses={
        400: "No body",
        412: "No group, or a rack of another form than the placement policy's",
    },
)
async def set_rack(
    service: Service,
    bookie: Bookie,
    info: Annotated[BookieInfo | None, Body(BookieInfo, _EXAMPLE, required=True)],
    group: Annotated[
        str | None, Query(description="Group of bookies", examples=["default"])
    ] = None,
) -> None:
    """Set the rack and the group of a bookie, registered or not."""
    if not group:
        raise ApiError(412, "Bookie 'group' parameters is missing")
    if info is None:
        raise ApiError(400, "BookieInfo is required")
    _check_rack(service, info.rack or "")
    document = info.model_dump(exclude_none=True)
    await service.cluster_documents.put_rack(group, bookie, document)


@routes.delete("/racks-info/{bookie}", "Forget the rack of a bookie", statuses={404: "None is set"})
async def delete_rack(service: Service, bookie: Bookie) -> None:
    if not await service.cluster_documents.delete_rack(bookie):
        raise _not_found(bookie)


def _check_rack(service: BrokerService, rack: str) -> None:
    """A name of another form than the placement policy reads would put the bookie nowhere."""
    policy, slashes = policy_of(service.config), rack.strip("/").count("/")
    if policy == RACK_AWARE and slashes:
        raise ApiError(
            412, "Bookie 'rack' parameter is invalid: a slash is allowed at its ends only"
        )
    if policy == REGION_AWARE and slashes != 1:
        raise ApiError(412, "Bookie 'rack' parameter is invalid: it must be /region/rack")
    if policy == ZONE_AWARE and slashes != 1:
        raise ApiError(412, "Bookie 'rack' parameter is invalid: it must be /zone/upgrade-domain")


def _not_found(bookie: str) -> ApiError:
    return ApiError(404, f"Bookie rack placement configuration not found: {bookie}")
