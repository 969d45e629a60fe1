"""Why subscriptions deliver nothing now, and what became of a message."""

import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from typing import Annotated, Any, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.dispatch.explanation import Reason, publishable
from magnetar.broker.dispatch.never_delivered import with_dead_letters
from magnetar.broker.dispatch.worst_reason import (
    in_partition,
    worst_of_subscriptions,
    worst_publishing,
)
from magnetar.broker.http.dependencies import Service, SubscriptionName, Topic, names_of
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.rest_consume import parse_message_id_text
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.routing.scatter_gather import ScatterGather, Spread
from magnetar.broker.http.streamed_answers import long_json
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    SUBSCRIPTION,
    TOPIC,
    find_subscription,
    loaded,
    no_subscription,
)
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.message_explanation import (
    NO_MESSAGE,
    explain_message,
    explain_now,
)
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.topic import Topic as LoadedTopic
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import in_turns, run_in_turns

routes = Routes(
    tag="subscriptions", access=Access.CONSUME_401, mode=RoutingMode.TOPIC, statuses=NOT_FOUND
)

_EXAMPLE = {
    "reason": "noPermits",
    "message": "Consumer c1 has no permits: its client has asked for no more messages.",
    "next": "Delivery goes on when the client asks for more, which it does as the application "
    "takes messages: look at what the application waits for.",
    "consumer": "c1",
    "sinceTimestamp": 1_800_000_000_000,
    "availablePermits": 0,
    "unackedMessages": 1000,
}


_PUBLISHING = {
    "reason": "publishRateLimited",
    "message": "The publish rate of the topic is used up for now: 1 producer waits.",
    "next": "Publishing goes on in 120 ms at the earliest, in turn with others under the same "
    "limit; or raise the rate.",
    "scope": "topic",
    "waitingProducers": 1,
}

_AS_PRINTED: Final = re.compile(
    r"[(]?([0-9]{1,19})[:,]([0-9]{1,19})(?:[:,](-1|[0-9]{1,10})(?:[:,](-1|[0-9]{1,9}))?)?[)]?"
)
"""Also ``(ledger,entry,partition,batch index)``, of clients in C++, Python, Node.js; -1: none."""
_Message: TypeAlias = tuple[Position, int]
"""Where it is, and its index in a batch; -1: the whole entry."""
_STATUSES: Statuses = {
    400: "Not a message id, or no names",
    405: "A message id of a non-persistent topic",
    412: "The message id is another partition's, or names none of a partitioned topic",
}
_MessageId = Annotated[
    str | None,
    Query(
        description="`ledger:entry`, with `:partition`, with `:batch index` behind it",
        examples=["12:4"],
    ),
]


@routes.get(TOPIC + "/explain", example={"billing": _EXAMPLE}, statuses=_STATUSES)
async def explain_all(
    request: Request,
    service: Service,
    topic: Topic,
    spread: Spread,
    messageId: _MessageId = None,
    subscriptions: Annotated[
        str | None, Query(description="Only of these: a JSON array of names")
    ] = None,
) -> Response:
    """Why each subscription delivers nothing now, or what became of a message in each.

    By the name of the subscription; else as for a single subscription.
    """
    names = names_of(subscriptions, "subscriptions")

    async def one(name: TopicName, message: _Message | None) -> dict[str, Any]:
        found = await loaded(service, name)
        if message is None:
            publishing = await run_in_turns(found.explain_publishing())
            answer = dict[str, Any]()
            async for each in in_turns(_subscriptions(found, names)):
                answer[each.name] = (await explain_now(each, publishing)).as_json()
            return answer
        asked = in_turns(_subscriptions(found, names))
        return {each.name: await _of_message(each, message) async for each in asked}

    return await _answer(request, service, topic, spread, messageId, one)


@routes.get(TOPIC + "/explain/publishing", access=Access.LOOKUP_401, example=_PUBLISHING)
async def explain_publishing(
    request: Request, service: Service, topic: Topic, spread: Spread
) -> Response:
    """Why nothing is published now, or that nothing keeps producers from it.

    Of a partitioned topic: by the name of the partition.
    """

    async def one(name: TopicName, message: _Message | None) -> dict[str, Any]:
        why = await run_in_turns((await loaded(service, name)).explain_publishing())
        return (why or publishable()).as_json()

    return await _answer(request, service, topic, spread, None, one)


@routes.get(
    TOPIC + "/explain/worst",
    example={"subscriptions": {"billing": _EXAMPLE}, "publishing": _PUBLISHING},
)
async def explain_worst(
    request: Request, service: Service, topic: Topic, spread: Spread
) -> Response:
    """Why each subscription delivers nothing now, and why nothing is published.

    Of a partitioned topic: of the partition that is worst off, which `message` names; `publishing`
    is null if no partition was used.
    """

    async def one(name: TopicName) -> dict[str, Any]:
        found = await loaded(service, name)
        publishing = await run_in_turns(found.explain_publishing())
        told = dict[str, Any]()
        async for each in in_turns(_subscriptions(found, None)):
            told[each.name] = (await explain_now(each, publishing)).as_json()
        return {"subscriptions": told, "publishing": (publishing or publishable()).as_json()}

    answers = await spread.parts(topic, one)
    if await service.directory.partitions(topic) is None:
        return await long_json(request, answers.check().by_name()[str(topic)])
    parts = answers.without(404).check().by_name()
    subscriptions = {name: each["subscriptions"] for name, each in parts.items()}
    answer: dict[str, Any] = {
        "subscriptions": await run_in_turns(worst_of_subscriptions(subscriptions)),
        "publishing": None,
    }
    if parts:
        of_producers = {name: each["publishing"] for name, each in parts.items()}
        partition, worst = await run_in_turns(worst_publishing(of_producers))
        answer["publishing"] = {**worst, "message": in_partition(partition, worst)}
    return await long_json(request, answer)


