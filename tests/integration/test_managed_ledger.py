"""The managed ledger on a real bookie and metadata on disk: load, take-over, restart."""

import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.managed_ledger.cluster import HEAD, Appends, eventually, read_all

STORAGE = StorageConfig(journal_segment_bytes=4 << 20, journal_extend_bytes=1 << 20)
CONFIG = ManagedLedgerConfig(
    form=HeadsInFront(len(HEAD)),
    ledger_age_min_ms=0,
    ledger_entries_max=1000,
    ledger_bytes_max=1 << 30,
)
NAME = "public/default/persistent/topic"


class Site:
    """One data directory: metadata and a bookie; brokers come and go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store: EmbeddedMetadataStore
        self.bookie: Bookie
        self.factories: list[ManagedLedgerFactory] = []

    async def start(self) -> None:
        self.store = EmbeddedMetadataStore.open(self.directory / "metadata.db")
        config = BookieConfig("b0", self.directory / "bookie", STORAGE, disk_reserve_bytes=0)
        self.bookie = await open_bookie(config, OsFileSystem(config.data_dir), self.store)

    def broker(self, cache_bytes: int = 64 << 20) -> ManagedLedgerFactory:
        pool = BookiePool()
        pool.add(self.bookie)
        rng = random.Random()
        clock = lambda: time.time_ns() // 1_000_000  # noqa: E731  a clock is a function here
        client = BookKeeperClient(self.store, pool, RandomPlacement(rng), clock=clock, rng=rng)
        factory = ManagedLedgerFactory(
            client, self.store, EntryCache(cache_bytes), FactoryConfig(), clock, rng
        )
        self.factories.append(factory)
        return factory

    async def stop(self) -> None:
        """As a kill: what the brokers hold is not closed."""
        self.factories.clear()
        await self.bookie.close()
        await self.store.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.start()
    yield made
    for factory in made.factories:
        await factory.close()
    await made.stop()


async def load(log: ManagedLedger, batches: int, size: int, first: int = 0) -> Appends:
    """Appends with at most 16 batches in flight."""
    appends = Appends(log)
    for batch in range(batches):
        start = first + batch * size
        appends.send(*[b"%08d" % i + b"x" * 100 for i in range(start, start + size)])
        if batch % 16 == 15:
            await appends.settle()
    await appends.settle()
    assert not appends.errors
    return appends


async def test_restart_without_close(site: Site) -> None:
    log = await site.broker().open(NAME, CONFIG)
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = await load(log, 30, 100)
    cursor.ack_cumulative(appends.acked[1499][0])
    await cursor.flush()
    await eventually(lambda: log.offsets.entry_count == 2000)  # the first ledger is trimmed
    await site.stop()
    await site.start()
    again = await site.broker().open(NAME, CONFIG)
    assert again.cursors["sub"].mark_delete == appends.acked[1499][0]
    assert again.cursors["sub"].state.backlog == 1500
    assert await read_all(again) == appends.acked[1000:]
    more = await load(again, 10, 100, first=3000)
    assert await read_all(again) == appends.acked[1000:] + more.acked


async def test_more_holes_than_others_keep_survive_a_kill(site: Site) -> None:
    """Some 50,000, and batches of which only some messages are acknowledged; as snapshots and as
    increments.
    """
    config = replace(CONFIG, ledger_entries_max=50_000)
    log = await site.broker().open(NAME, config)
    cursor = await log.open_cursor("sub", EARLIEST)
    appends = await load(log, 200, 1000)
    positions = [position for position, _ in appends.acked]
    rng = random.Random(7)
    chosen = [x for x in positions[1:] if rng.random() < 0.5]
    for start in range(0, len(chosen), 10_000):
        cursor.ack(chosen[start : start + 10_000])
        await cursor.flush()
    partial = rng.sample(sorted(set(positions[1:]) - set(chosen)), 5000)
    for position in partial:
        cursor.ack_batch(position, [0b1010])
    await cursor.flush()
    assert cursor.state.range_count > 40_000
    await site.stop()
    await site.start()
    again = (await site.broker().open(NAME, config)).cursors["sub"]
    assert again.mark_delete == cursor.mark_delete
    assert again.state.backlog == cursor.state.backlog == len(positions) - len(chosen)
    for ledger_id in {ledger_id for ledger_id, _ in positions}:
        assert again.state.acked_in(ledger_id, 0, 50_000) == cursor.state.acked_in(
            ledger_id, 0, 50_000
        )
    assert all(again.state.batch_ack_set(position) == [0b1010] for position in partial)


async def test_catch_up_through_a_small_cache(site: Site) -> None:
    log = await site.broker().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    appends = await load(log, 50, 100)
    await log.close()
    cold = await site.broker(cache_bytes=1 << 20).open(NAME, CONFIG)
    found = await read_all(cold, entries_max=37)
    assert found == appends.acked
    assert cold.cache.size <= 1 << 20
    assert cold.cache.misses < 100  # read-ahead, not a read per batch
    assert await read_all(cold, start=appends.acked[4321][0]) == appends.acked[4321:]


async def test_large_bodies_as_views(site: Site) -> None:
    log = await site.broker().open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    buffer = random.Random(1).randbytes(1 << 20)
    views: list[Buffer] = [memoryview(buffer)[i * 65536 : (i + 1) * 65536] for i in range(16)]
    done: list[tuple[int, int, int, BaseException | None]] = []
    log.append([HEAD] * 16, views, lambda *report: done.append(report))
    await eventually(lambda: sum(x[2] for x in done) == 16)
    assert done[0][3] is None
    await log.close()
    cold = await site.broker().open(NAME, CONFIG)
    found = [x for _, x in await read_all(cold)]
    assert b"".join(found) == buffer
    batch = await cold.read(EARLIEST, 16, 200_000)
    assert batch is not None
    assert len(batch) == 3  # 65,540 bytes each
