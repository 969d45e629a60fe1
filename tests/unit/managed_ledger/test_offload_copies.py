"""Copies of ledgers: what is written, read back and read later, in memory and as files."""

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.ledger_reader import EntryRun
from magnetar.bookkeeper.errors import LedgerError, NoSuchEntryError
from magnetar.managed_ledger.offload.block_offloader import BlockOffloader
from magnetar.managed_ledger.offload.config import URI, path_of_uri
from magnetar.managed_ledger.offload.context import LedgerCopy
from magnetar.managed_ledger.offload.copy_format import MARK_BYTES, CopyIndex
from magnetar.managed_ledger.offload.errors import (
    CopyDamagedError,
    OffloadedReadError,
    OffloadError,
)
from magnetar.managed_ledger.offload.file_store import FilesystemOffloader
from magnetar.managed_ledger.offload.interfaces import CopyJob, EntryReader
from tests.unit.managed_ledger.offload_doubles import (
    UUID,
    ListedLedger,
    MemoryStore,
    job_of,
    memory_offloader,
)


async def read_all(reader: EntryReader, count: int, bytes_max: int = 300) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        run = await reader.read(len(found), count - 1, bytes_max)
        assert (run.ledger_id, run.first) == (5, len(found))
        found += list(map(bytes, run.bodies))
    return found


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 500), min_size=1, max_size=60),
    block_bytes=st.integers(1, 4000),
    bytes_max=st.integers(1, 2000),
    start=st.integers(0, 59),
)
def test_what_is_copied_is_read_back(
    sizes: list[int], block_bytes: int, bytes_max: int, start: int
) -> None:
    rng = random.Random(1)
    entries = [rng.randbytes(size) for size in sizes]

    async def check() -> None:
        offloader = memory_offloader(MemoryStore())
        job = job_of(entries, block_bytes)
        await offloader.offload(job, ListedLedger(entries))
        reader = await offloader.open(job.copy)
        assert await read_all(reader, len(entries), bytes_max) == entries
        first = start % len(entries)
        run = await reader.read(first, len(entries) - 1, bytes_max)
        assert [bytes(x) for x in run.bodies] == entries[first : first + len(run.bodies)]
        assert sum(map(len, run.bodies)) <= max(bytes_max, len(entries[first]))

    asyncio.run(check())


async def test_entries_larger_than_a_read() -> None:
    rng = random.Random(2)
    sizes = [10, MARK_BYTES, 10, 3 * MARK_BYTES, 5 * MARK_BYTES, 20, MARK_BYTES - 1, 1, 7]
    entries = [rng.randbytes(size) for size in sizes]
    offloader = memory_offloader(MemoryStore())
    job = job_of(entries, 4 * MARK_BYTES)
    await offloader.offload(job, ListedLedger(entries, 2))
    reader = await offloader.open(job.copy)
    assert await read_all(reader, len(entries), 100) == entries
    for number, entry in enumerate(entries):
        run = await reader.read(number, number, 1)
        assert [bytes(x) for x in run.bodies] == [entry]
    with pytest.raises(NoSuchEntryError, match="above the last"):
        await reader.read(0, len(entries), 1)


ENTRIES = [bytes([65 + number]) * 40 for number in range(30)]


async def test_every_flipped_bit_of_the_data_is_found() -> None:
    store = MemoryStore()
    offloader = memory_offloader(store)
    job = job_of(ENTRIES, 10_000)
    await offloader.offload(job, ListedLedger(ENTRIES))
    data = store.objects[f"{job.copy.name}.data"]
    reader = await offloader.open(job.copy)
    for at in range(48, len(data)):  # behind the block's head, which no read looks at
        data[at] ^= 1 << at % 8
        with pytest.raises(OffloadedReadError, match=r"5-5f0c.*\.data: "):
            await read_all(reader, len(ENTRIES), 100_000)
        data[at] ^= 1 << at % 8
    assert await read_all(reader, len(ENTRIES)) == ENTRIES


