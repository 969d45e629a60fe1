"""LMDB and its twin behave the same."""

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.storage.lmdb_store import LmdbStore
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction, iterate
from tests.memory_file_system import MemoryFileSystem, PowerLoss
from tests.memory_store import MemoryStore


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OrderedStore]:
    opened: OrderedStore = (
        LmdbStore(tmp_path / "index", map_bytes=1 << 20)
        if request.param == "lmdb"
        else MemoryStore(MemoryFileSystem())
    )
    yield opened
    opened.close()


def fill(store: OrderedStore, *keys: bytes) -> None:
    store.commit(StoreTransaction(puts=[(key, b"v" + key) for key in keys]), "x")


def test_get_floor_range(store: OrderedStore) -> None:
    assert store.floor(b"z") is None
    assert store.range(b"", b"z") == []
    fill(store, b"b", b"d", b"f")
    assert store.get(b"b") == b"vb"
    assert store.get(b"c") is None
    assert store.floor(b"a") is None
    assert store.floor(b"b") == (b"b", b"vb")
    assert store.floor(b"e") == (b"d", b"vd")
    assert store.floor(b"zz") == (b"f", b"vf")
    assert store.range(b"b", b"f") == [(b"b", b"vb"), (b"d", b"vd")]
    assert store.range(b"c", b"z", 1) == [(b"d", b"vd")]
    assert list(iterate(store, b"", b"z", page_items=2)) == [
        (key, b"v" + key) for key in (b"b", b"d", b"f")
    ]


def test_a_commit_applies_range_deletes_then_deletes_then_puts(store: OrderedStore) -> None:
    fill(store, b"a", b"b", b"c", b"d")
    store.commit(
        StoreTransaction(
            puts=[(b"b", b"new"), (b"e", b"e")],
            deletes=[b"d", b"nothing"],
            delete_ranges=[(b"b", b"d"), (b"x", b"z")],
        ),
        "x",
    )
    assert store.range(b"", b"z") == [(b"a", b"va"), (b"b", b"new"), (b"e", b"e")]


def test_both_stores_agree_on_random_transactions(tmp_path: Path) -> None:
    rng = random.Random(5)
    lmdb = LmdbStore(tmp_path / "index", map_bytes=1 << 20)
    memory = MemoryStore(MemoryFileSystem())
    keys = [bytes([at]) for at in range(40)]
    for _ in range(60):
        first, end = sorted(rng.sample(keys, 2))
        changes = StoreTransaction(
            puts=[(key, rng.randbytes(3)) for key in rng.sample(keys, 5)],
            deletes=rng.sample(keys, 3),
            delete_ranges=[(first, end)] if rng.random() < 0.3 else [],
        )
        lmdb.commit(changes, "x")
        memory.commit(changes, "x")
        assert lmdb.range(b"", b"\xff") == memory.range(b"", b"\xff")
        for key in rng.sample(keys, 5):
            assert lmdb.floor(key) == memory.floor(key)
    lmdb.close()


def test_lmdb_keeps_commits_and_reports_a_full_map_as_no_space(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "index", map_bytes=1 << 18)
    fill(store, b"kept")
    with pytest.raises(OSError, match="index") as caught:
        store.commit(StoreTransaction(puts=[(b"%d" % at, bytes(3000)) for at in range(200)]), "x")
    assert caught.value.errno == errno.ENOSPC
    store.close()
    store = LmdbStore(tmp_path / "index")
    assert store.range(b"", b"\xff") == [(b"kept", b"vkept")]
    store.close()


def test_a_power_cut_keeps_whole_commits_only() -> None:
    outcomes = set()
    for seed in range(50):
        fs = MemoryFileSystem()
        store = MemoryStore(fs)
        fill(store, b"a")
        fs.faults.power_loss_at = fs.call_count
        with pytest.raises(PowerLoss):
            fill(store, b"b", b"c")
        after = store.crash(random.Random(seed), fs)
        outcomes.add(tuple(key for key, _ in after.range(b"", b"z")))
    assert outcomes == {(b"a",), (b"a", b"b", b"c")}


def test_the_names_of_its_files_are_durable_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, set[str]]] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append(
            (path.name, {each.name for each in path.iterdir()} if path.is_dir() else set())
        )
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    LmdbStore(tmp_path / "index", map_bytes=1 << 20).close()
    assert ("index", {"data.mdb", "lock.mdb"}) in synced
