"""Damaged, cut, missing and older files: all that was acknowledged is there, or a start names why.

Each class of offset of each file, after a clean stop and after ``kill -9`` (which leaves the files
as they are while the store is open).
"""

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from magnetar.metadata import log_format
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.metadata.images import (
    NAME,
    Content,
    DamageChecker,
    Files,
    content,
    flip,
    lay,
    scratch,
    small_segments,
    take,
    write,
)

PAGE = 4096
WAL = f"{NAME}-wal"


@dataclass
class Images:
    """Of one store: ``stopped`` after a clean stop, later ``killed``; ``older`` ones of before."""

    stopped: Files
    stopped_content: Content
    killed: Files
    killed_content: Content
    older: list[Files]

    def of(self, kind: str) -> tuple[Files, Content]:
        if kind == "killed":
            return self.killed, self.killed_content
        return self.stopped, self.stopped_content


@pytest.fixture(autouse=True)
def _small_segments() -> Iterator[None]:
    with small_segments():
        yield


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as path:
        yield path / "metadata"


@pytest.fixture(scope="module", name="images")
def _images() -> Images:
    async def make(path: Path) -> Images:
        rng, older = random.Random(21), list[Files]()
        store = EmbeddedMetadataStore.open(path)
        for _ in range(4):
            await write(store, rng, 12)
            older.append(take(path.parent))
        stopped_content = content(store)
        await store.close()
        stopped = take(path.parent)
        older.append(stopped)
        store = EmbeddedMetadataStore.open(path)
        older.append(take(path.parent))
        for commits in (3, 9, 17):
            await write(store, rng, commits)
            older.append(take(path.parent))
        await write(store, rng, 6)
        killed, killed_content = take(path.parent), content(store)
        await store.close()
        return Images(stopped, stopped_content, killed, killed_content, older)

    with small_segments(), scratch() as path:
        return asyncio.run(make(path / NAME))


def logs(files: Files) -> list[str]:
    return [name for name in files if "-log-" in name]


def main_offsets(data: bytes, rng: random.Random) -> list[int]:
    """Of every page: its header, its cell pointers, free area and cells."""
    offsets = list(range(100)) if len(data) else []
    for page in range(0, len(data), PAGE):
        offsets += [page + at for at in range(12)]
        offsets += [page + rng.randrange(12, 60), page + rng.randrange(60, PAGE)]
        offsets += [page + rng.randrange(2000, PAGE), page + PAGE - 1]
    return offsets


def wal_offsets(data: bytes, rng: random.Random) -> list[int]:
    """The header, and of every frame: each field of its header, and its page."""
    offsets = list(range(32)) if len(data) else []
    for frame in range(32, len(data), 24 + PAGE):
        offsets += [frame + field + rng.randrange(4) for field in range(0, 24, 4)]
        offsets += [frame + 24 + at for at in (0, 3, 8, rng.randrange(12, PAGE), PAGE - 1)]
    return [at for at in offsets if at < len(data)]


def log_offsets(data: bytes, rng: random.Random) -> list[int]:
    """Both copies of the header, every field of every record, bodies, padding and the rest."""
    size = log_format._HEADER.size + 4
    offsets = [*range(0, size, 3), *range(2048, 2048 + size, 3), 1500, 4000]
    for page in range(PAGE, len(data), PAGE):
        fields = (0, 15, 16, 20, 24, 40, 44)
        offsets += [page + at for at in (*fields, rng.randrange(60, 400), PAGE - 1)]
    return offsets


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_a_changed_byte_in_the_database(images: Images, directory: Path, kind: str) -> None:
    files, expected = images.of(kind)
    checker, rng, data = DamageChecker(directory, expected), random.Random(1), files[NAME]
    for at in main_offsets(data, rng):
        checker.look(files | {NAME: flip(data, at, rng.randrange(8))}, (NAME, at))
    assert checker.opened > 20
    assert len(checker.refused) > 20


