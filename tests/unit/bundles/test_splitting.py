"""Where bundles are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.namespace_bundles import FULL_UPPER, HashRange, NamespaceBundles
from magnetar.bundles.splitting import (
    TopicLoad,
    at_positions,
    divide_load,
    halve_range,
    halve_topics,
)

FULL = HashRange(0, FULL_UPPER)
RANGES = (
    st.tuples(st.integers(0, FULL_UPPER), st.integers(0, FULL_UPPER))
    .filter(lambda edges: edges[0] != edges[1])
    .map(lambda edges: HashRange(*sorted(edges)))
)


def test_the_middle_is_pulsars() -> None:
    assert halve_range(HashRange(0, 0x80000000)) == [0x40000000]
    assert halve_range(HashRange(0x80000000, FULL_UPPER)) == [0xBFFFFFFF]
    assert halve_range(HashRange(5, 6)) == []  # nothing is strictly inside


def test_topics_are_halved() -> None:
    hashes = [10, 20, 1000, 2000]
    (point,) = halve_topics(FULL, hashes)
    assert point == 510
    assert halve_topics(FULL, [7]) == []
    assert halve_topics(FULL, []) == []
    assert halve_topics(FULL, [7, 8]) == [8], "7 stays below the cut"


def test_positions_of_the_caller() -> None:
    bundle = HashRange(100, 200)
    assert at_positions(bundle, [150, 120, 100, 200, 900, 120], [110, 130]) == [120, 150]
    assert at_positions(bundle, [150], [110]) == [], "one topic can't be divided"
    with pytest.raises(InvalidBundleError, match="must not be empty"):
        at_positions(bundle, [], [110, 130])


def test_load_is_divided_below_the_limits() -> None:
    topics = [TopicLoad(number * 1000, 40.0, 10.0) for number in range(1, 7)]
    points = divide_load(FULL, topics, 100.0, 1e9, 0.1)
    parts: list[float] = []
    for low, high in zip([0, *points], [*points, FULL_UPPER], strict=True):
        parts.append(sum(topic.messages for topic in topics if low <= topic.hash < high))
    assert parts == [80.0, 80.0, 80.0]
    by_bytes = divide_load(FULL, topics, 1e9, 30.0, 0.1)
    assert len(by_bytes) == 1


def test_load_that_is_small_or_idle_or_alone_stays_whole() -> None:
    two = [TopicLoad(10, 54.0, 1.0), TopicLoad(20, 54.0, 1.0)]
    assert divide_load(FULL, two, 100.0, 1e9, 0.1) == [], "within the tolerance"
    assert divide_load(FULL, [TopicLoad(10, 1e9, 1e9)], 100.0, 100.0, 0.1) == []
    idle = [TopicLoad(10, 1e9, 1e9), TopicLoad(20, 0.0, 0.0)]
    assert divide_load(FULL, idle, 100.0, 100.0, 0.1) == []


@given(
    RANGES,
    st.lists(st.integers(0, FULL_UPPER), max_size=30),
    st.lists(st.integers(0, FULL_UPPER), min_size=1, max_size=5),
)
def test_every_cut_gives_a_partition(
    bundle: HashRange, hashes: list[int], positions: list[int]
) -> None:
    inside = [each for each in hashes if each in bundle]
    loads = [TopicLoad(each, 60.0, 60.0) for each in inside]
    edges = sorted({0, bundle.lower, bundle.upper, FULL_UPPER})
    bundles = NamespaceBundles("t/n", edges)
    for points in (
        halve_range(bundle),
        halve_topics(bundle, inside),
        at_positions(bundle, positions, inside),
        divide_load(bundle, loads, 100.0, 100.0, 0.1),
    ):
        cut = bundles.split(bundle, points)  # refuses points outside and empty parts
        assert len(cut) == len(bundles) + len(points)
        assert set(bundles.boundaries) <= set(cut.boundaries)


def test_a_bundle_is_found_by_its_exact_range() -> None:
    bundles = NamespaceBundles.equal_parts("t/n", 4)
    assert bundles.find("0x40000000_0x80000000") == bundles.ranges[1]
    for text, message in (
        ("xyz", "Invalid bundle range: xyz"),
        (
            "0x40000000_0x80000001",
            "Invalid upper boundary for bundle t/n/0x40000000_0x80000001. "
            "Expected upper boundary of t/n/0x40000000_0x80000000",
        ),
        (
            "0x40000001_0x80000000",
            "Cannot find bundle t/n/0x40000001_0x80000000 in the bundles list",
        ),
    ):
        with pytest.raises(InvalidBundleError) as raised:
            bundles.find(text)
        assert str(raised.value) == message


def test_only_own_bundles_are_cut_and_only_inside() -> None:
    bundles = NamespaceBundles.equal_parts("t/n", 2)
    with pytest.raises(InvalidBundleError):
        bundles.split(HashRange(0, 5), [3])
    with pytest.raises(InvalidBundleError):
        bundles.split(bundles.ranges[0], [bundles.ranges[0].lower])
