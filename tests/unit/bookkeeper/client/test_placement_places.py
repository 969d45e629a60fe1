"""Where the pool finds bookies to be, and how much space they say they have."""

import itertools
import json
import random
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.client.config import HealthConfig
from magnetar.bookkeeper.client.health import BookieHealth
from magnetar.bookkeeper.client.placement import Adherence, PlacementConfig
from magnetar.bookkeeper.client.pool import BookiePool, UnreachableBookie
from magnetar.bookkeeper.client.pool_placement import FreeSpace, placement_for
from magnetar.bookkeeper.client.rack_mapping import parse_racks
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.service_info import (
    AVAILABLE_PATH,
    COOKIES_PATH,
    NO_HEALTH_CHECK_PATH,
    RACKS_PATH,
    ServiceInfo,
)
from magnetar.bookkeeper.transport import BookieStatus
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.paths import encode_name
from tests.unit.bookkeeper.client.conftest import eventually


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    opened = EmbeddedMetadataStore.open(None)
    yield opened
    await opened.close()


async def register(store: EmbeddedMetadataStore, bookie: str, place: str) -> None:
    host, _, port = bookie.partition(":")
    info = ServiceInfo(bookie, place, (host, int(port or 1)))
    await store.put(f"{AVAILABLE_PATH}/{encode_name(bookie)}", info.encode())


def racks(**paths: str) -> bytes:
    return json.dumps({"default": {name: {"rack": path} for name, path in paths.items()}}).encode()


async def test_groups_are_those_of_the_same_node(store: EmbeddedMetadataStore) -> None:
    await register(store, "a:1", "/z0/u0")
    pool = BookiePool(store)
    await pool.start()
    assert pool.groups_of("a:1") == frozenset()
    place = {"rack": "/r", "hostname": "a"}
    document = {"default": {"a:1": place, "b": place}, "ssd": {"a:1": place}}
    await store.put(RACKS_PATH, json.dumps(document).encode())
    await eventually(lambda: pool.groups_of("a:1") == {"default", "ssd"})
    assert pool.groups_of("b") == {"default"}
    await store.delete(RACKS_PATH)
    await eventually(lambda: not pool.groups_of("a:1"))
    await pool.close()


async def test_an_operators_word_beats_the_registration(store: EmbeddedMetadataStore) -> None:
    await register(store, "a", "/z0/u0")
    await register(store, "b", "/z0/u1")
    pool = BookiePool(store)
    await pool.start()
    assert (pool.location("a"), pool.location("b"), pool.location("c")) == (
        *("/z0/u0", "/z0/u1"),
        None,
    )
    await store.put(RACKS_PATH, racks(a="rack-7/"))
    await eventually(lambda: pool.location("a") == "/rack-7")
    assert pool.location("b") == "/z0/u1"
    await store.put(RACKS_PATH, racks(b="/z9/u9"))
    await eventually(lambda: pool.location("b") == "/z9/u9")
    assert pool.location("a") == "/z0/u0"
    await store.delete(RACKS_PATH)
    await eventually(lambda: pool.location("b") == "/z0/u1")
    await pool.close()


async def test_racks_may_name_addresses(store: EmbeddedMetadataStore) -> None:
    info = ServiceInfo("stable-id", "/z0/u0", ("host", 3181))
    await store.put(f"{AVAILABLE_PATH}/{encode_name('stable-id')}", info.encode())
    await store.put(RACKS_PATH, json.dumps({"g": {"host:3181": {"rack": "/r"}}}).encode())
    pool = BookiePool(store)
    await pool.start()
    assert pool.location("stable-id") == "/r"
    await pool.close()


async def test_unreadable_racks_change_nothing(
    store: EmbeddedMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    await register(store, "a", "/z0/u0")
    await store.put(RACKS_PATH, racks(a="/r1"))
    pool = BookiePool(store)
    await pool.start()
    await store.put(RACKS_PATH, b"[1, 2]")
    await eventually(lambda: RACKS_PATH in caplog.text)
    assert pool.location("a") == "/r1"
    await pool.close()


async def test_a_bookie_that_was_gone_before_is_where_its_cookie_says(
    store: EmbeddedMetadataStore,
) -> None:
    for bookie, cookie in {
        "gone": b'{"networkLocation": "/z3/u3"}',
        "old": b"cookie of another program",
        "here": b'{"networkLocation": "/z4/u4"}',
    }.items():
        await store.put(f"{COOKIES_PATH}/{encode_name(bookie)}", cookie)
    await register(store, "here", "/z1/u1")
    pool = BookiePool(store)
    await pool.start()
    assert pool.location("gone") == "/z3/u3"
    assert pool.location("here") == "/z1/u1"
    assert pool.location("old") is None
    await register(store, "gone", "/z5/u5")
    await eventually(lambda: pool.location("gone") == "/z5/u5")
    await pool.close()


@pytest.mark.parametrize("bad", [b"", b"7", b'{"g": 1}', b'{"g": {"b": "/r"}}', b'{"g": null}'])
def test_other_documents_are_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r"not groups|Expecting"):
        parse_racks(bad)


