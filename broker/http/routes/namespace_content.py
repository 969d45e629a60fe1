"""A namespace's policies, each as its row of broker/policies/table.py says.

And what has no row there: permissions, properties, clusters, groups that this version doesn't have.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

from starlette.responses import Response

from magnetar.broker.http.dependencies import (
    DECODED,
    Namespace,
    Service,
    SubscriptionName,
    body_doc,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Path
from magnetar.broker.http.policies.policy_access import (
    ABSENT,
    ALL_EXAMPLE,
    Applied,
    JsonBody,
    NamespacePolicies,
    all_applied,
    cluster_names,
    namespace_scope,
    read_strictly,
    require_local,
)
from magnetar.broker.http.policies.policy_routes import ScopeConfig, add_policy_routes
from magnetar.broker.http.responses import JsonResponse, TextResponse, no_content
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.policies.documents import remove_offload, with_properties
from magnetar.broker.policies.values import Flag, Names
from magnetar.broker.service.broker_service import BrokerService

routes = Routes(
    "/admin/v2/namespaces/{tenant}/{namespace}",
    tag="namespaces",
    access=Access.ADMIN_403,
    mode=RoutingMode.LOCAL,
    statuses=ABSENT,
)

Document = dict[str, Any]
_NAMES_SCHEMA: Final = {"type": "array", "items": {"type": "string"}}
_CLUSTERS_DOC = body_doc(_NAMES_SCHEMA, ["standalone"], required=True)
_BAD: Statuses = {400: "Not what it should be"}
_ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")


Role = Annotated[str, Path(description="Role, percent-encoded once", examples=["billing"]), DECODED]
Key = Annotated[str, Path(description="The property's key", examples=["team"]), DECODED]
Value = Annotated[str, Path(description="The property's value", examples=["billing"]), DECODED]
Group = Annotated[str, Path(description="Name of a resource group", examples=["group"])]


def _get(path: str, name: str, fields: str, summary: str, example: Any, **options: Any) -> None:
    """A route that shows one field of the document, or of one of its maps; empty: not set."""

    async def get(policies: NamespacePolicies) -> Response:
        found: Any = policies.document
        for field in fields.split("."):
            found = found.get(field) or type(example)()
        return JsonResponse(found)

    routes.declare("GET", path, get, summary, name=name, example=example, **options)


add_policy_routes(
    routes,
    ScopeConfig(
        policy_scope=namespace_scope,
        body=read_strictly,
        at=lambda row: row.namespace,
        is_topic=False,
    ),
)


@routes.get("/policies", example=ALL_EXAMPLE)
async def get_all(policies: NamespacePolicies, applied: Applied = None) -> Response:
    """Get: all policies that the namespace sets, each with its source.

    With `applied` all that hold; as for topics.
    """
    return all_applied(policies, applied, is_topic=False)


# --- permissions: kept for the roles that authorization will ask about


def _auth_change(
    field: str, change: Callable[[Document], Document]
) -> Callable[[Document], Document]:
    """A change of one map of a document's ``auth_policies``."""

    def apply(document: Document) -> Document:
        auth = document.get("auth_policies") or {}
        changed = change(dict(auth.get(field) or {}))
        return {**document, "auth_policies": {**auth, field: changed}}

    return apply


_get(
    "/permissions",
    "get_permissions",
    "auth_policies.namespace_auth",
    "Actions that roles may do, by role",
    {"billing": ["consume", "produce"]},
)
_get(
    "/permissions/subscription",
    "get_subscription_permissions",
    "auth_policies.subscription_auth_roles",
    "Roles that may use a subscription, by subscription",
    {"invoices": ["billing"]},
)


@routes.post(
    "/permissions/subscription/{subscription}",
    statuses=_BAD,
    body=body_doc(_NAMES_SCHEMA, ["billing"], required=True),
)
async def grant_subscription(
    service: Service, namespace: Namespace, subscription: SubscriptionName, body: JsonBody
) -> None:
    """Let only these roles use a subscription."""
    if body is None:
        raise ApiError(400, "Roles should not be null")
    roles = sorted(Names().parse(body, "roles"))
    change = _auth_change("subscription_auth_roles", lambda old: {**old, subscription: roles})
    await service.policies.update_namespace(namespace, change)


