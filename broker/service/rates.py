"""Rates from counters: one sweep reads the counters now and then; messages cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

__all__ = ["RateSampler", "iso_time"]


class RateSampler:
    """Turns growing counters into rates per second, between the last two samples."""

    __slots__ = ("_counters", "_sampled_ms", "rates")

    def __init__(self) -> None:
        self._counters: Sequence[int] = (0, 0, 0, 0)
        self._sampled_ms = 0
        self.rates: Sequence[float] = (0.0, 0.0, 0.0, 0.0)

    def sample(self, now_ms: int, counters: Sequence[int]) -> None:
        """Take a point; the first one only starts the measurement."""
        elapsed_ms = now_ms - self._sampled_ms
        if self._sampled_ms and elapsed_ms > 0:
            self.rates = [
                (new - old) * 1000 / elapsed_ms
                for new, old in zip(counters, self._counters, strict=True)
            ]
        self._counters, self._sampled_ms = counters, now_ms


_YEAR_9999_MS = 253_402_300_799_999


def iso_time(ms: int) -> str:
    """ISO date of a time in milliseconds since 1970, as statistics show it.

    Times before 1970 or after 9999, which only a lying client sends, are shown as those limits.
    """
    time = datetime.fromtimestamp(min(max(ms, 0), _YEAR_9999_MS) / 1000, UTC)
    return time.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
