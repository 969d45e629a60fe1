"""Copies counted from lists of runs: against counting entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.replication.fragments import (
    Fragment,
    ReplicaCounts,
    count_replicas,
    missing_runs,
)


def fragment(first: int, end: int, size: int, quorum: int) -> Fragment:
    bookies = tuple(f"b{n}" for n in range(size))
    return Fragment(1, first, end, bookies, quorum, True, True)


def test_whole_holes_and_nothing() -> None:
    of = fragment(0, 100, 3, 3)
    held = [[(0, 100)], [(0, 40), (50, 100)], [(0, 45)]]
    missing = [list(missing_runs(of, slot, held[slot])) for slot in range(3)]
    assert missing == [[], [(40, 50)], [(45, 100)]]
    # 40-44: two copies; 45-49: one; 50-99: two
    assert count_replicas(missing, 3, 2) == ReplicaCounts(60, 5, 0)
    held[0] = []
    missing = [list(missing_runs(of, slot, held[slot])) for slot in range(3)]
    assert count_replicas(missing, 3, 2) == ReplicaCounts(100, 60, 5)


@given(st.data())
def test_as_if_counted_entry_by_entry(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    quorum = data.draw(st.integers(1, size))
    ack = data.draw(st.integers(1, quorum))
    first = data.draw(st.integers(0, 7))
    end = data.draw(st.integers(first, first + 25))
    of = fragment(first, end, size, quorum)
    held = [data.draw(st.frozensets(st.integers(0, 40))) for _ in range(size)]
    missing = [
        list(missing_runs(of, slot, [(e, e + 1) for e in sorted(held[slot])]))
        for slot in range(size)
    ]
    copies = [
        sum(entry in held[(entry + i) % size] for i in range(quorum)) for entry in range(first, end)
    ]
    assert count_replicas(missing, quorum, ack) == ReplicaCounts(
        sum(n < quorum for n in copies), sum(n < ack for n in copies), sum(n == 0 for n in copies)
    )
