"""The list of live brokers: registration, reports, lost sessions, names taken by others."""

import asyncio
from dataclasses import replace

import orjson
import pytest

from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.documents import broker_load_document
from magnetar.loadbalance.model import BrokerLoad, Weights
from magnetar.loadbalance.registry import BROKERS_ROOT, BrokerRegistry
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import LockBusyError, MetadataError, ValueTooLargeError
from magnetar.metadata.recipes import CachedValues
from magnetar.metadata.store import MetadataEvent
from tests.unit.metadata.event_log import EventLog, eventually, eventually_equal

WEIGHTS = Weights.of(BalancerConfig())


def load_of(name: str, port: int = 6650, **fields: float) -> BrokerLoad:
    load = BrokerLoad(
        f"{name}:8080",
        f"http://{name}:8080",
        pulsar_service_url=f"pulsar://{name}:{port}",
        bundles=[],
        gains=[],
        losses=[],
    )
    return replace(load, **fields)  # type: ignore[arg-type]


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore.open(None)


class Broker:
    def __init__(self, base: EmbeddedMetadataStore) -> None:
        self.store = base.new_session()
        self.registry = BrokerRegistry(self.store, WEIGHTS)


async def test_a_broker_appears_reports_and_goes(base: EmbeddedMetadataStore) -> None:
    a, b = Broker(base), Broker(base)
    assert await b.registry.live() == {}
    await a.registry.register(load_of("a"))
    await b.registry.register(load_of("b"))
    assert await b.registry.live() == {"a:8080": load_of("a"), "b:8080": load_of("b")}
    node = await base.get(f"{BROKERS_ROOT}/a:8080")
    assert node is not None
    assert node.stat.ephemeral
    assert orjson.loads(node.value)["pulsarServiceUrl"] == "pulsar://a:6650"
    busy = load_of("a", msg_rate_in=5.0)
    assert await a.registry.publish(busy)
    assert (await a.registry.live())["a:8080"] == busy
    await eventually_equal(b.registry.live, {"a:8080": busy, "b:8080": load_of("b")})
    await a.registry.close()
    assert await base.children(BROKERS_ROOT) == ["b:8080"]
    await eventually_equal(b.registry.live, {"b:8080": load_of("b")})


