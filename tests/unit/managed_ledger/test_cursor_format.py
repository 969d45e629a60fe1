"""Stored cursors: what is written is read, what is damaged is refused with its place."""

import contextlib
import random
import struct
from collections.abc import Callable

import pytest
from pyroaring import BitMap

from magnetar.managed_ledger.cursor import cursor_format
from magnetar.managed_ledger.cursor.cursor_format import (
    CHUNK_BYTES_MAX,
    ImageReplay,
    SectionKind,
    decode_node_state,
    decode_record,
    encode_increment,
    encode_node_state,
    encode_snapshot,
    first_entry_to_read,
)
from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from magnetar.managed_ledger.cursor.cursor_store import CursorNode, decode_node, encode_node
from magnetar.managed_ledger.cursor.errors import CursorFormatError

WHERE = "cursor sub of log, ledger 7 entry 3"


def small_image() -> CursorImage:
    return CursorImage(
        (5, 9),
        {5: BitMap([11, 12, 700]), 6: BitMap([0, ENTRY_END - 1])},
        {5: {13: 0b101, 14: 1 << 100}, 8: {0: 2**64 - 1}},
        {"a": -1, "ü": 2**63 - 1, "": 0},
    )


def replayed(records: list[bytes]) -> CursorImage:
    replay = ImageReplay()
    for record in records:
        replay.on_record(decode_record(record, WHERE), WHERE)
    return replay.image(WHERE)


def test_a_snapshot_and_increments_come_back() -> None:
    image = small_image()
    records = encode_snapshot(image, -1)
    assert len(records) == 1
    assert replayed(records) == image
    increment = CursorImage((5, 10), {6: BitMap([1]), 9: BitMap([4])}, {5: {13: 0b1}}, None)
    records += encode_increment(increment, 0)
    records += encode_increment(CursorImage((5, 11), properties={}), 0)
    found = replayed(records)
    assert found.mark_delete == (5, 11)
    assert found.acked == {
        5: BitMap([11, 12, 700]),
        6: BitMap([0, 1, ENTRY_END - 1]),
        9: BitMap([4]),
    }
    assert found.batch_sets[5] == {13: 0b1, 14: 1 << 100}
    assert found.properties == {}


def test_property_values_wrap_as_64_bit() -> None:
    image = CursorImage((1, 1), properties={"big": 2**64 - 1})
    assert replayed(encode_snapshot(image, -1)).properties == {"big": -1}


def test_an_ordinary_increment_is_small() -> None:
    assert len(encode_increment(CursorImage((5, 10)), 0)[0]) == 37
    acked = CursorImage((5, 10), {5: BitMap(range(100, 200))})
    assert len(encode_increment(acked, 0)[0]) <= 70


@pytest.mark.parametrize("sparse", [2, 50])
def test_large_states_are_chunked(sparse: int) -> None:
    rng = random.Random(sparse)
    acked = {
        1: BitMap(range(1, 10_000_000, sparse)),
        2: BitMap(rng.sample(range(100_000), 50_000)),
        3: BitMap([1, ENTRY_END - 1]),
    }
    sets = {4: {n: rng.getrandbits(64) | 1 for n in range(200_000)}}
    image = CursorImage((1, 0), acked, sets, {"p": 1})
    records = encode_snapshot(image, 17)
    assert len(records) > 2
    assert max(map(len, records)) <= CHUNK_BYTES_MAX
    assert replayed(records) == image
    chunks = [decode_record(record, WHERE) for record in records]
    assert [chunk.chunk for chunk in chunks] == list(range(len(records)))
    assert [chunk.is_last_chunk for chunk in chunks] == [False] * (len(records) - 1) + [True]
    assert {chunk.base for chunk in chunks} == {17}
    increments = encode_increment(image, 3)
    assert len(increments) > 2
    assert replayed([*encode_snapshot(CursorImage((0, 0)), -1), *increments]) == image


def _random_half(seed: int) -> BitMap:
    return BitMap(random.Random(seed).sample(range(1, 50_000), 25_000))


@pytest.mark.parametrize(
    "holes",
    [
        pytest.param(
            lambda: {n: BitMap(range(1, 50_000, 2)) for n in range(40)}, id="every second"
        ),
        pytest.param(lambda: {n: _random_half(n) for n in range(80)}, id="a random half"),
        pytest.param(lambda: {1: BitMap(range(1, 8_000_000, 8))}, id="every eighth"),
    ],
)
def test_a_million_holes_cost_less_than_a_megabyte(
    holes: Callable[[], dict[int, BitMap]],
) -> None:
    """Issue 7's bound, of a whole snapshot; and what one more acknowledgement costs then."""
    acked = holes()
    image = CursorImage((0, 0), acked, {}, {})
    assert sum(len(x) - x.intersection_cardinality(x.shift(1)) for x in acked.values()) >= 990_000
    assert sum(map(len, encode_snapshot(image, -1))) < 1 << 20
    one = CursorImage((0, 0), {39: BitMap([40_000])})
    assert sum(map(len, encode_increment(one, 0))) < 100


