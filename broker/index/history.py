"""The last hour of a broker's totals, in memory."""

from array import array
from collections.abc import Sequence
from typing import Any, Final

POINTS_MAX: Final = 360
POINT_MS: Final = 10_000


class History:
    """A ring of points, the oldest first; a point has a time and a figure for each field."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._times_ms = array("q")
        self._series = {field: array("f") for field in fields}

    def add(self, now_ms: int, figures: Sequence[float]) -> None:
        """In the order of the fields; ignored before ``POINT_MS`` have passed since the last."""
        times_ms = self._times_ms
        if times_ms and now_ms - times_ms[-1] < POINT_MS:
            return
        times_ms.append(now_ms)
        for series, figure in zip(self._series.values(), figures, strict=True):
            series.append(figure)
        if len(times_ms) > POINTS_MAX:
            del times_ms[0]
            for series in self._series.values():
                del series[0]

    def to_json(self) -> dict[str, Any]:
        """Times in ms since 1970, and a list as long for each field; since when it counts."""
        times_ms = self._times_ms.tolist()
        return {
            "since": times_ms[0] if times_ms else None,
            "times": times_ms,
            "series": {field: series.tolist() for field, series in self._series.items()},
        }
