"""The ledger client against real bookies on disk: replication, restart, recovery, corruption."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import LedgerError, LedgerFencedError
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.waiting import eventually

SMALL = StorageConfig(journal_segment_bytes=1 << 20, journal_extend_bytes=1 << 18)


class Cluster:
    """Bookies b0, b1, ... in this process, found through their registration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = EmbeddedMetadataStore.open(None)
        self.bookies: dict[str, Bookie] = {}
        self.pool = BookiePool(self.store, self._connect)
        rng = random.Random(3)
        self.client = BookKeeperClient(
            self.store, self.pool, RandomPlacement(rng), clock=lambda: 0, rng=rng
        )

    def _connect(self, bookie_id: str) -> Bookie | None:
        return self.bookies.get(bookie_id)

    async def start(self, bookie_id: str) -> None:
        config = BookieConfig(bookie_id, self.directory / bookie_id, SMALL, disk_reserve_bytes=0)
        self.bookies[bookie_id] = await open_bookie(
            config, OsFileSystem(config.data_dir), self.store
        )

    async def stop(self, bookie_id: str) -> None:
        await self.bookies.pop(bookie_id).close()
        self.pool.remove(bookie_id)

    async def close(self) -> None:
        for bookie_id in list(self.bookies):
            await self.stop(bookie_id)
        await self.pool.close()
        await self.store.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    for number in range(4):
        await cluster.start(f"b{number}")
    await cluster.pool.start()
    yield cluster
    await cluster.close()


def entries(first: int, count: int) -> tuple[list[bytes], list[bytes]]:
    ids = range(first, first + count)
    return [b"%08d" % i for i in ids], [random.Random(i).randbytes(i % 9000) for i in ids]


async def read_all(cluster: Cluster, ledger_id: int) -> int:
    reader = await cluster.client.open_ledger(ledger_id, recover=True)
    first = 0
    while first <= reader.last_confirmed:
        run = await reader.read(first, reader.last_confirmed, 256 << 10, 8)
        heads, bodies = entries(first, len(run.heads))
        assert run.heads == heads
        assert [bytes(body) for body in run.bodies] == bodies
        first += len(run.heads)
    return first


@pytest.mark.parametrize("triple", [(1, 1, 1), (3, 3, 2), (3, 2, 2)])
async def test_write_crash_recover_read(cluster: Cluster, triple: tuple[int, int, int]) -> None:
    writer = await cluster.client.create_ledger(LedgerConfig(*triple))
    while writer.next_entry < 600:
        writer.append(*entries(writer.next_entry, 30))
    await eventually(lambda: writer.last_confirmed == 599)
    # The writer is abandoned, every bookie restarts and replays, then the ledger is recovered.
    for bookie_id in list(cluster.bookies):
        await cluster.stop(bookie_id)
        await cluster.start(bookie_id)
    assert await read_all(cluster, writer.ledger_id) == 600
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    writer.append(*entries(600, 1))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], LedgerFencedError)  # the fence survives, too


async def test_bookie_stops_in_mid_write(cluster: Cluster) -> None:
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    victim = writer.metadata.last_segment.bookies[0]
    for _ in range(10):
        writer.append(*entries(writer.next_entry, 10))
    await cluster.stop(victim)
    for _ in range(10):
        writer.append(*entries(writer.next_entry, 10))
        await asyncio.sleep(0)
    await eventually(lambda: writer.last_confirmed == 199)
    metadata = await writer.close()
    assert metadata.last_entry == 199
    assert victim not in metadata.last_segment.bookies
    assert await read_all(cluster, writer.ledger_id) == 200


async def test_pool_follows_registrations(cluster: Cluster) -> None:
    assert cluster.pool.writable == {"b0", "b1", "b2", "b3"}
    await cluster.stop("b3")
    await eventually(lambda: "b3" not in cluster.pool.writable)
    await cluster.start("b3")
    await eventually(lambda: "b3" in cluster.pool.writable)
