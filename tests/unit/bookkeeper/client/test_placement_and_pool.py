"""Choice of bookies, and who is registered."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bookkeeper import codes
from bookkeeper.client.config import HealthConfig
from bookkeeper.client.health import BookieHealth
from bookkeeper.client.placement import RandomPlacement, choose_replacements
from bookkeeper.client.pool import BookiePool
from bookkeeper.errors import BookieUnavailableError, NotEnoughBookiesError
from bookkeeper.service_info import AVAILABLE_PATH, ServiceInfo
from metadata.embedded import EmbeddedMetadataStore
from metadata.errors import StoreUnreachableError
from metadata.paths import encode_name
from metadata.store import SessionEvent, Watch
from tests.simulation.model_bookie import ModelBookie, ModelBookieClient
from tests.unit.bookkeeper.client.conftest import eventually

BOOKIES = [f"b{n}" for n in range(6)]


def test_random_ensembles_are_distinct_and_use_all() -> None:
    placement = RandomPlacement(random.Random(1))
    seen: set[str] = set()
    for _ in range(50):
        ensemble = placement.new_ensemble(3, 3, 2, BOOKIES)
        assert len(set(ensemble)) == 3
        seen.update(ensemble)
    assert seen == set(BOOKIES)
    with pytest.raises(NotEnoughBookiesError):
        placement.new_ensemble(7, 3, 2, BOOKIES)


def test_the_same_seed_chooses_the_same() -> None:
    first, second = (RandomPlacement(random.Random(5)) for _ in range(2))
    assert first.new_ensemble(3, 3, 2, set(BOOKIES)) == second.new_ensemble(3, 3, 2, BOOKIES[::-1])


def test_replacements() -> None:
    placement = RandomPlacement(random.Random(1))
    ensemble = ("b0", "b1", "b2")
    chosen = choose_replacements(placement, ensemble, 3, 2, {0: "b0", 2: "b2"}, {"b3"}, BOOKIES)
    assert {slot: failed for slot, (failed, _) in chosen.items()} == {0: "b0", 2: "b2"}
    assert {newcomer for _, newcomer in chosen.values()} == {"b4", "b5"}
    # A failure that is cured already, and one that nobody is left for.
    assert choose_replacements(placement, ensemble, 3, 2, {0: "b9"}, (), BOOKIES) == {}
    partial = choose_replacements(placement, ensemble, 3, 2, {0: "b0", 1: "b1"}, (), BOOKIES[:4])
    assert partial == {0: ("b0", "b3")}


async def test_pool_follows_the_store() -> None:
    store = EmbeddedMetadataStore.open(None)
    reachable = {"h:1": ModelBookieClient(ModelBookie("h:1"))}
    pool = BookiePool(store, reachable.get)
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:1')}", b"")
    await store.put(f"{AVAILABLE_PATH}/readonly/{encode_name('h:2')}", b"")
    await pool.start()
    assert pool.writable == {"h:1"}
    assert pool.client("h:1") is reachable["h:1"]
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:3')}", b"")
    await eventually(lambda: pool.writable == {"h:1", "h:3"})
    await store.delete(f"{AVAILABLE_PATH}/{encode_name('h:1')}")
    await eventually(lambda: pool.writable == {"h:3"})
    await pool.close()
    await store.close()


async def test_pool_knows_what_registrations_say(caplog: pytest.LogCaptureFixture) -> None:
    store = EmbeddedMetadataStore.open(None)
    pool = BookiePool(store)
    first, moved = (ServiceInfo("h:1", place, ("h", 1)) for place in ("/a/1", "/b/1"))
    second = ServiceInfo("h:2", "/a/2", ("h", 2))
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:1')}", first.encode())
    await store.put(f"{AVAILABLE_PATH}/readonly/{encode_name('h:2')}", second.encode())
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:3')}", b"garbage")
    await pool.start()
    assert pool.infos == {"h:1": first, "h:2": second}
    assert "h:3" in caplog.text
    assert pool.writable == {"h:1", "h:3"}
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:1')}", moved.encode())
    await eventually(lambda: pool.infos["h:1"] == moved)
    await store.delete(f"{AVAILABLE_PATH}/{encode_name('h:1')}")
    await eventually(lambda: pool.writable == {"h:3"})
    assert pool.infos["h:1"] == moved
    await pool.close()
    await store.close()


async def test_registering_anew_ends_quarantine() -> None:
    """However short the bookie was away."""
    store = EmbeddedMetadataStore.open(None)
    health = BookieHealth(
        HealthConfig(enabled=True, error_threshold=1), lambda: 0, random.Random(1)
    )
    pool = BookiePool(store, health=health)
    paths = {name: f"{AVAILABLE_PATH}/{encode_name(name)}" for name in ("h:1", "h:2")}
    infos = {name: ServiceInfo(name, "/a/1", ("h", 1)).encode() for name in paths}
    for name, path in paths.items():
        await store.put(path, infos[name])
    await pool.start()
    health.note_error("h:1")
    health.note_error("h:2")
    created = await store.get(paths["h:2"])
    assert created is not None
    await store.put(paths["h:1"], ServiceInfo("h:1", "/b/1", ("h", 1)).encode())  # the same one
    await eventually(lambda: pool.location("h:1") == "/b/1")
    assert health.quarantined() == {"h:1", "h:2"}
    while True:  # a node's time has a precision of a millisecond
        await store.delete(paths["h:2"])
        await store.put(paths["h:2"], infos["h:2"])
        again = await store.get(paths["h:2"])
        assert again is not None
        if again.stat.created_ms != created.stat.created_ms:
            break
    await eventually(lambda: health.quarantined() == {"h:1"})
    await pool.close()
    await store.close()


class _NoWatch(Watch):
    def close(self) -> None:
        pass


async def test_what_changed_while_nobody_watched_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events are lost while a session has no connection."""
    store = EmbeddedMetadataStore.open(None)
    path = f"{AVAILABLE_PATH}/{encode_name('h:1')}"
    await store.put(path, ServiceInfo("h:1", "/a/1", ("h", 1)).encode())
    heard: list[Callable[[SessionEvent], None]] = []
    monkeypatch.setattr(store, "watch", lambda *_: _NoWatch())

    def keep(tell: Callable[[SessionEvent], None]) -> Watch:
        heard.append(tell)
        return _NoWatch()

    monkeypatch.setattr(store, "on_session_event", keep)
    pool = BookiePool(store)
    await pool.start()
    moved = ServiceInfo("h:1", "/b/1", ("h", 2))
    await store.put(path, moved.encode())
    for event in (SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED):
        for tell in heard:
            tell(event)
    await eventually(lambda: pool.infos["h:1"] == moved)
    await pool.close()
    await store.close()


async def test_an_outage_of_the_store_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookies known so far stay, and changes are seen once the store answers again."""
    monkeypatch.setattr("bookkeeper.client.pool._RETRY_S", 0.001)
    store = EmbeddedMetadataStore.open(None)
    pool = BookiePool(store)
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:1')}", b"")
    await pool.start()
    failures = [StoreUnreachableError("zk:h", "down")] * 3
    children = store.children

    async def unreachable_at_first(path: str) -> list[str]:
        if failures:
            raise failures.pop()
        return await children(path)

    monkeypatch.setattr(store, "children", unreachable_at_first)
    await store.put(f"{AVAILABLE_PATH}/{encode_name('h:2')}", b"")
    await eventually(lambda: len(failures) == 1)
    assert pool.writable == {"h:1"}
    await eventually(lambda: pool.writable == {"h:1", "h:2"})
    await pool.close()
    await store.close()


async def test_unreachable_bookies_answer_unavailable() -> None:
    client = BookiePool().client("nobody")
    assert (await client.read_entries(1, 0, 1, 1)).code == codes.UNAVAILABLE
    assert (await client.read_lac(1, fence=True)).code == codes.UNAVAILABLE
    with pytest.raises(BookieUnavailableError):
        await client.list_entries(1)
