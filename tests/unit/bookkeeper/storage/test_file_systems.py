"""Both file systems obey one contract; the one in memory also forgets and fails as told."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.os_file_system import OsFile, OsFileSystem, coalesce
from tests.memory_file_system import Faults, MemoryFileSystem, PowerLoss


@pytest.fixture(params=["os", "memory"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return OsFileSystem(tmp_path / "root") if request.param == "os" else MemoryFileSystem()


def test_what_is_written_is_read_back(fs: FileSystem) -> None:
    fs.make_directory("a/b")
    file = fs.create("a/b/f")
    file.pwritev([b"he", bytearray(b"ll"), memoryview(b"o")], 3, sync_point="x")
    assert file.pread(100, 0) == b"\0\0\0hello"
    assert file.pread(2, 4) == b"el"
    assert file.pread(5, 8) == b""
    assert file.size() == 8
    file.truncate(4)
    assert file.pread(9, 0) == b"\0\0\0h"
    file.preallocate(4096, "x")
    assert file.size() == 4096
    assert file.pread(4096, 4) == bytes(4092)
    file.sync("x")
    file.drop_cached(3, 4093)
    assert file.pread(4, 0) == b"\0\0\0h"
    file.close()
    assert fs.open("a/b/f").pread(1, 3) == b"h"


class Turns:
    """Counts turns."""

    taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("takes_turns", [False, True])
@pytest.mark.parametrize("is_refused", [False, True])
def test_reads_past_the_page_cache_are_those_through_it(
    fs: FileSystem, monkeypatch: pytest.MonkeyPatch, takes_turns: bool, is_refused: bool
) -> None:
    fs.make_directory("d")
    file = fs.create("d/f")
    data = random.Random(4).randbytes((1 << 20) + 77)
    file.pwritev([data], 0, sync_point="x")
    if is_refused:
        refused = OSError(errno.EINVAL, "no direct reads here")
        monkeypatch.setattr(OsFile, "_read_directly", Mock(side_effect=refused))
    for first, size in ((0, 1), (5, 4096), (4096, 4096), (4095, 2), (100, 1 << 20), (0, 2 << 20)):
        turn = Turns() if takes_turns else None
        assert file.pread_direct(size, first, turn) == data[first : first + size]
    assert file.pread_direct(10, len(data) - 3) == data[-3:]
    assert file.pread_direct(10, len(data)) == file.pread_direct(10, 4 << 20) == b""
    fs.remove("d/f")
    assert file.pread_direct(9, 1) == data[1:10]
    file.close()


def test_a_write_is_behind_one_small_read_at_most(tmp_path: Path) -> None:
    fs = OsFileSystem(tmp_path)
    file = fs.create("f")
    file.pwritev([bytes(1 << 20)], 0, sync_point="x")
    turn = Turns()
    file.pread_direct(1 << 20, 0, turn)
    if file._open_direct() >= 0:  # type: ignore[attr-defined]
        assert turn.taken == 4
    file.close()


def test_names(fs: FileSystem) -> None:
    fs.make_directory("d")
    fs.create("d/one").close()
    with pytest.raises(FileExistsError):
        fs.create("d/one")
    with pytest.raises(FileNotFoundError):
        fs.open("d/two")
    assert fs.list("d") == ["one"]
    fs.rename("d/one", "d/two")
    fs.sync_dir("d", "x")
    assert fs.list("d") == ["two"]
    assert fs.exists("d/two")
    assert not fs.exists("d/one")
    fs.remove("d/two")
    assert fs.list("d") == fs.list("nowhere") == []
    assert 0 < fs.free_bytes() <= fs.total_bytes()


def test_the_lock_is_exclusive(fs: FileSystem) -> None:
    lock = fs.lock("lock")
    with pytest.raises(BlockingIOError):
        fs.lock("lock")
    lock.release()
    fs.lock("lock").release()


def test_thousands_of_buffers_of_all_sizes_in_one_call(fs: FileSystem) -> None:
    rng = random.Random(3)
    buffers = [bytes([at % 256]) * rng.choice([0, 1, 50, 20_000]) for at in range(3000)]
    fs.make_directory("d")
    file = fs.create("d/f")
    file.pwritev(buffers, 10)
    expected = b"".join(buffers)
    assert file.pread(len(expected) + 1, 10) == expected


def test_coalesce_joins_small_buffers_and_passes_large_ones() -> None:
    large = b"L" * 20_000
    buffers = [b"a", b"b", large, b"c", large, large, b"d"]
    assert coalesce(buffers, 100) == buffers
    parts = coalesce(buffers, 3)
    assert parts == [b"ab", large, b"c", large, large, b"d"]
    assert parts[1] is large


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        return real(fd, [b"".join(buffers)[:7]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    file = OsFileSystem(tmp_path).create("f")
    file.pwritev([b"0123456789", b"abcdefghij", b"xyz"], 0, sync_point="x")
    assert file.pread(100, 0) == b"0123456789abcdefghijxyz"


def test_a_kernel_without_durable_writes_syncs_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    synced: list[int] = []

    def refuse_flags(fd: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", refuse_flags)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file = OsFileSystem(tmp_path).create("f")
    for _ in range(2):
        file.pwritev([b"data"], 0, sync_point="x")
    assert len(synced) == 2
    file.pwritev([b"more"], 4)
    assert len(synced) == 2
    assert file.pread(8, 0) == b"datamore"


def crashes(build: Callable[[MemoryFileSystem], None], seeds: int = 200) -> list[MemoryFileSystem]:
    found = []
    for seed in range(seeds):
        fs = MemoryFileSystem()
        build(fs)
        found.append(fs.crash(random.Random(seed)))
    return found


def test_a_crash_keeps_what_was_synced() -> None:
    def build(fs: MemoryFileSystem) -> None:
        file = fs.create("f")
        file.pwritev([b"synced"], 0, sync_point="x")
        fs.sync_dir("", "y")
        file.pwritev([b"-lost?"], 6)

    after = crashes(build)
    contents = {bytes(fs.contents("f")) for fs in after}
    assert all(data.startswith(b"synced") for data in contents)
    assert {b"synced", b"synced-lost?"} < contents  # dropped, kept, and torn at many places
    assert len(contents) > 6


def test_a_crash_may_tear_an_overwrite_at_any_byte() -> None:
    def build(fs: MemoryFileSystem) -> None:
        file = fs.create("f")
        file.pwritev([b"0" * 8], 0, sync_point="x")
        fs.sync_dir("", "y")
        file.pwritev([b"1" * 8], 0)

    prefixes = {bytes(fs.contents("f")).rstrip(b"0") for fs in crashes(build)}
    assert {b"1" * size for size in range(9)} <= prefixes


def test_unsynced_names_vanish_or_stay_one_by_one() -> None:
    def build(fs: MemoryFileSystem) -> None:
        fs.create("old").sync("x")
        fs.sync_dir("", "y")
        fs.rename("old", "new")
        fs.create("other").sync("x")

    found = {tuple(fs.list("")) for fs in crashes(build)}
    assert found == {("old",), ("new",), ("old", "other"), ("new", "other")}


def test_a_failed_sync_loses_the_bytes_and_the_next_one_succeeds() -> None:
    fs = MemoryFileSystem()
    file = fs.create("f")
    fs.sync_dir("", "y")
    file.pwritev([b"data"], 0)
    fs.faults.fail_at = fs.call_count
    with pytest.raises(OSError, match="error"):
        file.sync("x")
    file.sync("x")
    assert file.pread(4, 0) == b"data"  # the page cache still shows it
    assert all(bytes(fs.crash(random.Random(seed)).contents("f")) == b"" for seed in range(20))


def test_an_ignored_sync_point_does_nothing() -> None:
    fs = MemoryFileSystem(Faults(ignored_sync_points={"x"}))
    fs.create("f").pwritev([b"data"], 0, sync_point="x")
    fs.sync_dir("", "y")
    assert {bytes(fs.crash(random.Random(s)).contents("f")) for s in range(50)} > {b"", b"data"}


def test_the_disk_fills_up() -> None:
    fs = MemoryFileSystem(Faults(space_bytes=10))
    file = fs.create("f")
    file.pwritev([b"12345678"], 0)
    with pytest.raises(OSError, match="No space") as caught:
        file.pwritev([b"abc"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert fs.free_bytes() == 0
    file.pwritev([b"again"], 0)  # needs no new space


def test_power_loss_stops_everything() -> None:
    fs = MemoryFileSystem(Faults(power_loss_at=1))
    file = fs.create("f")
    with pytest.raises(PowerLoss):
        file.pwritev([b"x"], 0)
    with pytest.raises(PowerLoss):
        fs.create("g")
