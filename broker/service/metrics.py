"""What the broker counts for its metrics page alone: durations and events, cheap enough to be on.

No clock: durations are given, and periods end when they are asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, TypeAlias

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, SIZE_LIMITS, Durations, PeriodBuckets

QUOTA_CHECK_LIMITS_S: Final = (5, 10, 30, 60, 300)


PublishPeriod: TypeAlias = tuple[Sequence[int], float, Sequence[int], int]
"""Latency counts, their sum in ms, size counts, their sum."""
_NO_LATENCIES: Final = (0,) * (len(LATENCY_LIMITS_MS) + 1)
_NO_SIZES: Final = (0,) * (len(SIZE_LIMITS) + 1)


class PublishMetrics:
    """Write latency and entry sizes of one topic, in Pulsar's buckets, by period."""

    __slots__ = ("_last", "_period_end_s", "latency", "latency_ms", "size", "sizes")

    def __init__(self) -> None:
        self._reset()
        self._last: PublishPeriod | None = None
        self._period_end_s = 0.0

    def _reset(self) -> None:
        self.latency: list[int] | None = None  # made when they are needed: most topics are idle
        self.latency_ms = 0.0
        self.sizes: list[int] | None = None
        self.size = 0

    def stored(self, ms: float, entries: int) -> None:
        """``entries`` became durable ``ms`` after they were published."""
        if self.latency is None:
            self.latency = [0] * len(_NO_LATENCIES)
        self.latency[bisect_left(LATENCY_LIMITS_MS, ms)] += entries
        self.latency_ms += ms * entries

    def published(self, bodies: Sequence[bytes], size: int) -> None:
        """A batch of entries, ``size`` bytes together."""
        self.size += size
        if self.sizes is None:
            self.sizes = [0] * len(_NO_SIZES)
        sizes = list(map(len, bodies))
        low, high = bisect_left(SIZE_LIMITS, min(sizes)), bisect_left(SIZE_LIMITS, max(sizes))
        if low == high:  # as nearly always: one look-up for all
            self.sizes[low] += len(sizes)
            return
        for each in sizes:
            self.sizes[bisect_left(SIZE_LIMITS, each)] += 1

    def period(self, now_s: float, period_s: float) -> PublishPeriod:
        """Of the last whole period.

        Of the running one as long as there is no other.
        """
        current = (
            self.latency or _NO_LATENCIES,
            self.latency_ms,
            self.sizes or _NO_SIZES,
            self.size,
        )
        if self._period_end_s == 0:
            self._period_end_s = now_s + period_s
        elif now_s >= self._period_end_s:
            self._last = current
            self._period_end_s = now_s + period_s
            self._reset()
        return self._last or current


class BrokerMetrics:
    """Events of the whole broker."""

    __slots__ = (
        "connections_closed",
        "connections_created",
        "connections_refused",
        "lookup",
        "lookup_failures",
        "publish",
        "quota_check",
        "topic_load",
        "topic_load_failures",
    )

    def __init__(self) -> None:
        self.connections_created = 0
        self.connections_refused = 0
        self.connections_closed = 0
        self.lookup = Durations()
        self.lookup_failures = 0
        self.publish = Durations()
        self.topic_load = Durations()
        self.topic_load_failures = 0
        """Storage or metadata failed, or the bundle is elsewhere; not: there is no such topic."""
        self.quota_check = PeriodBuckets(QUOTA_CHECK_LIMITS_S)
        """Seconds of each look at all backlogs; its period never ends."""
