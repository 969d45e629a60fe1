"""What leaders leave to each other, and by whose clock."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import orjson
import pytest

from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.leader_tasks import BUNDLE_DATA_ROOT, LeaderTasks, UnloadCallbacks
from magnetar.loadbalance.model import BrokerLoad, Move, Split, Weights
from magnetar.loadbalance.policy_reader import PolicyReader
from magnetar.loadbalance.registry import BROKERS_ROOT, BrokerRegistry
from magnetar.loadbalance.unload_cooldowns import StoreClock, UnloadCooldowns
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.loadbalance.clusters import MIB, bundle, report
from tests.unit.loadbalance.test_registry import load_of

GRACE_S = 1800.0


def test_a_bundle_is_entered_once_in_a_grace_period() -> None:
    cooldowns, claimed = UnloadCooldowns().claim(["x", "y", "x"], 5_000_000, GRACE_S, 1_000_000)
    assert claimed == ["x", "y"]
    cooldowns, claimed = cooldowns.claim(["y", "z"], 6_799_999, GRACE_S, 1_000_000)
    assert claimed == ["z"]
    assert cooldowns.ages_s(6_800_000) == {"x": 1800.0, "y": 1800.0, "z": 0.001}
    cooldowns, claimed = cooldowns.claim(["y"], 6_800_000, GRACE_S, 1_000_000)
    assert claimed == ["y"]
    assert cooldowns.moved_ms == {"z": 6_799_999, "y": 6_800_000}, "what has rested is forgotten"


def test_a_move_of_the_future_was_just_now() -> None:
    """The store's clock went back: no age below zero, and the bundle rests."""
    cooldowns = UnloadCooldowns({"x": 9_000_000})
    assert cooldowns.ages_s(5_000_000) == {"x": 0.0}
    assert cooldowns.claim(["x"], 5_000_000, GRACE_S, 1_000_000)[1] == []


def test_what_does_not_fit_waits() -> None:
    names = [bundle(number) for number in range(100)]
    cooldowns, claimed = UnloadCooldowns().claim(names, 1_700_000_000_000, GRACE_S, 2_000)
    assert 0 < len(claimed) < 100
    assert claimed == names[: len(claimed)]
    assert len(cooldowns.encode("0" * 16)) <= 2_000
    later, claimed = cooldowns.claim(
        ["t/other/0x00000000_0xffffffff"], 1_700_000_001_000, GRACE_S, 2_000
    )
    assert claimed == []
    assert later == cooldowns


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"{}", b'{"moved":[]}', b'{"moved":{"x":"y"}}']
)
def test_a_note_that_nobody_can_read_is_begun_anew(value: bytes) -> None:
    assert UnloadCooldowns.decode(value) == UnloadCooldowns()


def test_a_note_survives_its_encoding() -> None:
    cooldowns = UnloadCooldowns({"x": 5, "t/n/0x00000000_0xffffffff": 1_700_000_000_000})
    assert UnloadCooldowns.decode(cooldowns.encode("me")) == cooldowns


def test_the_stores_clock_is_known_by_the_times_of_nodes() -> None:
    clock = StoreClock()
    clock.see(5_000_000, 100.0)
    clock.see(4_000_000, 100.0)  # an older node
    assert clock.now_ms(101.0) == 5_001_000
    clock.see(5_004_000, 102.0)
    assert clock.age_s(5_000_000, 102.0) == 4.0
    clock.learn(5_003_000, 102.0)  # a write was just answered: so it is, also if it went back
    assert clock.now_ms(102.0) == 5_003_000
    clock.see(5_900_000, 102.0)
    assert clock.now_ms(102.0) == 5_003_000
    assert clock.age_s(5_900_000, 102.0) == 0.0


# --- offices


