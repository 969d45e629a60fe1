"""Clusters (http-api 2.2)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response

from broker.http.dependencies import Service, body_doc, json_body
from broker.http.errors import ApiError
from broker.http.raw_path import form_decode
from broker.http.responses import JsonResponse, no_content
from broker.protocol.topic_name import valid_namespace_part

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2/clusters", tags=["clusters"])

_EXAMPLE = {
    "serviceUrl": "http://127.0.0.1:8080",
    "brokerServiceUrl": "pulsar://127.0.0.1:6650",
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
}
_DEFAULTS: dict[str, Any] = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
}
_DOC = body_doc({"type": "object", "additionalProperties": True}, _EXAMPLE)
Body = Annotated[dict[str, Any] | None, Depends(json_body(dict[str, Any]))]


async def _cluster(
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
) -> str:
    return form_decode(cluster)


Cluster = Annotated[str, Depends(_cluster)]


@router.get(
    "",
    summary="Names of all clusters",
    responses={200: {"content": {"application/json": {"example": ["standalone"]}}}},
)
async def list_clusters(service: Service) -> Response:
    return JsonResponse([name for name in await service.resources.clusters() if name != "global"])


@router.get(
    "/{cluster}",
    summary="One cluster",
    responses={
        200: {"content": {"application/json": {"example": _EXAMPLE}}},
        404: {"description": "No such cluster"},
    },
)
async def get_cluster(service: Service, cluster: Cluster) -> Response:
    data = await service.resources.cluster(cluster)
    if data is None:
        raise ApiError(404, "Cluster does not exist")
    return JsonResponse({k: v for k, v in (_DEFAULTS | data).items() if v is not None})


@router.put("/{cluster}", summary="Register a cluster", openapi_extra=_DOC)
async def create_cluster(service: Service, cluster: Cluster, data: Body) -> Response:
    if not valid_namespace_part(cluster):
        raise ApiError(412, "Cluster name is not valid")
    if data is None:
        raise ApiError(400, "ClusterData is null")
    if await service.resources.cluster(cluster) is not None:
        raise ApiError(409, "Cluster already exists")
    await service.resources.put_cluster(cluster, _checked(data))
    return Response(status_code=200)


@router.post("/{cluster}", summary="Replace a cluster's data", openapi_extra=_DOC)
async def update_cluster(service: Service, cluster: Cluster, data: Body) -> Response:
    if data is None:
        raise ApiError(400, "ClusterData is null")
    if await service.resources.cluster(cluster) is None:
        raise ApiError(404, "Cluster does not exist")
    await service.resources.put_cluster(cluster, _checked(data))
    return Response(status_code=200)


def _checked(data: dict[str, Any]) -> dict[str, Any]:
    for field, schemes in (
        ("serviceUrl", ("http://",)),
        ("serviceUrlTls", ("https://",)),
        ("brokerServiceUrl", ("pulsar://",)),
        ("brokerServiceUrlTls", ("pulsar+ssl://",)),
    ):
        url = data.get(field)
        if url and not (isinstance(url, str) and url.startswith(schemes)):
            raise ApiError(400, f"Illegal {field}: it must begin with {schemes[0]}")
    return {field: value for field, value in data.items() if value is not None}


@router.delete("/{cluster}", status_code=204, summary="Remove an unused cluster")
async def delete_cluster(service: Service, cluster: Cluster) -> Response:
    resources = service.resources
    if await resources.cluster(cluster) is None:
        raise ApiError(404, "Cluster does not exist")
    for tenant in await resources.tenants():
        for namespace in await resources.namespaces(tenant):
            policies = await resources.policies(namespace)
            if policies is not None and cluster in policies.document["replication_clusters"]:
                raise ApiError(412, "Cluster not empty")
    await resources.delete_cluster(cluster)
    return no_content()


@router.get("/{cluster}/failureDomains", summary="Failure domains: none are kept yet")
async def failure_domains(service: Service, cluster: Cluster) -> Response:
    if await service.resources.cluster(cluster) is None:
        raise ApiError(412, f"Cluster {cluster} does not exist.")
    return JsonResponse({})
