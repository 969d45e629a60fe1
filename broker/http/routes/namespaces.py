"""Namespaces: life cycle and topics."""

from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.errors import AlreadyExistsError, NamespaceNotFoundError, TenantNotFoundError
from magnetar.broker.http.dependencies import Namespace, Service, Tenant, body_doc, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.policies.policy_access import JsonBody, NamespacePolicies, require_local
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routes.bundles import bundle_errors
from magnetar.broker.http.routes.namespace_content import check_clusters
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.streamed_answers import long_names
from magnetar.broker.http.topics.namespace_topics import (
    delete_namespace_with_topics,
    delete_topics,
    forget_namespace,
    release_everywhere,
    topics_everywhere,
)
from magnetar.broker.http.topics.topic_access import user_topics
from magnetar.broker.policies.documents import QUOTA_SCHEMA, QUOTAS, parse_namespace
from magnetar.broker.policies.table import POLICIES
from magnetar.broker.policies.values import Names
from magnetar.broker.service.broker_service import BrokerService
from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.namespace_bundles import BUNDLES_MAX, NamespaceBundles

routes = Routes(
    "/admin/v2/namespaces", tag="namespaces", access=Access.ADMIN_401, mode=RoutingMode.LOCAL
)

_EXAMPLE = {"replication_clusters": ["standalone"], "bundles": {"numBundles": 4}}
_DOC = body_doc(
    {
        "type": "object",
        "properties": {
            **{
                policy.field: {"type": "object", "additionalProperties": policy.kind.schema}
                if policy.by_cluster
                else policy.kind.schema
                for policy in POLICIES
                if policy.namespace is not None
            },
            QUOTAS: {"type": "object", "additionalProperties": QUOTA_SCHEMA},
            "replication_clusters": {"type": "array", "items": {"type": "string"}},
            "properties": {"type": "object", "additionalProperties": {"type": "string"}},
            "bundles": {
                "type": "object",
                "properties": {"numBundles": {"type": "integer"}, "boundaries": {"type": "array"}},
            },
        },
    },
    _EXAMPLE,
)
_MODES = {"PERSISTENT": "persistent", "NON_PERSISTENT": "non-persistent", "ALL": "all"}


@routes.get("/{tenant}", example=["public/default"], statuses={404: "No such tenant"})
async def list_namespaces(service: Service, tenant: Tenant) -> Response:
    """Namespaces of a tenant."""
    if await service.resources.tenant(tenant) is None:
        raise ApiError(404, "Tenant not found")
    return JsonResponse(await service.resources.namespaces(tenant))


@routes.get(
    "/{tenant}/{namespace}",
    access=Access.ADMIN_403,
    example=_EXAMPLE,
    statuses={404: "No such namespace"},
)
async def get_policies(policies: NamespacePolicies) -> Response:
    """All policies of a namespace."""
    update = policies.schema_auto_update
    defaults = {"allowed_clusters": [], "is_allow_auto_update_schema": update}
    answer = {**defaults, **policies.document}
    return JsonResponse({key: value for key, value in answer.items() if value is not None})


@routes.put(
    "/{tenant}/{namespace}",
    statuses={
        400: "A policy's value is none",
        403: "A cluster that isn't one of the tenant's",
        404: "No such tenant",
        409: "It exists",
        412: "A policy out of range, or of a feature that this version lacks",
    },
    body=_DOC,
)
async def create_namespace(service: Service, namespace: Namespace, body: JsonBody) -> None:
    """Create a namespace."""
    if body is not None and not isinstance(body, dict):
        raise ApiError(400, "Policies must be a JSON object")
    tenant = namespace.partition("/")[0]
    if await service.resources.tenant(tenant) is None:
        raise ApiError(404, "Tenant does not exist")
    given = body or {}
    policies = parse_namespace(given, namespace, service.config)
    clusters = Names().parse(given.get("replication_clusters") or [service.cluster], "clusters")
    await check_clusters(service, namespace, clusters)
    require_local(clusters, service.cluster)
    if allowed := given.get("allowed_clusters"):
        policies["allowed_clusters"] = Names().parse(allowed, "allowed_clusters")
        await check_clusters(service, namespace, policies["allowed_clusters"])
    limit = service.config.max_namespaces_per_tenant
    if limit and len(await service.resources.namespaces(tenant)) >= limit:
        raise ApiError(412, "Exceed the maximum number of namespace in tenant :" + tenant)
    count = _bundles(service, namespace, given.get("bundles"), policies)
    no_tenant = answer_for(TenantNotFoundError, 404, "Tenant does not exist")
    with no_tenant, answer_for(AlreadyExistsError, 409, "Namespace already exists"):
        await service.resources.create_namespace(namespace, clusters, count, policies)


