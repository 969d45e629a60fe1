"""Spans of time as tests write them: ``"2h"``, ``90``, ``timedelta(days=1)``."""

import re
from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = str | float | timedelta
"""A number is seconds."""

_LONGEST_MS = 10_000 * 366 * 86_400_000
"""Ten thousand years; times in messages are 64 bits of milliseconds."""

_MILLISECONDS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PART = r"(\d+(?:\.\d+)?)(ms|[smhdw])"
_TEXT = re.compile(rf"(?:{_PART}\s*)+")


def milliseconds(duration: Duration) -> int:
    """Its milliseconds, rounded up.

    Raises:
        ValueError: it has no known unit, is negative, or is longer than 10,000 years.
    """
    if isinstance(duration, str):
        if _TEXT.fullmatch(duration) is None:
            raise ValueError(f"{duration!r} is no duration: 500ms, 90s, 10m, 2h, 1d, 1h 30m")
        parts = re.findall(_PART, duration)
        exact = sum(float(number) * _MILLISECONDS[unit] for number, unit in parts)
    elif isinstance(duration, timedelta):
        exact = duration / timedelta(milliseconds=1)
    else:
        exact = duration * 1000
    if exact < 0:
        raise ValueError(f"{duration!r}: a clock can't be set back")
    if not exact <= _LONGEST_MS:  # NaN, too
        raise ValueError(f"{str(duration)[:40]} is no duration up to 10,000 years")
    return -int(-exact // 1)
