"""Random operations, in random groups, some refused: the store against a plain dict."""

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import (
    BadVersionError,
    EphemeralParentError,
    NotEmptyError,
    NotFoundError,
)
from magnetar.metadata.paths import ROOT, parent_of
from magnetar.metadata.store import EventType, MetadataEvent
from tests.unit.metadata.test_embedded import CountingDatabase, open_on, sqlite_error

NAMES = ("a", "b", "c")


class Model:
    """The meaning of the operations, one after the other: path -> (value, version, owner)."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, int | None]] = {}

    def children(self, path: str) -> list[str]:
        start = path if path == ROOT else path + "/"
        return sorted(
            each[len(start) :]
            for each in self.nodes
            if each.startswith(start) and "/" not in each[len(start) :]
        )

    def put(self, path: str, value: bytes, expected: int | None, owner: int | None) -> object:
        old = self.nodes.get(path)
        if expected is not None and expected != (-1 if old is None else old[1]):
            return BadVersionError
        if old is not None:
            self.nodes[path] = value, old[1] + 1, old[2]
            return value, old[1] + 1
        parents = list[str]()
        while (parent := parent_of(parents[-1] if parents else path)) != ROOT:
            if parent in self.nodes:
                if self.nodes[parent][2] is not None:
                    return EphemeralParentError
                break
            parents.append(parent)
        for parent in parents:
            self.nodes[parent] = b"", 0, None
        self.nodes[path] = value, 0, owner
        return value, 0

    def delete(self, path: str, expected: int | None) -> object:
        if path not in self.nodes:
            return NotFoundError
        if expected is not None and expected != self.nodes[path][1]:
            return BadVersionError
        if self.children(path):
            return NotEmptyError
        del self.nodes[path]
        return None

    def delete_recursive(self, path: str) -> None:
        for each in [each for each in self.nodes if each == path or each.startswith(path + "/")]:
            del self.nodes[each]

    def restart(self) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node[2] is None}


def random_path(rng: random.Random) -> str:
    return "".join(f"/{rng.choice(NAMES)}" for _ in range(rng.randint(1, 3)))


async def outcome(call: object) -> object:
    try:
        result = await call  # type: ignore[misc]
    except (BadVersionError, NotFoundError, NotEmptyError, EphemeralParentError) as error:
        return type(error)
    return result and (result.value, result.stat.version)


def random_operation(
    rng: random.Random, stores: list[EmbeddedMetadataStore], model: Model
) -> tuple[asyncio.Task[object], object]:
    """One operation, started on a store, and what the model answers."""
    session, path = rng.randrange(len(stores)), random_path(rng)
    store, kind = stores[session], rng.random()
    if kind < 0.6:
        value, expected = rng.randbytes(3), rng.choice((None, None, -1, 0, 1))
        owner = session if rng.random() < 0.3 else None
        wanted = model.put(path, value, expected, owner)
        started = outcome(store.put(path, value, expected, ephemeral=owner is not None))
    elif kind < 0.9:
        expected = rng.choice((None, None, 0, 1))
        wanted = model.delete(path, expected)
        started = outcome(store.delete(path, expected))
    else:
        model.delete_recursive(path)
        wanted = None
        started = outcome(store.delete_recursive(path))
    return asyncio.get_running_loop().create_task(started), wanted


class Follower:
    """Rebuilds the set of paths from events alone."""

    def __init__(self, store: EmbeddedMetadataStore, present: set[str]) -> None:
        self.paths = present
        store.watch("/", self.on_event)

    def on_event(self, event: MetadataEvent) -> None:
        if event.type is EventType.CREATED:
            assert event.path not in self.paths
            self.paths.add(event.path)
        elif event.type is EventType.DELETED:
            self.paths.remove(event.path)
            assert not any(each.startswith(event.path + "/") for each in self.paths)
        else:
            assert event.path == ROOT or event.path in self.paths


async def check(store: EmbeddedMetadataStore, model: Model, follower: Follower) -> None:
    found = {}
    paths = [ROOT]
    for path in paths:
        names = await store.children(path)
        assert names == model.children(path)
        paths += [f"{path.rstrip('/')}/{name}" for name in names]
        node = await store.get(path)
        assert node is not None
        found[path] = node.value, node.stat.version, node.stat.ephemeral
    del found[ROOT]
    assert found == {p: (v, n, owner is not None) for p, (v, n, owner) in model.nodes.items()}
    assert follower.paths == set(found)


@pytest.mark.parametrize("seed", range(40))
async def test_the_store_behaves_like_the_model(seed: int, tmp_path: Path) -> None:
    rng, model, path = random.Random(seed), Model(), tmp_path / "m.db"
    for _ in range(3):  # lives of the process
        model.restart()
        database = CountingDatabase(path)
        owner = open_on(database)
        stores = [owner, owner.new_session(), owner.new_session()]
        follower = Follower(owner, set(model.nodes))
        for _ in range(25):
            if rng.random() < 0.2:  # refuse the group as a whole; its members succeed alone
                database.fail_next = [sqlite_error(sqlite3.SQLITE_FULL, "full")]
            started = [random_operation(rng, stores, model) for _ in range(rng.randint(2, 12))]
            assert [await task for task, _ in started] == [wanted for _, wanted in started]
            database.fail_next = []
            await check(owner, model, follower)
        await owner.close()
