"""Series of a bookie under Apache BookKeeper's names.

Pulsar's standalone process doesn't show its own bookie; a bookie that runs by itself does so, and
the dashboards for it ask for these names.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.loop_stalls import CAUSES, LoopStalls
from magnetar.bookkeeper.metrics import Durations
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label

if TYPE_CHECKING:
    from magnetar.bookkeeper.bookie.bookie import Bookie

_WANTED: Final = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0")
BookieDisk = tuple[int, int]
"""Free and total bytes."""


def bookie_disk(bookie: Bookie) -> BookieDisk:
    """Ask the system, which may wait for a slow disk: not for the loop."""
    files = bookie.storage.file_system
    return files.free_bytes(), files.total_bytes()


def add_bookie_metrics(
    page: PrometheusPage, bookie: Bookie, disk: BookieDisk, period_s: float
) -> None:
    """Everything that is known of one bookie.

    Args:
        period_s: that quantiles are of.
    """
    _add_server(page, bookie, disk, period_s)
    _add_journal(page, bookie, period_s)
    _add_storage(page, bookie, period_s)
    _add_collections(page, bookie, period_s)
    _add_integrity(page, bookie)
    if bookie.metrics.loop_stalls is not None:
        add_stalls(page, bookie.metrics.loop_stalls)


def add_successes(
    page: PrometheusPage, name: str, durations: Durations, period_s: float, labels: str = ""
) -> None:
    """The summary of what succeeded, with BookKeeper's quantiles."""
    labels = f'{labels or page.base},success="true"'
    page.add_durations(name, durations, _WANTED, time.monotonic(), period_s, labels)


def _failures(page: PrometheusPage, name: str, count: int) -> None:
    """Behind the summary of what succeeded."""
    page.add_summary(name, (), count, 0, f'{page.base},success="false"')


def _add_server(page: PrometheusPage, bookie: Bookie, disk: BookieDisk, period_s: float) -> None:
    base, metrics = page.base, bookie.metrics
    writable = not bookie.read_only and bookie.error is None
    free, total = disk
    page.add("bookie_SERVER_STATUS", base, int(writable))
    page.add("bookie_ledgers_count", base, len(bookie.storage.ledgers))
    page.add("bookie_ledger_writable_dirs", base, int(writable))
    page.add("bookie_ledger_num_dirs", base, 1)
    page.add("bookie_ledger_dir_usage", base, 100 * (1 - free / total) if total else 0.0)
    page.add("bookie_WRITE_BYTES", base, metrics.added_bytes, "counter")
    page.add("bookie_READ_BYTES", base, metrics.read_bytes, "counter")
    for suffix in ("", "_REQUEST"):  # one and the same: there is no queue of threads in front
        name = f"bookkeeper_server_ADD_ENTRY{suffix}"
        add_successes(page, name, metrics.journal_add, period_s)
        _failures(page, name, metrics.refused_adds)
        name = f"bookkeeper_server_READ_ENTRY{suffix}"
        add_successes(page, name, metrics.reads, period_s)
        _failures(page, name, metrics.failed_reads)
    queued = sum(journal.queued_entries for journal in bookie.storage.journals)
    page.add("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", base, queued)


def _add_journal(page: PrometheusPage, bookie: Bookie, period_s: float) -> None:
    metrics = bookie.metrics
    base = f'{page.base},journalIndex="0"'
    groups = metrics.journal_sync.count
    add_successes(page, "bookie_journal_JOURNAL_SYNC", metrics.journal_sync, period_s, base)
    add_successes(page, "bookie_journal_JOURNAL_ADD_ENTRY", metrics.journal_add, period_s, base)
    for name, total in (
        ("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES", metrics.added_entries),
        ("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES", metrics.journal_bytes),
    ):
        page.add_summary(name, (), groups, total, f'{base},success="true"')
    page.add("bookie_journal_JOURNAL_WRITE_BYTES", base, metrics.journal_bytes, "counter")
    for number, journal in enumerate(bookie.storage.journals):
        labels = f'{page.base},journalIndex="{number}"'
        page.add("bookie_journal_JOURNAL_QUEUE_SIZE", labels, journal.queued_entries)
        page.add("bookie_journal_JOURNAL_MEMORY_USED", labels, journal.queued_bytes)
    page.add(
        "bookie_journal_JOURNAL_MEMORY_MAX", base, bookie.storage.config.journal_queue_bytes_max
    )


