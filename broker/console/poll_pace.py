"""How often pages fetch themselves: rarer when all of them together cost much; pure."""

from math import ceil
from typing import Final

SHARE_MAX: Final = 0.02
"""Of a processor, for the pages that are open; what they show is collected for as much again."""
BASE_S: Final = 5
FACTOR_MAX: Final = 24
_ROUTE_S: Final = 0.0004
"""What a request costs beside its page."""


class PollPace:
    """Measures a while, then says how many times as long pages shall wait.

    Invariant: pages that obey take at most ``SHARE_MAX``, as long as ``FACTOR_MAX`` suffices. What
    is measured while pages still learn of another pace doesn't count.
    """

    def __init__(self, now_s: float) -> None:
        self.factor = 1
        self._begin_s = now_s
        self._cost_s = 0.0
        self._making = 0  # pages
        self._used_s = 0.0

    def begin(self, used_s: float) -> None:
        """A page is being made. ``used_s``: of a processor, by all work of the loop so far."""
        if not self._making:
            self._used_s = used_s
        self._making += 1

    def end(self, now_s: float, used_s: float) -> None:
        """It was fetched. What was used while others were being made, too, counts once."""
        self._making -= 1
        cost_s, self._used_s = used_s - self._used_s, used_s
        self.add(now_s, cost_s)

    def add(self, now_s: float, cost_s: float) -> None:
        """A page was fetched by itself; ``cost_s``: seconds of a processor."""
        if now_s < self._begin_s:
            return
        self._cost_s += cost_s + _ROUTE_S
        took_s = now_s - self._begin_s
        if took_s < 2 * BASE_S * self.factor:
            return
        before = self.factor
        needed = self._cost_s / took_s * before / SHARE_MAX
        self.factor = min(FACTOR_MAX, max(1, ceil(needed)))
        self._cost_s = 0.0
        self._begin_s = now_s + (0 if self.factor == before else BASE_S * before)
