"""Entries that another process reads from a bookie's files: what is there, and what isn't."""

import asyncio
import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie.storage import run_reader
from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.bookie.storage.run_reader import RunReader
from magnetar.bookkeeper.bookie_client import EntryFiles
from magnetar.bookkeeper.transport import AddRequest, ReadRequest, StoredRun
from magnetar.broker.compaction.compacted_entry import decode_compacted
from magnetar.broker.compaction.process_link import CompactionProcess
from magnetar.broker.compaction.work_frames import LocatedEntries
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import KEY, SMALL, Node, add
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.unit.broker.compaction.test_two_passes import single

STORAGE = replace(SMALL, run_entries_max=16, run_bytes_max=1 << 20)
ALL = 1 << 30


def body(entry_id: int) -> bytes:
    return b"%d." % entry_id * 50


def files_of(bookie: Bookie) -> EntryFiles:
    assert bookie.files is not None
    return bookie.files


async def bodies_read(bookie: Bookie, first: int, count: int) -> list[bytes]:
    reply = await bookie.read_entries(ReadRequest(1, first, count, ALL))
    return [bytes(each[packet.PACKET_HEADER_BYTES :]) for each in reply.packets]


async def test_what_is_on_disk_is_located_and_read(tmp_path: Path, store: MetadataStore) -> None:
    bookie, reader = await Node(tmp_path, store, storage=STORAGE).start(), RunReader()
    assert await files_of(bookie).locate(1, 0, 9, ALL) == [], "there is no such ledger"
    assert await add(bookie, 1, range(100), body) == codes.OK
    assert await files_of(bookie).locate(1, 0, 9, ALL) == [], "it is in the journal only"
    await bookie.flush()
    assert await add(bookie, 1, range(100, 103), body) == codes.OK
    runs = await files_of(bookie).locate(1, 5, 200, ALL)
    assert [(run.first, len(run.sizes)) for run in runs] == [
        (5, 11),
        *((first, 16) for first in range(16, 96, 16)),
        (96, 4),
    ], "up to what is in memory"
    for run in runs:
        found = reader.read(run)
        assert found is not None
        assert [bytes(each) for each in found] == await bodies_read(
            bookie, run.first, len(run.sizes)
        )
    limited = await files_of(bookie).locate(
        1, 5, 40, sum(runs[0].sizes) + sum(runs[1].sizes) + 1000
    )
    assert [(run.first, len(run.sizes)) for run in limited] == [(5, 11), (16, 16)]
    (ended,) = await files_of(bookie).locate(1, 5, 8, ALL)
    assert len(ended.sizes) == 4
    assert len(await files_of(bookie).locate(1, 5, 99, 1)) == 1, "the first one whatever it takes"
    bookie.storage.ledgers[1].creator = 8
    assert await files_of(bookie).locate(1, 5, 99, ALL, creator=7) == [], "the id's other ledger"
    assert all(run.is_cached for run in runs)
    await bookie.close()
    assert await files_of(bookie).locate(1, 5, 99, ALL) == []
    bookie = await Node(tmp_path, store, storage=STORAGE).start()
    for run in await files_of(bookie).locate(1, 0, 102, ALL):
        assert not run.is_cached, "as far as is known"
        found = reader.read(run)
        assert found is not None
        assert [bytes(each) for each in found] == await bodies_read(
            bookie, run.first, len(run.sizes)
        )
    reader.close()
    await bookie.close()


async def test_a_run_ends_before_a_hole(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path, store, storage=STORAGE).start()
    assert await add(bookie, 1, [0, 1, 3, 4], body, recovery=True) == codes.OK
    await bookie.flush()
    (run,) = await files_of(bookie).locate(1, 0, 4, ALL)
    assert (run.first, len(run.sizes)) == (0, 2)
    assert await files_of(bookie).locate(1, 2, 4, ALL) == []
    (behind,) = await files_of(bookie).locate(1, 3, 4, ALL)
    found = RunReader().read(behind)
    assert found is not None
    assert [bytes(each) for each in found] == await bodies_read(bookie, 3, 2)
    await bookie.close()


async def test_files_in_memory_are_nobody_elses(tmp_path: Path, store: MetadataStore) -> None:
    fs = MemoryFileSystem()
    bookie = await open_bookie(Node(tmp_path, store).config, fs, store, index=MemoryStore(fs))
    assert await add(bookie, 1, range(9), body) == codes.OK
    await bookie.flush()
    assert await files_of(bookie).locate(1, 0, 8, ALL) == []
    await bookie.close()


