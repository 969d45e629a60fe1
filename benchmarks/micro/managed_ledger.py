"""Cost of the managed ledger per entry: append to report without bookie and client, and tail reads.

Run: python -m benchmarks.managed_ledgers costs
"""

import asyncio
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.embedded import EmbeddedMetadataStore

ROUNDS = 5
ENTRIES = 100_000
HEAD = bytes(32)


class InstantWriter:
    """A ledger writer that confirms at the end of the tick and keeps nothing."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.last_confirmed = -1
        self.next_entry = self.length = 0
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[Exception], None] | None = None
        self._is_scheduled = False

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        first = self.next_entry
        self.next_entry += len(heads)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._confirm)
        return first

    def _confirm(self) -> None:
        self._is_scheduled = False
        self.last_confirmed = self.next_entry - 1
        assert self.on_confirmed is not None
        self.on_confirmed(self.last_confirmed)

    async def close(self) -> Any:
        return SimpleNamespace(last_entry=self.last_confirmed, length=self.length)


class InstantClient:
    """Ledgers that exist in name only."""

    def __init__(self) -> None:
        self._next_id = 0

    async def create_ledger(
        self, config: object, custom_metadata: object, *, above: int = -1
    ) -> InstantWriter:
        self._next_id += 1
        return InstantWriter(self._next_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        return


def make_factory(store: EmbeddedMetadataStore) -> ManagedLedgerFactory:
    return ManagedLedgerFactory(
        cast(BookKeeperClient, InstantClient()),
        store,
        EntryCache(256 << 20),
        FactoryConfig(),
        lambda: time.time_ns() // 1_000_000,
        random.Random(1),
    )


async def append_cost(log: ManagedLedger, per_append: int, body: bytes) -> float:
    """Microseconds per entry from append to its report, with 16 appends a tick."""
    best = float("inf")
    appends = ENTRIES // per_append // 4
    for _ in range(ROUNDS):
        batches: list[tuple[list[bytes], list[Buffer]]] = [
            ([HEAD] * per_append, [body] * per_append) for _ in range(appends)
        ]
        finished = asyncio.Event()
        left = appends * per_append

        def on_done(
            ledger: int,
            first: int,
            count: int,
            error: BaseException | None,
            finished: asyncio.Event = finished,
        ) -> None:
            nonlocal left
            left -= count
            if left == 0:
                finished.set()

        begin = time.perf_counter()
        for number, (heads, bodies) in enumerate(batches):
            log.append(heads, bodies, on_done)
            if number % 16 == 15:
                await asyncio.sleep(0)
        await finished.wait()
        best = min(best, time.perf_counter() - begin)
    return best / (appends * per_append) * 1e6


def read_cost(log: ManagedLedger, entries_max: int) -> float:
    """Microseconds per entry of reading what is cached, in order."""
    best = float("inf")
    for _ in range(ROUNDS):
        count, position = 0, EARLIEST
        assert log.log_cache is not None
        first = log.log_cache.chunks[0]
        position = (first.ledger_id, first.first)
        begin = time.perf_counter()
        while (batch := log.read_nowait(position, entries_max, 1 << 20)) is not None:
            count += len(batch.heads)
            position = (batch.ledger_id, batch.first + len(batch.heads))
        best = min(best, (time.perf_counter() - begin) / count)
    return best * 1e6
