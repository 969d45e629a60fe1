"""Space of unlinked files: given back in small steps, by a thread that doesn't stay."""

import os
import threading
import time
from pathlib import Path

import pytest

from magnetar.bookkeeper.storage import os_file_system
from magnetar.bookkeeper.storage.os_file_system import (
    STEP_BYTES,
    OsFileSystem,
    SpaceReclaimer,
    pause_s,
)

GIB = 1 << 30


def test_a_backlog_is_freed_in_about_a_minute_or_at_a_gentle_rate() -> None:
    plenty = 1 << 50
    assert STEP_BYTES / pause_s(GIB, plenty) == pytest.approx(128 << 20)
    assert STEP_BYTES / pause_s(60 * GIB, plenty) == pytest.approx(GIB)


def test_a_disk_that_fills_up_is_not_kept_waiting() -> None:
    assert pause_s(10 * GIB, 10 * GIB) == 0
    assert pause_s(10 * GIB, 15 * GIB) > 0


def eventually_idle(reclaimer: SpaceReclaimer) -> None:
    deadline = time.monotonic() + 30
    while reclaimer.backlog_bytes or any(t.name == "space" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_unlinked_file_shrinks_in_steps_and_its_descriptor_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    truncate = os.ftruncate

    def watched(fd: int, size: int) -> None:
        sizes.append(size)
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", watched)
    files = OsFileSystem(tmp_path)
    size = 3 * STEP_BYTES + 5
    file = files.create("log")
    file.pwritev([bytes(size)], 0)
    fd = file._fd  # type: ignore[attr-defined] # an OsFile
    files.remove("log")
    assert file.pread(3, size - 3) == bytes(3)  # whoever has it open can read on
    file.close()
    eventually_idle(os_file_system._reclaimer)
    assert sizes == [2 * STEP_BYTES + 5, STEP_BYTES + 5, 5, 0]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_with_a_name_is_closed_as_it_is(tmp_path: Path) -> None:
    files = OsFileSystem(tmp_path)
    file = files.create("log")
    file.pwritev([bytes(2 * STEP_BYTES)], 0)
    file.close()
    assert (tmp_path / "log").stat().st_size == 2 * STEP_BYTES


def test_a_file_that_cannot_be_shortened_is_closed_and_the_next_one_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("a", "b"))
    truncate = os.ftruncate

    def failing(fd: int, size: int) -> None:
        if fd == first:
            raise OSError(5, "broken")
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", failing)
    truncate(second, 2 * STEP_BYTES)
    reclaimer = SpaceReclaimer()
    reclaimer.close_later(first, 10 * STEP_BYTES)
    reclaimer.close_later(second, 2 * STEP_BYTES)
    eventually_idle(reclaimer)
    assert "broken" in caplog.text
    assert (tmp_path / "b").stat().st_size == 0