def _bundles(service: BrokerService, namespace: str, bundles: Any, policies: dict[str, Any]) -> int:
    """Bundle count; explicit boundaries are put into ``policies``.

    Raises:
        ApiError: 400 the boundaries don't cover the range; 412 too many of them.
    """
    if bundles is None:
        return service.config.default_number_of_namespace_bundles
    if not isinstance(bundles, dict):
        raise ApiError(400, "bundles must be an object")
    count, boundaries = bundles.get("numBundles") or 0, bundles.get("boundaries")
    if boundaries:
        try:
            parsed = NamespaceBundles.parse(namespace, boundaries)
        except (TypeError, InvalidBundleError) as error:
            raise ApiError(400, f"Invalid bundle boundaries: {error}") from error
        count = len(boundaries) - 1
        if count > BUNDLES_MAX:
            raise ApiError(412, f"A namespace has at most {BUNDLES_MAX} bundles")
        policies["bundles"] = {"boundaries": parsed.boundary_texts(), "numBundles": count}
        return count
    if not isinstance(count, int) or not 0 <= count <= BUNDLES_MAX:
        raise ApiError(400, f"Invalid number of bundles: {count!r:.50}")
    return count or service.config.default_number_of_namespace_bundles


@routes.delete("/{tenant}/{namespace}", mode=RoutingMode.SCATTER, authoritative=True)
async def delete_namespace(
    service: Service,
    namespace: Namespace,
    spread: Spread,
    force: Annotated[str | None, Query(description="Also its topics")] = None,
) -> None:
    """Delete a namespace."""
    if await service.resources.policies(namespace) is None:
        raise ApiError(404, f"Namespace {namespace} does not exist.")
    if flag(force):
        if not service.config.force_delete_namespace_allowed:
            raise ApiError(405, "Broker doesn't allow forced deletion of namespaces")
        await delete_namespace_with_topics(service, spread, namespace)
        return
    topics = await topics_everywhere(service, spread, namespace, "all")
    users = await user_topics(topics)
    partitioned = [
        *await service.resources.partitioned_topics(namespace),
        *await service.resources.partitioned_topics(namespace, "non-persistent"),
    ]
    if users or partitioned:
        raise ApiError(409, "Cannot delete non empty namespace")
    with answer_for(NamespaceNotFoundError, 404, f"Namespace {namespace} does not exist."):
        await delete_topics(service, spread, topics)
        await forget_namespace(service, spread, namespace)


@routes.get(
    "/{tenant}/{namespace}/topics",
    access=Access.LOOKUP_403,
    mode=RoutingMode.SCATTER,
    example=["persistent://public/default/a"],
)
async def list_topics(
    request: Request,
    service: Service,
    namespace: Namespace,
    spread: Spread,
    policies: NamespacePolicies,
    mode: Annotated[str | None, Query(description="PERSISTENT, NON_PERSISTENT or ALL")] = None,
    includeSystemTopic: Annotated[
        str | None, Query(description="`true`: system topics too")
    ] = None,
) -> Response:
    """Topics of a namespace, each partition on its own."""
    kind = _MODES.get(mode or "PERSISTENT")
    if kind is None:
        raise ApiError(404, f"mode {mode!r:.50} is none of PERSISTENT, NON_PERSISTENT, ALL")
    names = await topics_everywhere(service, spread, namespace, kind)
    if not flag(includeSystemTopic):
        names = await user_topics(names)
    return await long_names(request, names)


@routes.get(
    "/{tenant}/{namespace}/bundles",
    access=Access.LOOKUP_403,
    example={"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
)
async def get_bundles(
    service: Service, namespace: Namespace, policies: NamespacePolicies
) -> Response:
    """Bundles of a namespace."""
    with bundle_errors():
        bundles = await service.bundles.bundles(namespace)
    return JsonResponse({"boundaries": bundles.boundary_texts(), "numBundles": len(bundles)})


@routes.put("/{tenant}/{namespace}/unload", access=Access.SUPERUSER, mode=RoutingMode.SCATTER)
async def unload(service: Service, namespace: Namespace, spread: Spread) -> None:
    """Unload all its topics."""
    if not await service.resources.namespace_exists(namespace):
        raise ApiError(404, "Namespace not found")
    await release_everywhere(service, spread, namespace)
