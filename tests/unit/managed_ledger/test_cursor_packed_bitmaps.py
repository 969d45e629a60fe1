"""Acknowledged entries as packed bitmaps and batch sets: near what any code needs, read back, or
refused.
"""

import contextlib
import math
import random
import struct
from collections.abc import Callable, Iterator

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.managed_ledger.cursor import acked_sections, cursor_format
from magnetar.managed_ledger.cursor.column_codec import Expander, compressed, differences, sums
from magnetar.managed_ledger.cursor.cursor_format import (
    CHUNK_BYTES_MAX,
    CHUNK_WORK_MAX,
    SLICE_WORK_MAX,
    CursorSection,
    body_sections,
    decode_record,
    decode_slices,
    encode_increment,
    encode_node_state,
    encode_snapshot,
    work_of,
)
from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from magnetar.managed_ledger.cursor.errors import CursorFormatError
from magnetar.managed_ledger.cursor.packed_sections import (
    PackedBitmaps,
    unpack_bitmaps,
    unpack_sets,
)
from tests.nightly import NIGHTLY

MILLION = 1_000_000
SIZE = pytest.mark.skipif(not NIGHTLY, reason="make nightly: one more pattern of a million holes")
LEDGER = 50_000
"""Entries of a ledger, by default."""


def holes_in(acked: dict[int, BitMap]) -> int:
    return sum(len(x) - x.intersection_cardinality(x.shift(1)) for x in acked.values())


def replayed(records: list[bytes]) -> CursorImage:
    replay = cursor_format.ImageReplay()
    for record in records:
        replay.on_record(decode_record(record, "test"), "test")
    return replay.image("test")


def one_in(few: int, ledger: int = LEDGER) -> dict[int, BitMap]:
    """A million runs of acknowledged entries in a ledger of so many."""
    rng = random.Random(few)
    chosen = ledger // few
    holes = int(chosen * (1 - 1 / few))
    return {n: BitMap(rng.sample(range(1, ledger), chosen)) for n in range(round(MILLION / holes))}


