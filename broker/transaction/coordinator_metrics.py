"""Core: what a coordinator counts for metrics, from its replay on."""

from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.metrics import PeriodBuckets

DURATION_LIMITS_MS: Final = (
    *(10, 20, 50, 100, 500, 1000, 5000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000),
)
"""Upper limits of Pulsar's buckets; one more holds what is above."""


@dataclass(slots=True)
class CoordinatorMetrics:
    """Events of one coordinator.

    Attributes:
        committed, aborted: transactions whose participants all have the end; timed out ones are
            aborted, too.
        refused: new ones above the limit, which get no answer.
        appended: what was added to the log, joined or not.
        stuck: transactions that are there now and whose participants couldn't end them yet.
        durations: ms from the begin to the end.
    """

    created: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    refused: int = 0
    appended: int = 0
    stuck: int = 0
    durations: PeriodBuckets = field(default_factory=lambda: PeriodBuckets(DURATION_LIMITS_MS))
    _ended: list[int] = field(default_factory=list)  # when they began; not in ``durations`` yet

    def on_ended(self, start_ms: int, *, commits: bool) -> None:
        """``measure`` follows soon, with the time of the end."""
        if commits:
            self.committed += 1
        else:
            self.aborted += 1
        self._ended.append(start_ms)

    def measure(self, now_ms: int) -> None:
        """The time now, which is also that of the ends since the last call."""
        for start_ms in self._ended:
            self.durations.record(max(0, now_ms - start_ms))
        self._ended.clear()