def _add_storage(page: PrometheusPage, bookie: Bookie, period_s: float) -> None:
    base, metrics, storage = page.base, bookie.metrics, bookie.storage
    halves = [storage.active, *([storage.flushing] if storage.flushing is not None else [])]
    page.add("bookie_write_cache_size", base, sum(half.bytes for half in halves))
    page.add("bookie_write_cache_count", base, sum(half.entry_count for half in halves))
    page.add("bookie_write_cache_hits", base, metrics.cached_reads, "counter")
    page.add("bookie_write_cache_misses", base, metrics.stored_reads, "counter")
    ahead = bookie.read_ahead
    page.add("bookie_read_cache_size", base, ahead.bytes)
    page.add("bookie_read_cache_count", base, ahead.chunk_count)
    page.add("bookie_read_cache_hits", base, ahead.hits, "counter")
    page.add("bookie_read_cache_misses", base, ahead.misses, "counter")
    add_successes(page, "bookie_read_entry", metrics.reads, period_s)
    add_successes(page, "bookie_flush", metrics.flush, period_s)
    add_successes(page, "bookie_flush_size", metrics.flush_bytes, period_s)


def _add_collections(page: PrometheusPage, bookie: Bookie, period_s: float) -> None:
    base, metrics, logs = page.base, bookie.metrics, list(bookie.storage.logs.logs.values())
    page.add("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES", base, sum(log.end for log in logs))
    for suffix in ("COUNT", "TOTAL"):  # before and since BookKeeper 4.16
        page.add(f"bookie_ACTIVE_ENTRY_LOG_{suffix}", base, len(logs))
        page.add(f"bookie_ACTIVE_LEDGER_{suffix}", base, len(bookie.storage.ledgers))
        for name, value in (
            (f"DELETED_LEDGER_{suffix}", metrics.deleted_ledgers),
            (f"MINOR_COMPACTION_{suffix}", metrics.compactions["minor"]),
            (f"MAJOR_COMPACTION_{suffix}", metrics.compactions["major"]),
            (f"FORCED_COMPACTION_{suffix}", metrics.compactions["forced"]),
        ):
            page.add(f"bookie_{name}", base, value, "counter")
    page.add("bookie_RECLAIMED_DELETION_SPACE_BYTES", base, metrics.deleted_logs_bytes, "counter")
    freed = metrics.compacted_logs_bytes
    page.add("bookie_RECLAIMED_COMPACTION_SPACE_BYTES", base, freed, "counter")
    add_successes(page, "bookie_THREAD_RUNTIME", metrics.compaction, period_s)
    page.add("bookie_EMPTIED_LEDGER_COUNT", base, metrics.emptied_ledgers, "counter")
    page.add("bookie_LIVE_ENTRY_LOG_SPACE_BYTES", base, sum(log.live for log in logs))
    page.add("bookie_DAMAGED_ENTRY_LOG_COUNT", base, len(bookie.storage.damaged_logs))
    running = metrics.last_compaction
    if running is not None and running.done:
        running = None
    for name, value in (
        ("RUNNING", int(running is not None)),
        ("LOGS_LEFT", running.logs_left if running else 0),
        ("BYTES_LEFT", running.bytes_left if running else 0),
        ("BYTES_MOVED", running.bytes_moved if running else 0),
    ):
        page.add(f"bookie_COMPACTION_{name}", base, value)


def _add_integrity(page: PrometheusPage, bookie: Bookie) -> None:
    """Damage and lost data: our own names, under BookKeeper's prefix."""
    base, storage, integrity = page.base, bookie.storage, bookie.integrity
    in_limbo = storage.limbo_phase != 0
    page.add("bookie_LIMBO", base, int(in_limbo))
    page.add("bookie_LIMBO_LEDGERS", base, len(storage.limbo_ledgers()) if in_limbo else 0)
    page.add("bookie_DISPUTED_LEDGERS", base, len(storage.disputed))
    if integrity is None:
        return
    metrics = integrity.metrics
    page.add("bookie_DAMAGED_ENTRIES", base, integrity.damaged_now)
    for name, value in (
        ("DAMAGED_ENTRIES_FOUND", metrics.damaged_entries),
        ("DAMAGED_ENTRIES_REPAIRED", metrics.repaired_entries),
        ("RESTORED_ENTRIES", metrics.restored_entries),
        ("RESTORED_BYTES", metrics.restored_bytes),
        ("SCRUB_BYTES", metrics.scrubbed_bytes),
        ("SCRUB_PASSES", metrics.scrub_passes),
    ):
        page.add(f"bookie_{name}", base, value, "counter")


def add_stalls(page: PrometheusPage, stalls: LoopStalls) -> None:
    """The event loop's long turns."""
    for cause in CAUSES:
        labels = f"{page.base},{label('cause', cause)}"
        name = "magnetar_loop_stall_seconds"
        page.add(f"{name}_sum", labels, stalls.seconds[cause], "counter")
        page.add(f"{name}_count", labels, stalls.counts[cause], "counter")
        page.add(f"{name}_max", labels, stalls.longest_s[cause])
