"""Series of topics, their subscriptions, consumers and producers, and of namespaces.

``TopicMetrics.steps`` walks over all loaded topics and fills the tables of a page; whoever runs it
may give others their turn after each step. So topics are seen at slightly different moments, and
one that is unloaded meanwhile is left out.
"""

import time
from collections.abc import Iterator
from operator import add
from typing import Any, Final

from magnetar.broker.dispatch.explanation import STALL_MS, STALLS
from magnetar.broker.http.metrics.ledger_metrics import (
    NO_LEDGER,
    LedgerPeriod,
    LedgerSums,
    LedgerTables,
    ledger_period,
)
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label
from magnetar.broker.http.metrics.transaction_metrics import ParticipantMetrics
from magnetar.broker.http.topics.health import is_health_topic
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.backlog_quota import AGE, SIZE
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic import Topic

# A row of the table of topics; the last ones don't add up, and namespaces are without them.
_SUMMED: Final = (
    "pulsar_subscriptions_count",
    "pulsar_producers_count",
    "pulsar_consumers_count",
    "pulsar_rate_in",
    "pulsar_rate_out",
    "pulsar_throughput_in",
    "pulsar_throughput_out",
    "pulsar_in_messages_total",
    "pulsar_in_bytes_total",
    "pulsar_out_messages_total",
    "pulsar_out_bytes_total",
    "pulsar_consumer_msg_ack_rate",
    "pulsar_storage_size",
    "pulsar_storage_logical_size",
    "pulsar_storage_backlog_size",
    "pulsar_storage_offloaded_size",
    "pulsar_storage_write_rate",
    "pulsar_storage_read_rate",
    "pulsar_storage_read_cache_misses_rate",
    "pulsar_delayed_message_index_size_bytes",
    "pulsar_msg_backlog",
)
_NOT_SUMMED: Final = (
    "pulsar_average_msg_size",
    "pulsar_storage_backlog_quota_limit",
    "pulsar_storage_backlog_quota_limit_time",
    "pulsar_storage_backlog_age_seconds",
    "pulsar_publish_rate_limit_times",
)
_SUBSCRIPTION_FIELDS: Final = (
    ("pulsar_subscription_back_log", "msgBacklog"),
    ("pulsar_subscription_back_log_no_delayed", "msgBacklogNoDelayed"),
    ("pulsar_subscription_delayed", "msgDelayed"),
    ("pulsar_subscription_delayed_message_index_size_bytes", "delayedMessageIndexSizeInBytes"),
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
_CONSUMER_NAMES: Final = (
    "pulsar_consumer_msg_rate_redeliver",
    "pulsar_consumer_unacked_messages",
    "pulsar_consumer_blocked_on_unacked_messages",
    "pulsar_consumer_msg_rate_out",
    "pulsar_consumer_msg_ack_rate",
    "pulsar_consumer_msg_throughput_out",
    "pulsar_consumer_available_permits",
)
_PRODUCER_NAMES: Final = (
    "pulsar_producer_msg_rate_in",
    "pulsar_producer_msg_throughput_in",
    "pulsar_producer_msg_average_Size",
)
_LATENCIES: Final = (
    *("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000"),
    *("overflow", "count", "sum"),
)
_SIZES: Final = (
    *("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb"),
    *("le_overflow", "count", "sum"),
    "overflow",  # older dashboards ask for this one
)
_PUBLISH_NAMES: Final = (
    *(f"pulsar_storage_write_latency_{each}" for each in _LATENCIES),
    *(f"pulsar_storage_ledger_write_latency_{each}" for each in _LATENCIES),
    *(f"pulsar_entry_size_{each}" for each in _SIZES),
)
_THROTTLED: Final = tuple(
    (f"pulsar_subscription_dispatch_throttled_{kind}_events", reason.lower(), field)
    for kind, word in (("msg", "Msg"), ("bytes", "Bytes"))
    for reason in ("Subscription", "Topic", "Broker")
    for field in (f"dispatchThrottled{word}EventsBy{reason}Limit",)
)
_COMPACTION_NAMES: Final = (
    "pulsar_compaction_removed_event_count",
    "pulsar_compaction_succeed_count",
    "pulsar_compaction_failed_count",
    "pulsar_compaction_duration_time_in_mills",
    "pulsar_compaction_read_throughput",
    "pulsar_compaction_write_throughput",
    *(f"pulsar_compaction_latency_{each}" for each in _LATENCIES),
    "pulsar_compaction_compacted_entries_count",
    "pulsar_compaction_compacted_entries_size",
)
_NO_LATENCIES: Final = (0,) * 10
_LOGICAL_SIZE: Final = _SUMMED.index("pulsar_storage_logical_size")
EVICTIONS: Final = "backlog_quota_exceeded_evictions_total"
_QUOTA_TYPES: Final = {SIZE: "size", AGE: "time"}
_BOUND: Final = 32
"""Subscriptions, consumers or producers of one topic that are looked at in one step."""


class _NamespaceSums:
    """Sums over the topics of one namespace."""

    __slots__ = ("ledgers", "metrics", "publish", "topics")

    def __init__(self) -> None:
        self.topics = 0
        self.metrics: list[float] = [0] * len(_SUMMED)
        self.publish: list[float] | None = None  # no topic has published
        self.ledgers: LedgerSums | None = None  # no stored topics


class TopicMetrics:
    """One walk over the topics of a broker, for one page."""

    def __init__(self, page: PrometheusPage, service: BrokerService) -> None:
        self._page = page
        self._service = service
        config = service.config
        self._topic_level = config.expose_topic_level_metrics_in_prometheus
        self._split_names = config.split_topic_and_partition_label_in_prometheus
        self._consumers = config.expose_consumer_level_metrics_in_prometheus
        self._producers = config.expose_producer_level_metrics_in_prometheus
        self._period_s = config.stats_update_frequency_in_secs
        self._now_s = time.monotonic()
        self._of_namespace: dict[str, _NamespaceSums] = {}
        self._total: list[float] = [0] * len(_SUMMED)
        self._evictions = dict.fromkeys(_QUOTA_TYPES.values(), 0)
        self._stalls = dict.fromkeys(sorted(STALLS), 0)
        self.persistent_topics = 0
        self.system_bytes_in = 0
        self._topic_rows = page.table((*_SUMMED, *_NOT_SUMMED))
        self._publish_rows = page.table(_PUBLISH_NAMES)
        self._compaction_rows = page.table(_COMPACTION_NAMES)
        self._eviction_rows = page.table((f"pulsar_storage_{EVICTIONS}",))
        self._subscription_rows = page.table(
            (*(name for name, _ in _SUBSCRIPTION_FIELDS), "pulsar_subscription_consumers_count")
        )
        self._throttled_rows = {name: page.table((name,)) for name, _, _ in _THROTTLED}
        self._drop_rows = page.table(("pulsar_subscription_msg_drop_rate",))
        self._consumer_rows = page.table(_CONSUMER_NAMES)
        self._producer_rows = page.table(_PRODUCER_NAMES)
        self._participants = ParticipantMetrics(page)

    def total(self, name: str) -> float:
        """Sum of one of the summed series over all topics. REQUIRES: the walk is over."""
        return self._total[_SUMMED.index(name)]

    def steps(self) -> Iterator[None]:
        """Fill the tables. Between two steps the broker may do anything."""
        for topic in self._service.topics.walk():
            if is_health_topic(topic.name):
                continue  # it never counts
            yield from self._add_topic(topic)
            yield
        yield from self._add_namespaces()
        page = self._page
        for kind, count in self._evictions.items():
            labels = f'{page.base},quota_type="{kind}"'
            page.add(f"pulsar_broker_storage_{EVICTIONS}", labels, count)
        for reason, count in self._stalls.items():
            page.add("magnetar_subscriptions_stalled", f'{page.base},reason="{reason}"', count)

    # --- one topic

    def _labels_of(self, topic: Topic) -> str:
        name = topic.name
        labels = f"{self._page.base},{label('namespace', name.namespace)},"
        if self._split_names:
            return (
                f"{labels}{label('topic', str(name.base))},"
                f"{label('partition', str(name.partition_index))}"
            )
        return labels + label("topic", topic.full_name)

    def _add_topic(self, topic: Topic) -> Iterator[None]:
        labels = self._labels_of(topic)
        now_ms = self._service.clock()
        backlog = delayed_bytes = consumers = 0
        messages_out, bytes_out = topic.messages_out_before, topic.bytes_out_before
        rate_out = throughput_out = ack_rate = 0.0
        for subscription in list(topic.subscriptions.values()):
            if topic.subscriptions.get(subscription.name) is not subscription:
                continue  # deleted between two steps
            stats = yield from subscription.stats_steps(now_ms, with_consumers=False)
            backlog += stats["msgBacklog"]
            delayed_bytes += stats["delayedMessageIndexSizeInBytes"]
            consumers += len(subscription.consumers)
            messages_out += stats["msgOutCounter"]
            bytes_out += stats["bytesOutCounter"]
            rate_out += stats["msgRateOut"]
            throughput_out += stats["msgThroughputOut"]
            ack_rate += stats["messageAckRate"]
            self._count_stall(subscription, stats, now_ms)
            if self._topic_level:
                yield from self._add_subscription(labels, subscription, stats)
            yield
        entries, messages, size, _ = topic.rates.rates
        stored = yield from topic.storage_stats()
        storage_bytes = stored.get("storageSize", 0)
        ledger = self._ledger_metrics(topic)
        metrics = (
            *(len(topic.subscriptions), len(topic.registry.by_name), consumers),
            *(messages, rate_out, size, throughput_out),
            *(topic.messages_in, topic.bytes_in, messages_out, bytes_out),
            *(ack_rate, storage_bytes * ledger.copies, storage_bytes),
            *(stored.get("backlogSize", 0), stored.get("offloadedStorageSize", 0)),
            *(entries, rate_out, ledger.read_misses / self._period_s, delayed_bytes, backlog),
        )
        sums = self._sum_up(topic, metrics)
        publish = self._publish_metrics(topic, ledger)
        if publish is not None:
            sums.publish = list(map(add, sums.publish or [0] * len(publish), publish))
        if topic.persistent:
            if sums.ledgers is None:
                sums.ledgers = LedgerSums()
            sums.ledgers.add(ledger, entries, size, rate_out, throughput_out, ack_rate)
        if self._topic_level:
            others = (
                size / messages if messages else 0.0,
                stored.get("backlogQuotaLimitSize", -1),
                stored.get("backlogQuotaLimitTime", -1),
                stored.get("oldestBacklogMessageAgeSeconds", -1),
                stored["publishRateLimitedTimes"],
            )
            self._topic_rows.add(labels, (*metrics, *others))
            if publish is not None:
                self._publish_rows.add(labels, publish)
            self._add_evictions(labels, topic)
            self._add_of_some(labels, topic)
            if self._producers:
                yield from self._add_producers(labels, topic)
        elif isinstance(topic, PersistentTopic):
            self._add_evictions("", topic)

    def _ledger_metrics(self, topic: Topic) -> LedgerPeriod:
        """Of the last period; of a topic that isn't stored: nothing."""
        if not isinstance(topic, PersistentTopic):
            return NO_LEDGER
        return ledger_period(topic.ledger, self._now_s, self._period_s)

    def _publish_metrics(self, topic: Topic, ledger: LedgerPeriod) -> tuple[float, ...] | None:
        """Write latencies and entry sizes; nothing for a topic that nobody published to."""
        if not isinstance(topic, PersistentTopic) or not topic.messages_in:
            return None
        latency, latency_ms, sizes, size = topic.publish_figures.period(self._now_s, self._period_s)
        writes, writes_ms = ledger.writes or (_NO_LATENCIES, 0.0)
        return (
            *(*latency, sum(latency), latency_ms),
            *(*writes, sum(writes), writes_ms),
            *(*sizes, sum(sizes), size, sizes[-1]),
        )

    def _sum_up(self, topic: Topic, metrics: tuple[float, ...]) -> _NamespaceSums:
        namespace = topic.name.namespace
        if (sums := self._of_namespace.get(namespace)) is None:
            sums = self._of_namespace[namespace] = _NamespaceSums()
        sums.topics += 1
        sums.metrics = list(map(add, sums.metrics, metrics))
        if topic.persistent:
            self.persistent_topics += 1
        if topic.is_system:
            self.system_bytes_in += topic.bytes_in
        return sums

    def _add_of_some(self, labels: str, topic: Topic) -> None:
        """What topics without compactions and transactions don't have."""
        if isinstance(topic, PersistentTopic):
            if topic.compaction is not None:
                metrics = topic.compaction.metrics(self._now_s, self._period_s)
                self._compaction_rows.add(labels, metrics)
            if topic.transactions is not None:
                self._participants.add_topic(labels, topic.transactions)

    def _add_evictions(self, labels: str, topic: Topic) -> None:
        """How often the backlog quota took messages away, by Pulsar's word for the quota."""
        if not isinstance(topic, PersistentTopic):
            return
        for quota, count in topic.backlog.evictions.items():
            kind = _QUOTA_TYPES[quota]
            self._evictions[kind] += count
            # The broker's series are always there, to tell the first one from a new topic.
            if count and self._topic_level:
                self._eviction_rows.add(f'{labels},quota_type="{kind}"', (count,))

    def _count_stall(self, subscription: Subscription, stats: dict[str, Any], now_ms: int) -> None:
        """By its reason, if nothing was delivered for a minute though there is something.

        Dispatch is asked only then, so a broker whose consumers get messages pays nothing for it.
        """
        if stats["msgBacklog"] <= stats["msgDelayed"]:
            return
        if subscription.consumers:
            connected_ms = min(each.connected_ms for each in subscription.consumers)
            if now_ms - max(connected_ms, stats["lastConsumedTimestamp"]) < STALL_MS:
                return
        if (found := subscription.explain(None)).is_stall:
            self._stalls[found.reason] += 1

    def _add_subscription(
        self, labels: str, subscription: Subscription, stats: dict[str, Any]
    ) -> Iterator[None]:
        labels = f"{labels},{label('subscription', subscription.name)}"
        metrics = [stats.get(field, 0) + 0 for _, field in _SUBSCRIPTION_FIELDS]  # + 0: no bool
        self._subscription_rows.add(labels, (*metrics, len(subscription.consumers)))
        self._participants.add_subscription(labels, subscription)
        for name, reason, field in _THROTTLED:
            if count := stats[field]:  # six series for each subscription otherwise
                self._throttled_rows[name].add(f'{labels},reason="{reason}"', (count,))
        if not subscription.topic.persistent:
            self._drop_rows.add(labels, (stats.get("msgDropRate", 0.0),))
        if not self._consumers:
            return
        for number, consumer in enumerate(list(subscription.consumers)):
            rate_out, throughput, rate_redeliver, rate_ack = consumer.rates.rates
            self._consumer_rows.add(
                f'{labels},{label("consumer_name", consumer.name)},consumer_id="{number}"',
                (
                    *(rate_redeliver, consumer.unacked, consumer.blocked + 0),
                    *(rate_out, rate_ack, throughput, consumer.permits),
                ),
            )
            if number % _BOUND == 0:
                yield

    def _add_producers(self, labels: str, topic: Topic) -> Iterator[None]:
        for number, producer in enumerate(list(topic.registry.by_name.values())):
            _, messages, size, _ = producer.rates.rates
            name, producer_id = label("producer_name", producer.name), producer.producer_id
            self._producer_rows.add(
                f'{labels},{name},producer_id="{producer_id}"',
                (messages, size, size / messages if messages else 0.0),
            )
            if number % _BOUND == 0:
                yield

    # --- all of a namespace

    def _add_namespaces(self) -> Iterator[None]:
        page = self._page
        if not self._of_namespace:  # an idle broker still shows that it serves nothing
            for name in ("pulsar_topics_count", *_SUMMED):
                page.add(name, page.base, 0)
        counts = page.table(("pulsar_topics_count",))
        # Topic series replace namespace series.
        rows = None if self._topic_level else page.table(_SUMMED[:-1])
        backlogs = page.table(_SUMMED[-1:])
        publish = page.table(_PUBLISH_NAMES)
        ledgers = LedgerTables(page)
        for namespace, sums in self._of_namespace.items():
            labels = f"{page.base},{label('namespace', namespace)}"
            counts.add(labels, (sums.topics,))
            self._total = list(map(add, self._total, sums.metrics))
            *metrics, backlog = sums.metrics
            if rows is not None:
                rows.add(labels, tuple(metrics))
                backlogs.add(f'{labels},remote_cluster="local"', (backlog,))
                if sums.publish is not None:
                    publish.add(labels, tuple(sums.publish))
            if sums.ledgers is not None:
                logical_size = sums.metrics[_LOGICAL_SIZE]
                ledgers.add(namespace, sums.ledgers, sums.publish, backlog, logical_size)
            yield
