"""Rates from counters: one sweep reads the counters now and then; messages cost nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_STILL: Final = (0.0, 0.0, 0.0, 0.0)


class RateSampler:
    """Turns growing counters into rates per second, between the last two samples."""

    __slots__ = ("_counters", "_sampled_ms", "rates")

    def __init__(self) -> None:
        self._counters: Sequence[int] = (0, 0, 0, 0)
        self._sampled_ms = 0
        self.rates: Sequence[float] = _STILL

    def sample(self, now_ms: int, counters: Sequence[int], since_ms: int = 0) -> None:
        """Take a point; the first one only starts the measurement.

        Args:
            since_ms: nothing was counted before, if points were left out.
        """
        elapsed_ms = now_ms - max(self._sampled_ms, since_ms)
        has_passed = self._sampled_ms and elapsed_ms > 0
        if counters != self._counters:
            if has_passed:
                self.rates = [
                    (new - old) * 1000 / elapsed_ms
                    for new, old in zip(counters, self._counters, strict=True)
                ]
            self._counters = counters
        elif has_passed:
            self.rates = _STILL  # no lists of its own: each idle topic has three samplers
        self._sampled_ms = now_ms


_YEAR_9999_MS = 253_402_300_799_999


@lru_cache(1024)
def iso_time(ms: int) -> str:
    """ISO date of a time in milliseconds since 1970, as statistics show it.

    Times before 1970 or after 9999, which only a lying client sends, are shown as those limits.
    """
    seconds, rest_ms = divmod(min(max(ms, 0), _YEAR_9999_MS), 1000)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ms * 1000)
    return time.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
