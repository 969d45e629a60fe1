"""TopicStats in Pulsar's shape (http-api 3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.service.topic import Topic

__all__ = ["topic_stats"]


def topic_stats(topic: Topic) -> dict[str, Any]:
    """One page of figures; rates are those of the last sample."""
    now_ms = topic.service.clock()
    _, messages, size, _ = topic.rates.rates
    subscriptions = {
        name: subscription.stats(now_ms) for name, subscription in topic.subscriptions.items()
    }

    def total(field: str) -> Any:
        return sum(stats.get(field, 0) for stats in subscriptions.values())

    def most(field: str) -> int:
        return sum(int(stats.get(field, 0)) for stats in subscriptions.values())

    publishers = [producer.stats() for producer in topic.registry.by_name.values()]
    stats: dict[str, Any] = {
        "msgRateIn": messages,
        "msgThroughputIn": size,
        "msgRateOut": float(total("msgRateOut")),
        "msgThroughputOut": float(total("msgThroughputOut")),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "systemTopicBytesInCounter": topic.bytes_in if topic.name.is_system else 0,
        "bytesOutCounter": topic.bytes_out_before + total("bytesOutCounter"),
        "msgOutCounter": topic.messages_out_before + total("msgOutCounter"),
        "bytesOutInternalCounter": 0,
        "averageMsgSize": size / messages if messages else 0.0,
        "msgChunkPublished": topic.chunks_in > 0,
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
        "publishers": publishers,
        "waitingPublishers": len(topic.registry.waiting),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Disabled",
        "nonContiguousDeletedMessagesRanges": most("nonContiguousDeletedMessagesRanges"),
        "nonContiguousDeletedMessagesRangesSerializedSize": most(
            "nonContiguousDeletedMessagesRangesSerializedSize"
        ),
        "delayedMessageIndexSizeInBytes": most("delayedMessageIndexSizeInBytes"),
        "compaction": {
            "lastCompactionRemovedEventCount": 0,
            "lastCompactionSucceedTimestamp": 0,
            "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": 0,
        },
        "ownerBroker": topic.service.broker_id,
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimeStamp": topic.last_publish_ms,
    }
    if topic.epoch is not None:
        stats["topicEpoch"] = topic.epoch
    stats.update(topic.storage_stats())
    return stats
