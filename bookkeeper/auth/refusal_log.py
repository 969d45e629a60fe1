"""The audit log of refusals: bounded, however often callers ask.

Loggers ``magnetar.broker.audit`` and ``magnetar.bookkeeper.audit``, level WARNING; one line for
each refusal, at most some a second.
"""

import json
import logging
import re
import time
from typing import Final

_LOGGED_PER_S: Final = 20
_VALUE_LENGTH_MAX: Final = 300
_SPECIAL: Final = re.compile(r"[\s=\"]")


class RefusalLog:
    """A flood of requests must not fill the log as well."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def add(self, **fields: str) -> None:
        """Log what was refused; values may come from clients, secrets may not be among them."""
        now_s = int(time.monotonic())
        if now_s != self._second:
            if self._left_out:
                self._logger.warning("refused: %d more", self._left_out)
            self._second, self._lines, self._left_out = now_s, 0, 0
        if self._lines >= _LOGGED_PER_S:
            self._left_out += 1
            return
        self._lines += 1
        shown = {name: one_value(value) for name, value in fields.items()}
        text = " ".join(f"{name}={value}" for name, value in shown.items())
        self._logger.warning("refused: %s", text, extra={"fields": shown})


def one_value(value: str) -> str:
    """What came from outside can't forge a line, nor a ``name=value`` within it."""
    value = value[:_VALUE_LENGTH_MAX]
    if value.isprintable() and not _SPECIAL.search(value):
        return value
    # As JSON has it: quoted, escaped, and in ASCII
    return json.dumps(value)