class Scene:
    """A store with a clock of its own, and two brokers: one is too busy."""

    def __init__(self) -> None:
        self.now_ms, self.now_s = 1_700_000_000_000, 50.0
        self.base = EmbeddedMetadataStore.open(None, now_ms=lambda: self.now_ms)
        self.config = BalancerConfig(load_balancer_load_shedding_strategy="OverloadShedder")
        self.open: list[PolicyReader] = []

    async def publish(self, *loads: BrokerLoad) -> None:
        for load in loads:
            registry = BrokerRegistry(self.base.new_session(), Weights.of(self.config))
            await registry.register(load)

    def tasks(self, ahead_s: float = 0.0) -> LeaderTasks:
        session = self.base.new_session()
        policies = PolicyReader(session, "c")
        self.open.append(policies)
        registry = BrokerRegistry(session, Weights.of(self.config))
        clock = lambda: self.now_s + ahead_s  # noqa: E731
        return LeaderTasks(session, registry, policies, self.config, clock=clock)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_ms += int(seconds * 1000)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    for each in made.open:
        each.close()
    await made.base.close()


def actions(moved: list[Move], cut: list[Split] | None = None) -> UnloadCallbacks:
    async def move(move: Move) -> bool:
        moved.append(move)
        return True

    async def split(split: Split) -> bool:
        assert cut is not None
        cut.append(split)
        if "bad" in split.bundle:
            raise RuntimeError("of the one who cuts")
        return True

    async def count(namespace: str) -> int:
        return 4

    return UnloadCallbacks(move, split, count)


def busy(names: list[str]) -> BrokerLoad:
    return replace(
        report("a:8080", 0.95, dict.fromkeys(names, 10 * MIB)),
        web_service_url="http://a:8080",
    )


async def test_two_leaders_of_one_moment_share_the_moves(scene: Scene) -> None:
    """Both decide the same; who enters it second orders nothing."""
    await scene.publish(busy([bundle(number) for number in range(10)]), load_of("b"))
    first: list[Move] = []
    second: list[Move] = []
    one, other = scene.tasks(), scene.tasks(1e6)
    await asyncio.gather(one._round(actions(first)), other._round(actions(second)))
    assert one.balancer.metrics.moves == other.balancer.metrics.moves > 0
    ordered = [move.bundle for move in (*first, *second)]
    assert len(ordered) == len(set(ordered)) == one.balancer.metrics.moves


async def test_the_leader_warns_once_when_all_brokers_are_overloaded(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "magnetar.loadbalance.leader_tasks")
    scene.config = replace(scene.config, load_balancer_history_resource_percentage=0.0)
    registry = BrokerRegistry(scene.base.new_session(), Weights.of(scene.config))
    await scene.publish(busy([]))
    await registry.register(report("b:8080", 0.2, {}))
    tasks, said = scene.tasks(), []
    for usage in (0.2, 0.99, 0.99, 0.3, 0.2):
        await registry.publish(report("b:8080", usage, {}))
        caplog.clear()
        await tasks._round(actions([]))
        said += [each.getMessage() for each in caplog.records if "overloaded" in each.message]
        said.append("")
    warning, end = "all 2 brokers are overloaded: add brokers", "1 of 2 brokers are overloaded"
    assert said == ["", warning, "", "", end, "", ""]


async def test_a_later_leader_lets_rest_what_the_one_before_has_moved(scene: Scene) -> None:
    """F30: its clock is a day behind, and that of the machine says nothing."""
    await scene.publish(busy([bundle(0), bundle(1)]), load_of("b"))
    before: list[Move] = []
    await scene.tasks()._round(actions(before))
    assert len(before) == 1
    scene.pass_time(600.0)
    later: list[Move] = []
    tasks = scene.tasks(-86_400.0)
    await tasks._round(actions(later))
    assert {move.bundle for move in later}.isdisjoint({move.bundle for move in before})
    cooldown_until = tasks.balancer._cooldown_until[before[0].bundle]
    assert cooldown_until == pytest.approx(tasks._clock() + GRACE_S - 600.0, abs=1.0)
    scene.pass_time(1200.0)
    fresh = scene.tasks(3e6)
    await fresh._read_cooldowns()
    assert before[0].bundle not in fresh.balancer._cooldown_until


