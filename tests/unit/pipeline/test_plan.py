"""How a range of a topic is cut into slices: nothing twice, nothing left out, always the same."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata
from magnetar.pipeline.errors import DataLossError
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.read_plan import (
    EntryRange,
    InputSplit,
    compacted_ranges_between,
    cut_by_count,
    cut_by_size,
    entries_of,
    entry_ranges_between,
    lost_before,
    narrow_by_id,
    narrow_by_time,
)
from magnetar.pipeline.topic_snapshot import CompactedPart, TopicLedger, TopicSnapshot


def _ledger(
    ledger_id: int,
    entries: int,
    entry_bytes: int = 100,
    *,
    created_ms: int = -1,
    closed_ms: int = 0,
) -> TopicLedger:
    metadata = LedgerMetadata(ledger_id, 1, 1, 1, (EnsembleSegment(0, (f"b{ledger_id}",)),))
    return TopicLedger(
        *(ledger_id, entries, entries * entry_bytes, created_ms, closed_ms, metadata)
    )


def _snapshot(*ledgers: TopicLedger, topic: str = "persistent://t/n/x") -> TopicSnapshot:
    first = next((Offset(x.ledger_id, 0) for x in ledgers if x.entries), Offset(0, 0))
    end = Offset(ledgers[-1].ledger_id, ledgers[-1].entries) if ledgers else Offset(0, 0)
    places = {f"b{x.ledger_id}": ("host", 1) for x in ledgers}
    return TopicSnapshot(topic, ledgers, first, end, bookies=places, instance_id="i")


@st.composite
def _logs(draw: st.DrawFn) -> TopicSnapshot:
    ids = sorted(draw(st.sets(st.integers(0, 50), min_size=1, max_size=8)))
    return _snapshot(*(_ledger(x, draw(st.integers(0, 20)), draw(st.integers(1, 99))) for x in ids))


_POINTS = st.builds(Offset, st.integers(-1, 51), st.integers(0, 21), st.integers(0, 3))


def _entries(pieces: list[EntryRange]) -> Iterator[tuple[int, int]]:
    for piece in pieces:
        yield from ((piece.ledger.ledger_id, entry) for entry in range(piece.first, piece.end))


@given(_logs(), _POINTS, _POINTS)
def test_pieces_are_the_entries_between_two_points(
    log: TopicSnapshot, start: Offset, end: Offset
) -> None:
    stored = [(x.ledger_id, entry) for x in log.ledgers for entry in range(x.entries)]
    last = min(end, log.end)
    wanted = [at for at in stored if start[:2] <= at and Offset(*at) < last and start < last]
    try:
        found = list(_entries(entry_ranges_between(log, start, end)))
    except DataLossError:
        # Only an end behind the last entry of a ledger in the middle can't be.
        ledger = log.find(end.ledger_id)
        assert ledger is not None
        assert end.entry_id + (end.batch_index > 0) > ledger.entries
        return
    assert found == wanted


def test_the_compacted_part_and_the_log_behind_its_horizon() -> None:
    part = CompactedPart(_ledger(7, 6), Offset(2, 5))
    log = replace(_snapshot(_ledger(2, 10), _ledger(3, 4)), compacted=part)
    pieces = compacted_ranges_between(log, BEGINNING, Offset(3, 2), (0, 6))
    assert list(_entries(pieces)) == [
        *((7, entry) for entry in range(6)),
        *((2, entry) for entry in range(5, 10)),
        *((3, 0), (3, 1)),
    ]
    assert (pieces[0].start_point, pieces[0].end_point) == (BEGINNING, part.horizon)
    assert pieces[1].start_point == part.horizon
    for start, end in ((Offset(1, 3), Offset(2, 1, 2)), (Offset(1, 3), Offset(2, 1))):
        (piece,) = compacted_ranges_between(log, start, end, (2, 4))
        assert (piece.first, piece.end, piece.points) == (2, 4, (start, end))
    slices = cut_by_count([(log, pieces)], 3)
    assert [each.start_point for part in slices for each in part.pieces] == [
        *(BEGINNING, BEGINNING, part.horizon, Offset(2, 8), Offset(3, 0)),
    ]
    assert all(each.compacted is part for each in slices)
    # Filters of ids and times say nothing of its entries.
    assert narrow_by_id(pieces, (99, 99), (0, 0)) == pieces[:1]
    assert narrow_by_time(pieces, 5, 6, 0)[0] == pieces[0]
    # What a compaction took away isn't a loss; behind its horizon it would be.
    trimmed = replace(log, first=Offset(3, 0))
    assert not lost_before(trimmed, Offset(1, 0))
    assert not lost_before(trimmed, part.horizon)
    assert lost_before(trimmed, Offset(2, 6))


def test_ends_within_a_batch_are_kept() -> None:
    log = _snapshot(_ledger(1, 10), _ledger(2, 10))
    pieces = entry_ranges_between(log, Offset(1, 4, 2), Offset(2, 3, 5))
    assert [(x.first, x.end, x.first_batch, x.end_batch) for x in pieces] == [
        (4, 10, 2, 0),
        (0, 4, 0, 5),
    ]
    both = entry_ranges_between(log, Offset(1, 4, 2), Offset(1, 4, 5))
    assert [(x.first, x.end, x.first_batch, x.end_batch) for x in both] == [(4, 5, 2, 5)]


def _check_slices(
    slices: list[InputSplit], ranges: list[tuple[TopicSnapshot, list[EntryRange]]]
) -> None:
    for snapshot, pieces in ranges:
        mine = [part for part in slices if part.topic == snapshot.topic]
        cut = [piece for part in mine for piece in part.pieces]
        assert list(_entries(cut)) == list(_entries(pieces))
        assert all(part.entries > 0 for part in mine)
        if pieces:
            assert cut[0].first_batch == pieces[0].first_batch
            assert cut[-1].end_batch == pieces[-1].end_batch
            inner = [x.first_batch for x in cut[1:]] + [x.end_batch for x in cut[:-1]]
            assert not any(inner)
        for part in mine:
            holders = {x.ledger.metadata.segments[0].bookies[0] for x in part.pieces}  # type: ignore[union-attr]
            assert set(part.bookies) == holders


@given(st.lists(_logs(), max_size=4), st.integers(0, 40), st.integers(1, 3000))
def test_slices_cover_everything_once_and_in_order(
    logs: list[TopicSnapshot], slices_min: int, bytes_max: int
) -> None:
    ranges = []
    for number, log in enumerate(logs):
        named = TopicSnapshot(
            *(f"persistent://t/n/{number}", log.ledgers, log.first, log.end),
            bookies=log.bookies,
        )
        ranges.append((named, entry_ranges_between(named, BEGINNING, END)))
    ranges = [each for each in ranges if each[1]]
    by_count = cut_by_count(ranges, slices_min)
    _check_slices(by_count, ranges)
    total = sum(entries_of(pieces) for _, pieces in ranges)
    assert len(by_count) >= min(slices_min, total)
    by_size = cut_by_size(ranges, bytes_max, slices_min)
    _check_slices(by_size, ranges)
    assert len(by_size) >= min(slices_min, total)


def test_small_ledgers_share_a_slice_and_large_ones_are_cut() -> None:
    small = _snapshot(*(_ledger(x, 10) for x in range(50)))
    pieces = entry_ranges_between(small, BEGINNING, END)
    assert len(cut_by_size([(small, pieces)], 10_000, 0)) == 5
    large = _snapshot(_ledger(1, 1000, 1000))
    parts = cut_by_size([(large, entry_ranges_between(large, BEGINNING, END))], 100_000, 0)
    assert [part.entries for part in parts] == [100] * 10


def test_a_batch_of_a_stream_is_cut_the_same_when_ledgers_have_grown_or_were_closed() -> None:
    start, end = Offset(1, 5), Offset(2, 40)
    before = _snapshot(_ledger(1, 10, closed_ms=5), _ledger(2, 40, 10))
    after = _snapshot(_ledger(1, 10, closed_ms=5), _ledger(2, 90, 700, closed_ms=9), _ledger(3, 7))

    def cut(log: TopicSnapshot) -> list[list[tuple[int, int]]]:
        parts = cut_by_count([(log, entry_ranges_between(log, start, end))], 7)
        return [list(_entries(list(part.pieces))) for part in parts]

    assert cut(before) == cut(after)


def test_what_is_lost() -> None:
    log = _snapshot(_ledger(5, 10))
    assert lost_before(log, BEGINNING) == ""
    assert lost_before(log, Offset(5, 0)) == ""
    assert "from 3:7 to 5:0" in lost_before(log, Offset(3, 7))


def test_a_ledger_that_is_too_short_is_not_read_as_if_it_were_whole() -> None:
    log = _snapshot(_ledger(1, 10), _ledger(2, 10))
    with pytest.raises(DataLossError, match="has 10 entries, but should have 12"):
        entry_ranges_between(log, BEGINNING, Offset(1, 12))


@given(_logs(), st.tuples(_POINTS, _POINTS), st.booleans())
def test_filters_on_ids_leave_no_hole_and_nothing_out_that_passes(
    log: TopicSnapshot, ends: tuple[Offset, Offset], one: bool
) -> None:
    (low_ledger, low_entry, _), (high_ledger, high_entry, _) = ends
    if one:
        high_ledger = low_ledger
    everything = list(_entries(entry_ranges_between(log, BEGINNING, END)))
    narrow = list(
        _entries(
            narrow_by_id(
                *(entry_ranges_between(log, BEGINNING, END), (low_ledger, high_ledger)),
                (low_entry, high_entry),
            )
        )
    )
    passing = {
        (ledger, entry)
        for ledger, entry in everything
        if low_ledger <= ledger <= high_ledger and low_entry <= entry <= high_entry
    }
    assert passing <= set(narrow)
    if narrow:
        first = everything.index(narrow[0])
        assert narrow == everything[first : first + len(narrow)]
    if one:
        assert set(narrow) == passing


def test_filters_on_time_spare_ledgers_that_are_out_of_range_by_more_than_the_skew() -> None:
    log = _snapshot(
        _ledger(1, 1, created_ms=100, closed_ms=200),
        _ledger(2, 1, created_ms=200, closed_ms=300),
        _ledger(3, 1, created_ms=-1, closed_ms=310),
        _ledger(4, 1, created_ms=400),
    )
    pieces = entry_ranges_between(log, BEGINNING, END)

    def left(first_ms: int, last_ms: int, skew_ms: int) -> list[int]:
        return [x.ledger.ledger_id for x in narrow_by_time(pieces, first_ms, last_ms, skew_ms)]

    assert left(0, 1000, 0) == [1, 2, 3, 4]
    assert left(250, 260, 0) == [2, 3]
    assert left(250, 260, 50) == [1, 2, 3]
    assert left(500, 600, 0) == [4]
    assert left(0, 90, 0) == [3]
    assert left(405, 410, 100) == [3, 4]


def test_filters_on_time_leave_no_hole_where_the_clock_went_back() -> None:
    log = _snapshot(
        _ledger(1, 1, created_ms=100, closed_ms=200),
        _ledger(2, 1, created_ms=20, closed_ms=30),
        _ledger(3, 1, created_ms=150, closed_ms=250),
    )
    kept = narrow_by_time(entry_ranges_between(log, BEGINNING, END), 120, 220, 0)
    assert [x.ledger.ledger_id for x in kept] == [1, 2, 3]
