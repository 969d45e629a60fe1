"""Charts as paths of SVG, drawn at the server, so that they need no script."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.console.formats import ceiling

_WIDTH: Final = 100.0
_HEIGHT: Final = 100.0
_SHORT_MS: Final = 300_000
"""Charts of less have fewer labels, with seconds."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    label: str
    path: str
    latest: float | None
    number: int
    """1 to 3: its colour."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over the same times."""

    title: str
    lines: tuple[Line, ...]
    top: float
    """Of the axis, whose bottom is 0."""
    times_ms: tuple[float, ...]
    """Where the axis of time is labelled, evenly."""
    unit: str = ""
    has_seconds: bool = False
    """Whether minutes don't tell labels apart."""


def chart(
    title: str,
    times_ms: Sequence[float],
    series: Sequence[tuple[str, Sequence[float | None]]],
    unit: str = "",
) -> Chart | None:
    """None: fewer than two points, which make no line.

    Args:
        times_ms: of the points, in order, in milliseconds since 1970.
        series: label and values, first of them first in the legend; None: not known, a gap.
    """
    if len(times_ms) < 2:
        return None
    top = ceiling([value for _, values in series for value in values if value is not None])
    lines = tuple(
        Line(label, _path(times_ms, values, top), values[-1], index)
        for index, (label, values) in enumerate(series, 1)
    )
    first, last = times_ms[0], times_ms[-1]
    is_short = last - first < _SHORT_MS
    parts = 2 if is_short else 4
    labelled = tuple(first + (last - first) * part / parts for part in range(parts + 1))
    return Chart(title, lines, top, labelled, unit, is_short)


def sparkline(values: Sequence[float]) -> str:
    """A path between the least and the greatest of them, at even distances; "": no line."""
    if len(values) < 2:
        return ""
    low, space = min(values), (max(values) - min(values)) or 1.0
    return _path(range(len(values)), [value - low for value in values], space)


def _path(times_ms: Sequence[float], values: Sequence[float | None], top: float) -> str:
    first, length = times_ms[0], (times_ms[-1] - times_ms[0]) or 1.0
    path, pen = "", "M"
    for at, value in zip(times_ms, values, strict=True):
        if value is None:
            pen = "M"
            continue
        path += f"{pen}{(at - first) / length * _WIDTH:.1f} {_HEIGHT - value / top * _HEIGHT:.1f}"
        pen = "L"
    return path
