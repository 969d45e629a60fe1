"""A bookie on a real disk with LMDB and threads: add, read, fence, restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from bookkeeper import codes, packet
from bookkeeper.bookie.bookie import Bookie
from bookkeeper.bookie.config import BookieConfig, StorageConfig
from bookkeeper.bookie.in_process_client import InProcessBookieClient
from bookkeeper.errors import DirectoryLockedError
from bookkeeper.storage.os_file_system import OsFileSystem
from bookkeeper.transport import AddRequest, BookieClient
from metadata.embedded import EmbeddedMetadataStore
from metadata.store import MetadataStore

KEY = bytes(20)
SMALL = StorageConfig(
    journal_segment_bytes=1 << 20,
    journal_extend_bytes=1 << 18,
    flush_bytes=1 << 20,
    entry_log_bytes=4 << 20,
)


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    opened = EmbeddedMetadataStore.open(None)
    yield opened
    await opened.close()


class Node:
    """Opens and closes one bookie on one directory."""

    def __init__(self, path: Path, store: MetadataStore, storage: StorageConfig = SMALL) -> None:
        self.path = path
        self.store = store
        self.config = BookieConfig("b1", path, storage, disk_reserve_bytes=0, disk_usage_max=1.0)

    async def start(self) -> Bookie:
        return await Bookie.open(self.config, OsFileSystem(self.path), self.store)


async def add(
    bookie: Bookie,
    ledger_id: int,
    ids: Sequence[int],
    body: Callable[[int], bytes] = lambda entry_id: b"body %d" % entry_id,
    *,
    key: bytes = KEY,
    recovery: bool = False,
) -> int:
    bodies = [body(entry_id) for entry_id in ids]
    heads = [
        packet.encode_head(ledger_id, entry_id, entry_id - 1, 0, b"head", data)
        for entry_id, data in zip(ids, bodies, strict=True)
    ]
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    size = sum(map(len, heads)) + sum(map(len, bodies))
    bookie.add_entries(
        AddRequest(
            ledger_id,
            key,
            ids,
            heads,
            bodies,
            size,
            recovery,
            lambda _request, code: answer.set_result(code),
        )
    )
    return await answer


async def test_entries_survive_a_restart(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, 1, range(1000)) == codes.OK
    assert await add(bookie, 2, range(3), lambda i: b"%d" % i * 200_000) == codes.OK
    reply = await bookie.read_entries(1, 10, 5, 1 << 20)
    assert [packet.decode_header(p).entry_id for p in reply.packets] == [10, 11, 12, 13, 14]
    await bookie.close()
    bookie = await node.start()
    reply = await bookie.read_entries(1, 0, 2000, 1 << 20)
    assert reply.code == codes.OK
    assert [bytes(p[40:]) for p in reply.packets] == [b"body %d" % i for i in range(1000)]
    reply = await bookie.read_entries(2, 1, 10, 1)
    assert [bytes(p[40:]) for p in reply.packets] == [b"1" * 200_000]
    assert await bookie.list_entries(1) == [(0, 1000)]
    lac = await bookie.read_lac(1, fence=False)
    assert lac.last_packet is not None
    assert packet.decode_header(lac.last_packet).entry_id == 999
    await bookie.close()


async def test_a_fence_survives_a_restart(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, 1, range(3)) == codes.OK
    reply = await bookie.read_entries(1, 0, 1, 1, fence=True, master_key=KEY)
    assert reply.code == codes.OK
    assert await add(bookie, 1, range(3, 4)) == codes.FENCED
    assert await add(bookie, 1, range(3, 4), recovery=True) == codes.OK
    await bookie.close()
    bookie = await node.start()
    assert await add(bookie, 1, range(4, 5)) == codes.FENCED
    assert await add(bookie, 1, range(4, 5), key=b"k" * 20) == codes.UNAUTHORIZED
    await bookie.close()


async def test_a_second_process_is_locked_out(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    with pytest.raises(DirectoryLockedError):
        await node.start()
    await bookie.close()


async def test_the_in_process_client_is_a_bookie_client(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    client: BookieClient = InProcessBookieClient(bookie)
    assert client.bookie_id == "b1"
    assert (await client.read_entries(9, 0, 1, 1)).code == codes.NO_LEDGER
    assert not (await client.info()).read_only
    await bookie.close()


async def test_flush_moves_entries_to_entry_logs_and_frees_the_journal(
    tmp_path: Path, store: MetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    for first in range(0, 400, 20):
        assert await add(bookie, 7, range(first, first + 20), lambda i: bytes(10_000)) == codes.OK
    await bookie.flush()
    assert bookie.storage.active.bytes == 0
    assert bookie.storage.flushing is None
    ids: list[int] = []
    while len(ids) < 400:
        reply = await bookie.read_entries(7, len(ids), 1000, 1 << 20)
        assert reply.code == codes.OK
        ids += [packet.decode_header(p).entry_id for p in reply.packets]
    assert ids == list(range(400))
    assert (await bookie.read_entries(7, 400, 1, 1)).code == codes.NO_ENTRY
    journals = sum(f.stat().st_size for f in (node.path / "journal").iterdir())
    assert journals <= 4 * SMALL.journal_segment_bytes
    await bookie.close()
