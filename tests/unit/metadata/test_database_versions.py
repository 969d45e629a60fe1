"""Stores of before there was a log: they open, and get one; cut short anywhere it goes on."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.metadata import log_format
from magnetar.metadata.commit_log import LogWriter
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import DatabaseError
from magnetar.metadata.sqlite_file import SqliteFile
from tests.unit.metadata.images import (
    NAME,
    Content,
    Files,
    content,
    lay,
    open_or_refuse,
    scratch,
    small_segments,
    take,
)

UNLOGGED = Path(__file__).parent / "testdata" / "version-2.sqlite"  # made by commit 0991e35
EXPECTED: Content = {
    "/": (b"", 0),
    "/ledgers": (b"", 0),
    "/ledgers/00": (b"", 0),
    "/ledgers/00/0000": (b"", 0),
    "/ledgers/00/0000/L0000": (b"second", 1),
    "/queue": (b"", 0),
    **{f"/queue/-{number:010d}": (b"%d" % number, 0) for number in range(3)},
    "#/queue": (b"", 3),
}


@pytest.fixture(autouse=True)
def _small_segments() -> Iterator[None]:
    with small_segments():
        yield


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as path:
        yield path / "metadata"


def old_files() -> Files:
    return {NAME: UNLOGGED.read_bytes()}


async def test_a_store_without_a_log_opens_and_gets_one(directory: Path) -> None:
    assert open_or_refuse(directory, old_files()) == EXPECTED
    store = EmbeddedMetadataStore.open(directory / NAME)
    assert content(store) == EXPECTED
    await store.put("/new", b"")
    killed = take(directory)
    await store.close()
    stopped = take(directory)
    both = EXPECTED | {"/new": (b"", 0)}
    assert open_or_refuse(directory, stopped) == both
    # The log still begins with the state of the old file: what came after it isn't lost.
    without_wal = {name: data for name, data in killed.items() if not name.endswith("-wal")}
    assert open_or_refuse(directory, without_wal | old_files()) == both


async def test_an_old_file_beside_a_log_that_went_on_is_refused(directory: Path) -> None:
    lay(directory, old_files())
    for number in range(4):
        store = EmbeddedMetadataStore.open(directory / NAME)
        await store.put(f"/new-{number}", b"")
        await store.close()
    refusal = open_or_refuse(directory, take(directory) | old_files())
    assert isinstance(refusal, str)
    assert f"{NAME}: it is empty, damaged or an older copy" in refusal


@pytest.mark.parametrize("files", [{}, old_files()], ids=["new", "old"])
@pytest.mark.parametrize("step", ["segment", "commit", "checkpoint"])
def test_a_first_start_that_is_cut_short(
    directory: Path, files: Files, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(directory, files)
    images = list[Files]()

    def seen(*_: object) -> None:
        images.append(take(directory))
        raise OSError("cut short")

    with monkeypatch.context() as patch:
        if step == "segment":
            patch.setattr(LogWriter, "__init__", seen)
        else:
            name = "finish_opening" if step == "commit" else "checkpoint"
            patch.setattr(SqliteFile, name, seen)
        with pytest.raises(DatabaseError, match="cut short"):
            EmbeddedMetadataStore.open(directory / NAME)
    (image,) = images
    expected = EXPECTED if files else {"/": (b"", 0)}
    assert open_or_refuse(directory, image) == expected
    without_wal = {name: data for name, data in image.items() if not name.endswith("-wal")}
    assert open_or_refuse(directory, without_wal) == expected  # the power was cut


def test_an_older_program_refuses_by_the_version(directory: Path) -> None:
    """It compares ``user_version`` before it reads anything else."""
    open_or_refuse(directory, old_files())
    file = sqlite3.connect(directory / NAME)
    assert file.execute("PRAGMA user_version").fetchone() == (3,)
    file.close()


def test_a_newer_log_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(log_format, "VERSION", 2)
        open_or_refuse(directory, {})
    refusal = open_or_refuse(directory, take(directory))
    assert isinstance(refusal, str)
    assert "format version 2, known is 1" in refusal
