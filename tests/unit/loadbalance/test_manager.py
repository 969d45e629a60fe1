"""Who chooses a broker for a bundle, what the leader orders, what is reported and remembered."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.leader import LEADER_PATH
from magnetar.loadbalance.leader_tasks import LeaderTasks, UnloadCallbacks
from magnetar.loadbalance.manager import LoadManager, NoCandidateError, RedirectTarget
from magnetar.loadbalance.model import BrokerLoad, BundleStats, Move, Split, Weights
from magnetar.loadbalance.policy_reader import PolicyReader
from magnetar.loadbalance.registry import BROKERS_ROOT, BrokerRegistry
from magnetar.loadbalance.reporter import LoadReporter
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.loadbalance.test_registry import load_of
from tests.unit.metadata.event_log import EventLog, eventually, eventually_equal

BUNDLE = "t/n/0x00000000_0x40000000"
BUNDLES = [f"t/n/0x{number:08x}_0x{number + 1:08x}" for number in range(40)]
CONFIG = BalancerConfig(load_balancer_shedding_interval_minutes=0.0005)
ISOLATION = "/admin/clusters/c/namespaceIsolationPolicies"


class Broker:
    """One manager; what it orders when it leads is in ``ordered``."""

    def __init__(
        self, base: EmbeddedMetadataStore, name: str, config: BalancerConfig = CONFIG
    ) -> None:
        self.name, self.store = f"{name}:8080", base.new_session()
        self.load, self.ordered = load_of(name), EventLog[Move | Split]()
        self.manager = LoadManager(
            self.store,
            "c",
            config,
            self._measure,
            UnloadCallbacks(self._move, self._split, self._count),
        )

    async def _measure(self) -> BrokerLoad:
        return self.load

    async def _move(self, move: Move) -> bool:
        self.ordered(move)
        return True

    async def _split(self, split: Split) -> bool:
        self.ordered(split)
        return True

    async def _count(self, namespace: str) -> int | None:
        return 4

    async def chosen(self, bundle: str) -> tuple[str, bool]:
        """Whom it names, and with authority or not."""
        redirect_target = await self.manager.choose(bundle)
        if redirect_target is None:
            return self.name, True
        return redirect_target.broker.broker_id, redirect_target.authoritative


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore.open(None)


@pytest.fixture
async def brokers(base: EmbeddedMetadataStore) -> AsyncIterator[list[Broker]]:
    """The first one leads, and all know each other."""
    made = [Broker(base, name) for name in "abc"]
    for each in made:
        await each.manager.start(0.0)
    names = {each.name for each in made}
    for each in made:
        await eventually_equal(lambda each=each: live(each), names)  # type: ignore[misc]
        await eventually_equal(lambda each=each: leader(each), made[0].name)  # type: ignore[misc]
    yield made
    for each in made:
        await each.manager.close()
        await each.store.close()


async def live(broker: Broker) -> set[str]:
    return set(await broker.manager.registry.live())


async def leader(broker: Broker) -> str | None:
    found = await broker.manager.leader()
    return None if found is None else found.broker_id


async def test_followers_name_the_leader_and_the_leader_decides(brokers: list[Broker]) -> None:
    a, b, c = brokers
    assert a.manager.is_leader
    assert await b.chosen(BUNDLE) == (a.name, False)
    assert await c.chosen(BUNDLE) == (a.name, False)
    name, authoritative = await a.chosen(BUNDLE)
    assert authoritative
    assert await a.chosen(BUNDLE) == (name, True), "until it is reported, the same one"


async def test_a_follower_can_decide_alone_and_by_the_same_policies(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    policy = {"namespaces": ["t/n"], "primary": ["c"], "secondary": [], "auto_failover_policy": {}}
    await base.put(ISOLATION, orjson.dumps({"p": policy}))

    async def decided() -> tuple[str, bool] | None:
        found = await brokers[1].manager.choose(BUNDLE, alone=True)
        return None if found is None else (found.broker.broker_id, found.authoritative)

    await eventually_equal(decided, (brokers[2].name, True))
    assert await brokers[1].chosen(BUNDLE) == (brokers[0].name, False)
    assert await brokers[2].manager.choose(BUNDLE, alone=True) is None


async def test_a_brokers_own_namespace_is_nobodys_choice(brokers: list[Broker]) -> None:
    own = f"pulsar/{brokers[1].name}/0x00000000_0xffffffff"
    assert await brokers[1].chosen(own) == (brokers[1].name, True)
    assert await brokers[2].chosen(own) == (brokers[1].name, True)


async def test_bundles_that_are_placed_together_are_spread(brokers: list[Broker]) -> None:
    """I24: nobody has reported any of them yet."""
    chosen = [(await brokers[0].chosen(bundle))[0] for bundle in BUNDLES]
    counts = sorted(chosen.count(each.name) for each in brokers)
    assert counts[-1] - counts[0] <= 1


async def test_without_a_leader_everybody_decides(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    """F14: no redirect without authority, so no circle of them."""
    a, b, c = brokers
    a.store.lose_session()
    await base.expire_session(a.store.session_id)
    await eventually(lambda: b.manager.is_leader or c.manager.is_leader)
    other = c if b.manager.is_leader else b
    await base.put(LEADER_PATH, b"not a leader")
    await eventually_equal(lambda: leader(other), None)
    await eventually_equal(lambda: live(other), {b.name, c.name})
    for bundle in BUNDLES:
        name, authoritative = await other.chosen(bundle)
        assert name in {b.name, c.name}, "the dead one isn't live any more"
        assert authoritative


async def test_a_leader_that_is_not_registered_is_not_asked(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    a, b, _ = brokers
    await a.manager.registry.close()
    await eventually_equal(lambda: live(b), {each.name for each in brokers[1:]})
    assert (await b.chosen(BUNDLE))[1]


async def test_who_drains_finds_new_owners_at_once(brokers: list[Broker]) -> None:
    """Others, spread as bundles are that nobody owns; never itself."""
    a, b, c = brokers
    b.load = replace(b.load, draining=True)
    await b.manager.begin_drain()
    new_owners = [await b.manager.assigned_broker(bundle) for bundle in BUNDLES]
    assert set(new_owners) == {a.name, c.name}
    assert abs(new_owners.count(a.name) - new_owners.count(c.name)) <= 1
    assert await b.manager.assigned_broker(f"pulsar/{b.name}/0x00000000_0xffffffff") is None


async def test_who_is_alone_has_no_new_owners(brokers: list[Broker]) -> None:
    a, b, c = brokers
    for each in (a, b, c):
        each.load = replace(each.load, draining=True)
        await each.manager.begin_drain()

    async def new_owner() -> str | None:
        return await b.manager.assigned_broker(BUNDLE)

    await eventually_equal(new_owner, None)


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, load_balancer_enabled=False),
        replace(CONFIG, load_balancer_leader_epoch_enabled=True),
    ],
)
async def test_who_may_not_decide_names_no_new_owner(
    base: EmbeddedMetadataStore, config: BalancerConfig
) -> None:
    made = [Broker(base, name, config) for name in "ab"]
    for each in made:
        await each.manager.start(0.0)
    for each in made:
        await eventually_equal(lambda each=each: live(each), {one.name for one in made})  # type: ignore[misc]
    assert await made[1].manager.assigned_broker(BUNDLE) is None
    for each in made:
        await each.manager.close()
        await each.store.close()


async def test_a_promised_bundle_goes_where_it_was_promised(brokers: list[Broker]) -> None:
    a, b, c = brokers
    redirect_target = await a.manager.choose(BUNDLE, c.name)
    assert isinstance(redirect_target, RedirectTarget)
    assert (redirect_target.broker.broker_id, redirect_target.authoritative) == (c.name, True)
    assert await c.manager.choose(BUNDLE, c.name) is None
    assert await b.chosen(BUNDLE) == (a.name, False)
    gone = await a.manager.choose(BUNDLE, "gone:1")
    assert gone is None or gone.broker.broker_id != "gone:1"


async def test_switched_off_everybody_takes_what_it_is_asked_for(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    off = replace(CONFIG, load_balancer_enabled=False)
    for each in brokers:
        each.manager.reconfigure(off)
        assert await each.manager.choose(BUNDLE) is None


async def test_isolation_that_nobody_can_read_places_nothing(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    """F28: closed, not open; and what was known before is kept."""
    await base.put(ISOLATION, b"{")
    await eventually_equal(lambda: base.exists(ISOLATION), True)
    with pytest.raises(NoCandidateError):
        await brokers[0].manager.choose(BUNDLE)
    policy = {"namespaces": ["t/.*"], "primary": ["b"], "auto_failover_policy": {}}
    await base.put(ISOLATION, orjson.dumps({"p": policy}))
    for bundle in BUNDLES:
        await eventually_equal(lambda bundle=bundle: choice(brokers[0], bundle), "b:8080")  # type: ignore[misc]
    await base.put(ISOLATION, b"[]")
    assert await choice(brokers[0], "t/x/0x00000000_0xffffffff") == "b:8080"


async def choice(broker: Broker, bundle: str) -> str | None:
    try:
        return (await broker.chosen(bundle))[0]
    except NoCandidateError:
        return None


async def test_the_leader_orders_what_its_rounds_decide(
    base: EmbeddedMetadataStore, brokers: list[Broker]
) -> None:
    """A bundle with too many topics is cut, by the one that owns it."""
    a, b, _ = brokers
    stats = {BUNDLE: BundleStats(topics=5_000), BUNDLES[1]: BundleStats(topics=1)}
    # Only what lasts for some rounds is cut.
    for number in range(20):
        b.load = replace(load_of("b"), bundles=sorted(stats), stats=stats, topics=5_000 + number)
        await b.manager.registry.publish(b.load)
        await asyncio.sleep(0)
    (split, *_) = await a.ordered.until(lambda events: len(events) > 0)
    assert isinstance(split, Split)
    assert (split.bundle, split.owner) == (BUNDLE, b.name)
    assert b.ordered.events == [], "it follows"


async def test_a_report_is_written_when_it_is_due(base: EmbeddedMetadataStore) -> None:
    registry = BrokerRegistry(base.new_session(), Weights.of(CONFIG))
    load = load_of("a", msg_rate_in=100.0)

    async def measure() -> BrokerLoad:
        return load

    config = replace(CONFIG, load_balancer_report_update_min_interval_millis=0)
    reporter = LoadReporter(registry, lambda: config, measure)
    await registry.register(load_of("a"))
    assert await reporter.look(), "the first one"
    load = load_of("a", msg_rate_in=105.0)
    assert not await reporter.look(), "five percent"
    assert await reporter.look(forced=True)
    load = load_of("a", msg_rate_in=200.0)
    assert await reporter.look()
    assert (await registry.live())["a:8080"].msg_rate_in == 200.0
    many = {f"tenant/namespace/0x{number:08x}_0xffffffff": BundleStats() for number in range(9_000)}
    many["tenant/namespace/busiest"] = BundleStats(msg_throughput_in=1.0)
    load = replace(load_of("a", msg_rate_in=900.0), stats=many)
    assert await reporter.look(), "F33: too large, so the busiest bundles only"
    stored = (await registry.live())["a:8080"].stats
    assert 0 < len(stored) < len(many)
    assert "tenant/namespace/busiest" in stored


async def test_groups_are_read_once_and_then_followed(base: EmbeddedMetadataStore) -> None:
    for number in range(250):
        document = {"namespaceAntiAffinityGroup": "g"} if number % 2 else {}
        await base.put(f"/admin/local-policies/t/n{number}", orjson.dumps(document))
    await base.put("/admin/clusters/c/failureDomain/d1", b'{"brokers":["a:8080"]}')
    reader = PolicyReader(base.new_session(), "c")
    policies = await reader.read()
    assert len(policies.groups) == 125
    assert policies.domains == {"a:8080": "d1"}
    assert await reader.read() is policies
    await base.put("/admin/local-policies/t/n2", b'{"namespaceAntiAffinityGroup":"h"}')
    await base.delete("/admin/local-policies/t/n1")

    async def groups() -> tuple[str | None, str | None, int]:
        found = (await reader.read()).groups
        return found.get("t/n1"), found.get("t/n2"), len(found)

    await eventually_equal(groups, (None, "h", 125))
    reader.close()


async def test_the_first_local_policies_of_a_cluster_are_read(base: EmbeddedMetadataStore) -> None:
    """Their parents come with them, after the reader looked: they are no namespaces."""
    reader = PolicyReader(base, "c")
    assert not (await reader.read()).groups
    await base.put("/admin/local-policies/t/n", b'{"namespaceAntiAffinityGroup":"g"}')
    assert (await reader.read()).groups == {"t/n": "g"}
    await base.delete_recursive("/admin/local-policies")
    assert not (await reader.read()).groups
    reader.close()


async def test_what_was_learned_outlives_the_leader(base: EmbeddedMetadataStore) -> None:
    registry = BrokerRegistry(base.new_session(), Weights.of(CONFIG))
    policies = PolicyReader(base, "c")
    stats = {BUNDLE: BundleStats(msg_rate_in=1_000.0, msg_throughput_in=1e6, topics=3)}
    await registry.register(replace(load_of("a"), stats=stats, bundles=[BUNDLE]))
    first = LeaderTasks(base, registry, policies, CONFIG)
    await first.follow()
    await first._store_averages()
    assert await base.children("/loadbalance/broker-time-average") == ["a:8080"]
    await registry.close()
    await base.delete_recursive(f"{BROKERS_ROOT}/a:8080")
    other = BrokerRegistry(base.new_session(), Weights.of(CONFIG))
    await other.register(load_of("b"))
    second = LeaderTasks(base, other, policies, CONFIG)
    assert await second.place(BUNDLE) == "b:8080"
    assert second.balancer.state.bundles[BUNDLE].long.msg_rate_in == 1_000.0
    await second._store_averages()
    assert await base.children("/loadbalance/broker-time-average") == ["b:8080"]
    policies.close()
