"""Choice of bookies, and who is registered."""

import asyncio
import random
from collections.abc import Callable

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import HealthConfig
from magnetar.bookkeeper.client.health import BookieHealth
from magnetar.bookkeeper.client.placement import RandomPlacement, choose_replacements
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookieUnavailableError, NotEnoughBookiesError
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH, ServiceInfo
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import StoreUnreachableError
from magnetar.metadata.paths import encode_name
from magnetar.metadata.store import SessionEvent, Versioned, Watch
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
    chosen = choose_replacements(placement, ensemble, 3, {0: "b0", 2: "b2"}, set(BOOKIES) - {"b3"})
    assert {slot: failed for slot, (failed, _) in chosen.items()} == {0: "b0", 2: "b2"}
    assert {newcomer for _, newcomer in chosen.values()} == {"b4", "b5"}
    # A failure that is cured already, and one that nobody is left for.
    assert choose_replacements(placement, ensemble, 3, {0: "b9"}, BOOKIES) == {}
    partial = choose_replacements(placement, ensemble, 3, {0: "b0", 1: "b1"}, BOOKIES[:4])
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


class _Registered:
    """Bookies in a store, whose clients are in quarantine after one failure."""

    def __init__(self) -> None:
        self.store = EmbeddedMetadataStore.open(None)
        config = HealthConfig(enabled=True, error_threshold=1)
        self.health = BookieHealth(config, lambda: 0, random.Random(1))
        self.pool = BookiePool(self.store, health=self.health)

    async def register(
        self, name: str, incarnation: int, *, folder: str = AVAILABLE_PATH, place: str = "/a/1"
    ) -> None:
        info = ServiceInfo(name, place, ("h", 1), incarnation)
        await self.store.put(f"{folder}/{encode_name(name)}", info.encode())

    async def unregister(self, name: str, folder: str = AVAILABLE_PATH) -> None:
        await self.store.delete(f"{folder}/{encode_name(name)}")

    async def start(self, *names: str) -> None:
        """Registered, and in quarantine."""
        for name in names:
            await self.register(name, 1)
        await self.pool.start()
        for name in names:
            self.health.note_error(name)

    async def settled(self) -> None:
        """All that was done before has been read: ``last`` is known."""
        await self.register("last", 1)
        await eventually(lambda: "last" in self.pool.writable)

    async def close(self) -> None:
        await self.pool.close()
        await self.store.close()


async def test_a_restart_ends_quarantine_however_short_it_was() -> None:
    made = _Registered()
    await made.start("h:1", "h:2")
    await made.register("h:1", 1, place="/b/1")  # the same process
    await eventually(lambda: made.pool.location("h:1") == "/b/1")
    await made.unregister("h:2")
    await made.register("h:2", 2)
    await made.settled()
    assert made.health.quarantined() == {"h:1"}
    await made.close()


async def test_a_bookie_that_is_read_only_for_a_while_stays_in_quarantine() -> None:
    """As one that loses its session, it is the process that failed."""
    made = _Registered()
    await made.start("h:1")
    await made.register("h:1", 1, folder=READ_ONLY_PATH)
    await made.unregister("h:1")
    await eventually(lambda: not made.pool.writable)
    await made.register("h:1", 1)
    await made.unregister("h:1", READ_ONLY_PATH)
    await made.settled()
    assert made.health.quarantined() == {"h:1"}
    await made.unregister("h:1")
    await made.register("h:1", 2, folder=READ_ONLY_PATH)  # drained, and then restarted
    await made.settled()
    await eventually(lambda: not made.health.quarantined())
    await made.close()


async def test_what_changes_while_lists_are_read_is_read_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = _Registered()
    await made.start("h:1")
    children, changed = made.store.children, asyncio.Event()

    async def slow(path: str) -> list[str]:
        found = await children(path)
        if path == READ_ONLY_PATH and not changed.is_set():
            changed.set()
            await made.register("h:1", 2, place="/b/1")
            await eventually(lambda: bool(made.pool._stale))
        return found

    monkeypatch.setattr(made.store, "children", slow)
    await made.unregister("h:1")
    await eventually(lambda: made.pool.location("h:1") == "/b/1")
    assert changed.is_set()
    assert not made.health.quarantined()
    await made.close()


@pytest.mark.parametrize("failing", [AVAILABLE_PATH, READ_ONLY_PATH, "get"])
async def test_what_the_store_failed_to_read_is_read_later(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.client.pool._RETRY_S", 0.001)
    made = _Registered()
    await made.start("h:1")
    children, get, failures = made.store.children, made.store.get, [failing]

    async def fail_once(what: str) -> None:
        if what in failures:
            failures.clear()
            raise StoreUnreachableError("zk:h", "down")

    async def failing_children(path: str) -> list[str]:
        await fail_once(path)
        return await children(path)

    async def failing_get(path: str) -> Versioned | None:
        await fail_once("get")
        return await get(path)

    monkeypatch.setattr(made.store, "children", failing_children)
    monkeypatch.setattr(made.store, "get", failing_get)
    await made.register("h:1", 2, place="/b/1")
    await eventually(lambda: made.pool.location("h:1") == "/b/1")
    assert failures == []
    assert not made.health.quarantined()
    await made.close()


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
    monkeypatch.setattr("magnetar.bookkeeper.client.pool._RETRY_S", 0.001)
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
    assert (await client.read_entries(ReadRequest(1, 0, 1, 1))).code == codes.UNAVAILABLE
    assert (await client.read_lac(1, fence=True)).code == codes.UNAVAILABLE
    with pytest.raises(BookieUnavailableError):
        await client.list_entries(1)
