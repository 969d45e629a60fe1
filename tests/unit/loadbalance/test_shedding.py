"""Each strategy against values worked out by hand, and their known traps."""

from dataclasses import replace
from typing import Any

import pytest

from magnetar.loadbalance.model import BrokerLoad, Move, ResourceUsage
from tests.unit.loadbalance.clusters import MIB, balancer, bundle, moves, report, rounds

OVERLOAD, THRESHOLD = "OverloadShedder", "ThresholdShedder"
UNIFORM, AVG, TRANSFER = "UniformLoadShedder", "AvgShedder", "TransferShedder"


def ten(first: int, each: float) -> dict[str, float]:
    """Ten bundles of a size."""
    return {bundle(first + number): each for number in range(10)}


def made(strategy: str, *reports: BrokerLoad, **settings: Any) -> Any:
    return balancer(*reports, load_balancer_load_shedding_strategy=strategy, **settings)


def ends(found: list[Move]) -> list[tuple[str, str | None]]:
    return [(each.source, each.target) for each in found]


# --- OverloadShedder


def test_overload_takes_down_to_five_points_below_the_limit() -> None:
    # 100 MiB at 0.95: 100 * (0.95 - 0.85 + 0.05) = 15 MiB, two bundles of 10.
    it = made(OVERLOAD, report("a:1", 0.95, ten(0, 10 * MIB)), report("b:1", 0.1, {}))
    found = moves(it, 0.0)
    assert ends(found) == [("a:1", "b:1")] * 2
    assert {each.bundle for each in found} <= set(ten(0, 0.0))


@pytest.mark.parametrize(("usage", "count"), [(0.84, 0), (0.85, 1), (0.899, 1), (0.901, 2)])
def test_overload_at_its_limit(usage: float, count: int) -> None:
    # At 0.90 it is 10 MiB: one bundle. One is always taken to begin with.
    it = made(OVERLOAD, report("a:1", usage, ten(0, 10 * MIB)), report("b:1", 0.1, {}))
    assert len(moves(it, 0.0)) == count


def test_overload_spreads_over_the_idle() -> None:
    it = made(
        OVERLOAD,
        report("a:1", 0.99, ten(0, 10 * MIB)),
        *(report(f"{name}:1", 0.1, {}) for name in "bc"),
    )
    assert sorted(ends(moves(it, 0.0))) == [("a:1", "b:1"), ("a:1", "c:1")]


def test_overload_leaves_a_balanced_cluster_of_hot_brokers_alone() -> None:
    it = made(
        OVERLOAD, *(report(f"{n}:1", 0.95, ten(i * 10, 10 * MIB)) for i, n in enumerate("abc"))
    )
    assert rounds(it, 5) == [[]] * 5
    assert it.metrics.overloaded == it.metrics.brokers == 3


# --- ThresholdShedder


def test_threshold_takes_what_is_above_mean_and_threshold() -> None:
    # Mean 0.5; 0.9 - 0.5 - 0.1 + 0.05 = 0.35 of 1,000 MiB: 350, so four bundles of 100.
    it = made(THRESHOLD, report("a:1", 0.9, ten(0, 100 * MIB)), report("b:1", 0.1, {}))
    assert len(moves(it, 0.0)) == 4


@pytest.mark.parametrize(("high", "moved"), [(0.699, False), (0.701, True)])
def test_threshold_at_ten_points_above_the_mean(high: float, moved: bool) -> None:
    it = made(THRESHOLD, report("a:1", high, ten(0, 100 * MIB)), report("b:1", 0.5, {}))
    assert bool(moves(it, 0.0)) is moved


