"""What a bundle is expected to need, until its load is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.cluster.cluster_documents import DEFAULT_QUOTA
from magnetar.broker.http.dependencies import Namespace, Service, body_doc, json_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routes.bundles import bundle_errors

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

router = APIRouter(prefix="/admin/v2/resource-quotas", tags=["resource quotas"])


class ResourceQuota(BaseModel):
    """Messages and bytes a second, memory in MiB."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    msgRateIn: float = Field(0.0, ge=0)
    msgRateOut: float = Field(0.0, ge=0)
    bandwidthIn: float = Field(0.0, ge=0)
    bandwidthOut: float = Field(0.0, ge=0)
    memory: float = Field(0.0, ge=0)
    dynamic: bool = True


_DOC = body_doc(ResourceQuota, DEFAULT_QUOTA, required=True)
Body = Annotated[ResourceQuota | None, Depends(json_body(ResourceQuota))]
_ONE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"example": DEFAULT_QUOTA}}},
}
_BUNDLE: dict[int | str, dict[str, Any]] = {412: {"description": "No such bundle"}}
_BODY: dict[int | str, dict[str, Any]] = {400: {"description": "No quota, or a negative one"}}


async def _bundle(
    service: Service,
    namespace: Namespace,
    bundle: Annotated[
        str, Path(description="Hash range of the bundle", examples=["0x00000000_0x40000000"])
    ],
) -> str:
    with bundle_errors():
        found = (await service.bundles.bundles(namespace)).find(form_decode(bundle))
    return f"{namespace}/{found}"


Bundle = Annotated[str, Depends(_bundle)]


@router.get("", summary="The default quota", responses=_ONE)
async def get_default(service: Service) -> Response:
    return JsonResponse(await service.cluster_documents.quota(None))


@router.post(
    "", status_code=204, summary="Set the default quota", openapi_extra=_DOC, responses=_BODY
)
async def set_default(service: Service, quota: Body) -> Response:
    return await _put(service, None, quota)


@router.get(
    "/{tenant}/{namespace}/{bundle}",
    summary="Quota of a bundle; the default one while none is set",
    responses={**_ONE, **_BUNDLE},
)
async def get_quota(service: Service, bundle: Bundle) -> Response:
    return JsonResponse(await service.cluster_documents.quota(bundle))


@router.post(
    "/{tenant}/{namespace}/{bundle}",
    status_code=204,
    summary="Set the quota of a bundle",
    openapi_extra=_DOC,
    responses={**_BUNDLE, **_BODY},
)
async def set_quota(service: Service, bundle: Bundle, quota: Body) -> Response:
    return await _put(service, bundle, quota)


async def _put(service: BrokerService, bundle: str | None, quota: ResourceQuota | None) -> Response:
    if quota is None:
        raise ApiError(400, "ResourceQuota is required")
    await service.cluster_documents.put_quota(bundle, quota.model_dump())
    return no_content()


@router.delete(
    "/{tenant}/{namespace}/{bundle}",
    status_code=204,
    summary="Back to the default quota",
    responses={404: {"description": "None is set"}, **_BUNDLE},
)
async def delete_quota(service: Service, bundle: Bundle) -> Response:
    if not await service.cluster_documents.delete_quota(bundle):
        raise ApiError(404, f"No resource quota is set for {bundle}")
    return no_content()
