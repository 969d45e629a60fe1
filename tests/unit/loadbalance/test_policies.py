"""Who may serve what: isolation (I25), failure domains and anti-affinity (I26), pinned names."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.policies import (
    IsolationPolicies,
    NamespaceIsolationPolicy,
    PlacementPolicies,
    anti_affinity_filter,
    domains_of,
    pinned_broker,
    to_place_anew,
)

BROKERS = ["b1:8080", "b2:8080", "b3:8080", "b4:8080"]


def policy(
    namespaces: list[str], primary: list[str], secondary: list[str] | None = None, limit: Any = "1"
) -> dict[str, Any]:
    return {
        "namespaces": namespaces,
        "primary": primary,
        "secondary": secondary or [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": limit, "usage_threshold": "80"},
        },
    }


@pytest.mark.parametrize(
    ("namespace", "broker"),
    [
        ("pulsar/c1/b1:8080", "b1:8080"),
        ("pulsar/b1:8080", "b1:8080"),
        ("sla-monitor/c1/10.0.0.1:8080", "10.0.0.1:8080"),
        ("pulsar/[::1]:8080", "[::1]:8080"),
        ("pulsar/system", None),
        ("public/default", None),
        ("sla-monitor/b1:8080", None),
        ("acme/c1/b1:8080", None),
        ("pulsar/c1/b1:port", None),
    ],
)
def test_some_namespaces_name_their_broker(namespace: str, broker: str | None) -> None:
    assert pinned_broker(namespace) == broker


def test_primaries_are_closed_to_others_and_secondaries_are_not() -> None:
    isolation = IsolationPolicies.parse({"p": policy(["acme/.*"], ["b1"], ["b2:8080"])})
    assert isolation.candidates("acme/orders", BROKERS) == ["b1:8080"]
    assert isolation.candidates("public/default", BROKERS) == ["b2:8080", "b3:8080", "b4:8080"]
    assert isolation.candidates("acme", BROKERS) == isolation.candidates("public/x", BROKERS)


@pytest.mark.parametrize(
    ("limit", "alive", "expected"),
    [
        ("1", ["b1:8080", "b2:8080", "b3:8080"], ["b1:8080", "b2:8080"]),
        ("2", ["b1:8080", "b3:8080"], ["b1:8080", "b3:8080"]),  # one primary of two wanted
        ("2", ["b1:8080", "b2:8080", "b3:8080"], ["b1:8080", "b2:8080"]),
        ("1", ["b3:8080", "b4:8080"], ["b3:8080"]),
        ("1", ["b4:8080"], []),  # nobody: no spill over
        (1, ["b4:8080"], []),
    ],
)
def test_secondaries_help_below_the_limit(
    limit: Any, alive: list[str], expected: list[str]
) -> None:
    isolation = IsolationPolicies.parse({"p": policy(["acme/.*"], ["b1", "b2"], ["b3"], limit)})
    assert isolation.candidates("acme/orders", alive) == expected


def test_patterns_match_whole_names_and_the_first_policy_counts() -> None:
    isolation = IsolationPolicies.parse(
        {"z": policy(["acme/or.*"], ["b[12]"]), "a": policy(["acme/.*"], ["b3"])}
    )
    assert isolation.candidates("acme/orders", BROKERS) == ["b1:8080", "b2:8080"]
    assert isolation.candidates("acme/bills", BROKERS) == ["b3:8080"]
    assert isolation.candidates("my-acme/orders", BROKERS) == ["b4:8080"]
    all_but = IsolationPolicies.parse({"p": policy(["(?!acme/).*"], ["b1"])})
    assert all_but.candidates("public/default", BROKERS) == ["b1:8080"]


@pytest.mark.parametrize(
    "document",
    [
        {"p": policy(["acme/("], ["b1"])},
        {"p": policy(["acme/.*"], ["b1"], limit="many")},
        {"p": policy(["acme/.*"], ["b1"], limit=None)},
        {"p": {**policy(["a"], ["b"]), "primary": "b1"}},
        {"p": {**policy(["a"], ["b"]), "namespaces": [7]}},
        {"p": []},
    ],
)
def test_a_policy_that_can_not_be_read_is_no_policy_at_all(document: dict[str, Any]) -> None:
    good = {"first": policy(["x/.*"], ["b2"])}
    with pytest.raises(InvalidDocumentError):
        IsolationPolicies.parse({**good, **document})


@given(
    st.lists(st.sampled_from(BROKERS), unique=True),
    st.lists(st.sampled_from(["b1", "b2", "b3", "b4"]), unique=True),
    st.lists(st.sampled_from(["b1", "b2", "b3", "b4"]), unique=True),
    st.integers(0, 4),
)
def test_isolation_is_never_left(
    alive: list[str], primary: list[str], secondary: list[str], limit: int
) -> None:
    isolation = IsolationPolicies.parse({"p": policy(["acme/.*"], primary, secondary, str(limit))})
    found = isolation.candidates("acme/x", alive)
    primaries = [each for each in alive if each.split(":")[0] in primary]
    for broker in found:
        assert broker in primaries or (broker.split(":")[0] in secondary and len(primaries) < limit)
    assert set(primaries) <= set(found)
    assert not {*isolation.candidates("public/x", alive)} & {*primaries}


@pytest.mark.parametrize(
    ("scope", "primary", "moved"),
    [
        ("changed", ["b"], {"t/old", "t/new"}),
        ("changed", ["c"], {"t/old", "t/both", "t/new"}),
        ("all_matching", ["b"], {"t/old", "t/both", "t/new"}),
        ("none", ["c"], set()),
    ],
)
def test_what_a_changed_policy_moves(scope: str, primary: list[str], moved: set[str]) -> None:
    old = NamespaceIsolationPolicy.parse("p", policy(["t/(old|both)"], ["b"]))
    new = NamespaceIsolationPolicy.parse("p", policy(["t/(new|both)"], primary))
    everybody = ["t/old", "t/both", "t/new", "t/other"]
    assert set(to_place_anew(scope, old, new, everybody)) == moved
    first = to_place_anew(scope, None, new, everybody)
    assert first == ([] if scope == "none" else ["t/both", "t/new"])


def test_domains() -> None:
    assert domains_of({"d1": {"brokers": ["b1", "b2"]}, "d2": {}}) == {"b1": "d1", "b2": "d1"}
    refused: list[dict[str, Any]] = [
        {"d": {"brokers": "b1"}},
        {"d": []},
        {"d": {"brokers": [1]}},
    ]
    for wrong in refused:
        with pytest.raises(InvalidDocumentError):
            domains_of(wrong)


def test_groups_are_compared_without_case() -> None:
    policies = PlacementPolicies(groups={"a/1": "Red", "a/2": "red", "a/3": "blue"})
    assert policies.group_of("a/1") == "red"
    assert policies.members("red") == ["a/1", "a/2"]
    assert policies.group_of("a/4") is None


def place_all(
    namespaces: int, bundles: int, domains: dict[str, str] | None, brokers: list[str]
) -> dict[str, dict[str, int]]:
    """Every namespace's bundles one after the other, always at the first broker that is offered."""
    names = [f"t/n{number}" for number in range(namespaces)]
    spread: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name in names:
        for _ in range(bundles):
            offered = anti_affinity_filter(name, names, brokers, spread, domains)
            assert offered
            # as the rest of the pipeline does: even among what is offered
            spread[name][min(offered, key=lambda each: (spread[name].get(each, 0), each))] += 1
    return spread