def test_threshold_does_not_act_on_what_it_has_done() -> None:
    """The reference: 90 to 10 ends inverted, where averages lag behind the moves."""
    bundles = {bundle(number): 10 * MIB for number in range(100)}
    it = made(THRESHOLD, report("a:1", 0.9, bundles), report("b:1", 0.1, {}))
    where = dict.fromkeys(bundles, "a:1")
    history = []
    for number in range(30):
        now_s = 60.0 * number
        for move in moves(it, now_s):
            where[move.bundle] = str(move.target)
            it.on_moved(move, now_s + 1)
        for name in ("a:1", "b:1"):
            its = {key: size for key, size in bundles.items() if where[key] == name}
            usage = len(its) / 100 * 0.8 + 0.1  # what they carry, above 10 % of their own
            it.on_report(report(name, usage, its), now_s + 59)
        history.append(sum(owner == "a:1" for owner in where.values()))
    assert history[0] in (64, 65)  # 0.35 of it went at once
    # 10 % of a's usage is its own and didn't go; so four more, once that has shown. Then no more.
    assert sorted(set(history), reverse=True) == [history[0], 60]
    assert history == sorted(history, reverse=True)


def test_threshold_moves_nothing_below_ten_mebibytes() -> None:
    small = report("a:1", 0.9, ten(0, 2 * MIB))  # 0.35 of 20 MiB is 7
    assert moves(made(THRESHOLD, small, report("b:1", 0.1, {})), 0.0) == []
    settings = {"load_balancer_bundle_unload_min_throughput_threshold": 6.9}
    assert len(moves(made(THRESHOLD, small, report("b:1", 0.1, {}), **settings), 0.0)) == 4


def test_threshold_takes_all_hot_brokers_in_one_round() -> None:
    it = made(
        THRESHOLD,
        *(
            report(f"a{n}:1", 0.9, {bundle(n * 10 + k): 100 * MIB for k in range(10)})
            for n in range(3)
        ),
        *(report(f"b{n}:1", 0.1, {}) for n in range(3)),
    )
    assert {source for source, _ in ends(moves(it, 0.0))} == {"a0:1", "a1:1", "a2:1"}


def test_threshold_looks_below_only_if_told() -> None:
    # Mean 0.65: nobody is 10 above, one is 30 below.
    reports = [
        *(
            report(f"a{n}:1", 0.7, {bundle(n * 10 + k): 100 * MIB for k in range(10)})
            for n in range(7)
        ),
        report("b:1", 0.3, {}),
    ]
    assert moves(made(THRESHOLD, *reports), 0.0) == []
    it = made(THRESHOLD, *reports, lower_boundary_shedding_enabled=True)
    found = moves(it, 0.0)  # 1,000 MiB * 0.1 * 0.5 = 50: one bundle
    assert len(found) == 1
    assert found[0].target == "b:1"


def test_threshold_counts_a_spike_for_a_tenth() -> None:
    it = made(THRESHOLD, report("a:1", 0.3, ten(0, 100 * MIB)), report("b:1", 0.3, {}))
    assert moves(it, 0.0) == []
    it.on_report(report("a:1", 1.0, ten(0, 100 * MIB)), 30.0)
    assert moves(it, 60.0) == []  # 0.37, mean 0.335


# --- UniformLoadShedder


def by_rate(broker: str, first: int, rate: float, count: int = 10) -> BrokerLoad:
    names = [bundle(first + number) for number in range(count)]
    return report(
        broker, 0.3, dict.fromkeys(names, 1000.0), rates=dict.fromkeys(names, rate / count)
    )


def test_uniform_takes_a_fifth_of_the_difference() -> None:
    # (40,000 - 10,000) * 0.2 = 6,000: one bundle of 4,000; a second one would be too much.
    it = made(UNIFORM, by_rate("a:1", 0, 40_000), by_rate("b:1", 10, 10_000))
    assert ends(moves(it, 0.0)) == [("a:1", "b:1")]


@pytest.mark.parametrize(
    ("high", "low", "count"),
    [
        (30_000, 20_000, 0),  # 50 % above, not more
        (30_100, 20_000, 1),  # 2,020 to go
        (6_000, 1_100, 0),  # 980 to go: not worth it
        (6_200, 1_100, 1),  # 1,020
    ],
)
def test_uniform_at_its_limits(high: float, low: float, count: int) -> None:
    it = made(
        UNIFORM,
        by_rate("a:1", 0, high, 100),
        by_rate("b:1", 200, low, 100),
        max_unload_bundle_num_per_shedding=1,
    )
    assert len(moves(it, 0.0)) == count


