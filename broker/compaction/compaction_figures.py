"""What compactions of one topic have done since it was loaded, as Pulsar counts it."""

from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, PeriodBuckets

_LATENCY_LIMITS_US: Final = [limit * 1000 for limit in LATENCY_LIMITS_MS]


@dataclass(slots=True)
class CompactionFigures:
    """Times in ms, 0: never.

    Attributes:
        removed, duration_ms: of the last run.
        removed_in_all, duration_in_all_ms: of all runs.
    """

    removed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0
    removed_in_all: int = 0
    duration_in_all_ms: int = 0
    successes: int = 0
    failures: int = 0
    _latencies: PeriodBuckets = field(default_factory=lambda: PeriodBuckets(_LATENCY_LIMITS_US))
    _reads: PeriodBuckets = field(default_factory=lambda: PeriodBuckets(()))  # their sums only
    _writes: PeriodBuckets = field(default_factory=lambda: PeriodBuckets(()))

    def read(self, size: int) -> None:
        """Bytes, by either pass."""
        self._reads.record(size)

    def wrote(self, entries: int, size: int, took_s: float) -> None:
        """Entries that were written together: each took so long."""
        self._latencies.record(took_s * 1_000_000, entries)
        self._writes.record(size)

    def ended(self, now_ms: int, took_s: float, removed: int | None) -> None:
        """removed: messages; None: the run has failed."""
        self.duration_ms = round(took_s * 1000)
        self.duration_in_all_ms += self.duration_ms
        if removed is None:
            self.failed_ms = now_ms
            self.failures += 1
            return
        self.removed, self.succeeded_ms = removed, now_ms
        self.removed_in_all += removed
        self.successes += 1

    def stats(self) -> dict[str, int]:
        """In the statistics of a topic."""
        return {
            "lastCompactionRemovedEventCount": self.removed,
            "lastCompactionSucceedTimestamp": self.succeeded_ms,
            "lastCompactionFailedTimestamp": self.failed_ms,
            "lastCompactionDurationTimeInMills": self.duration_ms,
        }

    def metrics(self, now_s: float, period_s: float) -> tuple[float, ...]:
        """Of all runs: removed messages, successes, failures, ms. Of the last whole period: bytes
        that were read and written a second, entries by the time that a write took (0.5 ms to
        above 1 s), their number, and µs of all of them.
        """
        counts, total_us = self._latencies.period(now_s, period_s)
        return (
            *(self.removed_in_all, self.successes, self.failures, self.duration_in_all_ms),
            *(each.period(now_s, period_s)[1] / period_s for each in (self._reads, self._writes)),
            *(*counts, sum(counts), total_us),
        )
