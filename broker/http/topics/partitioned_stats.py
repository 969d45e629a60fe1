"""Statistics of a partitioned topic: the sum of its partitions'."""

from typing import Any

from magnetar.broker.topic.topic_stats import empty_topic_stats

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
_PER_TOPIC = {"ownerBroker", "deduplicationStatus", "topicEpoch"}


def sum_topic_stats(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """TopicStats of the whole; ``parts`` stay unchanged."""
    # An empty one first: every field is there, whatever the partitions say, or if there are none.
    parts = [empty_topic_stats(""), *parts]
    total = _sum([{k: v for k, v in part.items() if k not in _PER_TOPIC} for part in parts])
    total["publishers"] = _merge_publishers([part["publishers"] for part in parts])
    names = {name: None for part in parts for name in part["subscriptions"]}
    total["subscriptions"] = {
        name: _sum_subscription(
            [part["subscriptions"][name] for part in parts if name in part["subscriptions"]]
        )
        for name in names
    }
    oldest = max(parts, key=lambda part: int(part.get("oldestBacklogMessageAgeSeconds", -1)))
    if (name := oldest.get("oldestBacklogMessageSubscriptionName")) is not None:
        total["oldestBacklogMessageSubscriptionName"] = name
    messages = total.get("msgRateIn", 0.0)
    total["averageMsgSize"] = total.get("msgThroughputIn", 0.0) / messages if messages else 0.0
    return total


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for field, value in part.items():
            if field not in total:
                total[field] = value
            elif isinstance(value, bool):
                total[field] = total[field] or value
            elif field in _LATEST:
                total[field] = max(total[field], value)
            elif isinstance(value, int | float):
                total[field] = _add(field, total[field], value)
            elif isinstance(value, dict) and isinstance(total[field], dict):
                total[field] = _sum([total[field], value]) if value else total[field]
    return total


def _add(field: str, was: float, value: float) -> float:
    if field in _LARGEST:
        return max(was, value)
    if field in _EARLIEST:  # 0 and -1 are no times
        times = [time for time in (was, value) if time > 0]
        return min(times, default=max(was, value))
    return was + value


def _sum_subscription(parts: list[dict[str, Any]]) -> dict[str, Any]:
    total = _sum(parts)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for consumer in part.get("consumers", ()):
            by_name.setdefault(consumer.get("consumerName", ""), []).append(consumer)
    total["consumers"] = [_sum(consumers) for consumers in by_name.values()]
    if any(part.get("backlogSize") == -1 for part in parts):
        total["backlogSize"] = -1
    return total


def _merge_publishers(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By name where the client supports partial producers, else by their place in the list."""
    merged: dict[object, list[dict[str, Any]]] = {}
    for publishers in parts:
        for place, publisher in enumerate(publishers):
            partial = publisher.get("supportsPartialProducer")
            key: object = publisher.get("producerName") if partial else place
            merged.setdefault(key, []).append(publisher)
    result = []
    for group in merged.values():
        total = _sum(group)
        total["producerId"] = group[0].get("producerId", 0)
        rate = total.get("msgRateIn", 0.0)
        total["averageMsgSize"] = total.get("msgThroughputIn", 0.0) / rate if rate else 0.0
        result.append(total)
    return result
