"""Resource groups: refused, as nothing would enforce their limits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse

router = APIRouter(prefix="/admin/v2/resourcegroups", tags=["resource quotas"])

Group = Annotated[str, Path(description="Resource group", examples=["analytics"])]


@router.get(
    "",
    summary="Names of the resource groups: none",
    responses={200: {"content": {"application/json": {"example": []}}}},
)
async def list_groups(service: Service) -> Response:
    return JsonResponse([])


@router.get(
    "/{group}",
    status_code=204,
    summary="One resource group",
    responses={404: {"description": "Always"}},
)
async def get_group(service: Service, group: Group) -> Response:
    raise ApiError(404, "ResourceGroup does not exist")


@router.put(
    "/{group}",
    status_code=204,
    summary="Create a resource group: not supported",
    responses={501: {"description": "Always"}},
)
async def put_group(service: Service, group: Group) -> Response:
    raise ApiError(501, "Resource groups are not supported: their limits would not be enforced")


@router.delete(
    "/{group}",
    status_code=204,
    summary="Delete a resource group",
    responses={404: {"description": "Always"}},
)
async def delete_group(service: Service, group: Group) -> Response:
    raise ApiError(404, "ResourceGroup does not exist")
