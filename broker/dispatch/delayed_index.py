"""Entries that wait for their time: buckets of one tick, each a few bits per entry."""

from __future__ import annotations

import heapq

from broker.dispatch.position_set import PositionSet

__all__ = ["DelayedIndex"]


class DelayedIndex:
    """Positions by due time. Not strict: an entry may come out up to one tick early, never late.

    Source: wire-protocol 7.2; Pulsar's InMemoryDelayedDeliveryTracker has the same tolerance.
    """

    def __init__(self, tick_ms: int, *, strict: bool) -> None:
        self._early_ms = 0 if strict else tick_ms
        self._bucket_ms = 1 if strict else max(tick_ms, 1)
        self._buckets: dict[int, PositionSet] = {}
        self._times: list[int] = []  # heap of the keys of _buckets
        self.count = 0

    def is_due(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Whether an entry with this time is an ordinary entry now."""
        return deliver_at_ms <= now_ms + self._early_ms

    def add(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> None:
        """Keep an entry until its time; adding it again with the same time changes nothing."""
        # Rounded up: at bucket - early it is at most one tick early.
        bucket = -(-deliver_at_ms // self._bucket_ms) * self._bucket_ms
        if (positions := self._buckets.get(bucket)) is None:
            positions = self._buckets[bucket] = PositionSet()
            heapq.heappush(self._times, bucket)
        if (ledger_id, entry_id) not in positions:
            positions.add(ledger_id, (entry_id,))
            self.count += 1

    def next_due_ms(self) -> int | None:
        """When `take_due` has something; None: it is empty."""
        return self._times[0] - self._early_ms if self._times else None

    def take_due(self, now_ms: int) -> PositionSet | None:
        """Remove and return what is due; None: nothing is."""
        due: PositionSet | None = None
        while self._times and self._times[0] - self._early_ms <= now_ms:
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
