"""A topic's own policies (http-api 2.6), each as its row of broker/policies/table.py says.

A partitioned topic's hold for its partitions, which have none of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Response

from broker.http.dependencies import Service, SubscriptionName, Topic, body_doc, flag
from broker.http.errors import ApiError
from broker.http.policy_access import (
    TOPIC_ABSENT,
    Applied,
    LenientBody,
    QuotaType,
    Scope,
    answer,
    body_of,
    cluster_names,
    get_doc,
    own_policies,
    quota_type,
    require_local,
    value_of,
    write_doc,
)
from broker.http.responses import JsonResponse, no_content
from broker.http.topic_access import TOPIC
from broker.policies.documents import (
    TOPIC_QUOTA_ABOVE_RETENTION,
    TOPIC_RETENTION_BELOW_QUOTA,
    change_inner,
    change_topic,
    check_topic_agreement,
    in_topic,
)
from broker.policies.quotas import (
    QUOTA_EXAMPLE,
    QUOTA_SCHEMA,
    QUOTAS,
    applied_quotas,
    parse_quota,
)
from broker.policies.shapes import DISPATCH_RATE
from broker.policies.table import POLICIES, policy_of_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.policies.table import At, Policy
    from broker.protocol.topic_name import TopicName
    from broker.service.broker_service import BrokerService

__all__ = ["router"]

router = APIRouter(prefix=TOPIC, tags=["topic policies"])

Document = dict[str, Any]
Seconds = Annotated[
    str | None,
    Query(
        description="Seconds, 0: messages never expire; none: unset it",
        json_schema_extra={"type": "integer", "minimum": 0},
    ),
]
_REMOVED: dict[int | str, dict[str, Any]] = {
    412: {"description": "A partition's name: its partitioned topic has policies"},
    **TOPIC_ABSENT,
}


async def _change(
    service: BrokerService,
    name: TopicName,
    change: Callable[[Document], Document],
    conflict: str = "",
) -> Response:
    """Write the topic's document.

    Args:
        conflict: what to say when backlog quota and retention don't agree afterwards; empty: what
            is changed is neither of them.
    """
    namespace = await service.resources.policies(name.namespace)
    assert namespace is not None

    def checked(document: Document) -> Document:
        changed = change(document)
        if conflict:
            check_topic_agreement(namespace.with_topic(changed), conflict)
        return changed

    await service.resources.update_topic_policies(name, checked)
    return no_content()


async def _read(
    service: BrokerService, name: TopicName, policy: Policy, at: At, scope: str, applied: bool
) -> Response:
    policies = await own_policies(service, name)
    stored = in_topic(policies.topic_document, scope, policy.field)
    return answer(value_of(policy, at, stored, policies, applied))


def _add_get(policy: Policy, at: At) -> None:
    async def get_applied(
        service: Service, topic: Topic, scope: Scope, applied: Applied = None
    ) -> Response:
        return await _read(service, topic, policy, at, scope, flag(applied))

    async def get(service: Service, topic: Topic, scope: Scope) -> Response:
        return await _read(service, topic, policy, at, scope, False)

    router.add_api_route(
        f"/{at.path}",
        get_applied if at.applied else get,
        methods=["GET"],
        name=f"get_topic_{policy.field}",
        summary=f"Get: {policy.title}",
        responses=get_doc(policy, at, topic=True),
    )


def _add_set(policy: Policy, at: At) -> None:
    async def write(service: BrokerService, name: TopicName, scope: str, given: Any) -> Response:
        await own_policies(service, name)
        value = body_of(policy, at, given, service)
        conflict = TOPIC_RETENTION_BELOW_QUOTA if policy.field == "retention_policies" else ""
        return await _change(
            service,
            name,
            lambda document: change_topic(document, scope, policy.field, value),
            conflict if value is not None else "",
        )

    async def set_value(
        service: Service, topic: Topic, scope: Scope, body: LenientBody
    ) -> Response:
        return await write(service, topic, scope, body)

    async def set_true(service: Service, topic: Topic, scope: Scope) -> Response:
        return await write(service, topic, scope, True)

    # The one policy that comes in the query (http-api, trap 3).
    async def set_query(
        service: Service,
        topic: Topic,
        scope: Scope,
        messageTTL: Seconds = None,
    ) -> Response:
        return await write(service, topic, scope, _number(messageTTL))

    router.add_api_route(
        f"/{at.path}",
        set_query if at.in_query else set_true if at.bodiless else set_value,
        methods=[at.method],
        name=f"set_topic_{policy.field}",
        summary=f"Set: {policy.title}",
        **write_doc(policy, at, topic=True),
    )


def _number(text: str | None) -> int | None:
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ApiError(400, f"{text!r:.60} is not an integer") from error


def _add_remove(policy: Policy, at: At) -> None:
    async def remove(service: Service, topic: Topic, scope: Scope) -> Response:
        await own_policies(service, topic)
        return await _change(
            service, topic, lambda document: change_topic(document, scope, policy.field, None)
        )

    router.add_api_route(
        f"/{at.path}",
        remove,
        methods=["DELETE"],
        name=f"remove_topic_{policy.field}",
        summary=f"Unset: {policy.title}",
        status_code=204,
        responses=_REMOVED,
    )


for _policy in POLICIES:
    if (_at := _policy.topic) is not None:
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
        **_REMOVED,
    },
)
async def get_quotas(
    service: Service, topic: Topic, scope: Scope, applied: Applied = None
) -> Response:
    policies = await own_policies(service, topic)
    if flag(applied):
        return JsonResponse(applied_quotas(policies))
    return JsonResponse(in_topic(policies.topic_document, scope, QUOTAS) or {})


@router.post(
    "/backlogQuota",
    status_code=204,
    summary="Set: what a subscription may be behind, and what happens then",
    openapi_extra=body_doc(QUOTA_SCHEMA, QUOTA_EXAMPLE),
    responses={
        400: {"description": "No such type or action"},
        412: {"description": "Retention keeps less, or a partition's name"},
        **TOPIC_ABSENT,
    },
)
async def set_quota(
    service: Service,
    topic: Topic,
    scope: Scope,
    body: LenientBody,
    backlogQuotaType: QuotaType = None,
) -> Response:
    kind = quota_type(backlogQuotaType)
    await own_policies(service, topic)
    quota = None if body is None else parse_quota(body, topic.namespace)
    return await _change(
        service,
        topic,
        lambda document: change_inner(document, scope, QUOTAS, kind, quota),
        TOPIC_QUOTA_ABOVE_RETENTION if quota is not None else "",
    )


@router.delete(
    "/backlogQuota",
    status_code=204,
    summary="Unset: what a subscription may be behind",
    responses={400: {"description": "No such type"}, **_REMOVED},
)
async def remove_quota(
    service: Service, topic: Topic, scope: Scope, backlogQuotaType: QuotaType = None
) -> Response:
    kind = quota_type(backlogQuotaType)
    await own_policies(service, topic)
    return await _change(
        service, topic, lambda document: change_inner(document, scope, QUOTAS, kind, None)
    )


# --- the dispatch rate of one subscription

_RATE_PATH = "/{subscription}/dispatchRate"
_SUBSCRIPTIONS = "subscriptionPolicies"
_EVERY_SUBSCRIPTION = policy_of_field("subscriptionDispatchRate")
assert _EVERY_SUBSCRIPTION is not None
_RATE_EXAMPLE = _EVERY_SUBSCRIPTION.example


@router.get(
    _RATE_PATH,
    summary="Get: messages and bytes that one subscription dispatches in a period",
    responses={
        200: {"content": {"application/json": {"example": _RATE_EXAMPLE}}},
        204: {"description": "It is not set"},
        **_REMOVED,
    },
)
async def get_subscription_rate(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    scope: Scope,
    applied: Applied = None,
) -> Response:
    policies = await own_policies(service, topic)
    scopes = ("local", "global") if flag(applied) else (scope,)
    for each in scopes:
        own = (in_topic(policies.topic_document, each, _SUBSCRIPTIONS) or {}).get(subscription)
        if own is not None:
            return JsonResponse(own["dispatchRate"])
    assert _EVERY_SUBSCRIPTION is not None
    return answer(_EVERY_SUBSCRIPTION.applied(policies) if flag(applied) else None)


@router.post(
    _RATE_PATH,
    status_code=204,
    summary="Set: messages and bytes that one subscription dispatches in a period",
    openapi_extra=body_doc(DISPATCH_RATE.schema, _RATE_EXAMPLE),
    responses={400: {"description": "Not a rate"}, **_REMOVED},
)
async def set_subscription_rate(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    scope: Scope,
    body: LenientBody,
) -> Response:
    await own_policies(service, topic)
    rate = None if body is None else DISPATCH_RATE.parse(body, "dispatchRate")
    return await _set_rate(service, topic, subscription, scope, rate)


@router.delete(
    _RATE_PATH,
    status_code=204,
    summary="Unset: messages and bytes that one subscription dispatches in a period",
    responses=_REMOVED,
)
async def remove_subscription_rate(
    service: Service, topic: Topic, subscription: SubscriptionName, scope: Scope
) -> Response:
    await own_policies(service, topic)
    return await _set_rate(service, topic, subscription, scope, None)


async def _set_rate(
    service: BrokerService, name: TopicName, subscription: str, scope: str, rate: Document | None
) -> Response:
    own = None if rate is None else {"dispatchRate": rate}
    return await _change(
        service,
        name,
        lambda document: change_inner(document, scope, _SUBSCRIPTIONS, subscription, own),
    )


# --- replication: to this cluster and no other

_REPLICATION = "replication_clusters"


@router.delete(
    "/policies",
    status_code=204,
    summary="Unset: all own policies of the topic, also its global ones",
    responses=_REMOVED,
)
async def remove_all(service: Service, topic: Topic) -> Response:
    await own_policies(service, topic)
    return await _change(service, topic, lambda _: {})


@router.get(
    "/replication",
    summary="Get: clusters that have the topic",
    responses={
        200: {"content": {"application/json": {"example": ["standalone"]}}},
        204: {"description": "It is not set"},
        **_REMOVED,
    },
)
async def get_replication(
    service: Service, topic: Topic, scope: Scope, applied: Applied = None
) -> Response:
    policies = await own_policies(service, topic)
    if flag(applied):
        return JsonResponse(policies.value(_REPLICATION) or [])
    return answer(in_topic(policies.topic_document, scope, _REPLICATION))


@router.post(
    "/replication",
    status_code=204,
    summary="Set: clusters that have the topic; replication to others isn't available",
    openapi_extra=body_doc(
        {"type": "array", "items": {"type": "string"}}, ["standalone"], required=True
    ),
    responses={
        400: {"description": "Not an array of names"},
        412: {"description": "Another cluster than this one, or a partition's name"},
        **TOPIC_ABSENT,
    },
)
async def set_replication(
    service: Service, topic: Topic, scope: Scope, body: LenientBody
) -> Response:
    await own_policies(service, topic)
    clusters = cluster_names(body)
    if service.cluster not in clusters:
        raise ApiError(
            412,
            "Can not remove local cluster from the local topic-level replication clusters policy",
        )
    require_local(clusters, service.cluster)
    return await _change(
        service, topic, lambda document: change_topic(document, scope, _REPLICATION, clusters)
    )


@router.delete(
    "/replication",
    status_code=204,
    summary="Unset: clusters that have the topic",
    responses=_REMOVED,
)
async def remove_replication(service: Service, topic: Topic, scope: Scope) -> Response:
    await own_policies(service, topic)
    return await _change(
        service, topic, lambda document: change_topic(document, scope, _REPLICATION, None)
    )
