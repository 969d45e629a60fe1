"""Curves as SVG."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib.figure import Figure

_PANELS: Final = (("deviation", "standard deviation of usage"), ("moves", "moves so far"))
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#555555")


def draw(load: str, histories: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Deviation of usage and moves so far over time, a curve for each strategy."""
    figure = Figure(figsize=(7.6, 6.0), layout="constrained")
    figure.suptitle(f"{load.capitalize()} load")
    panels: Any = figure.subplots(2, sharex=True)
    for axes, (field, title) in zip(panels, _PANELS, strict=True):
        for number, (name, rows) in enumerate(histories.items()):
            values = [row[field] for row in rows]
            axes.plot(
                [row["minute"] for row in rows], values, color=_COLOURS[number % 5], label=name
            )
        axes.set_title(title, loc="left")
        axes.grid(axis="y")
    panels[0].legend()
    panels[1].set_xlabel("minutes")
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
