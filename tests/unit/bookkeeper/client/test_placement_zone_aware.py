"""Zone-aware placement against the rules written down a second time, by brute force."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.placement import Adherence, ZoneAwarePlacement, ZoneRules
from magnetar.bookkeeper.client.placement.node_location import place_of
from magnetar.bookkeeper.client.placement.policy import choose_replacements
from magnetar.bookkeeper.client.placement.weighted_selection import WeightedRandomSelection
from magnetar.bookkeeper.client.quorum import write_sets
from magnetar.bookkeeper.errors import NotEnoughBookiesError, PlacementRuleError
from magnetar.bookkeeper.service_info import DEFAULT_LOCATION

Cluster = dict[str, str]  # bookie -> path


def grid(zones: int, domains: int, each: int = 1) -> Cluster:
    return {
        f"z{zone}-u{domain}-{n}": f"/z{zone}/u{domain}"
        for zone in range(zones)
        for domain in range(domains)
        for n in range(each)
    }


def make(cluster: Cluster, rules: ZoneRules | None = None, seed: int = 1) -> ZoneAwarePlacement:
    return ZoneAwarePlacement(
        rules or ZoneRules(), cluster.get, WeightedRandomSelection(random.Random(seed))
    )


# The rules, in the plainest words


def zone(cluster: Cluster, bookie: str) -> str:
    return cluster[bookie].split("/")[1]


def is_default(cluster: Cluster, bookie: str) -> bool:
    path = cluster.get(bookie)
    return path is None or path == DEFAULT_LOCATION or path.count("/") != 2


def is_safe(cluster: Cluster, ensemble: Sequence[str], write_quorum: int, min_zones: int) -> bool:
    """docs/spec/storage.md, "Safety", 41."""
    for slots in write_sets(len(ensemble), write_quorum):
        members = [ensemble[slot] for slot in slots]
        if any(is_default(cluster, bookie) for bookie in members):
            return False
        zones, crowded = spread(cluster, members)
        if zones < min_zones or crowded:
            return False
    return True


def is_legal(
    cluster: Cluster,
    ensemble: Sequence[str],
    slot: int,
    newcomer: str,
    write_quorum: int,
    min_zones: int,
) -> bool:
    if newcomer in ensemble or is_default(cluster, newcomer):
        return False
    after = [*ensemble]
    after[slot] = newcomer
    for slots in write_sets(len(ensemble), write_quorum):
        if slot not in slots:
            continue
        zones_now, crowded_now = spread(cluster, [ensemble[s] for s in slots])
        zones, crowded = spread(cluster, [after[s] for s in slots])
        if zones < min(min_zones, zones_now) or crowded > crowded_now:
            return False
    return True


def spread(cluster: Cluster, members: Sequence[str]) -> tuple[int, int]:
    """Zones, and those of them whose several bookies are all in one upgrade domain."""
    known = [bookie for bookie in members if not is_default(cluster, bookie)]
    zones = {zone(cluster, bookie) for bookie in known}
    crowded = 0
    for name in zones:
        paths = [cluster[bookie] for bookie in known if zone(cluster, bookie) == name]
        crowded += len(paths) > 1 and len(set(paths)) == 1
    return len(zones), crowded


def expected(
    cluster: Cluster,
    ensemble: Sequence[str],
    slot: int,
    candidates: Iterable[str],
    write_quorum: int,
    rules: ZoneRules,
) -> set[str]:
    """All bookies of the most preferred kind."""
    size = len(ensemble)
    legal = [
        bookie
        for bookie in candidates
        if is_legal(cluster, ensemble, slot, bookie, write_quorum, rules.min_zones)
    ]
    companions = {
        ensemble[other]
        for slots in write_sets(size, write_quorum)
        if slot in slots
        for other in slots
        if other != slot and not is_default(cluster, ensemble[other])
    }
    taken = {cluster[bookie] for bookie in companions}
    desired = min(write_quorum, rules.desired_zones)
    for reach in [*range(desired - 1, rules.min_zones - 2, -1), 0]:
        near = {
            zone(cluster, ensemble[(slot + step) % size])
            for step in range(-reach, reach + 1)
            if step % size and not is_default(cluster, ensemble[(slot + step) % size])
        }
        far = {bookie for bookie in legal if zone(cluster, bookie) not in near}
        if unused := {bookie for bookie in far if cluster[bookie] not in taken}:
            return unused
        if far:
            return far
    return set()


# Clusters and shapes

PATHS = [f"/z{z}/u{u}" for z in range(4) for u in range(3)]
paths = st.sampled_from([*PATHS, DEFAULT_LOCATION, "/flat", "/z0/u0/too-deep", ""])
clusters = st.lists(paths, min_size=3, max_size=9).map(
    lambda found: {f"b{n}": path for n, path in enumerate(found)}
)
small_clusters = clusters.filter(lambda cluster: len(cluster) <= 7)
shapes = st.sampled_from([(3, 3, 2), (6, 3, 2), (4, 4, 3), (5, 5, 3), (4, 4, 2), (8, 4, 3)])
rule_sets = st.sampled_from(
    [ZoneRules(), ZoneRules(1, 1), ZoneRules(1, 3), ZoneRules(2, 2), ZoneRules(2, 4)]
)
seeds = st.integers(0, 2**32)


@settings(max_examples=100, deadline=None)
@given(small_clusters, st.sampled_from([(3, 3, 2), (6, 3, 2)]), rule_sets, seeds)
def test_an_ensemble_is_found_whenever_there_is_one(
    cluster: Cluster, quorums: tuple[int, int, int], rules: ZoneRules, seed: int
) -> None:
    size, write_quorum, _ = quorums
    try:
        ensemble = make(cluster, rules, seed).new_ensemble(*quorums, cluster)
    except NotEnoughBookiesError:
        usable = [bookie for bookie in cluster if not is_default(cluster, bookie)]
        found = (
            is_safe(cluster, attempt, write_quorum, rules.min_zones)
            for attempt in permutations(usable, size)
        )
        assert not any(found)
    else:
        assert len(set(ensemble)) == size
        assert is_safe(cluster, ensemble, write_quorum, rules.min_zones)
        assert make(cluster, rules).adherence(ensemble, *quorums[1:]) is not Adherence.FAIL


@settings(max_examples=100, deadline=None)
@given(clusters, shapes, rule_sets, seeds, st.data())
def test_the_rules_hold_after_any_replacements(
    cluster: Cluster,
    quorums: tuple[int, int, int],
    rules: ZoneRules,
    seed: int,
    data: st.DataObject,
) -> None:
    placement = make(cluster, rules, seed)
    try:
        ensemble = list(placement.new_ensemble(*quorums, cluster))
    except NotEnoughBookiesError:
        return
    down: set[str] = set()
    for _ in range(6):
        failed_slots = data.draw(st.sets(st.integers(0, len(ensemble) - 1), max_size=3))
        failed = {slot: ensemble[slot] for slot in failed_slots}
        down = data.draw(st.sets(st.sampled_from(sorted(cluster)))) | set(failed.values())
        writable = set(cluster) - down
        chosen = choose_replacements(placement, ensemble, quorums[1], failed, writable)
        for slot, (old, new) in chosen.items():
            assert (failed[slot], new in writable) == (old, True)
            ensemble[slot] = new
        assert len(set(ensemble)) == len(ensemble)
        assert is_safe(cluster, ensemble, quorums[1], rules.min_zones)


@settings(max_examples=150, deadline=None)
@given(clusters, shapes, rule_sets, seeds, st.data())
def test_a_replacement_is_of_the_most_preferred_kind_and_found_if_there_is_one(
    cluster: Cluster,
    quorums: tuple[int, int, int],
    rules: ZoneRules,
    seed: int,
    data: st.DataObject,
) -> None:
    """Of any ensemble, also one whose bookies have moved since, or that is against the rules."""
    size, write_quorum, _ = quorums
    if len(cluster) < size:
        return
    ensemble = data.draw(st.permutations(sorted(cluster)))[:size]
    slot = data.draw(st.integers(0, size - 1))
    excluded = data.draw(st.sets(st.sampled_from(sorted(cluster)), max_size=2))
    others = set(cluster) - set(ensemble) - excluded
    newcomer = make(cluster, rules, seed).replace_bookie(slot, ensemble, write_quorum, others)
    wanted = expected(cluster, ensemble, slot, others, write_quorum, rules)
    if newcomer is None:
        assert not wanted
    else:
        assert newcomer in wanted


@settings(max_examples=150, deadline=None)
@given(clusters, shapes, rule_sets, st.data())
def test_adherence_fails_exactly_when_a_rule_is_broken(
    cluster: Cluster, quorums: tuple[int, int, int], rules: ZoneRules, data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum = quorums
    if len(cluster) < size:
        return
    ensemble = data.draw(st.permutations(sorted(cluster)))[:size]
    grade = make(cluster, rules).adherence(ensemble, write_quorum, ack_quorum)
    safe = is_safe(cluster, ensemble, write_quorum, rules.min_zones)
    assert (grade is Adherence.FAIL) == (not safe)
    if safe:
        sets = [[ensemble[s] for s in slots] for slots in write_sets(size, write_quorum)]
        desired = min(write_quorum, rules.desired_zones)
        best = all(
            len({zone(cluster, b) for b in members}) >= desired
            and len({cluster[b] for b in members}) == write_quorum
            for members in sets
        )
        assert (grade is Adherence.STRICT) == best


# What the rules are for


@pytest.mark.parametrize("quorums", [(3, 3, 2), (6, 3, 2), (4, 4, 2)])
def test_with_three_zones_every_write_set_gets_all_of_them(quorums: tuple[int, int, int]) -> None:
    cluster = grid(3, 3, 2)
    placement = make(cluster)
    used: set[str] = set()
    for _ in range(200):
        ensemble = placement.new_ensemble(*quorums, cluster)
        assert placement.adherence(ensemble, *quorums[1:]) is Adherence.STRICT
        used.update(ensemble)
    assert used == set(cluster)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (6, 3, 2)])
def test_a_lost_zone_and_one_bookie_more_are_survived(quorums: tuple[int, int, int]) -> None:
    """At no step does a write set lose its ack quorum, and the rules hold after each."""
    cluster = grid(3, 3, 2)
    size, write_quorum, ack_quorum = quorums
    for seed in range(30):
        rng = random.Random(seed)
        placement = make(cluster, seed=seed)
        ensemble = list(placement.new_ensemble(*quorums, cluster))
        alive = set(cluster)
        lost_zone = rng.choice(["z0", "z1", "z2"])
        for lost in ({b for b in cluster if zone(cluster, b) == lost_zone}, {"one more"}):
            gone = {rng.choice(ensemble)} if lost == {"one more"} else lost
            alive -= gone
            for slots in write_sets(size, write_quorum):
                assert sum(ensemble[slot] in alive for slot in slots) >= ack_quorum
            failed = {slot: b for slot, b in enumerate(ensemble) if b in gone}
            chosen = choose_replacements(placement, ensemble, write_quorum, failed, alive)
            assert chosen.keys() == failed.keys()
            for slot, (_, newcomer) in chosen.items():
                ensemble[slot] = newcomer
            assert set(ensemble) <= alive
            assert is_safe(cluster, ensemble, write_quorum, 2)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (6, 3, 2), (4, 4, 3)])
def test_a_rolling_restart_by_upgrade_domain_costs_no_ack_quorum(
    quorums: tuple[int, int, int],
) -> None:
    """One closed domain takes at most one bookie of a write set: nobody has to be replaced."""
    cluster = grid(2, 3, 2)
    placement = make(cluster)
    size, write_quorum, ack_quorum = quorums
    for _ in range(50):
        ensemble = placement.new_ensemble(*quorums, cluster)
        for closed in set(cluster.values()):
            for slots in write_sets(size, write_quorum):
                open_slots = [s for s in slots if cluster[ensemble[s]] != closed]
                assert len(open_slots) >= write_quorum - 1 >= ack_quorum


def test_a_zone_outage_moves_ledgers_to_the_minimum_and_new_ones_come_back() -> None:
    cluster = grid(3, 2, 2)
    placement = make(cluster)
    ensemble = placement.new_ensemble(3, 3, 2, cluster)
    gone = {b for b in cluster if zone(cluster, b) == "z1"}
    slot = next(s for s, b in enumerate(ensemble) if b in gone)
    newcomer = placement.replace_bookie(slot, ensemble, 3, set(cluster) - gone - set(ensemble))
    assert newcomer is not None
    moved = [newcomer if s == slot else b for s, b in enumerate(ensemble)]
    assert placement.adherence(moved, 3, 2) is Adherence.SOFT
    assert placement.adherence(placement.new_ensemble(3, 3, 2, cluster), 3, 2) is Adherence.STRICT


def test_a_failed_bookie_of_another_slot_still_counts_where_it_stands() -> None:
    """Both bookies of zone 1 fail, and only zone 0 is left: one of them can't be replaced."""
    cluster = grid(1, 4) | {"x": "/z1/u0", "y": "/z1/u1"}
    placement = make(cluster)
    failed = {1: "x", 2: "y"}
    chosen = choose_replacements(placement, ["z0-u0-0", "x", "y"], 3, failed, cluster)
    assert len(chosen) == 1


