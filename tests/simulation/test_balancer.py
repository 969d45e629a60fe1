"""The balancer in small clusters: it converges, moves little, comes to rest, whatever happens.

``make simulate-balancer`` runs the large ones (``python -m tests.simulation.balancer.run``). Rules
that hold at every decision are in ``balancer/checks.py``; F and I are numbers of
docs/internals/cluster-faults.md.
"""

import random
from collections import Counter
from typing import Any

import pytest

from magnetar.loadbalance.config import (
    AVG_SHEDDER,
    OVERLOAD_SHEDDER,
    SHEDDERS,
    THRESHOLD_SHEDDER,
    TRANSFER_SHEDDER,
    UNIFORM_SHEDDER,
)
from magnetar.loadbalance.policies import IsolationPolicies, PlacementPolicies
from tests.simulation.balancer.loads import Skewed
from tests.simulation.balancer.scenarios import Run, begin, excess, is_even
from tests.simulation.simulator import seeds

MIXED_TROUBLE: dict[str, Any] = {
    "report_delay_s_max": 90.0,
    "report_loss": 0.2,
    "move_failure": 0.1,
    "move_s_max": 60.0,
}
LOOK_BELOW = {
    "lower_boundary_shedding_enabled": True,
    "load_balancer_bundle_unload_min_throughput_threshold": 1,  # a twentieth of 75 MB
}


def moved_usage(run: Run) -> float:
    return sum(run.world.rate[bundle] for _, bundle, _, _ in run.world.moved) * 1000 / 100e6


def busiest(run: Run, count: int) -> list[str]:
    brokers = sorted(run.world.brokers.values(), key=lambda each: -len(each.bundles))
    return [each.name for each in brokers[:count]]


# --- convergence, bounds, rest


