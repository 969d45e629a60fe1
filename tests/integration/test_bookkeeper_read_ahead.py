"""Read-ahead of a bookie: the same answers with and without it, fewer trips to the disk."""

import asyncio
import errno
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie.storage.entry_log import DIRECTORY
from magnetar.bookkeeper.bookie.storage.read_ahead import ReadAhead
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import SMALL, Node, add
from tests.memory_file_system import MemoryFile, MemoryFileSystem
from tests.memory_store import MemoryStore


def body(entry_id: int, size: int = 100) -> bytes:
    return b"%d." % entry_id * (size // 4)


async def open_small(path: Path, store: MetadataStore, read_ahead_bytes: int) -> Bookie:
    """In memory, with small runs."""
    fs = MemoryFileSystem()
    small = replace(SMALL, run_entries_max=16, run_bytes_max=4096)
    node = Node(path, store, storage=small, read_ahead_bytes=read_ahead_bytes)
    return await open_bookie(node.config, fs, store, index=MemoryStore(fs))


async def read_ids(bookie: Bookie, first: int, count_max: int, bytes_max: int) -> list[int]:
    """Ids of an answer, whose packets are what was written."""
    reply = await bookie.read_entries(ReadRequest(1, first, count_max, bytes_max))
    ids = []
    for each in reply.packets:
        header = packet.decode_header(each)
        assert bytes(each[packet.PACKET_HEADER_BYTES + 4 :]) == body(header.entry_id)
        ids.append(header.entry_id)
    assert (reply.code == codes.OK) == bool(ids)
    return ids


async def fill(bookie: Bookie, ids: Sequence[int]) -> None:
    assert await add(bookie, 1, ids, body, recovery=True) == codes.OK
    await bookie.flush()


async def settled(ahead: ReadAhead) -> None:
    """Nothing is being fetched."""
    async with asyncio.timeout(30):
        while ahead._fetches:  # noqa: ASYNC110 no event for it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("step", [1, 3])  # 3: a striped ledger, whose other entries lie elsewhere
async def test_entry_by_entry_costs_a_trip_a_run(
    tmp_path: Path, store: MetadataStore, step: int
) -> None:
    bookie = await open_small(tmp_path, store, 1 << 20)
    ids = range(0, 480 * step, step)
    await fill(bookie, ids)
    ahead = bookie.read_ahead
    for entry_id in ids:
        assert await read_ids(bookie, entry_id, 1, 1) == [entry_id]
    assert ahead.misses <= 4
    assert ahead.hits >= len(ids) - 4
    await settled(ahead)
    await bookie.close()


async def test_a_reader_of_many_entries_at_a_time_gets_them_in_full(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await open_small(tmp_path, store, 1 << 20)
    await fill(bookie, range(500))
    first = 0
    while first < 500:
        ids = await read_ids(bookie, first, 70, 1 << 20)
        assert ids == list(range(first, min(first + 70, 500)))
        first += len(ids)
    await settled(bookie.read_ahead)
    await bookie.close()


async def test_who_reads_here_and_there_gets_what_he_asks_for_and_no_more(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await open_small(tmp_path, store, 1 << 20)
    await fill(bookie, range(500))
    for entry_id in (400, 100, 300, 0, 250):
        assert await read_ids(bookie, entry_id, 1, 1) == [entry_id]
    assert bookie.read_ahead.bytes == 0
    await bookie.close()


@pytest.mark.parametrize("read_ahead_bytes", [0, 5000, 1 << 22])
@pytest.mark.parametrize("seed", range(6))
async def test_every_answer_is_the_one_without_read_ahead(
    tmp_path: Path, store: MetadataStore, seed: int, read_ahead_bytes: int
) -> None:
    """Holes, repairs that fill them, flushes, several readers with limits of all kinds."""
    rng = random.Random(seed)
    bookie = await open_small(tmp_path, store, read_ahead_bytes)
    held: set[int] = set()
    positions = [0] * 4

    async def read_one(reader: int) -> None:
        first = positions[reader]
        count_max, bytes_max = rng.choice([1, 5, 100]), rng.choice([1, 700, 1 << 20])
        before = set(held)
        ids = await read_ids(bookie, first, count_max, bytes_max)
        assert ids == list(range(first, first + len(ids))), "contiguous, from there on"
        assert len(ids) <= count_max
        assert len(ids) <= 1 or sum(40 + len(body(id_)) for id_ in ids) <= bytes_max
        assert ids or first not in before, f"entry {first} is there"
        positions[reader] = first + max(1, len(ids))
        if first > 600 or rng.random() < 0.03:
            positions[reader] = rng.randrange(300)

    for _ in range(300):
        kind = rng.random()
        if kind < 0.2:
            first = rng.randrange(600)
            ids = [first + at for at in range(20) if rng.random() < 0.8] or [first]
            await fill(bookie, ids)
            held.update(ids)
        else:
            await asyncio.gather(*(read_one(each) for each in range(rng.randrange(1, 5))))
        assert bookie.read_ahead.bytes <= max(read_ahead_bytes, 4096 + 16 * 300)
    await settled(bookie.read_ahead)
    await bookie.close()


async def test_an_entry_that_a_repair_brings_is_found(tmp_path: Path, store: MetadataStore) -> None:
    """The run was read ahead while it had a hole."""
    bookie = await open_small(tmp_path, store, 1 << 20)
    await fill(bookie, [id_ for id_ in range(64) if id_ != 9])
    for entry_id in range(9):
        assert await read_ids(bookie, entry_id, 1, 1) == [entry_id]
    assert await read_ids(bookie, 9, 1, 1) == []
    await fill(bookie, [9])
    assert await read_ids(bookie, 9, 5, 1 << 20) == [9, 10, 11, 12, 13]
    await settled(bookie.read_ahead)
    await bookie.close()


async def test_damage_is_told_to_who_asks_for_it(tmp_path: Path, store: MetadataStore) -> None:
    fs = MemoryFileSystem()
    small = replace(SMALL, run_entries_max=16, run_bytes_max=4096)
    config = Node(tmp_path, store, storage=small).config
    bookie = await open_bookie(config, fs, store, index=MemoryStore(fs))
    await fill(bookie, range(100))
    run = bookie.storage.find_run(1, 40)
    assert run is not None
    fs.contents(f"{DIRECTORY}/{run.log_id:016x}.log")[run.offset_of(40) + 60] ^= 1
    first = 0
    while first < 40:
        ids = await read_ids(bookie, first, 7, 1 << 20)
        assert ids
        assert 40 not in ids
        first += len(ids)
    reply = await bookie.read_entries(ReadRequest(1, 40, 7, 1 << 20))
    assert (reply.code, reply.packets) == (codes.IO_ERROR, [])
    assert await read_ids(bookie, 41, 3, 1 << 20) == [41, 42, 43]
    await settled(bookie.read_ahead)
    await bookie.close()


async def test_what_the_disk_cannot_read_spoils_nothing_before_it(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that lie together are read at once."""
    bookie = await open_small(tmp_path, store, 1 << 20)
    await fill(bookie, range(100))
    bookie.storage.logs._cached_from.clear()  # as after a start: all of it is read from the disk
    run = bookie.storage.find_run(1, 40)
    assert run is not None
    bad = run.offset_of(40)
    sizes: list[int] = []

    def pread_direct(file: MemoryFile, size: int, offset: int, turn: object = None) -> bytes:
        sizes.append(size)
        if offset <= bad < offset + size:
            raise OSError(errno.EIO, "a bad sector")
        return file.pread(size, offset)

    monkeypatch.setattr(MemoryFile, "pread_direct", pread_direct)
    first = 0
    while first < run.first:
        ids = await read_ids(bookie, first, 7, 1 << 20)
        assert ids
        first += len(ids)
    reply = await bookie.read_entries(ReadRequest(1, run.first, 7, 1 << 20))
    assert (reply.code, reply.packets) == (codes.IO_ERROR, [])
    assert await read_ids(bookie, run.end, 3, 1 << 20) == [run.end, run.end + 1, run.end + 2]
    assert max(sizes) > 2 * run.bytes, "several runs at once"
    await settled(bookie.read_ahead)
    await bookie.close()


async def test_what_was_written_last_is_in_the_page_cache_and_older_entries_are_not(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = await open_small(tmp_path, store, 0)
    logs = bookie.storage.logs
    logs.config = replace(logs.config, entry_log_cached_bytes=20_000)
    direct: list[int] = []
    dropped: list[tuple[int, int]] = []

    def pread_direct(file: MemoryFile, size: int, offset: int, turn: object = None) -> bytes:
        direct.append(offset)
        return file.pread(size, offset)

    monkeypatch.setattr(MemoryFile, "pread_direct", pread_direct)
    monkeypatch.setattr(MemoryFile, "drop_cached", lambda _, *span: dropped.append(span))
    for first in range(0, 200, 20):
        await fill(bookie, range(first, first + 20))
    for entry_id in range(200):
        direct.clear()
        assert await read_ids(bookie, entry_id, 1, 1) == [entry_id]
        run = bookie.storage.find_run(1, entry_id)
        assert run is not None
        at = run.offset_of(entry_id)
        is_dropped = any(first <= at < first + size for first, size in dropped)
        assert bool(direct) == is_dropped, entry_id
    assert 0 < sum(size for _, size in dropped) < max(log.end for log in logs.logs.values())
    await bookie.close()


async def test_reads_take_turns_while_entries_come(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = await open_small(tmp_path, store, 0)
    await fill(bookie, range(100))
    bookie.storage.logs._cached_from.clear()
    turns: list[object] = []

    def pread_direct(file: MemoryFile, size: int, offset: int, turn: object = None) -> bytes:
        turns.append(turn)
        return file.pread(size, offset)

    monkeypatch.setattr(MemoryFile, "pread_direct", pread_direct)
    group = bookie.storage.journals[0].newest
    for came_s, are_turns in ((0.0, False), (perf_counter() + 1000, True)):
        turns.clear()
        group.opened_s = came_s
        assert await read_ids(bookie, 0, 1, 1) == [0]
        assert [each is not None for each in turns] == [are_turns]
    await bookie.close()


async def test_what_nobody_reads_any_more_is_given_back(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await open_small(tmp_path, store, 1 << 20)
    await fill(bookie, range(200))
    ahead = bookie.read_ahead
    for _ in range(2):
        for first in range(0, 40, 10):
            await read_ids(bookie, first, 10, 1 << 20)
        await settled(ahead)
        assert ahead.bytes > 0
        assert ahead.chunk_count > 0
        ahead.release_unused()  # read since the last time
        assert ahead.bytes > 0
        ahead.release_unused()
        assert ahead.bytes == ahead.chunk_count == 0
    for first in range(0, 40, 10):
        await read_ids(bookie, first, 10, 1 << 20)
    bookie.storage.forget(1, 1)
    bookie.on_ledgers_dropped([1])
    assert ahead.bytes == 0
    assert (await bookie.read_entries(ReadRequest(1, 10, 1, 1))).code == codes.NO_LEDGER
    await settled(ahead)
    assert ahead.bytes == 0
    await bookie.close()
