"""Subscriptions of a topic: list, create, delete, skip, reset."""

from typing import Annotated

from starlette.responses import Response

from magnetar.broker.errors import AlreadyExistsError, SubscriptionNotFoundError
from magnetar.broker.http.dependencies import Service, SubscriptionName, Topic, flag
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.named_subscription import OneSubscription
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    OF_PARTITIONED,
    SUBSCRIPTION,
    TOPIC,
    IdBody,
    MessageIdBody,
    check_properties,
    loaded,
    no_subscription,
    require_namespace,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription import subscription_admin as subscription_admin
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

routes = Routes(
    tag="subscriptions", access=Access.CONSUME_401, mode=RoutingMode.TOPIC, statuses=NOT_FOUND
)

_Text = str | None
_INT64_MAX = 2**63 - 1
_Force = Annotated[_Text, Query(description="Also with connected consumers")]


@routes.get(TOPIC + "/subscriptions", "Names of the subscriptions", example=["billing"])
async def list_subscriptions(service: Service, topic: Topic, spread: Spread) -> Response:
    async def one(name: TopicName) -> list[str]:
        return list((await loaded(service, name)).subscriptions)

    answers = (await spread.parts(topic, one)).without(404).check()
    return JsonResponse(list({name: None for names in answers.values for name in names}))


@routes.put(
    SUBSCRIPTION,
    statuses={
        400: "A non-persistent topic",
        409: "It exists, on every partition",
        412: "Not a valid name",
    },
)
async def create(
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    body: IdBody,
    spread: Spread,
    replicated: Annotated[_Text, Query(description="`true`: stored and shown")] = None,
) -> None:
    """Create a subscription, by default at the end.

    Creates the topic as well, where that is allowed.
    """
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
    count = await service.directory.partitions_for_client(topic, create=True)

    async def one(name: TopicName) -> None:
        found = await service.loader.load(name, create=True)
        with answer_for(AlreadyExistsError, 409, "Subscription already exists for topic"):
            made = await found.create_subscription(subscription, start, properties)
            if flag(replicated):
                await made.set_replicated(True)

    # As it came, for other brokers.
    given = None if body is None else body.model_dump(exclude_none=True)
    among = range(count) if count else None
    answers = await spread.parts(topic, one, body=given, among=among)
    # Only when every partition conflicts
    if not answers.without(409).check().values:
        raise ApiError(409, "Subscription already exists for topic")


def _start_position(body: MessageIdBody | None) -> Position:
    """The first position to be delivered."""
    if body is None:
        return LATEST
    if body.position == EARLIEST:
        return EARLIEST
    if body.ledgerId >= _INT64_MAX:
        return LATEST
    return (body.ledgerId, body.entryId + (1 if body.excluded else 0))


@routes.delete(SUBSCRIPTION, statuses={412: "Consumers are connected; `force` not set"})
async def delete(of: OneSubscription, force: _Force = None) -> None:
    """Delete a subscription.

    Of a partitioned topic it is deleted wherever it is; 404 also says that some partition lacked
    it.
    """

    async def forget(one: Subscription) -> None:
        try:
            await one.topic.delete_subscription(of.name, force=flag(force))
        except SubscriptionNotFoundError as error:
            raise no_subscription(of.name, one.topic.name) from error

    answers = await of.parts(forget)
    if len(answers.without(404).check().values) < len(answers):
        raise ApiError(404, "Subscription not found")


@routes.post(SUBSCRIPTION + "/skip_all", "Acknowledge the whole backlog", statuses=OF_PARTITIONED)
async def skip_all(of: OneSubscription) -> None:
    of.require_persistent("Skip messages on a non-persistent topic is not allowed")

    async def clear(one: Subscription) -> None:
        if isinstance(one, PersistentSubscription):
            await subscription_admin.clear_backlog(one)

    await of.found_parts(clear)


@routes.post(
    SUBSCRIPTION + "/skip/{count}", statuses={**OF_PARTITIONED, 412: "Not a positive number"}
)
async def skip(of: OneSubscription, count: int) -> None:
    """Acknowledge the oldest unacknowledged messages (batches count as one)."""
    found = await of.stored("Skip messages")
    if count <= 0:
        raise ApiError(412, "The number of messages to skip must be positive")
    await subscription_admin.skip_messages(found, count)


@routes.post(SUBSCRIPTION + "/resetcursor/{timestamp}", statuses=NOT_FOUND)
async def reset_to_time(of: OneSubscription, timestamp: int) -> None:
    """Continue at the first message published at that time (ms) or later.

    Connected consumers are disconnected; their clients come back by themselves. Of a partitioned
    topic every partition is reset that can be; the answer names one that couldn't.
    """
    (await of.parts(lambda one: one.reset_to_time(timestamp))).check()


@routes.post(
    SUBSCRIPTION + "/resetcursor", statuses={400: "No message id in the body", **OF_PARTITIONED}
)
async def reset_to_id(of: OneSubscription, body: IdBody) -> None:
    """Continue at a message id."""
    found = await of.single("Reset-cursor at position is not allowed for partitioned-topic")
    if body is None:
        raise ApiError(400, "A message id is expected in the body")
    position = _start_position(body)
    is_index = body.batchIndex >= 0 and position not in (EARLIEST, LATEST)
    if is_index and isinstance(found, PersistentSubscription):
        await subscription_admin.reset_into_batch(
            found, body.position, body.batchIndex, excluded=body.excluded
        )
    else:
        await found.reset(position)
