"""Figures as short texts, beside those of the console (`magnetar.broker.console.formats`). Pure."""

from collections.abc import Sequence
from typing import Final

from magnetar.broker.cli.tables import cell_count
from magnetar.broker.console.formats import number, short
from magnetar.broker.index.backlog_trend import is_steady

_BARS: Final = "▁▂▃▄▅▆▇█"


def trend_text(per_second: float | None) -> str:
    """``+7.32 k/min``; ``steady``."""
    if per_second is None:
        return number(None)
    if is_steady(per_second):
        return "steady"
    return f"{'+' if per_second > 0 else '-'}{short(round(abs(per_second) * 60))}/min"


def bars_text(values: Sequence[float]) -> str:
    """``▁▃█``: the values between their least and their greatest."""
    if not values:
        return ""
    low, space = min(values), max(values) - min(values)
    if not space:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((value - low) / space * (len(_BARS) - 1))] for value in values)


def cut(text: str, width: int) -> str:
    """At most so many cells of a terminal; of a longer text its beginning and its end."""
    if cell_count(text) <= width:
        return text
    tail = (width - 1) // 2
    if text.isascii():
        return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
    head, end = "", ""
    while cell_count(more := head + text[len(head)]) <= width - 1 - tail:
        head = more
    while cell_count(more := text[len(text) - len(end) - 1] + end) <= tail:
        end = more
    return f"{head}…{end}"
