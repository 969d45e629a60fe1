"""Figures of skew against their definitions, and slots against what brokers do."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.key_selector import HashRing
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import sticky_hash
from magnetar.pipeline.jobs.skew import SLOTS, gini, range_loads, skew_stats, slot_of


def gini_by_definition(weights: list[int]) -> float:
    """Mean difference of all pairs over twice the mean."""
    total, count = sum(weights), len(weights)
    return sum(abs(a - b) for a in weights for b in weights) / (2 * count * total)


@given(st.lists(st.integers(min_value=1, max_value=1000), min_size=1, max_size=60))
def test_gini(weights: list[int]) -> None:
    assert gini(Counter(weights)) == pytest.approx(gini_by_definition(weights), abs=1e-9)


def test_gini_at_the_ends() -> None:
    assert gini({}) == 0
    assert gini({5: 100}) == pytest.approx(0)
    assert gini({1: 999, 10**9: 1}) == pytest.approx(0.999, abs=1e-3)


@given(st.text(min_size=1))
def test_slots_are_those_of_brokers(key: str) -> None:
    metadata = pb.MessageMetadata(partition_key=key, producer_name="p", sequence_id=1)
    metadata.publish_time = 1
    assert slot_of(key.encode()) == HashRing().slot_of(sticky_hash(metadata))


@given(
    st.lists(st.tuples(st.integers(1, SLOTS - 1), st.integers(0, 9))),
    st.integers(min_value=1, max_value=100),
)
def test_ranges_lose_nothing(slots: list[tuple[int, int]], ranges: int) -> None:
    loads = range_loads(slots, ranges)
    assert len(loads) == ranges
    assert sum(loads) == sum(weight for _, weight in slots)


def test_ranges() -> None:
    slots = [(1, 5), (SLOTS // 2 - 1, 1), (SLOTS // 2, 2), (SLOTS - 1, 3)]
    assert range_loads(slots, 2) == [6, 5]
    assert range_loads(slots, 4) == [5, 1, 2, 3]


def test_evenness() -> None:
    assert skew_stats([1, 1, 1, 5]).max_to_mean == 2.5
    assert skew_stats([3, 3]).max_to_mean == 1
    assert skew_stats([0, 0]).max_to_mean == 0
    assert skew_stats([]).max_to_mean == 0
