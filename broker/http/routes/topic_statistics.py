"""Statistics and information about topics."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerCall, topic_path
from magnetar.broker.http.dependencies import Flag, Service, Topic, flag, names_of
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread, each
from magnetar.broker.http.streamed_answers import in_pieces, long_json, long_object
from magnetar.broker.http.topics.partitioned_stats import sum_topic_stats
from magnetar.broker.http.topics.topic_access import (
    NOT_FOUND,
    OF_PARTITIONED,
    TOPIC,
    IdBody,
    loaded,
    message_id,
    not_found,
    partitioned_metadata,
    persistent,
    require_existing,
    stored,
)
from magnetar.broker.http.topics.topic_internals import (
    internal_stats,
    ledger_info,
    offline_stats,
    volatile_internal_stats,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.entry_metadata import index_of
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic_stats import (
    StatsParts,
    add_earliest_times,
    add_last_publish_time,
    empty_topic_stats,
)
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.stored_info import read_stored
from magnetar.metadata.loop_turns import in_turns, run_in_turns

routes = Routes(
    TOPIC, tag="topics", access=Access.LOOKUP_401, mode=RoutingMode.TOPIC, statuses=NOT_FOUND
)

_Text = str | None
_CursorsMax = Annotated[
    int | None,
    Query(ge=0, description="At most so many cursors, those that have acknowledged least"),
]


_FirstPartition = Annotated[
    int, Query(ge=0, description="With `partitionsMax`: so many existing partitions come before")
]
_PartitionsMax = Annotated[
    int | None,
    Query(
        ge=0,
        description="At most so many of the partitions that exist, whose number is added as"
        " `existingPartitions` to internal statistics",
    ),
]


def _switch(name: str, default: bool | str, description: str) -> dict[str, Any]:
    """OpenAPI of a switch in the query."""
    schema = {"type": "boolean"} | ({"default": default} if isinstance(default, bool) else {})
    return {"name": name, "in": "query", "description": description, "schema": schema}


_SWITCHES = [
    _switch("getPreciseBacklog", False, "Accepted; backlogs are always exact here"),
    _switch(
        "subscriptionBacklogSize",
        "by domain",
        "Bytes of each subscription's backlog; by default for persistent topics only",
    ),
    _switch(
        "getEarliestTimeInBacklog", False, "When each backlog's first message was published: a read"
    ),
    _switch("excludePublishers", False, "Leave the list of publishers empty"),
    _switch("excludeConsumers", False, "Leave the lists of consumers empty"),
    _switch("authoritative", False, "Accepted for Pulsar's clients"),
]
_SOME = [
    {
        "name": "subscriptionsMax",
        "in": "query",
        "description": "At most so many subscriptions, those with the largest backlogs, and the one"
        " that has acknowledged least; sums are of all, and `subscriptionCount`, `consumerCount`"
        " and `producerCount` are added",
        "schema": {"type": "integer", "minimum": 0},
    },
    {
        "name": "subscriptions",
        "in": "query",
        "description": "A JSON array of names: these, too; without `subscriptionsMax` only these,"
        " and sums are theirs",
        "schema": {"type": "string"},
    },
]
_PARTITIONED_EXAMPLE = {
    "msgRateIn": 0.0,
    "msgInCounter": 24,
    "subscriptions": {},
    "metadata": {"partitions": 2, "deleted": False},
    "partitions": {"persistent://public/default/orders-partition-0": {"msgInCounter": 12}},
}
_PER_PARTITION = _switch("perPartition", True, "Also each partition's statistics")


class StatsOptions:
    """The statistics that a caller wants; the rest is left out or -1.

    Read from the query as it is, and so documented by hand: as declared parameters the switches
    would cost as much as the statistics themselves.
    """

    __slots__ = ("backlog_size", "earliest_time", "parts", "per_partition")

    def __init__(self, request: Request) -> None:
        query = request.query_params
        is_persistent = request.path_params["domain"] == "persistent"
        self.backlog_size = flag(query.get("subscriptionBacklogSize"), default=is_persistent)
        self.earliest_time = flag(query.get("getEarliestTimeInBacklog"))
        self.per_partition = flag(query.get("perPartition"), default=True)
        self.parts = StatsParts(
            not flag(query.get("excludePublishers")),
            not flag(query.get("excludeConsumers")),
            _count(query.get("subscriptionsMax")),
            names_of(query.get("subscriptions"), "subscriptions"),
        )

    async def of(self, service: BrokerService, name: TopicName) -> dict[str, Any]:
        """TopicStats of one topic, loaded if need be."""
        topic = await loaded(service, name)
        stats = await topic.stats_in_turns(self.parts)
        if isinstance(topic, PersistentTopic):
            await add_last_publish_time(topic, stats)
            if self.earliest_time:
                reading = "Reading the first message of a backlog"
                await stored(add_earliest_times(topic, stats), reading)
        if not self.backlog_size:
            async for subscription in in_turns(stats["subscriptions"].values()):
                subscription["backlogSize"] = -1
        return stats


def _count(text: str | None) -> int | None:
    """Raises ApiError."""
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ApiError(400, f"subscriptionsMax: {text!r:.80} is no number of subscriptions")
    return None if text is None else int(text)


async def _options(request: Request) -> StatsOptions:
    return StatsOptions(request)


Options = Annotated[StatsOptions, Depends(_options)]


@routes.get(
    "/stats",
    authoritative=False,
    example={"msgRateIn": 0.0, "msgInCounter": 12, "subscriptions": {}},
    parameters=[*_SWITCHES, *_SOME],
)
async def stats(request: Request, service: Service, topic: Topic, options: Options) -> Response:
    """Statistics of one topic."""
    return await long_json(request, await options.of(service, topic))


async def _record(service: BrokerService, topic: TopicName) -> dict[str, Any]:
    """PartitionedTopicMetadata as stored.

    Raises:
        ApiError: 404 not a partitioned topic, 412 a partition.
    """
    record = await service.resources.partitioned(topic)
    if record is not None:
        return record
    if topic.is_partition:
        raise ApiError(412, "Partitioned Topic Name should not contain '-partition-'")
    if not topic.is_persistent:
        raise ApiError(404, f"Partitioned topic not found {topic}")
    raise ApiError(404, f"Partitioned Topic {topic} not found")


@routes.get(
    "/partitioned-stats",
    mode=RoutingMode.LOCAL,
    example=_PARTITIONED_EXAMPLE,
    statuses={400: "A part of the subscriptions", 412: "The name is a partition's"},
    parameters=[*_SWITCHES, _PER_PARTITION],
)
async def partitioned_stats(
    request: Request, service: Service, topic: Topic, options: Options, spread: Spread
) -> Response:
    """Sum over all partitions, and each one's statistics."""
    if options.parts.subscriptions_max is not None or options.parts.subscriptions is not None:
        raise ApiError(400, "subscriptionsMax, subscriptions: only of one partition")
    record = await _record(service, topic)
    query = spread.same_call().query

    answers = await spread.parts(
        topic,
        lambda name: options.of(service, name),
        among=range(record.get("partitions", 0)),
        call=lambda part: BrokerCall("GET", topic_path(part, "/stats"), query),
    )
    # Never used yet, or deleted: counts as empty.
    parts = answers.without(404).check().by_name()
    total = await run_in_turns(sum_topic_stats([*parts.values()]))
    total["metadata"] = partitioned_metadata(record)
    total["partitions"] = {}
    if options.per_partition:
        # One empty entry, so that clients see that the topic is there.
        total["partitions"] = parts or {str(topic): empty_topic_stats(service.broker_id)}
    return await long_json(request, total)


