"""Images of an embedded store's files, to be damaged; the judge of what is opened from them."""

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.metadata import log_format
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import DatabaseError

NAME = "metadata.sqlite"
SEGMENT_BYTES = 64 * 1024  # 15 commits of one page each

Files = dict[str, bytes]
"""Name -> content, of one directory."""
Content = dict[str, tuple[bytes, int]]
"""Path -> value and version; under "#" + path a counter."""


@contextmanager
def small_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_format, "SEGMENT_BYTES", SEGMENT_BYTES)
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory if there is one: thousands of images are opened, and each syncs."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def take(directory: Path) -> Files:
    """What ``kill -9`` would leave now."""
    return {each.name: each.read_bytes() for each in sorted(directory.iterdir())}


def lay(directory: Path, files: Files) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)


def content(store: EmbeddedMetadataStore) -> Content:
    tree = store._tree
    found = {path: (node.value, node.version) for path, node in tree.nodes.items()}
    return found | {f"#{path}": (b"", number) for path, number in tree.counters.items()}


async def write(store: EmbeddedMetadataStore, rng: random.Random, commits: int) -> None:
    for _ in range(commits):
        path = f"/topics/{rng.randrange(40):02d}"
        value = rng.randbytes(rng.choice((0, 5, 300, 300, 6000)))
        await asyncio.gather(
            store.put(path, value),
            store.put(f"/ledgers/{rng.randrange(10_000)}", b"%d" % rng.randrange(100)),
        )
        if rng.random() < 0.2:
            await store.delete(path)
        if rng.random() < 0.1:
            await store.put("/queue/-", b"", sequential=True)


def open_or_refuse(directory: Path, files: Files) -> Content | str:
    """What a start finds in these files, or why it refuses, which must name one of them."""
    lay(directory, files)
    path = directory / NAME
    with contextlib.ExitStack() as stack:
        try:
            store = EmbeddedMetadataStore.open(path)
        except DatabaseError as error:
            refusal = str(error)
        else:
            stack.callback(store._shared.committer._database.close)
            return content(store)
    assert str(path) in refusal
    return refusal


class DamageChecker:
    """Counts outcomes; anything but all of ``expected`` or a refusal fails."""

    def __init__(self, directory: Path, expected: Content) -> None:
        self._directory, self._expected = directory, expected
        self.opened = 0
        self.refused = list[str]()

    def look(self, files: Files, what: object) -> str:
        """The refusal, or ""."""
        found = open_or_refuse(self._directory, files)
        if isinstance(found, str):
            self.refused.append(found)
            return found
        assert found == self._expected, f"{what}: opened, and it is not what was acknowledged"
        self.opened += 1
        return ""


def flip(data: bytes, at: int, bit: int = 0) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)
