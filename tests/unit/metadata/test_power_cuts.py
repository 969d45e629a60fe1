"""Power cuts of an embedded store: what was acknowledged is there, and the start needs nobody.

A cut keeps of the log what was synced and any sectors of the record under way. Of SQLite's WAL,
which is synced at checkpoints only, it keeps any sectors written since the last one, or brings back
the WAL of before it.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.metadata.commit_log import LogWriter
from magnetar.metadata.database import Database
from magnetar.metadata.embedded import EmbeddedMetadataStore
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
    write,
)

SECTOR = 512
WAL = f"{NAME}-wal"


class Synced:
    """What the log's files certainly hold after a power cut: names and contents as last synced."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[str, int] = {}
        for path in directory.iterdir():
            self._note(path)
        self._note(directory)
        for name in ("fsync", "fdatasync"):
            self._watch(name, patch)

    def _watch(self, name: str, patch: pytest.MonkeyPatch) -> None:
        sync = getattr(os, name)

        def seen(file: int) -> None:
            sync(file)
            self._note(Path(f"/proc/self/fd/{file}").readlink())

        patch.setattr(os, name, seen)

    def _note(self, path: Path) -> None:
        if path == self._directory:
            self._names = {each.name: each.stat().st_ino for each in path.iterdir()}
        elif path.parent == self._directory:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def log(self) -> Files:
        return {
            name: self._contents.get(inode, b"")
            for name, inode in self._names.items()
            if "-log-" in name
        }


@dataclass
class Steps:
    """Images of a store, in order: before and after each write to the log, after each commit."""

    files: list[Files] = field(default_factory=list)
    logs: list[Files] = field(default_factory=list)  # what of them was synced
    acknowledged: list[int] = field(default_factory=list)  # commits, when the image was taken
    contents: dict[int, Content] = field(default_factory=dict)  # by number of commits

    def watch(self, store: EmbeddedMetadataStore, path: Path, patch: pytest.MonkeyPatch) -> None:
        committer = store._shared.committer
        append, begin, apply = LogWriter.append, Database._begin_segment, committer.tree.apply
        self._count, synced = 0, Synced(path.parent, patch)
        self.contents[0] = content(store)

        def snap() -> None:
            self.files.append(take(path.parent))
            self.logs.append(synced.log())
            self.acknowledged.append(self._count)

        def append_seen(log: LogWriter, body: bytes, digest: int) -> None:
            snap()
            append(log, body, digest)
            snap()

        def begin_seen(database: Database, old: LogWriter, body_bytes: int) -> LogWriter:
            snap()
            log = begin(database, old, body_bytes)
            snap()
            return log

        def apply_seen(group: object) -> None:
            apply(group)  # type: ignore[arg-type]
            self._count += 1
            self.contents[self._count] = content(store)
            snap()

        patch.setattr(LogWriter, "append", append_seen)
        patch.setattr(Database, "_begin_segment", begin_seen)
        patch.setattr(committer.tree, "apply", apply_seen)


def mix(rng: random.Random, old: bytes, new: bytes) -> bytes:
    """``new``, with any of its sectors as they were before."""
    old = old[: len(new)].ljust(len(new), b"\0")
    changed = [at for at in range(0, len(new), SECTOR) if old[at:][:SECTOR] != new[at:][:SECTOR]]
    result, style = bytearray(new), rng.random()
    for at in changed if style < 0.3 else rng.sample(changed, rng.randint(0, len(changed))):
        result[at : at + SECTOR] = old[at : at + SECTOR]
    return bytes(result)


def cut(steps: Steps, at: int, rng: random.Random) -> Files:
    """The files after a power cut between two images, ``at`` and the next one."""
    before, after = steps.logs[at], steps.files[at + 1]
    files = {name: data for name, data in steps.files[at].items() if "-log-" not in name} | before
    for name, data in after.items():
        if "-log-" not in name:
            continue
        if name not in before and rng.random() < 0.5:
            files[name] = data  # its name comes last, so it is whole or not there
        elif name in before and data != before[name]:
            files[name] = mix(rng, before[name], data)
    files[WAL] = unsynced(steps, at, rng)
    return files


def unsynced(steps: Steps, at: int, rng: random.Random) -> bytes:
    """What may be left of the WAL, whose last sync was that of the last checkpoint."""
    now = steps.files[at]
    first = at  # the oldest image with this main file
    while first > 0 and steps.files[first - 1][NAME] == now[NAME]:
        first -= 1
    choice = rng.random()
    if choice < 0.2 and first > 0:
        return steps.files[first - 1][WAL]  # that it was emptied is lost
    old = steps.files[rng.randint(first, at)][WAL]
    if choice < 0.4:
        return old
    if choice < 0.7:
        return mix(rng, old, now[WAL])
    return now[WAL][: rng.randrange(len(now[WAL]) + 1)]


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as path:
        yield path / "metadata"


@pytest.mark.parametrize("seed", range(6))
async def test_a_power_cut_loses_nothing_acknowledged(
    seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, steps = random.Random(seed), Steps()
    with small_segments(), scratch() as path:
        store = EmbeddedMetadataStore.open(path / NAME)
        with monkeypatch.context() as patch:
            steps.watch(store, path / NAME, patch)
            await write(store, rng, 30)
        await store.close()
        torn = 0
        for at in rng.sample(range(len(steps.files) - 1), 40):
            files = cut(steps, at, rng)
            found = open_or_refuse(directory, files)
            done = steps.acknowledged[at]
            assert not isinstance(found, str), (seed, at, found)
            if found != steps.contents[done]:  # the commit under way may be there, too
                assert found == steps.contents[done + 1], (seed, at)
            else:
                torn += 1
        assert torn


async def test_lives_that_end_in_power_cuts(directory: Path) -> None:
    """Each begins with what the last one left, and goes on."""
    for seed in range(6):
        rng = random.Random(seed)
        with small_segments(), scratch() as path:
            for _ in range(8):
                store = EmbeddedMetadataStore.open(path / NAME)
                await write(store, rng, rng.randrange(8))
                expected, files = content(store), take(path)
                await store.close()
                files[WAL] = files[WAL][: rng.randrange(len(files[WAL]) + 1)]
                lay(path, files)
                found = open_or_refuse(directory, files)
                assert found == expected, (seed, found if isinstance(found, str) else "")
