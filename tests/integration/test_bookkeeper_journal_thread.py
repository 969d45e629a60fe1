"""How a journal's groups get to the disk: by compiled code, by a Python thread, by both in turn."""

import asyncio
import errno
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.journal import journal_thread
from magnetar.bookkeeper.storage.file_system import Buffer, File
from magnetar.bookkeeper.storage.os_file_system import OsFile, OsFileSystem
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import Node, add

durable_writes = pytest.importorskip("magnetar.bookkeeper.storage.durable_writes")


class CountedFile(OsFile):
    """Tells the sync points of writes by Python."""

    def pwritev(
        self, buffers: Sequence[Buffer], offset: int, *, sync_point: str | None = None
    ) -> None:
        self.owner.sync_points.append(sync_point)
        super().pwritev(buffers, offset, sync_point=sync_point)

    owner: "CountedFiles"


class CountedFiles(OsFileSystem):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sync_points: list[str | None] = []

    def _counted(self, path: str, flags: int) -> File:
        file = CountedFile(self.root / path, flags, self._buffers)
        file.owner = self
        return file

    def create(self, path: str) -> File:
        return self._counted(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> File:
        return self._counted(path, 0)

    @property
    def groups(self) -> int:
        """Written by Python since the last look."""
        count = self.sync_points.count("journal.group")
        self.sync_points.clear()
        return count


async def test_a_group_that_has_its_place_is_written_by_compiled_code(
    tmp_path: Path, store: MetadataStore
) -> None:
    node, files = Node(tmp_path / "b1", store), CountedFiles(tmp_path / "b1")
    bookie = await node.start(files)
    assert await add(bookie, 7, range(100)) == codes.OK
    assert files.groups >= 1, "the file got its blocks"
    for first in range(100, 130):
        assert await add(bookie, 7, [first]) == codes.OK
    assert files.groups == 0
    assert bookie.metrics.journal_bytes > 30 * 4096
    at_once = [add(bookie, 7, [number]) for number in range(130, 830)]
    assert set(await asyncio.gather(*at_once)) == {codes.OK}
    assert files.groups == 0, "all of them are one write"
    for number in range(40):
        assert await add(bookie, 8, [number], lambda _id: bytes(50_000)) == codes.OK
    assert 1 < files.groups < 20
    await bookie.close()
    assert await entries(node, 7) == [b"body %d" % number for number in range(830)]
    assert len(await entries(node, 8)) == 40


class Short(durable_writes.DurableWrites):  # type: ignore[misc,name-defined]
    """Writes the first half, as a call that a signal interrupts may."""

    def submit(self, descriptor: int, buffers: list[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        super().submit(descriptor, [data[: len(data) // 2]], offset)


class Refused(durable_writes.DurableWrites):  # type: ignore[misc,name-defined]
    """A file system that doesn't know the flag."""

    def submit(self, descriptor: int, buffers: list[Buffer], offset: int) -> None:
        super().submit(descriptor, [], offset)

    def take(self) -> tuple[int, float]:
        super().take()
        return -errno.EOPNOTSUPP, 0.0


class NoMemory(durable_writes.DurableWrites):  # type: ignore[misc,name-defined]
    def submit(self, descriptor: int, buffers: list[Buffer], offset: int) -> None:
        raise MemoryError


@pytest.mark.parametrize("writes", [None, Short, Refused, NoMemory])
async def test_a_thread_of_python_does_what_was_left(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch, writes: type | None
) -> None:
    """None: nothing is compiled."""
    monkeypatch.setattr(journal_thread, "DurableWrites", writes)
    node, files = Node(tmp_path / "b1", store), CountedFiles(tmp_path / "b1")
    bookie = await node.start(files)
    for number in range(20):
        assert await add(bookie, 7, [number]) == codes.OK
    assert files.groups == 20
    await kill(bookie)
    assert await entries(node, 7) == [b"body %d" % number for number in range(20)]


async def test_without_a_descriptor_a_thread_of_python_writes(
    tmp_path: Path, store: MetadataStore
) -> None:
    """The compiled thread needs one to tell of its end. It comes when there is one again."""
    node, files = Node(tmp_path / "b1", store), CountedFiles(tmp_path / "b1")
    bookie = await node.start(files)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = os.open("/", os.O_RDONLY)
    os.close(unused)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (unused, hard))
        files.sync_points.clear()
        for number in range(10):
            assert await add(bookie, 7, [number]) == codes.OK
        assert files.groups == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await add(bookie, 7, [10]) == codes.OK
    assert files.groups == 0
    await bookie.close()
    assert len(await entries(node, 7)) == 11


async def test_an_error_ends_the_bookie_and_names_the_file(
    tmp_path: Path, store: MetadataStore
) -> None:
    """Nobody knows what is on the disk: the write isn't tried again by the other thread."""
    node, files = Node(tmp_path / "b1", store), CountedFiles(tmp_path / "b1")
    bookie = await node.start(files)
    assert await add(bookie, 7, range(100)) == codes.OK
    file = bookie.storage.writers[0]._file
    assert isinstance(file, OsFile)
    segment = next((tmp_path / "b1").glob("journal/*"))
    read_only = os.open(segment, os.O_RDONLY)
    os.dup2(read_only, file.durable_descriptor)
    os.close(read_only)
    files.sync_points.clear()
    assert await add(bookie, 7, [100]) != codes.OK
    assert isinstance(bookie.error, OSError)
    assert bookie.error.errno == errno.EBADF
    assert str(bookie.error.filename).endswith(segment.name)
    assert files.groups == 0
    await kill(bookie)
    assert len(await entries(node, 7)) == 100


async def kill(bookie: Bookie) -> None:
    """End it without its last flush: the next start replays the journal."""
    bookie.give_up(RuntimeError("killed"))
    await bookie.close()


async def entries(node: Node, ledger_id: int) -> list[bytes]:
    """As a new start reads them."""
    bookie = await node.start()
    reply = await bookie.read_entries(ReadRequest(ledger_id, 0, 1 << 20, 1 << 30))
    await bookie.close()
    return [bytes(each[40:]) for each in reply.packets]
