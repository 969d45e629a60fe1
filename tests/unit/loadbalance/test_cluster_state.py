"""What the leader believes, under any order of reports, decisions, failures and deaths."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.loadbalance.config import PLACEMENTS, SHEDDERS
from magnetar.loadbalance.model import Move, namespace_of
from magnetar.loadbalance.policies import pinned_broker
from tests.unit.loadbalance.clusters import MIB, balancer, bundle, report


def test_an_expected_move_counts_until_a_report_is_old_enough() -> None:
    made = balancer(report("a:1", 0.8, {bundle(1): 40.0, bundle(2): 60.0}), report("b:1", 0.1, {}))
    a, b = made.state.brokers["a:1"], made.state.brokers["b:1"]
    made.state.add_pending(bundle(1), "a:1", "b:1", 100.0)
    # 40 of 100 bytes: 0.32 of usage
    assert [a.usage, b.usage] == pytest.approx([0.48, 0.42])
    assert (a.throughput, b.throughput) == (60.0, 40.0)
    assert made.state.owners[bundle(1)] == "b:1"
    # Half of it shows after some seconds: the expectation is not added to that.
    made.on_report(report("a:1", 0.64, {bundle(2): 60.0}), 110.0)
    made.on_report(report("b:1", 0.26, {bundle(1): 40.0}), 110.0)
    assert [a.usage, b.usage] == pytest.approx([0.48, 0.42])
    assert a.in_cooldown(159.0)
    made.on_report(report("a:1", 0.5, {bundle(2): 60.0}), 160.0)
    made.on_report(report("b:1", 0.4, {bundle(1): 40.0}), 160.0)
    assert (a.usage, b.usage) == (0.5, 0.4)
    assert not a.in_cooldown(160.0)


def test_a_report_that_showed_the_bundle_is_believed_after_two_minutes() -> None:
    made = balancer(report("a:1", 0.8, {bundle(1): 100.0}), report("b:1", 0.1, {}))
    made.state.add_pending(bundle(1), "a:1", "b:1", 100.0)
    made.on_report(report("b:1", 0.9, {bundle(1): 100.0}), 105.0)
    b = made.state.brokers["b:1"]
    list(made.state.settle(219.0))
    assert b.usage == pytest.approx(0.9)
    assert b.expected
    list(made.state.settle(220.0))
    assert not b.expected
    assert not b.in_cooldown(220.0)


def test_a_bundle_that_came_elsewhere_is_there() -> None:
    made = balancer(*(report(f"{name}:1", 0.1, {}) for name in "abc"))
    made.state.add_pending(bundle(1), None, "b:1", 0.0)
    made.on_report(report("c:1", 0.1, {bundle(1): 1.0}), 1.0)
    assert made.state.owners == {bundle(1): "c:1"}
    assert not made.state.brokers["b:1"].placed


def test_a_source_that_reports_late_does_not_take_its_bundle_back() -> None:
    made = balancer(report("a:1", 0.8, {bundle(1): 1.0}), report("b:1", 0.1, {}))
    made.state.add_pending(bundle(1), "a:1", "b:1", 0.0)
    made.on_report(report("a:1", 0.8, {bundle(1): 1.0}), 1.0)
    assert made.state.owners == {bundle(1): "b:1"}
    made.on_broker_gone("b:1")
    assert made.state.owners == {bundle(1): "a:1"}


def test_a_bundle_is_not_counted_twice_once_it_is_reported() -> None:
    made = balancer(report("a:1", 0.1, {}), report("b:1", 0.1, {}))
    made.state.add_pending(bundle(1), None, "a:1", 0.0)
    a = made.state.brokers["a:1"]
    assert a.long_rate == 100.0  # of a bundle that nobody knows
    made.on_report(report("a:1", 0.1, {bundle(1): 7000.0}), 5.0)
    assert a.long_rate == 7.0


brokers = [f"b{number}:1" for number in range(4)]
bundles = [
    *(bundle(number, f"t/n{number % 3}") for number in range(12)),
    *(f"pulsar/{name}/0x00000000_0xffffffff" for name in brokers[:2]),
    *(bundle(number, "pulsar/system") for number in range(2)),
]
steps = st.one_of(
    st.tuples(
        st.just("report"),
        st.sampled_from(brokers),
        st.floats(0, 1),
        st.dictionaries(st.sampled_from(bundles), st.floats(0, 100 * MIB), max_size=8),
    ),
    st.tuples(st.just("gone"), st.sampled_from(brokers)),
    st.tuples(st.just("place"), st.sampled_from(bundles)),
    st.tuples(st.just("round"), st.booleans()),
    st.tuples(st.just("forget"), st.sampled_from(bundles)),
    st.tuples(st.just("wait"), st.sampled_from([5.0, 60.0, 300.0, 2000.0])),
)


def check(made: Any) -> None:
    state = made.state
    counts: dict[str, Counter[str]] = {}
    for name, broker in state.owners.items():
        assert broker in state.brokers
        counts.setdefault(namespace_of(name), Counter())[broker] += 1
    assert counts == state.spread
    for broker, its in state.brokers.items():
        assert all(state.owners[name] == broker for name in its.placed)
        for figure in ("usage", "rate", "throughput", "long_rate"):
            total = sum(getattr(each, figure) for each in its.expected.values())
            assert getattr(its.total, figure) == pytest.approx(total, abs=1e-3)
        assert min(its.usage, its.rate, its.throughput, its.long_rate) >= 0
    assert sum(len(each.placed) for each in state.brokers.values()) <= len(state.owners)


def check_move(made: Any, move: Move) -> None:
    namespace = namespace_of(move.bundle)
    assert pinned_broker(namespace) is None
    assert namespace != "pulsar/system"
    assert move.target not in (None, move.source)
    source, target = made.state.brokers[move.source], made.state.brokers[str(move.target)]
    gone, come = source.expected[move.bundle], target.expected[move.bundle]
    # What one loses the other gets: the sum of all loads is kept.
    for figure in ("usage", "rate", "throughput"):
        assert getattr(gone, figure) == -getattr(come, figure)


@given(st.sampled_from(SHEDDERS), st.sampled_from(PLACEMENTS), st.lists(steps, max_size=40))
def test_books_add_up_whatever_happens(
    shedder: str, placement: str, events: list[tuple[Any, ...]]
) -> None:
    made = balancer(
        load_balancer_load_shedding_strategy=shedder,
        load_balancer_load_placement_strategy=placement,
        load_balancer_bundle_unload_min_throughput_threshold=0.1,
        load_balancer_avg_shedder_hit_count_high_threshold=1,
        load_balancer_shedding_condition_hit_count_threshold=0,
    )
    now_s, moved = 0.0, dict[str, float]()
    for event in events:
        match event:
            case ("report", broker, usage, its):
                made.on_report(report(broker, usage, its), now_s)
            case ("gone", broker):
                made.on_broker_gone(broker)
            case ("place", name):
                chosen = made.place(name, now_s)
                assert chosen is None or chosen in made.state.brokers
            case ("round", succeeds):
                for move in made.round(now_s):
                    if move is None:
                        continue
                    check_move(made, move)
                    assert now_s - moved.get(move.bundle, -9999.0) >= 1800
                    if succeeds:
                        moved[move.bundle] = now_s
                        made.on_moved(move, now_s)
                    else:
                        made.on_move_failed(move, now_s)
            case ("forget", name):
                made.forget_bundles([name])
                moved.pop(name, None)
                assert name not in made.state.owners
            case ("wait", seconds):
                now_s += seconds
        check(made)
