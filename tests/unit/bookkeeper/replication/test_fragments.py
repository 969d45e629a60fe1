"""Fragments against the plain formula, for every quorum and small range."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.client.quorum import entries_of, has_entry, write_set
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.bookkeeper.replication.fragments import (
    Fragment,
    Run,
    count_entries,
    entry_bytes,
    fragments_of,
    join_runs,
    split_runs,
    subtract_runs,
)

QUORUMS = [(e, q) for e in range(1, 7) for q in range(1, e + 1)]


def fragment(size: int, quorum: int, first: int, end: int) -> Fragment:
    bookies = tuple(f"b{n}" for n in range(size))
    return Fragment(1, first, end, bookies, quorum, is_closed=True, is_last=True)


def ids(runs: list[Run]) -> list[int]:
    return [entry for first, end in runs for entry in range(first, end)]


@pytest.mark.parametrize(("size", "quorum"), QUORUMS)
def test_shares_follow_the_formula(size: int, quorum: int) -> None:
    for first, length, slot in itertools.product(range(8), range(15), range(size)):
        tested = fragment(size, quorum, first, first + length)
        wanted = list(entries_of(slot, first, first + length, size, quorum))
        runs = list(tested.runs_of(slot))
        assert ids(runs) == wanted
        assert tested.count_of(slot) == len(wanted)
        assert [tested.nth_of(slot, n) for n in range(len(wanted))] == wanted
        for entry in range(first, first + length):
            owned = has_entry(entry, slot, size, quorum)
            assert tested.owns(slot, entry) is owned
            if owned:
                end = tested.run_end(slot, entry)
                assert all(has_entry(e, slot, size, quorum) for e in range(entry, end))
                assert end == first + length or not has_entry(end, slot, size, quorum)
            assert tested.slots_of(entry) == list(write_set(entry, size, quorum))
        assert not tested.owns(slot, first - 1)
        assert not tested.owns(slot, first + length)


def metadata(state: LedgerState, keys: list[int], last_entry: int = -1) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        segments=tuple(EnsembleSegment(key, (f"a{key}", f"b{key}")) for key in keys),
        state=state,
        last_entry=last_entry,
        length=10 * (last_entry + 1) if closed else 0,
    )


def shape(fragments: list[Fragment]) -> list[tuple[int, int, bool]]:
    return [(f.first_entry, f.end, f.is_closed) for f in fragments]


def test_a_closed_ledger_is_closed_throughout() -> None:
    closed = metadata(LedgerState.CLOSED, [0, 5], 9)
    assert shape(fragments_of(closed)) == [(0, 5, True), (5, 10, True)]
    assert entry_bytes(closed) == 10


def test_fragments_without_entries() -> None:
    assert shape(fragments_of(metadata(LedgerState.CLOSED, [0], -1))) == [(0, 0, True)]
    assert shape(fragments_of(metadata(LedgerState.CLOSED, [0, 5], 4))) == [
        (0, 5, True),
        (5, 5, True),
    ]
    assert entry_bytes(metadata(LedgerState.CLOSED, [0], -1)) == 1


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_the_last_fragment_of_an_open_ledger_is_open(state: LedgerState) -> None:
    """PR #3917: however much the bookies' LAC lags, the earlier ones count as closed."""
    fragments = fragments_of(metadata(state, [0, 5, 7]), last_confirmed=-1)
    assert shape(fragments) == [(0, 5, True), (5, 7, True), (7, 7, False)]
    assert [f.is_last for f in fragments] == [False, False, True]
    assert shape(fragments_of(metadata(state, [0]), last_confirmed=100)) == [(0, 0, False)]


runs = st.lists(st.integers(0, 40), unique=True).map(
    lambda points: [
        (a, b)
        for a, b in itertools.pairwise(sorted(points))
        if sorted(points).index(a) % 2 == 0  # every other gap: no overlaps, maybe neighbours
    ]
)


@given(runs, runs)
def test_subtraction(wanted: list[Run], held: list[Run]) -> None:
    missing = list(subtract_runs(wanted, held))
    assert ids(missing) == [e for e in ids(wanted) if e not in set(ids(held))]
    assert count_entries(missing) == len(ids(missing))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)).map(lambda r: (r[0], sum(r)))))
def test_joining(many: list[Run]) -> None:
    joined = join_runs(many)
    assert ids(joined) == sorted(set(ids(many)))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(joined))


@given(runs, st.integers(1, 7))
def test_splitting(many: list[Run], count_max: int) -> None:
    pieces = list(split_runs(many, count_max))
    assert ids(pieces) == ids(many)
    assert all(0 < end - first <= count_max for first, end in pieces)


@given(
    st.sampled_from(QUORUMS),
    st.tuples(st.integers(0, 30), st.integers(0, 120), st.integers(0, 5)),
    st.sets(st.integers(0, 150)),
    st.integers(1, 9),
)
def test_what_a_slot_owns_is_split_by_its_stripe(
    quorums: tuple[int, int], where: tuple[int, int, int], held: set[int], count_max: int
) -> None:
    """With holes or without: the same entries, and no more spans than that takes."""
    first, length, slot = where
    tested = fragment(*quorums, first, first + length)
    slot %= quorums[0]
    stripe = tested.stripe_of(slot)
    owned = list(tested.runs_of(slot))
    assert all(stripe.has(entry) for entry in ids(owned))
    for missing in (owned, list(subtract_runs(owned, join_runs((e, e + 1) for e in held)))):
        spans = list(split_runs(missing, count_max, stripe))
        assert [entry for span in spans for entry in ids(list(stripe.rows(*span)))] == ids(missing)
        assert all(0 < stripe.count(*span) <= count_max for span in spans)
        assert all(stripe.has(begin) for begin, _ in spans)
    spans = list(split_runs(owned, count_max, stripe))
    assert len(spans) == -(-tested.count_of(slot) // count_max)
