"""Whether a backlog grows or shrinks, and when it is gone. Pure."""

from math import exp, inf
from typing import Final

STEADY: Final = 0.05
"""Messages a second; a backlog that changes by less stays as it is."""
NEVER_S: Final = 30 * 86_400.0
"""To be caught up later than that is as good as never."""
_IN_HAND_S: Final = 5.0
"""What is delivered in this time may wait, and its consumers keep up."""
_TREND_S: Final = 30.0
"""After so long a change counts for a third in the trend."""


def trend(before: float, before_trend: float, now: float, elapsed_s: float) -> float:
    """Messages a second by which a backlog grows (below 0: shrinks), a moving average.

    Args:
        before: the backlog.
    """
    if before == now and not before_trend:
        return 0.0  # most of them
    if elapsed_s <= 0:
        return before_trend
    rate = (now - before) / elapsed_s
    found = before_trend + (rate - before_trend) * (1 - exp(-elapsed_s / _TREND_S))
    return found if abs(found) >= 0.01 else 0.0


def is_steady(growth: float) -> bool:
    return abs(growth) < STEADY


def keeps_up(backlog: float, rate_out: float) -> bool:
    """Whether what waits is no more than what is just being delivered.

    Args:
        rate_out: messages a second.
    """
    return 0 < backlog <= rate_out * _IN_HAND_S


def catch_up_s(backlog: float, growth: float) -> float:
    """Until a backlog is gone if it goes on like this; inf: never, 0: there is none."""
    if backlog <= 0:
        return 0.0
    if growth > -STEADY or backlog / -growth > NEVER_S:
        return inf
    return backlog / -growth
