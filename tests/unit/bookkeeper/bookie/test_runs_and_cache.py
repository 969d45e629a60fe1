"""Chunks in memory and runs on disk give back exactly the entries that were put in."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import packet
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun, group_chunks, overlay
from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.bookie.storage.write_cache import (
    GROWN_ENTRIES_MAX,
    JOINED,
    WriteCache,
    WriteCacheChunk,
)

TAG = record_format.make_tag(3, 77)


def chunk(
    ids: list[int], size: int = 20, mark: bytes = b""
) -> tuple[WriteCacheChunk, dict[int, bytes]]:
    """A chunk of ledger 1 and the packets in it."""
    bodies = [mark + b"%d" % entry_id + b"x" * size for entry_id in ids]
    heads = [
        packet.encode_head(1, entry_id, -1, 0, b"hd", body)
        for entry_id, body in zip(ids, bodies, strict=True)
    ]
    sizes = [len(head) + len(body) for head, body in zip(heads, bodies, strict=True)]
    buffers = record_format.encode_entries(TAG, record_format.crc_seed(TAG), heads, bodies, sizes)
    spread = [0] * (ids[-1] - ids[0] + 1)
    for entry_id, entry_size in zip(ids, sizes, strict=True):
        spread[entry_id - ids[0]] = entry_size
    packets = {
        entry_id: head + body for entry_id, head, body in zip(ids, heads, bodies, strict=True)
    }
    total = sum(sizes) + RECORD_HEADER_BYTES * len(ids)
    assert sum(map(len, buffers)) == total
    parts = JOINED if len(buffers) == 1 else 3
    return WriteCacheChunk(ids[0], spread, buffers, total, len(ids), parts), packets


@pytest.mark.parametrize("size", [20, 40_000])
@pytest.mark.parametrize("ids", [[5], [5, 6, 7, 8], [5, 7, 8, 12]])
def test_packets_of_a_chunk(ids: list[int], size: int) -> None:
    built, packets = chunk(ids, size)
    assert (built.parts == JOINED) == (size == 20)
    for entry_id in range(ids[0] - 1, ids[-1] + 2):
        assert built.holds(entry_id) == (entry_id in packets)
    for entry_id in ids:
        found = built.packets(entry_id, 1, 0, at_least_one=True)
        assert [bytes(one) for one in found] == [packets[entry_id]]
        single = built.single(entry_id)
        assert b"".join(single.buffers)[RECORD_HEADER_BYTES:] == packets[entry_id]
        assert single.bytes == len(packets[entry_id]) + RECORD_HEADER_BYTES


def test_single_entries_grow_one_chunk() -> None:
    cache = WriteCache()
    expected: dict[int, bytes] = {}
    for entry_id in [*range(3, 3 + GROWN_ENTRIES_MAX + 2), 100, 101]:
        part, packets = chunk([entry_id])
        expected |= packets
        cache.add_record(1, entry_id, part.sizes[0], part.buffers[0])
    entries = cache.ledgers[1]
    assert [len(part.sizes) for part in entries.chunks] == [GROWN_ENTRIES_MAX, 2, 2]
    assert cache.bytes == sum(part.bytes for part in entries.chunks)
    assert cache.entry_count == len(expected) == sum(p.entry_count for p in entries.chunks)
    for entry_id, data in expected.items():
        part_found = cache.find(1, entry_id)
        assert part_found is not None
        assert part_found.packets(entry_id, 1, 0, at_least_one=True) == [data]
        assert part_found.single(entry_id).buffers[0][RECORD_HEADER_BYTES:] == data
    first = entries.chunks[0]
    found = first.packets(5, 4, 1 << 20, at_least_one=True)
    assert found == [expected[entry_id] for entry_id in range(5, 9)]
    cache.add_record(1, 4, 1, b"r" * 17)  # out of order: a late chunk of its own
    assert len(entries.late) == 1


def test_packets_end_at_holes_and_limits() -> None:
    built, packets = chunk([5, 6, 7, 9])
    size = len(packets[5])
    assert len(built.packets(5, 100, 1 << 20, at_least_one=True)) == 3
    assert len(built.packets(5, 2, 1 << 20, at_least_one=True)) == 2
    assert len(built.packets(5, 100, 2 * size, at_least_one=True)) == 2
    assert len(built.packets(5, 100, 0, at_least_one=True)) == 1
    assert built.packets(5, 100, 0, at_least_one=False) == []
    assert len(built.packets(9, 100, 1 << 20, at_least_one=True)) == 1


def test_the_newest_copy_wins_in_the_cache_and_in_its_order() -> None:
    cache = WriteCache()
    cache.add(1, chunk([0, 1, 2, 3])[0])
    late, packets = chunk([1, 2], mark=b"late")
    cache.add(1, late)
    cache.add(1, chunk([4, 5])[0])
    found = cache.find(1, 2)
    assert found is late
    entries = cache.ledgers[1]
    ordered = entries.ordered()
    assert [part.first for part in ordered] == [0, 1, 2, 3, 4, 5]
    assert b"".join(ordered[2].buffers)[RECORD_HEADER_BYTES:] == packets[2]
    assert sorted(set(entries.entry_ids())) == [0, 1, 2, 3, 4, 5]
    cache.drop(1)
    assert (cache.bytes, cache.entry_count, cache.find(1, 0)) == (0, 0, None)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.integers(1, 12))
def test_grouping_keeps_every_entry_and_every_byte(seeds: list[int], entries_max: int) -> None:
    chunks, first = [], 0
    for seed in seeds:
        first += seed % 4 + (seed % 30 if seed > 50 else 0)
        ids = [first + at for at in range(1 + seed % 3)]
        chunks.append(chunk(ids)[0])
        first = ids[-1] + 1
    expected = [id_ for part in chunks for id_ in range(part.first, part.end)]
    found: list[int] = []
    for start, sizes, parts in group_chunks(chunks, entries_max, 600):
        assert len(sizes) <= max(entries_max, max(len(part.sizes) for part in parts))
        assert sizes[0] > 0
        assert sizes[-1] > 0
        found += [start + at for at, size in enumerate(sizes) if size]
        total = sum(part.bytes for part in parts)
        assert LocationRun(start, 1, 0, sizes).bytes == total
        assert total <= 600 or len(parts) == 1
    assert found == expected


def locations(runs: list[LocationRun]) -> dict[int, tuple[int, int]]:
    """Entry id -> (log, offset of its record); fails when two runs overlap."""
    found: dict[int, tuple[int, int]] = {}
    end = 0
    for run in runs:
        assert run.first >= end
        end = run.end
        assert run.sizes[0] > 0
        assert run.sizes[-1] > 0
        for entry_id, size in enumerate(run.sizes, run.first):
            if size:
                found[entry_id] = (run.log_id, run.offset_of(entry_id))
    return found


@given(st.integers(0, 10_000))
def test_overlay_equals_writing_entry_by_entry(seed: int) -> None:
    rng = random.Random(seed)

    def random_runs(log_id: int) -> list[LocationRun]:
        runs, first, offset = [], rng.randrange(5), 0
        for _ in range(rng.randrange(1, 4)):
            sizes = [rng.choice([0, 10, 20]) for _ in range(rng.randrange(1, 8))]
            sizes[0], sizes[-1] = 10, 10
            runs.append(LocationRun(first, log_id, offset, sizes))
            offset += runs[-1].bytes + 100
            first = runs[-1].end + rng.randrange(6)
        return runs

    current: list[LocationRun] = []
    expected: dict[int, tuple[int, int]] = {}
    for log_id in range(1, 4):
        new = random_runs(log_id)
        current = overlay(current, new)
        expected |= locations(new)
        assert locations(current) == expected


def test_part_trims_holes() -> None:
    run = LocationRun(10, 1, 100, [5, 0, 0, 7, 0, 9])
    part = run.part(11, 15)
    assert part == LocationRun(13, 1, 100 + 5 + RECORD_HEADER_BYTES, [7])
    assert run.part(11, 13) is None
    assert run.part(0, 99) == run