# Refusals


@pytest.mark.parametrize(
    ("quorums", "reason"),
    [((2, 2, 2), "write quorum above the 2 zones"), ((5, 3, 2), "multiple of the write quorum")],
)
def test_strict_preconditions(quorums: tuple[int, int, int], reason: str) -> None:
    cluster = grid(3, 3)
    with pytest.raises(PlacementRuleError, match=reason):
        make(cluster).check(*quorums)
    with pytest.raises(PlacementRuleError, match=reason):
        make(cluster).new_ensemble(*quorums, cluster)
    make(cluster, ZoneRules(strict=False)).check(*quorums)


def test_legal_examples_of_the_specification() -> None:
    placement = make(grid(3, 2))
    placement.check(3, 3, 2)
    placement.check(6, 3, 2)


@pytest.mark.parametrize("bad", [(3, 2), (0, 3)])
def test_more_zones_at_least_than_desired(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="zones per write quorum"):
        ZoneRules(*bad)
    with pytest.raises(ValueError, match="strict"):
        ZoneRules(strict=False, spread_acks=True)


def test_the_default_fault_domain_is_never_used() -> None:
    cluster = grid(1, 3) | {"lost": DEFAULT_LOCATION, "flat": "/z1"}
    with pytest.raises(NotEnoughBookiesError, match=r"/z0/u0.*/z0/u2"):
        make(cluster).new_ensemble(3, 3, 2, [*cluster, "never heard of"])
    cluster["z1"] = "/z1/u0"
    assert "z1" in make(cluster).new_ensemble(3, 3, 2, cluster)
    ensemble = ["z0-u0-0", "z1", "z0-u1-0"]
    assert make(cluster).replace_bookie(0, ensemble, 3, ["lost", "flat"]) is None


