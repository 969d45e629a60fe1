"""Clusters: their data, peers, failure domains, isolation policies."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from magnetar.broker.http.dependencies import DECODED, Body, Service
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread
from magnetar.broker.http.topics.namespace_topics import release_everywhere
from magnetar.broker.protocol.topic_name import valid_namespace_part
from magnetar.broker.service.broker_service import BrokerService
from magnetar.loadbalance import policies as placement
from magnetar.loadbalance.errors import InvalidDocumentError

routes = Routes(
    "/admin/v2/clusters", tag="clusters", access=Access.SUPERUSER, mode=RoutingMode.LOCAL
)

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
_PEER_EXAMPLE = ["us-west"]
ClusterData = Annotated[
    dict[str, Any], Body(dict[str, Any], _EXAMPLE, missing="cluster data is required")
]


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
_UNLOAD_SCOPES: Final = ("all_matching", "none", "changed")


Cluster = Annotated[str, Path(description="Cluster name", examples=["standalone"]), DECODED]
Domain = Annotated[str, Path(description="Failure domain", examples=["rack-1"]), DECODED]
PolicyName = Annotated[str, Path(description="Isolation policy", examples=["acme-only"]), DECODED]

_MISSING: Statuses = {404: "No such cluster"}
_BAD: Statuses = {400: "No data, or a URL with the wrong scheme"}


@routes.get("", "Names of all clusters", access=Access.FREE, example=["standalone"])
async def list_clusters(service: Service) -> Response:
    return JsonResponse([name for name in await service.resources.clusters() if name != "global"])


@routes.get("/{cluster}", "One cluster", example=_EXAMPLE, statuses=_MISSING)
async def get_cluster(service: Service, cluster: Cluster) -> Response:
    data = await _data(service, cluster)
    return JsonResponse({k: v for k, v in (_DEFAULTS | data).items() if v is not None})


@routes.put(
    "/{cluster}",
    empty="Done; no body",
    statuses={**_BAD, 409: "It exists", 412: "Not a cluster name"},
)
async def create_cluster(service: Service, cluster: Cluster, data: ClusterData) -> None:
    """Register a cluster."""
    if not valid_namespace_part(cluster) or cluster == "global":
        raise ApiError(412, "Cluster name is not valid")
    document = _checked(data)
    if await service.resources.cluster(cluster) is not None:
        raise ApiError(409, "Cluster already exists")
    await service.resources.put_cluster(cluster, document)


@routes.post("/{cluster}", empty="Done; no body", statuses={**_BAD, **_MISSING})
async def update_cluster(service: Service, cluster: Cluster, data: ClusterData) -> None:
    """Replace a cluster's data."""
    document = _checked(data)
    await _data(service, cluster)
    await service.resources.put_cluster(cluster, document)


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


@routes.delete(
    "/{cluster}", statuses={**_MISSING, 412: "A namespace uses it, or it is this broker's"}
)
async def delete_cluster(service: Service, cluster: Cluster) -> None:
    """Remove an unused cluster."""
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


# --- peers


@routes.get("/{cluster}/peers", example=_PEER_EXAMPLE, statuses=_MISSING)
async def get_peers(service: Service, cluster: Cluster) -> Response:
    """Peer clusters; nothing when none are set."""
    peers = (await _data(service, cluster)).get("peerClusterNames")
    return no_content() if peers is None else JsonResponse(peers)


@routes.post(
    "/{cluster}/peers", statuses={**_MISSING, 412: "The cluster itself, or an unknown one"}
)
async def set_peers(
    service: Service,
    cluster: Cluster,
    peers: Annotated[list[str] | None, Body(list[str], _PEER_EXAMPLE)],
) -> None:
    """Set the peer clusters; `null` removes them."""
    data = await _data(service, cluster)
    for name in peers or ():
        if name == cluster:
            raise ApiError(412, f"{cluster} itself can't be part of peer-list")
        if await service.resources.cluster(name) is None:
            raise ApiError(412, f"Peer cluster {name} does not exist")
    document = {key: value for key, value in data.items() if key != "peerClusterNames"}
    if peers is not None:
        document["peerClusterNames"] = list(dict.fromkeys(peers))
    await service.resources.put_cluster(cluster, document)


# --- failure domains


async def _require(service: BrokerService, cluster: str) -> None:
    if await service.resources.cluster(cluster) is None:
        raise ApiError(412, f"Cluster {cluster} does not exist.")


@routes.get("/{cluster}/failureDomains", example={"rack-1": _DOMAIN_EXAMPLE})
async def failure_domains(service: Service, cluster: Cluster) -> Response:
    """Failure domains by name."""
    return JsonResponse(await service.cluster_documents.failure_domains(cluster))


@routes.get(
    "/{cluster}/failureDomains/{domain}",
    example=_DOMAIN_EXAMPLE,
    statuses={404: "No such domain", 412: "No such cluster"},
)
async def failure_domain(service: Service, cluster: Cluster, domain: Domain) -> Response:
    """One failure domain."""
    await _require(service, cluster)
    found = await service.cluster_documents.failure_domain(cluster, domain)
    if found is None:
        raise ApiError(404, f"Domain {domain} for cluster {cluster} does not exist")
    return JsonResponse(found)


