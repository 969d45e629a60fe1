"""A topic's own policies, each as its row of broker/policies/table.py says.

A partitioned topic's hold for its partitions, which have none of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from magnetar.broker.http.dependencies import Service, SubscriptionName, Topic, body_doc, flag
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.policies.policy_access import (
    TOPIC_ABSENT,
    TOPIC_REFUSALS,
    Applied,
    LenientBody,
    Scope,
    answer,
    cluster_names,
    own_policies,
    read_leniently,
    require_local,
)
from magnetar.broker.http.policies.policy_routes import PolicyScope, ScopeConfig, add_policy_routes
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.topics.topic_access import TOPIC
from magnetar.broker.policies.documents import (
    TOPIC_QUOTA_ABOVE_RETENTION,
    TOPIC_RETENTION_BELOW_QUOTA,
    change_inner,
    change_topic,
    check_topic_agreement,
    in_topic,
)
from magnetar.broker.policies.quotas import QUOTAS
from magnetar.broker.policies.shapes import DISPATCH_RATE
from magnetar.broker.policies.table import policy_of_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.policies.effective import EffectivePolicies
    from magnetar.broker.policies.table import Policy
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService

router = APIRouter(prefix=TOPIC, tags=["topic policies"])

Document = dict[str, Any]


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


class TopicPolicyScope(PolicyScope):
    """One layer, ``local`` or ``global``, of a topic's document."""

    def __init__(self, service: BrokerService, name: TopicName, scope: str) -> None:
        super().__init__(service, name.namespace)
        self._name, self._scope = name, scope

    async def policies(self) -> EffectivePolicies:
        return await own_policies(self.service, self._name)

    def stored(self, policies: EffectivePolicies, policy: Policy) -> Any:
        return in_topic(policies.topic_document, self._scope, policy.field)

    async def store(self, policy: Policy, value: Any) -> None:
        is_retention = policy.field == "retention_policies" and value is not None
        await _change(
            self.service,
            self._name,
            lambda document: change_topic(document, self._scope, policy.field, value),
            TOPIC_RETENTION_BELOW_QUOTA if is_retention else "",
        )

    def stored_quotas(self, policies: EffectivePolicies) -> Document:
        return in_topic(policies.topic_document, self._scope, QUOTAS) or {}

    async def store_quota(self, kind: str, quota: Document | None) -> None:
        await _change(
            self.service,
            self._name,
            lambda document: change_inner(document, self._scope, QUOTAS, kind, quota),
            TOPIC_QUOTA_ABOVE_RETENTION if quota is not None else "",
        )


async def _holder(service: Service, topic: Topic, scope: Scope) -> PolicyScope:
    return TopicPolicyScope(service, topic, scope)


add_policy_routes(
    router,
    ScopeConfig(policy_scope=_holder, body=read_leniently, at=lambda row: row.topic, is_topic=True),
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
        **TOPIC_REFUSALS,
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
    responses={400: {"description": "Not a rate"}, **TOPIC_REFUSALS},
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
    responses=TOPIC_REFUSALS,
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
    responses=TOPIC_REFUSALS,
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
        **TOPIC_REFUSALS,
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
    responses=TOPIC_REFUSALS,
)
async def remove_replication(service: Service, topic: Topic, scope: Scope) -> Response:
    await own_policies(service, topic)
    return await _change(
        service, topic, lambda document: change_topic(document, scope, _REPLICATION, None)
    )