def every(few: int) -> dict[int, BitMap]:
    return {n: BitMap(range(1, LEDGER, few)) for n in range(few * MILLION // LEDGER + 1)}


def all_but(gaps: dict[int, BitMap], ledger: int = LEDGER) -> dict[int, BitMap]:
    return {n: BitMap(range(1, ledger)) - gap for n, gap in gaps.items()}


def clusters(length: int, gap: int) -> dict[int, BitMap]:
    """Runs and gaps of these means."""
    rng = random.Random(length)
    acked = {n: BitMap() for n in range((length + gap) * MILLION // LEDGER + 1)}
    for entries in acked.values():
        at = 1
        while at < LEDGER - 200:
            end = at + drawn(rng, length)
            entries.add_range(at, end)
            at = end + drawn(rng, gap)
    return acked


def drawn(rng: random.Random, mean: int) -> int:
    return 1 + int(math.log(1 - rng.random()) / math.log1p(-1 / mean))


def bound(few: int) -> float:
    """Bytes that any code needs for a million holes with one in ``few`` acknowledged at random."""
    p = 1 / few
    bits_an_entry = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    return MILLION * bits_an_entry / (p * (1 - p)) / 8


def stored(acked: dict[int, BitMap]) -> int:
    """Bytes of a snapshot; it comes back, as a whole and as an increment."""
    assert holes_in(acked) >= 0.99 * MILLION
    image = CursorImage((0, 0), acked, {}, {})
    records = encode_snapshot(image, -1)
    assert max(map(len, records)) <= CHUNK_BYTES_MAX
    assert replayed(records) == image
    increments = encode_increment(image, 0)
    assert replayed([*encode_snapshot(CursorImage((0, 0)), -1), *increments]) == image
    return sum(map(len, records))


@pytest.mark.parametrize("few", [5, 64, 1024, *((9, 16, 128) if NIGHTLY else ())])
def test_a_million_holes_at_random_take_little_more_than_any_code_needs(few: int) -> None:
    acked = one_in(few)
    size = stored(acked)
    assert size * MILLION / holes_in(acked) <= 1.05 * bound(few)
    if few <= 64:
        assert size < MILLION


@pytest.mark.parametrize(
    ("acked", "bytes_max"),
    [
        pytest.param(lambda: every(2), 350_000, id="every second"),
        pytest.param(lambda: every(9), 5_000, id="every ninth", marks=SIZE),
        pytest.param(lambda: every(64), 5_000, id="every 64th", marks=SIZE),
        pytest.param(lambda: every(1000), 20_000, id="every thousandth"),
        pytest.param(lambda: one_in(2), 700_000, id="half of them, at random"),
        pytest.param(lambda: one_in(3), 800_000, id="a third, at random", marks=SIZE),
        pytest.param(lambda: all_but(one_in(64)), 1_010_000, id="all but one in 64", marks=SIZE),
        pytest.param(
            lambda: one_in(64, 65 * MILLION), MILLION, id="one in 64 of one ledger", marks=SIZE
        ),
        pytest.param(lambda: clusters(8, 8), 1_200_000, id="runs and gaps of 8"),
        pytest.param(lambda: clusters(10, 90), 1_650_000, id="runs of 10, gaps of 90"),
    ],
)
def test_a_million_holes_of_any_pattern(
    acked: Callable[[], dict[int, BitMap]], bytes_max: int
) -> None:
    assert stored(acked()) <= bytes_max


@pytest.mark.parametrize("chosen", [0.001, 0.3, 0.999, *((0.01, 0.1, 0.5, 0.9) if NIGHTLY else ())])
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


def test_a_ledger_of_all_kinds_of_blocks() -> None:
    """Full ones, ones with bits, runs, few ids, a few runs in few ids, and none for a while."""
    rng = random.Random(1)
    entries = BitMap(range(10, 200_000))
    entries |= BitMap(rng.sample(range(200_000, 400_000), 100_000))
    entries |= BitMap(rng.sample(range(400_000, 600_000), 20_000))
    entries |= BitMap(range(600_001, 1_200_000)) - BitMap(rng.sample(range(1_200_000), 20_000))
    entries |= BitMap(rng.sample(range(1_300_000, 100_000_000), 20_000))
    entries |= BitMap(range(50_000_000, 50_000_100)) | BitMap([ENTRY_END - 1])
    for start in range(2_000_000, 2_200_000, 17):
        entries.add_range(start, start + rng.randint(1, 12))
    image = CursorImage((0, 0), {3: entries, -1: BitMap(entries)}, {}, {})
    records = encode_snapshot(image, -1)
    assert replayed(records) == image
    assert {record[1] for record in records} == {3}


def test_dense_ledgers_between_sparse_ones_do_not_part_them() -> None:
    rng = random.Random(2)
    sparse = {n: BitMap(rng.sample(range(LEDGER), 100)) for n in range(0, 400, 2)}
    dense = {n: BitMap(rng.sample(range(LEDGER), 25_000)) for n in range(1, 400, 2)}
    acked = {n: (sparse | dense)[n] for n in range(400)}
    sections = list(body_sections(CursorImage((0, 0), acked, {}, {})))
    assert [section[0] for section in sections].count(CursorSection.PACKED_ACKED) == 1
    assert len(sections) == 201


ids = st.one_of(st.integers(0, 300), st.integers(60_000, 70_000), st.integers(0, ENTRY_END - 1))
runs_of_ids = st.builds(
    lambda start, length: range(start, min(start + length, ENTRY_END)), ids, st.integers(1, 40)
)
bitmaps = st.lists(runs_of_ids, min_size=1, max_size=30).map(
    lambda runs: BitMap([n for run in runs for n in run])
)
masks = st.one_of(st.integers(1, 1023), st.integers(1, 2**64 - 1), st.integers(1, 2**130))
ledgers = st.integers(-(2**63), 2**63 - 1)
sets_of_ledgers = st.dictionaries(
    ledgers, st.dictionaries(st.integers(0, ENTRY_END - 1), masks, min_size=1), max_size=6
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(ledgers, bitmaps, max_size=6), sets_of_ledgers, st.integers(1, 200))
def test_whatever_is_packed_comes_back(
    acked: dict[int, BitMap], sets: dict[int, dict[int, int]], work: int
) -> None:
    """With groups so small that all their boundaries are met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acked_sections, "_PACKED_BYTES_MIN", 0)
        patch.setattr(acked_sections, "_PACKED_WORK", work)
        patch.setattr(cursor_format, "_PACKED_SETS_MIN", 1)
        patch.setattr(cursor_format, "_PACKED_SETS", 1 + work % 5)
        patch.setattr(cursor_format, "_SETS_PER_SECTION", 1 + work % 3)
        image = CursorImage((1, 2), {ledger: BitMap(x) for ledger, x in acked.items()}, sets, {})
        [record] = encode_increment(image, 0)
        found = decode_record(record, "test").image
        assert (found.acked, found.batch_sets) == (acked, sets)
    group = PackedBitmaps.of_ids()
    for ledger_id, entries in acked.items():
        listed = BitMap(entries.to_array(), optimize=False)
        group.add_ids(ledger_id, listed.serialize())
    if acked:
        assert dict(unpack_bitmaps(group.body())) == acked


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1))
def test_sums_undo_differences(numbers: list[int]) -> None:
    rows = struct.pack(f"<{len(numbers)}H", *numbers)
    steps = differences(int.from_bytes(rows, "little"), len(rows), 2)
    assert sums(steps, 2) == rows
    if numbers == sorted(numbers):
        before = [0, *numbers]
        found = list(struct.unpack(f"<{len(numbers)}H", steps))
        assert found == [after - first for first, after in zip(before, numbers, strict=False)]


@pytest.mark.parametrize("most", [0, 1, 3, 255])
@pytest.mark.parametrize("filled", [0.0, 0.001, 0.03, 0.3, 1.0])
def test_columns_come_back(most: int, filled: float) -> None:
    """Also those that are packed as planes of bits, as there are hardly any values in them."""
    rng = random.Random(most)
    for size in (1, 8, 1023, 1024, 1025, 5000):
        data = bytes(rng.randint(0, most) if rng.random() < filled else 0 for _ in range(size))
        body = b"head" + compressed(data) + compressed(data[::-1])
        expander = Expander(body, 4)
        assert (expander.next(size), expander.next(size)) == (data, data[::-1])
        expander.end()


def test_columns_with_few_values_are_packed_as_bits() -> None:
    """Huffman's code alone would need a bit for each byte."""
    rng = random.Random(3)
    column = bytes(rng.random() < 0.02 for _ in range(32_000))
    assert len(compressed(column)) < 32_000 / 8 / 3


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
    image.batch_sets = {
        1: {n: rng.getrandbits(64) | 1 for n in range(60_000)},
        2: {n: rng.getrandbits(70) | 1 << 69 for n in range(10_000)},
    }
    sections = list(body_sections(image))
    assert max(map(work_of, sections)) <= 2 * SLICE_WORK_MAX
    kinds = {section[0] for section in sections}
    assert kinds == {
        CursorSection.ACKED,
        CursorSection.PACKED_ACKED,
        CursorSection.BATCH_SETS,
        CursorSection.PACKED_SETS,
    }
    for record in encode_snapshot(image, -1):
        slices = sum(1 for _ in decode_slices(record, "test"))
        done = sum(work_of(record[start - 5 : end]) for _, start, end in sections_of(record))
        assert slices >= done // (3 * SLICE_WORK_MAX)


def sections_of(record: bytes) -> Iterator[tuple[int, int, int]]:
    return cursor_format._sections_in(record, "test")


def test_no_record_is_much_work_however_small_it_is() -> None:
    """A record is merged at once when it has been read."""
    records = encode_snapshot(CursorImage((0, 0), every(64), {}, {}), -1)
    assert sum(map(len, records)) < 5_000
    for record in records:
        work = sum(work_of(record[start - 5 : end]) for _, start, end in sections_of(record))
        assert work <= CHUNK_WORK_MAX + 2 * SLICE_WORK_MAX


def test_sets_may_be_completed_while_they_are_encoded() -> None:
    image = CursorImage((1, 0), {}, {1: dict.fromkeys(range(10_000), 5), 2: {3: 1 << 70}}, {})
    sections = body_sections(image)
    first = next(sections)
    for entry_id in range(0, 10_000, 2):
        image.batch_sets[1].pop(entry_id)
    record = cursor_format.seal_node_state([first, *sections])
    found = decode_record(record, "test").image.batch_sets
    assert found[2] == {3: 1 << 70}
    assert found[1].items() >= image.batch_sets[1].items()
    assert len(found[1]) < 10_000


def test_the_version_says_whether_older_releases_can_read_a_record() -> None:
    plain = CursorImage((0, 0), {1: BitMap(range(1, 50_000, 2)), 2: BitMap([5])}, {3: {1: 1}}, {})
    for record in (*encode_snapshot(plain, -1), *encode_increment(plain, 0)):
        assert record[1] == 1
    assert encode_node_state(plain)[1] == 1
    many_sets = CursorImage((0, 0), {}, {3: dict.fromkeys(range(1000), 5)}, {})
    for packed in (sparse_image(5000), many_sets):
        for record in (*encode_snapshot(packed, -1), *encode_increment(packed, 0)):
            assert record[1] == 3
        assert encode_node_state(packed)[1] == 3


def test_records_of_the_first_version_are_read() -> None:
    """Written by release 0.1: bitmaps of whole ledgers, in one section each."""
    acked = {5: BitMap([3, *range(70_000, 70_010)])}
    body = acked[5].serialize()
    record = b"".join(
        (
            struct.pack(">BBBBIqB", 0xC5, 1, 1, 1, 0, -1, 2),
            struct.pack(">Iq", 8 + len(body), 5) + body,
            struct.pack(">BIqq", 1, 16, 4, 99),
        )
    )
    found = decode_record(record, "test")
    assert found.image.acked == acked
    assert found.image.mark_delete == (4, 99)


def frame(data: bytes) -> bytes:
    """A column or table, stored as it is when it is zero."""
    if not any(data):
        return bytes(4)
    packed = bytes(cramjam.zstd.compress(data))
    return struct.pack(">I", len(packed)) + packed


def table(*columns: list[int], widths: tuple[int, ...]) -> bytes:
    return b"".join(
        bytes(number >> 8 * byte & 0xFF for number in numbers)
        for numbers, width in zip(columns, widths, strict=True)
        for byte in range(width)
    )


def bitmap_body(
    head: tuple[int, int, int, int],
    ledger: list[int],
    counts: list[int],
    containers: list[tuple[int, int]],
    *columns: list[int],
) -> bytes:
    """Containers: key and rows less one; columns: bytes of the steps."""
    tables = table(ledger, [0] * len(ledger), counts, widths=(8, 2, 2))
    tables += table([k for k, _ in containers], [n for _, n in containers], widths=(2, 2))
    return struct.pack(">BIII", *head) + frame(tables) + b"".join(map(frame, map(bytes, columns)))


ONE = bitmap_body((1, 1, 1, 2), [5], [0], [(0, 1)], [0, 3], [0, 0])


def test_the_smallest_body() -> None:
    assert list(unpack_bitmaps(ONE)) == [(5, BitMap([0, 3]))]
    runs = bitmap_body((2, 1, 1, 2), [5], [0], [(1, 1)], [0, 7], [0, 0], [4, 0], [0, 0])
    assert list(unpack_bitmaps(runs)) == [(5, BitMap([*range(65536, 65541), 65547]))]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "unpack"),
        (struct.pack(">BIII", 1, 0, 0, 0), "0 pieces"),
        (struct.pack(">BIII", 3, 1, 1, 1), "rows of 3"),
        (struct.pack(">BIII", 1, 2, 1, 1), "2 pieces, 1 containers"),
        (struct.pack(">BIII", 1, 1, 1, 1 << 30), "1 pieces"),
        (struct.pack(">BIII", 1, 1, 1, 1), "unpack"),
        (struct.pack(">BIIII", 1, 1, 1, 1, 99), "99 bytes announced, 0 left"),
        (struct.pack(">BIIII", 1, 1, 1, 1, 3) + b"abc", "16 bytes announced"),
        (struct.pack(">BIIII", 1, 1, 1, 1, 9 << 28), "9 planes"),
        (struct.pack(">BIIII", 1, 1, 1, 1, 1 << 28), "2 bytes announced"),
        (ONE + b"x", "1 bytes after"),
        (ONE[:-4], "unpack"),
        (bitmap_body((1, 1, 1, 2), [5], [1], [(0, 1)], [0, 3], [0, 0]), "1 containers"),
        (bitmap_body((1, 1, 1, 2), [5], [0], [(0, 2)], [0, 3], [0, 0]), "2 rows announced"),
        (bitmap_body((1, 1, 1, 2), [5], [0], [(0, 1)], [3, 0], [0, 0]), "Invalid bitmap"),
        (
            bitmap_body((1, 1, 1, 5000), [5], [0], [(0, 4999)], [0] + [1] * 4999, [0] * 5000),
            "a list of 5000 ids",
        ),
        (
            bitmap_body((1, 1, 2, 2), [5], [1], [(1, 0), (0, 0)], [0, 3], [0, 0]),
            "Invalid bitmap",
        ),
        (
            bitmap_body((2, 1, 2, 2), [5], [1], [(0, 0), (1, 0)], *([1, 1],) * 4),
            "several containers",
        ),
        (
            bitmap_body((2, 1, 1, 2), [5], [0], [(0, 1)], [0, 9], [0, 0], [0, 250], [0, 255]),
            "Invalid bitmap",
        ),
        (
            bitmap_body((2, 1, 1, 2), [5], [0], [(0, 1)], [1, 1], [0, 0], [0, 0], [200, 200]),
            "ids in a container",
        ),
    ],
)
def test_damaged_bitmaps_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises((ValueError, struct.error), match=reason):
        list(unpack_bitmaps(body))
    place = "cursor sub of log, ledger 7 entry 3"
    record = (
        struct.pack(">BBBBIqBI", 0xC5, 3, 2, 0, 0, 0, CursorSection.PACKED_ACKED, len(body)) + body
    )
    with pytest.raises(CursorFormatError, match=f"^{place}: section 6 at 21"):
        decode_record(record, place)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "unpack"),
        (struct.pack(">II", 0, 0), "0 pieces"),
        (struct.pack(">II", 2, 1), "2 pieces"),
        (struct.pack(">II", 1, 1 << 30), "1 pieces"),
        (struct.pack(">II", 1, 2) + frame(table([5], [1], widths=(8, 4))) + bytes(48), "1 in the"),
        (struct.pack(">II", 1, 1) + frame(table([5], [1], widths=(8, 4))) + bytes(49), "1 bytes"),
    ],
)
def test_damaged_sets_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises((ValueError, struct.error), match=reason):
        list(unpack_sets(body))