def test_batch_sets_of_the_largest_size() -> None:
    sets = {n: (1 << 4096 * 64) - 1 - n for n in range(40)}
    records = encode_snapshot(CursorImage((1, 0), {}, {1: sets}, {}), -1)
    assert max(map(len, records)) <= CHUNK_BYTES_MAX
    assert replayed(records).batch_sets == {1: sets}


def test_a_torn_snapshot_leaves_the_older_one() -> None:
    image = CursorImage((1, 0), {1: BitMap(range(2, 20_000_000, 3))}, {}, {})
    records = encode_snapshot(CursorImage((0, 5)), -1)
    records += encode_increment(CursorImage((0, 7)), 0)
    chunks = encode_snapshot(image, 0)
    assert len(chunks) > 3
    for torn in range(len(chunks)):
        entries = [*records, *chunks[:torn]]
        last = decode_record(entries[-1], WHERE)
        assert first_entry_to_read(len(entries) - 1, last, WHERE) == 0
        assert replayed(entries).mark_delete == (0, 7)
    entries = [*records, *chunks]
    first = first_entry_to_read(len(entries) - 1, decode_record(entries[-1], WHERE), WHERE)
    assert first == 2
    assert replayed(entries[first:]).mark_delete == (1, 0)
    # and, though nobody writes so: increments after a torn snapshot belong to the older one
    entries = [*records, chunks[0], *encode_increment(CursorImage((0, 9)), 0)]
    assert replayed(entries).mark_delete == (0, 9)


def test_records_in_a_wrong_order() -> None:
    chunks = encode_snapshot(CursorImage((1, 0), {1: BitMap(range(2, 20_000_000, 3))}), -1)
    [increment] = encode_increment(CursorImage((1, 1)), -1)
    node = encode_node_state(small_image())
    for records, reason in (
        ([increment], "without a snapshot"),
        (chunks[1:], "without the one before"),
        ([chunks[0], *chunks[2:]], "without the one before"),
        (chunks[:-1], "no complete snapshot"),
        ([], "no complete snapshot"),
        ([node], "kind NODE"),
    ):
        with pytest.raises(CursorFormatError, match=reason):
            replayed(records)
    with pytest.raises(CursorFormatError, match="no complete snapshot before"):
        first_entry_to_read(0, decode_record(increment, WHERE), WHERE)
    with pytest.raises(CursorFormatError, match="no complete snapshot before"):
        first_entry_to_read(0, decode_record(chunks[1], WHERE), WHERE)
    with pytest.raises(CursorFormatError, match="kind INCREMENT"):
        decode_node_state(increment, WHERE)


def sealed(section: int, body: bytes, kind: int = SectionKind.SNAPSHOT, version: int = 1) -> bytes:
    return struct.pack(">BBBBIqBI", 0xC5, version, kind, 1, 0, -1, section, len(body)) + body


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "0 bytes are too short"),
        (bytes(16), "magic 0x00"),
        (
            sealed(1, bytes(16), version=5),
            "format version 5 is unknown, this release reads 1 to 4",
        ),
        (sealed(1, bytes(16), kind=9), "unknown record kind 9"),
        (sealed(1, bytes(16)) + b"\1", "cut off at offset 37"),
        (sealed(1, bytes(16))[:-1], "has 16 bytes, 15 are left"),
        (sealed(9, b""), "unknown section type"),
        (sealed(1, bytes(15)), "requires a buffer"),
        (sealed(2, bytes(4)), "section 2"),
        (sealed(2, bytes(8)), "section 2"),
        (sealed(2, bytes(8) + b"junk"), "section 2"),
        (sealed(3, bytes(8) + b"\0\0\0\1"), "section 3"),
        (sealed(3, struct.pack(">qIIH", 1, 1, 1, 2) + bytes(15)), "16 bytes of words announced"),
        (sealed(4, struct.pack(">I", 1)), "section 4"),
        (sealed(4, struct.pack(">IIQ", 1, 3, 0) + b"ab"), "name is cut off"),
        (sealed(4, struct.pack(">IIQ", 1, 1, 0) + b"\xff"), "utf-8"),
        (sealed(4, struct.pack(">I", 0) + b"x"), "1 bytes after the last property"),
    ],
)
def test_damaged_records_are_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(CursorFormatError, match=reason) as caught:
        decode_record(payload, WHERE)
    assert str(caught.value).startswith(WHERE)


def test_a_snapshot_must_say_where_mark_delete_is() -> None:
    record = sealed(4, struct.pack(">I", 0))
    with pytest.raises(CursorFormatError, match="without a mark-delete"):
        replayed([record])


