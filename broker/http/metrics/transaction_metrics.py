"""Series of transactions: of coordinators, and of the topics and subscriptions that have some.

A topic or subscription that no transaction has used has none of them.
"""

import time
from typing import Final

from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.transaction.coordinator_metrics import (
    DURATION_LIMITS_MS,
    HELD_LIMITS_S,
    JOINED_BYTES_LIMITS,
    JOINED_LIMITS,
    CoordinatorsMetrics,
)
from magnetar.broker.transaction.topic_transactions import TopicTransactions

_COORDINATORS: Final = (
    "pulsar_txn_active_count",
    "pulsar_txn_created_total",
    "pulsar_txn_committed_total",
    "pulsar_txn_aborted_total",
    "pulsar_txn_timeout_total",
    "pulsar_txn_append_log_total",
    *(f"pulsar_txn_execution_latency_le_{each}" for each in (*DURATION_LIMITS_MS, "overflow")),
    "magnetar_txn_refused_total",
    "magnetar_txn_stuck_ends",
)
_TOPICS: Final = (
    "pulsar_txn_tb_active_total",
    "pulsar_txn_tb_aborted_total",
    "pulsar_txn_tb_committed_total",
)
_SUBSCRIPTIONS: Final = ("pulsar_txn_tp_committed_count_total", "pulsar_txn_tp_aborted_count_total")
_COMMITS: Final = ("pulsar_txn_tp_commit_latency_count", "pulsar_txn_tp_commit_latency_sum")
_JOINED: Final = "pulsar_txn_tc_bufferedwriter_"
_FLUSHES: Final = (
    "pulsar_txn_tc_bufferedwriter_flush_trigger_max_delay_total",
    "pulsar_txn_tc_bufferedwriter_flush_trigger_max_size_total",
)
_ENDS: Final = (
    "pulsar_txn_tb_client_pending_requests",
    *(
        f"pulsar_txn_tb_client_{action}_{name}"
        for action in ("commit", "abort")
        for name in ("latency_count", "latency_sum", "failed_total")
    ),
)


def add_coordinators(page: PrometheusPage, service: BrokerService) -> None:
    """Coordinators that are open at this broker."""
    if service.transactions is None:
        return
    table, now_s = page.table(_COORDINATORS), time.monotonic()
    for number, coordinator in service.transactions.opened().items():
        core = coordinator.core
        counts = core.metrics
        period_s = service.config.stats_update_frequency_in_secs
        durations, _ = counts.durations.period(now_s, period_s)
        table.add(
            f'{page.base},coordinator_id="{number}"',
            (
                *(len(core), counts.created, counts.committed, counts.aborted),
                *(counts.timed_out, counts.appended, *durations),
                *(counts.refused, counts.stuck),
            ),
        )
    _add_joined(page, service.transactions.metrics, service.broker_id)
    topic_level = service.config.expose_topic_level_metrics_in_prometheus
    _add_ends(page, service.transactions.metrics, topic_level=topic_level)


def _add_joined(page: PrometheusPage, metrics: CoordinatorsMetrics, broker_id: str) -> None:
    labels = f"{page.base},{label('broker', broker_id)}"
    for name, limits, buckets in (
        ("batch_records", JOINED_LIMITS, metrics.joined),
        ("batch_size_bytes", JOINED_BYTES_LIMITS, metrics.joined_bytes),
        ("batch_oldest_record_delay_seconds", HELD_LIMITS_S, metrics.held_s),
    ):
        page.add_histogram(_JOINED + name, limits, buckets.counts, buckets.total, labels)
    for name, count in zip(_FLUSHES, (metrics.timed, metrics.filled), strict=True):
        page.add(name, labels, count, "counter")


def _add_ends(page: PrometheusPage, metrics: CoordinatorsMetrics, *, topic_level: bool) -> None:
    page.add(_ENDS[0], page.base, metrics.under_way)
    table = page.table(_ENDS[1:])
    for (namespace, topic), both in metrics.ends(by_topic=topic_level).items():
        labels = f"{page.base},{label('namespace', namespace)}"
        if topic:
            labels += f",{label('topic', topic)}"
        values = (value for x in both for value in (x.count, x.total_s * 1e9, x.failed))
        table.add(labels, tuple(values))


class ParticipantMetrics:
    """Those of topics and subscriptions, for one page."""

    def __init__(self, page: PrometheusPage) -> None:
        self._topics, self._subscriptions = page.table(_TOPICS), page.table(_SUBSCRIPTIONS)
        self._commits = page.table(_COMMITS)

    def add_topic(self, labels: str, transactions: TopicTransactions) -> None:
        self._topics.add(labels, tuple(transactions.stats().values()))

    def add_subscription(self, labels: str, subscription: Subscription) -> None:
        """Args:
        labels: with the subscription's.
        """
        if not isinstance(subscription, PersistentSubscription):
            return
        if (transactions := subscription.transactions) is not None:
            log = transactions.log
            counts = log.core.committed_count, log.core.aborted_count
            self._subscriptions.add(f'{labels},status="succeed"', counts)
            self._commits.add(labels, (log.commits, log.commits_s * 1e6))