@routes.get(
    "/internalStats",
    example={
        "numberOfEntries": 5,
        "lastConfirmedEntry": "12:4",
        "state": "LedgerOpened",
        "ledgers": [{"ledgerId": 12, "entries": 0, "size": 0}],
        "cursors": {},
    },
)
async def get_internal_stats(
    request: Request,
    service: Service,
    topic: Topic,
    metadata: Annotated[_Text, Query(description="Also each ledger's own metadata")] = None,
    cursorsMax: _CursorsMax = None,
) -> Response:
    """Ledgers and cursors."""
    found = await loaded(service, topic)
    if not isinstance(found, PersistentTopic):
        return JsonResponse(volatile_internal_stats(found, cursorsMax))
    return await in_pieces(
        request, internal_stats(found, metadata=flag(metadata), cursors_max=cursorsMax)
    )


async def _of_partition(
    service: BrokerService, name: TopicName, cursors_max: int | None
) -> AsyncIterator[bytes] | bytes:
    topic = await loaded(service, name)
    if isinstance(topic, PersistentTopic):
        return internal_stats(topic, cursors_max=cursors_max)
    return orjson.dumps(volatile_internal_stats(topic, cursors_max))


@routes.get(
    "/partitioned-internalStats",
    mode=RoutingMode.LOCAL,
    authoritative=True,
    example={
        "metadata": {"partitions": 2, "deleted": False},
        "partitions": {
            "persistent://public/default/orders-partition-0": {
                "numberOfEntries": 5,
                "state": "LedgerOpened",
            }
        },
    },
)
async def partitioned_internal_stats(
    request: Request,
    service: Service,
    topic: Topic,
    spread: Spread,
    cursorsMax: _CursorsMax = None,
    firstPartition: _FirstPartition = 0,
    partitionsMax: _PartitionsMax = None,
) -> Response:
    """Ledgers and cursors of all partitions."""
    record = await service.resources.partitioned(topic)
    if record is None:
        raise ApiError(404, f"Partitioned Topic {topic} not found")
    query = "" if cursorsMax is None else f"cursorsMax={cursorsMax}"
    among: Sequence[int] = range(record.get("partitions", 0))
    more = dict[str, Any]()
    if partitionsMax is not None:
        existing = await _existing(service, topic, len(among))
        among = existing[firstPartition : firstPartition + partitionsMax]
        more["existingPartitions"] = len(existing)

    answers = await spread.parts(
        topic,
        lambda name: _of_partition(service, name, cursorsMax),
        among=among,
        call=lambda part: BrokerCall(
            "GET", topic_path(part, "/internalStats"), query, wants_text=True
        ),
    )
    parts = answers.without(404).check().by_name()
    fields = {"metadata": partitioned_metadata(record), **more}
    return await in_pieces(request, long_object(fields, "partitions", parts))