def _subscriptions(topic: LoadedTopic, names: Sequence[str] | None) -> list[Subscription]:
    """As a list, since they may come and go meanwhile; ``names``: only these, as far as there."""
    found = topic.subscriptions
    if names is None:
        return list(found.values())
    return [found[name] for name in names if name in found]


@routes.get(SUBSCRIPTION + "/explain", example=_EXAMPLE, statuses=_STATUSES)
async def explain(
    request: Request,
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    spread: Spread,
    messageId: _MessageId = None,
) -> Response:
    """Why a subscription delivers nothing now, or what became of a message in it.

    `reason` is a stable name, `message` a sentence, `next` what happens next or can be done. Of a
    partitioned topic: by the name of the partition; with a message id, which names its partition,
    only of that one.
    """

    async def one(name: TopicName, message: _Message | None) -> dict[str, Any]:
        found = _find(await loaded(service, name), subscription)
        if message is None:
            publishing = await run_in_turns(found.topic.explain_publishing())
            return (await explain_now(found, publishing)).as_json()
        return await _of_message(found, message)

    return await _answer(
        request, service, topic, spread, messageId, one, no_subscription(subscription, topic)
    )


def _find(topic: LoadedTopic, name: str) -> Subscription:
    """Raises ApiError 404: it isn't there, perhaps because its consumer was refused."""
    try:
        return find_subscription(topic, name)
    except ApiError as error:
        if (refused := topic.refused_subscription) is None or refused[0] != name:
            raise
        told = f"{error}. {refused[1].sentence(topic.service.clock())}"
        raise ApiError(404, told) from error


async def _of_message(subscription: Subscription, message: _Message) -> dict[str, Any]:
    assert isinstance(subscription, PersistentSubscription)
    found = await explain_message(subscription, *message)
    if found.reason is Reason.ACKNOWLEDGED:
        found = with_dead_letters(found, await _letter_topics(subscription))
    return found.as_json()


async def _letter_topics(subscription: Subscription) -> list[str]:
    """Those that clients' dead letter policies name, if nothing else is told, and that exist."""
    name, directory = subscription.topic.name, subscription.topic.service.directory
    found = list[str]()
    for base, suffix in product(dict.fromkeys((name.base, name)), ("RETRY", "DLQ")):
        try:
            letters = TopicName.parse(f"{base}-{subscription.name}-{suffix}")
        except InvalidTopicNameError:  # as of a subscription with a slash in its name
            return []
        if await directory.exists(letters) or await directory.partitions(letters) is not None:
            found.append(str(letters))
    return found


async def _answer(
    request: Request,
    service: BrokerService,
    topic: TopicName,
    spread: ScatterGather,
    message_id: str | None,
    one: Callable[[TopicName, _Message | None], Awaitable[dict[str, Any]]],
    missing: ApiError | None = None,
) -> Response:
    """What ``one`` says of the topic, of each partition, or of the partition of the message.

    Raises:
        ApiError: as the routes declare; ``missing`` when no partition has anything to say.
    """
    count = await service.directory.partitions(topic)
    if message_id is not None:
        part, message = _parse_id(message_id, topic, count)
        if count is None:
            return await long_json(request, await one(part, message))
        return await long_json(
            request, await spread.of_partition(part, lambda name: one(name, message))
        )
    answers = await spread.parts(topic, lambda name: one(name, None))
    if count is None:
        return await long_json(request, answers.check().by_name()[str(topic)])
    by_name = answers.without(404).check().by_name()
    if missing is not None and not by_name:
        raise missing
    return await long_json(request, by_name)


def _parse_id(text: str, topic: TopicName, count: int | None) -> tuple[TopicName, _Message]:
    """The topic, or its partition, and which message.

    Args:
        count: of the topic's partitions; None: it has none.
    Raises:
        ApiError: 400, 405, 412.
    """
    if text.split(":")[:2] == ["-1", "-1"]:  # what a producer is told of a duplicate
        return topic if count is None else topic.partition(0), (NO_MESSAGE, -1)
    if (match := _AS_PRINTED.fullmatch(text)) is None:
        raise ApiError(
            400,
            f"{text!r:.80} is not a message id: ledger:entry, ledger:entry:partition or "
            "ledger:entry:partition:batch index",
        )
    ledger, entry, part, index = match.groups(default="-1")
    partition, ledger_id, entry_id, batch_index, _ = parse_message_id_text(
        f"{ledger}:{entry}:{part}" + ("" if index == "-1" else f":{index}")
    )
    message = ((ledger_id, entry_id), batch_index)
    if not topic.is_persistent:
        raise ApiError(405, "Messages of a non-persistent topic have no id")
    if count is None:
        if partition not in (-1, topic.partition_index):
            raise ApiError(412, f"The message id is of partition {partition}, not of {topic}")
        return topic, message
    if not 0 <= partition < count:
        raise ApiError(412, f"A message id with one of {count} partitions is expected")
    return topic.partition(partition), message
