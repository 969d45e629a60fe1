"""TopicStats in Pulsar's shape."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Any, Final

from magnetar.bookkeeper.errors import LedgerError
from magnetar.broker.compaction.compaction_figures import CompactionFigures
from magnetar.broker.protocol.entry_header import parse_header
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import Steps, in_turns, keep_least

if TYPE_CHECKING:
    from magnetar.broker.topic.persistent_topic import PersistentTopic
    from magnetar.broker.topic.topic import Topic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StatsParts:
    """What of a topic's statistics is listed."""

    publishers: bool = True
    consumers: bool = True
    subscriptions_max: int | None = None
    """At most so many, those with the largest backlogs, and the one that has acknowledged least;
    sums are of all, and three counts are added. None: all."""
    subscriptions: Collection[str] | None = None
    """These, beside those; without ``subscriptions_max`` only these, in the sums, too."""


ALL_STATS: Final = StatsParts()


def empty_topic_stats(broker_id: str) -> dict[str, Any]:
    """The statistics of a topic without a past: every field, in Pulsar's order."""
    return {
        "msgRateIn": 0.0,
        "msgThroughputIn": 0.0,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "bytesInCounter": 0,
        "msgInCounter": 0,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "bytesOutInternalCounter": 0,
        "averageMsgSize": 0.0,
        "msgChunkPublished": False,
        "storageSize": 0,
        "backlogSize": 0,
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": -1,
        "oldestBacklogMessageAgeSeconds": -1,
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": [],
        "waitingPublishers": 0,
        "subscriptions": {},
        "replication": {},
        "deduplicationStatus": "Disabled",
        "nonContiguousDeletedMessagesRanges": 0,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "delayedMessageIndexSizeInBytes": 0,
        "compaction": CompactionFigures().stats(),  # of one that never ran
        "ownerBroker": broker_id,
        "topicCreationTimeStamp": 0,
        "lastPublishTimeStamp": 0,
    }


# Fields of a topic that are the sum of its subscriptions', see `Subscription.sums`.
_SUMS = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
)


def topic_stats(topic: Topic, parts: StatsParts = ALL_STATS) -> Steps[dict[str, Any]]:
    """One page of figures; rates are those of the last sample."""
    now_ms = topic.service.clock()
    _, messages, size, _ = topic.rates.rates
    stats = empty_topic_stats(topic.service.broker_id)
    subscriptions = stats["subscriptions"]
    are_some = parts.subscriptions_max is not None
    for name in (yield from _listed(topic, parts, stats)):
        if (subscription := topic.subscriptions.get(name)) is None:
            continue  # it was just removed
        metrics = yield from subscription.stats_steps(now_ms, with_consumers=parts.consumers)
        subscriptions[name] = metrics
        if are_some:
            metrics["consumerCount"] = len(subscription.consumers)
        else:
            for field in _SUMS:
                stats[field] += metrics[field]
        yield
    producers = stats["publishers"]
    for producer in list(topic.registry.by_name.values()) if parts.publishers else ():
        producers.append(producer.stats())
        yield
    stats["msgRateIn"] = messages
    stats["msgThroughputIn"] = size
    stats["bytesInCounter"] = topic.bytes_in
    stats["msgInCounter"] = topic.messages_in
    stats["systemTopicBytesInCounter"] = topic.bytes_in if topic.is_system else 0
    stats["bytesOutCounter"] += topic.bytes_out_before
    stats["msgOutCounter"] += topic.messages_out_before
    stats["averageMsgSize"] = size / messages if messages else 0.0
    stats["msgChunkPublished"] = topic.chunks_in > 0
    stats["waitingPublishers"] = len(topic.registry.waiting)
    stats["topicCreationTimeStamp"] = topic.created_ms
    stats["lastPublishTimeStamp"] = topic.last_publish_ms
    if topic.epoch is not None:
        stats["topicEpoch"] = topic.epoch
    stats.update((yield from topic.storage_stats()))
    return stats


def _listed(topic: Topic, parts: StatsParts, stats: dict[str, Any]) -> Steps[list[str]]:
    """Names of subscriptions. Of a part of all, it adds the sums and the counts of all."""
    named = parts.subscriptions
    if parts.subscriptions_max is None:
        return list(topic.subscriptions if named is None else named)
    totals, consumers = [stats[field] for field in _SUMS], 0
    behind = list[tuple[int, str]]()
    slowest: tuple[Position, str] | None = None
    for name in [*topic.subscriptions]:
        if (subscription := topic.subscriptions.get(name)) is None:
            continue  # deleted meanwhile
        totals = list(map(add, totals, (yield from subscription.sums())))
        consumers += len(subscription.consumers)
        backlog, cursor = subscription.backlog, subscription.cursor
        keep_least(behind, (-backlog, name), parts.subscriptions_max)
        if cursor is not None and backlog:
            at = cursor.mark_delete, name
            slowest = at if slowest is None else min(slowest, at)
        yield
    stats.update(zip(_SUMS, totals, strict=True))
    stats["subscriptionCount"] = len(topic.subscriptions)
    stats["consumerCount"] = consumers
    stats["producerCount"] = len(topic.registry.by_name)
    found = [name for _, name in sorted(behind)[: parts.subscriptions_max]]
    found += [] if slowest is None else [slowest[1]]
    return list(dict.fromkeys([*found, *(named or ())]))


async def add_earliest_times(topic: PersistentTopic, stats: dict[str, Any]) -> None:
    """Fill in when the first unacknowledged entry of each subscription was published.

    A subscription without a backlog gets -1, a topic without any 0.

    Raises:
        LedgerError, ManagedLedgerError: an entry couldn't be read.
    """
    times: list[int] = []
    async for name, metrics in in_turns(stats["subscriptions"].items()):
        metrics["earliestMsgPublishTimeInBacklog"] = -1
        subscription = topic.subscriptions.get(name)
        if subscription is None or subscription.cursor is None or not metrics["msgBacklog"]:
            continue
        batch = await topic.ledger.read(subscription.cursor.state.first_unacked(), 1, 1)
        if batch is not None:
            time_ms = parse_header(batch.heads[0]).publish_time_ms
            metrics["earliestMsgPublishTimeInBacklog"] = time_ms
            times.append(time_ms)
    stats["earliestMsgPublishTimeInBacklogs"] = min(times, default=0)


async def add_last_publish_time(topic: PersistentTopic, stats: dict[str, Any]) -> None:
    """Fill in when the last entry was published, if that was before the topic was loaded.

    It is read once; 0 while it can't be.
    """
    if not stats["lastPublishTimeStamp"]:
        await find_last_publish_time(topic)
        stats["lastPublishTimeStamp"] = topic.last_publish_ms


async def find_last_publish_time(topic: PersistentTopic) -> None:
    """Read it from the last entry, once; it stays 0 if there is none, or it can't be read."""
    if topic.last_publish_ms or not topic.holds_entries:
        return
    try:
        batch = await topic.ledger.read(topic.ledger.last_confirmed, 1, 1)
    except (LedgerError, ManagedLedgerError) as error:
        logger.debug("%s: last entry: %s", topic.name, error)
        return
    if batch is not None and not topic.last_publish_ms:
        topic.last_publish_ms = parse_header(batch.heads[0]).publish_time_ms