def test_any_damaged_byte_gives_a_value_or_a_format_error() -> None:
    rng = random.Random(8)
    acked = {n: BitMap(rng.sample(range(2000), 100)) for n in range(20)}
    acked |= {50: BitMap([n for start in range(0, 9000, 30) for n in range(start, start + 9)])}
    image = CursorImage((5, 9), acked, {5: {n: rng.getrandbits(9) | 1 for n in range(400)}}, {})
    [record] = encode_snapshot(image, -1)
    kinds = {record[start - 5] for _, start, _ in sections_of(record)}
    assert kinds >= {CursorSection.PACKED_ACKED, CursorSection.PACKED_SETS}
    for offset in range(len(record)):
        damaged = bytearray(record)
        damaged[offset] ^= 1 << rng.randrange(8)
        with contextlib.suppress(CursorFormatError):  # any other error fails the test
            assert isinstance(replayed([bytes(damaged)]), CursorImage)


def test_what_a_body_claims_costs_no_more_memory_than_it_may() -> None:
    bomb = bytes(cramjam.zstd.compress(bytes(256 << 20)))
    body = struct.pack(">BIIII", 1, 1, 1, 1, len(bomb)) + bomb
    with pytest.raises(ValueError, match="16 bytes announced"):
        list(unpack_bitmaps(body))
