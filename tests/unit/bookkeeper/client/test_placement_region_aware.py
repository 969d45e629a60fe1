"""Region-aware placement spreads evenly."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.placement import (
    Adherence,
    PlacementConfig,
    RegionAwarePlacement,
    RegionRules,
)
from magnetar.bookkeeper.client.placement.config import REGION_AWARE
from magnetar.bookkeeper.client.placement.weighted_selection import WeightedRandomSelection
from magnetar.bookkeeper.client.quorum import write_sets
from magnetar.bookkeeper.errors import NotEnoughBookiesError, PlacementRuleError

Cluster = dict[str, str]
seeds = st.integers(0, 2**32)
clusters = st.lists(
    st.sampled_from(["/a/1", "/a/2", "/b/1", "/b/2", "/c/1"]), min_size=3, max_size=9
).map(lambda found: {f"b{n}": path for n, path in enumerate(found)})


def make(cluster: Cluster, seed: int = 1, min_regions: int = 2) -> RegionAwarePlacement:
    selection = WeightedRandomSelection(random.Random(seed))
    return RegionAwarePlacement(RegionRules(min_regions), cluster.get, selection)


def region(cluster: Cluster, bookie: str) -> str:
    return cluster[bookie].split("/")[1]


@settings(max_examples=200, deadline=None)
@given(clusters, st.sampled_from([(2, 2, 2), (3, 3, 3), (4, 4, 3), (6, 3, 3)]), seeds)
def test_regions_have_as_even_shares_as_their_bookies_allow(
    cluster: Cluster, quorums: tuple[int, int, int], seed: int
) -> None:
    """As Pulsar's: no region has two more than another that still has an unused bookie."""
    has = Counter(region(cluster, bookie) for bookie in cluster)
    try:
        ensemble = make(cluster, seed).new_ensemble(*quorums, cluster)
    except NotEnoughBookiesError:
        most = max(has.values())
        # Too few, or one region would have a whole write set for itself.
        assert len(cluster) < quorums[0] or len(cluster) - most < quorums[0] // 2 + 1
        return
    assert len(set(ensemble)) == quorums[0]
    share = Counter(region(cluster, bookie) for bookie in ensemble)
    free = [name for name in has if has[name] > share[name]]
    assert all(share[name] + 1 >= max(share.values()) for name in free)
    if len(has) > 1:
        for slots in write_sets(quorums[0], quorums[1]):
            assert len({region(cluster, ensemble[slot]) for slot in slots}) >= 2
        assert make(cluster).adherence(ensemble, *quorums[1:]) is Adherence.STRICT


def test_racks_of_a_region_are_spread_too() -> None:
    cluster = {f"{r}{k}{n}": f"/{r}/{k}" for r in "ab" for k in "12" for n in "xyz"}
    for seed in range(50):
        ensemble = make(cluster, seed).new_ensemble(4, 4, 3, cluster)
        assert {cluster[bookie] for bookie in ensemble} == {"/a/1", "/a/2", "/b/1", "/b/2"}


@settings(max_examples=100, deadline=None)
@given(clusters, seeds)
def test_a_replacement_is_of_the_same_rack_then_region(cluster: Cluster, seed: int) -> None:
    placement = make(cluster, seed)
    try:
        ensemble = placement.new_ensemble(3, 3, 3, cluster)
    except NotEnoughBookiesError:
        return
    candidates = set(cluster) - set(ensemble)
    found = placement.replace_bookie(0, ensemble, 3, candidates)
    if not candidates:
        assert found is None
        return
    assert found is not None
    places = {cluster[bookie] for bookie in candidates}
    own = cluster[ensemble[0]]
    if own in places:
        assert cluster[found] == own
    elif any(place.split("/")[1] == region(cluster, ensemble[0]) for place in places):
        assert region(cluster, found) == region(cluster, ensemble[0])


def test_one_region_alone_has_all_of_it() -> None:
    """Bookies without a place are in a region of their own, as in Pulsar."""
    cluster = {f"b{n}": "/a/1" for n in range(3)}
    assert set(make(cluster).new_ensemble(3, 3, 3, cluster)) == set(cluster)
    nowhere: Cluster = dict.fromkeys(cluster, "")
    assert set(make(nowhere).new_ensemble(3, 3, 3, nowhere)) == set(cluster)


@pytest.mark.parametrize(
    ("quorums", "min_regions", "is_good"),
    [
        *(((3, 3, 2), 2, False), ((3, 3, 3), 2, True), ((4, 4, 3), 2, True)),
        *(((2, 2, 1), 2, False), ((2, 2, 1), 1, True), ((3, 3, 2), 1, True)),
        *(((3, 3, 3), 3, True), ((6, 6, 4), 3, False)),
    ],
)
def test_what_is_acknowledged_must_survive(
    quorums: tuple[int, int, int], min_regions: int, is_good: bool
) -> None:
    """The conditions of RegionAwareEnsemblePlacementPolicy.newEnsemble."""
    config = PlacementConfig(REGION_AWARE, regions=RegionRules(min_regions))
    if is_good:
        config.check(*quorums)
    else:
        with pytest.raises(PlacementRuleError, match="ack quorum"):
            config.check(*quorums)


def test_acks_may_have_to_span_regions() -> None:
    cluster = {"x": "/a/1", "y": "/a/2", "z": "/b/1"}
    rules = RegionRules(2, spread_acks=True)
    placement = RegionAwarePlacement(rules, cluster.get, WeightedRandomSelection(random.Random(1)))
    rule = placement.ack_spread(["x", "y", "z"])
    assert rule is not None
    assert sorted(rule.zones) == [0b011, 0b100]
