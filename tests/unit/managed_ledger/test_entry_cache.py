"""The entry cache: chunks, slices, budgets and who goes first."""

import random
from collections.abc import Callable

import pytest

from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.entry_cache import (
    CHUNK_ENTRIES_MAX,
    ENTRY_OVERHEAD_BYTES,
    IDLE_SWEEPS,
    READ_WINDOW_CHUNKS,
    TAIL_WINDOW_CHUNKS,
    EntryCache,
    LedgerCache,
    cut_to_bytes,
    retained_bytes,
)
from magnetar.managed_ledger.position import LATEST, Position

HEAD = b"hh"
BODY = b"b" * 98
COST = 100 + ENTRY_OVERHEAD_BYTES


def reader_at(position: Position | None) -> Callable[[], Position | None]:
    return lambda: position


def add(log: LedgerCache, ledger_id: int, first: int, count: int) -> None:
    bodies: list[Buffer] = [b"%098d" % (first + i) for i in range(count)]
    log.append(ledger_id, first, [HEAD] * count, bodies, 100 * count)


def run(ledger_id: int, first: int, count: int) -> EntryBatch:
    return EntryBatch(ledger_id, first, [HEAD] * count, [BODY] * count)


def test_appends_join_into_chunks_and_are_found() -> None:
    cache = EntryCache(1 << 20)
    log = LedgerCache(cache, reader_at((1, -1)))
    for first in range(0, 600, 3):
        add(log, 1, first, 3)
    assert [x.first for x in log.chunks] == [0, 255, 510]
    assert cache.size == cache.tail_bytes == 600 * COST
    for entry in (0, 254, 255, 599):
        chunk = log.find(1, entry)
        assert chunk is not None
        assert chunk.slice(entry, 1, 10).bodies == [b"%098d" % entry]
    for position in ((1, 600), (0, 0), (2, 0), (1, -1)):
        assert log.find(*position) is None
    add(log, 1, 700, 1)  # a gap starts a chunk of its own
    assert log.find(1, 650) is None
    add(log, 2, 0, 1)
    chunk = log.find(2, 0)
    assert chunk is log.tail is log.chunks[-1]
    assert log.room_after(1, 0) == 255
    assert log.room_after(1, 700) is None
    log.clear()
    assert cache.is_empty
    assert cache.size == 0
    assert log.tail is None


def test_long_append_is_cut_into_chunks() -> None:
    log = LedgerCache(EntryCache(1 << 24), reader_at((1, -1)))
    add(log, 1, 0, 2 * CHUNK_ENTRIES_MAX + 1)
    assert [len(x.heads) for x in log.chunks] == [CHUNK_ENTRIES_MAX, CHUNK_ENTRIES_MAX, 1]


def test_slices_respect_both_limits() -> None:
    log = LedgerCache(EntryCache(1 << 20), reader_at((1, -1)))
    add(log, 1, 0, 10)
    assert log.tail is not None
    assert len(log.tail.slice(2, 5, 1 << 20)) == 5
    assert len(log.tail.slice(2, 100, 1 << 20)) == 8
    assert len(log.tail.slice(2, 100, 1)) == 1
    assert len(log.tail.slice(2, 100, 299)) == 2
    assert len(log.tail.slice(2, 100, 300)) == 3
    assert log.tail.slice(2, 100, 300).last == 4


def test_cut_to_bytes() -> None:
    heads, bodies = [HEAD] * 3, list[Buffer]([b"x", b"y", b"z"])
    cut_to_bytes(heads, bodies, 9)
    assert len(heads) == len(bodies) == 3
    cut_to_bytes(heads, bodies, 8)
    assert len(heads) == len(bodies) == 2
    cut_to_bytes(heads, bodies, 0)
    assert bodies == [b"x"]


def test_views_are_charged_for_the_buffer_they_keep() -> None:
    buffer = bytes(5000)
    views: list[Buffer] = [memoryview(buffer)[:10], memoryview(buffer)[10:20], b"short"]
    assert retained_bytes([HEAD] * 3, views, 31) == 5000
    assert retained_bytes([HEAD], [b"x"], 3) == 3 + ENTRY_OVERHEAD_BYTES


def test_an_unread_log_keeps_a_window() -> None:
    cache = EntryCache(1 << 24)
    log = LedgerCache(cache, reader_at(None))
    add(log, 1, 0, 20 * CHUNK_ENTRIES_MAX)
    assert len(log.chunks) == TAIL_WINDOW_CHUNKS
    assert log.find(1, 20 * CHUNK_ENTRIES_MAX - 1) is not None
    assert cache.size == TAIL_WINDOW_CHUNKS * CHUNK_ENTRIES_MAX * COST


def test_a_log_that_is_read_keeps_more() -> None:
    log = LedgerCache(EntryCache(1 << 26), reader_at(None))
    for chunk in range(2 * READ_WINDOW_CHUNKS):
        log.is_read = True
        add(log, 1, chunk * CHUNK_ENTRIES_MAX, CHUNK_ENTRIES_MAX)
    assert len(log.chunks) == READ_WINDOW_CHUNKS
    add(log, 2, 0, 1)
    assert len(log.chunks) == TAIL_WINDOW_CHUNKS


