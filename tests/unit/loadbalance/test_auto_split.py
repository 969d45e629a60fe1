"""When a bundle is cut, and how (docs/internals/cluster-faults.md: I21, F27)."""

from typing import Any

import pytest

from magnetar.loadbalance.balancer import Balancer
from magnetar.loadbalance.model import BrokerLoad, BundleStats, Split
from tests.unit.loadbalance.clusters import MIB, balancer, report

WIDE = "t/n/0x00000000_0x40000000"


def owner(stats: dict[str, BundleStats], name: str = "a:1") -> BrokerLoad:
    return BrokerLoad(name, stats=stats, bundles=sorted(stats))


def after(made: Balancer, rounds: int, count: int | None = 4) -> list[Split]:
    """What the last of so many rounds says."""
    found: list[Split] = []
    for _ in range(rounds):
        found = made.splits(lambda namespace: count)
    return found


@pytest.mark.parametrize(
    ("stats", "algorithm"),
    [
        (BundleStats(topics=1001), "topic_count_equally_divide"),
        (BundleStats(topics=2, consumers=600, producers=401), "topic_count_equally_divide"),
        (BundleStats(20_000, 10_001, topics=2), "flow_or_qps_equally_divide"),
        (BundleStats(0, 0, 60 * MIB, 41 * MIB, topics=2), "flow_or_qps_equally_divide"),
        # both too many, the messages by more
        (BundleStats(90_000, 0, topics=1001), "flow_or_qps_equally_divide"),
    ],
)
def test_what_exceeds_a_limit_for_four_rounds_is_cut(stats: BundleStats, algorithm: str) -> None:
    made = balancer(owner({WIDE: stats}), report("b:1", 0.1, {}))
    assert after(made, 3) == []
    found = after(made, 1)
    assert [(each.bundle, each.owner, each.algorithm, each.unload) for each in found] == [
        (WIDE, "a:1", algorithm, True)
    ]
    assert after(made, 9) == []  # it is being cut


@pytest.mark.parametrize(
    "stats",
    [
        BundleStats(topics=1000),
        BundleStats(topics=2, consumers=500, producers=500),
        BundleStats(20_000, 10_000, topics=2),
        BundleStats(0, 0, 50 * MIB, 50 * MIB, topics=2),
        BundleStats(500_000, 0, topics=1),  # one topic: no cut helps
    ],
)
def test_what_is_within_its_limits_or_one_topic_is_not_cut(stats: BundleStats) -> None:
    assert after(balancer(owner({WIDE: stats})), 9) == []


def test_a_calm_round_begins_the_count_anew() -> None:
    made = balancer(owner({WIDE: BundleStats(topics=2000)}))
    after(made, 3)
    made.on_report(owner({WIDE: BundleStats(topics=2)}), 1.0)
    after(made, 1)
    made.on_report(owner({WIDE: BundleStats(topics=2000)}), 2.0)
    assert after(made, 3) == []
    assert len(after(made, 1)) == 1


def test_a_namespace_has_128_bundles_at_most_with_those_being_cut() -> None:
    stats = {f"t/n/0x{n:07x}0_0x{n:07x}8": BundleStats(topics=2000) for n in range(8)}
    assert len(after(balancer(owner(stats)), 4, count=125)) == 3
    assert after(balancer(owner(stats)), 4, count=128) == []
    assert after(balancer(owner(stats)), 4, count=None) == []  # nobody knows


def test_ten_in_a_round_the_largest_first() -> None:
    stats = {f"t/n{n}/0x00000000_0xffffffff": BundleStats(topics=2000 + n) for n in range(15)}
    found = after(balancer(owner(stats)), 4)
    assert [each.bundle for each in found] == [
        f"t/n{n}/0x00000000_0xffffffff" for n in range(14, 4, -1)
    ]


def test_what_can_not_be_divided_is_left() -> None:
    names = ["t/n/0x00000007_0x00000008", "pulsar/a:1/0x00000000_0xffffffff"]
    assert after(balancer(owner(dict.fromkeys(names, BundleStats(topics=2000)))), 9) == []


def test_the_parts_stay_where_nobody_else_is_or_the_setting_says_so() -> None:
    stats = {WIDE: BundleStats(topics=2000)}
    assert not after(balancer(owner(stats)), 4)[0].unload
    settings: dict[str, Any] = {"load_balancer_auto_unload_split_bundles_enabled": False}
    both = balancer(owner(stats), report("b:1", 0.1, {}), **settings)
    assert not after(both, 4)[0].unload


def test_settings() -> None:
    stats = {WIDE: BundleStats(topics=2, consumers=5000)}
    off = {"load_balancer_auto_bundle_split_enabled": False}
    assert after(balancer(owner(stats), **off), 9) == []  # type: ignore[arg-type]
    assert after(balancer(owner(stats), load_balancer_namespace_bundle_max_sessions=-1), 9) == []
    halves = balancer(owner(stats), default_namespace_bundle_split_algorithm="range_equally_divide")
    assert after(halves, 4)[0].algorithm == "range_equally_divide"


def test_a_cut_bundle_is_forgotten_and_a_failed_cut_is_tried_again() -> None:
    made = balancer(owner({WIDE: BundleStats(topics=2000)}), report("b:1", 0.1, {}))
    split = after(made, 4)[0]
    made.on_split_failed(split)
    assert after(made, 3) == []
    assert after(made, 1) == [split]
    made.on_split(split)
    assert after(made, 9) == []
    assert WIDE not in made.state.owners
    assert WIDE not in made.state.bundles
    parts = {f"t/n/{each}": BundleStats(topics=1000) for each in ("0x00000000_0x2", "0x2_0x4")}
    made.on_report(owner(parts), 9.0)
    assert after(made, 9) == []
