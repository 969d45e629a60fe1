"""A topic's own policies, each as its row of broker/policies/table.py says.

A partitioned topic's hold for its partitions, which have none of their own.
"""

from typing import Annotated

from starlette.responses import Response

from magnetar.broker.http.dependencies import Service, SubscriptionName, Topic, body_doc, flag
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends
from magnetar.broker.http.policies.policy_access import (
    ALL_EXAMPLE,
    TOPIC_REFUSALS,
    Applied,
    LenientBody,
    Scope,
    TopicPolicyScope,
    all_applied,
    answer,
    cluster_names,
    read_leniently,
    require_local,
)
from magnetar.broker.http.policies.policy_routes import ScopeConfig, add_policy_routes
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.topics.topic_access import TOPIC
from magnetar.broker.policies.documents import change_inner, change_topic, in_topic
from magnetar.broker.policies.table import policy_of_field
from magnetar.broker.policies.values import DISPATCH_RATE

routes = Routes(
    TOPIC,
    tag="topic policies",
    access=Access.ADMIN_403,
    mode=RoutingMode.LOCAL,
    statuses=TOPIC_REFUSALS,
)


async def _own(service: Service, topic: Topic, scope: Scope) -> TopicPolicyScope:
    return TopicPolicyScope(service, topic, scope)


Own = Annotated[TopicPolicyScope, Depends(_own)]

add_policy_routes(
    routes,
    ScopeConfig(policy_scope=_own, body=read_leniently, at=lambda row: row.topic, is_topic=True),
)


@routes.get("/policies", example=ALL_EXAMPLE)
async def get_all(service: Service, topic: Topic, applied: Applied = None) -> Response:
    """Get: all policies that the topic sets, each with its source.

    With `applied` all that hold. Names are the last segments of the paths that read a single one;
    `backlogQuota/{type}` and `{subscription}/dispatchRate` are one type's and one subscription's.
    Sources: `topic`; `global`, the topic's of all clusters; `namespace`; `broker`, its settings.
    """
    policies = await TopicPolicyScope(service, topic, "").policies()
    return all_applied(policies, applied, is_topic=True)


@routes.delete("/policies", "Unset: all own policies of the topic, also its global ones")
async def remove_all(service: Service, topic: Topic) -> None:
    own = TopicPolicyScope(service, topic, "")
    await own.policies()
    await own.change(lambda _: {})


# --- the dispatch rate of one subscription

_RATE_PATH = "/{subscription}/dispatchRate"
_SUBSCRIPTIONS = "subscriptionPolicies"
_EVERY_SUBSCRIPTION = policy_of_field("subscriptionDispatchRate")
assert _EVERY_SUBSCRIPTION is not None
_RATE_EXAMPLE = _EVERY_SUBSCRIPTION.example


@routes.get(_RATE_PATH, example=_RATE_EXAMPLE, statuses={204: "It is not set"})
async def get_subscription_rate(
    own: Own, subscription: SubscriptionName, applied: Applied = None
) -> Response:
    """Get: messages and bytes that one subscription dispatches in a period."""
    policies = await own.policies()
    for each in ("local", "global") if flag(applied) else (own.scope,):
        rates = in_topic(policies.topic_document, each, _SUBSCRIPTIONS) or {}
        if (rate := rates.get(subscription)) is not None:
            return JsonResponse(rate["dispatchRate"])
    assert _EVERY_SUBSCRIPTION is not None
    return answer(_EVERY_SUBSCRIPTION.applied(policies) if flag(applied) else None)


@routes.post(
    _RATE_PATH, statuses={400: "Not a rate"}, body=body_doc(DISPATCH_RATE.schema, _RATE_EXAMPLE)
)
async def set_subscription_rate(
    own: Own, subscription: SubscriptionName, body: LenientBody
) -> None:
    """Set: messages and bytes that one subscription dispatches in a period."""
    await own.policies()
    rate = None
    if body is not None:
        rate = {"dispatchRate": DISPATCH_RATE.parse(body, "dispatchRate")}
    await own.change(
        lambda document: change_inner(document, own.scope, _SUBSCRIPTIONS, subscription, rate)
    )


@routes.delete(_RATE_PATH, "Unset: messages and bytes that one subscription dispatches in a period")
async def remove_subscription_rate(own: Own, subscription: SubscriptionName) -> None:
    await set_subscription_rate(own, subscription, None)


# --- replication: to this cluster and no other

_REPLICATION = "replication_clusters"


@routes.get("/replication", example=["standalone"], statuses={204: "It is not set"})
async def get_replication(own: Own, applied: Applied = None) -> Response:
    """Get: clusters that have the topic."""
    policies = await own.policies()
    if flag(applied):
        return JsonResponse(policies.value(_REPLICATION) or [])
    return answer(in_topic(policies.topic_document, own.scope, _REPLICATION))


@routes.post(
    "/replication",
    statuses={
        400: "Not an array of names",
        412: "Another cluster than this one, or a partition's name",
    },
    body=body_doc({"type": "array", "items": {"type": "string"}}, ["standalone"], required=True),
)
async def set_replication(service: Service, own: Own, body: LenientBody) -> None:
    """Set: clusters that have the topic; replication to others isn't available."""
    await own.policies()
    clusters = cluster_names(body)
    if service.cluster not in clusters:
        raise ApiError(
            412,
            "Can not remove local cluster from the local topic-level replication clusters policy",
        )
    require_local(clusters, service.cluster)
    await own.change(lambda old: change_topic(old, own.scope, _REPLICATION, clusters))


@routes.delete("/replication", "Unset: clusters that have the topic")
async def remove_replication(own: Own) -> None:
    await own.policies()
    await own.change(lambda old: change_topic(old, own.scope, _REPLICATION, None))
