"""Subscriptions of a topic: list, create, delete, skip, reset (http-api 2.4)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict

from broker.errors import AlreadyExistsError, SubscriptionNotFoundError
from broker.http.dependencies import (
    Authoritative,
    Service,
    SubscriptionName,
    Topic,
    body_doc,
    flag,
    json_body,
)
from broker.http.errors import ApiError
from broker.http.responses import JsonResponse, no_content
from broker.http.routes.topics import TOPIC, loaded
from broker.protocol.topic_name import TopicName
from broker.service.broker_service import BrokerService
from broker.service.persistent_topic import PersistentTopic
from broker.service.subscription import Subscription
from broker.service.topic import Topic as LoadedTopic
from managed_ledger.position import EARLIEST, LATEST, Position

__all__ = ["router"]

router = APIRouter(tags=["subscriptions"])

_SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
_Text = str | None
_INT64_MAX = 2**63 - 1


class ResetCursorData(BaseModel):
    """A message id; both ids -1: the earliest, both 2^63-1: the latest."""

    model_config = ConfigDict(extra="ignore")

    ledgerId: int = _INT64_MAX
    entryId: int = _INT64_MAX
    partitionIndex: int = -1
    isExcluded: bool = False
    batchIndex: int = -1
    properties: dict[str, str] | None = None


_ID_DOC = body_doc(
    ResetCursorData, {"ledgerId": 12, "entryId": 4, "partitionIndex": -1, "isExcluded": False}
)
ResetBody = Annotated[ResetCursorData | None, Depends(json_body(ResetCursorData))]


async def _parts(service: BrokerService, name: TopicName) -> list[LoadedTopic]:
    """The loaded topic, or the existing partitions of a partitioned one.

    Raises:
        ApiError: 404.
    """
    count = await service.partitions(name)
    if count is None:
        return [await loaded(service, name)]
    found = []
    for index in range(count):
        part = name.partition(index)
        if await service.topic_exists(part):
            found.append(await loaded(service, part))
    return found


def _find(topic: LoadedTopic, subscription: str) -> Subscription:
    found = topic.subscriptions.get(subscription)
    if found is None:
        raise ApiError(404, f"Subscription {subscription} not found for topic {topic.name}")
    return found


async def _find_all(
    service: BrokerService, name: TopicName, subscription: str
) -> list[Subscription]:
    """The subscription on every partition that has it; 404 when none has."""
    parts = await _parts(service, name)
    found = [
        part.subscriptions[subscription] for part in parts if subscription in part.subscriptions
    ]
    if not found:
        raise ApiError(404, f"Subscription {subscription} not found for topic {name}")
    return found


@router.get(
    TOPIC + "/subscriptions",
    summary="Names of the subscriptions",
    responses={200: {"content": {"application/json": {"example": ["billing"]}}}},
)
async def list_subscriptions(
    service: Service, topic: Topic, authoritative: Authoritative = None
) -> Response:
    names: dict[str, None] = {}
    for part in await _parts(service, topic):
        names |= dict.fromkeys(part.subscriptions)
    return JsonResponse(list(names))


@router.put(
    _SUBSCRIPTION,
    status_code=204,
    summary="Create a subscription, by default at the end",
    openapi_extra=_ID_DOC,
)
async def create(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: ResetBody,
    replicated: _Text = None,
    authoritative: Authoritative = None,
) -> Response:
    if not topic.is_persistent:
        raise ApiError(
            400, "Create subscription on non-persistent topic can only be done through client"
        )
    if not subscription:
        raise ApiError(412, "Subscription name is not valid")
    start = _start_position(body)
    properties = body.properties if body is not None else None
    count = await service.partitions(topic)
    names = [topic.partition(index) for index in range(count)] if count else [topic]
    conflicts = 0
    for name in names:
        found = await service.get_topic(name, create=True)
        try:
            await found.create_subscription(subscription, start, properties)
        except AlreadyExistsError:
            conflicts += 1
    if conflicts == len(names):  # http-api trap 17: only when every partition conflicts
        raise ApiError(409, "Subscription already exists for topic")
    return no_content()


def _start_position(body: ResetCursorData | None) -> Position:
    """The first position to be delivered."""
    if body is None:
        return LATEST
    if (body.ledgerId, body.entryId) == EARLIEST:
        return EARLIEST
    if body.ledgerId >= _INT64_MAX:
        return LATEST
    return (body.ledgerId, body.entryId + (1 if body.isExcluded else 0))


@router.delete(_SUBSCRIPTION, status_code=204, summary="Delete a subscription")
async def delete(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    force: Annotated[_Text, Query(description="Also with connected consumers")] = None,
    authoritative: Authoritative = None,
) -> Response:
    missing = True
    for part in await _parts(service, topic):
        try:
            await part.delete_subscription(subscription, force=flag(force))
            missing = False
        except SubscriptionNotFoundError:
            continue
    if missing:
        raise ApiError(404, f"Subscription {subscription} not found for topic {topic}")
    return no_content()


@router.post(_SUBSCRIPTION + "/skip_all", status_code=204, summary="Acknowledge the whole backlog")
async def skip_all(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    authoritative: Authoritative = None,
) -> Response:
    for found in await _find_all(service, topic, subscription):
        await found.reset(LATEST)
    return no_content()


@router.post(_SUBSCRIPTION + "/skip/{count}", status_code=204, summary="Skip that many messages")
async def skip(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    count: int,
    authoritative: Authoritative = None,
) -> Response:
    if await service.partitions(topic) is not None:
        raise ApiError(405, "Skip messages on a partitioned topic is not allowed")
    part = await loaded(service, topic)
    found = _find(part, subscription)
    if count <= 0:
        raise ApiError(412, "The number of messages to skip must be positive")
    if not isinstance(part, PersistentTopic) or found.cursor is None:
        raise ApiError(405, "Skip messages on a non-persistent topic is not allowed")
    # The first unacknowledged entry counts as the first one skipped.
    start = found.cursor.first_unacked()
    target = part.ledger.position_after(part.ledger.previous_position(start), count + 1)
    await found.reset(target)
    return no_content()


@router.post(
    _SUBSCRIPTION + "/resetcursor/{timestamp}",
    status_code=204,
    summary="Continue at the first message published at that time (ms) or later",
)
async def reset_to_time(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    timestamp: int,
    authoritative: Authoritative = None,
) -> Response:
    for found in await _find_all(service, topic, subscription):
        await found.reset_to_time(timestamp)
    return no_content()


@router.post(
    _SUBSCRIPTION + "/resetcursor",
    status_code=204,
    summary="Continue at a message id",
    openapi_extra=_ID_DOC,
)
async def reset_to_id(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: ResetBody,
    authoritative: Authoritative = None,
) -> Response:
    if await service.partitions(topic) is not None:
        raise ApiError(405, "Reset-cursor at position is not allowed for partitioned-topic")
    found = _find(await loaded(service, topic), subscription)
    if body is None:
        raise ApiError(400, "A message id is expected in the body")
    position = _start_position(body)
    ack_set: list[int] = []
    if body.batchIndex > 0:
        ack_set = _remaining(body.batchIndex + (1 if body.isExcluded else 0))
        position = (body.ledgerId, body.entryId)
    await found.reset(position, ack_set)
    return no_content()


def _remaining(first_left: int) -> list[int]:
    """Words of a batch whose indexes below ``first_left`` are done."""
    full, bits = divmod(first_left, 64)
    words = [0] * full + [~((1 << bits) - 1) & 0xFFFFFFFFFFFFFFFF]
    return [word - 2**64 if word >= 2**63 else word for word in words]