@pytest.mark.parametrize("strategy", SHEDDERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_skewed_load_becomes_even_and_stays(strategy: str, seed: int) -> None:
    """I18: half of the brokers are new and empty. Then nothing moves any more."""
    run = begin(strategy, seed=seed)
    to_move = excess(run.world)
    run.hours(2)
    assert is_even(strategy, run.world), sorted(run.world.usages())
    assert moved_usage(run) < 1.3 * to_move  # hardly more than has to be
    assert run.watch.returns == 0
    before = run.moves
    run.hours(1)
    assert run.moves_since(before) <= 3  # of 300: a difference at the edge, seen by chance
    assert run.watch.violations == []


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_a_balanced_cluster_is_left_alone(strategy: str) -> None:
    """I19: five percent of noise for an hour."""
    run = begin(strategy, Skewed(300, 5 / 3 * 1000, random.Random(1)), empty=0.0)
    by_load = sorted(range(300), key=lambda each: -run.world.rate[each])
    names = list(run.world.brokers)
    for number, bundle in enumerate(by_load):  # there and back, so that sums are alike
        turn, place = divmod(number, 10)
        run.world.give(bundle, run.world.brokers[names[place if turn % 2 == 0 else 9 - place]])
    for broker in run.world.brokers.values():
        run.world.write_report(broker)
    run.world.elect()
    run.hours(1)
    assert run.moves == 0


@pytest.mark.parametrize("strategy", SHEDDERS)
@pytest.mark.parametrize("load", ["moving", "adversarial", "alternating"])
def test_moves_are_bounded_under_loads_that_change(strategy: str, load: str) -> None:
    """F26 and worse: twice an hour and bundle is the limit; who waits and sees moves far less."""
    run = begin(strategy, load)
    run.hours(2)
    counts = Counter(bundle for _, bundle, _, _ in run.world.moved)
    assert max(counts.values()) <= 4
    assert run.watch.violations == []
    if strategy in (AVG_SHEDDER, THRESHOLD_SHEDDER, TRANSFER_SHEDDER):
        assert run.moves <= 450  # of 1,200
        assert run.watch.returns <= 15


@pytest.mark.parametrize("strategy", [AVG_SHEDDER, TRANSFER_SHEDDER])
def test_a_spike_of_a_minute_moves_nothing(strategy: str) -> None:
    """I20."""
    run = begin(strategy, mean_usage=0.3, empty=0.0)
    run.hours(2)
    before = run.moves
    rates = list(run.world.rate)
    hot = set(run.world.brokers[busiest(run, 1)[0]].bundles)

    class Spike:
        def apply(self, world: Any) -> None:
            late = world.now_s > 7200 + 60
            world.rate = [
                rate * 4 if number in hot and not late else rate
                for number, rate in enumerate(rates)
            ]

    run.load = Spike()
    run.hours(0.5)
    assert run.moves == before


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_machines_of_three_sizes(strategy: str) -> None:
    run = begin(strategy, mixed_hardware=True, mean_usage=0.4)
    run.hours(3)
    assert run.watch.violations == []
    if strategy != UNIFORM_SHEDDER:  # it sees messages only: documented
        assert max(run.world.usages()) < 0.95


# --- trouble


@pytest.mark.parametrize("strategy", SHEDDERS)
@pytest.mark.parametrize("seed", seeds(2))
def test_everything_at_once_and_then_rest(strategy: str, seed: int) -> None:
    """Leaders change, two at a time; brokers die and join; reports come late or never."""
    run = begin(strategy, "moving", seed=seed, **MIXED_TROUBLE)
    world, rng = run.world, random.Random(seed)
    steady = Skewed(300, 1500.0, rng)
    for hour in range(6):
        run.hours(0.2)
        match rng.randrange(4):
            case 0 if len(world.brokers) > 6:
                world.kill(rng.choice(list(world.brokers)))
            case 1:
                world.add_broker(f"new{hour}:8080")
            case 2:
                old = world.leaders
                world.elect()
                world.leaders += old[:1]  # it hasn't heard that it isn't leader any more
            case _:
                world.brokers[rng.choice(list(world.brokers))].silent = rng.random() < 0.5
        run.hours(0.3)
        world.leaders = world.leaders[:1]
    assert run.watch.violations == []
    for broker in world.brokers.values():
        broker.silent = False
    world.calm()
    run.load = steady
    run.hours(2)
    before = run.moves
    run.hours(1)
    assert run.moves_since(before) <= 6
    assert run.watch.violations == []


@pytest.mark.parametrize("strategy", [AVG_SHEDDER, THRESHOLD_SHEDDER])
def test_a_rolling_restart(strategy: str) -> None:
    """F19: bundles move twice on average at most, and nobody ends up with everything."""
    run = begin(strategy, empty=0.0)
    run.hours(1)
    world = run.world
    placed, moved = world.counters["placed"], run.moves
    for name in list(world.brokers):
        world.drain(name)
        run.hours(0.02)
        world.add_broker(name)
        run.hours(0.05)
    total = world.counters["placed"] - placed + run.moves - moved
    assert total <= 2 * 300 * 1.1
    run.hours(2)
    assert is_even(strategy, world)
    assert run.watch.violations == []


def test_half_of_the_brokers_die_and_come_back() -> None:
    """F18, F14: with the leader; no broker ends with more than twice its share of the load."""
    run = begin(AVG_SHEDDER, empty=0.0)
    names = list(run.world.brokers)[:5]
    for name in names:
        run.world.kill(name)
    run.world.leaders = []
    run.world.run(run.load, 60)  # nobody answers lookups
    assert run.world.counters["placed"] == 0
    run.world.elect()
    run.hours(0.1)
    run.watch.check_served()
    for name in names:
        run.world.add_broker(name)
    run.hours(3)
    usages = run.world.usages()
    assert max(usages) < 2 * sum(usages) / len(usages)
    assert run.watch.violations == []


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_all_brokers_are_too_busy(strategy: str) -> None:
    """F22: no rotation, and metrics show it (the leader warns: test_unload_cooldowns.py)."""
    run = begin(strategy, mean_usage=2.0, empty=0.0)
    run.hours(2)
    assert run.moves <= 60
    metrics = run.world.leaders[0].balancer.metrics
    assert metrics.overloaded == metrics.brokers > 0


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_a_new_broker_in_a_balanced_cluster(strategy: str) -> None:
    """F23: all but Overload use it (Threshold if told to look below); that is documented."""
    run = begin(strategy, mean_usage=0.66, empty=0.0, settings=LOOK_BELOW)
    run.hours(2)
    newcomer = run.world.add_broker("new:8080")
    run.hours(2)
    usage = newcomer.usage(run.world.rate, 1000.0)
    if strategy == OVERLOAD_SHEDDER:
        assert usage < 0.25
    else:
        assert usage > 0.25
    assert run.watch.violations == []


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_a_silent_broker_gets_nothing_and_stops_nobody(strategy: str) -> None:
    """F24: an hour without a report; the others are balanced all the same."""
    run = begin(strategy, empty=0.5, settings=LOOK_BELOW)
    run.hours(0.01)
    run.world.brokers["b9:8080"].silent = True
    run.hours(1)
    run.world.add_broker("late0:8080")
    before = len(run.world.moved)
    run.hours(2)
    later = run.world.moved[before:]
    assert not {"b9:8080"} & {target for _, _, _, target in later}
    assert run.watch.violations == []
    if strategy not in (OVERLOAD_SHEDDER,):
        assert {target for _, _, _, target in later} >= {"late0:8080"}


@pytest.mark.parametrize("limit", [0.0, 1e5])
def test_a_wrong_limit_of_the_network(limit: float) -> None:
    """F25: 0, or so low that usage is far above 100 %: ignored."""
    run = begin(AVG_SHEDDER, empty=0.0, mean_usage=0.4)
    run.hours(2)
    before = run.moves
    for broker in run.world.brokers.values():
        broker.nic_limit = limit
    run.hours(1)
    assert run.moves_since(before) <= 3


def isolation(primary: list[str], secondary: list[str], limit: int) -> PlacementPolicies:
    document = {
        "namespaces": ["t/n[0-2]"],
        "primary": primary,
        "secondary": secondary,
        "auto_failover_policy": {"parameters": {"min_limit": str(limit)}},
    }
    return PlacementPolicies(isolation=IsolationPolicies.parse({"p": document}))


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_isolation_through_a_crash_and_a_return(strategy: str) -> None:
    """F28, F29, I25: secondaries serve only while there are too few primaries."""
    run = begin(strategy, empty=0.0)
    world = run.world
    world.set_policies(isolation(["b0", "b1"], ["b2"], 1))
    for bundle in range(300):  # as the change of a policy unloads what it is about
        world.give(bundle, None)
    run.hours(0.5)
    inside = range(3 * 32)

    def where() -> set[str]:
        return {owner.name for each in inside if (owner := world.owner[each]) is not None}

    assert where() == {"b0:8080", "b1:8080"}
    world.kill("b0:8080")
    run.hours(0.5)
    assert where() == {"b1:8080"}
    world.kill("b1:8080")
    run.hours(0.5)
    assert where() == {"b2:8080"}
    world.add_broker("b1:8080")
    placed = world.counters["placed"]
    run.hours(0.5)
    assert world.counters["placed"] == placed  # its return evicts nobody by itself
    assert run.watch.violations == []


def test_clocks_that_jump() -> None:
    """F30: an hour forth and back; what brokers say of the time is not believed."""
    run = begin(AVG_SHEDDER)
    run.hours(1)
    before = run.moves
    for jump_s in (3600.0, -3600.0, 0.0):
        run.world.clock_jump_s = jump_s
        run.hours(0.5)
    assert run.moves_since(before) <= 20
    assert run.watch.violations == []


@pytest.mark.parametrize("strategy", SHEDDERS)
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_the_clock_of_the_store_jumps(strategy: str, jump_s: float) -> None:
    """F30: while one leads, nothing moves twice; its own clock counts for what it has seen."""
    run = begin(strategy, "adversarial")
    run.hours(0.4)
    run.world.store_jump_s = jump_s
    run.hours(0.6)
    assert run.moves > 0
    assert run.watch.violations == []


@pytest.mark.parametrize("strategy", SHEDDERS)
@pytest.mark.parametrize("load", ["skewed", "adversarial"])
def test_two_leaders_at_the_same_time(strategy: str, load: str) -> None:
    """F15: both order moves for an hour; the note in the store keeps them from moving twice.

    Their own clocks are days apart.
    """
    run = begin(strategy, load)
    old = run.world.leaders
    run.world.elect()
    run.world.leaders += old
    run.hours(1)
    assert run.moves > 0
    assert run.watch.violations == []
    if load == "skewed":
        run.world.leaders = run.world.leaders[:1]
        run.hours(2)
        assert is_even(strategy, run.world)


@pytest.mark.parametrize("strategy", SHEDDERS)
def test_leaders_that_follow_each_other_every_ten_minutes(strategy: str) -> None:
    """What the ones before have moved rests, by the store's clock."""
    run = begin(strategy, "adversarial")
    for _ in range(12):
        run.hours(1 / 6)
        run.world.elect()
    assert run.moves > 0
    assert run.watch.violations == []


def test_a_seed_is_one_run() -> None:
    first, second = (begin(AVG_SHEDDER, "moving", seed=7, **MIXED_TROUBLE) for _ in range(2))
    first.hours(1)
    second.hours(1)
    assert first.world.moved == second.world.moved != []
