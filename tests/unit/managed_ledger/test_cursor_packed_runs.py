"""Acknowledged entries as packed runs: small whatever the pattern, read back, or refused."""

from __future__ import annotations

import math
import random
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from managed_ledger.cursor import cursor_format
from managed_ledger.cursor.cursor_format import (
    SLICE_WORK_MAX,
    Section,
    body_sections,
    decode_record,
    decode_slices,
    encode_increment,
    encode_node_state,
    encode_snapshot,
    work_of,
)
from managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from managed_ledger.cursor.packed_runs import edges_of, pack_runs, unpack_runs

MILLION = 1_000_000
LEDGER = 50_000
"""Entries of a ledger, by default."""


def runs_in_all(acked: dict[int, BitMap]) -> int:
    return sum(len(x) - x.intersection_cardinality(x.shift(1)) for x in acked.values())


def spread(distance: Callable[[], int], length: Callable[[], int]) -> dict[int, BitMap]:
    """A million holes, over as many ledgers as it takes."""
    acked: dict[int, BitMap] = {}
    ledger_id, at = 0, 1
    starts: list[tuple[int, int]] = []
    for _ in range(MILLION):
        end = at + length()
        if end >= LEDGER:
            acked[ledger_id] = made(starts)
            ledger_id, at, starts = ledger_id + 1, 1, []
            end = at + length()
        starts.append((at, end))
        at = end + distance()
    acked[ledger_id] = made(starts)
    return acked


def made(runs: list[tuple[int, int]]) -> BitMap:
    found = BitMap([start for start, end in runs if end - start == 1])
    for start, end in runs:
        if end - start > 1:
            found.add_range(start, end)
    return found


def at_random(mean: int, seed: int = 3) -> Callable[[], int]:
    """How far it is to the next one when one in ``mean`` is chosen."""
    chance, scale = random.Random(seed), 1 / -math.log1p(-1 / mean)
    return lambda: 1 + int(-math.log(1 - chance.random()) * scale)


def one() -> int:
    return 1


