"""Bytes of compacted ledgers, and damaged ones."""

import pytest

from magnetar.broker.compaction.compacted_entry import (
    CompactedEntryError,
    decode_compacted,
    encode_compacted,
)

#: Written by Apache Pulsar 4.2.4: entry 7 of ledger 5 of a topic without partitions.
FIRST_BYTES = bytes.fromhex("0000000f0805100718ffffffffffffffffff01")


def test_the_entry_is_laid_out_as_pulsars() -> None:
    entry = encode_compacted((5, 7), -1, b"pre", b"body")
    assert entry == FIRST_BYTES + b"\0\0\0\7prebody"
    assert decode_compacted(entry) == ((5, 7), b"prebody")


@pytest.mark.parametrize("size", range(len(FIRST_BYTES) + 4 + 7))
def test_a_cut_entry_is_an_error(size: int) -> None:
    with pytest.raises(CompactedEntryError):
        decode_compacted(encode_compacted((5, 7), -1, b"pre", b"body")[:size])


def test_an_id_that_is_none_is_an_error() -> None:
    with pytest.raises(CompactedEntryError, match="id of a compacted entry"):
        decode_compacted(b"\0\0\0\2\xff\xff\0\0\0\0")
