"""The four classes of replicas, and the settings of their order."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.client.config import ReadConfig, SpeculationConfig
from magnetar.bookkeeper.client.read_order import (
    DEFAULT_CLASSES,
    ReplicaClass,
    ReplicaState,
    order_replicas,
    replica_class,
)
from magnetar.bookkeeper.client.replica_choice import zone_of

HERE = ReplicaState()
THERE = ReplicaState(is_local=False)

states = st.builds(
    ReplicaState,
    is_local=st.booleans(),
    is_registered=st.booleans(),
    is_quarantined=st.booleans(),
    failures=st.integers(0, 3),
    pending=st.integers(0, 20),
)


def order(*replicas: ReplicaState, pending_max: int = 10) -> list[int]:
    return order_replicas(range(len(replicas)), replicas.__getitem__, pending_max=pending_max)


def test_the_order_of_the_seed() -> None:
    busy, failed = replace(HERE, pending=11), replace(THERE, failures=1)
    assert order(failed, busy, THERE, HERE) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"is_registered": False},
        {"is_quarantined": True},
        {"failures": 1},
        {"pending": 11},
    ],
)
def test_what_makes_a_replica_wait(change: dict[str, int]) -> None:
    later = replace(HERE, **change)  # type: ignore[arg-type]  # fields by name
    assert replica_class(later, 10) is ReplicaClass.LOCAL_LATER
    assert order(later, THERE) == [1, 0]  # even another zone is asked before


def test_the_rotation_stays_where_nothing_speaks_against_it() -> None:
    for slots in itertools.permutations(range(4)):
        assert order_replicas(slots, lambda _: HERE) == list(slots)


def test_fewest_failures_first_and_pending_ones_before_all_failed() -> None:
    failures = [replace(HERE, failures=n) for n in (3, 1, 2)]
    assert order(*failures, replace(HERE, pending=99)) == [3, 1, 2, 0]


def test_who_is_not_registered_comes_last_of_its_class() -> None:
    assert order(replace(HERE, is_registered=False), replace(HERE, failures=9)) == [1, 0]
    assert order(replace(HERE, is_quarantined=True), replace(HERE, pending=99)) == [1, 0]


def test_no_threshold_no_waiting() -> None:
    assert order(replace(HERE, pending=1000), HERE, pending_max=0) == [0, 1]
    assert order(replace(HERE, pending=10), HERE, pending_max=10) == [0, 1]


def test_classes_can_be_put_in_another_order() -> None:
    classes = (
        *(ReplicaClass.LOCAL, ReplicaClass.LOCAL_LATER),
        *(ReplicaClass.REMOTE, ReplicaClass.REMOTE_LATER),
    )
    replicas = [THERE, replace(HERE, failures=5)]
    assert order_replicas(range(2), replicas.__getitem__, classes=classes) == [1, 0]


@given(st.lists(states, min_size=1, max_size=7), st.integers(0, 15))
def test_every_replica_once_and_classes_in_order(
    replicas: list[ReplicaState], pending_max: int
) -> None:
    found = order(*replicas, pending_max=pending_max)
    assert sorted(found) == list(range(len(replicas)))
    if len(replicas) > 1:
        ranks = [DEFAULT_CLASSES.index(replica_class(replicas[s], pending_max)) for s in found]
        assert ranks == sorted(ranks)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="every class"):
        ReadConfig(classes=(ReplicaClass.LOCAL,) * 4)
    with pytest.raises(ValueError, match="pending_max"):
        ReadConfig(pending_max=-1)
    with pytest.raises(ValueError, match="speculation"):
        SpeculationConfig(1, backoff=0.5)


def test_zones() -> None:
    assert [zone_of(path) for path in ("/a/ud1", "/a", "a/b", "", "/")] == ["a", "a", "a", "", ""]
