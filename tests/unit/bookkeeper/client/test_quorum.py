"""Write sets, coverage and absence against docs/spec/storage.md, "Quorums", and brute force."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.client import quorum

# E, Qw, Qa | Qf | unknown always tolerated | answers that always suffice | fewest that can suffice
TABLE = [
    (1, 1, 1, 1, 0, 1, 1),
    (2, 2, 1, 2, 0, 2, 2),
    (2, 2, 2, 1, 1, 1, 1),
    (3, 2, 1, 2, 0, 3, 3),
    (3, 2, 2, 1, 1, 2, 2),
    (3, 3, 2, 2, 1, 2, 2),
    (3, 3, 3, 1, 2, 1, 1),
    (4, 2, 2, 1, 1, 3, 2),
    (4, 3, 2, 2, 1, 3, 3),
    (5, 3, 2, 2, 1, 4, 4),
    (5, 3, 3, 1, 2, 3, 2),
    (5, 5, 3, 3, 2, 3, 3),
    (6, 3, 2, 2, 1, 5, 4),
    (6, 4, 3, 2, 2, 4, 3),
    (7, 5, 3, 3, 2, 5, 5),
]


@st.composite
def triples(draw: st.DrawFn) -> tuple[int, int, int]:
    ensemble_size = draw(st.integers(1, 7))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "/".join(map(str, row[:3])))
def test_table_of_the_protocol(row: tuple[int, ...]) -> None:
    e, qw, qa, qf, tolerated, always, fewest = row
    assert quorum.absence_quorum(qw, qa) == qf
    covered = {
        count: [quorum.is_covered(set(known), e, qw, qa) for known in combinations(range(e), count)]
        for count in range(e + 1)
    }
    assert all(covered[e - tolerated])
    assert tolerated == qa - 1
    assert min(count for count in covered if all(covered[count])) == always
    assert min(count for count in covered if any(covered[count])) == fewest


def test_striping_order() -> None:
    assert [quorum.write_set(e, 3, 2) for e in range(3)] == [(0, 1), (1, 2), (2, 0)]
    assert [quorum.write_set(e, 5, 3) for e in (1, 3, 4)] == [(1, 2, 3), (3, 4, 0), (4, 0, 1)]


@given(triples(), st.data())
def test_coverage_is_just_what_stops_the_writer(
    triple: tuple[int, int, int], data: st.DataObject
) -> None:
    """Covered: in no write set are there Qa bookies left that could still say yes."""
    e, qw, qa = triple
    known = data.draw(st.sets(st.integers(0, e - 1)))
    can_go_on = any(
        set(copies).isdisjoint(known)
        for start in range(e)
        for copies in combinations(quorum.write_set(start, e, qw), qa)
    )
    assert quorum.is_covered(known, e, qw, qa) is not can_go_on


@given(triples(), st.integers(0, 50), st.integers(0, 30))
def test_shares_of_a_run(triple: tuple[int, int, int], first: int, count: int) -> None:
    e, qw, _ = triple
    holders: dict[int, list[int]] = {entry_id: [] for entry_id in range(first, first + count)}
    for slot in range(e):
        for entry_id in quorum.entries_of(slot, first, first + count, e, qw):
            holders[entry_id].append(slot)
            assert quorum.has_entry(entry_id, slot, e, qw)
    for entry_id, slots in holders.items():
        assert sorted(slots) == sorted(quorum.write_set(entry_id, e, qw))