@routes.post(
    "/permissions/{role}",
    statuses=_BAD,
    body=body_doc(
        {"type": "array", "items": {"type": "string", "enum": list(_ACTIONS)}},
        ["produce", "consume"],
        required=True,
    ),
)
async def grant(service: Service, namespace: Namespace, role: Role, body: JsonBody) -> None:
    """Let a role do these actions, and no others."""
    if body is None:
        raise ApiError(400, "Actions should not be null")
    actions = sorted(Names(_ACTIONS).parse(body, "actions"))
    if await service.resources.policies(namespace) is None:
        raise ApiError(404, "Topic's namespace does not exist")
    change = _auth_change("namespace_auth", lambda old: {**old, role: actions})
    await service.policies.update_namespace(namespace, change)


@routes.delete("/permissions/{role}", "Take a role's permissions away")
async def revoke(service: Service, namespace: Namespace, role: Role) -> None:
    def change(old: Document) -> Document:
        old.pop(role, None)
        return old

    await service.policies.update_namespace(namespace, _auth_change("namespace_auth", change))


# Without the word "subscription", as Pulsar has it.
@routes.delete("/permissions/{subscription}/{role}")
async def revoke_subscription(
    service: Service, namespace: Namespace, subscription: SubscriptionName, role: Role
) -> None:
    """Take a role's permission for a subscription away."""

    def change(old: Document) -> Document:
        if subscription in old:
            old[subscription] = [each for each in old[subscription] if each != role]
        return old

    await service.policies.update_namespace(
        namespace, _auth_change("subscription_auth_roles", change)
    )


# --- properties

_get(
    "/properties",
    "get_properties",
    "properties",
    "All properties",
    {"team": "billing"},
    access=Access.ADMIN_401,
)


def _with(added: Any) -> Callable[[Document], Document]:
    return lambda document: {
        **document,
        "properties": with_properties(document.get("properties") or {}, added),
    }


@routes.put(
    "/properties",
    access=Access.ADMIN_401,
    statuses=_BAD,
    body=body_doc(
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"team": "billing"},
        required=True,
    ),
)
async def put_properties(
    service: Service, namespace: Namespace, body: JsonBody, policies: NamespacePolicies
) -> None:
    """Set these properties beside those there are."""
    if body is None:
        raise ApiError(400, "The request entity cannot be empty.")
    await service.policies.update_namespace(namespace, _with(body))


@routes.delete("/properties", "Forget all properties", access=Access.ADMIN_401)
async def clear_properties(service: Service, namespace: Namespace) -> None:
    await service.policies.update_namespace(
        namespace, lambda document: {**document, "properties": {}}
    )


@routes.get(
    "/property/{key}", access=Access.ADMIN_401, text="billing", statuses={204: "There is none"}
)
async def get_property(key: Key, policies: NamespacePolicies) -> Response:
    """One property's value."""
    return _property((policies.document.get("properties") or {}).get(key))


def _property(value: str | None) -> Response:
    """The bare text, as Pulsar writes it; it is no JSON."""
    return no_content() if value is None else TextResponse(value)


@routes.put("/property/{key}/{value}", "Set one property", access=Access.ADMIN_401, statuses=_BAD)
async def put_property(service: Service, namespace: Namespace, key: Key, value: Value) -> None:
    await service.policies.update_namespace(namespace, _with({key: value}))


@routes.delete(
    "/property/{key}", access=Access.ADMIN_401, text="billing", statuses={204: "There was none"}
)
async def remove_property(service: Service, namespace: Namespace, key: Key) -> Response:
    """Forget one property; answers with its value."""
    removed: list[str] = []

    def change(document: Document) -> Document:
        properties = dict(document.get("properties") or {})
        removed[:] = [properties.pop(key)] if key in properties else []
        return {**document, "properties": properties}

    await service.policies.update_namespace(namespace, change)
    return _property(removed[0] if removed else None)


# --- clusters

_get(
    "/replication",
    "get_replication",
    "replication_clusters",
    "Get: clusters that have the namespace",
    ["standalone"],
)
_get(
    "/allowedClusters",
    "get_allowed_clusters",
    "allowed_clusters",
    "Get: clusters that its topics may be replicated to, empty: the tenant's",
    [],
)