@pytest.mark.parametrize(
    ("name", "distance", "length", "bytes_max"),
    [
        ("one in 9 is acknowledged", lambda: 8, one, 50_000),
        ("one in 8, at random", at_random(8), one, 650_000),
        ("one in 16, at random", at_random(16), one, 800_000),
        ("one in 64, at random", at_random(64), one, MILLION),
        ("all but one in 64, at random", one, at_random(64), MILLION),
        ("runs and gaps of 8, at random", at_random(8, 1), at_random(8, 2), 1_200_000),
        ("one in 1000", lambda: 999, one, 100_000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_million_holes_of_any_pattern(
    name: str, distance: Callable[[], int], length: Callable[[], int], bytes_max: int
) -> None:
    image = CursorImage((0, 0), spread(distance, length), {}, {})
    assert runs_in_all(image.acked) >= 990_000
    records = encode_snapshot(image, -1)
    assert sum(map(len, records)) <= bytes_max
    replay = cursor_format.Replay()
    for record in records:
        replay.on_record(decode_record(record, "test"), "test")
    assert replay.image("test") == image


@pytest.mark.parametrize("chosen", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_million_messages_never_cost_more_than_their_bits(chosen: float) -> None:
    """Whatever is acknowledged of a window of so many: bits of 20 ledgers, each a multiple of 8 KiB
    as bitmaps are, and the frames of sections.
    """
    rng = random.Random(chosen)
    acked = {
        ledger_id: BitMap([n for n in range(LEDGER) if rng.random() < chosen])
        for ledger_id in range(20)
    }
    assert sum(map(len, encode_snapshot(CursorImage((0, 0), acked), -1))) <= 20 * (8192 + 64)


ids = st.one_of(st.integers(0, 300), st.integers(60_000, 70_000), st.integers(0, ENTRY_END - 1))
runs_of_ids = st.builds(
    lambda start, length: range(start, min(start + length, ENTRY_END)), ids, st.integers(1, 40)
)
bitmaps = st.lists(runs_of_ids, min_size=1, max_size=30).map(
    lambda runs: BitMap([n for run in runs for n in run])
)


@settings(deadline=None)
@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), bitmaps, max_size=6), st.integers(1, 40))
def test_whatever_is_packed_comes_back(acked: dict[int, BitMap], piece: int) -> None:
    """With pieces and groups so small that all their boundaries are met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_format, "_PACKED_BYTES_MIN", 0)
        patch.setattr(cursor_format, "_PIECE_ENTRIES", piece)
        patch.setattr(cursor_format, "_PACKED_EDGES", piece)
        image = CursorImage((1, 2), {ledger: BitMap(x) for ledger, x in acked.items()}, {}, {})
        [record] = encode_increment(image, 0)
        assert decode_record(record, "test").image.acked == acked
    pieces = [(n, edges_of(x)) for n, x in acked.items() if x.max() < ENTRY_END - 1]
    if pieces:
        unpacked = dict(unpack_runs(pack_runs(pieces)))
        assert unpacked == {n: acked[n] for n, _ in pieces}


def sparse_image(count: int = 300_000) -> CursorImage:
    rng = random.Random(5)
    return CursorImage((0, 0), {7: BitMap(rng.sample(range(count * 20), count))}, {}, {})


def test_no_slice_is_much_work() -> None:
    """Neither of what is sparse nor of what is dense, of runs, of ledgers with little, of sets."""
    rng = random.Random(6)
    image = sparse_image()
    image.acked[8] = BitMap(rng.sample(range(4_000_000), 2_000_000))
    image.acked[9] = BitMap(range(1, 50_000_000)) - BitMap(range(1, 50_000_000, 100))
    image.acked |= {n: BitMap([n]) for n in range(100, 20_000)}
    image.batch_sets = {1: {n: rng.getrandbits(64) | 1 for n in range(60_000)}}
    sections = list(body_sections(image))
    assert max(map(work_of, sections)) <= 2 * SLICE_WORK_MAX
    kinds = {section[0] for section in sections}
    assert kinds == {Section.ACKED, Section.RUNS, Section.BATCH_SETS}
    for record in encode_snapshot(image, -1):
        slices = sum(1 for _ in decode_slices(record, "test"))
        done = sum(work_of(record[start - 5 : end]) for _, start, end in sections_of(record))
        assert slices >= done // (3 * SLICE_WORK_MAX)


def sections_of(record: bytes) -> Iterator[tuple[int, int, int]]:
    return cursor_format._sections_in(record, "test")


def test_the_version_says_whether_older_releases_can_read_a_record() -> None:
    plain = CursorImage((0, 0), {1: BitMap(range(1, 50_000, 2)), 2: BitMap([5])}, {3: {1: 1}}, {})
    for record in (*encode_snapshot(plain, -1), *encode_increment(plain, 0)):
        assert record[1] == 1
    assert encode_node_state(plain)[1] == 1
    sparse = sparse_image(5000)
    for record in (*encode_snapshot(sparse, -1), *encode_increment(sparse, 0)):
        assert record[1] == 2
    assert encode_node_state(sparse)[1] == 2


def test_records_of_the_first_version_are_read() -> None:
    """Written by release 0.1: bitmaps of whole ledgers, in one section each."""
    acked = {5: BitMap([3, *range(70_000, 70_010)])}
    body = acked[5].serialize()
    record = b"".join(
        (
            struct.pack(">BBBBIq", 0xC5, 1, 1, 1, 0, -1),
            struct.pack(">BIq", 2, 8 + len(body), 5) + body,
            struct.pack(">BIqq", 1, 16, 4, 99),
        )
    )
    found = decode_record(record, "test")
    assert found.image.acked == acked
    assert found.image.mark_delete == (4, 99)


def columns_of(numbers: array[int], width: int) -> bytes:
    return b"".join(numbers.tobytes()[n::width] for n in range(width))


def packed_body(
    pieces: int, runs: int, ledgers: list[int], counts: list[int], numbers: list[int]
) -> bytes:
    """A body that says what it is told to; numbers: distance and length of each run."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    heads = columns_of(array("Q", ledgers), 8) + columns_of(array("I", counts), 4)
    data = heads + columns_of(array("I", numbers), 8)
    return struct.pack(">II", pieces, runs) + packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "unpack"),
        (struct.pack(">II", 1, 1), "announced, 0 or more found"),
        (struct.pack(">II", 0, 0), "0 pieces"),
        (struct.pack(">II", 2, 1), "2 pieces with 1 runs"),
        (struct.pack(">II", 1, 1 << 30), "1 pieces with"),
        (struct.pack(">II", 1, 1) + b"\xff\xff", "invalid"),
        (packed_body(1, 2, [5], [2], [1, 1]), "28 bytes announced"),
        (packed_body(1, 1, [5], [1], [1, 1, 1, 1]), "20 bytes announced"),
        (packed_body(1, 1, [5], [1], [1, 1]) + b"x", "20 bytes announced"),
        (packed_body(1, 1, [5], [2], [1, 1]), "1 runs announced, 2 in the pieces"),
        (packed_body(2, 2, [5, 6], [2, 0], [1, 1, 1, 1]), "empty piece"),
        (packed_body(1, 1, [5], [1], [ENTRY_END - 1, 1]), "beyond"),
    ],
)
def test_damaged_bodies_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises((ValueError, struct.error), match=reason):
        list(unpack_runs(body))


def test_what_a_body_claims_costs_no_more_memory_than_it_may() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = bomb.compress(bytes(256 << 20)) + bomb.flush()
    with pytest.raises(ValueError, match="20 bytes announced, 21 or more found"):
        list(unpack_runs(struct.pack(">II", 1, 1) + data))