@pytest.mark.parametrize("bundles", [1, 4, 9])
@pytest.mark.parametrize(("namespaces", "domain_count"), [(2, 2), (2, 3), (3, 3), (3, 7), (5, 5)])
def test_with_enough_domains_a_group_shares_none(
    namespaces: int, domain_count: int, bundles: int
) -> None:
    brokers = [f"b{number}" for number in range(domain_count * 2)]
    domains = {broker: f"d{int(broker[1:]) % domain_count}" for broker in brokers}
    spread = place_all(namespaces, bundles, domains, brokers)
    inside = defaultdict(set)
    for name, its in spread.items():
        for broker in its:
            inside[domains[broker]].add(name)
    assert max(len(names) for names in inside.values()) == 1


@pytest.mark.parametrize(("namespaces", "brokers"), [(2, 2), (3, 7), (4, 4)])
def test_with_enough_brokers_a_group_shares_none(namespaces: int, brokers: int) -> None:
    names = [f"b{number}" for number in range(brokers)]
    inside = defaultdict(set)
    for name, its in place_all(namespaces, 4, None, names).items():
        for broker in its:
            inside[broker].add(name)
    assert max(len(each) for each in inside.values()) == 1


@pytest.mark.parametrize(("namespaces", "domain_count"), [(3, 2), (7, 3), (9, 4)])
def test_with_too_few_domains_a_group_shares_evenly(namespaces: int, domain_count: int) -> None:
    brokers = [f"b{number}" for number in range(domain_count)]
    domains = {broker: f"d{broker}" for broker in brokers}
    counts = dict.fromkeys(brokers, 0)
    for its in place_all(namespaces, 1, domains, brokers).values():
        for broker in its:
            counts[broker] += 1
    assert max(counts.values()) - min(counts.values()) <= 1


def test_brokers_without_a_domain_are_one_domain() -> None:
    spread = {"t/a": {"b1": 1}}
    domains = {"b3": "d"}
    assert anti_affinity_filter("t/b", ["t/a", "t/b"], ["b1", "b2", "b3"], spread, domains) == [
        "b3"
    ]
