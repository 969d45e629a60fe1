"""Tenants."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from magnetar.broker.errors import AlreadyExistsError, PreconditionFailedError, TenantNotFoundError
from magnetar.broker.http.dependencies import Body, Service, Tenant, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.namespace_topics import delete_namespace_with_topics
from magnetar.broker.protocol.topic_name import valid_namespace_part
from magnetar.broker.service.broker_service import BrokerService

routes = Routes("/admin/v2/tenants", tag="tenants", access=Access.ADMIN_401, mode=RoutingMode.LOCAL)


class TenantInfo(BaseModel):
    """Who administers a tenant, and where it may have namespaces."""

    model_config = ConfigDict(extra="ignore")

    adminRoles: list[str] | None = None
    allowedClusters: list[str] | None = None


_EXAMPLE = {"adminRoles": ["ops"], "allowedClusters": ["standalone"]}
Info = Annotated[TenantInfo | None, Body(TenantInfo, _EXAMPLE)]


@routes.get("", "Names of all tenants", access=Access.SUPERUSER, example=["public", "pulsar"])
async def list_tenants(service: Service) -> Response:
    return JsonResponse(sorted(await service.resources.tenants()))


@routes.get("/{tenant}", "One tenant", example=_EXAMPLE, statuses={404: "No such tenant"})
async def get_tenant(service: Service, tenant: Tenant) -> Response:
    info = await service.resources.tenant(tenant)
    if info is None:
        raise ApiError(404, "Tenant does not exist")
    return JsonResponse(info)


@routes.put("/{tenant}", "Create a tenant")
async def create_tenant(service: Service, tenant: Tenant, info: Info) -> None:
    if not valid_namespace_part(tenant):
        raise ApiError(412, "Tenant name is not valid")
    if info is None:
        raise ApiError(412, "TenantInfo is null")
    document = await _checked(service, info)
    limit = service.config.max_tenants
    if limit and len(await service.resources.tenants()) >= limit:
        raise ApiError(412, "Exceed the maximum number of tenants")
    with answer_for(AlreadyExistsError, 409, "Tenant already exist"):
        await service.resources.create_tenant(tenant, document)


@routes.post("/{tenant}", "Replace a tenant's data")
async def update_tenant(service: Service, tenant: Tenant, info: Info) -> None:
    if info is None:
        raise ApiError(412, "TenantInfo is null")
    document = await _checked(service, info)
    await _check_removed_clusters(service, tenant, set(document["allowedClusters"]))
    with answer_for(TenantNotFoundError, 404, f"Tenant {tenant} not found"):
        await service.resources.update_tenant(tenant, document)


@routes.delete("/{tenant}", "Delete a tenant without namespaces", mode=RoutingMode.SCATTER)
async def delete_tenant(
    service: Service,
    tenant: Tenant,
    spread: Spread,
    force: Annotated[str | None, Query(description="Also its namespaces and topics")] = None,
) -> None:
    resources = service.resources
    if flag(force):
        if not service.config.force_delete_tenant_allowed:
            raise ApiError(405, "Broker doesn't allow forced deletion of tenants")
        for namespace in await resources.namespaces(tenant):
            await delete_namespace_with_topics(service, spread, namespace)
    in_use = answer_for(PreconditionFailedError, 409, "The tenant still has active namespaces")
    with in_use, answer_for(TenantNotFoundError, 404, "Tenant doesn't exist"):
        await resources.delete_tenant(tenant)


async def _check_removed_clusters(service: BrokerService, tenant: str, allowed: set[str]) -> None:
    """Raises ApiError: 412 a namespace of the tenant lives in a cluster that is taken away."""
    before = await service.resources.tenant(tenant) or {}
    removed = set(before.get("allowedClusters") or ()) - allowed
    if not removed:
        return
    for namespace in await service.resources.namespaces(tenant):
        policies = await service.resources.policies(namespace)
        used = () if policies is None else policies.document.get("replication_clusters") or ()
        for cluster in sorted(removed.intersection(used)):
            raise ApiError(
                412,
                f"Cannot remove cluster {cluster} from tenant {tenant}: namespace {namespace} "
                "still has it as a replication cluster",
            )


async def _checked(service: BrokerService, info: TenantInfo) -> dict[str, Any]:
    """The document to store.

    Raises:
        ApiError: 412 no clusters, or unknown ones.
    """
    clusters = info.allowedClusters
    if clusters is None:
        raise ApiError(412, "Clusters cannot be null")
    if not clusters or not all(name.strip() for name in clusters):
        raise ApiError(412, "Clusters cannot be empty or blank")
    known = set(await service.resources.clusters())
    if not known.issuperset(clusters):
        raise ApiError(412, "Clusters do not exist")
    document: dict[str, Any] = {"allowedClusters": sorted(set(clusters))}
    if info.adminRoles is not None:
        if any(role != role.strip() or not role for role in info.adminRoles):
            raise ApiError(412, "AdminRoles contains whitespace in the beginning or end.")
        document["adminRoles"] = sorted(set(info.adminRoles))
    return document
