"""What a bookie counts of its work, for metrics."""

from pathlib import Path

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import Node, Registry, add


async def test_adds_groups_and_reads_are_counted(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    metrics = bookie.metrics
    assert await add(bookie, 1, range(100)) == codes.OK
    assert await add(bookie, 2, range(3), lambda i: bytes(200_000)) == codes.OK
    assert await add(bookie, 1, range(100, 101), key=b"k" * 20) == codes.UNAUTHORIZED
    assert (metrics.added_entries, metrics.refused_adds) == (103, 1)
    assert metrics.added_bytes > 600_000
    assert metrics.journal_add.count == 103
    assert metrics.journal_bytes > metrics.added_bytes
    assert 1 <= metrics.journal_sync.count <= 103
    reply = await bookie.read_entries(ReadRequest(2, 0, 2, 1 << 20))
    assert (metrics.cached_reads, metrics.stored_reads) == (1, 0)
    assert (metrics.reads.count, metrics.read_entries) == (1, len(reply.packets))
    assert metrics.read_bytes == sum(map(len, reply.packets))
    await bookie.flush()
    assert metrics.flush.count == 1
    assert 600_000 < metrics.flush_bytes.sum_ms <= metrics.added_bytes
    assert (await bookie.read_entries(ReadRequest(1, 0, 2, 1 << 20))).code == codes.OK
    assert (metrics.cached_reads, metrics.stored_reads, metrics.failed_reads) == (1, 1, 0)
    await bookie.close()


async def test_a_group_waits_from_its_first_entry_on(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, 1, range(1)) == codes.OK
    metrics = bookie.metrics
    assert metrics.journal_add.sum_ms >= metrics.journal_sync.sum_ms > 0
    await bookie.close()


async def test_collections_are_counted(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    for ledger_id in (1, 2):
        assert await add(bookie, ledger_id, range(10), lambda i: bytes(10_000)) == codes.OK
        await bookie.flush()
    await GarbageCollector(bookie, Registry(2)).collect()
    metrics = bookie.metrics
    assert metrics.deleted_ledgers == 1
    assert metrics.compaction.count == 1
    await bookie.close()
