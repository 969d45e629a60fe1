"""Subscriptions of a topic: list, create, delete, skip, reset."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from magnetar.broker.errors import AlreadyExistsError, SubscriptionNotFoundError
from magnetar.broker.http.dependencies import (
    Authoritative,
    Service,
    SubscriptionName,
    Topic,
    flag,
    json_body,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.topic_access import (
    ID_DOC,
    NOT_FOUND,
    OF_PARTITIONED,
    SUBSCRIPTION,
    TOPIC,
    MessageIdBody,
    check_properties,
    find_subscription,
    loaded,
    no_subscription,
    persistent,
    require_namespace,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription import subscription_admin as subscription_admin
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

router = APIRouter(tags=["subscriptions"])

_Text = str | None
_INT64_MAX = 2**63 - 1
_ResetBody = Annotated[MessageIdBody | None, Depends(json_body(MessageIdBody))]
_Force = Annotated[_Text, Query(description="Also with connected consumers")]


@router.get(
    TOPIC + "/subscriptions",
    summary="Names of the subscriptions",
    responses={
        200: {"content": {"application/json": {"example": ["billing"]}}},
        **NOT_FOUND,
    },
)
async def list_subscriptions(
    service: Service, topic: Topic, spread: Spread, authoritative: Authoritative = None
) -> Response:
    async def one(name: TopicName) -> list[str]:
        return list((await loaded(service, name)).subscriptions)

    answers = (await spread.parts(topic, one)).without(404).check()
    return JsonResponse(list({name: None for names in answers.values for name in names}))


@router.put(
    SUBSCRIPTION,
    status_code=204,
    summary="Create a subscription, by default at the end",
    description="Creates the topic as well, where that is allowed.",
    openapi_extra=ID_DOC,
    responses={
        400: {"description": "A non-persistent topic"},
        **NOT_FOUND,
        409: {"description": "It exists, on every partition"},
        412: {"description": "Not a valid name"},
    },
)
async def create(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: _ResetBody,
    spread: Spread,
    replicated: Annotated[_Text, Query(description="`true`: stored and shown")] = None,
    authoritative: Authoritative = None,
) -> Response:
    if not topic.is_persistent:
        raise ApiError(
            400, "Create subscription on non-persistent topic can only be done through client"
        )
    await require_namespace(service, topic.namespace, "Namespace not found")
    if not subscription:
        raise ApiError(412, "Subscription name is not valid")
    start = _start_position(body)
    properties = check_properties(body.properties if body is not None else None)
    # Creates a partitioned topic where that is what automatic creation makes.
    count = await service.partitions_for_client(topic, create=True)

    async def one(name: TopicName) -> None:
        found = await service.get_topic(name, create=True)
        try:
            made = await found.create_subscription(subscription, start, properties)
            if flag(replicated):
                await made.set_replicated(True)
        except AlreadyExistsError as error:
            raise ApiError(409, "Subscription already exists for topic") from error

    answers = await spread.parts(topic, one, body=_body_of(body), count=count or None)
    # only when every partition conflicts
    if not answers.without(409).check().values:
        raise ApiError(409, "Subscription already exists for topic")
    return no_content()


def _body_of(body: MessageIdBody | None) -> dict[str, Any] | None:
    """As it came, for another broker."""
    return None if body is None else body.model_dump(exclude_none=True)


def _start_position(body: MessageIdBody | None) -> Position:
    """The first position to be delivered."""
    if body is None:
        return LATEST
    if body.position == EARLIEST:
        return EARLIEST
    if body.ledgerId >= _INT64_MAX:
        return LATEST
    return (body.ledgerId, body.entryId + (1 if body.isExcluded else 0))


@router.delete(
    SUBSCRIPTION,
    status_code=204,
    summary="Delete a subscription",
    description="Of a partitioned topic it is deleted wherever it is; 404 also says that some "
    "partition lacked it.",
    responses={**NOT_FOUND, 412: {"description": "Consumers are connected; `force` not set"}},
)
async def delete(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    spread: Spread,
    force: _Force = None,
    authoritative: Authoritative = None,
) -> Response:
    async def one(name: TopicName) -> None:
        part = await loaded(service, name)
        try:
            await part.delete_subscription(subscription, force=flag(force))
        except SubscriptionNotFoundError as error:
            raise no_subscription(subscription, name) from error

    answers = await spread.parts(topic, one)
    if len(answers.without(404).check().values) < len(answers):
        raise ApiError(404, "Subscription not found")
    return no_content()


@router.post(
    SUBSCRIPTION + "/skip_all",
    status_code=204,
    summary="Acknowledge the whole backlog",
    responses=OF_PARTITIONED,
)
async def skip_all(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    if not topic.is_persistent:
        raise ApiError(405, "Skip messages on a non-persistent topic is not allowed")

    async def one(name: TopicName) -> None:
        found = find_subscription(await loaded(service, name), subscription)
        if isinstance(found, PersistentSubscription):
            await subscription_admin.clear_backlog(found)

    (await spread.parts(topic, one)).found(no_subscription(subscription, topic))
    return no_content()


@router.post(
    SUBSCRIPTION + "/skip/{count}",
    status_code=204,
    summary="Acknowledge the oldest unacknowledged messages (batches count as one)",
    responses={**OF_PARTITIONED, 412: {"description": "Not a positive number"}},
)
async def skip(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    count: int,
    authoritative: Authoritative = None,
) -> Response:
    found = find_subscription(await persistent(service, topic, "Skip messages"), subscription)
    if count <= 0:
        raise ApiError(412, "The number of messages to skip must be positive")
    assert isinstance(found, PersistentSubscription)
    await subscription_admin.skip_messages(found, count)
    return no_content()


@router.post(
    SUBSCRIPTION + "/resetcursor/{timestamp}",
    status_code=204,
    summary="Continue at the first message published at that time (ms) or later",
    description="Connected consumers are disconnected; their clients come back by themselves. Of a "
    "partitioned topic every partition is reset that can be; the answer names one that couldn't.",
    responses=NOT_FOUND,
)
async def reset_to_time(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    timestamp: int,
    spread: Spread,
    authoritative: Authoritative = None,
) -> Response:
    async def one(name: TopicName) -> None:
        part = await loaded(service, name)
        await find_subscription(part, subscription).reset_to_time(timestamp)

    (await spread.parts(topic, one)).check()
    return no_content()


@router.post(
    SUBSCRIPTION + "/resetcursor",
    status_code=204,
    summary="Continue at a message id",
    openapi_extra=ID_DOC,
    responses={400: {"description": "No message id in the body"}, **OF_PARTITIONED},
)
async def reset_to_id(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: _ResetBody,
    authoritative: Authoritative = None,
) -> Response:
    if await service.partitions(topic) is not None:
        raise ApiError(405, "Reset-cursor at position is not allowed for partitioned-topic")
    found = find_subscription(await loaded(service, topic), subscription)
    if body is None:
        raise ApiError(400, "A message id is expected in the body")
    position = _start_position(body)
    ack_set: list[int] = []
    if body.batchIndex > 0:
        ack_set = _remaining(body.batchIndex + (1 if body.isExcluded else 0))
        position = body.position
    await found.reset(position, ack_set)
    return no_content()


def _remaining(first_left: int) -> list[int]:
    """Words of a batch whose indexes below ``first_left`` are done."""
    full, bits = divmod(first_left, 64)
    words = [0] * full + [~((1 << bits) - 1) & 0xFFFFFFFFFFFFFFFF]
    return [word - 2**64 if word >= 2**63 else word for word in words]
