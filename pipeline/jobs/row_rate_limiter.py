"""How long to wait so that rows leave at a steady rate. Pure."""

from __future__ import annotations


class RowRateLimiter:
    """Spreads rows evenly over time; a late start isn't made up for by a burst.

    Args:
        rows_per_s: above 0.
    """

    def __init__(self, rows_per_s: float) -> None:
        assert rows_per_s > 0
        self._interval_s = 1 / rows_per_s
        self._free_at_s: float | None = None  # when the next row may leave

    def wait_s(self, now_s: float, rows: int) -> float:
        """Seconds until these rows may leave; they count as gone then."""
        at_s = now_s if self._free_at_s is None else max(now_s, self._free_at_s)
        self._free_at_s = at_s + rows * self._interval_s
        return at_s - now_s
