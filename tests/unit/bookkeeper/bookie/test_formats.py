"""Bytes on disk: records, segment headers, index values. Pinned, and no flipped bit passes."""

import random

import pytest

from magnetar.bookkeeper import packet
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal_format import SegmentHeader
from magnetar.bookkeeper.bookie.storage import entry_log as entry_log
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.index_format import LedgerRecord
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.errors import CorruptFileError


def test_a_record_is_pinned() -> None:
    tag = record_format.make_tag(0x12, 0x34)
    record = record_format.encode_record(record_format.FENCE, tag, (7).to_bytes(8, "big"))
    assert record[:4].hex() == "30000008"
    assert record[8:16].hex() == "0000001200000034"
    assert record[16:] == (7).to_bytes(8, "big")
    assert record_format.check_record(record, 0) == (record_format.FENCE, 8, tag)


def test_any_flipped_bit_that_a_record_covers_is_noticed() -> None:
    tag = record_format.make_tag(5, 99)
    body = b"payload" * 10
    head = packet.encode_head(1, 2, 1, 70, b"head", body)
    (record,) = record_format.encode_entries(
        tag, record_format.crc_seed(tag), [head], [body], [len(head) + len(body)]
    )
    assert record_format.check_record(record, 0) == (record_format.ENTRY, len(head + body), tag)
    for bit in range(8 * (record_format.RECORD_HEADER_BYTES + packet.PACKET_HEADER_BYTES)):
        spoiled = bytearray(record)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert record_format.check_record(bytes(spoiled), 0) is None


def test_a_short_record_is_none() -> None:
    record = record_format.encode_record(record_format.FENCE, 1, bytes(8))
    assert all(record_format.check_record(record[:size], 0) is None for size in range(24))
    assert record_format.check_record(bytes(100), 0) is None


def test_a_segment_header_round_trips_and_is_checked() -> None:
    header = SegmentHeader(0xAB, record_format.make_tag(0xAB, 1), 512, 4096)
    path = journal_format.segment_path(0xAB)
    data = header.encode()
    assert len(data) == 512
    assert path == "journal/00000000000000ab.journal"
    assert journal_format.decode_segment_header(data, path) == header
    with pytest.raises(CorruptFileError, match="ab"):
        journal_format.decode_segment_header(data, journal_format.segment_path(0xAC))
    with pytest.raises(CorruptFileError, match="header"):
        journal_format.decode_segment_header(b"", path)


@pytest.mark.parametrize("name", ["x.journal", "1.journal", "zz" * 8 + ".journal", "a.spare", ""])
def test_foreign_names_are_no_segments(name: str) -> None:
    assert journal_format.segment_id_of(name) is None
    assert entry_log.log_id_of(name) is None


def test_index_values_round_trip() -> None:
    run = LocationRun(4, 9, 1 << 40, [1, 0, 3_000_000])
    assert index_format.decode_run(*index_format.encode_run(7, run)) == (7, run)
    record = LedgerRecord(b"k" * 20, True, False, 5, 1 << 40)
    assert index_format.decode_ledger(*index_format.encode_ledger(8, record)) == (8, record)
    for record in (
        LedgerRecord(b"", False, False, -1, -1, fence_unknown=True),
        LedgerRecord(b"k" * 20, False, True, 5, 1 << 40, lac_digest=b"d" * 20),
        LedgerRecord(b"k" * 20, False, False, 5, -1, lac_digest=b""),
    ):
        assert index_format.decode_ledger(*index_format.encode_ledger(8, record)) == (8, record)


@pytest.mark.parametrize("digest", [None, b"", b"d" * 20])
def test_explicit_lacs_round_trip(digest: bytes | None) -> None:
    body = journal_format.encode_explicit_lac(7, 5, digest)
    assert journal_format.decode_explicit_lac(body) == (7, 5, digest)
    assert index_format.decode_log(*index_format.encode_log(3, 100, 50)) == (3, 100, 50)
    assert index_format.decode_deleted(*index_format.encode_deleted(3, 100)) == (3, 100)
    assert index_format.decode_mark(index_format.encode_mark((3, 512))[1]) == (3, 512)


def test_keys_sort_by_ledger_then_entry() -> None:
    rng = random.Random(1)
    ids = [(rng.randrange(1 << 40), rng.randrange(1 << 40)) for _ in range(100)]
    assert sorted(ids) == sorted(ids, key=lambda pair: index_format.run_key(*pair))
    low, high = index_format.ledger_runs(5)
    assert low <= index_format.run_key(5, 0) < index_format.run_key(5, 1 << 62) < high


def test_a_flipped_bit_in_an_index_value_is_noticed() -> None:
    key, value = index_format.encode_run(7, LocationRun(4, 9, 100, [1, 2]))
    for bit in range(8 * len(value)):
        spoiled = bytearray(value)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFileError, match=key.hex()):
            index_format.decode_run(key, bytes(spoiled))
    with pytest.raises(CorruptFileError):  # a value under another key
        index_format.decode_run(index_format.run_key(7, 5), value)
