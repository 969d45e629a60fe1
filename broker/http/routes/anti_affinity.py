"""Groups of namespaces that different brokers serve."""

from typing import Annotated

import orjson
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import DECODED, Namespace, Service, body_doc, read_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.policies.policy_access import ABSENT, NamespacePolicies
from magnetar.broker.http.responses import JsonResponse, TextResponse, no_content
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode

routes = Routes(
    "/admin/v2/namespaces", tag="namespaces", access=Access.ADMIN_403, mode=RoutingMode.LOCAL
)


@routes.get(
    "/{tenant}/{namespace}/antiAffinity",
    example="group-1",
    statuses={204: "It is in none", **ABSENT},
)
async def get_anti_affinity_group(
    service: Service, namespace: Namespace, policies: NamespacePolicies
) -> Response:
    """Get: group of namespaces that different brokers serve."""
    group = await service.bundles.factory.anti_affinity_group(namespace)
    # Without quotes, as Pulsar answers what is a string.
    return no_content() if group is None else TextResponse(group, media_type="application/json")


@routes.post(
    "/{tenant}/{namespace}/antiAffinity",
    statuses={412: "No group given", **ABSENT},
    body=body_doc({"type": "string"}, "group-1"),
)
async def set_anti_affinity_group(
    service: Service, namespace: Namespace, request: Request, policies: NamespacePolicies
) -> None:
    # Bytes, not JSON: Java's client sends the group's name without quotes.
    """Set: group of namespaces that different brokers serve."""
    group = _group_name(await read_body(request))
    if not group:
        raise ApiError(412, "antiAffinityGroup can't be empty")
    await service.bundles.factory.set_anti_affinity_group(namespace, group)


@routes.delete("/{tenant}/{namespace}/antiAffinity", statuses=ABSENT)
async def remove_anti_affinity_group(
    service: Service, namespace: Namespace, policies: NamespacePolicies
) -> None:
    """Unset: group of namespaces that different brokers serve."""
    await service.bundles.factory.set_anti_affinity_group(namespace, None)


def _group_name(body: bytes) -> str:
    try:
        text = body.decode().strip()
        value = orjson.loads(text) if text[:1] in ('"', "{", "[") or text == "null" else text
    except ValueError as error:
        raise ApiError(400, f"The group is not a text: {error}") from error
    if not isinstance(value, str):
        raise ApiError(400 if value is not None else 412, "antiAffinityGroup must be a text")
    return value.strip()


@routes.get(
    "/{cluster}/antiAffinity/{group}",
    access=Access.SUPERUSER,
    example=["acme/orders"],
    statuses={400: "No tenant given", 412: "No such cluster"},
)
async def anti_affinity_namespaces(
    service: Service,
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"]), DECODED],
    group: Annotated[str, Path(description="Anti-affinity group", examples=["group-1"]), DECODED],
    tenant: Annotated[str | None, Query(description="Tenant name", examples=["acme"])] = None,
    property: Annotated[str | None, Query(description="What Go clients call the tenant")] = None,
) -> Response:
    """Namespaces of a tenant in an anti-affinity group."""
    if not (owner := tenant or property):
        raise ApiError(400, "Tenant should not be null")
    if await service.resources.cluster(cluster) is None:
        raise ApiError(412, f"Cluster {cluster} does not exist.")
    names = [
        namespace
        for namespace in await service.resources.namespaces(owner)
        if await service.bundles.factory.anti_affinity_group(namespace) == group
    ]
    return JsonResponse(names)
