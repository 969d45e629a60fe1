"""Counts the work of one log for metrics: by period, as Pulsar shows it. Pure.

Each kind of event gets its counters when it happens for the first time: most logs are idle.
"""

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, PeriodBuckets


class LedgerMetrics:
    """Counters of one managed ledger; None: that never happened."""

    __slots__ = ("add_errors", "read_errors", "read_misses", "switches", "writes")

    def __init__(self) -> None:
        self.writes: PeriodBuckets | None = None
        """Milliseconds from handing entries to their ledger until they are durable there; without
        the time that they waited for a ledger to be created."""
        self.switches: PeriodBuckets | None = None
        """Milliseconds that new ledgers took."""
        self.add_errors: PeriodBuckets | None = None
        self.read_errors: PeriodBuckets | None = None
        self.read_misses: PeriodBuckets | None = None
        """Reads that went to storage."""

    def written(self, ms: float, entries: int) -> None:
        if self.writes is None:
            self.writes = PeriodBuckets(LATENCY_LIMITS_MS)
        self.writes.record(ms, entries)

    def switched(self, ms: float) -> None:
        if self.switches is None:
            self.switches = PeriodBuckets(LATENCY_LIMITS_MS)
        self.switches.record(ms)

    def add_failed(self, entries: int) -> None:
        if self.add_errors is None:
            self.add_errors = PeriodBuckets(())
        self.add_errors.record(1, entries)

    def read_failed(self) -> None:
        if self.read_errors is None:
            self.read_errors = PeriodBuckets(())
        self.read_errors.record(1)

    def read_missed(self) -> None:
        if self.read_misses is None:
            self.read_misses = PeriodBuckets(())
        self.read_misses.record(1)
