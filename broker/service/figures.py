"""What the broker counts for its metrics page alone: durations and events, cheap enough to be on.

No clock: durations are given, and periods end when they are asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

__all__ = ["LATENCY_LIMITS_MS", "SIZE_LIMITS", "BrokerFigures", "Durations", "PublishFigures"]

LATENCY_LIMITS_MS: Final = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
"""Upper limits of Pulsar's buckets; one more bucket holds what is above."""
SIZE_LIMITS: Final = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
_STEPS: Final = 8  # buckets between a power of two and the next: quantiles to within 9 %
_LOWEST: Final = -10 * _STEPS  # about a microsecond
_SIZE: Final = 32 * _STEPS


class Durations:
    """Count, sum and quantiles of durations; quantiles are of the last one or two periods."""

    __slots__ = ("_before", "_counts", "_period_end_s", "count", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self._counts = [0] * _SIZE
        self._before = [0] * _SIZE
        self._period_end_s = 0.0

    def record(self, ms: float, count: int = 1) -> None:
        """``count`` things took ``ms`` each."""
        self.count += count
        self.sum_ms += ms * count
        step = math.ceil(math.log2(ms) * _STEPS) - _LOWEST if ms > 0 else 0
        self._counts[min(max(step, 0), _SIZE - 1)] += count

    def quantiles(self, wanted: Sequence[float], now_s: float, period_s: float) -> list[float]:
        """Upper bounds in ms, NaN when nothing was recorded lately (as Prometheus wants it)."""
        if now_s >= self._period_end_s:
            # Nobody asked for two periods: what there is, is old.
            stale = now_s >= self._period_end_s + period_s and self._period_end_s > 0
            self._before = [0] * _SIZE if stale else self._counts
            self._counts = [0] * _SIZE
            self._period_end_s = now_s + period_s
        counts = [old + new for old, new in zip(self._before, self._counts, strict=True)]
        total = sum(counts)
        return [self._quantile(counts, total, each) for each in wanted]

    @staticmethod
    def _quantile(counts: list[int], total: int, wanted: float) -> float:
        left = max(1, math.ceil(total * wanted))
        for step, count in enumerate(counts):
            left -= count
            if left <= 0:
                return float(2.0 ** ((step + _LOWEST) / _STEPS))
        return math.nan


class PublishFigures:
    """Write latency and entry sizes of one topic, in Pulsar's buckets, by period."""

    __slots__ = ("_last", "_period_end_s", "latency", "latency_ms", "size", "sizes")

    def __init__(self) -> None:
        self._reset()
        self._last: tuple[list[int], float, list[int], int] | None = None
        self._period_end_s = 0.0

    def _reset(self) -> None:
        self.latency = [0] * (len(LATENCY_LIMITS_MS) + 1)
        self.latency_ms = 0.0
        self.sizes = [0] * (len(SIZE_LIMITS) + 1)
        self.size = 0

    def stored(self, ms: float, entries: int) -> None:
        """``entries`` became durable ``ms`` after they were published."""
        self.latency[bisect_left(LATENCY_LIMITS_MS, ms)] += entries
        self.latency_ms += ms * entries

    def published(self, bodies: Sequence[bytes], size: int) -> None:
        """A batch of entries, ``size`` bytes together."""
        self.size += size
        sizes = list(map(len, bodies))
        low, high = bisect_left(SIZE_LIMITS, min(sizes)), bisect_left(SIZE_LIMITS, max(sizes))
        if low == high:  # as nearly always: one look-up for all
            self.sizes[low] += len(sizes)
            return
        for each in sizes:
            self.sizes[bisect_left(SIZE_LIMITS, each)] += 1

    def period(self, now_s: float, period_s: float) -> tuple[list[int], float, list[int], int]:
        """Latency counts, their sum in ms, size counts, their sum: of the last whole period.

        Of the running one as long as there is no other.
        """
        current = (self.latency, self.latency_ms, self.sizes, self.size)
        if self._period_end_s == 0:
            self._period_end_s = now_s + period_s
        elif now_s >= self._period_end_s:
            self._last = current
            self._period_end_s = now_s + period_s
            self._reset()
        return self._last or current


class BrokerFigures:
    """Events of the whole broker."""

    __slots__ = (
        "connections_closed",
        "connections_created",
        "connections_refused",
        "lookup",
        "lookup_failures",
        "publish",
        "topic_load",
    )

    def __init__(self) -> None:
        self.connections_created = 0
        self.connections_refused = 0
        self.connections_closed = 0
        self.lookup = Durations()
        self.lookup_failures = 0
        self.publish = Durations()
        self.topic_load = Durations()
