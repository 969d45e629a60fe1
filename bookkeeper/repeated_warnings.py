"""Warnings that others can cause as often as they like: one line a minute for each reason."""

import logging
import re
import time
from typing import Final

_PERIOD_S: Final = 60.0
_NUMBER: Final = re.compile(r"\d+")


class RepeatedWarnings:
    """Texts that differ in their numbers only have one reason.

    The other parts of a text must come from this program: each reason is remembered.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._reasons: dict[str, _Reason] = {}

    def add(self, who: str, text: str, now_s: float | None = None) -> None:
        """Log ``who: text``, or count it for the next line of this reason.

        Args:
            who: a name for the log only.
            now_s: ``time.monotonic()`` if it isn't given.
        """
        now_s = time.monotonic() if now_s is None else now_s
        reason = self._reasons.setdefault(_NUMBER.sub("N", text), _Reason())
        if now_s < reason.next_line_s:
            reason.left_out += 1
            return
        more = f" ({reason.left_out} more since the last such line)" if reason.left_out else ""
        self._logger.warning("%s: %s%s", who, text, more)
        reason.next_line_s, reason.left_out = now_s + _PERIOD_S, 0


class _Reason:
    __slots__ = ("left_out", "next_line_s")

    def __init__(self) -> None:
        self.next_line_s, self.left_out = float("-inf"), 0