async def _existing(service: BrokerService, topic: TopicName, count: int) -> list[int]:
    """Indexes of the partitions that some client has used."""
    found = await each(range(count), lambda n: service.directory.exists(topic.partition(n)))
    return [index for index, exists in enumerate(found) if exists]


@routes.get(
    "/internal-info",
    mode=RoutingMode.LOCAL,
    authoritative=True,
    example={
        "version": 3,
        "creationDate": "2026-01-31T12:00:00.000Z",
        "modificationDate": "2026-01-31T12:00:05.000Z",
        "ledgers": [{"ledgerId": 12, "isOffloaded": False}],
        "cursors": {},
    },
    statuses=OF_PARTITIONED,
)
async def internal_info(
    request: Request,
    service: Service,
    topic: Topic,
    excludeCursors: Annotated[_Text, Flag(description="Leave the cursors out")] = None,
    firstPartition: _FirstPartition = 0,
    partitionsMax: _PartitionsMax = None,
) -> Response:
    """What the metadata store holds of the topic; it isn't loaded for this."""
    if not topic.is_persistent:
        raise ApiError(405, "Internal info of a non-persistent topic is not available")
    count, with_cursors = await require_existing(service, topic), not flag(excludeCursors)
    if count is None:
        answer = await _stored_info(service, topic, with_cursors)
        if answer is None:  # deleted in between
            raise not_found(topic)
        return await in_pieces(request, answer)
    among: Sequence[int] = range(count)
    if partitionsMax is not None:
        existing = await _existing(service, topic, count)
        among = existing[firstPartition : firstPartition + partitionsMax]
    answers = await each(among, lambda n: _stored_info(service, topic.partition(n), with_cursors))
    parts = {
        str(topic.partition(index)): answer
        async for index, answer in in_turns(zip(among, answers, strict=True))
        if answer is not None
    }
    return await in_pieces(request, long_object({"version": 0}, "partitions", parts))


async def _stored_info(
    service: BrokerService, name: TopicName, with_cursors: bool
) -> AsyncIterator[bytes] | None:
    read = read_stored(service.store, name.ml_name, with_cursors=with_cursors)
    found = await stored(read, f"Reading {name}")
    return None if found is None else ledger_info(found)


@routes.get(
    "/backlog",
    access=Access.CONSUME_401,
    example={"storageSize": 4096, "totalMessages": 12, "messageBacklog": 3},
    statuses=OF_PARTITIONED,
)
async def backlog(request: Request, service: Service, topic: Topic) -> Response:
    """Size, backlog and ledgers at one glance."""
    found = await persistent(service, topic, "Backlog statistics")
    return await in_pieces(request, offline_stats(found, service.clock()))


@routes.put(
    "/backlogSize",
    access=Access.CONSUME_401,
    example=4096,
    statuses={400: "No message id in the body", **OF_PARTITIONED},
)
async def backlog_size(service: Service, topic: Topic, body: IdBody) -> Response:
    """Bytes stored behind a message id.

    Exact for whole ledgers, by the mean message within the id's own.
    """
    found = await persistent(
        service,
        topic,
        "calculate backlog size",
        "calculate backlog size is not allowed for partitioned-topic",
    )
    if body is None:
        raise ApiError(400, "A message id is expected in the body")
    return JsonResponse(found.ledger.bytes_after(body.position))


@routes.get(
    "/lastMessageId",
    access=Access.CONSUME_401,
    example={"ledgerId": 12, "entryId": 4, "partitionIndex": -1},
    statuses=OF_PARTITIONED,
)
async def last_message_id(service: Service, topic: Topic) -> Response:
    """Id of the last message; entry -1 when there is none."""
    if await service.directory.partitions(topic) is not None:
        raise not_found(topic)
    found = await persistent(service, topic, "GetLastMessageId")
    return JsonResponse(message_id(found.ledger.last_confirmed, topic))


@routes.get(
    "/getMessageIdByIndex",
    access=Access.CONSUME_401,
    example={"ledgerId": 12, "entryId": 4, "partitionIndex": -1},
    statuses={412: "The broker keeps no message index"},
)
async def id_by_index(service: Service, topic: Topic, index: int = 0) -> Response:
    """Id of the entry that has the message with this index, which counts from 0.

    The broker keeps indexes with `brokerEntryMetadataInterceptors`.
    """
    if not service.config.broker_entry_metadata_interceptors:
        raise ApiError(
            412, "GetMessageIDByIndex is not allowed when broker entry metadata is disabled"
        )
    log = (await persistent(service, topic, "GetMessageIdByIndex")).ledger
    before = await log.find_newest(lambda head, _: index_of(head) < index)
    position = log.offsets.next_position(EARLIEST if before is None else before)
    if index < 0 or position > log.last_confirmed:
        raise ApiError(404, "Message not found")
    return JsonResponse(message_id(position, topic))
