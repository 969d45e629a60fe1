"""Terminate, truncate, trim, offload; and what this broker doesn't have."""

from typing import Annotated, Any, NoReturn

from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerCall, topic_path
from magnetar.broker.http.dependencies import Body, Service, Topic
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    OF_PARTITIONED,
    TOPIC,
    IdBody,
    message_id,
    persistent,
    require_existing,
    require_namespace,
    require_persistent_name,
    stored_topic,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.offload.errors import OffloadBusyError, OffloadError

routes = Routes(
    TOPIC, tag="topics", access=Access.ADMIN_401, mode=RoutingMode.TOPIC, statuses=NOT_FOUND
)

_ABSENT: Statuses = {501: "This broker can't do it"}


@routes.post(
    "/terminate",
    example={"ledgerId": 12, "entryId": 4, "partitionIndex": -1},
    statuses={**OF_PARTITIONED, 406: "Not a persistent topic"},
)
async def terminate(service: Service, topic: Topic) -> Response:
    """Take no more messages, for good."""
    require_persistent_name(topic)
    found = await persistent(
        service, topic, "Termination", "Termination of a partitioned topic is not allowed"
    )
    return JsonResponse(message_id(await found.terminate(), topic))


@routes.post(
    "/terminate/partitions",
    mode=RoutingMode.LOCAL,
    authoritative=True,
    example={"0": {"ledgerId": 12, "entryId": 4, "partitionIndex": 0}},
    statuses={
        404: "No such namespace",
        405: "Not a partitioned topic",
        406: "Not a persistent topic",
    },
)
async def terminate_partitions(service: Service, topic: Topic, spread: Spread) -> Response:
    """Terminate every partition."""
    await require_namespace(service, topic.namespace, "Namespace not found")
    count = await service.directory.partitions(topic)
    if count is None:
        raise ApiError(
            405,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
            "please use terminate commands",
        )
    require_persistent_name(topic)

    async def one(name: TopicName) -> dict[str, int]:
        return message_id(await (await stored_topic(service, name)).terminate(), name)

    answers = await spread.parts(
        topic,
        one,
        among=range(count),
        call=lambda part: BrokerCall("POST", topic_path(part, "/terminate")),
    )
    ids = answers.check().values
    return JsonResponse({str(index): answer for index, answer in enumerate(ids)})


@routes.delete("/truncate", statuses={412: "A non-persistent topic"})
async def truncate(service: Service, topic: Topic, spread: Spread) -> None:
    """Acknowledge everything for every subscription and delete what is stored."""
    if not topic.is_persistent:
        raise ApiError(412, "unsupport truncate")

    async def one(name: TopicName) -> None:
        await (await stored_topic(service, name)).truncate()

    (await spread.parts(topic, one)).without(404).check()


@routes.post("/trim", statuses=OF_PARTITIONED)
async def trim(service: Service, topic: Topic, spread: Spread) -> None:
    """Delete now what no subscription and no retention needs."""
    if not topic.is_persistent:
        raise ApiError(405, "Trim on a non-persistent topic is not allowed")

    async def one(name: TopicName) -> None:
        await (await stored_topic(service, name)).trim()

    (await spread.parts(topic, one)).without(404).check()


_FIRST_KEPT: dict[str, Any] = {
    "ledgerId": 12,
    "entryId": 0,
    "partitionIndex": -1,
    "batchSize": 0,
    "batchIndex": -1,
}


def _refuse(what: str) -> NoReturn:
    raise ApiError(501, f"{what} is not supported by this broker")


async def _single(service: BrokerService, topic: TopicName, what: str) -> PersistentTopic:
    """Raises ApiError: 405 non-persistent, 404 missing or partitioned, as Pulsar answers."""
    if not topic.is_persistent:
        raise ApiError(405, f"{what} of a non-persistent topic is not available")
    return await stored_topic(service, topic)


@routes.put("/compaction", statuses={405: "A non-persistent topic", 409: "One is under way"})
async def compact(service: Service, topic: Topic, spread: Spread) -> None:
    """Begin a compaction: of each key the newest message stays for ``readCompacted``."""
    if not topic.is_persistent:
        raise ApiError(405, "Compaction on a non-persistent topic is not allowed")

    async def one(name: TopicName) -> None:
        (await stored_topic(service, name)).compact()

    (await spread.parts(topic, one)).without(404).check()


@routes.get("/compaction", example={"status": "SUCCESS", "lastError": ""}, statuses=OF_PARTITIONED)
async def compaction_status(service: Service, topic: Topic) -> Response:
    """State of the compaction that was begun last, since the topic was loaded."""
    found = (await _single(service, topic, "Compaction status")).compaction
    if found is None:
        return JsonResponse({"status": "NOT_RUN", "lastError": ""})
    return JsonResponse({"status": found.status, "lastError": found.last_error})


@routes.put(
    "/offload",
    statuses={
        400: "No message id in the body",
        **OF_PARTITIONED,
        409: "It is being done already",
        503: "The topic is being unloaded",
    },
)
async def offload(service: Service, topic: Topic, body: IdBody) -> None:
    """Begin to copy all ledgers before a message's elsewhere."""
    if body is None:
        raise ApiError(400, "messageId is null")
    found = await _single(service, topic, "Offload")
    in_progress = answer_for(OffloadBusyError, 409, "Offload already in progress")
    with answer_for(OffloadError, 503), in_progress:
        found.ledger.offloads.offload_before(body.position)


@routes.get(
    "/offload",
    example={"status": "SUCCESS", "lastError": "", "firstUnoffloadedMessage": _FIRST_KEPT},
    statuses=OF_PARTITIONED,
)
async def offload_status(service: Service, topic: Topic) -> Response:
    """State of the offload that was asked for last."""
    found = await _single(service, topic, "Offload status")
    status = found.ledger.offloads.status
    first_kept = {**message_id(status.first_kept, topic), "partitionIndex": -1}
    kept = {"firstUnoffloadedMessage": first_kept}
    return JsonResponse({"status": status.state, "lastError": status.error, **kept})


_SHADOWS: Statuses = {412: "A partition, or not a persistent topic"}


async def _require_shadow_source(service: BrokerService, topic: TopicName) -> None:
    if topic.is_partition:
        raise ApiError(412, "Not allowed to set/get topic policy for a partition")
    await require_existing(service, topic)


@routes.put(
    "/shadowTopics",
    access=Access.ADMIN_403,
    mode=RoutingMode.LOCAL,
    statuses={**_SHADOWS, **_ABSENT},
)
async def set_shadow_topics(
    service: Service,
    topic: Topic,
    body: Annotated[list[str] | None, Body(list[str], ["persistent://public/default/shadow"])],
) -> Response:
    """Refused: there are no shadow topics yet."""
    if not topic.is_persistent:
        raise ApiError(412, "Only persistent source topic is supported with shadow topics.")
    if not body:
        raise ApiError(412, "No shadow topics are given; DELETE removes them")
    await _require_shadow_source(service, topic)
    _refuse("Shadow topics")


@routes.get(
    "/shadowTopics",
    "None: there are none",
    status=204,
    access=Access.ADMIN_403,
    mode=RoutingMode.LOCAL,
    statuses=_SHADOWS,
    name="shadow_topics",
)
@routes.delete(
    "/shadowTopics",
    "Remove shadow topics: there are none",
    access=Access.ADMIN_403,
    mode=RoutingMode.LOCAL,
    statuses=_SHADOWS,
    name="remove_shadow_topics",
)
async def no_shadow_topics(service: Service, topic: Topic) -> None:
    await _require_shadow_source(service, topic)
