"""Epochs and assignments: who may write them, who obeys, what is left of those before."""

import asyncio
from dataclasses import replace

import pytest

from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.leader import LEADER_PATH
from magnetar.loadbalance.leader_epoch import (
    ASSIGNMENTS_ROOT,
    EPOCH_PATH,
    BundleAssignment,
    LeaderEpoch,
)
from magnetar.loadbalance.leader_tasks import LeaderTasks
from magnetar.loadbalance.manager import NoCandidateError
from magnetar.loadbalance.policy_reader import PolicyReader
from magnetar.loadbalance.registry import BrokerRegistry
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.loadbalance.test_manager import BUNDLE, CONFIG, Broker
from tests.unit.loadbalance.test_registry import WEIGHTS, load_of
from tests.unit.loadbalance.test_unload_cooldowns import actions
from tests.unit.metadata.event_log import eventually, eventually_equal

BY_EPOCH = replace(CONFIG, load_balancer_leader_epoch_enabled=True)


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore.open(None)


async def test_each_leader_has_an_epoch_of_its_own(base: EmbeddedMetadataStore) -> None:
    brokers = [LeaderEpoch(base.new_session()) for _ in range(5)]
    assert await brokers[0].current() == 0
    begun = await asyncio.gather(*(each.begin(f"b{at}") for at, each in enumerate(brokers)))
    assert sorted(begun) == [1, 2, 3, 4, 5]
    assert {await each.current() for each in brokers} == {5}


async def test_what_names_an_older_epoch_is_refused(base: EmbeddedMetadataStore) -> None:
    old, new, broker = (LeaderEpoch(base.new_session()) for _ in range(3))
    assert await old.begin("old") == 1
    assert await old.assign("t/n/x", "a", 1)
    assert await broker.is_assigned("t/n/x", "a")
    assert not await broker.is_assigned("t/n/x", "b")
    assert not await broker.is_assigned("t/n/y", "a")
    assert await new.begin("new") == 2
    assert not await broker.is_assigned("t/n/x", "a"), "the new leader hasn't said so"
    assert not await broker.is_current(1)
    assert not await old.assign("t/n/y", "a", 1)
    assert await base.children(f"{ASSIGNMENTS_ROOT}/t/n") == ["x"]
    assert await new.assign("t/n/x", "b", 2)
    assert await broker.is_assigned("t/n/x", "b")


async def test_a_row_of_a_later_leader_stays(base: EmbeddedMetadataStore) -> None:
    """The old leader looked at the epoch before the new one began, and writes after it."""
    await base.put(f"{ASSIGNMENTS_ROOT}/t/n/x", BundleAssignment("b", 9).encode())
    old = LeaderEpoch(base.new_session())
    assert not await old.assign("t/n/x", "a", await old.begin("old"))
    found = await base.get(f"{ASSIGNMENTS_ROOT}/t/n/x")
    assert found is not None
    assert BundleAssignment.decode(found.value) == BundleAssignment("b", 9)


async def test_an_epoch_never_goes_back(base: EmbeddedMetadataStore) -> None:
    """A server of the store lags, or somebody has restored an old copy."""
    broker, other = LeaderEpoch(base.new_session()), LeaderEpoch(base.new_session())
    assert await broker.is_current(7), "of a leader that it hasn't heard of yet"
    assert not await broker.is_current(6)
    await base.put(EPOCH_PATH, b'{"epoch":3}')
    assert await broker.current() == 7
    assert await other.current() == 3
    assert await broker.begin("b") == 8


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"epoch":"x"}', b'{"broker":1,"epoch":2}'])
async def test_what_nobody_can_read_assigns_nothing(
    base: EmbeddedMetadataStore, value: bytes
) -> None:
    await base.put(f"{ASSIGNMENTS_ROOT}/t/n/x", value)
    await base.put(EPOCH_PATH, value)
    leader_epoch = LeaderEpoch(base.new_session())
    assert not await leader_epoch.is_assigned("t/n/x", "a")
    assert await leader_epoch.assign("t/n/x", "a", await leader_epoch.begin("me"))
    assert await leader_epoch.is_assigned("t/n/x", "a")


async def test_the_leader_assigns_what_it_places(base: EmbeddedMetadataStore) -> None:
    made = [Broker(base, name, BY_EPOCH) for name in "ab"]
    for each in made:
        await each.manager.start(0.0)
    a, b = made

    placed: list[str] = []

    async def is_placed() -> bool:
        try:
            placed.append((await a.chosen(BUNDLE))[0])
        except NoCandidateError:
            return False  # its epoch hasn't begun yet
        return True

    async def is_live() -> bool:
        return len(await a.manager.registry.live()) == 2

    await eventually_equal(is_live, True)
    await eventually_equal(is_placed, True)
    (name,) = placed
    assert await b.manager.leader_epoch.is_assigned(BUNDLE, name)
    a.store.lose_session()
    await base.expire_session(a.store.session_id)
    await eventually(lambda: b.manager.is_leader)
    await eventually_equal(b.manager.leader_epoch.current, 2)
    assert not await b.manager.leader_epoch.is_assigned(BUNDLE, name)
    for each in made:
        await each.manager.close()
        await each.store.close()


async def test_nobody_decides_alone(base: EmbeddedMetadataStore) -> None:
    """Without a leader nothing new is opened; that is the price of the mode."""
    a = Broker(base, "a", BY_EPOCH)
    await base.put(LEADER_PATH, b"not a leader")
    await a.manager.start(0.0)
    with pytest.raises(NoCandidateError):
        await a.manager.choose(BUNDLE)
    own = f"pulsar/{a.name}/0x00000000_0xffffffff"
    assert await a.manager.choose(own) is None
    await a.manager.close()
    await a.store.close()


async def test_who_was_deposed_begins_no_epoch(base: EmbeddedMetadataStore) -> None:
    """It was elected, then paused until another one led: it mustn't outdo the other's epoch."""
    session, other = base.new_session(), base.new_session()
    registry, policies = BrokerRegistry(session, WEIGHTS), PolicyReader(session, "c")
    await registry.register(load_of("a"))
    leader_epoch = LeaderEpoch(session)
    config = BalancerConfig(load_balancer_leader_epoch_enabled=True)
    tasks = LeaderTasks(
        session, registry, policies, config, broker_id="a:8080", leader_epoch=leader_epoch
    )
    await other.put(LEADER_PATH, b"other", ephemeral=True)
    assert await LeaderEpoch(other).begin("other") == 1
    await tasks._round(actions([]))
    assert await leader_epoch.current() == 1
    assert await tasks.place(BUNDLE) is None
    await other.delete(LEADER_PATH)
    await session.put(LEADER_PATH, b"me", ephemeral=True)
    await tasks._round(actions([]))
    assert await leader_epoch.current() == 2
    assert await tasks.place(BUNDLE) == "a:8080"
    policies.close()
    await registry.close()