async def test_what_was_reported_is_seen_before_its_event_comes(
    base: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's events may come any time after the write."""
    monkeypatch.setattr(BrokerRegistry, "_on_event", lambda *_: None)
    monkeypatch.setattr(CachedValues, "_on_event", lambda *_: None)
    a = Broker(base)
    await a.registry.register(load_of("a"))
    assert await a.registry.live() == {"a:8080": load_of("a")}
    drains = replace(load_of("a"), draining=True)
    assert await a.registry.publish(drains)
    assert await a.registry.live() == {"a:8080": drains}
    await a.registry.close()


async def test_a_lost_session_is_replaced_with_the_last_report(
    base: EmbeddedMetadataStore,
) -> None:
    """F7: the old node still exists, with an older value, when the new session begins."""
    a = Broker(base)
    await a.registry.register(load_of("a"))
    old = a.store.session_id
    a.store.lose_session()
    a.store.begin_session()
    lock = a.registry._lock
    assert lock is not None
    await eventually(lambda: lock.proven)
    await base.expire_session(old)
    assert await a.registry.publish(load_of("a", msg_rate_in=7.0))
    a.store.lose_session()
    await base.expire_session(a.store.session_id)
    a.store.begin_session()
    await eventually(lambda: lock.proven)
    node = await base.get(f"{BROKERS_ROOT}/a:8080")
    assert node is not None
    assert orjson.loads(node.value)["msgRateIn"] == 7.0


async def test_the_node_of_a_killed_process_is_taken_over(base: EmbeddedMetadataStore) -> None:
    killed, again = Broker(base), Broker(base)
    await killed.registry.register(load_of("a", msg_rate_in=9.0))
    killed.store.lose_session()
    await again.registry.register(load_of("a"))
    await base.expire_session(killed.store.session_id)
    assert (await again.registry.live())["a:8080"].msg_rate_in == 0.0


async def test_a_process_that_was_replaced_does_not_register_again(
    base: EmbeddedMetadataStore,
) -> None:
    """Its name went to a process that was started later, elsewhere."""
    former, later = Broker(base), Broker(base)
    await former.registry.register(load_of("a", incarnation=1))
    former.store.lose_session()
    await later.registry.register(load_of("a", incarnation=2))
    log = EventLog[MetadataEvent]()
    base.watch(BROKERS_ROOT, log)
    former.store.begin_session()
    await eventually(lambda: former.registry._lock is None)
    assert log.events == []
    assert not await former.registry.publish(load_of("a", incarnation=1))
    assert await later.registry.publish(load_of("a", incarnation=2, msg_rate_in=3.0))
    assert (await former.registry.live())["a:8080"].incarnation == 2
    await former.registry.close()
    assert list(await later.registry.live()) == ["a:8080"]


async def test_a_name_that_another_broker_has_is_waited_for(base: EmbeddedMetadataStore) -> None:
    other, a = Broker(base), Broker(base)
    await other.registry.register(load_of("a", port=1))
    with pytest.raises(LockBusyError):
        await a.registry.register(load_of("a", port=2))
    waiting = asyncio.ensure_future(a.registry.register(load_of("a", port=2), wait_s=60.0))
    await asyncio.sleep(0)
    await base.expire_session(other.store.session_id)
    await waiting
    assert (await a.registry.live())["a:8080"].pulsar_service_url == "pulsar://a:2"


async def test_a_name_lost_to_another_broker_is_taken_back_when_it_goes(
    base: EmbeddedMetadataStore,
) -> None:
    other, a = Broker(base), Broker(base)
    await a.registry.register(load_of("a", port=1))
    old = a.store.session_id
    a.store.lose_session()
    await base.expire_session(old)
    await other.registry.register(load_of("a", port=2))
    a.store.begin_session()
    await eventually(lambda: a.registry._lock is None)
    assert not await a.registry.publish(load_of("a", port=1))
    await other.registry.close()
    await eventually(lambda: a.registry._lock is not None)
    assert (await a.registry.live())["a:8080"].pulsar_service_url == "pulsar://a:1"
    await a.registry.close()
    assert await base.children(BROKERS_ROOT) == []


async def test_what_nobody_can_read_is_no_candidate(base: EmbeddedMetadataStore) -> None:
    a = Broker(base)
    await a.registry.register(load_of("a"))
    await base.put(f"{BROKERS_ROOT}/bad:1", b"[]", ephemeral=True)
    await base.put(f"{BROKERS_ROOT}/bad:2", b'{"lastStats": 3}', ephemeral=True)
    fresh = BrokerRegistry(base.new_session(), WEIGHTS)
    assert list(await fresh.live()) == ["a:8080"]


async def test_a_property_counts_once_every_registered_broker_has_it(
    base: EmbeddedMetadataStore,
) -> None:
    new, told = Broker(base), EventLog[bool]()
    following = asyncio.ensure_future(new.registry.follow_property("reads", told))
    assert await told.until(lambda x: len(x) == 1) == [False], "nobody is registered"
    await new.registry.register(replace(load_of("a"), properties={"reads": "true"}))
    await told.until(lambda x: x[-1])
    old = Broker(base)
    document = broker_load_document(load_of("old"), 0.0)
    assert "properties" not in document, "as an earlier release registers"
    await old.store.put(f"{BROKERS_ROOT}/old:8080", orjson.dumps(document), ephemeral=True)
    await told.until(lambda x: not x[-1])
    await base.expire_session(old.store.session_id)
    await told.until(lambda x: x[-1])
    await base.put(f"{BROKERS_ROOT}/bad:1", b"[]", ephemeral=True)
    await told.until(lambda x: not x[-1])
    following.cancel()


async def test_a_property_does_not_count_while_the_brokers_are_not_known(
    base: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.loadbalance.registry._AGAIN_S", 0.0)
    a, told = Broker(base), EventLog[bool]()
    await a.registry.register(replace(load_of("a"), properties={"reads": "true"}))
    children = a.store.children

    async def failing(path: str) -> list[str]:
        raise MetadataError("no answer")

    monkeypatch.setattr(a.store, "children", failing)
    following = asyncio.ensure_future(a.registry.follow_property("reads", told))
    assert not any(await told.until(lambda x: len(x) == 2))
    monkeypatch.setattr(a.store, "children", children)
    await told.until(lambda x: x[-1])
    following.cancel()


async def test_a_report_too_large_for_a_node_changes_nothing(base: EmbeddedMetadataStore) -> None:
    """F33: the broker stays registered, with its former report."""
    a = Broker(base)
    await a.registry.register(load_of("a"))
    bundles = [f"tenant/namespace-{number}/0x00000000_0xffffffff" for number in range(30_000)]
    with pytest.raises(ValueTooLargeError):
        await a.registry.publish(replace(load_of("a"), bundles=bundles))
    assert await a.registry.live() == {"a:8080": load_of("a")}
