"""Clusters: their data, peers, failure domains, isolation policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, ConfigDict

from magnetar.broker.http.dependencies import Service, body_doc, json_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread
from magnetar.broker.http.topics.namespace_topics import release_everywhere
from magnetar.broker.protocol.topic_name import valid_namespace_part
from magnetar.loadbalance import policies as placement
from magnetar.loadbalance.errors import InvalidDocumentError

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

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
_URLS: Final = (
    ("serviceUrl", "http://", "service url", "http://pulsar.example.com:8080"),
    ("serviceUrlTls", "https://", "service tls url", "https://pulsar.example.com:8443"),
    ("brokerServiceUrl", "pulsar://", "broker service url", "pulsar://pulsar.example.com:6650"),
    (
        "brokerServiceUrlTls",
        "pulsar+ssl://",
        "broker service tls url",
        "pulsar+ssl://pulsar.example.com:6651",
    ),
)
_DOC = body_doc({"type": "object", "additionalProperties": True}, _EXAMPLE)
_NAMES_DOC = body_doc({"type": "array", "items": {"type": "string"}}, ["us-west"])
_PEER_EXAMPLE = ["us-west"]
Body = Annotated[dict[str, Any] | None, Depends(json_body(dict[str, Any]))]


class FailureDomain(BaseModel):
    """Brokers that fail together."""

    model_config = ConfigDict(extra="ignore")

    brokers: list[str] | None = None


class AutoFailoverPolicy(BaseModel):
    """When a namespace may use its secondary brokers."""

    model_config = ConfigDict(extra="ignore")

    policy_type: str
    parameters: dict[str, str]


class IsolationPolicy(BaseModel):
    """NamespaceIsolationData: which brokers serve which namespaces, as regular expressions."""

    model_config = ConfigDict(extra="ignore")

    namespaces: list[str] | None = None
    primary: list[str] | None = None
    secondary: list[str] | None = None
    auto_failover_policy: AutoFailoverPolicy | None = None
    unload_scope: str | None = None


_DOMAIN_EXAMPLE = {"brokers": ["10.0.0.1:8080", "10.0.0.2:8080"]}
_DOMAIN_DOC = body_doc(FailureDomain, _DOMAIN_EXAMPLE)
_ISOLATION_EXAMPLE = {
    "namespaces": ["acme/.*"],
    "primary": ["broker-1.*"],
    "secondary": ["broker-2.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}
_UNASSIGNED_EXAMPLE = {"brokerName": "127.0.0.1:8080", "namespaceRegex": [], "primary": False}
_ISOLATION_DOC = body_doc(IsolationPolicy, _ISOLATION_EXAMPLE)
_UNLOAD_SCOPES: Final = ("all_matching", "none", "changed")


async def _cluster(
    cluster: Annotated[str, Path(description="Cluster name", examples=["standalone"])],
) -> str:
    return form_decode(cluster)


async def _domain(
    domain: Annotated[str, Path(description="Failure domain", examples=["rack-1"])],
) -> str:
    return form_decode(domain)


async def _policy(
    policy: Annotated[str, Path(description="Isolation policy", examples=["acme-only"])],
) -> str:
    return form_decode(policy)


Cluster = Annotated[str, Depends(_cluster)]
Domain = Annotated[str, Depends(_domain)]
PolicyName = Annotated[str, Depends(_policy)]

_MISSING: dict[int | str, dict[str, Any]] = {404: {"description": "No such cluster"}}
_CREATED: dict[int | str, dict[str, Any]] = {
    200: {"description": "Done; no body", "content": {"text/plain": {"example": ""}}},
    400: {"description": "No data, or a URL with the wrong scheme"},
}


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
    responses={200: {"content": {"application/json": {"example": _EXAMPLE}}}, **_MISSING},
)
async def get_cluster(service: Service, cluster: Cluster) -> Response:
    data = await _data(service, cluster)
    return JsonResponse({k: v for k, v in (_DEFAULTS | data).items() if v is not None})


@router.put(
    "/{cluster}",
    response_class=Response,
    summary="Register a cluster",
    openapi_extra=_DOC,
    responses={
        **_CREATED,
        409: {"description": "It exists"},
        412: {"description": "Not a cluster name"},
    },
)
async def create_cluster(service: Service, cluster: Cluster, data: Body) -> Response:
    if data is None:
        raise ApiError(400, "cluster data is required")
    if not valid_namespace_part(cluster) or cluster == "global":
        raise ApiError(412, "Cluster name is not valid")
    document = _checked(data)
    if await service.resources.cluster(cluster) is not None:
        raise ApiError(409, "Cluster already exists")
    await service.resources.put_cluster(cluster, document)
    return Response(status_code=200)


@router.post(
    "/{cluster}",
    response_class=Response,
    summary="Replace a cluster's data",
    openapi_extra=_DOC,
    responses={**_CREATED, **_MISSING},
)
async def update_cluster(service: Service, cluster: Cluster, data: Body) -> Response:
    if data is None:
        raise ApiError(400, "cluster data is required")
    document = _checked(data)
    await _data(service, cluster)
    await service.resources.put_cluster(cluster, document)
    return Response(status_code=200)


async def _data(service: BrokerService, cluster: str) -> dict[str, Any]:
    data = await service.resources.cluster(cluster)
    if data is None:
        raise ApiError(404, "Cluster does not exist")
    return data


def _checked(data: dict[str, Any]) -> dict[str, Any]:
    for field, scheme, what, example in _URLS:
        url = data.get(field)
        if url and not (isinstance(url, str) and url.startswith(scheme)):
            raise ApiError(400, f"Illegal {what}, example: {example}")
    # Migration redirects clients; a broker that doesn't must not say that it would.
    if data.get("migrated") is True or data.get("migratedClusterUrl"):
        raise ApiError(501, "Cluster migration is not supported")
    return {field: value for field, value in data.items() if value is not None}


@router.delete(
    "/{cluster}",
    status_code=204,
    summary="Remove an unused cluster",
    responses={**_MISSING, 412: {"description": "A namespace uses it, or it is this broker's"}},
)
async def delete_cluster(service: Service, cluster: Cluster) -> Response:
    resources = service.resources
    await _data(service, cluster)
    if cluster == service.cluster:
        raise ApiError(412, "Cluster not empty: this broker belongs to it")
    for tenant in await resources.tenants():
        for namespace in await resources.namespaces(tenant):
            policies = await resources.policies(namespace)
            if policies is not None and cluster in policies.document["replication_clusters"]:
                raise ApiError(412, "Cluster not empty")
    if await service.cluster_documents.isolation_policies(cluster):
        raise ApiError(412, "Cluster not empty: it has namespace isolation policies")
    await resources.delete_cluster(cluster)
    return no_content()


# --- peers


@router.get(
    "/{cluster}/peers",
    summary="Peer clusters; nothing when none are set",
    responses={200: {"content": {"application/json": {"example": _PEER_EXAMPLE}}}, **_MISSING},
)
async def get_peers(service: Service, cluster: Cluster) -> Response:
    broker_client = (await _data(service, cluster)).get("peerClusterNames")
    return no_content() if broker_client is None else JsonResponse(broker_client)


@router.post(
    "/{cluster}/peers",
    status_code=204,
    summary="Set the peer clusters; `null` removes them",
    openapi_extra=_NAMES_DOC,
    responses={**_MISSING, 412: {"description": "The cluster itself, or an unknown one"}},
)
async def set_peers(
    service: Service,
    cluster: Cluster,
    broker_client: Annotated[list[str] | None, Depends(json_body(list[str]))],
) -> Response:
    data = await _data(service, cluster)
    for name in broker_client or ():
        if name == cluster:
            raise ApiError(412, f"{cluster} itself can't be part of peer-list")
        if await service.resources.cluster(name) is None:
            raise ApiError(412, f"Peer cluster {name} does not exist")
    document = {key: value for key, value in data.items() if key != "peerClusterNames"}
    if broker_client is not None:
        document["peerClusterNames"] = list(dict.fromkeys(broker_client))
    await service.resources.put_cluster(cluster, document)
    return no_content()


# --- failure domains


async def _require(service: BrokerService, cluster: str) -> None:
    if await service.resources.cluster(cluster) is None:
        raise ApiError(412, f"Cluster {cluster} does not exist.")


@router.get(
    "/{cluster}/failureDomains",
    summary="Failure domains by name",
    responses={
        200: {"content": {"application/json": {"example": {"rack-1": _DOMAIN_EXAMPLE}}}},
    },
)
async def failure_domains(service: Service, cluster: Cluster) -> Response:
    return JsonResponse(await service.cluster_documents.failure_domains(cluster))


@router.get(
    "/{cluster}/failureDomains/{domain}",
    summary="One failure domain",
    responses={
        200: {"content": {"application/json": {"example": _DOMAIN_EXAMPLE}}},
        404: {"description": "No such domain"},
        412: {"description": "No such cluster"},
    },
)
async def failure_domain(service: Service, cluster: Cluster, domain: Domain) -> Response:
    await _require(service, cluster)
    found = await service.cluster_documents.failure_domain(cluster, domain)
    if found is None:
        raise ApiError(404, f"Domain {domain} for cluster {cluster} does not exist")
    return JsonResponse(found)


@router.post(
    "/{cluster}/failureDomains/{domain}",
    status_code=204,
    summary="Create or replace a failure domain",
    openapi_extra=_DOMAIN_DOC,
    responses={
        409: {"description": "A broker is in another domain"},
        412: {"description": "No such cluster, or not a name"},
    },
)
async def set_failure_domain(
    service: Service,
    cluster: Cluster,
    domain: Domain,
    body: Annotated[FailureDomain | None, Depends(json_body(FailureDomain))],
) -> Response:
    await _require(service, cluster)
    if not valid_namespace_part(domain):
        raise ApiError(412, "Domain name is not valid")
    brokers = None if body is None else body.brokers
    await service.cluster_documents.put_failure_domain(cluster, domain, brokers)
    return no_content()


@router.delete(
    "/{cluster}/failureDomains/{domain}",
    status_code=204,
    summary="Delete a failure domain",
    responses={
        404: {"description": "No such domain"},
        412: {"description": "No such cluster"},
    },
)
async def delete_failure_domain(service: Service, cluster: Cluster, domain: Domain) -> Response:
    await _require(service, cluster)
    if not await service.cluster_documents.delete_failure_domain(cluster, domain):
        raise ApiError(404, f"Domain-name {domain} or cluster {cluster} does not exist")
    return no_content()


# --- namespace isolation policies


async def _isolation(service: BrokerService, cluster: str, missing: int) -> dict[str, Any]:
    if await service.resources.cluster(cluster) is None:
        raise ApiError(missing, f"Cluster {cluster} does not exist.")
    policies = await service.cluster_documents.isolation_policies(cluster)
    if policies is None:
        raise ApiError(404, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
    return policies


@router.get(
    "/{cluster}/namespaceIsolationPolicies",
    summary="Namespace isolation policies by name",
    responses={
        200: {"content": {"application/json": {"example": {"acme-only": _ISOLATION_EXAMPLE}}}},
        404: {"description": "No such cluster, or none were ever set"},
    },
)
async def isolation_policies(service: Service, cluster: Cluster) -> Response:
    return JsonResponse(await _isolation(service, cluster, 404))


@router.get(
    "/{cluster}/namespaceIsolationPolicies/brokers",
    summary="Which isolation policies the active brokers are in",
    responses={
        200: {"content": {"application/json": {"example": [_UNASSIGNED_EXAMPLE]}}},
        404: {"description": "None were ever set"},
        412: {"description": "No such cluster"},
    },
)
async def isolated_brokers(service: Service, cluster: Cluster) -> Response:
    policies = await _isolation(service, cluster, 412)
    return JsonResponse([_seen(policies, each) for each in await service.cluster_members.ids()])


@router.get(
    "/{cluster}/namespaceIsolationPolicies/brokers/{broker}",
    summary="Which isolation policies one broker is in",
    responses={
        200: {"content": {"application/json": {"example": _UNASSIGNED_EXAMPLE}}},
        404: {"description": "None were ever set"},
        412: {"description": "No such cluster"},
    },
)
async def isolated_broker(
    service: Service,
    cluster: Cluster,
    broker: Annotated[str, Path(description="host:port", examples=["127.0.0.1:8080"])],
) -> Response:
    return JsonResponse(_seen(await _isolation(service, cluster, 412), form_decode(broker)))


def _seen(policies: dict[str, Any], broker: str) -> dict[str, Any]:
    """BrokerNamespaceIsolationData: of several policies the last one is named, as by Pulsar."""
    found: dict[str, Any] = {"brokerName": broker, "namespaceRegex": [], "primary": False}
    for name, document in policies.items():
        policy = _parsed(name, document)
        if policy is None or not (policy.is_primary(broker) or policy.is_secondary(broker)):
            continue
        found["policyName"], found["primary"] = name, policy.is_primary(broker)
        found["namespaceRegex"] += document["namespaces"]
    return found


def _parsed(name: str, document: Any) -> placement.NamespaceIsolationPolicy | None:
    """None: nothing that placement could follow."""
    try:
        return placement.NamespaceIsolationPolicy.parse(name, document)
    except (InvalidDocumentError, AttributeError):
        return None


@router.get(
    "/{cluster}/namespaceIsolationPolicies/{policy}",
    summary="One namespace isolation policy",
    responses={
        200: {"content": {"application/json": {"example": _ISOLATION_EXAMPLE}}},
        404: {"description": "No such policy or cluster"},
    },
)
async def isolation_policy(service: Service, cluster: Cluster, policy: PolicyName) -> Response:
    found = (await _isolation(service, cluster, 412)).get(policy)
    if found is None:
        raise ApiError(404, f"Cannot find NamespaceIsolationPolicy {policy} for cluster {cluster}")
    return JsonResponse(found)


@router.post(
    "/{cluster}/namespaceIsolationPolicies/{policy}",
    status_code=204,
    summary="Create or replace a namespace isolation policy; namespaces are unloaded by its scope",
    openapi_extra=_ISOLATION_DOC,
    responses={
        400: {"description": "No namespaces, no primary brokers, bad patterns or parameters"},
        412: {"description": "No such cluster"},
        501: {"description": "Of the cluster of a broker that serves alone: no other could"},
    },
)
async def set_isolation_policy(
    service: Service,
    cluster: Cluster,
    policy: PolicyName,
    body: Annotated[IsolationPolicy | None, Depends(json_body(IsolationPolicy))],
    spread: Spread,
) -> Response:
    await _require(service, cluster)
    if body is None or not _is_complete(body):
        raise ApiError(400, f"Invalid format of input policy data. policy: {policy}")
    if cluster == service.cluster and service.sharing is None:
        raise ApiError(
            501, "Namespace isolation needs several brokers: this one would serve all namespaces"
        )
    document = body.model_dump(exclude_none=True)
    document.setdefault("secondary", [])
    if (new := _parsed(policy, document)) is None:  # it would stop all placement
        raise ApiError(400, f"Invalid format of input policy data. policy: {policy}")
    known = await service.cluster_documents.isolation_policies(cluster) or {}
    await service.cluster_documents.put_isolation_policy(cluster, policy, document)
    if cluster == service.cluster:
        old = _parsed(policy, known[policy]) if policy in known else None
        await _place_anew(service, spread, body.unload_scope or "changed", old, new)
    return no_content()


async def _place_anew(
    service: BrokerService,
    spread: ScatterGather,
    scope: str,
    old: placement.NamespaceIsolationPolicy | None,
    new: placement.NamespaceIsolationPolicy,
) -> None:
    namespaces = [
        namespace
        for tenant in await service.resources.tenants()
        for namespace in await service.resources.namespaces(tenant)
    ]
    for namespace in placement.to_place_anew(scope, old, new, namespaces):
        await release_everywhere(service, spread, namespace)


def _is_complete(policy: IsolationPolicy) -> bool:
    failover = policy.auto_failover_policy
    if not policy.namespaces or not policy.primary or failover is None:
        return False
    if policy.unload_scope is not None and policy.unload_scope not in _UNLOAD_SCOPES:
        return False
    numbers = [failover.parameters.get(name, "") for name in ("min_limit", "usage_threshold")]
    return failover.policy_type == "min_available" and all(
        text.isascii() and text.isdigit() for text in numbers
    )


@router.delete(
    "/{cluster}/namespaceIsolationPolicies/{policy}",
    status_code=204,
    summary="Delete a namespace isolation policy",
    responses={412: {"description": "No such cluster"}},
)
async def delete_isolation_policy(
    service: Service, cluster: Cluster, policy: PolicyName
) -> Response:
    await _require(service, cluster)
    if await service.cluster_documents.isolation_policies(cluster) is not None:
        await service.cluster_documents.delete_isolation_policy(cluster, policy)
    return no_content()


# --- migration


@router.get(
    "/{cluster}/migrate",
    status_code=204,
    summary="Where a cluster was migrated to: nowhere",
    responses=_MISSING,
)
async def get_migration(service: Service, cluster: Cluster) -> Response:
    raise ApiError(404, "Cluster does not exist")


@router.post(
    "/{cluster}/migrate",
    status_code=204,
    summary="Migrate a cluster: not supported",
    responses={501: {"description": "Always"}},
)
async def migrate(
    service: Service,
    cluster: Cluster,
    isMigrated: Annotated[str | None, Query(description="Whether it is under way")] = None,
) -> Response:
    raise ApiError(501, "Cluster migration is not supported")