async def test_every_flipped_byte_of_the_index_is_found() -> None:
    store = MemoryStore()
    offloader = memory_offloader(store)
    job = job_of(ENTRIES)
    await offloader.offload(job, ListedLedger(ENTRIES))
    index = store.objects[f"{job.copy.name}.index"]
    for at in range(len(index)):
        index[at] ^= 255
        with pytest.raises(CopyDamagedError, match=r"\.index: "):
            await offloader.open(job.copy)
        index[at] ^= 255
    for length in range(len(index)):
        with pytest.raises(CopyDamagedError):
            CopyIndex.decode(bytes(index[:length]), "i")


async def test_what_is_gone_or_cut_is_damage_and_no_missing_entry() -> None:
    store = MemoryStore()
    offloader = memory_offloader(store)
    job = job_of(ENTRIES)
    await offloader.offload(job, ListedLedger(ENTRIES))
    data = store.objects[f"{job.copy.name}.data"]
    reader = await offloader.open(job.copy)
    del data[-1:]
    with pytest.raises(CopyDamagedError, match="were written"):
        await offloader.open(job.copy)
    with pytest.raises(CopyDamagedError, match="ends at"):
        await reader.read(29, 29, 100)
    other = replace(job.copy, uuid=UUID.replace("5", "6"))
    with pytest.raises(CopyDamagedError, match="no such object"):
        await offloader.open(other)
    await offloader.delete(job.copy)
    await offloader.delete(job.copy)  # a missing one is success
    assert store.objects == {}
    with pytest.raises(OffloadedReadError):
        await reader.read(0, 0, 100)
    with pytest.raises(CopyDamagedError, match="no such object"):
        await offloader.open(job.copy)
    assert offloader.metrics.read_errors == 5


async def test_a_store_that_fails_is_told_and_leaves_nothing() -> None:
    store = MemoryStore()
    offloader = memory_offloader(store)
    job = job_of(ENTRIES)
    store.spoil = True
    with pytest.raises(OffloadError, match="read back changed"):
        await offloader.offload(job, ListedLedger(ENTRIES))
    assert (store.objects, store.uploads) == ({}, {})
    store.spoil, store.error = False, OSError("the disk is full")
    with pytest.raises(OffloadError, match="the disk is full"):
        await offloader.offload(job, ListedLedger(ENTRIES))
    with pytest.raises(OffloadedReadError, match="the disk is full"):
        await offloader.open(job.copy)
    with pytest.raises(OffloadError, match="the disk is full"):
        await offloader.delete(job.copy)
    store.error = None
    with pytest.raises(OffloadError, match="30 entries of 1200 bytes were read"):
        await offloader.offload(replace(job, size=1199), ListedLedger(ENTRIES))
    assert (store.objects, store.uploads) == ({}, {})


async def test_a_failing_source_and_a_cancelled_copy_leave_nothing() -> None:
    store = MemoryStore()
    offloader = memory_offloader(store, copies_max=1)
    job = job_of(ENTRIES)

    class Failing(ListedLedger):
        async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
            if first:
                raise LedgerError("no bookie")
            return await super().read(first, last, bytes_max)

    with pytest.raises(LedgerError, match="no bookie"):
        await offloader.offload(job, Failing(ENTRIES))
    store.gate.clear()
    copying = asyncio.create_task(offloader.offload(job, ListedLedger(ENTRIES)))
    await asyncio.sleep(0)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert (store.objects, store.uploads) == ({}, {})
    store.gate.set()
    assert await offloader.offload(job, ListedLedger(ENTRIES)) > 1200


# --- files


@pytest.fixture
def files() -> Iterator[FilesystemOffloader]:
    offloader = FilesystemOffloader(1, 1)
    yield offloader
    offloader.close()


def files_below(root: Path) -> list[Path]:
    return sorted(x for x in root.rglob("*") if x.is_file())


def left_in(root: Path) -> list[Path]:
    """Directories, too."""
    return list(root.iterdir())


def file_job(root: Path, block_bytes: int = 500) -> CopyJob:
    copy = LedgerCopy(5, UUID, "filesystem", {URI: root.as_uri()})
    return replace(job_of(ENTRIES, block_bytes), copy=copy)


