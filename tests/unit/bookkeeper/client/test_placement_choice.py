"""Weights of free space, bookies to avoid, and the way from settings to a policy."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import pytest

from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import HealthConfig, LedgerConfig
from magnetar.bookkeeper.client.health import BookieHealth
from magnetar.bookkeeper.client.placement import (
    Adherence,
    PlacementConfig,
    RackAwarePlacement,
    RackRules,
    RandomPlacement,
    ZoneAwarePlacement,
    ZoneRules,
    make_placement,
)
from magnetar.bookkeeper.client.placement.weighted_selection import WeightedRandomSelection
from magnetar.bookkeeper.client.placement.wrappers import QuarantinePlacement
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.bookkeeper.service_info import DEFAULT_LOCATION
from tests.unit.bookkeeper.client.conftest import Cluster, eventually

T = TypeVar("T")
GIB = 1 << 30
BOOKIES = [f"b{n}" for n in range(5)]


class EvenChance:
    """Every chance once, evenly: what is drawn is exactly in proportion to the weights."""

    def __init__(self, steps: int) -> None:
        self.chances = [(n + 0.5) / steps for n in range(steps)]

    def random(self) -> float:
        return self.chances.pop()

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        raise AssertionError("weights are drawn by random()")

    def getrandbits(self, k: int, /) -> int:
        raise AssertionError("weights are drawn by random()")


def test_shares_are_exactly_those_of_the_weights() -> None:
    free = {"a": 1 * GIB, "b": 2 * GIB, "c": 2 * GIB, "d": 5 * GIB}
    selection = WeightedRandomSelection(EvenChance(1000), free.__getitem__)
    weights = selection.weights(sorted(free))
    drawn = Counter(selection.pick(sorted(free), weights) for _ in range(1000))
    assert drawn == {"a": 100, "b": 200, "c": 200, "d": 500}


def test_a_large_one_counts_three_medians_and_an_unknown_one_as_the_smallest() -> None:
    free = {"a": 2 * GIB, "b": 4 * GIB, "c": 6 * GIB, "huge": 900 * GIB, "unknown": 0}
    weights = WeightedRandomSelection(random.Random(1), free.__getitem__).weights(free)
    assert weights == {
        "a": 2 * GIB,
        "b": 4 * GIB,
        "c": 6 * GIB,
        "huge": 3 * 5 * GIB,  # the median of the four known ones is 5 GiB
        "unknown": 2 * GIB,
    }
    odd = WeightedRandomSelection(random.Random(1), free.__getitem__, 1.5).weights(
        ["a", "b", "huge"]
    )
    assert odd == {"a": 2 * GIB, "b": 4 * GIB, "huge": 6 * GIB}


def test_without_any_known_weight_all_are_equal() -> None:
    assert WeightedRandomSelection(random.Random(1), lambda _: 0).weights(BOOKIES) is None
    assert WeightedRandomSelection(random.Random(1)).weights(BOOKIES) is None


def test_a_sample_has_everyone_once_and_the_heavy_ones_first() -> None:
    free = {"a": 1, "b": 1, "c": 1, "d": 3}
    rng = random.Random(42)
    selection = WeightedRandomSelection(rng, free.__getitem__)
    first: Counter[str] = Counter()
    for _ in range(600):
        chosen = selection.sample(sorted(free), 4)
        assert sorted(chosen) == sorted(free)
        first[chosen[0]] += 1
    # Seeded, so exact: 3 of 6 parts are d's.
    assert abs(first["d"] - 300) < 3 * (600 * 0.25) ** 0.5
    again = WeightedRandomSelection(random.Random(42), free.__getitem__)
    assert Counter(again.sample(sorted(free), 4)[0] for _ in range(600)) == first


def test_a_chance_just_below_one_is_the_last() -> None:
    class Almost(EvenChance):
        def random(self) -> float:
            return 1.0 - 2**-53

    selection = WeightedRandomSelection(Almost(1), lambda _: 3)
    assert selection.pick(BOOKIES, selection.weights(BOOKIES)) == "b4"


@pytest.mark.parametrize("policy", ["random", "rack-aware", "zone-aware"])
def test_every_policy_draws_by_weight(policy: str) -> None:
    """Of two bookies alike in place, the one with three times the space gets three quarters."""
    places = {f"{zone}{gib}": f"/{zone}/0" for zone in "abc" for gib in (1, 3)}
    free = {bookie: int(bookie[1]) * GIB for bookie in places}
    config = PlacementConfig(policy, by_free_space=True)
    placement = make_placement(config, random.Random(3), places.get, set, free.__getitem__)
    drawn = Counter(
        bookie[1] for _ in range(400) for bookie in placement.new_ensemble(3, 3, 2, places)
    )
    if policy == "random":  # without replacement the heavy ones run out
        assert 1.5 < drawn["3"] / drawn["1"] < 3
    else:
        assert abs(drawn["3"] - 900) < 4 * (1200 * 3 / 16) ** 0.5
    ensemble = ("a1", "b1", "c1")
    other = placement.replace_bookie(0, ensemble, 3, set(places).difference(ensemble))
    assert other is not None
    assert other not in ensemble


# Quarantine


def test_who_is_to_be_avoided_comes_back_when_there_are_not_enough_others() -> None:
    avoided: set[str] = set()
    placement = QuarantinePlacement(RandomPlacement(random.Random(1)), lambda: avoided)
    avoided |= {"b3", "b4"}
    for _ in range(20):
        assert set(placement.new_ensemble(3, 3, 2, BOOKIES)) == {"b0", "b1", "b2"}
        assert placement.replace_bookie(0, ["b0", "b1"], 2, BOOKIES[2:]) == "b2"
    assert len(set(placement.new_ensemble(5, 3, 2, BOOKIES))) == 5
    assert placement.replace_bookie(0, ["b0", "b1"], 2, BOOKIES[3:]) in avoided
    assert placement.replace_bookie(0, ["b0", "b1"], 2, ()) is None
    with pytest.raises(NotEnoughBookiesError):
        placement.new_ensemble(6, 3, 2, BOOKIES)


def test_a_zone_in_quarantine_is_taken_back_for_the_rules_sake() -> None:
    places = {"a0": "/a/0", "a1": "/a/1", "a2": "/a/2", "b0": "/b/0"}
    health = BookieHealth(
        HealthConfig(enabled=True, error_threshold=1), lambda: 0, random.Random(1)
    )
    config = PlacementConfig("zone-aware")
    placement = make_placement(config, random.Random(1), places.get, health.quarantined)
    health.note_error("b0")
    assert "b0" in placement.new_ensemble(3, 3, 2, places)
    places["c0"] = "/c/0"
    assert "b0" not in placement.new_ensemble(3, 3, 2, places)
    health.release_all()
    drawn = {b for _ in range(50) for b in placement.new_ensemble(3, 3, 2, places)}
    assert "b0" in drawn


def test_the_rest_is_the_policys_own() -> None:
    places = {f"b{n}": "/z/0" for n in range(3)}
    rules = ZoneRules(spread_acks=True)
    zones = ZoneAwarePlacement(rules, places.get, WeightedRandomSelection(random.Random(1)))
    placement = QuarantinePlacement(zones, set)
    assert placement.adherence(("b0", "b1", "b2"), 3, 2) is Adherence.FAIL
    assert placement.ack_spread(("b0", "b1", "b2")) == zones.ack_spread(("b0", "b1", "b2"))
    with pytest.raises(Exception, match="write quorum"):
        placement.check(2, 2, 2)


# Smaller ensembles

ZONES = {f"{zone}{n}": f"/{zone}/{n}" for zone in "abc" for n in range(2)}


@pytest.mark.parametrize(
    ("policy", "asked", "there", "size"),
    [
        ("random", (5, 2, 2), ["a0", "a1", "b0"], 3),
        ("random", (5, 2, 2), ["a0", "a1"], 2),
        ("zone-aware", (6, 3, 2), ["a0", "a1", "b0", "b1", "c0"], 3),
        ("zone-aware", (6, 3, 2), list(ZONES), 6),
    ],
)
def test_rather_fewer_bookies_than_no_ledger(
    policy: str, asked: tuple[int, int, int], there: list[str], size: int
) -> None:
    config = PlacementConfig(policy, opportunistic_striping=True)
    placement = make_placement(config, random.Random(1), ZONES.get, set)
    ensemble = placement.new_ensemble(*asked, there)
    assert len(ensemble) == size
    others = placement.replace_bookie(0, ensemble, asked[1], set(ZONES).difference(ensemble))
    assert others not in ensemble
    strict = make_placement(PlacementConfig(policy), random.Random(1), ZONES.get, set)
    if size < asked[0]:
        with pytest.raises(NotEnoughBookiesError):
            strict.new_ensemble(*asked, there)


def test_never_fewer_than_the_write_quorum() -> None:
    config = PlacementConfig(opportunistic_striping=True)
    placement = make_placement(config, random.Random(1), ZONES.get, set)
    with pytest.raises(NotEnoughBookiesError, match="ensemble of 5"):
        placement.new_ensemble(5, 3, 2, ["a0", "b0"])


# Settings


def test_policies_by_name() -> None:
    for policy, kind in (
        ("random", RandomPlacement),
        ("rack-aware", RackAwarePlacement),
        ("zone-aware", ZoneAwarePlacement),
    ):
        placement = make_placement(PlacementConfig(policy), random.Random(1), lambda _: None, set)
        assert isinstance(placement, QuarantinePlacement)
        assert isinstance(placement._policy, kind)
        assert placement.check(3, 3, 2) is None  # type: ignore[func-returns-value]  # may raise


def test_rules_reach_the_policy() -> None:
    places = {"a": "/a/0", "b": "/a/0"}
    config = PlacementConfig("rack-aware", racks=RackRules(enforce=True))
    with pytest.raises(NotEnoughBookiesError):
        make_placement(config, random.Random(1), places.get, set).new_ensemble(2, 2, 2, places)


@pytest.mark.parametrize(
    "bad", [{"policy": "nearest"}, {"max_weight_multiple": 0.5}, {"info_retry_s": 0}]
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"placement policy|weights"):
        PlacementConfig(**bad)  # type: ignore[arg-type]  # fields by name


def test_bookies_that_do_not_say_where_they_are_say_this() -> None:
    fields = BookieConfig.__dataclass_fields__
    assert fields["network_location"].default == DEFAULT_LOCATION
    assert BookieSettings.__dataclass_fields__["network_location"].default == DEFAULT_LOCATION


async def test_a_ledger_over_fewer_bookies_says_so_in_its_metadata(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    rng = random.Random(1)
    placement = make_placement(
        PlacementConfig(opportunistic_striping=True), rng, cluster.pool.location, set
    )
    client = BookKeeperClient(cluster.store, cluster.pool, placement, clock=lambda: 1, rng=rng)
    writer = await client.create_ledger(LedgerConfig(5, 2, 2))
    assert writer.metadata.ensemble_size == len(writer.metadata.last_segment.bookies) == 3
    writer.append([b"", b""], [b"one", b"two"])
    await eventually(lambda: writer.last_confirmed == 1)
    await writer.close()
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    run = await reader.read(0, 1, 1 << 20)
    assert [*map(bytes, run.bodies)][:1] == [b"one"]
