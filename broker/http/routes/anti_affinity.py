"""Groups of namespaces that different brokers serve."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Path, Query, Request, Response

from magnetar.broker.http.dependencies import Namespace, Service, body_doc, read_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.policies.policy_access import ABSENT, namespace_policies
from magnetar.broker.http.responses import JsonResponse, TextResponse, no_content

router = APIRouter(prefix="/admin/v2/namespaces", tags=["namespaces"])


@router.get(
    "/{tenant}/{namespace}/antiAffinity",
    summary="Get: group of namespaces that different brokers serve",
    responses={
        200: {"content": {"application/json": {"example": "group-1"}}},
        204: {"description": "It is in none"},
        **ABSENT,
    },
)
async def get_anti_affinity_group(service: Service, namespace: Namespace) -> Response:
    await namespace_policies(service, namespace)
    group = await service.bundles.anti_affinity_group(namespace)
    # Without quotes, as Pulsar answers what is a string.
    return no_content() if group is None else TextResponse(group, media_type="application/json")


@router.post(
    "/{tenant}/{namespace}/antiAffinity",
    status_code=204,
    summary="Set: group of namespaces that different brokers serve",
    responses={412: {"description": "No group given"}, **ABSENT},
    openapi_extra=body_doc({"type": "string"}, "group-1"),
)
async def set_anti_affinity_group(
    service: Service, namespace: Namespace, request: Request
) -> Response:
    # Bytes, not JSON: Java's client sends the group's name without quotes.
    group = _group_name(await read_body(request))
    await namespace_policies(service, namespace)
    if not group:
        raise ApiError(412, "antiAffinityGroup can't be empty")
    await service.bundles.set_anti_affinity_group(namespace, group)
    return no_content()


@router.delete(
    "/{tenant}/{namespace}/antiAffinity",
    status_code=204,
    summary="Unset: group of namespaces that different brokers serve",
    responses=ABSENT,
)
async def remove_anti_affinity_group(service: Service, namespace: Namespace) -> Response:
    await namespace_policies(service, namespace)
    await service.bundles.set_anti_affinity_group(namespace, None)
    return no_content()


def _group_name(body: bytes) -> str:
    try:
        text = body.decode().strip()
        value = orjson.loads(text) if text[:1] in ('"', "{", "[") or text == "null" else text
    except ValueError as error:
        raise ApiError(400, f"The group is not a text: {error}") from error
    if not isinstance(value, str):
        raise ApiError(400 if value is not None else 412, "antiAffinityGroup must be a text")
    return value.strip()


@router.get(
    "/{cluster}/antiAffinity/{group}",
    summary="Namespaces of a tenant in an anti-affinity group",
    responses={
        200: {"content": {"application/json": {"example": ["acme/orders"]}}},
        400: {"description": "No tenant given"},
        412: {"description": "No such cluster"},
    },
)
async def anti_affinity_namespaces(
    service: Service,
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
    group: Annotated[str, Path(description="Anti-affinity group", examples=["group-1"])],
    tenant: Annotated[str | None, Query(description="Tenant name", examples=["acme"])] = None,
    property: Annotated[str | None, Query(description="What Go clients call the tenant")] = None,
) -> Response:
    if not (owner := tenant or property):
        raise ApiError(400, "Tenant should not be null")
    name = form_decode(cluster)
    if await service.resources.cluster(name) is None:
        raise ApiError(412, f"Cluster {name} does not exist.")
    wanted = form_decode(group)
    names = [
        namespace
        for namespace in await service.resources.namespaces(owner)
        if await service.bundles.anti_affinity_group(namespace) == wanted
    ]
    return JsonResponse(names)