async def test_copies_are_files(files: FilesystemOffloader, tmp_path: Path) -> None:
    job = file_job(tmp_path / "a b" / "copies")
    size = await files.offload(job, ListedLedger(ENTRIES))
    found = files_below(tmp_path)
    assert [x.relative_to(tmp_path).as_posix() for x in found] == [
        f"a b/copies/005/5-{UUID}.data",
        f"a b/copies/005/5-{UUID}.index",
    ]
    assert sum(x.stat().st_size for x in found) == size
    reader = await files.open(job.copy)
    assert await read_all(reader, 30) == ENTRIES
    data = bytearray(found[0].read_bytes())
    data[70] ^= 4
    found[0].write_bytes(data)
    with pytest.raises(CopyDamagedError, match=r"entry 0 of ledger 5.*CRC32C"):
        await reader.read(0, 0, 100)
    await files.delete(job.copy)
    assert left_in(tmp_path / "a b" / "copies") == []
    with pytest.raises(OffloadedReadError, match="No such file"):
        await reader.read(0, 0, 100)


async def test_a_directory_that_goes_while_a_copy_is_made(
    files: FilesystemOffloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the last other copy in it is deleted."""
    job, real = file_job(tmp_path), os.open

    def late(path: Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".writing") and not gone:
            gone.append(Path(path).parent)
            gone[0].rmdir()
        return real(path, flags, mode)

    gone: list[Path] = []
    monkeypatch.setattr(os, "open", late)
    await files.offload(job, ListedLedger(ENTRIES))
    assert gone == [tmp_path / "005"]
    assert await read_all(await files.open(job.copy), 30) == ENTRIES


async def test_what_a_crash_left_of_a_copy_is_deleted_with_it(
    files: FilesystemOffloader, tmp_path: Path
) -> None:
    job = file_job(tmp_path)
    (tmp_path / "005").mkdir()
    for kind in ("data", "index"):
        (tmp_path / "005" / f"{job.copy.name}.{kind}.writing").write_bytes(b"half")
    await files.delete(job.copy)
    assert left_in(tmp_path) == []


async def test_a_cancelled_copy_leaves_no_file(files: FilesystemOffloader, tmp_path: Path) -> None:
    reached = asyncio.Event()

    class Endless(ListedLedger):
        async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
            if first:
                reached.set()
                await asyncio.Event().wait()
            return await super().read(first, last, bytes_max)

    copying = asyncio.create_task(files.offload(file_job(tmp_path), Endless(ENTRIES)))
    await reached.wait()
    assert [x.suffix for x in files_below(tmp_path)] == [".writing"]
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert left_in(tmp_path) == []


async def test_a_copy_cancelled_before_its_file_is_made(
    files: FilesystemOffloader, tmp_path: Path
) -> None:
    gate = threading.Event()
    files._writers.submit(gate.wait, 30)
    copying = asyncio.create_task(files.offload(file_job(tmp_path), ListedLedger(ENTRIES)))
    for _ in range(10):
        await asyncio.sleep(0)
    copying.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert files_below(tmp_path) == []


async def test_a_place_that_is_none(files: FilesystemOffloader, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OffloadError, match="Not a directory"):
        await files.offload(file_job(tmp_path / "file"), ListedLedger(ENTRIES))
    copy = LedgerCopy(5, UUID, "filesystem", {})
    with pytest.raises(OffloadError, match="no place for copies"):
        await files.delete(copy)
    with pytest.raises(OffloadedReadError, match="no place for copies"):
        await files.open(copy)
    assert isinstance(files, BlockOffloader)


@pytest.mark.parametrize("uri", ["", "here", "hdfs://host/x", "file://host/x", "s3://bucket"])
def test_uris_that_are_no_directory_of_this_machine(uri: str) -> None:
    with pytest.raises(ValueError, match="not a directory of this machine"):
        path_of_uri(uri)


def test_uris_of_directories(tmp_path: Path) -> None:
    assert path_of_uri("file:///a/b%20c") == Path("/a/b c")
    assert path_of_uri(str(tmp_path)) == tmp_path
