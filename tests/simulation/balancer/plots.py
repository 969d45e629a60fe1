"""Curves as SVG, by hand: two panels need no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555")
_WIDTH: Final = 760
_PANEL: Final = 210
_LEFT, _TOP, _GAP = 60, 46, 60


def draw(load: str, histories: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Deviation of usage and moves so far over time, a curve for each strategy."""
    height = _TOP + 2 * _PANEL + _GAP + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(load.capitalize())} load</text>',
    ]
    for number, name in enumerate(histories):
        x = _LEFT + number * 138
        parts.append(f'<rect x="{x}" y="28" width="12" height="4" fill="{_COLOURS[number % 5]}"/>')
        parts.append(f'<text x="{x + 16}" y="35">{escape(name)}</text>')
    panels = (("deviation", "standard deviation of usage"), ("moves", "moves so far"))
    for number, (field, title) in enumerate(panels):
        parts += _panel(histories, field, title, _TOP + number * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    histories: Mapping[str, Sequence[Mapping[str, float]]], field: str, title: str, top: int
) -> list[str]:
    minutes = max(row["minute"] for rows in histories.values() for row in rows)
    highest = max(row[field] for rows in histories.values() for row in rows) or 1.0
    step = _step(highest)
    highest = step * -(-highest // step)
    width = _WIDTH - _LEFT - 20

    def x(minute: float) -> float:
        return _LEFT + width * minute / minutes

    def y(value: float) -> float:
        return top + 20 + (_PANEL - 20) * (1 - value / highest)

    parts = [f'<text x="{_LEFT}" y="{top + 12}">{escape(title)}</text>']
    value = 0.0
    while value <= highest * 1.001:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#dddddd"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.4g}</text>'
        )
        value += step
    parts.extend(
        f'<text x="{x(minute):.1f}" y="{top + _PANEL + 16}" text-anchor="middle">'
        f"{minute} min</text>"
        for minute in range(0, int(minutes) + 1, 15 if minutes <= 60 else 30)
    )
    for number, rows in enumerate(histories.values()):
        points = " ".join(f"{x(row['minute']):.1f},{y(row[field]):.1f}" for row in rows)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_COLOURS[number % 5]}" '
            'stroke-width="1.5"/>'
        )
    return parts


def _step(highest: float) -> float:
    """Distance of grid lines: 1, 2 or 5 times a power of ten, four to nine of them."""
    size: float = 10.0 ** (len(str(int(highest))) - 1) if highest >= 1 else 0.01
    while size * 10 <= highest:
        size *= 10
    for factor in (0.2, 0.5, 1.0, 2.0):
        if highest / (size * factor) <= 8:
            return size * factor
    return size * 2
