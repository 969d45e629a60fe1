"""The load that a bundle is expected to need, until its load is known; resource groups.

Groups are refused, as nothing would enforce their limits.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from magnetar.broker.http.dependencies import Body, Bundle, Namespace, Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends, Path
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routes.bundles import bundle_errors
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.resources.cluster_documents import DEFAULT_QUOTA

routes = Routes("/admin/v2", tag="resource quotas", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)


class ResourceQuota(BaseModel):
    """Messages and bytes a second, memory in MiB."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    msgRateIn: float = Field(0.0, ge=0)
    msgRateOut: float = Field(0.0, ge=0)
    bandwidthIn: float = Field(0.0, ge=0)
    bandwidthOut: float = Field(0.0, ge=0)
    memory: float = Field(0.0, ge=0)
    dynamic: bool = True


Quota = Annotated[
    ResourceQuota, Body(ResourceQuota, DEFAULT_QUOTA, missing="ResourceQuota is required")
]
_BUNDLE: Statuses = {412: "No such bundle"}
_BODY: Statuses = {400: "No quota, or a negative one"}


async def _bundle(service: Service, namespace: Namespace, bundle: Bundle) -> str:
    with bundle_errors():
        found = (await service.bundles.bundles(namespace)).find(bundle)
    return f"{namespace}/{found}"


FullBundle = Annotated[str, Depends(_bundle)]


@routes.get("/resource-quotas", "The default quota", example=DEFAULT_QUOTA)
async def get_default(service: Service) -> Response:
    return JsonResponse(await service.cluster_documents.quota(None))


@routes.post("/resource-quotas", "Set the default quota", statuses=_BODY)
async def set_default(service: Service, quota: Quota) -> None:
    await service.cluster_documents.put_quota(None, quota.model_dump())


@routes.get(
    "/resource-quotas/{tenant}/{namespace}/{bundle}", example=DEFAULT_QUOTA, statuses=_BUNDLE
)
async def get_quota(service: Service, bundle: FullBundle) -> Response:
    """Quota of a bundle; the default one while none is set."""
    return JsonResponse(await service.cluster_documents.quota(bundle))


@routes.post("/resource-quotas/{tenant}/{namespace}/{bundle}", statuses={**_BUNDLE, **_BODY})
async def set_quota(service: Service, bundle: FullBundle, quota: Quota) -> None:
    """Set the quota of a bundle."""
    await service.cluster_documents.put_quota(bundle, quota.model_dump())


@routes.delete(
    "/resource-quotas/{tenant}/{namespace}/{bundle}", statuses={404: "None is set", **_BUNDLE}
)
async def delete_quota(service: Service, bundle: FullBundle) -> None:
    """Back to the default quota."""
    if not await service.cluster_documents.delete_quota(bundle):
        raise ApiError(404, f"No resource quota is set for {bundle}")


# --- resource groups

Group = Annotated[str, Path(description="Resource group", examples=["analytics"])]


@routes.get("/resourcegroups", "Names of the resource groups: none", example=[])
async def list_groups(service: Service) -> Response:
    return JsonResponse([])


@routes.get("/resourcegroups/{group}", "One resource group", status=204, statuses={404: "Always"})
async def get_group(service: Service, group: Group) -> Response:
    raise ApiError(404, "ResourceGroup does not exist")


@routes.put("/resourcegroups/{group}", statuses={501: "Always"})
async def put_group(service: Service, group: Group) -> Response:
    """Create a resource group: not supported."""
    raise ApiError(501, "Resource groups are not supported: their limits would not be enforced")


@routes.delete("/resourcegroups/{group}", "Delete a resource group", statuses={404: "Always"})
async def delete_group(service: Service, group: Group) -> Response:
    raise ApiError(404, "ResourceGroup does not exist")
