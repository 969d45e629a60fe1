"""A namespace's policies (http-api 2.3), each as its row of broker/policies/table.py says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from broker.http.dependencies import Namespace, Service, body_doc, flag
from broker.http.errors import ApiError
from broker.http.policy_access import (
    ABSENT,
    Applied,
    JsonBody,
    QuotaType,
    answer,
    body_of,
    get_doc,
    namespace_policies,
    quota_type,
    value_of,
    write_doc,
)
from broker.http.responses import JsonResponse, no_content
from broker.policies.documents import change_namespace, change_quota, in_namespace
from broker.policies.quotas import QUOTA_EXAMPLE, QUOTA_SCHEMA, QUOTAS, parse_quota
from broker.policies.table import POLICIES

if TYPE_CHECKING:
    from broker.policies.table import At, Policy
    from broker.service.broker_service import BrokerService

__all__ = ["router"]

_PREFIX = "/admin/v2/namespaces/{tenant}/{namespace}"
router = APIRouter(prefix=_PREFIX, tags=["namespaces"])


async def _write(service: BrokerService, namespace: str, policy: Policy, value: Any) -> Response:
    cluster = service.cluster
    await service.resources.update_policies(
        namespace, lambda document: change_namespace(document, policy, cluster, value)
    )
    return no_content()


async def _read(
    service: BrokerService, namespace: str, policy: Policy, at: At, applied: bool
) -> Response:
    policies = await namespace_policies(service, namespace)
    stored = in_namespace(policies.document, policy, service.cluster)
    return answer(value_of(policy, at, stored, policies, applied))


def _add_get(policy: Policy, at: At) -> None:
    async def get_applied(
        service: Service, namespace: Namespace, applied: Applied = None
    ) -> Response:
        return await _read(service, namespace, policy, at, flag(applied))

    async def get(service: Service, namespace: Namespace) -> Response:
        return await _read(service, namespace, policy, at, False)

    router.add_api_route(
        f"/{at.path}",
        get_applied if at.applied else get,
        methods=["GET"],
        name=f"get_{policy.field}",
        summary=f"Get: {policy.title}",
        responses=get_doc(policy, at, topic=False),
    )


def _add_set(policy: Policy, at: At) -> None:
    async def set_value(service: Service, namespace: Namespace, body: JsonBody) -> Response:
        await namespace_policies(service, namespace)
        return await _write(service, namespace, policy, body_of(policy, at, body, service))

    async def set_true(service: Service, namespace: Namespace) -> Response:
        await namespace_policies(service, namespace)
        return await _write(service, namespace, policy, body_of(policy, at, True, service))

    router.add_api_route(
        f"/{at.path}",
        set_true if at.bodiless else set_value,
        methods=[at.method],
        name=f"set_{policy.field}",
        summary=f"Set: {policy.title}",
        **write_doc(policy, at, topic=False),
    )


def _add_remove(policy: Policy, at: At) -> None:
    async def remove(service: Service, namespace: Namespace) -> Response:
        return await _write(service, namespace, policy, None)

    router.add_api_route(
        f"/{at.path}",
        remove,
        methods=["DELETE"],
        name=f"remove_{policy.field}",
        summary=f"Unset: {policy.title}",
        status_code=204,
        responses=ABSENT,
    )


for _policy in POLICIES:
    if (_at := _policy.namespace) is not None:
        _add_get(_policy, _at)
        _add_set(_policy, _at)
        if _at.removable:
            _add_remove(_policy, _at)


# --- backlog quotas: one for each type


@router.get(
    "/backlogQuotaMap",
    summary="Get: backlog quotas by type",
    responses={
        200: {"content": {"application/json": {"example": {"destination_storage": QUOTA_EXAMPLE}}}},
        **ABSENT,
    },
)
async def get_quotas(service: Service, namespace: Namespace) -> Response:
    return JsonResponse((await namespace_policies(service, namespace)).document.get(QUOTAS) or {})


@router.post(
    "/backlogQuota",
    status_code=204,
    summary="Set: what a subscription may be behind, and what happens then",
    openapi_extra=body_doc(QUOTA_SCHEMA, QUOTA_EXAMPLE, required=True),
    responses={
        400: {"description": "No such type or action"},
        412: {"description": "Retention keeps less"},
        **ABSENT,
    },
)
async def set_quota(
    service: Service, namespace: Namespace, body: JsonBody, backlogQuotaType: QuotaType = None
) -> Response:
    kind = quota_type(backlogQuotaType)
    await namespace_policies(service, namespace)
    if body is None:
        raise ApiError(400, "The request entity cannot be empty.")
    quota = parse_quota(body, namespace)
    await service.resources.update_policies(
        namespace, lambda document: change_quota(document, kind, quota)
    )
    return no_content()


@router.delete(
    "/backlogQuota",
    status_code=204,
    summary="Unset: what a subscription may be behind",
    responses={400: {"description": "No such type"}, **ABSENT},
)
async def remove_quota(
    service: Service, namespace: Namespace, backlogQuotaType: QuotaType = None
) -> Response:
    kind = quota_type(backlogQuotaType)
    await service.resources.update_policies(
        namespace, lambda document: change_quota(document, kind, None)
    )
    return no_content()
