"""PositionSet against a plain set."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.broker.dispatch.position_set import ENTRY_ID_END, PositionSet

POSITION = st.tuples(st.integers(0, 3), st.integers(0, 30))


def filled(positions: set[tuple[int, int]]) -> PositionSet:
    made = PositionSet()
    for ledger_id, entry_id in positions:
        made.add(ledger_id, (entry_id,))
    return made


@given(st.sets(POSITION), POSITION, POSITION)
def test_remove_range_is_half_open(
    positions: set[tuple[int, int]], first: tuple[int, int], end: tuple[int, int]
) -> None:
    made = filled(positions)
    made.remove_range(first, end)
    assert list(made) == sorted(each for each in positions if not first <= each < end)
    assert all(made.ledgers.values()), "an empty bitmap stayed"


@given(st.sets(POSITION), st.sets(POSITION))
def test_update_and_take(ours: set[tuple[int, int]], others: set[tuple[int, int]]) -> None:
    made = filled(ours)
    made.update(filled(others))
    assert list(made) == sorted(ours | others)
    taken = made.take(1, BitMap(entry for ledger, entry in others if ledger == 1))
    assert set(taken or ()) == {entry for ledger, entry in others if ledger == 1}
    assert set(made) == (ours | others) - {each for each in others if each[0] == 1}


@given(st.sets(POSITION))
def test_first_and_discard_drain_in_order(positions: set[tuple[int, int]]) -> None:
    made, order = filled(positions), []
    while (first := made.first()) is not None:
        assert made.discard(*first)
        assert not made.discard(*first)
        order.append(first)
    assert order == sorted(positions)
    assert not made


def test_ranges_and_lists_are_added_alike() -> None:
    made = PositionSet()
    made.add(5, range(3, 6))
    made.add(5, [9, 7])
    made.add(6, [])
    assert list(made) == [(5, 3), (5, 4), (5, 5), (5, 7), (5, 9)]
    assert len(made) == 5
    assert (5, 7) in made
    assert (6, 7) not in made
    made.remove_below((5, ENTRY_ID_END + 10))
    assert not made
