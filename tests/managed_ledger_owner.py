"""A process that owns one managed ledger: `python -m tests.managed_ledger_owner URL NUMBER SEED`.

It opens the log, whoever has it, then appends and acknowledges with three cursors until it is
killed or fenced, with small ledgers, so that it rotates and trims all the time. What it was told
goes to standard output, one JSON object a line (`tests/managed_ledger_history.py` reads them):
``asked`` before an acknowledgement is made, ``acked`` and ``appended`` once they are durable,
``found`` for each cursor of an open, ``open``, ``fenced``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import AckDone, Cursor
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import OpenFailedError
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.factory import connect_store

NAME = "public/default/persistent/killed"
CONFIG = ManagedLedgerConfig(
    *(2, 2, 2),
    head_bytes=0,
    ledger_entries_max=60,
    ledger_age_min_ms=0,
    cursor_ensemble_size=2,
    cursor_write_quorum=2,
    cursor_ack_quorum=2,
    cursor_ledger_entries_max=40,
)
CURSORS = ("fast", "holes", "slow")
BATCH = 5
HOLES_BEHIND, SLOW_BEHIND = 150, 300


@contextlib.asynccontextmanager
async def opened_factory(url: str) -> AsyncIterator[ManagedLedgerFactory]:
    """A broker's storage: sessions and requests are given up soon."""
    store = await connect_store(url, None, session_timeout_s=4.0, operation_timeout_s=10.0)
    connector = BookieConnector(store, TransportConfig(add_timeout_s=2.0, call_timeout_s=2.0))
    pool = BookiePool(store, connector.connect)
    await pool.start()
    rng = random.SystemRandom()
    client = BookKeeperClient(store, pool, RandomPlacement(rng), clock=now_ms, rng=rng)
    factory = ManagedLedgerFactory(client, store, EntryCache(1 << 20), FactoryConfig(), now_ms, rng)
    try:
        yield factory
    finally:
        await pool.close()
        await connector.close()
        await store.close()


async def opened(factory: ManagedLedgerFactory) -> ManagedLedger:
    """The log, as soon as bookies and metadata allow."""
    while True:
        try:
            return await factory.open(NAME, CONFIG)
        except (OpenFailedError, MetadataError) as error:
            print(f"open: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.2)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def say_found(log: ManagedLedger) -> None:
    """What the cursors have, as (before first, last) above mark-delete."""
    for name, cursor in log.cursors.items():
        ranges = cursor.state.ranges(1 << 20)
        assert len(ranges) == cursor.state.range_count
        say(found=name, mark=cursor.mark_delete, holes=ranges)


class Owner:
    """Appends numbers and acknowledges some of them, all of which it says."""

    def __init__(self, log: ManagedLedger, number: int, seed: int) -> None:
        self._log, self._rng = log, random.Random(seed)
        self._next = number * 1_000_000

    async def round(self) -> None:
        """One append, and what the cursors make of it; some of that waits until it is durable."""
        await self._append()
        cursors, last = self._log.cursors, self._log.last_confirmed
        waits = [self._mark(cursors["fast"], last)]
        first = self._log.offsets.first_position()
        before = (first[0], first[1] - 1)
        count = self._log.offsets.entries_between(before, last)
        for name, behind in (("holes", HOLES_BEHIND), ("slow", SLOW_BEHIND)):
            target = self._log.offsets.position_after(before, max(count - behind, 0))
            if target > cursors[name].mark_delete:
                waits.append(self._mark(cursors[name], target))
        chosen = [
            (last[0], entry)
            for entry in range(max(last[1] - 3 * BATCH, 0), last[1] + 1)
            if self._rng.random() < 0.3
        ]
        if chosen:
            waits.append(self._ack(cursors["holes"], chosen))
        if self._rng.random() < 0.3:
            await asyncio.gather(*waits)

    async def _append(self) -> None:
        numbers = range(self._next, self._next + BATCH)
        self._next += BATCH
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left, failures = list(numbers), list[BaseException | None]()

        def done(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
            part = left[:count]
            del left[:count]
            if error is None:
                say(appended=[ledger_id, first], numbers=part)
            failures.append(error)
            if not left:
                answered.set_result(None)

        bodies: list[Buffer] = [b"%d" % number for number in numbers]
        self._log.append([b""] * BATCH, bodies, done)
        await answered
        if any(failures):
            await asyncio.sleep(0.05)  # too few bookies, for now: don't spin

    def _mark(self, cursor: Cursor, position: Position) -> asyncio.Future[None]:
        say(asked=cursor.name, upto=position)
        waiter, on_durable = self._answer(acked=cursor.name, upto=position)
        cursor.ack_cumulative(position, on_durable=on_durable)
        return waiter

    def _ack(self, cursor: Cursor, positions: list[Position]) -> asyncio.Future[None]:
        say(asked=cursor.name, each=positions)
        waiter, on_durable = self._answer(acked=cursor.name, each=positions)
        cursor.ack(positions, on_durable)
        return waiter

    @staticmethod
    def _answer(**fields: object) -> tuple[asyncio.Future[None], AckDone]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_durable(error: BaseException | None) -> None:
            if error is None:
                say(**fields)
            waiter.set_result(None)  # a failed one goes out with the next

        return waiter, on_durable


async def own(url: str, number: int, seed: int) -> None:
    async with opened_factory(url) as factory:
        log = await opened(factory)
        fenced: list[BaseException] = []
        log.on_fenced = fenced.append
        say_found(log)
        for name in CURSORS:
            await log.open_cursor(name, EARLIEST)
        say(open=number)
        owner = Owner(log, number, seed)
        while not fenced:
            await owner.round()
        say(fenced=str(fenced[0]))


if __name__ == "__main__":
    asyncio.run(own(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
