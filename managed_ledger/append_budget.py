"""How much the process may have appended that isn't confirmed: one limit for all of its logs.

No append is refused or delayed for it: whoever has appended asks `AppendBudget.must_pause` and then
stops by itself until `on_relief`, by not reading its socket or by not going on with its request. So
what is in memory is bounded by the limit and one piece of work of each that appends. Counted per
batch; an entry costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

ENTRY_OVERHEAD_BYTES = 256
"""What an entry under way costs beside its bytes: lists, sequence ids, the answer."""


class AppendBudget:
    """Made by the factory; every log charges it.

    Attributes:
        bytes_max: may change at any time.
        in_flight: bytes appended and not yet confirmed or failed, overheads included.
        on_relief: called when ``in_flight`` has fallen to half of the limit and somebody pauses.
    """

    __slots__ = ("_is_awaited", "bytes_max", "in_flight", "on_relief")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.in_flight = 0
        self.on_relief: Callable[[], None] | None = None
        self._is_awaited = False

    def must_pause(self) -> bool:
        """True: append nothing more until ``on_relief`` is called, which it will be."""
        if self.in_flight <= self.bytes_max:
            return False
        self._is_awaited = True
        return True

    def change(self, size: int) -> None:
        """For logs: so many bytes more, or less, are under way."""
        self.in_flight += size
        if self._is_awaited and self.in_flight <= self.bytes_max // 2:
            self._is_awaited = False
            if self.on_relief is not None:
                self.on_relief()
