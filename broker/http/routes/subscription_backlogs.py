"""Backlogs of subscriptions: expiry, analysis; and what is stored with one."""

from typing import Annotated, Any

from starlette.responses import Response

from magnetar.broker.http.dependencies import Body, Service, Topic
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Path
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.routing.scatter_gather import Spread, each
from magnetar.broker.http.topics.named_subscription import OneSubscription
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    OF_PARTITIONED,
    SUBSCRIPTION,
    TOPIC,
    IdBody,
    PropertiesBody,
    check_properties,
    loaded,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription import subscription_admin as subscription_admin
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.managed_ledger.position import format_position

routes = Routes(
    tag="subscriptions", access=Access.CONSUME_401, mode=RoutingMode.TOPIC, statuses=NOT_FOUND
)

_Seconds = Annotated[int, Path(ge=0, lt=2**31, description="Age in seconds", examples=[3600])]
_NOTHING: Statuses = {**OF_PARTITIONED, 409: "Nothing to expire"}


def _not_issued(subscription: PersistentSubscription) -> ApiError:
    """Pulsar's answer when there is nothing to expire, or an expiry is under way."""
    return ApiError(
        409,
        f"Expire message by timestamp not issued on topic {subscription.topic.name} for "
        f"subscription {subscription.name} due to ongoing message expiration not finished or "
        "subscription almost catch  up. If it's performed on a partitioned topic operation might "
        "succeeded on other partitions, please check stats of individual partition.",
    )


@routes.post(SUBSCRIPTION + "/expireMessages/{seconds}", statuses=_NOTHING)
async def expire_by_time(of: OneSubscription, seconds: _Seconds) -> None:
    """Acknowledge messages older than that."""
    of.require_persistent("Expire messages on a non-persistent topic is not allowed")
    await of.found_parts(lambda one: _expire([one], seconds))


async def _expire(found: list[Subscription], seconds: int) -> None:
    """Expire on every one of them, then complain of the first that had nothing to do."""
    stored = [each for each in found if isinstance(each, PersistentSubscription)]
    issued = await each(stored, lambda one: subscription_admin.expire_older(one, seconds))
    for one, was_issued in zip(stored, issued, strict=True):
        if not was_issued:
            raise _not_issued(one)


@routes.post(
    SUBSCRIPTION + "/expireMessages",
    statuses={
        400: "No message id in the body",
        412: "The message id is another partition's",
        **_NOTHING,
    },
)
async def expire_by_id(of: OneSubscription, body: IdBody) -> None:
    """Acknowledge messages up to and including a message id."""
    one = await of.stored(
        "Expire messages", "Expire message at position is not supported for partitioned-topic"
    )
    if body is None:
        raise ApiError(400, "A message id is expected in the body")
    if body.partitionIndex != of.topic.partition_index:
        raise ApiError(
            412,
            "Invalid parameter for expire message by position, partition index of passed in "
            "message position doesn't match partition index for the topic",
        )
    if not await subscription_admin.expire_upto(one, body.position):
        raise ApiError(
            409,
            f"Expire message by position not issued on topic {of.topic} for subscription "
            f"{of.name} due to ongoing message expiration not finished or invalid message "
            "position provided.",
        )


@routes.post(
    TOPIC + "/all_subscription/expireMessages/{seconds}",
    access=Access.CONSUME_ALL_401,
    statuses=_NOTHING,
)
async def expire_everywhere(
    service: Service, topic: Topic, seconds: _Seconds, spread: Spread
) -> None:
    """Acknowledge messages older than that for every subscription."""
    if not topic.is_persistent:
        raise ApiError(
            405, "Expire messages for all subscriptions on a non-persistent topic is not allowed"
        )

    async def one(name: TopicName) -> None:
        await _expire(list((await loaded(service, name)).subscriptions.values()), seconds)

    (await spread.parts(topic, one)).without(404).check()


