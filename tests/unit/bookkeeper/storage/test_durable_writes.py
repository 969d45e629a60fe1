"""The compiled thread that writes: bytes, errors, buffers and its end."""

import errno
import os
import resource
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.storage.file_system import Buffer

pytest.importorskip("magnetar.bookkeeper.storage.durable_writes")

from magnetar.bookkeeper.storage.durable_writes import DurableWrites


@pytest.fixture
def writes() -> Iterator[DurableWrites]:
    made = DurableWrites(b"test")
    yield made
    made.stop()
    made.join()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    made = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    yield made
    os.close(made)


def result(writes: DurableWrites) -> tuple[int, float]:
    assert select.select([writes.fileno()], [], [], 60)[0]
    return writes.take()


def test_buffers_of_each_kind_are_written_one_after_the_other(
    writes: DurableWrites, descriptor: int
) -> None:
    for offset in (0, 7, 1 << 20):
        writes.submit(descriptor, [b"ab", b"", bytearray(b"cd"), memoryview(b"xefx")[1:3]], offset)
        written, seconds = result(writes)
        assert written == 6
        assert seconds > 0
        assert os.pread(descriptor, 9, offset)[:6] == b"abcdef"
    assert not select.select([writes.fileno()], [], [], 0)[0], "it was taken"


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_any_number_of_buffers_is_one_write(
    writes: DurableWrites, descriptor: int, count: int
) -> None:
    parts: list[Buffer] = [bytes([number % 251]) * (number % 7) for number in range(count)]
    for _ in range(2):
        writes.submit(descriptor, parts, 3)
        assert result(writes)[0] == sum(map(len, parts))
        assert os.pread(descriptor, 1 << 20, 0) == bytes(3) + b"".join(parts)
        os.ftruncate(descriptor, 0)


def test_a_disk_reads_the_buffers_itself(writes: DurableWrites, tmp_path: Path) -> None:
    """Past the page cache; what isn't aligned is refused, and nothing of it is written."""
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    try:
        direct = os.open(tmp_path / "file", os.O_RDWR | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system knows no O_DIRECT")
    for count in (1, 3, 40):
        writes.submit(direct, [b"a", bytes(4095), b"b" * 4096] * count, 8192)
        assert result(writes)[0] == 8192 * count
        expected = (b"a" + bytes(4095) + b"b" * 4096) * count
        assert (tmp_path / "file").read_bytes()[8192:][: 8192 * count] == expected
    writes.submit(direct, [b"c" * 100], 0)
    assert result(writes)[0] == -errno.EINVAL
    os.close(direct)
    assert (tmp_path / "file").read_bytes()[:8192] == bytes(8192)


def test_more_than_is_kept(writes: DurableWrites, descriptor: int) -> None:
    for size in (9 << 20, 100, 10 << 20):
        writes.submit(descriptor, [b"x" * size, b"y"], 0)
        assert result(writes)[0] == size + 1
        assert os.pread(descriptor, 2, size - 1) == b"xy"


def test_an_error_is_its_number(writes: DurableWrites, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    writes.submit(read_only, [b"a"], 0)
    assert result(writes)[0] == -errno.EBADF
    os.close(read_only)


def test_what_did_not_fit_is_not_counted(writes: DurableWrites, descriptor: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, hard))
        writes.submit(descriptor, [b"abc", b"def"], 0)
        assert result(writes)[0] == 5
        writes.submit(descriptor, [b"f"], 5)
        assert result(writes)[0] == -errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.pread(descriptor, 9, 0) == b"abcde"


def test_buffers_are_held_until_the_result_is_taken(writes: DurableWrites, descriptor: int) -> None:
    buffer = bytearray(b"abc")
    writes.submit(descriptor, [buffer], 0)
    with pytest.raises(BufferError):
        buffer.extend(b"d")
    with pytest.raises(AssertionError, match="one write at a time"):
        writes.submit(descriptor, [b"z"], 0)
    result(writes)
    buffer.extend(b"d")


def test_a_buffer_that_is_none_lets_the_others_go(writes: DurableWrites, descriptor: int) -> None:
    buffer = bytearray(b"abc")
    with pytest.raises(TypeError):
        writes.submit(descriptor, [buffer, None], 0)  # type: ignore[list-item]
    buffer.extend(b"d")
    writes.submit(descriptor, [buffer], 0)
    assert result(writes)[0] == 4


def test_the_thread_ends_behind_its_write(descriptor: int) -> None:
    writes = DurableWrites(b"ends")
    assert "ends" in names()
    writes.submit(descriptor, [b"abc"], 0)
    writes.stop()
    writes.join()
    writes.join()
    assert "ends" not in names()
    assert os.pread(descriptor, 9, 0) == b"abc"
    assert writes.take()[0] == 3


def test_the_thread_ends_with_its_object() -> None:
    fds = len(os.listdir("/proc/self/fd"))
    made = DurableWrites(b"dropped")
    del made
    assert "dropped" not in names()
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_child_by_fork_does_not_wait_for_the_thread(writes: DurableWrites) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        writes.stop()
        writes.join()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def names() -> set[str]:
    return {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
