"""Placement: filters and strategies (docs/internals/cluster-faults.md: I14, I24, I25)."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.loadbalance.config import PLACEMENTS
from magnetar.loadbalance.model import BundleData, TimeAverage
from magnetar.loadbalance.policies import IsolationPolicies, PlacementPolicies
from tests.unit.loadbalance.clusters import balancer, bundle, report

LEAST_RATE = "LeastLongTermMessageRate"
LEAST_USAGE = "LeastResourceUsageWithWeight"


def isolated(primary: list[str], secondary: list[str], limit: int = 1) -> PlacementPolicies:
    document = {
        "namespaces": ["acme/.*"],
        "primary": primary,
        "secondary": secondary,
        "auto_failover_policy": {"parameters": {"min_limit": str(limit)}},
    }
    return PlacementPolicies(isolation=IsolationPolicies.parse({"p": document}))


def test_nothing_is_placed_before_the_policies_are_known() -> None:
    made = balancer(report("a:1", 0.1, {}))
    made._policies_known = False
    assert made.place(bundle(1), 0.0) is None


def test_nobody_lives() -> None:
    made = balancer()
    assert made.place(bundle(1), 0.0) is None
    assert made.metrics.unplaced == 1


@pytest.mark.parametrize("strategy", PLACEMENTS)
def test_a_heartbeat_goes_to_its_broker_or_nowhere(strategy: str) -> None:
    made = balancer(
        report("a:1", 0.9, {}),
        report("b:1", 0.1, {}),
        load_balancer_load_placement_strategy=strategy,
    )
    assert made.place("pulsar/a:1/0x00000000_0xffffffff", 0.0) == "a:1"
    assert made.place("sla-monitor/c/b:1/0x00000000_0xffffffff", 0.0) == "b:1"
    assert made.place("pulsar/c:1/0x00000000_0xffffffff", 0.0) is None


@pytest.mark.parametrize("strategy", PLACEMENTS)
def test_a_placed_bundle_is_placed_there_again_until_reports_disagree(strategy: str) -> None:
    made = balancer(
        *(report(f"b{number}:1", 0.1, {}) for number in range(20)),
        load_balancer_load_placement_strategy=strategy,
    )
    first = made.place(bundle(1), 0.0)
    assert first is not None
    assert {made.place(bundle(1), 10.0) for _ in range(10)} == {first}
    # Its report of a minute later doesn't have it: it was never asked, or lost it again.
    made.on_report(report(first, 0.1, {}), 60.0)
    assert bundle(1) not in made.state.owners
    gone = made.place(bundle(2), 61.0)
    assert gone is not None
    made.on_broker_gone(gone)
    assert made.place(bundle(2), 62.0) not in (None, gone)


@pytest.mark.parametrize("strategy", [LEAST_RATE, LEAST_USAGE])
@pytest.mark.parametrize("brokers", [2, 3, 7])
def test_many_bundles_before_any_report_are_even(strategy: str, brokers: int) -> None:
    made = balancer(
        *(
            report(f"b{number}:1", 0.1, {bundle(number, "x/y"): 1000.0})
            for number in range(brokers)
        ),
        load_balancer_load_placement_strategy=strategy,
        load_balancer_distribute_bundles_evenly_enabled=strategy == LEAST_USAGE,
    )
    counts = Counter(made.place(bundle(number), 0.0) for number in range(50))
    assert sum(counts.values()) == 50
    assert max(counts.values()) - min(counts.values()) <= 1


def test_bundles_of_a_namespace_go_where_it_has_the_fewest() -> None:
    made = balancer(
        report("a:1", 0.1, {bundle(1): 1.0, bundle(2): 1.0}),
        report("b:1", 0.8, {bundle(3): 9e6}),
        report("c:1", 0.1, {bundle(4): 1.0, bundle(5): 1.0}),
    )
    assert made.place(bundle(9), 0.0) == "b:1"


def test_least_rate_counts_a_long_time() -> None:
    made = balancer(
        report("a:1", 0.1, {bundle(1, "x/y"): 1.0}, rates={bundle(1, "x/y"): 10.0}),
        report("b:1", 0.1, {bundle(2, "x/y"): 1.0}, rates={bundle(2, "x/y"): 20.0}),
        load_balancer_load_placement_strategy=LEAST_RATE,
    )
    # Now a has 100 and b nothing; over all samples a has 19, b 18.
    for _ in range(9):
        made.on_report(
            report("a:1", 0.1, {bundle(1, "x/y"): 1.0}, rates={bundle(1, "x/y"): 10.0}), 1.0
        )
        made.on_report(
            report("b:1", 0.1, {bundle(2, "x/y"): 1.0}, rates={bundle(2, "x/y"): 20.0}), 1.0
        )
    made.on_report(
        report("a:1", 0.1, {bundle(1, "x/y"): 1.0}, rates={bundle(1, "x/y"): 100.0}), 2.0
    )
    made.on_report(report("b:1", 0.1, {bundle(2, "x/y"): 1.0}, rates={bundle(2, "x/y"): 0.0}), 2.0)
    assert made.state.brokers["a:1"].long_rate == pytest.approx(200 / 11)
    assert made.state.brokers["b:1"].long_rate == pytest.approx(200 / 11)
    made.on_report(report("b:1", 0.1, {bundle(2, "x/y"): 1.0}, rates={bundle(2, "x/y"): 0.0}), 3.0)
    assert made.place(bundle(9), 3.0) == "b:1"


def test_least_rate_avoids_overloaded_brokers_while_it_can() -> None:
    reports = [
        report("a:1", 0.9, {bundle(1, "x/y"): 1.0}),
        report("b:1", 0.5, {bundle(2, "x/y"): 9e6}),
    ]
    made = balancer(*reports, load_balancer_load_placement_strategy=LEAST_RATE)
    assert made.place(bundle(9), 0.0) == "b:1"
    hot = balancer(
        reports[0],
        replace(reports[1], cpu=reports[0].cpu),
        load_balancer_load_placement_strategy=LEAST_RATE,
        load_balancer_distribute_bundles_evenly_enabled=False,
    )
    assert {hot.place(bundle(number), 0.0) for number in range(9)} == {"a:1"}


def test_a_busy_winner_is_chosen_again_without_the_wishes() -> None:
    # By namespace counts only a is left, and it is at 90 %.
    made = balancer(
        report("a:1", 0.9, {}),
        report("b:1", 0.1, {bundle(1): 1.0}),
        load_balancer_load_placement_strategy=LEAST_USAGE,
    )
    assert made.place(bundle(9), 0.0) == "b:1"


@pytest.mark.parametrize("strategy", PLACEMENTS)
def test_a_winner_that_is_no_busier_than_all_others_stays_the_winner(strategy: str) -> None:
    """A machine at 100 % under all brokers: wishes cost nothing that chance would save."""
    for seed in range(20):
        made = balancer(
            report("a:1", 0.99, {}),
            report("b:1", 0.98, {}),
            load_balancer_load_placement_strategy=strategy,
            seed=seed,
        )
        counts = Counter(made.place(bundle(number), 0.0) for number in range(8))
        assert counts == {"a:1": 4, "b:1": 4}


@pytest.mark.parametrize("strategy", PLACEMENTS)
def test_a_busy_winner_never_yields_to_a_busy_one(strategy: str) -> None:
    for seed in range(20):
        made = balancer(
            report("a:1", 0.9, {}),
            report("b:1", 0.9, {bundle(1): 1.0}),
            report("c:1", 0.2, {bundle(2): 1.0}),
            load_balancer_load_placement_strategy=strategy,
            seed=seed,
        )
        assert made.place(bundle(9), 0.0) == "c:1"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ([0.10, 0.60, 0.70, 0.80, 0.80], {"b0:1"}),  # mean 0.60: only 0.10 is 10 below
        ([0.40, 0.40, 0.40, 0.40, 0.69, 0.70], {"b0:1", "b1:1", "b2:1", "b3:1"}),  # none is
        ([0.50, 0.50], {"b0:1", "b1:1"}),
    ],
)
def test_least_usage_takes_one_clearly_below_the_mean_and_never_one_above(
    usage: list[float], expected: set[str]
) -> None:
    chosen = set()
    for seed in range(60):
        made = balancer(
            *(report(f"b{number}:1", its, {}) for number, its in enumerate(usage)),
            load_balancer_load_placement_strategy=LEAST_USAGE,
            seed=seed,
        )
        chosen.add(made.place(bundle(1), 0.0))
    assert chosen == expected


def test_looking_up_does_not_age_the_averages() -> None:
    made = balancer(
        report("a:1", 0.2, {bundle(1): 1e6}),
        report("b:1", 0.8, {bundle(2): 1e6}),
        load_balancer_load_placement_strategy=LEAST_USAGE,
    )
    before = made.state.brokers["b:1"].settled_average(5.0, 0.9)
    for number in range(100):
        made.place(bundle(number, "x/y"), 5.0)
    assert made.state.brokers["b:1"].settled_average(5.0, 0.9) == before


def test_the_moving_average_goes_by_time_not_by_reports() -> None:
    made = balancer(report("a:1", 1.0, {}))
    state = made.state.brokers["a:1"]
    made.on_report(report("a:1", 0.0, {}), 10.0)
    assert state.settled_average(10.0, 0.9) == 1.0
    assert state.settled_average(15.0, 0.9) == pytest.approx(0.9)
    made.on_report(report("a:1", 0.0, {}), 15.0)
    made.on_report(report("a:1", 0.0, {}), 15.0)
    assert state.settled_average(190.0, 0.9) == pytest.approx(0.9**36)


@pytest.mark.parametrize("strategy", PLACEMENTS)
def test_isolation_binds_even_when_nobody_is_left(strategy: str) -> None:
    made = balancer(
        report("b1:1", 0.99, {}),
        report("b2:1", 0.1, {}),
        policies=isolated(["b1"], []),
        load_balancer_load_placement_strategy=strategy,
    )
    assert made.place(bundle(1, "acme/x"), 0.0) == "b1:1"
    assert made.place(bundle(1, "public/x"), 0.0) == "b2:1"
    made.on_broker_gone("b1:1")
    assert made.place(bundle(2, "acme/x"), 0.0) is None


def test_a_policy_that_changes_forgets_what_was_placed() -> None:
    made = balancer(report("b1:1", 0.1, {}), report("b2:1", 0.1, {}), policies=isolated(["b1"], []))
    assert made.place(bundle(1, "acme/x"), 0.0) == "b1:1"
    made.on_policies(isolated(["b2"], []))
    assert made.place(bundle(1, "acme/x"), 0.0) == "b2:1"


def test_draining_brokers_get_nothing_and_stale_ones_only_if_all_are() -> None:
    made = balancer(report("a:1", 0.1, {}, draining=True), report("b:1", 0.9, {}))
    assert {made.place(bundle(number), 0.0) for number in range(9)} == {"b:1"}
    made.on_report(report("c:1", 0.9, {}), 1900.0)  # b's report is older than half an hour
    assert {made.place(bundle(number), 1900.0) for number in range(20, 29)} == {"c:1"}
    assert {made.place(bundle(number), 9000.0) for number in range(40, 60)} == {"b:1", "c:1"}


def test_broker_modes() -> None:
    made = balancer(
        report("a:1", 0.1, {}, non_persistent_topics_enabled=False),
        report("b:1", 0.1, {}, persistent_topics_enabled=False),
    )
    assert made.place(bundle(1), 0.0) == "a:1"
    assert made.place(bundle(2), 0.0, non_persistent=True) == "b:1"


def test_full_brokers_and_old_versions() -> None:
    made = balancer(
        report("a:1", 0.1, {bundle(1, "x/y"): 1.0, bundle(2, "x/y"): 1.0}, version="4.0.9"),
        report("b:1", 0.1, {}, version="4.0.10"),
        report("c:1", 0.1, {}, version="4.1-rc1"),
        load_balancer_broker_max_topics=1,
        prefer_later_versions=True,
    )
    assert made.place(bundle(9), 0.0) == "c:1"
    made.on_broker_gone("c:1")
    assert made.place(bundle(10), 0.0) == "b:1"
    made.on_report(report("c:1", 0.1, {}, version="unknown"), 0.0)
    assert {made.place(bundle(number), 0.0) for number in range(20, 30)} == {"b:1", "c:1"}


def test_a_group_is_kept_apart_by_domain_and_the_rest_is_even() -> None:
    policies = PlacementPolicies(
        domains={"a:1": "d1", "b:1": "d1", "c:1": "d2", "d:1": "d2"},
        groups={"t/x": "G", "t/y": "g"},
    )
    made = balancer(
        *(report(f"{name}:1", 0.1, {}) for name in "abcd"),
        policies=policies,
        failure_domains_enabled=True,
    )
    where = {
        namespace: {made.place(bundle(number, namespace), 0.0) for number in range(8)}
        for namespace in ("t/x", "t/y")
    }
    assert sorted(map(sorted, where.values())) == [["a:1", "b:1"], ["c:1", "d:1"]]  # type: ignore[arg-type]


def test_excluded_namespaces_take_turns() -> None:
    made = balancer(
        *(report(f"{name}:1", 0.1, {}) for name in "abc"),
        load_balancer_shedding_excluded_namespaces=frozenset({"t/n"}),
    )
    assert Counter(made.place(bundle(number), 0.0) for number in range(9)) == dict.fromkeys(
        ("a:1", "b:1", "c:1"), 3
    )


def test_a_restored_average_and_a_quota_count_where_nothing_is_known() -> None:
    made = balancer(
        report("a:1", 0.1, {}),
        report("b:1", 0.1, {}),
        load_balancer_load_placement_strategy=LEAST_RATE,
        load_balancer_distribute_bundles_evenly_enabled=False,
    )
    heavy = BundleData(TimeAverage(10, 10, 1e4), TimeAverage(1000, 900, 1e4))
    made.restore(bundle(1), heavy)
    first = made.place(bundle(1), 0.0)
    others = {made.place(bundle(number), 0.0) for number in range(2, 40)}
    assert others == {"a:1", "b:1"} - {first}


names = [f"b{number}:1" for number in range(6)]


@given(
    st.sampled_from(PLACEMENTS),
    st.dictionaries(st.sampled_from(names), st.floats(0, 1.2), min_size=1),
    st.sets(st.sampled_from(names)),
    st.sets(st.sampled_from(names)),
    st.sets(st.sampled_from(names)),
    st.integers(0, 1000),
    st.booleans(),
)
def test_a_placement_never_leaves_what_is_allowed(
    strategy: str,
    live: dict[str, float],
    primary: set[str],
    secondary: set[str],
    draining: set[str],
    seed: int,
    domains: bool,
) -> None:
    policies = replace(
        isolated(sorted(primary), sorted(secondary), 2),
        groups={"acme/x": "g", "t/x": "g"},
        domains={"b1:1": "d"},
    )
    made = balancer(
        *(report(name, usage, {}, draining=name in draining) for name, usage in live.items()),
        policies=policies,
        seed=seed,
        load_balancer_load_placement_strategy=strategy,
        failure_domains_enabled=domains,
    )
    alive = primary & live.keys()
    allowed: dict[str, Any] = {
        "acme/x": alive if len(alive) >= 2 else (alive | secondary) & live.keys(),
        "t/x": live.keys() - primary,
    }
    for number in range(12):
        for namespace, its in allowed.items():
            chosen = made.place(bundle(number, namespace), 1.0)
            if its - draining:
                assert chosen in its - draining
            else:
                assert chosen is None
    assert sum(len(each.placed) for each in made.state.brokers.values()) == len(made.state.owners)