async def check_clusters(service: BrokerService, namespace: str, clusters: list[str]) -> None:
    """Raises ApiError 403: no such cluster, or not one of the tenant's."""
    known = await service.resources.clusters()
    tenant = namespace.partition("/")[0]
    allowed = ((await service.resources.tenant(tenant)) or {}).get("allowedClusters") or []
    for name in clusters:
        if name not in known:
            raise ApiError(403, f"Invalid cluster id: {name}")
        if name not in allowed:
            raise ApiError(
                403,
                f"Cluster [{name}] is not in the list of allowed clusters list "
                f"for tenant [{tenant}]",
            )


@routes.post(
    "/replication",
    statuses={
        400: "Not an array of names",
        403: "No such cluster, or not one of the tenant's",
        412: "No cluster, or another one than this",
    },
    body=_CLUSTERS_DOC,
)
async def set_replication(
    service: Service, namespace: Namespace, body: JsonBody, policies: NamespacePolicies
) -> None:
    """Set: clusters that have the namespace; replication to others isn't available."""
    clusters = cluster_names(body)
    await check_clusters(service, namespace, clusters)
    require_local(clusters, service.cluster)
    await service.policies.update_namespace(
        namespace, lambda document: {**document, "replication_clusters": clusters}
    )


@routes.post(
    "/allowedClusters",
    statuses={
        400: "A replication cluster is missing",
        403: "No such cluster, or not one of the tenant's",
    },
    body=_CLUSTERS_DOC,
)
async def set_allowed_clusters(
    service: Service, namespace: Namespace, body: JsonBody, policies: NamespacePolicies
) -> None:
    """Set: clusters that its topics may be replicated to."""
    clusters = Names().parse([] if body is None else body, "clusters")
    replicated = policies.document.get("replication_clusters") or []
    await check_clusters(service, namespace, clusters)
    if missing := [name for name in replicated if name not in clusters]:
        raise ApiError(
            400,
            "Allowed clusters do not contain the replication cluster "
            f"[{', '.join(missing)}]. Please remove the replication cluster if the cluster is not "
            "allowed for this namespace",
        )
    await service.policies.update_namespace(
        namespace, lambda old: {**old, "allowed_clusters": clusters}
    )


# --- resource groups, which this version doesn't have: none is ever set


@routes.get(
    "/resourcegroup",
    "Get: its resource group",
    status=204,
    statuses={204: "It has none"},
    name="get_resource_group",
)
@routes.delete("/resourcegroup", "Unset: its resource group", name="remove_resource_group")
async def no_group(policies: NamespacePolicies) -> None:
    pass  # the namespace is there, and has none


@routes.post("/resourcegroup/{group}", statuses={412: "No such resource group"})
async def set_resource_group(group: Group, policies: NamespacePolicies) -> Response:
    """Set: its resource group; there are none in this version."""
    raise ApiError(412, "ResourceGroup does not exist")


@routes.delete("/removeOffloadPolicies", "Unset: where ledgers are offloaded to")
async def remove_offload_policies(
    service: Service, namespace: Namespace, policies: NamespacePolicies
) -> None:
    await service.policies.update_namespace(namespace, remove_offload)


@routes.get("/scanOffloadedLedgers", statuses={501: "Always"})
async def scan_offloaded_ledgers(policies: NamespacePolicies) -> Response:
    """Refused: the driver filesystem can't do it, in Pulsar neither."""
    raise ApiError(501, "No offload driver of this broker can list what it holds")


@routes.post(
    "/migration",
    access=Access.SUPERUSER,
    statuses={400: "Not a boolean", 501: "Cluster migration is not supported"},
    body=body_doc({"type": "boolean"}, False, required=True),
)
async def set_migrated(body: JsonBody, policies: NamespacePolicies) -> None:
    """Whether clients are sent to another cluster: `false` only."""
    if body is None:
        raise ApiError(400, "The request entity cannot be empty.")
    if Flag().parse(body, "migrated"):
        raise ApiError(501, "Cluster migration is not supported")
