"""Backlogs of subscriptions: expiry, analysis; and what is stored with one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response

from magnetar.broker.http.dependencies import (
    Authoritative,
    Service,
    SubscriptionName,
    Topic,
    body_doc,
    json_body,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.topic_access import (
    ID_DOC,
    NOT_FOUND,
    OF_PARTITIONED,
    PROPERTIES_DOC,
    SUBSCRIPTION,
    TOPIC,
    MessageIdBody,
    check_properties,
    each,
    find_subscription,
    loaded,
    no_subscription,
    persistent,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription import subscription_admin as subscription_admin
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.managed_ledger.position import format_position

router = APIRouter(tags=["subscriptions"])

_Seconds = Annotated[int, Path(ge=0, lt=2**31, description="Age in seconds", examples=[3600])]
_IdBody = Annotated[MessageIdBody | None, Depends(json_body(MessageIdBody))]
_NOTHING: dict[int | str, dict[str, Any]] = {
    **OF_PARTITIONED,
    409: {"description": "Nothing to expire"},
}


def _not_issued(subscription: PersistentSubscription) -> ApiError:
    """Pulsar's answer when there is nothing to expire, or an expiry is under way."""
    return ApiError(
        409,
        f"Expire message by timestamp not issued on topic {subscription.topic.name} for "
        f"subscription {subscription.name} due to ongoing message expiration not finished or "
        "subscription almost catch  up. If it's performed on a partitioned topic operation might "
        "succeeded on other partitions, please check stats of individual partition.",
    )