def test_passed_chunks_go_before_older_ones_that_are_wanted() -> None:
    cache = EntryCache(10 * 100 * COST)
    wanted = LedgerCache(cache, reader_at((1, -1)))
    passed = LedgerCache(cache, reader_at(LATEST))
    for ledger in range(1, 6):
        add(wanted, ledger, 0, 100)
        add(passed, ledger, 0, 100)
    add(wanted, 6, 0, 100)
    assert [x.ledger_id for x in wanted.chunks] == [1, 2, 3, 4, 5, 6]
    assert [x.ledger_id for x in passed.chunks] == [2, 3, 4, 5]
    for ledger in range(7, 12):
        add(wanted, ledger, 0, 100)
    assert passed.chunks == []
    assert [x.ledger_id for x in wanted.chunks] == list(range(2, 12))  # then the oldest
    assert cache.size <= cache.bytes_max


def test_backlog_does_not_push_out_tails() -> None:
    cache = EntryCache(100 * 100 * COST)
    tails = LedgerCache(cache, reader_at((1, -1)))
    for ledger in range(1, 71):
        add(tails, ledger, 0, 100)
    backlog = LedgerCache(cache, reader_at(None))
    for first in range(0, 100_000, 100):
        backlog.add_read(run(1, first, 100))
    assert len(tails.chunks) == 70
    assert 20 <= len(backlog.chunks) <= 25
    assert backlog.find(1, 99_999) is not None
    for ledger in range(71, 101):  # tails that grow push out backlog first
        add(tails, ledger, 0, 100)
    assert len(tails.chunks) >= 93
    assert cache.size <= cache.bytes_max


def test_overlapping_reads_are_ignored() -> None:
    cache = EntryCache(1 << 20)
    log = LedgerCache(cache, reader_at((1, -1)))
    log.add_read(run(1, 10, 10))
    for first, count in ((10, 10), (5, 6), (19, 5), (12, 2), (0, 40)):
        log.add_read(run(1, first, count))
    assert len(log.chunks) == 1
    log.add_read(run(1, 20, 5))
    log.add_read(run(1, 5, 5))
    log.add_read(run(2, 10, 10))
    assert [(x.ledger_id, x.first) for x in log.chunks] == [(1, 5), (1, 10), (1, 20), (2, 10)]
    log.drop_ledgers(2)
    assert [x.ledger_id for x in log.chunks] == [2]
    assert cache.read_bytes == 10 * COST


def test_a_cache_without_budget_keeps_nothing() -> None:
    cache = EntryCache(0)
    log = LedgerCache(cache, reader_at((1, -1)))
    add(log, 1, 0, 10)
    log.add_read(run(1, 0, 10))
    assert cache.is_empty
    assert log.chunks == []


@pytest.mark.parametrize(("slowest", "sweeps"), [(LATEST, IDLE_SWEEPS), (None, IDLE_SWEEPS)])
def test_sweeps_drop_what_nobody_wants(slowest: Position | None, sweeps: int) -> None:
    cache = EntryCache(1 << 20)
    log = LedgerCache(cache, reader_at(slowest))
    wanted = LedgerCache(cache, reader_at((1, -1)))
    for target in (log, wanted):
        add(target, 1, 0, 10)
        target.add_read(run(2, 0, 10))
    for _ in range(sweeps - 1):
        cache.sweep()
    assert len(log.chunks) == 2
    cache.sweep()
    assert log.chunks == []
    assert len(wanted.chunks) == 2
    for _ in range(9 * IDLE_SWEEPS):
        cache.sweep()
    assert cache.is_empty
    assert cache.size == 0


@pytest.mark.parametrize("seed", range(20))
def test_books_and_contents_stay_right(seed: int) -> None:
    """Random appends, reads, evictions: charges add up and every hit has the right bytes."""
    rng = random.Random(seed)
    cache = EntryCache(60 * COST)
    logs = [LedgerCache(cache, reader_at(rng.choice([None, (1, 50), LATEST]))) for _ in range(3)]
    ends = [0, 0, 0]
    for _ in range(400):
        which = rng.randrange(3)
        log = logs[which]
        action = rng.random()
        if action < 0.6:
            count = rng.randint(1, 6)
            add(log, 1, ends[which], count)
            ends[which] += count
        elif action < 0.85 and ends[which]:
            first = rng.randrange(ends[which])
            count = rng.randint(1, ends[which] - first)
            bodies: list[Buffer] = [b"%098d" % (first + i) for i in range(count)]
            log.add_read(EntryBatch(1, first, [HEAD] * count, bodies))
        elif action < 0.95:
            cache.sweep()
        else:
            log.clear()
        chunks = [x for each in logs for x in each.chunks]
        assert cache.size == sum(x.size for x in chunks) <= cache.bytes_max
        for each in logs:
            assert each.keys == sorted((x.ledger_id, x.first) for x in each.chunks)
        entry = rng.randrange(ends[which] + 1)
        if (chunk := log.find(1, entry)) is not None:
            assert chunk.slice(entry, 1, 1).bodies == [b"%098d" % entry]
