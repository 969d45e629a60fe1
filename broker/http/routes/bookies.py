"""Bookies and the racks they stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, ConfigDict

from magnetar.bookkeeper.client.placement.config import RACK_AWARE, ZONE_AWARE
from magnetar.broker.http.dependencies import Service, body_doc, json_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.placement_settings import policy_of

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

router = APIRouter(prefix="/admin/v2/bookies", tags=["bookies"])


class BookieInfo(BaseModel):
    """Where a bookie stands: ``/rack``, or ``/zone/upgrade-domain`` with zone-aware placement."""

    model_config = ConfigDict(extra="ignore")

    rack: str | None = None
    hostname: str | None = None


_EXAMPLE = {"rack": "/rack-1", "hostname": "bookie-1"}
_DOC = body_doc(BookieInfo, _EXAMPLE, required=True)


async def _bookie(
    bookie: Annotated[str, Path(description="Bookie id", examples=["bookie-1:3181"])],
) -> str:
    return form_decode(bookie)


Bookie = Annotated[str, Depends(_bookie)]


@router.get(
    "/all",
    summary="Registered bookies, those that only read included",
    responses={
        200: {"content": {"application/json": {"example": {"bookies": [{"bookieId": "b1:3181"}]}}}}
    },
)
async def list_bookies(service: Service) -> Response:
    ids = await service.cluster_documents.bookies()
    return JsonResponse({"bookies": [{"bookieId": each} for each in ids]})


@router.get(
    "/racks-info",
    summary="Racks by group and bookie",
    responses={
        200: {
            "content": {"application/json": {"example": {"default": {"bookie-1:3181": _EXAMPLE}}}}
        }
    },
)
async def racks(service: Service) -> Response:
    return JsonResponse(await service.cluster_documents.racks())


@router.get(
    "/racks-info/{bookie}",
    summary="Rack of one bookie",
    responses={
        200: {"content": {"application/json": {"example": _EXAMPLE}}},
        404: {"description": "None is set"},
    },
)
async def rack(service: Service, bookie: Bookie) -> Response:
    for members in (await service.cluster_documents.racks()).values():
        if bookie in members:
            return JsonResponse(members[bookie])
    raise _not_found(bookie)


@router.post(
    "/racks-info/{bookie}",
    status_code=204,
    summary="Set the rack and the group of a bookie, registered or not",
    openapi_extra=_DOC,
    responses={
        400: {"description": "No body"},
        412: {"description": "No group, or a rack of another form than the placement policy's"},
    },
)
async def set_rack(
    service: Service,
    bookie: Bookie,
    info: Annotated[BookieInfo | None, Depends(json_body(BookieInfo))],
    group: Annotated[
        str | None, Query(description="Group of bookies", examples=["default"])
    ] = None,
) -> Response:
    if not group:
        raise ApiError(412, "Bookie 'group' parameters is missing")
    if info is None:
        raise ApiError(400, "BookieInfo is required")
    _check_rack(service, info.rack or "")
    document = info.model_dump(exclude_none=True)
    await service.cluster_documents.put_rack(group, bookie, document)
    return no_content()


@router.delete(
    "/racks-info/{bookie}",
    status_code=204,
    summary="Forget the rack of a bookie",
    responses={404: {"description": "None is set"}},
)
async def delete_rack(service: Service, bookie: Bookie) -> Response:
    if not await service.cluster_documents.delete_rack(bookie):
        raise _not_found(bookie)
    return no_content()


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