@router.post(
    SUBSCRIPTION + "/expireMessages/{seconds}",
    status_code=204,
    summary="Acknowledge messages older than that",
    responses=_NOTHING,
)
async def expire_by_time(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    seconds: _Seconds,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    if not topic.is_persistent:
        raise ApiError(405, "Expire messages on a non-persistent topic is not allowed")

    async def one(name: TopicName) -> None:
        await _expire([find_subscription(await loaded(service, name), subscription)], seconds)

    (await spread.parts(topic, one)).found(no_subscription(subscription, topic))
    return no_content()


async def _expire(found: list[Any], seconds: int) -> None:
    """Expire on every one of them, then complain of the first that had nothing to do."""
    stored = [each for each in found if isinstance(each, PersistentSubscription)]
    issued = await each(stored, lambda one: subscription_admin.expire_older(one, seconds))
    for one, was_issued in zip(stored, issued, strict=True):
        if not was_issued:
            raise _not_issued(one)


@router.post(
    SUBSCRIPTION + "/expireMessages",
    status_code=204,
    summary="Acknowledge messages up to and including a message id",
    openapi_extra=ID_DOC,
    responses={
        400: {"description": "No message id in the body"},
        412: {"description": "The message id is another partition's"},
        **_NOTHING,
    },
)
async def expire_by_id(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: _IdBody,
    authoritative: Authoritative = None,
) -> Response:
    found = await persistent(
        service,
        topic,
        "Expire messages",
        "Expire message at position is not supported for partitioned-topic",
    )
    one = find_subscription(found, subscription)
    if body is None:
        raise ApiError(400, "A message id is expected in the body")
    if body.partitionIndex != topic.partition_index:
        raise ApiError(
            412,
            "Invalid parameter for expire message by position, partition index of passed in "
            "message position doesn't match partition index for the topic",
        )
    assert isinstance(one, PersistentSubscription)
    if not await subscription_admin.expire_upto(one, body.position):
        raise ApiError(
            409,
            f"Expire message by position not issued on topic {topic} for subscription "
            f"{subscription} due to ongoing message expiration not finished or invalid message "
            "position provided.",
        )
    return no_content()


@router.post(
    TOPIC + "/all_subscription/expireMessages/{seconds}",
    status_code=204,
    summary="Acknowledge messages older than that for every subscription",
    responses=_NOTHING,
)
async def expire_everywhere(
    service: Service,
    topic: Topic,
    seconds: _Seconds,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    if not topic.is_persistent:
        raise ApiError(
            405, "Expire messages for all subscriptions on a non-persistent topic is not allowed"
        )

    async def one(name: TopicName) -> None:
        await _expire(list((await loaded(service, name)).subscriptions.values()), seconds)

    (await spread.parts(topic, one)).without(404).check()
    return no_content()


@router.get(
    SUBSCRIPTION + "/properties",
    summary="Properties of a subscription, of all partitions together",
    responses={
        200: {"content": {"application/json": {"example": {"team": "billing"}}}},
        **NOT_FOUND,
    },
)
async def get_properties(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    async def one(name: TopicName) -> dict[str, str]:
        return find_subscription(await loaded(service, name), subscription).properties

    answers = (await spread.parts(topic, one)).found(no_subscription(subscription, topic))
    together: dict[str, str] = {}
    for properties in answers.values:
        together |= properties
    return JsonResponse(together)


@router.put(
    SUBSCRIPTION + "/properties",
    status_code=204,
    summary="Replace the properties of a subscription",
    openapi_extra=PROPERTIES_DOC,
    responses={**NOT_FOUND, 412: {"description": "Too large"}},
)
async def put_properties(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: Annotated[dict[str, str] | None, Depends(json_body(dict[str, str]))],
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    properties = check_properties(body)

    async def one(name: TopicName) -> None:
        found = find_subscription(await loaded(service, name), subscription)
        if isinstance(found, PersistentSubscription):
            await subscription_admin.set_properties(found, properties)
        else:
            found.properties = dict(properties)

    answers = await spread.parts(topic, one, body=properties)
    answers.found(no_subscription(subscription, topic))
    return no_content()


@router.post(
    SUBSCRIPTION + "/analyzeBacklog",
    summary="Read and count the unacknowledged messages, from a message id on if one is given",
    description="Ends early, with `aborted`, at `subscriptionBacklogScanMaxEntries` entries or "
    "after `subscriptionBacklogScanMaxTimeMs`.",
    openapi_extra=ID_DOC,
    responses={
        200: {
            "content": {
                "application/json": {
                    "example": {
                        "entries": 2,
                        "messages": 20,
                        "markerMessages": 0,
                        "aborted": False,
                        "firstMessageId": "12:4",
                        "lastMessageId": "12:5",
                    }
                }
            }
        },
        **OF_PARTITIONED,
    },
)
async def analyze_backlog(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: _IdBody,
    authoritative: Authoritative = None,
) -> Response:
    if await service.partitions(topic) is not None:
        raise ApiError(
            405,
            "Analyze backlog on a partitioned topic is not allowed, please try do it on specific "
            "topic partition",
        )
    found = find_subscription(await loaded(service, topic), subscription)
    if not isinstance(found, PersistentSubscription):
        raise ApiError(405, "Analyze backlog on a non-persistent topic is not allowed")
    config = service.config
    metrics = await subscription_admin.analyze_backlog(
        found,
        None if body is None else body.position,
        entries_max=config.subscription_backlog_scan_max_entries,
        time_max_ms=config.subscription_backlog_scan_max_time_ms,
    )
    answer: dict[str, Any] = {
        "entries": metrics.entries,
        "messages": metrics.messages,
        "markerMessages": metrics.markers,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": metrics.entries - metrics.markers,
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


@router.get(
    SUBSCRIPTION + "/replicatedSubscriptionStatus",
    summary="Whether the subscription is replicated, by topic or partition",
    responses={
        200: {
            "content": {
                "application/json": {"example": {"persistent://public/default/orders": False}}
            }
        },
        **OF_PARTITIONED,
    },
)
async def replicated_status(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    if not topic.is_persistent:
        raise ApiError(405, "Cannot get replicated subscriptions on non-persistent topics")

    async def one(name: TopicName) -> dict[str, bool]:
        found = find_subscription(await loaded(service, name), subscription)
        return {str(name): found.replicated}

    together: dict[str, bool] = {}
    for status in (await spread.parts(topic, one)).check().values:
        together |= status
    return JsonResponse(together)


@router.post(
    SUBSCRIPTION + "/replicatedSubscriptionStatus",
    status_code=204,
    summary="Whether other clusters shall have it, too: stored and shown, nothing is copied yet",
    openapi_extra=body_doc({"type": "boolean"}, False, required=True),
    responses={
        400: {"description": "No boolean in the body"},
        412: {"description": "`true` while `enableReplicatedSubscriptions` is false"},
        **OF_PARTITIONED,
    },
)
async def set_replicated_status(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: Annotated[bool | None, Depends(json_body(bool))],
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    if body is None:
        raise ApiError(400, "The request entity cannot be empty.")
    if not topic.is_persistent:
        raise ApiError(
            405, "Cannot enable/disable replicated subscriptions on non-persistent topics"
        )

    if body and not service.config.enable_replicated_subscriptions:
        raise ApiError(412, "Replicated subscriptions are disabled by the broker")

    async def one(name: TopicName) -> None:
        found = find_subscription(await loaded(service, name), subscription)
        await found.set_replicated(body)

    answers = await spread.parts(topic, one, body=body)
    answers.found(ApiError(404, "Topic or subscription not found"))
    return no_content()