@routes.post(
    "/{cluster}/failureDomains/{domain}",
    statuses={409: "A broker is in another domain", 412: "No such cluster, or not a name"},
)
async def set_failure_domain(
    service: Service,
    cluster: Cluster,
    domain: Domain,
    body: Annotated[FailureDomain | None, Body(FailureDomain, _DOMAIN_EXAMPLE)],
) -> None:
    """Create or replace a failure domain."""
    await _require(service, cluster)
    if not valid_namespace_part(domain):
        raise ApiError(412, "Domain name is not valid")
    brokers = None if body is None else body.brokers
    await service.cluster_documents.put_failure_domain(cluster, domain, brokers)


@routes.delete(
    "/{cluster}/failureDomains/{domain}", statuses={404: "No such domain", 412: "No such cluster"}
)
async def delete_failure_domain(service: Service, cluster: Cluster, domain: Domain) -> None:
    """Delete a failure domain."""
    await _require(service, cluster)
    if not await service.cluster_documents.delete_failure_domain(cluster, domain):
        raise ApiError(404, f"Domain-name {domain} or cluster {cluster} does not exist")


# --- namespace isolation policies


async def _isolation(service: BrokerService, cluster: str, missing: int) -> dict[str, Any]:
    if await service.resources.cluster(cluster) is None:
        raise ApiError(missing, f"Cluster {cluster} does not exist.")
    policies = await service.cluster_documents.isolation_policies(cluster)
    if policies is None:
        raise ApiError(404, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")
    return policies


@routes.get(
    "/{cluster}/namespaceIsolationPolicies",
    example={"acme-only": _ISOLATION_EXAMPLE},
    statuses={404: "No such cluster, or none were ever set"},
)
async def isolation_policies(service: Service, cluster: Cluster) -> Response:
    """Namespace isolation policies by name."""
    return JsonResponse(await _isolation(service, cluster, 404))


@routes.get(
    "/{cluster}/namespaceIsolationPolicies/brokers",
    example=[_UNASSIGNED_EXAMPLE],
    statuses={404: "None were ever set", 412: "No such cluster"},
)
async def isolated_brokers(service: Service, cluster: Cluster) -> Response:
    """Which isolation policies the active brokers are in."""
    policies = await _isolation(service, cluster, 412)
    return JsonResponse([_seen(policies, each) for each in await service.cluster_members.ids()])


@routes.get(
    "/{cluster}/namespaceIsolationPolicies/brokers/{broker}",
    example=_UNASSIGNED_EXAMPLE,
    statuses={404: "None were ever set", 412: "No such cluster"},
)
async def isolated_broker(
    service: Service,
    cluster: Cluster,
    broker: Annotated[str, Path(description="host:port", examples=["127.0.0.1:8080"]), DECODED],
) -> Response:
    """Which isolation policies one broker is in."""
    return JsonResponse(_seen(await _isolation(service, cluster, 412), broker))


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


@routes.get(
    "/{cluster}/namespaceIsolationPolicies/{policy}",
    example=_ISOLATION_EXAMPLE,
    statuses={404: "No such policy or cluster"},
)
async def isolation_policy(service: Service, cluster: Cluster, policy: PolicyName) -> Response:
    """One namespace isolation policy."""
    found = (await _isolation(service, cluster, 412)).get(policy)
    if found is None:
        raise ApiError(404, f"Cannot find NamespaceIsolationPolicy {policy} for cluster {cluster}")
    return JsonResponse(found)


@routes.post(
    "/{cluster}/namespaceIsolationPolicies/{policy}",
    statuses={
        400: "No namespaces, no primary brokers, bad patterns or parameters",
        412: "No such cluster",
        501: "Of the cluster of a broker that serves alone: no other could",
    },
)
async def set_isolation_policy(
    service: Service,
    cluster: Cluster,
    policy: PolicyName,
    body: Annotated[IsolationPolicy | None, Body(IsolationPolicy, _ISOLATION_EXAMPLE)],
    spread: Spread,
) -> None:
    """Create or replace a namespace isolation policy; namespaces are unloaded by its scope."""
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


@routes.delete("/{cluster}/namespaceIsolationPolicies/{policy}", statuses={412: "No such cluster"})
async def delete_isolation_policy(service: Service, cluster: Cluster, policy: PolicyName) -> None:
    """Delete a namespace isolation policy."""
    await _require(service, cluster)
    if await service.cluster_documents.isolation_policies(cluster) is not None:
        await service.cluster_documents.delete_isolation_policy(cluster, policy)


# --- migration


@routes.get("/{cluster}/migrate", status=204, statuses=_MISSING)
async def get_migration(service: Service, cluster: Cluster) -> Response:
    """Where a cluster was migrated to: nowhere."""
    raise ApiError(404, "Cluster does not exist")


@routes.post("/{cluster}/migrate", "Migrate a cluster: not supported", statuses={501: "Always"})
async def migrate(
    service: Service,
    cluster: Cluster,
    isMigrated: Annotated[str | None, Query(description="Whether it is under way")] = None,
) -> Response:
    raise ApiError(501, "Cluster migration is not supported")
