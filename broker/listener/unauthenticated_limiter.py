"""Connections whose clients haven't authenticated yet: a bounded number of them.

Each may hold what it has sent of its login (192 KiB at most) until a deadline. When there are too
many, the one that has waited longest is cut: a client that means it needs some milliseconds, so
that clients that only hold connections open push out each other.
"""

import logging
from typing import Final, Protocol

_LOGGED_PER_S: Final = 20


class UnauthenticatedConnection(Protocol):
    """A connection that waits."""

    @property
    def ip(self) -> str:
        """The peer's address."""

    def close(self, reason: str, *, level: int = logging.INFO) -> None:
        """Cut it; it may ``leave`` while that is under way."""


class UnauthenticatedLimiter:
    def __init__(self, connections_max: int, address_max: int = 0) -> None:
        """
        Args:
            connections_max: 0: any number.
            address_max: of them from one address, which push out each other; 0: any number.
        """
        self._connections_max = connections_max
        self._address_max = address_max
        self._waiting: dict[UnauthenticatedConnection, None] = {}  # in the order of their coming
        self._by_address: dict[
            str, dict[UnauthenticatedConnection, None]
        ] = {}  # empty without a limit
        self._second = self._lines = 0
        self.cut = 0
        """For the metrics page."""

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, each: UnauthenticatedConnection) -> None:
        if self._address_max > 0:
            own = self._by_address.get(each.ip, {})
            if len(own) >= self._address_max:
                self._cut(next(iter(own)))
        if 0 < self._connections_max <= len(self._waiting):
            self.cut_oldest()
        self._waiting[each] = None
        if self._address_max > 0:
            self._by_address.setdefault(each.ip, {})[each] = None

    def leave(self, each: UnauthenticatedConnection) -> None:
        """It is proved, or gone; one that isn't here is ignored."""
        if each not in self._waiting:
            return
        del self._waiting[each]
        if (own := self._by_address.get(each.ip)) is not None:
            del own[each]
            if not own:
                del self._by_address[each.ip]

    def cut_oldest(self) -> None:
        """REQUIRES: it is not empty."""
        self._cut(next(iter(self._waiting)))

    def _cut(self, each: UnauthenticatedConnection) -> None:
        self.leave(each)
        self.cut += 1
        # Not one line for each: a flood of the port must not fill the log as well.
        each.close("too many connections wait for their login", level=logging.DEBUG)

    def may_log(self, now_ms: int) -> bool:
        """Whether the end of one more that never got in is worth a line: some a second are."""
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
        self._lines += 1
        return self._lines <= _LOGGED_PER_S
