"""The metrics page: figures of all loaded topics as Prometheus text (http-api 7).

Built in slices: after each topic the elapsed time is looked at, and the loop gets its turn after a
millisecond. A page of 10,000 topics therefore shows topics at slightly different moments.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from broker.cli.version import product_version
from broker.http.broker_metrics import CacheRates, add_broker_metrics
from broker.http.health import HEALTH_TOPIC
from broker.http.metrics_page import MetricsPage, label
from broker.service.backlog_quota import AGE, SIZE
from broker.service.persistent_topic import PersistentTopic

if TYPE_CHECKING:
    from broker.http.front import HttpFigures
    from broker.service.broker_service import BrokerService
    from broker.service.topic import Topic

__all__ = ["render_metrics"]

SLICE_S = 0.001

# Series of one topic: name, field of the statistics
_TOPIC_FIELDS = (
    ("pulsar_rate_in", "msgRateIn"),
    ("pulsar_rate_out", "msgRateOut"),
    ("pulsar_throughput_in", "msgThroughputIn"),
    ("pulsar_throughput_out", "msgThroughputOut"),
    ("pulsar_in_messages_total", "msgInCounter"),
    ("pulsar_in_bytes_total", "bytesInCounter"),
    ("pulsar_out_messages_total", "msgOutCounter"),
    ("pulsar_out_bytes_total", "bytesOutCounter"),
    ("pulsar_average_msg_size", "averageMsgSize"),
    ("pulsar_storage_size", "storageSize"),
    ("pulsar_storage_logical_size", "storageSize"),
    ("pulsar_storage_backlog_size", "backlogSize"),
    ("pulsar_storage_offloaded_size", "offloadedStorageSize"),
    ("pulsar_storage_backlog_quota_limit", "backlogQuotaLimitSize"),
    ("pulsar_storage_backlog_quota_limit_time", "backlogQuotaLimitTime"),
    ("pulsar_storage_backlog_age_seconds", "oldestBacklogMessageAgeSeconds"),
    ("pulsar_publish_rate_limit_times", "publishRateLimitedTimes"),
    ("pulsar_delayed_message_index_size_bytes", "delayedMessageIndexSizeInBytes"),
)
_SUBSCRIPTION_FIELDS = (
    ("pulsar_subscription_back_log", "msgBacklog"),
    ("pulsar_subscription_back_log_no_delayed", "msgBacklogNoDelayed"),
    ("pulsar_subscription_delayed", "msgDelayed"),
    ("pulsar_subscription_in_replay", "msgInReplay"),
    ("pulsar_subscription_msg_rate_redeliver", "msgRateRedeliver"),
    ("pulsar_subscription_unacked_messages", "unackedMessages"),
    ("pulsar_subscription_blocked_on_unacked_messages", "blockedSubscriptionOnUnackedMsgs"),
    ("pulsar_subscription_msg_rate_out", "msgRateOut"),
    ("pulsar_subscription_msg_throughput_out", "msgThroughputOut"),
    ("pulsar_subscription_msg_ack_rate", "messageAckRate"),
    ("pulsar_subscription_msg_rate_expired", "msgRateExpired"),
    ("pulsar_subscription_total_msg_expired", "totalMsgExpired"),
    ("pulsar_subscription_last_expire_timestamp", "lastExpireTimestamp"),
    ("pulsar_subscription_last_acked_timestamp", "lastAckedTimestamp"),
    ("pulsar_subscription_last_consumed_flow_timestamp", "lastConsumedFlowTimestamp"),
    ("pulsar_subscription_last_consumed_timestamp", "lastConsumedTimestamp"),
    ("pulsar_subscription_last_mark_delete_advanced_timestamp", "lastMarkDeleteAdvancedTimestamp"),
    ("pulsar_out_messages_total", "msgOutCounter"),
    ("pulsar_out_bytes_total", "bytesOutCounter"),
)
_CONSUMER_FIELDS = (
    ("pulsar_consumer_msg_rate_redeliver", "msgRateRedeliver"),
    ("pulsar_consumer_unacked_messages", "unackedMessages"),
    ("pulsar_consumer_blocked_on_unacked_messages", "blockedConsumerOnUnackedMsgs"),
    ("pulsar_consumer_msg_rate_out", "msgRateOut"),
    ("pulsar_consumer_msg_ack_rate", "messageAckRate"),
    ("pulsar_consumer_msg_throughput_out", "msgThroughputOut"),
    ("pulsar_consumer_available_permits", "availablePermits"),
)
_PRODUCER_FIELDS = (
    ("pulsar_producer_msg_rate_in", "msgRateIn"),
    ("pulsar_producer_msg_throughput_in", "msgThroughputIn"),
    ("pulsar_producer_msg_average_Size", "averageMsgSize"),
)
# What a namespace or the whole broker sums up
_SUMS = (
    *("pulsar_subscriptions_count", "pulsar_producers_count", "pulsar_consumers_count"),
    *("pulsar_rate_in", "pulsar_rate_out", "pulsar_throughput_in", "pulsar_throughput_out"),
    *("pulsar_in_messages_total", "pulsar_in_bytes_total", "pulsar_out_messages_total"),
    *("pulsar_out_bytes_total", "pulsar_storage_size", "pulsar_storage_logical_size"),
    *("pulsar_storage_backlog_size", "pulsar_msg_backlog", "pulsar_storage_write_rate"),
    *("pulsar_storage_read_rate",),
)
EVICTIONS = "backlog_quota_exceeded_evictions_total"
_QUOTA_TYPES = {SIZE: "size", AGE: "time"}
_LATENCY_NAMES = tuple(
    f"pulsar_storage_write_latency_{each}"
    for each in (
        *("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000"),
        "overflow",
    )
)
_SIZE_NAMES = tuple(
    f"pulsar_entry_size_le_{each}"
    for each in ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
)


async def render_metrics(
    service: BrokerService, http: HttpFigures, cache_rates: CacheRates
) -> bytes:
    """The page. Bounded work per turn of the loop, see the module."""
    config = service.config
    page = MetricsPage(service.cluster)
    of_namespace: dict[str, dict[str, float]] = {}
    evictions = dict.fromkeys(_QUOTA_TYPES.values(), 0)
    turn_ends = time.perf_counter() + SLICE_S
    for topic in list(service.topics.values()):
        if topic.name == HEALTH_TOPIC:  # http-api trap 29: never counts
            continue
        figures = _figures(topic)
        sums = of_namespace.setdefault(
            topic.name.namespace, {"topics": 0, **dict.fromkeys(_SUMS, 0)}
        )
        sums["topics"] += 1
        for name in _SUMS:
            sums[name] += figures["sums"][name]
        for name, value in figures["publish"]:
            sums[name] = sums.get(name, 0) + value
        for kind, count in figures["evictions"]:
            evictions[kind] += count
        if config.expose_topic_level_metrics_in_prometheus:
            _add_topic(page, topic, figures, service)
        if time.perf_counter() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.perf_counter() + SLICE_S
    _add_namespaces(page, of_namespace, config.expose_topic_level_metrics_in_prometheus)
    add_broker_metrics(page, service, http, cache_rates, of_namespace)
    for kind, count in evictions.items():
        page.add(f"pulsar_broker_storage_{EVICTIONS}", f'{page.base},quota_type="{kind}"', count)
    version = label("version", product_version())
    page.add("pulsar_version_info", f'{page.base},{version},commit=""', 1)
    # A large page takes longer to join and encode than the loop may be held.
    return await asyncio.to_thread(page.render)


def _figures(topic: Topic) -> dict[str, Any]:
    stats = topic.stats()
    subscriptions = stats["subscriptions"]
    sums = {name: stats.get(field, 0) for name, field in _TOPIC_FIELDS}
    sums["pulsar_subscriptions_count"] = len(subscriptions)
    sums["pulsar_producers_count"] = len(stats["publishers"])
    sums["pulsar_consumers_count"] = sum(len(s["consumers"]) for s in subscriptions.values())
    sums["pulsar_msg_backlog"] = sum(s["msgBacklog"] for s in subscriptions.values())
    sums["pulsar_storage_write_rate"] = topic.rates.rates[0]  # entries, not messages
    sums["pulsar_storage_read_rate"] = stats["msgRateOut"]
    sums["pulsar_consumer_msg_ack_rate"] = sum(
        s.get("messageAckRate", 0) for s in subscriptions.values()
    )
    return {
        "stats": stats,
        "sums": sums,
        "publish": _publish_figures(topic),
        "evictions": _evictions(topic),
    }


def _evictions(topic: Topic) -> list[tuple[str, int]]:
    """How often the backlog quota took messages away, by Pulsar's word for the quota."""
    if not isinstance(topic, PersistentTopic):
        return []
    return [(_QUOTA_TYPES[quota], count) for quota, count in topic.backlog.evictions.items()]


