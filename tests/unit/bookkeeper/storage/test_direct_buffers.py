"""Memory of direct reads: aligned, each reader's own, and used again."""

import ctypes
import mmap
from pathlib import Path

import pytest

from magnetar.bookkeeper.storage import direct_buffers
from magnetar.bookkeeper.storage.direct_buffers import ALIGNMENT, DirectBuffers
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem

MIB = 1 << 20
LARGE = 4 * MIB + 2 * ALIGNMENT


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def refused(*_: object) -> mmap.mmap:
    raise OSError("no memory for it")


@pytest.mark.parametrize("advice", [direct_buffers._HUGE_PAGES, None, 9999])
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("size", [ALIGNMENT, MIB, MIB + ALIGNMENT, LARGE, LARGE + ALIGNMENT])
def test_buffers_are_aligned_and_distinct(
    monkeypatch: pytest.MonkeyPatch, size: int, has_room: bool, advice: int | None
) -> None:
    monkeypatch.setattr(direct_buffers, "_HUGE_PAGES", advice)
    if not has_room:
        monkeypatch.setattr(mmap, "mmap", refused)
    buffers = DirectBuffers()
    views = [buffers.take(size) for _ in range(3)]
    for number, view in enumerate(views):
        assert len(view) == size
        assert address(view) % ALIGNMENT == 0
        view[:] = bytes([number + 1]) * size
    assert [(view[0], view[-1]) for view in views] == [(1, 1), (2, 2), (3, 3)]


def test_a_large_one_is_used_again_when_no_view_of_it_is_left() -> None:
    buffers = DirectBuffers()
    first = buffers.take(2 * MIB)
    place, part = address(first), first[5:7]
    del first
    assert address(buffers.take(LARGE)) != place
    del part
    assert address(buffers.take(LARGE)) == place


def test_unused_memory_is_given_back() -> None:
    buffers = DirectBuffers()
    held, unused = buffers.take(LARGE), buffers.take(LARGE)
    held[-1] = 7
    del unused
    buffers.release_unused()
    assert len(buffers._large) == 1
    assert held[-1] == 7


def test_what_was_read_stays_while_others_read(tmp_path: Path) -> None:
    fs = OsFileSystem(tmp_path)
    file = fs.create("f")
    data = b"".join(number.to_bytes(4, "big") for number in range(3 * MIB))
    file.pwritev([data], 0, sync_point="x")
    reads = [(5 * number * MIB // 3 + number, 4 * MIB - number) for number in range(5)]
    found = [file.pread_direct(size, offset) for offset, size in reads]
    fs.release_memory()
    assert found == [data[offset : offset + size] for offset, size in reads]
    file.close()