def test_uniform_goes_by_bytes_when_messages_are_even() -> None:
    names = [bundle(number) for number in range(20)]
    rates = dict.fromkeys(names, 1000.0)
    it = made(
        UNIFORM,
        report("a:1", 0.3, dict.fromkeys(names[:10], 5 * MIB), rates=rates),
        report("b:1", 0.3, dict.fromkeys(names[10:], MIB), rates=rates),
    )
    assert len(moves(it, 0.0)) == 1  # 50 MiB to 10: more than 4 times; 8 MiB may go
    it = made(
        UNIFORM,
        report("a:1", 0.3, dict.fromkeys(names[:10], 4 * MIB), rates=rates),
        report("b:1", 0.3, dict.fromkeys(names[10:], MIB), rates=rates),
    )
    assert moves(it, 0.0) == []  # 4 times, not more


def test_uniform_passes_over_a_broker_with_one_bundle() -> None:
    it = made(
        UNIFORM,
        by_rate("giant:1", 0, 90_000, count=1),
        by_rate("a:1", 10, 40_000),
        by_rate("b:1", 30, 1_000),
    )
    assert ends(moves(it, 0.0)) == [("a:1", "b:1")]


# --- AvgShedder


def pair(high: float, low: float) -> tuple[BrokerLoad, BrokerLoad]:
    return (
        replace(by_rate("a:1", 0, 40_000), cpu=ResourceUsage(high, 100)),
        replace(by_rate("b:1", 10, 10_000), cpu=ResourceUsage(low, 100)),
    )


@pytest.mark.parametrize(
    ("high", "low", "first"),
    [
        (60, 19, 2),  # 41 points: the second round
        (60, 20, 2),  # 40 points
        (60, 20.1, 8),
        (40, 25, 8),  # 15 points
        (40, 25.1, None),
    ],
)
def test_avg_waits_until_a_difference_lasts(high: float, low: float, first: int | None) -> None:
    it = made(AVG, *pair(high, low), max_unload_percentage=0.5)
    acted = [number for number, found in enumerate(rounds(it, 12), 1) if found]
    assert acted[:1] == ([] if first is None else [first])


def test_avg_moves_the_fraction_of_the_difference_to_the_partner() -> None:
    it = made(AVG, *pair(80, 20), max_unload_percentage=0.5)
    assert moves(it, 0.0) == []
    # (40,000 - 10,000) / 2 = 15,000: three bundles of 4,000
    assert ends(moves(it, 60.0)) == [("a:1", "b:1")] * 3


def test_avg_begins_to_count_anew_after_a_calm_round() -> None:
    it = made(AVG, *pair(60, 19))
    assert moves(it, 0.0) == []
    for report_now in pair(30, 19):
        it.on_report(report_now, 30.0)
    assert moves(it, 60.0) == []
    for report_now in pair(60, 19):
        it.on_report(report_now, 90.0)
    assert moves(it, 120.0) == []
    assert moves(it, 180.0) != []


def test_avg_moves_nothing_between_two_that_are_busy_in_turn() -> None:
    """F26: the pair differs in each round, but nobody is the busy one twice in a row."""
    a, b = ten(0, 10 * MIB), ten(10, 10 * MIB)
    it = made(AVG, report("a:1", 0.8, a), report("b:1", 0.2, b))
    for number in range(30):
        assert moves(it, 60.0 * number) == [], number
        usage = (0.2, 0.8) if number % 2 == 0 else (0.8, 0.2)
        for name, its, bundles in (("a:1", usage[0], a), ("b:1", usage[1], b)):
            it.on_report(report(name, its, bundles), 60.0 * number + 30)
    it.on_report(report("a:1", 0.8, a), 1799.0)
    it.on_report(report("b:1", 0.2, b), 1799.0)
    assert [bool(found) for found in rounds(it, 2, 1800.0)] == [False, True]


def test_avg_goes_by_bytes_when_messages_are_few() -> None:
    rates = {bundle(number): 1.0 for number in range(10)}
    it = made(
        AVG,
        report("a:1", 0.8, ten(0, MIB), rates=rates),
        report("b:1", 0.2, {}),
        max_unload_percentage=0.5,
    )
    rounds(it, 1)
    assert len(moves(it, 60.0)) == 3  # five would be half of the bytes, but four invert the usage
    it = made(AVG, report("a:1", 0.8, ten(0, MIB / 6), rates=rates), report("b:1", 0.2, {}))
    assert rounds(it, 20) == [[]] * 20  # 0.2 of 1.7 MiB: below 1 MiB a second


