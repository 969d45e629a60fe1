"""Groups keep ledgers, and the copies that replace lost ones, on their bookies."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.placement import (
    EnsemblePlacementPolicy,
    IsolationGroups,
    PlacementConfig,
    make_placement,
)
from magnetar.bookkeeper.client.placement.config import POLICIES, RANDOM, REGION_AWARE
from magnetar.bookkeeper.client.placement.isolation import (
    ALL_BOOKIES,
    groups_of_ledger,
    metadata_of_groups,
)
from magnetar.bookkeeper.errors import NotEnoughBookiesError

GROUPS = {
    **{f"first{n}": ["g1"] for n in range(4)},
    **{f"second{n}": ["g2"] for n in range(2)},
    **{f"other{n}": ["g3"] for n in range(4)},
    **{f"none{n}": [] for n in range(3)},
    "both": ["g1", "g3"],
}
FIRST, SECOND = frozenset({"g1"}), frozenset({"g2"})
bookies = st.sets(st.sampled_from(sorted(GROUPS)), max_size=14)
seeds = st.integers(0, 2**32)
# As Pulsar 4.2.4 writes it for a namespace whose bookie affinity is "ssd,fast" and "hdd".
PULSARS = b"""{
  "policyClass" : "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
  "properties" : {
    "isolationBookieGroups" : "ssd,fast",
    "secondaryIsolationBookieGroups" : "hdd"
  }
}"""


def make(config: PlacementConfig, seed: int = 1) -> EnsemblePlacementPolicy:
    rng = random.Random(seed)
    return make_placement(config, rng, lambda _: "/r", set, groups_of=GROUPS.__getitem__)


def affinity(first: str, second: str) -> dict[str, bytes]:
    """Custom metadata of a ledger of a namespace with these groups."""
    document = json.loads(PULSARS)
    document["properties"] = {
        "isolationBookieGroups": first,
        "secondaryIsolationBookieGroups": second,
    }
    return {"EnsemblePlacementPolicyConfig": json.dumps(document).encode()}


def allowed_of(
    among: set[str], size: int, first: frozenset[str], second: frozenset[str]
) -> set[str]:
    """As IsolatedBookieEnsemblePlacementPolicy: first, second, ungrouped; never another group."""
    found: set[str] = set()
    for more in (
        {b for b in among if first.intersection(GROUPS[b])},
        {b for b in among if second.intersection(GROUPS[b])},
        {b for b in among if not GROUPS[b]},
    ):
        if len(found) < size:
            found |= more
    return found


@settings(max_examples=300, deadline=None)
@given(bookies, st.integers(1, 4), seeds)
def test_groups_are_kept_and_helped_out_in_order(writable: set[str], size: int, seed: int) -> None:
    placement = make(PlacementConfig(RANDOM, isolation=IsolationGroups(FIRST, SECOND)), seed)
    allowed = allowed_of(writable, size, FIRST, SECOND)
    assert placement.missing(size, 1, writable) == max(0, size - len(allowed))
    if len(allowed) < size:
        with pytest.raises(NotEnoughBookiesError):
            placement.new_ensemble(size, size, size, writable)
        return
    ensemble = placement.new_ensemble(size, size, size, writable)
    assert set(ensemble) <= allowed
    found = placement.replace_bookie(0, ensemble, size, writable - set(ensemble))
    assert found is None or "g3" not in GROUPS[found] or found == "both"
    first = {b for b in writable if "g1" in GROUPS[b]}
    if first - set(ensemble) and len(first) > size:
        assert found in first


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(GROUPS)), min_size=1, max_size=4, unique=True),
    bookies,
    st.sampled_from([None, IsolationGroups(frozenset({"g3"}))]),
    st.sampled_from(["", "g1", "g2", "g1,g2"]),
    st.sampled_from(["", "g2", "g3"]),
    st.booleans(),
    seeds,
)
def test_a_ledger_keeps_its_creators_groups(
    ensemble: list[str],
    writable: set[str],
    configured: IsolationGroups | None,
    first: str,
    second: str,
    striping: bool,
    seed: int,
) -> None:
    """Whatever the settings say, and wherever its bookies are: groups may change afterwards."""
    config = PlacementConfig(RANDOM, isolation=configured, opportunistic_striping=striping)
    placement = make(config, seed).for_ledger(affinity(first, second))
    candidates = writable - set(ensemble)
    found = placement.replace_bookie(0, ensemble, len(ensemble), candidates)
    names = [frozenset(each.split(",")) - {""} for each in (first, second)]
    allowed = allowed_of({*ensemble[1:], *candidates}, len(ensemble), *names) & candidates
    assert found in allowed if allowed else found is None


@settings(max_examples=100, deadline=None)
@given(bookies, st.integers(1, 4), st.sampled_from(POLICIES[:2]), seeds)
def test_without_groups_all_bookies_are_taken(
    writable: set[str], size: int, policy: str, seed: int
) -> None:
    placement = make(PlacementConfig(policy), seed).for_ledger({"application": b"pulsar"})
    ensemble = [f"lost{n}" for n in range(size)]
    found = placement.replace_bookie(0, ensemble, size, writable)
    assert found in writable if writable else found is None


def test_all_bookies_are_a_group() -> None:
    """As PULSAR_SYSTEM_TOPIC_ISOLATION_GROUP; a policy without groups doesn't look for any."""
    placement = make(PlacementConfig(RANDOM, isolation=IsolationGroups(FIRST)))
    for metadata in (metadata_of_groups(ALL_BOOKIES, None), metadata_of_groups(None, None)):
        found = placement.for_ledger(metadata).new_ensemble(14, 1, 1, sorted(GROUPS))
        assert sorted(found) == sorted(GROUPS)