async def test_what_is_not_what_it_should_be_is_not_read(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path, store, storage=STORAGE).start()
    assert await add(bookie, 1, range(10), body) == codes.OK
    await bookie.flush()
    (run,) = await files_of(bookie).locate(1, 0, 9, ALL)
    reader = RunReader()
    assert reader.read(run) is not None
    for wrong in (
        replace(run, ledger_id=2),
        replace(run, first=1),
        replace(run, offset=run.offset + 1),
        replace(run, sizes=[*run.sizes, run.sizes[0]]),
        replace(run, path=f"{run.path}.gone"),
    ):
        assert reader.read(wrong) is None
    at = run.offset + sum(run.sizes) // 2
    fd = os.open(run.path, os.O_RDWR)
    old = os.pread(fd, 1, at)
    os.pwrite(fd, bytes([old[0] ^ 1]), at)
    assert reader.read(run) is None
    os.pwrite(fd, old, at)
    os.close(fd)
    assert reader.read(run) is not None
    reader.close()
    await bookie.close()


async def test_the_process_that_compacts_reads_them_itself(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path, store, storage=STORAGE).start()
    log = [single(f"k{at % 30}", str(at)) for at in range(100)]
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    heads = [packet.encode_head(1, at, at - 1, 0, b"", entry) for at, entry in enumerate(log)]
    size = sum(map(len, heads)) + sum(map(len, log))
    bookie.add_entries(
        AddRequest(
            *(1, KEY, range(100), heads, log, size, False),
            lambda _, code: done.set_result(code),
        )
    )
    assert await done == codes.OK
    await bookie.flush()
    runs = await files_of(bookie).locate(1, 0, 99, ALL)
    assert len(runs) > 3
    process = CompactionProcess(-1, False)
    kept: list[Buffer] = []

    async def keep(portion: Sequence[Buffer]) -> None:
        kept.extend(portion)

    def missing(run: StoredRun) -> StoredRun:
        return replace(run, path=f"{run.path}.gone")

    located = LocatedEntries([runs[0], runs[1], missing(runs[2]), *runs[3:]])
    there = len(runs[0].sizes) + len(runs[1].sizes)
    assert await process.note(1, 0, located) == there, "and nothing behind the one that is missing"
    assert await process.note(1, there, LocatedEntries([missing(runs[2])])) == 0
    await process.note(1, there, log[there : there + 20])
    rest = await files_of(bookie).locate(1, there + 20, 99, ALL)
    assert await process.note(1, there + 20, LocatedEntries(rest)) == 80 - there
    assert await process.choose() == 70
    assert await process.take(1, 0, located, keep) == there
    rest = runs[2:]
    assert await process.take(1, there, LocatedEntries(rest), keep) == 100 - there
    newest = [((1, at), log[at]) for at in range(70, 100)]
    assert [decode_compacted(entry) for entry in kept] == newest
    process.kill()
    await bookie.close()


def pages_in_memory(fd: int, size: int) -> list[int]:
    """The offsets of the file's pages that the kernel has, by mincore(2), which brings none."""
    there = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(fd, size) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        result = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(size), there)
        del first  # a mapping that is looked at can't be closed
    assert result == 0
    return [at * mmap.PAGESIZE for at, page in enumerate(there) if page & 1]


def test_the_kernel_reads_no_more_than_the_run(tmp_path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system takes no advice about files")
    path, size, run_bytes = tmp_path / "log", 4 << 20, 128 << 10
    path.write_bytes(bytes(size))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    before = pages_in_memory(fd, size)  # the kernel keeps what somebody just uses, such as a sync
    if len(before) > size // mmap.PAGESIZE // 2:
        pytest.skip("this file system is in memory")
    reader, sizes = RunReader(), [run_bytes - RECORD_HEADER_BYTES]
    assert reader.read(StoredRun(1, 0, str(path), 0, sizes, True)) is None, "no entry, but read"
    read = [*range(0, run_bytes, mmap.PAGESIZE)]
    assert pages_in_memory(fd, size) == sorted({*before, *read})
    os.close(fd)
    reader.close()


async def test_a_reader_with_a_rate_waits_where_it_is_ahead(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = await Node(tmp_path, store, storage=STORAGE).start()
    assert await add(bookie, 1, range(10), body) == codes.OK
    await bookie.flush()
    (run,) = await files_of(bookie).locate(1, 0, 9, ALL)
    size = sum(run.sizes) + 10 * RECORD_HEADER_BYTES
    now_s, waits_s = [100.0], list[float]()
    monkeypatch.setattr(run_reader, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(run_reader, "sleep", waits_s.append)
    reader = RunReader()
    assert reader.read(run, size) is not None
    assert waits_s == []
    now_s[0] += 0.25
    assert reader.read(run, size) is not None
    assert waits_s == [0.75], "a run a second"
    now_s[0] += 9
    assert reader.read(run, size) is not None
    assert waits_s == [0.75], "it is late: nothing is made up for"
    assert reader.read(run) is not None
    assert waits_s == [0.75], "the limit was lifted"
    monkeypatch.setattr(run_reader, "_STEP_BYTES", -(-size // 2))
    now_s[0] += 9
    assert reader.read(run, size) is not None
    assert waits_s[1:] == pytest.approx([0.5], abs=0.01), "also between two steps of a run"
    reader.close()
    await bookie.close()
