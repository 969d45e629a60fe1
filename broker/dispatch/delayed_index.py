"""Entries that wait for their time: buckets of a part of a tick, each a few bits per entry."""

from __future__ import annotations

import heapq

from broker.dispatch.position_set import PositionSet

__all__ = ["DelayedIndex"]

_BUCKETS_PER_TICK = 8
_BUCKET_BYTES = 576  # measured, with its first entry
_ENTRY_BYTES = 2


class DelayedIndex:
    """Positions by due time, never early. Not strict: up to an eighth of a tick late, in turn for
    fewer buckets.

    wire-protocol 7.2 would allow a whole tick early, but applications take the time they asked for
    as a lower bound (the Go client's own tests do), and waking at the due time costs no more.
    """

    def __init__(self, tick_ms: int, *, strict: bool) -> None:
        self.set_precision(tick_ms, strict=strict)
        self._buckets: dict[int, PositionSet] = {}
        self._times: list[int] = []  # heap of the keys of _buckets
        self.count = 0

    def set_precision(self, tick_ms: int, *, strict: bool) -> None:
        """Of entries that are added from now on."""
        self._bucket_ms = 1 if strict else max(tick_ms // _BUCKETS_PER_TICK, 1)

    def is_due(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Whether an entry with this time is an ordinary entry now."""
        return deliver_at_ms <= now_ms

    def add(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> None:
        """Keep an entry until its time; adding it again with the same time changes nothing."""
        bucket = -(-deliver_at_ms // self._bucket_ms) * self._bucket_ms
        if (positions := self._buckets.get(bucket)) is None:
            positions = self._buckets[bucket] = PositionSet()
            heapq.heappush(self._times, bucket)
        if (ledger_id, entry_id) not in positions:
            positions.add(ledger_id, (entry_id,))
            self.count += 1

    @property
    def memory_bytes(self) -> int:
        """About what it takes; not counted exactly, which would take time by its size."""
        return len(self._buckets) * _BUCKET_BYTES + self.count * _ENTRY_BYTES

    def next_due_ms(self) -> int | None:
        """When `take_due` has something; None: it is empty."""
        return self._times[0] if self._times else None

    def take_due(self, now_ms: int) -> PositionSet | None:
        """Remove and return what is due; None: nothing is."""
        due: PositionSet | None = None
        while self._times and self._times[0] <= now_ms:
            positions = self._buckets.pop(heapq.heappop(self._times))
            self.count -= len(positions)
            if due is None:
                due = positions
            else:
                due.update(positions)
        return due

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._times.clear()
        self.count = 0