@routes.get(SUBSCRIPTION + "/properties", example={"team": "billing"})
async def get_properties(of: OneSubscription) -> Response:
    """Properties of a subscription, of all partitions together."""

    async def read(one: Subscription) -> dict[str, str]:
        return one.properties

    answers = await of.found_parts(read)
    return JsonResponse({name: text for part in answers for name, text in part.items()})


@routes.put(SUBSCRIPTION + "/properties", statuses={412: "Too large"})
async def put_properties(of: OneSubscription, body: PropertiesBody) -> None:
    """Replace the properties of a subscription."""
    properties = check_properties(body)

    async def put(one: Subscription) -> None:
        if isinstance(one, PersistentSubscription):
            await subscription_admin.set_properties(one, properties)
        else:
            one.properties = dict(properties)

    await of.found_parts(put, body=properties)


@routes.post(
    SUBSCRIPTION + "/analyzeBacklog",
    example={
        "entries": 2,
        "messages": 20,
        "markerMessages": 0,
        "aborted": False,
        "firstMessageId": "12:4",
        "lastMessageId": "12:5",
    },
    statuses=OF_PARTITIONED,
)
async def analyze_backlog(of: OneSubscription, body: IdBody) -> Response:
    """Read and count the unacknowledged messages, from a message id on if one is given.

    Ends early, with `aborted`, at `subscriptionBacklogScanMaxEntries` entries or after
    `subscriptionBacklogScanMaxTimeMs`.
    """
    found = await of.single(
        "Analyze backlog on a partitioned topic is not allowed, please try do it on specific "
        "topic partition"
    )
    if not isinstance(found, PersistentSubscription):
        raise ApiError(405, "Analyze backlog on a non-persistent topic is not allowed")
    config = of.service.config
    metrics = await subscription_admin.analyze_backlog(
        found,
        None if body is None else body.position,
        entries_max=config.subscription_backlog_scan_max_entries,
        time_max_ms=config.subscription_backlog_scan_max_time_ms,
    )
    entries = metrics.entries - metrics.markers
    answer: dict[str, Any] = {
        "entries": entries,
        "messages": metrics.messages,
        "markerMessages": metrics.markers,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": metrics.messages,
        "filterRescheduledMessages": 0,
        "aborted": metrics.aborted,
    }
    if metrics.first is not None and metrics.last is not None:
        answer["firstMessageId"] = format_position(metrics.first)
        answer["lastMessageId"] = format_position(metrics.last)
    return JsonResponse(answer)


@routes.get(
    SUBSCRIPTION + "/replicatedSubscriptionStatus",
    example={"persistent://public/default/orders": False},
    statuses=OF_PARTITIONED,
)
async def replicated_status(of: OneSubscription) -> Response:
    """Whether the subscription is replicated, by topic or partition."""
    of.require_persistent("Cannot get replicated subscriptions on non-persistent topics")

    async def read(one: Subscription) -> dict[str, bool]:
        return {str(one.topic.name): one.replicated}

    answers = (await of.parts(read)).check().values
    return JsonResponse({name: status for part in answers for name, status in part.items()})


@routes.post(
    SUBSCRIPTION + "/replicatedSubscriptionStatus",
    statuses={
        400: "No boolean in the body",
        412: "`true` while `enableReplicatedSubscriptions` is false",
        **OF_PARTITIONED,
    },
)
async def set_replicated_status(
    of: OneSubscription,
    body: Annotated[bool, Body(bool, False, missing="The request entity cannot be empty.")],
) -> None:
    """Whether other clusters shall have it, too: stored and shown, nothing is copied yet."""
    of.require_persistent("Cannot enable/disable replicated subscriptions on non-persistent topics")
    if body and not of.service.config.enable_replicated_subscriptions:
        raise ApiError(412, "Replicated subscriptions are disabled by the broker")
    answers = await of.parts(lambda one: one.set_replicated(body), body=body)
    answers.found(ApiError(404, "Topic or subscription not found"))
