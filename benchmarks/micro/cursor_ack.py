"""What acknowledgements cost: `python -m benchmarks.micro.cursor_ack`.

Best of a few rounds, in microseconds for each position, on the real `AckState` over a plain ledger
list. Storing a million holes: `managed_ledgers holes`.
"""

import asyncio
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.cursor.cursor import load_or_create_cursor
from magnetar.managed_ledger.cursor.cursor_format import encode_increment
from magnetar.managed_ledger.position import Position
from magnetar.metadata.embedded import EmbeddedMetadataStore

LEDGER_ENTRIES = 50_000
LEDGERS = 80


class Log:
    """`LEDGERS` full ledgers, ids from 0."""

    last_confirmed = (LEDGERS - 1, LEDGER_ENTRIES - 1)

    @property
    def offsets(self) -> "Log":
        return self

    def entries(self, ledger_id: int) -> int | None:
        return LEDGER_ENTRIES if 0 <= ledger_id < LEDGERS else None

    def next_position(self, position: Position) -> Position:
        ledger_id, entry_id = position
        if entry_id + 1 < LEDGER_ENTRIES:
            return (ledger_id, entry_id + 1)
        return (ledger_id + 1, 0)

    def previous_position(self, position: Position) -> Position:
        ledger_id, entry_id = position
        return (ledger_id, entry_id - 1) if entry_id else (ledger_id - 1, LEDGER_ENTRIES - 1)

    def entries_between(self, after: Position, upto: Position) -> int:
        return (upto[0] - after[0]) * LEDGER_ENTRIES + upto[1] - after[1]


def batches(size: int, entries: list[int]) -> list[list[Position]]:
    positions = [divmod(entry, LEDGER_ENTRIES) for entry in entries]
    return [positions[n : n + size] for n in range(0, len(positions), size)]


def best_us(work: list[list[Position]], rounds: int = 5) -> float:
    """Microseconds for each position."""
    best = float("inf")
    count = sum(map(len, work))
    for _ in range(rounds):
        state = AckState(Log(), (0, -1))
        began = time.perf_counter()
        for positions in work:
            state.ack(positions)
        best = min(best, time.perf_counter() - began)
    return best / count * 1e6


def shuffled_within(entries: list[int], window: int) -> list[int]:
    """As two or more shared consumers acknowledge: out of order, but not far."""
    rng = random.Random(7)
    out: list[int] = []
    for start in range(0, len(entries), window):
        part = entries[start : start + window]
        rng.shuffle(part)
        out += part
    return out


class InstantLedger:
    """Confirms what a tick appended in the next one, and forgets it."""

    def __init__(self) -> None:
        self.ledger_id, self.entries = 1, 0
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        first, self.entries = self.entries, self.entries + len(bodies)
        asyncio.get_running_loop().call_soon(self.confirm)
        return first

    def confirm(self) -> None:
        if self.on_confirmed is not None:
            self.on_confirmed(self.entries - 1)

    async def close(self) -> object:
        return None


class FullLog(Log):
    """A whole `ManagedLedgerView` over an embedded metadata store."""

    name, path = "t/n/persistent/log", "/managed-ledgers/t/n/persistent/log"
    config = ManagedLedgerConfig(cursor_ledger_entries_max=1 << 40)
    is_owner = True

    async def owns_list(self) -> bool:
        return True

    def __init__(self) -> None:
        self.store = EmbeddedMetadataStore.open(None)
        self.client: Any = self
        self.writer = InstantLedger()

    async def create_ledger(self, config: object, metadata: object) -> InstantLedger:
        return self.writer

    def now_ms(self) -> int:
        return 0

    def on_mark_delete(self, previous: Position, current: Position) -> None:
        pass


async def through_the_shell(work: list[list[Position]]) -> None:
    """A list each tick, every one answered when durable; each second tick ends a write."""
    any_log: Any = FullLog()
    cursor = await load_or_create_cursor(any_log, "sub", (0, -1), {})
    cursor.ack(work[0])
    await cursor.flush()
    answered: list[BaseException | None] = []
    began, writes = time.perf_counter(), any_log.writer.entries
    for positions in work[1:]:
        cursor.ack(positions, answered.append)
        await asyncio.sleep(0)
    await cursor.flush()
    spent = time.perf_counter() - began
    assert answered == [None] * (len(work) - 1)
    count = sum(map(len, work)) - len(work[0])
    writes = any_log.writer.entries - writes
    print(f"  whole cursor, a list of 100 a tick   {spent / count * 1e6:6.3f}  ({writes} writes)")

    tracemalloc.start()
    cursors = [await load_or_create_cursor(any_log, f"s{n}", (0, -1), {}) for n in range(1000)]
    used = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, "*/managed_ledger/*")]
    )
    tracemalloc.stop()
    size = sum(trace.size for trace in used.traces) / len(cursors)
    print(f"  memory of an idle cursor             {size:6.0f} bytes")
    await any_log.store.close()


def main() -> None:
    entries = list(range(200_000))
    print("acknowledge, us per position")
    for size in (1, 10, 100, 1000):
        print(f"  in order, lists of {size:5}            {best_us(batches(size, entries)):6.3f}")
    for window in (200, 20_000):
        work = batches(100, shuffled_within(entries, window))
        print(f"  shuffled within {window:6}, lists of 100 {best_us(work):6.3f}")
    work = batches(100, list(range(0, 400_000, 2)))
    print(f"  every second entry, lists of 100     {best_us(work):6.3f}")

    state = AckState(Log(), (0, -1))
    began, count = time.perf_counter(), 50_000
    for entry in range(count):
        state.ack([(0, entry)])
        encode_increment(state.take_increment(), 0)
    spent = (time.perf_counter() - began) / count * 1e6
    print(f"  ack of one and its increment         {spent:6.3f}")

    asyncio.run(through_the_shell(batches(100, entries)))


if __name__ == "__main__":
    main()
