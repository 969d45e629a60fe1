"""Counted events with a duration or a size, cheap enough to be on at all times: for metrics.

No clock: durations are given, and periods end when they are read. Pure.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, log2, nan
from operator import sub
from typing import Final

LATENCY_LIMITS_MS: Final = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
"""Upper limits of Pulsar's buckets; one more bucket holds what is above."""
SIZE_LIMITS: Final = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)
_STEPS: Final = 8  # buckets between a power of two and the next: quantiles to within 9 %
_LOWEST: Final = -10 * _STEPS  # about a microsecond, for durations in milliseconds
_LEAST: Final = 2.0 ** (_LOWEST / _STEPS)
_SIZE: Final = 44 * _STEPS  # up to 2**34, for sizes in bytes


class Durations:
    """Count, sum and quantiles of durations; quantiles are of the last one or two periods.

    Sizes and counts fit as well: anything from a thousandth to some billions.
    """

    __slots__ = ("_before", "_between", "_period_end_s", "count", "counts", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.counts = [0] * _SIZE
        """By step, since the start."""
        self._before = self._between = self.counts.copy()  # when the periods began
        self._period_end_s = 0.0

    def record(self, ms: float, count: int = 1) -> None:
        """``count`` things took ``ms`` each."""
        self.count += count
        self.sum_ms += ms * count
        step = ceil(log2(ms) * _STEPS) - _LOWEST if ms > _LEAST else 0
        self.counts[step if step < _SIZE else -1] += count

    def quantiles(self, wanted: Sequence[float], now_s: float, period_s: float) -> list[float]:
        """Upper bounds in ms, NaN when nothing was recorded lately (as Prometheus wants it)."""
        if now_s >= self._period_end_s:
            now = self.counts.copy()
            # Nobody asked for two periods: what there is, is old.
            stale = now_s >= self._period_end_s + period_s and self._period_end_s > 0
            self._before, self._between = now if stale else self._between, now
            self._period_end_s = now_s + period_s
        return _quantiles(map(sub, self.counts, self._before), wanted)


class RecentDurations:
    """Quantiles of what was recorded between two questions, whoever else asks for others."""

    __slots__ = ("_before", "_durations")

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._before = durations.counts.copy()

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """Since the last call: upper bounds in ms, NaN when nothing was recorded."""
        before, self._before = self._before, self._durations.counts.copy()
        return _quantiles(map(sub, self._before, before), wanted)


def _quantiles(counts: Iterable[int], wanted: Sequence[float]) -> list[float]:
    upto = list(accumulate(counts))
    if not (total := upto[-1]):
        return [nan] * len(wanted)
    ranks = [max(1, ceil(total * each)) for each in wanted]
    return [2.0 ** ((bisect_left(upto, rank) + _LOWEST) / _STEPS) for rank in ranks]


class PeriodBuckets:
    """Counts by upper limit, and their sum: of the running period and of the last whole one."""

    __slots__ = ("_last", "_limits", "_period_end_s", "counts", "total")

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = limits
        self.counts = [0] * (len(limits) + 1)  # the last one: above all limits
        self.total: float = 0
        self._last: tuple[list[int], float] | None = None
        self._period_end_s = 0.0

    def record(self, value: float, count: int = 1) -> None:
        """``count`` things of this value."""
        self.counts[bisect_left(self._limits, value)] += count
        self.total += value * count

    def record_all(self, values: Sequence[float], total: float) -> None:
        """Many at once, ``total`` together; most fall into one bucket."""
        limits, counts = self._limits, self.counts
        low, high = bisect_left(limits, min(values)), bisect_left(limits, max(values))
        if low == high:
            counts[low] += len(values)
        else:
            for each in values:
                counts[bisect_left(limits, each)] += 1
        self.total += total

    def period(self, now_s: float, period_s: float) -> tuple[list[int], float]:
        """Counts and sum of the last whole period; of the running one while there is no other."""
        if self._period_end_s == 0:
            self._period_end_s = now_s + period_s
        elif now_s >= self._period_end_s:
            self._last = self.counts, self.total
            self._period_end_s = now_s + period_s
            self.counts, self.total = [0] * len(self.counts), 0
        return self._last or (self.counts, self.total)
