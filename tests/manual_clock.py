"""An event loop's clock and timers by hand: time passes when a test says so."""

import heapq
import itertools
from collections.abc import Callable


class ManualTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """Stands in for an event loop where only ``time`` and ``call_later`` are asked for."""

    def __init__(self) -> None:
        self._now_us = 0
        self._heap: list[tuple[int, int, ManualTimer, Callable[[], None]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self._now_us / 1_000_000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer()
        due = self._now_us + round(delay_s * 1_000_000)
        heapq.heappush(self._heap, (due, next(self._order), timer, callback))
        return timer

    @property
    def timers(self) -> int:
        """Timers that will fire."""
        return sum(not timer.cancelled for _, _, timer, _ in self._heap)

    def advance(self, milliseconds: int) -> None:
        """Let time pass and fire what becomes due, in order."""
        end = self._now_us + milliseconds * 1_000
        while self._heap and self._heap[0][0] <= end:
            due, _, timer, callback = heapq.heappop(self._heap)
            self._now_us = max(self._now_us, due)
            if not timer.cancelled:
                callback()
        self._now_us = end