def test_a_changed_byte_in_the_wal_is_repaired(images: Images, directory: Path) -> None:
    checker, rng, data = (
        DamageChecker(directory, images.killed_content),
        random.Random(2),
        images.killed[WAL],
    )
    assert len(data) > 15 * PAGE
    for at in wal_offsets(data, rng):
        checker.look(images.killed | {WAL: flip(data, at, rng.randrange(8))}, (WAL, at))
    assert checker.refused == []
    assert checker.opened > 150


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_a_changed_byte_in_the_log(images: Images, directory: Path, kind: str) -> None:
    files, expected = images.of(kind)
    checker, rng = DamageChecker(directory, expected), random.Random(3)
    for name in logs(files):
        for at in log_offsets(files[name], rng):
            checker.look(files | {name: flip(files[name], at, rng.randrange(8))}, (name, at))
    # Of one byte there is always another copy: in the database, or of the segment's header.
    assert checker.refused == []
    assert checker.opened > 300


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_cut_files(images: Images, directory: Path, kind: str) -> None:
    files, expected = images.of(kind)
    checker, rng = DamageChecker(directory, expected), random.Random(4)
    for name, data in files.items():
        ends = {0, 1, 40, *range(PAGE, len(data), PAGE), *(rng.randrange(len(data) or 1),) * 30}
        if name == WAL:
            frames = range(32, len(data), 24 + PAGE)
            ends |= {*frames, *(each + 24 for each in frames), *(each + 2000 for each in frames)}
        refusals = [checker.look(files | {name: data[:end]}, (name, end)) for end in sorted(ends)]
        if name == WAL:
            assert not any(refusals)
        elif name == logs(files)[-1]:
            assert all(f"{name}: " in each for each in refusals)


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_missing_files(images: Images, directory: Path, kind: str) -> None:
    files, expected = images.of(kind)
    checker = DamageChecker(directory, expected)
    for name in files:
        refusal = checker.look({each: data for each, data in files.items() if each != name}, name)
        if name == NAME or name == logs(files)[-1]:
            assert f"/{name}: " in refusal
        else:  # another file has all that was in it
            assert refusal == ""
    every_log = checker.look({n: d for n, d in files.items() if n not in logs(files)}, "logs")
    assert f"/{logs(files)[-1]}: this file is missing" in every_log


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_older_copies_of_single_files_and_of_pairs(
    images: Images, directory: Path, kind: str
) -> None:
    """All three at once are a consistent copy of the directory, which is what a backup is."""
    files, expected = images.of(kind)
    checker = DamageChecker(directory, expected)
    older_images = images.older[:4] if kind == "stopped" else images.older
    for number, older in enumerate(older_images):
        old_logs = {name: older[name] for name in logs(older)}
        other_logs = {name: data for name, data in files.items() if name not in logs(files)}
        old_database = {name: older[name] for name in (NAME, WAL) if name in older}
        checker.look(files | {NAME: older[NAME]}, (number, "database"))
        checker.look(other_logs | old_logs, (number, "all segments"))
        for name in set(old_logs) & set(files):
            checker.look(files | {name: older[name]}, (number, name))
        checker.look(files | old_database, (number, "database and WAL"))
        without_wal = {name: data for name, data in files.items() if name != WAL}
        checker.look(without_wal | {NAME: older[NAME]}, (number, "database, no WAL"))
        if WAL in older:
            checker.look(files | {WAL: older[WAL]}, (number, "WAL"))
            # With the same main file these are a consistent copy of the whole directory.
            if older[NAME] != files[NAME]:
                checker.look(other_logs | old_logs | {WAL: older[WAL]}, (number, "WAL, segments"))
        if WAL in files:
            checker.look(other_logs | old_logs | {NAME: older[NAME]}, (number, "main, segments"))
    assert checker.opened >= 5
    assert len(checker.refused) > 3


def test_a_consistent_older_copy_is_that_older_state(images: Images, directory: Path) -> None:
    checker = DamageChecker(directory, images.stopped_content)
    assert checker.look(images.stopped, "the whole directory") == ""


async def test_files_of_another_store_are_refused(images: Images, directory: Path) -> None:
    with scratch() as path:
        store = EmbeddedMetadataStore.open(path / NAME)
        await write(store, random.Random(5), 40)
        await store.close()
        other = take(path)
    checker = DamageChecker(directory, images.stopped_content)
    theirs = {name: other[name] for name in logs(other)}
    ours = {name: images.stopped[name] for name in logs(images.stopped)}
    assert "belongs to another" in checker.look(theirs | {NAME: images.stopped[NAME]}, "their log")
    assert "belongs to another" in checker.look(ours | {NAME: other[NAME]}, "their database")


def test_a_row_that_is_gone_without_a_trace(images: Images, directory: Path) -> None:
    """Every page and every other row is intact: only the digest of all rows tells."""
    lay(directory, images.stopped)
    database = sqlite3.connect(directory / NAME)
    database.execute("DELETE FROM counters")
    database.commit()
    database.close()
    checker = DamageChecker(directory, images.stopped_content)
    refusal = checker.look(take(directory), "a counter")
    assert f"{NAME}: its rows do not fit the digest of commit" in refusal
