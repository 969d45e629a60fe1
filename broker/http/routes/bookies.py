"""Bookies and the racks they stand in."""

from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict

from magnetar.bookkeeper.client.placement.config import RACK_AWARE, ZONE_AWARE
from magnetar.broker.bookie_client_settings import policy_of
from magnetar.broker.http.dependencies import DECODED, Body, Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.service.broker_service import BrokerService

routes = Routes("/admin/v2/bookies", tag="bookies", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)


class BookieInfo(BaseModel):
    """Where a bookie stands: ``/rack``, or ``/zone/upgrade-domain`` with zone-aware placement."""

    model_config = ConfigDict(extra="ignore")

    rack: str | None = None
    hostname: str | None = None


_EXAMPLE = {"rack": "/rack-1", "hostname": "bookie-1"}


Bookie = Annotated[str, Path(description="Bookie id", examples=["bookie-1:3181"]), DECODED]


@routes.get("/all", example={"bookies": [{"bookieId": "b1:3181"}]})
async def list_bookies(service: Service) -> Response:
    """Registered bookies, those that only read included."""
    ids = await service.cluster_documents.bookies()
    return JsonResponse({"bookies": [{"bookieId": each} for each in ids]})


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
    if policy == ZONE_AWARE and slashes != 1:
        raise ApiError(412, "Bookie 'rack' parameter is invalid: it must be /zone/upgrade-domain")


def _not_found(bookie: str) -> ApiError:
    return ApiError(404, f"Bookie rack placement configuration not found: {bookie}")
