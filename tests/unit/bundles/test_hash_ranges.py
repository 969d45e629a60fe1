"""Hash ranges: Pulsar's vectors, edges, and that boundaries always partition."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.namespace_bundles import (
    FULL_UPPER,
    HashRange,
    NamespaceBundles,
    namespace_of,
    topic_hash,
)

# Spec, bundles 2.1: topic, hash, range with 3, 4 and 32 bundles.
VECTORS = [
    (
        "persistent://public/default/my-topic",
        0x2BAD45F7,
        "0x00000000_0x55555555",
        "0x00000000_0x40000000",
        "0x28000000_0x30000000",
    ),
    (
        "persistent://public/default/my-topic-partition-0",
        0x3D4B4235,
        "0x00000000_0x55555555",
        "0x00000000_0x40000000",
        "0x38000000_0x40000000",
    ),
    (
        "persistent://public/default/my-topic-partition-1",
        0x4A4C72A3,
        "0x00000000_0x55555555",
        "0x40000000_0x80000000",
        "0x48000000_0x50000000",
    ),
    (
        "non-persistent://public/default/my-topic",
        0x831E214A,
        "0x55555555_0xaaaaaaaa",
        "0x80000000_0xc0000000",
        "0x80000000_0x88000000",
    ),
    (
        "persistent://my-tenant/my-namespace/my-topic",
        0xA34B8057,
        "0x55555555_0xaaaaaaaa",
        "0x80000000_0xc0000000",
        "0xa0000000_0xa8000000",
    ),
    (
        "persistent://public/default/aac15gky",
        0xFFFFFFFF,
        "0xaaaaaaaa_0xffffffff",
        "0xc0000000_0xffffffff",
        "0xf8000000_0xffffffff",
    ),
    (
        "persistent://public/default/agl5365o",
        0x00000000,
        "0x00000000_0x55555555",
        "0x00000000_0x40000000",
        "0x00000000_0x08000000",
    ),
    (
        "persistent://public/default/aa7srnjm",
        0x40000000,
        "0x00000000_0x55555555",
        "0x40000000_0x80000000",
        "0x40000000_0x48000000",
    ),
    (
        "persistent://public/default/aagbeirt",
        0x3FFFFFFF,
        "0x00000000_0x55555555",
        "0x00000000_0x40000000",
        "0x38000000_0x40000000",
    ),
]


@pytest.mark.parametrize(("topic", "value", "of_3", "of_4", "of_32"), VECTORS)
def test_known_topics(topic: str, value: int, of_3: str, of_4: str, of_32: str) -> None:
    assert topic_hash(topic) == value
    namespace = namespace_of(topic)
    for count, wanted in ((3, of_3), (4, of_4), (32, of_32), (1, "0x00000000_0xffffffff")):
        bundles = NamespaceBundles.equal_parts(namespace, count)
        assert bundles.bundle_of(topic) == f"{namespace}/{wanted}"
        assert str(bundles.range_of(topic)) == wanted
        assert value in HashRange.parse(wanted)


def test_equal_parts_give_the_remainder_to_the_last() -> None:
    assert NamespaceBundles.equal_parts("t/n", 3).boundary_texts() == [
        "0x00000000",
        "0x55555555",
        "0xaaaaaaaa",
        "0xffffffff",
    ]
    bundles = NamespaceBundles.equal_parts("t/n", 32)
    assert len(bundles) == 32
    assert bundles.names[:2] == ("t/n/0x00000000_0x08000000", "t/n/0x08000000_0x10000000")
    assert bundles.names[-1] == "t/n/0xf8000000_0xffffffff"


@pytest.mark.parametrize("count", [0, -1, 2**32])
def test_impossible_counts(count: int) -> None:
    with pytest.raises(InvalidBundleError):
        NamespaceBundles.equal_parts("t/n", count)


boundary_lists = st.sets(st.integers(1, FULL_UPPER - 1), max_size=40).map(
    lambda inner: [0, *sorted(inner), FULL_UPPER]
)


@given(boundary_lists, st.text(max_size=20))
def test_every_hash_is_in_exactly_one_bundle(boundaries: list[int], local: str) -> None:
    bundles = NamespaceBundles("t/n", boundaries)
    probes = {FULL_UPPER, *boundaries, *(max(each - 1, 0) for each in boundaries)}
    probes |= {min(each + 1, FULL_UPPER) for each in boundaries}
    for probe in probes:
        assert sum(probe in each for each in bundles.ranges) == 1
    topic = f"persistent://t/n/{local.encode(errors='ignore').decode()}x"
    (holder,) = [each for each in bundles.ranges if zlib.crc32(topic.encode()) in each]
    assert bundles.bundle_of(topic) == f"t/n/{holder}"
    assert NamespaceBundles.parse("t/n", bundles.boundary_texts()) == bundles


@given(st.integers(1, 5000))
def test_equal_parts_partition(count: int) -> None:
    bundles = NamespaceBundles.equal_parts("t/n", count)
    assert len(bundles) == count
    sizes = {each.upper - each.lower for each in bundles.ranges[:-1]}
    assert len(sizes) <= 1
    last = bundles.ranges[-1]
    assert last.upper - last.lower + 1 >= (FULL_UPPER + 1) // count


@pytest.mark.parametrize(
    "boundaries",
    [
        [],
        ["0x00000000"],
        ["0x00000000", "0x80000000"],
        ["0x00000001", "0xffffffff"],
        ["0x00000000", "0x80000000", "0x80000000", "0xffffffff"],
        ["0x00000000", "0x90000000", "0x80000000", "0xffffffff"],
        ["0x00000000", "0x100000000", "0xffffffff"],
        ["0x00000000", "80000000", "0xffffffff"],
        ["0x00000000", 5, "0xffffffff"],
    ],
)
def test_boundaries_that_do_not_partition(boundaries: list[str]) -> None:
    with pytest.raises(InvalidBundleError):
        NamespaceBundles.parse("t/n", boundaries)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x00000000",
        "0x0_0x1",
        "0x00000000-0x10000000",
        "0x10000000_0x10000000",
        "0x20000000_0x10000000",
        "0X00000000_0X10000000",
        "0x00000000_0xFFFFFFFF",
        "0x00000000_0x10000000 ",
    ],
)
def test_ranges_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidBundleError):
        HashRange.parse(text)


@pytest.mark.parametrize(
    "name",
    [
        *("", "topic", "t/n/topic", "persistent://", "persistent://t", "persistent://t/n"),
        *("://t/n/x", "persistent://t/n/", "persistent:///n/x", "persistent://t//x"),
        "persistent:/t/n/x",
    ],
)
def test_incomplete_topic_names(name: str) -> None:
    with pytest.raises(InvalidBundleError):
        namespace_of(name)


def test_namespace_of_a_topic_with_slashes() -> None:
    assert namespace_of("persistent://t/n/a/b") == "t/n"
