"""Series of transactions: of coordinators, and of the topics and subscriptions that have some.

A topic or subscription that no transaction has used has none of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from magnetar.broker.http.metrics.prometheus_page import PrometheusPage
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.transaction.coordinator_metrics import DURATION_LIMITS_MS

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.subscription.subscription import Subscription
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


class ParticipantMetrics:
    """Those of topics and subscriptions, for one page."""

    def __init__(self, page: PrometheusPage) -> None:
        self._topics, self._subscriptions = page.table(_TOPICS), page.table(_SUBSCRIPTIONS)

    def add_topic(self, labels: str, transactions: TopicTransactions) -> None:
        self._topics.add(labels, tuple(transactions.stats().values()))

    def add_subscription(self, labels: str, subscription: Subscription) -> None:
        """Args:
        labels: with the subscription's.
        """
        if not isinstance(subscription, PersistentSubscription):
            return
        if (transactions := subscription.transactions) is not None:
            core = transactions.log.core
            counts = core.committed_count, core.aborted_count
            self._subscriptions.add(f'{labels},status="succeed"', counts)