def test_avg_pairs_all_brokers_in_one_round() -> None:
    reports = []
    for number in range(4):
        high, low = pair(80 - number, 20 + number)
        names = [bundle(100 * number + each) for each in range(10)]
        stats = dict(zip(names, high.stats.values(), strict=True))
        reports += [
            replace(high, broker_id=f"a{number}:1", stats=stats, bundles=names),
            replace(low, broker_id=f"b{number}:1", stats={}, bundles=[], msg_rate_in=0.0),
        ]
    it = made(AVG, *reports)
    rounds(it, 1)
    assert set(ends(moves(it, 60.0))) == {(f"a{n}:1", f"b{n}:1") for n in range(4)}


def test_avg_goes_by_usage_where_machines_differ() -> None:
    """A small machine is full with less traffic than a large one that is idle."""
    small = {bundle(number): 2 * MIB for number in range(10)}
    large = {bundle(100 + number): 4 * MIB for number in range(10)}
    it = made(AVG, report("small:1", 0.9, small), report("large:1", 0.2, large))
    rounds(it, 1)
    # 20 MiB * (0.9 - 0.2) / 0.9 * 0.2 = 3.1 MiB: one bundle
    assert ends(moves(it, 60.0)) == [("small:1", "large:1")]


# --- TransferShedder


def test_transfer_waits_for_three_rounds_and_halves_the_difference() -> None:
    # Deviation of 0.9 and 0.1 is 0.4. (0.9 - 0.1) / 2 / 0.9 of 90 MiB is 40: four bundles of 9.
    it = made(TRANSFER, report("a:1", 0.9, ten(0, 9 * MIB)), report("b:1", 0.1, {}))
    assert [len(found) for found in rounds(it, 4)] == [0, 0, 0, 4]


@pytest.mark.parametrize(
    ("usages", "uneven"),
    [
        ([0.9, 0.38], True),  # 0.26
        ([0.9, 0.42], False),  # 0.24
        ([0.6, 0.6, 0.6, 0.6, 0.06], True),  # below an eighth of the mean
        ([0.6, 0.6, 0.6, 0.6, 0.20], False),
        ([0.3] * 11 + [0.86], True),  # above 0.85, and 0.25 above the mean
        ([0.7] * 11 + [0.86], False),
    ],
)
def test_what_transfer_calls_uneven(usages: list[float], uneven: bool) -> None:
    reports = [
        report(f"b{n}:1", usage, {bundle(n * 100 + k): 1 * MIB for k in range(20)})
        for n, usage in enumerate(usages)
    ]
    assert any(rounds(made(TRANSFER, *reports), 4)) is uneven


def test_transfer_takes_three_sources_a_round_and_rests_them() -> None:
    reports = [
        *(
            report(f"a{n}:1", 0.9, {bundle(n * 10 + k): 9 * MIB for k in range(10)})
            for n in range(5)
        ),
        *(report(f"b{n}:1", 0.05, {}) for n in range(5)),
    ]
    it = made(TRANSFER, *reports)
    first = rounds(it, 4)[3]
    assert len({each.source for each in first}) == 3
    second = moves(it, 240.0)
    assert {each.source for each in second} == {f"a{n}:1" for n in range(5)} - {
        each.source for each in first
    }


def test_transfer_ignores_a_broker_without_news_and_balances_the_others() -> None:
    silent = report("silent:1", 0.95, ten(100, 9 * MIB))
    it = made(TRANSFER, silent, report("a:1", 0.9, ten(0, 9 * MIB)), report("b:1", 0.05, {}))
    for number in range(1, 40):
        it.on_report(report("a:1", 0.9, ten(0, 9 * MIB)), 60.0 * number)
        it.on_report(report("b:1", 0.05, {}), 60.0 * number)
    found = rounds(it, 4, 60.0 * 39)[3]
    assert {each.source for each in found} == {"a:1"}


