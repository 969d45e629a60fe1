"""Rack-aware placement: racks spread where there are several, and must be where it is enforced."""

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.placement import Adherence, RackAwarePlacement, RackRules
from magnetar.bookkeeper.client.placement.node_location import DEFAULT_RACK, rack_of
from magnetar.bookkeeper.client.placement.policy import choose_replacements
from magnetar.bookkeeper.client.placement.weighted_selection import WeightedRandomSelection
from magnetar.bookkeeper.client.quorum import write_sets
from magnetar.bookkeeper.errors import NotEnoughBookiesError

Cluster = dict[str, str]
ENFORCED = RackRules(enforce=True)


def racks(*sizes: int) -> Cluster:
    return {f"r{r}-{n}": f"/r{r}" for r, size in enumerate(sizes) for n in range(size)}


def make(cluster: Cluster, rules: RackRules | None = None, seed: int = 1) -> RackAwarePlacement:
    return RackAwarePlacement(
        rules or RackRules(), cluster.get, WeightedRandomSelection(random.Random(seed))
    )


def is_spread(cluster: Cluster, ensemble: Sequence[str], write_quorum: int, wanted: int) -> bool:
    return all(
        len({cluster.get(ensemble[slot], "") for slot in slots} - {""}) >= min(wanted, write_quorum)
        for slots in write_sets(len(ensemble), write_quorum)
    )


clusters = st.lists(
    st.sampled_from(["/r0", "/r1", "/r2", "/region/r3", ""]), min_size=2, max_size=6
).map(lambda found: {f"b{n}": path for n, path in enumerate(found)})
shapes = st.sampled_from([(3, 3, 2), (2, 2, 2), (4, 3, 2), (5, 3, 2), (3, 2, 2), (1, 1, 1)])
seeds = st.integers(0, 2**32)


@settings(max_examples=100, deadline=None)
@given(clusters, shapes, st.sampled_from([1, 2, 3]), seeds)
def test_enforced_racks_are_found_whenever_they_can_be(
    cluster: Cluster, quorums: tuple[int, int, int], wanted: int, seed: int
) -> None:
    size, write_quorum, _ = quorums
    placement = make(cluster, RackRules(wanted, enforce=True), seed)
    try:
        ensemble = placement.new_ensemble(*quorums, cluster)
    except NotEnoughBookiesError:
        usable = [bookie for bookie, path in cluster.items() if path]
        assert not any(
            is_spread(cluster, attempt, write_quorum, wanted)
            for attempt in permutations(usable, size)
        )
    else:
        assert len(set(ensemble)) == size
        assert all(cluster[bookie] for bookie in ensemble)
        assert is_spread(cluster, ensemble, write_quorum, wanted)
        assert placement.adherence(ensemble, *quorums[1:]) is Adherence.STRICT


@settings(max_examples=100, deadline=None)
@given(clusters, shapes, seeds, st.data())
def test_enforced_racks_hold_after_any_replacements(
    cluster: Cluster, quorums: tuple[int, int, int], seed: int, data: st.DataObject
) -> None:
    placement = make(cluster, ENFORCED, seed)
    try:
        ensemble = list(placement.new_ensemble(*quorums, cluster))
    except NotEnoughBookiesError:
        return
    for _ in range(5):
        slots = data.draw(st.sets(st.integers(0, len(ensemble) - 1), max_size=2))
        failed = {slot: ensemble[slot] for slot in slots}
        writable = set(cluster) - set(failed.values())
        chosen = choose_replacements(placement, ensemble, quorums[1], failed, writable)
        for slot, (_, newcomer) in chosen.items():
            assert newcomer in writable
            ensemble[slot] = newcomer
        assert len(set(ensemble)) == len(ensemble)
        assert is_spread(cluster, ensemble, quorums[1], 2)


@settings(max_examples=100, deadline=None)
@given(clusters, shapes, seeds)
def test_not_enforced_it_never_fails_while_there_are_bookies(
    cluster: Cluster, quorums: tuple[int, int, int], seed: int
) -> None:
    size, write_quorum, _ = quorums
    placement = make(cluster, seed=seed)
    if len(cluster) < size:
        with pytest.raises(NotEnoughBookiesError):
            placement.new_ensemble(*quorums, cluster)
        return
    ensemble = placement.new_ensemble(*quorums, cluster)
    assert len(set(ensemble)) == size
    others = set(cluster) - set(ensemble)
    newcomer = placement.replace_bookie(0, ensemble, write_quorum, others)
    assert newcomer in others if others else newcomer is None


def test_every_rack_gets_a_copy_if_there_are_as_many_as_copies() -> None:
    cluster = racks(4, 2, 2)
    placement = make(cluster)
    for _ in range(50):
        assert len({cluster[b] for b in placement.new_ensemble(3, 3, 2, cluster)}) == 3
        striped = placement.new_ensemble(6, 3, 2, cluster)
        assert is_spread(cluster, striped, 3, 3)


def test_a_replacement_comes_from_the_same_rack_then_from_a_new_one_then_from_any() -> None:
    cluster = racks(2, 2, 1)
    placement = make(cluster)
    ensemble = ["r0-0", "r1-0"]
    others = set(cluster).difference(ensemble)
    for newcomer in ("r0-1", "r2-0", "r1-1"):
        assert placement.replace_bookie(0, ensemble, 2, others) == newcomer
        others.remove(newcomer)
    assert placement.replace_bookie(0, ensemble, 2, others) is None
    enforced = make(cluster, ENFORCED)
    assert enforced.replace_bookie(0, ensemble, 2, {"r1-1"}) is None


def test_the_default_rack_is_a_rack_unless_enforced() -> None:
    cluster = racks(1) | {"a": "", "b": ""}
    assert "r0-0" in make(cluster).new_ensemble(2, 2, 2, cluster)
    with pytest.raises(NotEnoughBookiesError, match="at least 2 racks"):
        make(cluster, ENFORCED).new_ensemble(2, 2, 2, cluster)


def test_adherence() -> None:
    cluster = racks(2, 1) | {"nowhere": ""}
    free, enforced = make(cluster), make(cluster, ENFORCED)
    for ensemble, grades in {
        ("r0-0", "r1-0"): (Adherence.STRICT, Adherence.STRICT),
        ("r0-0", "r0-1"): (Adherence.SOFT, Adherence.FAIL),
        ("r0-0", "nowhere"): (Adherence.STRICT, Adherence.FAIL),
    }.items():
        assert (free.adherence(ensemble, 2, 2), enforced.adherence(ensemble, 2, 2)) == grades


def test_acks_from_several_racks() -> None:
    cluster = racks(2, 1)
    assert make(cluster).ack_spread(["r0-0", "r0-1", "r1-0"]) is None
    spread = make(cluster, RackRules(spread_acks=True)).ack_spread(["r0-0", "r0-1", "r1-0"])
    assert spread is not None
    assert not spread.is_wide(0b011, 0b111)
    assert spread.is_wide(0b101, 0b111)
    assert spread.is_wide(0b001, 0b011), "a write set in one rack can't span two"


def test_racks_of_paths() -> None:
    assert rack_of("r1") == rack_of("/r1/") == "/r1"
    assert rack_of("/region/r1") == "/region/r1"
    for nowhere in (None, "", "/", "/default-zone/default-upgrade-domain"):
        assert rack_of(nowhere) == DEFAULT_RACK
    with pytest.raises(ValueError, match="rack"):
        RackRules(min_racks=0)
