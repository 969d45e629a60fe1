"""Bytes of compacted ledgers, and damaged ones."""

import pytest

from magnetar.broker.compaction.compacted_entry import (
    CompactedEntryError,
    decode_compacted,
    encode_compacted,
)
from magnetar.broker.compaction.keyed_messages import last_kept_index

#: Id of entry 7 of ledger 5 of a topic without partitions.
FIRST_BYTES = bytes.fromhex("0000000f0805100718ffffffffffffffffff01")


def test_the_entry_is_laid_out_as_pulsars() -> None:
    entry = encode_compacted((5, 7), -1, b"pre", b"body")
    assert entry == FIRST_BYTES + b"\0\0\0\7prebody"
    assert decode_compacted(entry) == ((5, 7), b"prebody")


#: Entry 3 of ledger 89 in a compacted ledger of Apache Pulsar 4.2.4: a batch of five messages.
OF_PULSAR = bytes.fromhex(
    "0000000f0859100318ffffffffffffffffff01000000860e01bcb58aea000000310a0f7374616e64616c6f6e652d30"
    "2d3232100f18f8cad9a2a23432026b31484b5805f80100f80101f80102f80103f801040000000812026b311803400f"
    "7631350000000812026b32180340107631360000000812026b33180340117631370000000812026b34180340127631"
    "380000000812026b3518034013763139"
)


def test_an_entry_of_pulsars_is_read_and_would_be_written_so() -> None:
    position, stored = decode_compacted(OF_PULSAR)
    assert position == (89, 3)
    assert encode_compacted(position, -1, b"", stored) == OF_PULSAR
    assert last_kept_index(stored) == 4


@pytest.mark.parametrize("size", range(len(FIRST_BYTES) + 4 + 7))
def test_a_cut_entry_is_an_error(size: int) -> None:
    with pytest.raises(CompactedEntryError):
        decode_compacted(encode_compacted((5, 7), -1, b"pre", b"body")[:size])


def test_an_id_that_is_none_is_an_error() -> None:
    with pytest.raises(CompactedEntryError, match="id of a compacted entry"):
        decode_compacted(b"\0\0\0\2\xff\xff\0\0\0\0")
