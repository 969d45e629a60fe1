"""Figures of the last hours, in memory, of the rows that matter most.

A point has the figures of all rows at one time, in one array of 32-bit floats. The last ten minutes
have a point every ten seconds while somebody looks, what is older has one a minute.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Final

POINTS_MAX: Final = 360
POINT_MS: Final = 10_000
FINE_MS: Final = 600_000
"""What is older has a point every ``COARSE_MS``."""
COARSE_MS: Final = 60_000
SAME_START_MS: Final = 120_000
"""Brokers that begin within it have begun together."""
_SPARKLINE_MS: Final = 3_600_000
_REPLACED_MAX: Final = 200
"""Rows that are exchanged at a point: half a millisecond."""
_BETTER: Final = 1.25
"""So many times as important must a row be that takes another one's place: else two rows of about
the same traffic would take turns, and neither had a line."""


@dataclass(frozen=True, slots=True)
class Series:
    """Of one row, the oldest point first."""

    times_ms: list[int]
    """Since 1970."""
    values: dict[str, list[float]]
    """By field, as many each; NaN: not known at that time."""


class History:
    """Points of at most ``rows_max`` rows; memory: 4 bytes a row, field and point.

    Invariant: ``_times_ms`` and ``_points`` are of the same length. A row keeps its slot; what
    points before ``_since_ms`` of its slot have is another row's.
    """

    def __init__(self, fields: Sequence[str], rows_max: int) -> None:
        self.fields = tuple(fields)
        self._rows_max = rows_max
        self._times_ms = array("q")
        self._points: list[array[float]] = []
        self._coarse = 0  # points before this one are thinned out
        self._slot_of: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._since_ms = array("q")
        self._free: list[int] = []
        self._least = 0.0  # what a new row has to be worth when all slots are taken
        self._draft: PointDraft | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def stored_bytes(self) -> int:
        """Of all points."""
        return sum(len(point) * point.itemsize for point in self._points)

    def begin(self, now_ms: int) -> PointDraft | None:
        """A point to be filled; None: ``POINT_MS`` have not passed since the last one, or one is
        being filled. One that takes longer than a minute is given up.
        """
        if self._times_ms and 0 <= now_ms - self._times_ms[-1] < POINT_MS:
            return None
        if self._draft is not None and 0 <= now_ms - self._draft.now_ms < COARSE_MS:
            return None
        self._draft = PointDraft(self, now_ms)
        return self._draft

    def series(self, key: Hashable) -> Series | None:
        """None: the row isn't among those that are kept."""
        if (slot := self._slot_of.get(key)) is None:
            return None
        width = len(self.fields)
        first = bisect_left(self._times_ms, self._since_ms[slot])
        place, points = slot * width, self._points[first:]
        values = {
            field: [point[place + at] for point in points] for at, field in enumerate(self.fields)
        }
        return Series(self._times_ms[first:].tolist(), values)

    def sparkline(self, key: Hashable, field: str, count: int) -> list[float]:
        """A field at even distances in the last hour, or since the row is kept; the latest last.

        Args:
            count: values at most, 2 or more; fewer if there are fewer points.
        """
        times_ms = self._times_ms
        if (slot := self._slot_of.get(key)) is None or not times_ms:
            return []
        last_ms = times_ms[-1]
        first = bisect_left(times_ms, max(self._since_ms[slot], last_ms - _SPARKLINE_MS))
        place = slot * len(self.fields) + self.fields.index(field)
        if len(times_ms) - first <= count:
            return [point[place] for point in self._points[first:]]
        first_ms = times_ms[first]
        step_ms = (last_ms - first_ms) / (count - 1)
        marks = (first_ms + step_ms * at for at in range(count))
        return [
            self._points[bisect_left(times_ms, mark, first, len(times_ms) - 1)][place]
            for mark in marks
        ]

    def growth(self, key: Hashable, field: str, now: float, now_ms: int) -> float | None:
        """By how much a second it has grown, in one to five minutes; None: not known."""
        if (slot := self._slot_of.get(key)) is None:
            return None
        at = bisect_left(self._times_ms, now_ms - COARSE_MS) - 1
        oldest_ms = max(self._since_ms[slot], now_ms - 5 * COARSE_MS)
        if at < 0 or self._times_ms[at] < oldest_ms:
            return None
        value = self._points[at][slot * len(self.fields) + self.fields.index(field)]
        return (now - value) * 1000 / (now_ms - self._times_ms[at])

    def _slot(self, key: Hashable, now_ms: int) -> int:
        """Of a row that is kept, or may be as there is room; -1: all are taken."""
        if (slot := self._slot_of.get(key)) is not None:
            return slot
        if self._free:
            slot = self._free.pop()
            self._keys[slot], self._since_ms[slot] = key, now_ms
        elif len(self._keys) < self._rows_max:
            slot = len(self._keys)
            self._keys.append(key)
            self._since_ms.append(now_ms)
        else:
            return -1
        self._slot_of[key] = slot
        return slot

    def _forget(self, slot: int) -> None:
        del self._slot_of[self._keys[slot]]
        self._keys[slot] = None
        self._free.append(slot)

    def _append(self, now_ms: int, point: array[float]) -> None:
        times_ms = self._times_ms
        while times_ms and times_ms[-1] >= now_ms:  # the clock was set back
            del times_ms[-1], self._points[-1]
        self._coarse = min(self._coarse, len(times_ms))
        times_ms.append(now_ms)
        self._points.append(point)
        while times_ms[self._coarse] < now_ms - FINE_MS:
            at = self._coarse
            if at and times_ms[at] - times_ms[at - 1] < COARSE_MS:
                del times_ms[at], self._points[at]
            else:
                self._coarse += 1
        if len(times_ms) > POINTS_MAX:
            del times_ms[0], self._points[0]
            self._coarse = max(0, self._coarse - 1)


