"""Connections whose clients haven't proved yet who they are: a bounded number of them.

Each may hold what it has sent of its CONNECT (192 KiB at most) until the handshake's deadline. When
there are too many, the one that has waited longest is cut: a client that means it needs some
milliseconds, so that those who only hold connections open push out each other.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.service.connection import Connection

__all__ = ["WaitingRoom"]

_LOGGED_PER_S: Final = 20


class WaitingRoom:
    def __init__(self, connections_max: int) -> None:
        """``connections_max``: 0: any number."""
        self._connections_max = connections_max
        self._waiting: dict[Connection, None] = {}  # in the order of their coming
        self._second = self._lines = 0
        self.cut = 0
        """For the metrics page."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, connection: Connection) -> None:
        waiting = self._waiting
        if 0 < self._connections_max <= len(waiting):
            oldest = next(iter(waiting))
            del waiting[oldest]
            self.cut += 1
            # Not one line for each: whoever floods the port must not fill the log as well.
            oldest.close("too many connections wait for their login", level=logging.DEBUG)
        waiting[connection] = None

    def leave(self, connection: Connection) -> None:
        """It is proved, or gone; one that isn't here is ignored."""
        self._waiting.pop(connection, None)

    def may_log(self, now_ms: int) -> bool:
        """Whether the end of one more that never got in is worth a line: some a second are."""
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
        self._lines += 1
        return self._lines <= _LOGGED_PER_S