def test_racks_without_a_name_say_nothing() -> None:
    document = b'{"g": {"a": {"rack": null}, "b": {}, "c": {"rack": "/"}, "d": {"rack": "r"}}}'
    assert parse_racks(document) == {"d": "/r"}


async def test_an_operators_switch_ends_quarantine(
    store: EmbeddedMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    health = BookieHealth(
        HealthConfig(enabled=True, error_threshold=1), lambda: 0, random.Random(1)
    )
    pool = BookiePool(store, health=health)
    await pool.start()
    health.note_error("a")
    assert "bookie a keeps failing: for 1800 s" in caplog.text
    await store.put(NO_HEALTH_CHECK_PATH, b"")
    await eventually(lambda: not health.quarantined())
    health.note_error("b")
    assert not health.quarantined()
    await store.delete(NO_HEALTH_CHECK_PATH)
    numbers = itertools.count()

    def is_on_again() -> bool:
        health.note_error(f"c{next(numbers)}")
        return bool(health.quarantined())

    await eventually(is_on_again)
    await pool.close()


# Free space


class Telling(UnreachableBookie):
    """Tells its free space, or fails as long as ``failures`` says."""

    def __init__(self, bookie_id: str, free: int) -> None:
        super().__init__(bookie_id)
        self.free = free
        self.failures = 0
        self.asked = 0

    async def info(self) -> BookieStatus:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise BookieUnavailableError("not now")
        return BookieStatus(self.bookie_id, False, self.free, 100)


async def test_free_space_is_asked_once_for_each_newcomer(store: EmbeddedMetadataStore) -> None:
    bookies = {name: Telling(name, free) for name, free in (("a", 10), ("b", 20), ("c", 30))}
    await register(store, "a", "/z/u")
    pool = BookiePool(store, lambda name: bookies[name])
    await pool.start()
    space = FreeSpace(pool, interval_s=3600, retry_s=3600)
    space.start()
    await eventually(lambda: space.free_bytes("a") == 10)
    assert space.free_bytes("b") == 0
    await register(store, "b", "/z/u")
    await eventually(lambda: space.free_bytes("b") == 20)
    await store.delete(f"{AVAILABLE_PATH}/{encode_name('a')}")
    await eventually(lambda: space.free_bytes("a") == 0)
    assert [bookies[name].asked for name in "abc"] == [1, 1, 0]
    await space.close()
    await pool.close()


async def test_free_space_is_asked_again_after_a_failure_and_after_the_interval(
    store: EmbeddedMetadataStore,
) -> None:
    bookie = Telling("a", 10)
    bookie.failures = 2
    await register(store, "a", "/z/u")
    pool = BookiePool(store, lambda _: bookie)
    await pool.start()
    space = FreeSpace(pool, interval_s=0.02, retry_s=0.01)
    space.start()
    await eventually(lambda: space.free_bytes("a") == 10)
    assert bookie.asked >= 3
    bookie.free = 7
    await eventually(lambda: space.free_bytes("a") == 7)
    bookie.failures = 10**9
    asked = bookie.asked
    await eventually(lambda: bookie.asked > asked + 1)
    assert space.free_bytes("a") == 7, "what it said last still counts"
    await space.close()
    await pool.close()


async def test_a_policy_goes_by_what_the_pool_knows(store: EmbeddedMetadataStore) -> None:
    bookies = {f"b{n}": Telling(f"b{n}", 10) for n in range(4)}
    for n, name in enumerate(bookies):
        await register(store, name, f"/z{n // 2}/u{n % 2}")
    health = BookieHealth(
        HealthConfig(enabled=True, error_threshold=1), lambda: 0, random.Random(1)
    )
    pool = BookiePool(store, lambda name: bookies[name], health)
    await pool.start()
    config = PlacementConfig("zone-aware", by_free_space=True)
    async with placement_for(config, pool, random.Random(1)) as placement:
        await eventually(lambda: all(bookie.asked for bookie in bookies.values()))
        ensemble = placement.new_ensemble(3, 3, 2, pool.writable)
        assert placement.adherence(ensemble, 3, 2) is Adherence.SOFT
        health.note_error("b0")
        assert set(placement.new_ensemble(3, 3, 2, pool.writable)) == {"b1", "b2", "b3"}
    asked = [bookie.asked for bookie in bookies.values()]
    await register(store, "b4", "/z4/u4")
    await eventually(lambda: "b4" in pool.writable)
    assert [bookie.asked for bookie in bookies.values()] == asked
    async with placement_for(PlacementConfig(), pool, random.Random(1)) as placement:
        assert len(placement.new_ensemble(5, 3, 2, pool.writable)) == 5
    await pool.close()