def _publish_figures(topic: Topic) -> list[tuple[str, float]]:
    """Write latencies and entry sizes; nothing for a topic that nobody published to."""
    if not isinstance(topic, PersistentTopic) or not topic.messages_in:
        return []
    period_s = topic.service.config.stats_update_frequency_in_secs
    latency, latency_ms, sizes, size = topic.publish_figures.period(time.monotonic(), period_s)
    return [
        *zip(_LATENCY_NAMES, latency, strict=True),
        ("pulsar_storage_write_latency_count", sum(latency)),
        ("pulsar_storage_write_latency_sum", latency_ms),
        *zip(_SIZE_NAMES, sizes, strict=True),
        ("pulsar_entry_size_overflow", sizes[-1]),  # what older dashboards ask for
        ("pulsar_entry_size_count", sum(sizes)),
        ("pulsar_entry_size_sum", size),
    ]


def _add_topic(
    page: MetricsPage, topic: Topic, figures: dict[str, Any], service: BrokerService
) -> None:
    config = service.config
    name = topic.name
    labels = f"{page.base},{label('namespace', name.namespace)},"
    if config.split_topic_and_partition_label_in_prometheus:
        labels += (
            f"{label('topic', str(name.base))},{label('partition', str(name.partition_index))}"
        )
    else:
        labels += label("topic", str(name))
    page.add_all(labels, figures["sums"].items())
    page.add_all(labels, figures["publish"])
    for kind, count in figures["evictions"]:
        if count:  # the broker's series are always there, to tell the first one from a new topic
            page.add(f"pulsar_storage_{EVICTIONS}", f'{labels},quota_type="{kind}"', count)
    stats = figures["stats"]
    for subscription_name, subscription in stats["subscriptions"].items():
        of_subscription = f"{labels},{label('subscription', subscription_name)}"
        page.add_all(
            of_subscription,
            [(series, subscription.get(field, 0) + 0) for series, field in _SUBSCRIPTION_FIELDS],
        )
        consumers = subscription["consumers"]
        page.add("pulsar_subscription_consumers_count", of_subscription, len(consumers))
        if not topic.persistent:
            rate = subscription.get("msgDropRate", 0)
            page.add("pulsar_subscription_msg_drop_rate", of_subscription, rate)
        if config.expose_consumer_level_metrics_in_prometheus:
            for number, consumer in enumerate(consumers):
                of_consumer = (
                    f"{of_subscription},{label('consumer_name', consumer['consumerName'])},"
                    f'consumer_id="{number}"'
                )
                page.add_all(
                    of_consumer,
                    [(series, consumer.get(field, 0) + 0) for series, field in _CONSUMER_FIELDS],
                )
    if config.expose_producer_level_metrics_in_prometheus:
        for producer in stats["publishers"]:
            of_producer = (
                f"{labels},{label('producer_name', producer['producerName'])},"
                f'producer_id="{producer["producerId"]}"'
            )
            for series, field in _PRODUCER_FIELDS:
                page.add(series, of_producer, producer.get(field, 0))


def _add_namespaces(
    page: MetricsPage, of_namespace: dict[str, dict[str, float]], topic_level: bool
) -> None:
    if not of_namespace:  # an idle broker still shows that it serves nothing
        for name in ("pulsar_topics_count", *_SUMS):
            page.add(name, page.base, 0)
    for namespace, sums in of_namespace.items():
        labels = f"{page.base},{label('namespace', namespace)}"
        page.add("pulsar_topics_count", labels, sums["topics"])
        if topic_level:
            continue  # topic series replace namespace series
        for name, value in sums.items():
            if name != "topics":
                extra = ',remote_cluster="local"' if name == "pulsar_msg_backlog" else ""
                page.add(name, labels + extra, value)
