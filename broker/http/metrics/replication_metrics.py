"""Series of auto-recovery under Apache BookKeeper's names: auditor_*, replication_worker_*.

Series that BookKeeper doesn't have are in lower case: zones, their alert, the switch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from magnetar.broker.http.metrics.bookie_metrics import add_successes
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label

if TYPE_CHECKING:
    from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery
    from magnetar.bookkeeper.replication.metrics import AuditorMetrics, ReplicationMetrics


def add_replication_metrics(page: PrometheusPage, recovery: AutoRecovery, period_s: float) -> None:
    """Everything that is known of one process's auto-recovery.

    Args:
        period_s: that quantiles are of.
    """
    _add_auditor(page, recovery.metrics, period_s)
    _add_checks(page, recovery.metrics, period_s)
    _add_workers(page, [worker.metrics for worker in recovery.workers], period_s)


def _add_auditor(page: PrometheusPage, metrics: AuditorMetrics, period_s: float) -> None:
    base = page.base
    page.add("auditor_election_attempts", base, metrics.election_attempts, "counter")
    page.add("auditor_is_auditor", base, int(metrics.is_auditor))
    page.add("auditor_replication_disabled", base, int(metrics.disabled))
    page.add("auditor_all_zones_down", base, int(metrics.all_zones_down))
    for name, (phase, available, registered) in sorted(metrics.zones.items()):
        labels = f"{base},{label('zone', name)}"
        # The alert: also while an operator lets the zone be copied, until it is back.
        page.add("auditor_zone_down", labels, int(phase != "up"))
        page.add("auditor_zone_suspended", labels, int(phase in ("down", "held")))
        page.add("auditor_zone_bookies_available", labels, available)
        page.add("auditor_zone_bookies_registered", labels, registered)
    page.add("auditor_lost_bookies", base, metrics.lost_bookies)
    page.add("auditor_NUM_BOOKIE_AUDITS_DELAYED", base, metrics.audits_delayed, "counter")
    name = "auditor_NUM_DELAYED_BOOKIE_AUDITS_DELAYES_CANCELLED"
    page.add(name, base, metrics.audits_cancelled, "counter")
    add_successes(page, "auditor_AUDIT_BOOKIES_TIME", metrics.audits, period_s)
    add_successes(page, "auditor_NUM_UNDER_REPLICATED_LEDGERS", metrics.marked_ledgers, period_s)
    page.add("auditor_under_replicated_ledgers", base, metrics.marked_now)
    name = "auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"
    page.add(name, base, metrics.marked_over_grace)
    page.add("auditor_unreadable_ledgers", base, metrics.unreadable_ledgers)


def _add_checks(page: PrometheusPage, metrics: AuditorMetrics, period_s: float) -> None:
    base = page.base
    add_successes(page, "auditor_CHECK_ALL_LEDGERS_TIME", metrics.check_all_ledgers, period_s)
    add_successes(page, "auditor_PLACEMENT_POLICY_CHECK_TIME", metrics.placement_check, period_s)
    add_successes(page, "auditor_REPLICAS_CHECK_TIME", metrics.replicas_check, period_s)
    add_successes(page, "auditor_NUM_FRAGMENTS_PER_LEDGER", metrics.fragments_per_ledger, period_s)
    add_successes(page, "auditor_NUM_BOOKIES_PER_LEDGER", metrics.bookies_per_ledger, period_s)
    page.add("auditor_NUM_LEDGERS_CHECKED", base, metrics.checked_ledgers)
    page.add("auditor_NUM_SKIPPING_CHECK_TASK_TIMES", base, metrics.skipped_checks, "counter")
    for name, value in (
        ("auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", metrics.not_adhering),
        ("auditor_NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY", metrics.softly_adhering),
        ("auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY", metrics.no_replica),
        ("auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY", metrics.under_ack_quorum),
        (
            "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
            metrics.under_write_quorum,
        ),
        ("auditor_ledgers_with_unknown_replicas", metrics.replicas_unknown),
    ):
        page.add(name, base, value)


def _add_workers(
    page: PrometheusPage, metrics: Iterable[ReplicationMetrics], period_s: float
) -> None:
    for number, worker in enumerate(metrics):
        base = f'{page.base},worker="{number}"'
        for name, value in (
            ("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", worker.ledgers_repaired),
            ("NUM_ENTRIES_WRITTEN", worker.entries_copied),
            ("NUM_BYTES_WRITTEN", worker.bytes_copied),
            ("NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION", worker.unreadable_entries),
            ("markers_cleared", worker.ledgers_cleared),
            ("ledgers_recovered", worker.ledgers_recovered),
            ("members_replaced", worker.members_replaced),
            ("members_filled", worker.members_filled),
            ("entries_resumed", worker.entries_resumed),
            ("failures", worker.failures),
        ):
            page.add(f"replication_worker_{name}", base, value, "counter")
        page.add("replication_worker_ledgers_under_repair", base, worker.ledgers_under_repair)
        page.add("replication_worker_ledgers_waiting", base, worker.ledgers_waiting)
        add_successes(page, "replication_worker_rereplicate", worker.repair, period_s, base)