def test_without_strict_rules_choice_is_random_and_checked() -> None:
    cluster = grid(1, 3) | {"lost": DEFAULT_LOCATION}
    placement = make(cluster, ZoneRules(strict=False))
    ensemble = placement.new_ensemble(4, 4, 2, cluster)
    assert set(ensemble) == set(cluster)
    assert placement.adherence(ensemble, 4, 2) is Adherence.FAIL
    assert placement.replace_bookie(0, ensemble[:3], 3, {ensemble[3]}) == ensemble[3]


def test_places_are_read_at_each_choice() -> None:
    cluster = {"a": "/z0/u0", "b": "/z0/u1", "c": "/z0/u2"}
    placement = make(cluster)
    with pytest.raises(NotEnoughBookiesError):
        placement.new_ensemble(3, 3, 2, cluster)
    cluster["c"] = "/z1/u0"
    assert set(placement.new_ensemble(3, 3, 2, cluster)) == set(cluster)


def test_a_free_slot_elsewhere_counts_for_what_it_may_become() -> None:
    """Only one bookie of the rarer zone: the choice goes back if it began wrongly."""
    cluster = grid(1, 3) | {"rare": "/z1/u0"}
    for seed in range(30):
        assert "rare" in make(cluster, seed=seed).new_ensemble(3, 3, 2, cluster)


