"""How long a topic's entries took to be durable, and how large they were."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, SIZE_LIMITS, PeriodBuckets

PublishPeriod: TypeAlias = tuple[Sequence[int], float, Sequence[int], float]
"""Latency counts, their sum in ms, size counts, their sum."""
_NO_LATENCIES: Final = (0,) * (len(LATENCY_LIMITS_MS) + 1), 0
_NO_SIZES: Final = (0,) * (len(SIZE_LIMITS) + 1), 0


@dataclass(slots=True)
class PublishMetrics:
    """Write latency and entry sizes of one topic, in Pulsar's buckets, by period."""

    # Made when they are needed: most topics are idle.
    latency: PeriodBuckets | None = None
    sizes: PeriodBuckets | None = None

    def stored(self, ms: float, entries: int) -> None:
        """``entries`` became durable ``ms`` after they were published."""
        if self.latency is None:
            self.latency = PeriodBuckets(LATENCY_LIMITS_MS)
        self.latency.record(ms, entries)

    def published(self, bodies: Sequence[bytes], size: int) -> None:
        """A batch of entries, ``size`` bytes together."""
        if self.sizes is None:
            self.sizes = PeriodBuckets(SIZE_LIMITS)
        self.sizes.record_all(list(map(len, bodies)), size)

    def period(self, now_s: float, period_s: float) -> PublishPeriod:
        """Of the last whole period.

        Of the running one as long as there is no other.
        """
        latency = self.latency.period(now_s, period_s) if self.latency else _NO_LATENCIES
        sizes = self.sizes.period(now_s, period_s) if self.sizes else _NO_SIZES
        return (*latency, *sizes)