class PointDraft:
    """A point that is being taken, row by row; nothing of it is in the history before ``end``."""

    def __init__(self, history: History, now_ms: int) -> None:
        self._history, self.now_ms = history, now_ms
        self._width = len(history.fields)
        self._figures = array("f", [nan]) * (len(history._keys) * self._width)
        self._worth = array("f", [nan]) * len(history._keys)  # by slot; NaN: not seen
        self._others: list[tuple[float, int, Hashable, Sequence[float]]] = []  # a heap
        self._offered = 0

    def add(self, key: Hashable, figures: Sequence[float], worth: float) -> None:
        """A row that is there, with its figures in the order of the fields.

        Args:
            worth: the rows that are worth most are kept if there are too many.
        """
        history = self._history
        slot = history._slot(key, self.now_ms)
        if slot < 0:
            if worth > history._least:
                self._offer(key, figures, worth)
            return
        if (missing := slot + 1 - len(self._worth)) > 0:
            self._worth.extend([nan] * missing)
            self._figures.extend([nan] * (missing * self._width))
        place = slot * self._width
        self._figures[place : place + self._width] = array("f", figures)
        self._worth[slot] = worth

    def may_keep(self, key: Hashable, worth: float) -> bool:
        """Whether to add a row can change anything: most of very many are worth nothing."""
        history = self._history
        kept = history._slot_of
        return worth > 0 or key in kept or len(kept) < history._rows_max

    def _offer(self, key: Hashable, figures: Sequence[float], worth: float) -> None:
        self._offered += 1
        row = (worth, self._offered, key, figures)
        if len(self._others) < _REPLACED_MAX:
            heapq.heappush(self._others, row)
        elif worth > self._others[0][0]:
            heapq.heapreplace(self._others, row)

    def end(self) -> None:
        """Add the point. Rows that were not seen are forgotten."""
        history, worth = self._history, self._worth
        if history._draft is not self:
            return  # given up
        history._draft = None
        for slot, value in enumerate(worth):
            if isnan(value) and history._keys[slot] is not None:
                history._forget(slot)
        self._exchange()
        history._append(self.now_ms, self._figures)

    def _exchange(self) -> None:
        """Rows without a slot take those of rows that are worth less."""
        history, worth = self._history, self._worth
        if len(history._keys) < history._rows_max:
            return
        kept = sorted(history._slot_of.values(), key=worth.__getitem__)
        lost = 0
        for value, _, key, figures in sorted(self._others, key=lambda row: row[0], reverse=True):
            if not history._free:
                if lost == len(kept) or value <= worth[kept[lost]] * _BETTER:
                    break
                history._forget(kept[lost])
                lost += 1
            self.add(key, figures, value)
        history._least = worth[kept[lost]] * _BETTER if lost < len(kept) else 0.0
