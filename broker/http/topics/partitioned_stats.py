"""Statistics of a partitioned topic: the sum of its partitions'."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, TypeAlias

from magnetar.broker.topic.topic_stats import empty_topic_stats
from magnetar.metadata.loop_turns import Steps

Json: TypeAlias = Mapping[str, Any]

# Not sums. The rest: numbers are added, texts and booleans are the first that says something.
_LARGEST = {
    *("lastOffloadLedgerId", "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp"),
    *("oldestBacklogMessageAgeSeconds", "lastPublishTimeStamp"),
    *("backlogQuotaLimitSize", "backlogQuotaLimitTime", "lastExpireTimestamp"),
    *("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp"),
    *("lastMarkDeleteAdvancedTimestamp", "avgMessagesPerEntry"),
}
_EARLIEST = {
    *("earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog"),
    *("firstMessagesSentTimestamp", "firstConsumedFlowTimestamp", "topicCreationTimeStamp"),
}
_LATEST = {"lastAckedTime", "lastConsumedTime"}  # ISO dates, which compare as texts
_PER_TOPIC: Final = frozenset(("ownerBroker", "deduplicationStatus", "topicEpoch"))
_LISTS: Final = frozenset(("publishers", "subscriptions"))
"""Of a topic; added up on their own."""
_CONSUMERS: Final = frozenset(("consumers",))


def sum_topic_stats(parts: Sequence[Json]) -> Steps[dict[str, Any]]:
    """TopicStats of the whole; ``parts`` stay unchanged."""
    # An empty one first: every field is there, whatever the partitions say, or if there are none.
    parts = [empty_topic_stats(""), *parts]
    total = yield from _sum(parts, _PER_TOPIC | _LISTS)
    for field in _PER_TOPIC & total.keys():
        del total[field]
    total["publishers"] = yield from _merge_publishers([part["publishers"] for part in parts])
    by_name: dict[str, list[Json]] = {}
    for part in parts:
        for name, each in part["subscriptions"].items():
            by_name.setdefault(name, []).append(each)
            yield
    total["subscriptions"] = {}
    for name, found in by_name.items():
        total["subscriptions"][name] = yield from _sum_subscription(found)
    oldest = max(parts, key=lambda part: int(part.get("oldestBacklogMessageAgeSeconds", -1)))
    if (name := oldest.get("oldestBacklogMessageSubscriptionName")) is not None:
        total["oldestBacklogMessageSubscriptionName"] = name
    messages = total.get("msgRateIn", 0.0)
    total["averageMsgSize"] = total.get("msgThroughputIn", 0.0) / messages if messages else 0.0
    return total


def _sum(parts: Sequence[Json], without: Set[str] = frozenset()) -> Steps[dict[str, Any]]:
    """Field by field, which is a fraction of the work of adding part by part.

    Args:
        without: these fields are there, as one of the parts has them.
    """
    total: dict[str, Any] = {}
    for part in parts:
        total.update(part)
        yield
    for field in total:
        if field not in without:
            values = [part[field] for part in parts if field in part]
            total[field] = yield from _sum_values(field, values)
        yield
    return total


def _sum_values(field: str, values: Sequence[Any]) -> Steps[Any]:
    first = values[0]
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, dict):
        some = [each for each in values if each]
        return (yield from _sum(some)) if some else first
    if field in _LARGEST or field in _LATEST:
        return max(values)
    if field in _EARLIEST:  # 0 and -1 are no times
        return min((time for time in values if time > 0), default=max(values))
    return sum(values) if isinstance(first, int | float) else first


def _sum_subscription(parts: Sequence[Json]) -> Steps[dict[str, Any]]:
    total = yield from _sum(parts, _CONSUMERS)
    by_name: dict[str, list[Json]] = {}
    for part in parts:
        for consumer in part.get("consumers", ()):
            by_name.setdefault(consumer.get("consumerName", ""), []).append(consumer)
            yield
    total["consumers"] = consumers = list[dict[str, Any]]()
    for found in by_name.values():
        consumers.append((yield from _sum(found)))
    if any(part.get("backlogSize") == -1 for part in parts):
        total["backlogSize"] = -1
    return total


def _merge_publishers(parts: Sequence[Sequence[Json]]) -> Steps[list[dict[str, Any]]]:
    """By name where the client supports partial producers, else by their place in the list."""
    merged: dict[object, list[Json]] = {}
    for publishers in parts:
        for place, publisher in enumerate(publishers):
            partial = publisher.get("supportsPartialProducer")
            key: object = publisher.get("producerName") if partial else place
            merged.setdefault(key, []).append(publisher)
            yield
    result = []
    for group in merged.values():
        total = yield from _sum(group)
        total["producerId"] = group[0].get("producerId", 0)
        rate = total.get("msgRateIn", 0.0)
        total["averageMsgSize"] = total.get("msgThroughputIn", 0.0) / rate if rate else 0.0
        result.append(total)
    return result
