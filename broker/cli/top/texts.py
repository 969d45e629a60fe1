"""Figures as short texts, beside those of the console (`magnetar.broker.console.formats`). Pure."""

from collections.abc import Sequence
from typing import Final

from magnetar.broker.console.formats import number, span

_BARS: Final = "▁▂▃▄▅▆▇█"


def trend_text(per_second: float | None) -> str:
    """``+122/s``."""
    if per_second is None:
        return number(None)
    return f"{'+' if per_second > 0 else ''}{number(per_second)}/s"


def catch_up_text(backlog: float | None, per_second: float | None) -> str:
    """How long a backlog takes at its trend."""
    if not backlog or per_second is None:
        return number(None)
    return span(backlog / -per_second) if per_second < 0 else "never"


def bars_text(values: Sequence[float]) -> str:
    """``▁▃█``: the values between their least and their greatest."""
    if not values:
        return ""
    low, space = min(values), max(values) - min(values)
    if not space:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((value - low) / space * (len(_BARS) - 1))] for value in values)


def cut(text: str, width: int) -> str:
    """At most so many characters; of a longer text its beginning and its end."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