async def test_the_age_of_a_report_is_told_by_the_stores_clock(scene: Scene) -> None:
    """F24, F30: who was silent for an hour gets nothing, whatever its own clock says."""
    await scene.publish(load_of("silent", last_update_ms=1_900_000_000_000))
    scene.pass_time(3600.0)
    await scene.publish(busy([bundle(number) for number in range(10)]), load_of("b"))
    tasks, moved = scene.tasks(-1e6), list[Move]()
    await tasks._round(actions(moved))
    made_s = {name: broker.made_s for name, broker in tasks.balancer.state.brokers.items()}
    assert tasks._clock() - made_s["silent:8080"] == pytest.approx(3600.0)
    assert tasks._clock() - made_s["b:8080"] == pytest.approx(0.0)
    assert {move.target for move in moved} == {"b:8080"}


async def test_a_split_that_fails_is_not_the_trouble_of_others(scene: Scene) -> None:
    """It isn't under way for ever, and what is stored of a bundle that was cut goes."""
    names = ["t/bad/0x00000000_0x80000000", "t/good/0x00000000_0x80000000"]
    load = report("a:8080", 0.3, dict.fromkeys(names, 10 * MIB))
    for stats in load.stats.values():
        stats.topics = 5_000
    await scene.publish(load, load_of("b"))
    await scene.base.put(f"{BUNDLE_DATA_ROOT}/{names[1]}", b"{}")
    tasks, cut = scene.tasks(), list[Split]()
    for _ in range(8):
        await tasks._round(actions([], cut))
        scene.pass_time(60.0)
    assert [split.bundle for split in cut].count(names[0]) == 2, "again after four more rounds"
    assert [split.bundle for split in cut].count(names[1]) == 1
    assert not tasks.balancer._splitting
    assert not await scene.base.exists(f"{BUNDLE_DATA_ROOT}/{names[1]}")


async def test_a_move_that_fails_is_not_the_trouble_of_others(scene: Scene) -> None:
    await scene.publish(busy([bundle(number) for number in range(20)]), load_of("b"))
    tried: list[str] = []

    async def move(move: Move) -> bool:
        tried.append(move.bundle)
        raise RuntimeError("of the one who moves")

    tasks = scene.tasks()
    await tasks._round(replace(actions([]), move=move))
    assert len(tried) == tasks.balancer.metrics.moves == tasks.balancer.metrics.moves_failed >= 2
    assert not tasks.balancer._moving


async def test_an_older_report_is_not_told_after_a_newer_one(scene: Scene) -> None:
    """Lookups and rounds read the reports at the same time; one tells them."""
    await scene.publish(busy([bundle(0)]), load_of("b"))
    tasks = scene.tasks()
    told: list[str] = []
    tell = tasks.balancer.on_report

    def on_report(load: BrokerLoad, now_s: float, age_s: float = 0.0) -> None:
        told.append(load.broker_id)
        tell(load, now_s, age_s)

    tasks.balancer.on_report = on_report  # type: ignore[method-assign]
    await asyncio.gather(*(tasks.follow() for _ in range(5)))
    assert sorted(told) == ["a:8080", "b:8080"]
    value = await scene.base.get(f"{BROKERS_ROOT}/b:8080")
    assert value is not None
    document = orjson.loads(value.value) | {"msgRateIn": 5.0}
    await scene.base.put(f"{BROKERS_ROOT}/b:8080", orjson.dumps(document))
    while tasks.balancer.state.brokers["b:8080"].load.msg_rate_in != 5.0:
        await tasks.follow()
        await asyncio.sleep(0)
    assert sorted(told) == ["a:8080", "b:8080", "b:8080"]