def test_any_damaged_byte_gives_a_value_or_a_format_error() -> None:
    """The ledger's digest finds flipped bits; what gets past it must not do worse than an error."""
    [record] = encode_snapshot(CursorImage((5, 9), {}, {5: {13: 5}}, {"a": 1}), -1)
    for offset in range(len(record)):
        for value in (0, 1, 0x7F, 0xFF):
            damaged = record[:offset] + bytes([value]) + record[offset + 1 :]
            with contextlib.suppress(CursorFormatError):  # any other error fails the test
                assert isinstance(replayed([damaged]), CursorImage)


def test_the_live_image_may_shrink_while_it_is_encoded() -> None:
    entries = BitMap(range(0, 1_000_000, 2))
    image = CursorImage((1, 0), {1: entries, 2: BitMap()}, {}, {})
    sections = cursor_format.body_sections(image)
    first = next(sections)
    entries.clear()
    rest = list(sections)  # what was looked at together with the first one
    assert len(b"".join((first, *rest))) <= cursor_format.SLICE_WORK_MAX


def test_nodes() -> None:
    image = small_image()
    state = encode_node_state(image)
    node = CursorNode((5, 9), 77, {"a": 1}, {"who": "me"}, 123, state)
    found, writer = decode_node(encode_node(node, "token"), "/path")
    assert (found, writer) == (node, "token")
    assert found.image(WHERE).acked == image.acked
    assert CursorNode((5, 9)).image(WHERE) == CursorImage((5, 9), {}, {}, {})
    assert encode_node_state(CursorImage((1, 1))) == b""


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"formatVersion":1}',
        encode_node(CursorNode((1, 2)), "w").replace(b'"lastActive":0', b'"lastActive":"x"'),
        encode_node(CursorNode((1, 2), state=b"abc"), "w").replace(b"YWJj", b"YWJ\xc3\xa4"),
    ],
)
def test_damaged_nodes_are_refused(value: bytes) -> None:
    with pytest.raises(CursorFormatError, match="/path: not a cursor node"):
        decode_node(value, "/path")


def test_a_newer_node_is_refused_by_its_version() -> None:
    value = encode_node(CursorNode((1, 2)), "w").replace(b'"formatVersion":1', b'"formatVersion":2')
    with pytest.raises(CursorFormatError, match="/path: node format version 2 is unknown"):
        decode_node(value, "/path")


def many_properties(names: int, length: int) -> dict[str, int]:
    return {f"{n:05d}".ljust(length, "é"): n - 5 for n in range(names)}


def test_properties_are_written_as_before_while_earlier_releases_could_store_them() -> None:
    image = CursorImage((5, 9), properties=many_properties(10_000, 45))
    records = encode_snapshot(image, -1)
    assert sum(map(len, records)) < cursor_format.PROPERTIES_BYTES_MAX + 100
    assert {record[1] for record in records} == {cursor_format.VERSION}
    assert replayed(records) == image


def test_more_properties_than_one_section_takes_come_in_many() -> None:
    image = CursorImage((5, 9), {5: BitMap([11])}, {}, many_properties(1000, 4096))
    records = encode_snapshot(image, -1)
    assert max(map(len, records)) <= CHUNK_BYTES_MAX
    assert {record[1] for record in records[:-1]} == {cursor_format.VERSION_PROPERTIES}
    found = replayed(records)
    assert (found.properties, found.mark_delete, found.acked) == (
        *(image.properties, image.mark_delete),
        image.acked,
    )
    # The next snapshot replaces all of them, and so does an increment.
    few = encode_snapshot(CursorImage((5, 10), properties={"a": 1}), 0)
    assert replayed([*records, *few]).properties == {"a": 1}
    increment = encode_increment(CursorImage((5, 10), properties={"b": 2}), 0)
    assert replayed([*records, *increment]).properties == {"b": 2}


def test_a_snapshot_cut_off_between_its_properties_does_not_count() -> None:
    few = encode_snapshot(CursorImage((5, 9), properties={"a": 1}), -1)
    many = encode_snapshot(CursorImage((5, 10), properties=many_properties(1000, 4096)), 0)
    assert len(many) > 3
    for cut in range(len(many)):
        assert replayed([*few, *many[:cut]]).properties == {"a": 1}


def test_a_part_of_properties_in_an_increment_is_refused() -> None:
    few = encode_snapshot(CursorImage((5, 9)), -1)
    part = sealed(8, struct.pack(">I", 0), SectionKind.INCREMENT, 4)
    assert replayed([*few, part]).properties == {}
    part = sealed(8, struct.pack(">IIQ", 1, 1, 7) + b"a", SectionKind.INCREMENT, 4)
    with pytest.raises(CursorFormatError, match="a part of properties"):
        replayed([*few, part])
