"""What can be picked up of a store that no start opens, and what is said of the rest."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.paths import ROOT
from magnetar.metadata.salvage import Salvage, salvage, write_recovered
from magnetar.metadata.store import CommitMark
from tests.unit.metadata.images import (
    NAME,
    Content,
    Files,
    content,
    flip,
    lay,
    open_or_refuse,
    scratch,
    small_segments,
    take,
    write,
)

ID = bytes(16)


@pytest.fixture
def directory() -> Iterator[Path]:
    with small_segments(), scratch() as path:
        yield path / "metadata"


async def grow(directory: Path) -> tuple[Files, Files, Content]:
    """Files of a store with checkpoints behind it, of before and of now; what it has now."""
    rng = random.Random(8)
    store = EmbeddedMetadataStore.open(directory / NAME)
    await write(store, rng, 10)
    older = take(directory)
    await write(store, rng, 60)
    files, expected = take(directory), content(store)
    await store.close()
    return older, files, expected


def rows_of(found: Salvage) -> Content:
    rows = {path: (value, version) for path, value, version, _, _ in found.rows.values()}
    counters = {f"#{path}": (b"", number) for path, number in found.counters.items()}
    return {ROOT: (b"", 0)} | rows | counters


def look(directory: Path, files: Files) -> Salvage:
    lay(directory, files)
    found = salvage(directory / NAME)
    assert take(directory) == files
    return found


async def test_what_a_start_opens_is_all_there(directory: Path) -> None:
    _, files, expected = await grow(directory)
    found = look(directory, files)
    assert (found.refusal, found.losses) == ("", [])
    assert rows_of(found) == expected


async def test_whatever_is_not_there_is_said(directory: Path) -> None:
    older, files, expected = await grow(directory)
    rng, last = random.Random(9), max(name for name in files if "-log-" in name)
    without_wal = {name: data for name, data in files.items() if not name.endswith("-wal")}
    cases = [
        without_wal | {NAME: older[NAME]},  # a gap between database and log
        {name: data for name, data in without_wal.items() if name != NAME},
        {name: data for name, data in files.items() if name != last},
        files | {last: files[last][:9000]},
        without_wal | {last: bytes(2) + files[last][2:2048] + bytes(100) + files[last][2148:]},
        *(
            files | {NAME: flip(files[NAME], at)}
            for at in rng.sample(range(100, len(files[NAME])), 60)
        ),
    ]
    refused = complete = 0
    for case in cases:
        found = look(directory, case)
        if not found.refusal:
            assert rows_of(found) == expected
            continue
        refused += 1
        assert str(directory) in found.refusal
        if rows_of(found) == expected:
            complete += 1
        else:
            assert len(found.losses) > 1  # more than that nothing proves what was last
    assert refused > 10
    assert complete  # the database had all, and only the log could not prove it


async def test_what_was_recovered_opens(directory: Path) -> None:
    older, files, _ = await grow(directory)
    without_wal = {name: data for name, data in files.items() if not name.endswith("-wal")}
    found = look(directory, without_wal | {NAME: older[NAME]})
    found.rows = {path: row for path, row in found.rows.items() if path != "/topics"}
    lay(directory, {})
    write_recovered(directory / NAME, found, CommitMark(ID, 500))
    opened = open_or_refuse(directory, take(directory))
    assert not isinstance(opened, str)
    assert rows_of(found).items() <= opened.items()
    made = {path: node for path, node in opened.items() if path not in rows_of(found)}
    assert made["/topics"] == (b"", 0)  # a parent, which somebody may ask for
    assert set(made.values()) == {(b"", 0)}
    store = EmbeddedMetadataStore.open(directory / NAME)
    assert store.commit_mark == CommitMark(ID, 500)
    await store.put("/more", b"")
    assert store.commit_mark == CommitMark(ID, 501)
    await store.close()