def test_acks_must_span_zones_only_when_asked_to() -> None:
    cluster = grid(3, 1) | {"lost": DEFAULT_LOCATION}
    ensemble = ["z0-u0-0", "z1-u0-0", "lost"]
    assert make(cluster).ack_spread(ensemble) is None
    spread = make(cluster, ZoneRules(spread_acks=True)).ack_spread(ensemble)
    assert spread is not None
    assert (spread.zones, spread.zones_min) == ((0b001, 0b010), 2)
    assert spread.is_wide(0b011, 0b111)
    assert not spread.is_wide(0b101, 0b111)


def test_paths() -> None:
    assert place_of("zone/ud") == place_of("/zone//ud/") == place_of("/zone/ud")
    defaults = {place_of(p) for p in (None, "", "/", "/z", "/a/b/c", DEFAULT_LOCATION)}
    assert defaults == {place_of("/default-zone/ud3")}


def test_a_hopeless_search_ends_soon_however_many_domains_there_are() -> None:
    """Domains that nobody uses are alike: trying one of a zone stands for all of them."""
    asked: Counter[str] = Counter()

    class Counting(WeightedRandomSelection):
        def pick(self, candidates: Sequence[str], weights: Mapping[str, float] | None) -> str:
            asked["picks"] += 1
            return super().pick(candidates, weights)

    cluster = grid(1, 300)
    placement = ZoneAwarePlacement(ZoneRules(), cluster.get, Counting(random.Random(1)))
    with pytest.raises(NotEnoughBookiesError):
        placement.new_ensemble(6, 3, 2, cluster)
    assert asked["picks"] < 20
