"""The same repairs with the product's own bookies, in memory: what ends up on their disks."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.packet import is_intact
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.fragments import fragments_of
from magnetar.bookkeeper.replication.replication_worker import ReplicationWorker
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.waiting import eventually

SMALL = StorageConfig(
    journal_segment_bytes=1 << 20,
    journal_extend_bytes=1 << 18,
    flush_bytes=1 << 20,
    entry_log_bytes=4 << 20,
)
CONFIG = ReplicationConfig(batch_entries=7, open_ledger_grace_s=0, backoff_min_s=0.2)


class RealCluster:
    """Bookies with journals and entry logs on memory file systems, one worker, one client."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = EmbeddedMetadataStore.open(None)
        self.pool = BookiePool(self.store)
        self.disks: dict[str, tuple[MemoryFileSystem, MemoryStore]] = {}
        self.running: dict[str, Bookie] = {}
        rng = random.Random(5)
        self.placement = RandomPlacement(rng)
        self.client = BookKeeperClient(
            self.store, self.pool, self.placement, clock=lambda: 0, rng=rng
        )
        self.markers = UnderReplicationStore(self.store, lambda: 0)
        self.worker = ReplicationWorker(
            self.store.new_session(),
            self.client.ledgers,
            self.pool,
            self.placement,
            clock=lambda: 0,
            rng=rng,
            config=CONFIG,
        )

    async def start(self, name: str, *, accept_data_loss: bool = False) -> None:
        if name not in self.disks:
            empty = MemoryFileSystem()
            self.disks[name] = (empty, MemoryStore(empty))
        disk, index = self.disks[name]
        config = BookieConfig(
            name,
            self.path / name,
            SMALL,
            disk_reserve_bytes=0,
            disk_usage_max=1.0,
            accept_data_loss=accept_data_loss,
        )
        bookie = await open_bookie(config, disk, self.store, index=index)
        self.running[name] = bookie
        self.pool.use(bookie)

    async def stop(self, name: str) -> None:
        await self.running.pop(name).close()

    async def write(self, count: int, quorums: tuple[int, int, int] = (3, 3, 3)) -> int:
        writer = await self.client.create_ledger(LedgerConfig(*quorums, password=b"secret"))
        writer.append([b"head%d" % i for i in range(count)], [bytes(500)] * count)
        await eventually(lambda: writer.last_confirmed == count - 1)
        await writer.close()
        return writer.ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.client.ledgers.require(ledger_id)).metadata

    async def repair(self, ledger_id: int, *bookies: str, suspects: tuple[str, ...] = ()) -> None:
        await self.markers.mark(ledger_id, bookies, suspects=suspects)
        deadline = asyncio.get_running_loop().time() + 30
        while (marker := await self.markers.read(ledger_id)) is not None:
            assert asyncio.get_running_loop().time() < deadline, marker
            await asyncio.sleep(0.01)

    async def assert_whole(self, ledger_id: int) -> None:
        metadata = await self.metadata(ledger_id)
        for fragment in fragments_of(metadata):
            for slot, name in enumerate(fragment.bookies):
                for first, end in fragment.runs_of(slot):
                    for entry_id in range(first, end):
                        reply = await self.running[name].read_entries(
                            ReadRequest(ledger_id, entry_id, 1, 1)
                        )
                        assert reply.code == codes.OK, (name, entry_id, reply.code)
                        assert is_intact(reply.packets[0])
                        assert bytes(reply.packets[0][36:]) == b"head%d" % entry_id + bytes(500)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    cluster = RealCluster(tmp_path)
    for number in range(4):
        await cluster.start(f"b{number}")
    await cluster.pool.start()
    cluster.worker.start()
    yield cluster
    await cluster.worker.close()
    await cluster.pool.close()
    for name in list(cluster.running):
        await cluster.stop(name)
    await cluster.store.close()


@pytest.mark.parametrize("quorums", [(3, 3, 3), (3, 2, 2)])
async def test_a_stopped_bookie_is_replaced(
    cluster: RealCluster, quorums: tuple[int, int, int]
) -> None:
    ledger_id = await cluster.write(50, quorums)
    lost = (await cluster.metadata(ledger_id)).segments[0].bookies[1]
    await cluster.stop(lost)
    await cluster.repair(ledger_id, lost)
    assert lost not in (await cluster.metadata(ledger_id)).segments[0].bookies
    await cluster.assert_whole(ledger_id)
    for name in list(cluster.running):  # from its journal, from its entry logs
        await cluster.stop(name)
        await cluster.start(name)
    await cluster.assert_whole(ledger_id)


async def test_an_empty_disk_is_filled(cluster: RealCluster) -> None:
    """The bookie comes back in limbo; what it was given it has, for good."""
    ledger_id = await cluster.write(50)
    empty = (await cluster.metadata(ledger_id)).segments[0].bookies[0]
    await cluster.stop(empty)
    del cluster.disks[empty]
    await cluster.start(empty, accept_data_loss=True)
    await cluster.repair(ledger_id, empty)
    assert (await cluster.metadata(ledger_id)).segments[0].bookies[0] == empty
    await cluster.assert_whole(ledger_id)


async def test_a_copy_that_rots_is_written_again(cluster: RealCluster) -> None:
    """In place: the bookie's newer copy is the one that counts."""
    ledger_id = await cluster.write(50)
    rotten = (await cluster.metadata(ledger_id)).segments[0].bookies[2]
    await cluster.running[rotten].flush()
    disk, _ = cluster.disks[rotten]
    flips = 0
    for path, inode in disk._names.items():
        at = inode.data.find(b"head11")
        if path.startswith("entry-log/") and at >= 0:
            inode.data[at + 100] ^= 1
            flips += 1
    assert flips == 1
    await cluster.repair(ledger_id, suspects=(rotten,))
    assert rotten in (await cluster.metadata(ledger_id)).segments[0].bookies
    await cluster.assert_whole(ledger_id)
    await cluster.running[rotten].flush()
    await cluster.assert_whole(ledger_id)


async def test_an_open_ledger_is_closed_and_repaired(cluster: RealCluster) -> None:
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2, password=b"secret"))
    writer.append([b"head%d" % i for i in range(20)], [bytes(500)] * 20)
    await eventually(lambda: writer.last_confirmed == 19)
    lost = writer.metadata.segments[0].bookies[0]
    await cluster.stop(lost)
    await cluster.repair(writer.ledger_id, lost)
    metadata = await cluster.metadata(writer.ledger_id)
    assert metadata.last_entry == 19
    await cluster.assert_whole(writer.ledger_id)
