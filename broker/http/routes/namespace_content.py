"""What belongs to a namespace beside the table of policies.

Permissions, properties, clusters, and the groups that this version doesn't have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Request, Response

from magnetar.broker.http.dependencies import (
    Namespace,
    Service,
    SubscriptionName,
    body_doc,
    read_body,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.raw_path import form_decode
from magnetar.broker.http.policies.policy_access import (
    ABSENT,
    JsonBody,
    cluster_names,
    namespace_policies,
    require_local,
)
from magnetar.broker.http.responses import JsonResponse, TextResponse, no_content
from magnetar.broker.policies.documents import remove_offload, with_properties
from magnetar.broker.policies.errors import UnsupportedPolicyError
from magnetar.broker.policies.values import Flag, Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.service.broker_service import BrokerService

router = APIRouter(prefix="/admin/v2/namespaces", tags=["namespaces"])

_NS: Final = "/{tenant}/{namespace}"
Document = dict[str, Any]
_NAMES_SCHEMA: Final = {"type": "array", "items": {"type": "string"}}
_CLUSTERS_DOC = body_doc(_NAMES_SCHEMA, ["standalone"], required=True)
_BAD: dict[int | str, dict[str, Any]] = {400: {"description": "Not what it should be"}, **ABSENT}
_ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")


def _json_doc(example: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"example": example}}}, **ABSENT}


_TEXT_DOC: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"example": "billing"}}},
    **ABSENT,
}


async def _role(
    role: Annotated[str, Path(description="Role, percent-encoded once", examples=["billing"])],
) -> str:
    return form_decode(role)


async def _key(
    key: Annotated[str, Path(description="The property's key", examples=["team"])],
) -> str:
    return form_decode(key)


async def _value(
    value: Annotated[str, Path(description="The property's value", examples=["billing"])],
) -> str:
    return form_decode(value)


Role = Annotated[str, Depends(_role)]
Key = Annotated[str, Depends(_key)]
Value = Annotated[str, Depends(_value)]
Group = Annotated[str, Path(description="Name of a resource group", examples=["group"])]


async def _update(
    service: BrokerService, namespace: str, change: Callable[[Document], Document]
) -> Response:
    await service.resources.update_policies(namespace, change)
    return no_content()


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


@router.get(
    _NS + "/permissions",
    summary="Actions that roles may do, by role",
    responses=_json_doc({"billing": ["consume", "produce"]}),
)
async def get_permissions(service: Service, namespace: Namespace) -> Response:
    auth = (await namespace_policies(service, namespace)).document.get("auth_policies") or {}
    return JsonResponse(auth.get("namespace_auth") or {})


@router.get(
    _NS + "/permissions/subscription",
    summary="Roles that may use a subscription, by subscription",
    responses=_json_doc({"invoices": ["billing"]}),
)
async def get_subscription_permissions(service: Service, namespace: Namespace) -> Response:
    auth = (await namespace_policies(service, namespace)).document.get("auth_policies") or {}
    return JsonResponse(auth.get("subscription_auth_roles") or {})


@router.post(
    _NS + "/permissions/subscription/{subscription}",
    status_code=204,
    summary="Let only these roles use a subscription",
    openapi_extra=body_doc(_NAMES_SCHEMA, ["billing"], required=True),
    responses=_BAD,
)
async def grant_subscription(
    service: Service, namespace: Namespace, subscription: SubscriptionName, body: JsonBody
) -> Response:
    if body is None:
        raise ApiError(400, "Roles should not be null")
    roles = sorted(Names().parse(body, "roles"))
    change = _auth_change("subscription_auth_roles", lambda old: {**old, subscription: roles})
    return await _update(service, namespace, change)


@router.post(
    _NS + "/permissions/{role}",
    status_code=204,
    summary="Let a role do these actions, and no others",
    openapi_extra=body_doc(
        {"type": "array", "items": {"type": "string", "enum": list(_ACTIONS)}},
        ["produce", "consume"],
        required=True,
    ),
    responses=_BAD,
)
async def grant(service: Service, namespace: Namespace, role: Role, body: JsonBody) -> Response:
    if body is None:
        raise ApiError(400, "Actions should not be null")
    actions = sorted(Names(_ACTIONS).parse(body, "actions"))
    if await service.resources.policies(namespace) is None:
        raise ApiError(404, "Topic's namespace does not exist")
    change = _auth_change("namespace_auth", lambda old: {**old, role: actions})
    return await _update(service, namespace, change)


@router.delete(
    _NS + "/permissions/{role}",
    status_code=204,
    summary="Take a role's permissions away",
    responses=ABSENT,
)
async def revoke(service: Service, namespace: Namespace, role: Role) -> Response:
    def change(old: Document) -> Document:
        old.pop(role, None)
        return old

    return await _update(service, namespace, _auth_change("namespace_auth", change))


# Without the word "subscription", as Pulsar has it.
@router.delete(
    _NS + "/permissions/{subscription}/{role}",
    status_code=204,
    summary="Take a role's permission for a subscription away",
    responses=ABSENT,
)
async def revoke_subscription(
    service: Service, namespace: Namespace, subscription: SubscriptionName, role: Role
) -> Response:
    def change(old: Document) -> Document:
        if subscription in old:
            old[subscription] = [each for each in old[subscription] if each != role]
        return old

    return await _update(service, namespace, _auth_change("subscription_auth_roles", change))


# --- properties


@router.get(_NS + "/properties", summary="All properties", responses=_json_doc({"team": "billing"}))
async def get_properties(service: Service, namespace: Namespace) -> Response:
    document = (await namespace_policies(service, namespace)).document
    return JsonResponse(document.get("properties") or {})


def _with(added: Any) -> Callable[[Document], Document]:
    return lambda document: {
        **document,
        "properties": with_properties(document.get("properties") or {}, added),
    }


@router.put(
    _NS + "/properties",
    status_code=204,
    summary="Set these properties beside those there are",
    openapi_extra=body_doc(
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"team": "billing"},
        required=True,
    ),
    responses=_BAD,
)
async def put_properties(service: Service, namespace: Namespace, body: JsonBody) -> Response:
    await namespace_policies(service, namespace)
    if body is None:
        raise ApiError(400, "The request entity cannot be empty.")
    return await _update(service, namespace, _with(body))


@router.delete(
    _NS + "/properties", status_code=204, summary="Forget all properties", responses=ABSENT
)
async def clear_properties(service: Service, namespace: Namespace) -> Response:
    return await _update(service, namespace, lambda document: {**document, "properties": {}})


@router.get(
    _NS + "/property/{key}",
    response_class=TextResponse,
    summary="One property's value",
    responses={**_TEXT_DOC, 204: {"description": "There is none"}},
)
async def get_property(service: Service, namespace: Namespace, key: Key) -> Response:
    document = (await namespace_policies(service, namespace)).document
    return _property((document.get("properties") or {}).get(key))


def _property(value: str | None) -> Response:
    """The bare text, as Pulsar writes it; it is no JSON."""
    return no_content() if value is None else TextResponse(value)


@router.put(
    _NS + "/property/{key}/{value}",
    status_code=204,
    summary="Set one property",
    responses=_BAD,
)
async def put_property(service: Service, namespace: Namespace, key: Key, value: Value) -> Response:
    return await _update(service, namespace, _with({key: value}))


@router.delete(
    _NS + "/property/{key}",
    response_class=TextResponse,
    summary="Forget one property; answers with its value",
    responses={**_TEXT_DOC, 204: {"description": "There was none"}},
)
async def remove_property(service: Service, namespace: Namespace, key: Key) -> Response:
    removed: list[str] = []

    def change(document: Document) -> Document:
        properties = dict(document.get("properties") or {})
        removed[:] = [properties.pop(key)] if key in properties else []
        return {**document, "properties": properties}

    await service.resources.update_policies(namespace, change)
    return _property(removed[0] if removed else None)


# --- clusters


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


@router.get(
    _NS + "/replication",
    summary="Get: clusters that have the namespace",
    responses=_json_doc(["standalone"]),
)
async def get_replication(service: Service, namespace: Namespace) -> Response:
    document = (await namespace_policies(service, namespace)).document
    return JsonResponse(document.get("replication_clusters") or [])


@router.post(
    _NS + "/replication",
    status_code=204,
    summary="Set: clusters that have the namespace; replication to others isn't available",
    openapi_extra=_CLUSTERS_DOC,
    responses={
        400: {"description": "Not an array of names"},
        403: {"description": "No such cluster, or not one of the tenant's"},
        412: {"description": "No cluster, or another one than this"},
        **ABSENT,
    },
)
async def set_replication(service: Service, namespace: Namespace, body: JsonBody) -> Response:
    await namespace_policies(service, namespace)
    clusters = cluster_names(body)
    await check_clusters(service, namespace, clusters)
    require_local(clusters, service.cluster)
    return await _update(
        service, namespace, lambda document: {**document, "replication_clusters": clusters}
    )


@router.get(
    _NS + "/allowedClusters",
    summary="Get: clusters that its topics may be replicated to, empty: the tenant's",
    responses=_json_doc([]),
)
async def get_allowed_clusters(service: Service, namespace: Namespace) -> Response:
    document = (await namespace_policies(service, namespace)).document
    return JsonResponse(document.get("allowed_clusters") or [])


@router.post(
    _NS + "/allowedClusters",
    status_code=204,
    summary="Set: clusters that its topics may be replicated to",
    openapi_extra=_CLUSTERS_DOC,
    responses={
        400: {"description": "A replication cluster is missing"},
        403: {"description": "No such cluster, or not one of the tenant's"},
        **ABSENT,
    },
)
async def set_allowed_clusters(service: Service, namespace: Namespace, body: JsonBody) -> Response:
    document = (await namespace_policies(service, namespace)).document
    clusters = Names().parse([] if body is None else body, "clusters")
    replicated = document.get("replication_clusters") or []
    await check_clusters(service, namespace, clusters)
    if missing := [name for name in replicated if name not in clusters]:
        raise ApiError(
            400,
            "Allowed clusters do not contain the replication cluster "
            f"[{', '.join(missing)}]. Please remove the replication cluster if the cluster is not "
            "allowed for this namespace",
        )
    return await _update(service, namespace, lambda old: {**old, "allowed_clusters": clusters})


# --- groups, which this version doesn't have: they are never set


def _group_routes(path: str, title: str, feature: str, schema: Document, example: Any) -> None:
    async def get(service: Service, namespace: Namespace) -> Response:
        await namespace_policies(service, namespace)
        return no_content()

    async def put(service: Service, namespace: Namespace, request: Request) -> Response:
        # Bytes, not JSON: Java's client sends the group's name without quotes.
        body = await read_body(request)
        await namespace_policies(service, namespace)
        if body.strip() not in (b"", b"null", b'""', b"{}"):
            raise UnsupportedPolicyError(f"{feature} is not available in this version")
        return no_content()

    async def remove(service: Service, namespace: Namespace) -> Response:
        await namespace_policies(service, namespace)
        return no_content()

    refused = {412: {"description": "Not available in this version"}, **ABSENT}
    unset = {204: {"description": "It is not set"}, **ABSENT}
    name = title.replace(" ", "_")
    router.add_api_route(
        _NS + path,
        get,
        methods=["GET"],
        name=f"get_{name}",
        status_code=204,
        summary=f"Get: {title}",
        responses=unset,
    )
    router.add_api_route(
        _NS + path,
        put,
        methods=["POST"],
        name=f"set_{name}",
        status_code=204,
        summary=f"Set: {title}",
        responses=refused,
        openapi_extra=body_doc(schema, example),
    )
    router.add_api_route(
        _NS + path,
        remove,
        methods=["DELETE"],
        name=f"remove_{name}",
        status_code=204,
        summary=f"Unset: {title}",
        responses=unset,
    )


_group_routes(
    "/persistence/bookieAffinity",
    "bookies that store its ledgers",
    "Bookie affinity",
    {"type": "object", "properties": {"bookkeeperAffinityGroupPrimary": {"type": "string"}}},
    {"bookkeeperAffinityGroupPrimary": "ssd"},
)


@router.get(
    _NS + "/resourcegroup",
    status_code=204,
    summary="Get: its resource group",
    responses={204: {"description": "It has none"}, **ABSENT},
)
async def get_resource_group(service: Service, namespace: Namespace) -> Response:
    await namespace_policies(service, namespace)
    return no_content()


@router.post(
    _NS + "/resourcegroup/{group}",
    status_code=204,
    summary="Set: its resource group; there are none in this version",
    responses={412: {"description": "No such resource group"}, **ABSENT},
)
async def set_resource_group(service: Service, namespace: Namespace, group: Group) -> Response:
    await namespace_policies(service, namespace)
    raise ApiError(412, "ResourceGroup does not exist")


@router.delete(
    _NS + "/resourcegroup", status_code=204, summary="Unset: its resource group", responses=ABSENT
)
async def remove_resource_group(service: Service, namespace: Namespace) -> Response:
    await namespace_policies(service, namespace)
    return no_content()


@router.delete(
    _NS + "/removeOffloadPolicies",
    status_code=204,
    summary="Unset: where ledgers are offloaded to",
    responses=ABSENT,
)
async def remove_offload_policies(service: Service, namespace: Namespace) -> Response:
    await namespace_policies(service, namespace)
    await service.resources.update_policies(namespace, remove_offload)
    return no_content()


@router.get(
    _NS + "/scanOffloadedLedgers",
    summary="Refused: the driver filesystem can't do it, in Pulsar neither",
    responses={**ABSENT, 501: {"description": "Always"}},
)
async def scan_offloaded_ledgers(service: Service, namespace: Namespace) -> Response:
    await namespace_policies(service, namespace)
    raise ApiError(501, "No offload driver of this broker can list what it holds")


@router.post(
    _NS + "/migration",
    status_code=204,
    summary="Whether clients are sent to another cluster: `false` only",
    openapi_extra=body_doc({"type": "boolean"}, False, required=True),
    responses={
        400: {"description": "Not a boolean"},
        **ABSENT,
        501: {"description": "Cluster migration is not supported"},
    },
)
async def set_migrated(service: Service, namespace: Namespace, body: JsonBody) -> Response:
    await namespace_policies(service, namespace)
    if body is None:
        raise ApiError(400, "The request entity cannot be empty.")
    if Flag().parse(body, "migrated"):
        raise ApiError(501, "Cluster migration is not supported")
    return no_content()