def test_too_few_bookies_name_the_groups() -> None:
    placement = make(PlacementConfig(RANDOM)).for_ledger(metadata_of_groups("g1,new", "g2"))
    with pytest.raises(NotEnoughBookiesError, match="group g1, new; then group g2; then no group"):
        placement.new_ensemble(3, 2, 2, ["first0", "second0", "other0", "other1"])
    unnamed = placement.for_ledger(metadata_of_groups("", ""))
    with pytest.raises(NotEnoughBookiesError, match=r"2 bookies .* 0 may be taken: .* no group"):
        unnamed.new_ensemble(1, 1, 1, ["first0", "second0"])


def test_a_new_ledger_stripes_over_fewer_bookies_of_its_groups() -> None:
    config = PlacementConfig(RANDOM, opportunistic_striping=True)
    placement = make(config).for_ledger(metadata_of_groups("g2", ""))
    writable = ["second0", "second1", "other0", "other1", "first0"]
    assert sorted(placement.new_ensemble(4, 2, 2, writable)) == ["second0", "second1"]


def test_metadata_are_pulsars_byte_for_byte() -> None:
    """What a broker of Pulsar 4.2.4 wrote for these groups."""
    assert metadata_of_groups("ssd,fast", "hdd") == {"EnsemblePlacementPolicyConfig": PULSARS}
    begin = PULSARS[: PULSARS.index(b'"isolation')].rstrip()
    for first, properties in (
        ("ssd", b'{\n    "isolationBookieGroups" : "ssd"\n  }\n}'),
        (" hdd , ssd\xe9", b'{\n    "isolationBookieGroups" : " hdd , ssd\xc3\xa9"\n  }\n}'),
        (None, b"{ }\n}"),
    ):
        found = metadata_of_groups(first, None)
        assert found == {"EnsemblePlacementPolicyConfig": begin[:-1] + properties}


@given(st.sampled_from([None, "", "g1", "g1, g2"]), st.sampled_from([None, "", "g3"]))
def test_metadata_are_read_as_they_were_written(first: str | None, second: str | None) -> None:
    names = [{n.strip() for n in (each or "").split(",")} - {""} for each in (first, second)]
    if first is None:
        names[0] = {ALL_BOOKIES}
    found = groups_of_ledger(metadata_of_groups(first, second))
    assert found == IsolationGroups(*map(frozenset, names))


def test_what_pulsar_writes_is_read() -> None:
    found = groups_of_ledger({"EnsemblePlacementPolicyConfig": PULSARS})
    assert found == IsolationGroups(frozenset({"ssd", "fast"}), frozenset({"hdd"}))


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        PULSARS.replace(b"IsolatedBookie", b"Rackaware"),
        PULSARS.replace(b'"ssd,fast"', b"7"),
        PULSARS.replace(b'"properties"', b'"other"'),
    ],
)
def test_what_cannot_be_read_leaves_the_settings(stored: bytes) -> None:
    assert groups_of_ledger({"EnsemblePlacementPolicyConfig": stored}) is None


def test_settings_make_regions_and_groups() -> None:
    cluster = {"x": "/a/1", "y": "/b/1", "z": "/a/2", "w": "/b/2"}
    config = PlacementConfig(REGION_AWARE, isolation=IsolationGroups(frozenset({"ours"})))
    groups = {"x": ["ours"], "y": ["ours"], "z": ["theirs"], "w": ["theirs"]}
    placement = make_placement(
        config, random.Random(1), cluster.get, set, groups_of=groups.__getitem__
    )
    assert set(placement.new_ensemble(2, 2, 2, cluster)) == {"x", "y"}