def test_transfer_swaps_where_a_bundle_alone_is_too_large() -> None:
    # 40 of 90 MiB may go, and the bundles have 45. One goes and one of 20 comes back.
    large, small = {bundle(1): 45 * MIB, bundle(2): 45 * MIB}, {bundle(3): 20 * MIB, bundle(4): 1.0}
    it = made(TRANSFER, report("a:1", 0.9, large), report("b:1", 0.1, small))
    found = rounds(it, 4)[3]
    assert sorted(ends(found)) == [("a:1", "b:1"), ("b:1", "a:1")]
    assert {each.bundle for each in found} > {bundle(3)}


def test_transfer_looks_further_than_the_ten_largest() -> None:
    bundles = {bundle(number): 50 * MIB for number in range(10)} | {bundle(20): 20 * MIB}
    it = made(
        TRANSFER,
        report("a:1", 0.9, bundles),
        report("b:1", 0.85, {bundle(90): 1.0}),
        report("c:1", 0.06, {bundle(91): 1.0}),
        load_balancer_broker_load_target_std=0.1,
    )
    assert rounds(it, 4)[3]


# --- rules for all of them

ALL = [OVERLOAD, THRESHOLD, UNIFORM, AVG, TRANSFER]


@pytest.mark.parametrize("strategy", ALL)
def test_a_broker_alone_or_with_one_bundle_keeps_it(strategy: str) -> None:
    it = made(strategy, report("a:1", 0.95, ten(0, 100 * MIB)))
    assert rounds(it, 12) == [[]] * 12
    giant = report("a:1", 0.95, {bundle(1): 1000 * MIB})
    it = made(strategy, giant, report("b:1", 0.05, {bundle(2): 1.0, bundle(3): 1.0}))
    assert rounds(it, 12) == [[]] * 12


@pytest.mark.parametrize("strategy", [OVERLOAD, AVG, TRANSFER])
def test_the_only_bundle_stays_though_its_average_is_small_yet(strategy: str) -> None:
    """What it carries over the last ten reports is a small part of what it carries now."""
    it = made(strategy, report("a:1", 0.05, {bundle(1): 9 * MIB}), report("b:1", 0.05, {}))
    for _ in range(20):
        it.on_report(report("a:1", 0.05, {bundle(1): 9 * MIB}), 0.0)
    it.on_report(report("a:1", 0.95, {bundle(1): 300 * MIB}), 1.0)
    assert rounds(it, 12, 10.0) == [[]] * 12


@pytest.mark.parametrize("strategy", ALL)
def test_a_giant_bundle_is_not_sent_around(strategy: str) -> None:
    """F27: wherever it is, its broker is the hot one."""
    giant = report("a:1", 0.95, {bundle(1): 1000 * MIB, bundle(4): 1.0})
    it = made(strategy, giant, report("b:1", 0.05, {bundle(2): 1.0, bundle(3): 1.0}))
    assert bundle(1) not in {each.bundle for found in rounds(it, 12) for each in found}


@pytest.mark.parametrize("strategy", ALL)
def test_what_is_pinned_excluded_or_of_the_system_stays(strategy: str) -> None:
    bundles = {
        f"{namespace}/0x{number:08x}_0xffffffff": 50 * MIB
        for namespace in ("pulsar/a:1", "sla-monitor/c/a:1", "pulsar/system", "quiet/x")
        for number in (0, 8)
    }
    it = made(
        strategy,
        report("a:1", 0.95, bundles),
        report("b:1", 0.05, {}),
        load_balancer_shedding_excluded_namespaces=frozenset({"quiet/x"}),
    )
    assert rounds(it, 12) == [[]] * 12


@pytest.mark.parametrize("strategy", ALL)
def test_a_moved_bundle_rests_for_half_an_hour(strategy: str) -> None:
    """The report goes on to say that the source is hot and has everything."""
    it = made(strategy, report("a:1", 0.95, ten(0, 100 * MIB)), report("b:1", 0.05, {}))
    seen: dict[str, float] = {}
    for number in range(100):
        now_s = 60.0 * number
        for move in moves(it, now_s):
            assert now_s - seen.get(move.bundle, -9999.0) >= 1800
            seen[move.bundle] = now_s
            it.on_moved(move, now_s)
        it.on_report(report("a:1", 0.95, ten(0, 100 * MIB)), now_s + 30)
        it.on_report(report("b:1", 0.05, {}), now_s + 30)
    assert seen


@pytest.mark.parametrize("strategy", ALL)
def test_a_new_leader_lets_moved_bundles_rest(strategy: str) -> None:
    reports = [report("a:1", 0.95, ten(0, 100 * MIB)), report("b:1", 0.05, {})]
    old, new = made(strategy, *reports), made(strategy, *reports)
    ages_s = {}
    for number in range(4):
        for move in moves(old, 60.0 * number):
            old.on_moved(move, 60.0 * number)
            ages_s[move.bundle] = 300.0 - 60.0 * number
    assert ages_s
    new.restore_cooldowns(ages_s, 300.0)
    new.restore_cooldowns(dict.fromkeys(ages_s, 1700.0), 300.0)  # what is known stays known
    bare = made(strategy, *reports)
    later, unaware = (
        {each.bundle for found in rounds(leader, 20, 300.0) for each in found}
        for leader in (new, bare)
    )
    assert later.isdisjoint(ages_s)
    assert not unaware.isdisjoint(ages_s)


@pytest.mark.parametrize("strategy", ALL)
def test_a_failed_move_is_taken_back_and_tried_again_later(strategy: str) -> None:
    it = made(strategy, report("a:1", 0.95, ten(0, 100 * MIB)), report("b:1", 0.05, {}))
    first = next(found for number in range(9) if (found := moves(it, 60.0 * number)))
    for move in first:
        assert it.state.owners[move.bundle] == "b:1"
        it.on_move_failed(move, 540.0)
    assert set(it.state.owners.values()) == {"a:1"}
    assert it.state.brokers["b:1"].usage == pytest.approx(0.05)
    assert it.state.brokers["a:1"].usage == pytest.approx(0.95)
    assert it.metrics.moves_failed == len(first)
    it.on_report(report("a:1", 0.95, ten(0, 100 * MIB)), 690.0)
    it.on_report(report("b:1", 0.05, {}), 690.0)
    again = rounds(it, 12, 700.0)
    failed = {each.bundle for each in first}
    assert failed.isdisjoint(each.bundle for found in again[:3] for each in found)
    assert any(again)


@pytest.mark.parametrize("strategy", ALL)
def test_a_round_moves_as_many_as_it_may(strategy: str) -> None:
    it = made(
        strategy,
        report("a:1", 0.95, {bundle(number): MIB for number in range(500)}),
        report("b:1", 0.05, {}),
        load_balancer_max_unloads_per_round=3,
    )
    counts = [len(found) for found in rounds(it, 9)]
    assert max(counts) == 3


@pytest.mark.parametrize("strategy", ALL)
def test_a_silent_move_fails_after_five_minutes(strategy: str) -> None:
    it = made(strategy, report("a:1", 0.95, ten(0, 100 * MIB)), report("b:1", 0.05, {}))
    rounds(it, 30)
    assert it.metrics.moves_failed > 0


@pytest.mark.parametrize("strategy", ALL)
def test_a_round_that_nobody_reads_to_its_end_leaves_no_expectation(strategy: str) -> None:
    it = made(strategy, report("a:1", 0.95, ten(0, 10 * MIB)), report("b:1", 0.05, {}))
    told = None
    for number in range(9):
        round_now = it.round(60.0 * number)
        told = next((move for move in round_now if move is not None), None)
        round_now.close()
        if told is not None:
            break
    assert told is not None
    assert [name for name, owner in it.state.owners.items() if owner == "b:1"] == [told.bundle]


@pytest.mark.parametrize("strategy", ALL)
def test_off_is_off(strategy: str) -> None:
    reports = [report("a:1", 0.95, ten(0, 100 * MIB)), report("b:1", 0.05, {})]
    for key in ("load_balancer_enabled", "load_balancer_shedding_enabled"):
        assert rounds(made(strategy, *reports, **{key: False}), 9) == [[]] * 9
