import zlib

import cramjam
import pytest

from magnetar.broker.protocol import entry_header as eh
from magnetar.broker.protocol.pulsar_api_pb2 import LZ4, ZSTD, EncryptionKeys, MessageMetadata


def _metadata(**fields: object) -> MessageMetadata:
    metadata = MessageMetadata(producer_name="p", sequence_id=3, publish_time=1_700_000_000_123)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return metadata


def test_plain_message() -> None:
    head = eh.make_header(_metadata())
    assert len(head) == eh.HEAD_BYTES
    assert eh.parse_header(head) == eh.EntryHeader(0, 1, 1_700_000_000_123, 0, 0, 0)


def test_batch_is_known_by_presence_not_by_value() -> None:
    head = eh.parse_header(eh.make_header(_metadata(num_messages_in_batch=1)))
    assert (head.flags, head.message_count) == (eh.FLAG_BATCH, 1)


@pytest.mark.parametrize("lie", [0, -5])
def test_a_lying_count_still_costs_a_permit(lie: int) -> None:
    assert eh.parse_header(eh.make_header(_metadata(num_messages_in_batch=lie))).message_count == 1


@pytest.mark.parametrize(
    ("claimed", "payload_bytes", "fields", "kept"),
    [
        (100, 600, {}, 100),
        (100, 599, {}, 99),
        (2**31 - 1, 0, {}, 1),
        (2**31 - 1, 60, {"uncompressed_size": 2**32 - 1}, 10),
        (100, 60, {"uncompressed_size": 600, "compression": LZ4}, 100),
        (2**31 - 1, 60, {"uncompressed_size": 2**32 - 1, "compression": ZSTD}, 51 * 32_768 // 6),
        (2**31 - 1, 60, {"uncompressed_size": 2**32 - 1, "compression": LZ4}, 60 * 255 // 6),
    ],
)
def test_a_batch_can_not_claim_more_messages_than_its_bytes_hold(
    claimed: int, payload_bytes: int, fields: dict[str, object], kept: int
) -> None:
    head = eh.make_header(_metadata(num_messages_in_batch=claimed, **fields), payload_bytes)
    assert eh.parse_header(head).message_count == kept


@pytest.mark.parametrize("codec", ["lz4", "zlib", "zstd", "snappy"])
def test_an_honest_batch_of_equal_messages_keeps_its_count(codec: str) -> None:
    """However small it becomes: else its consumer gives back more permits than it was charged."""
    count, message = 10_000, bytes((0, 0, 0, 2, 0x18, 100)) + bytes(100)
    plain = message * count
    packed, kind = {
        "lz4": (bytes(cramjam.lz4.compress_block(plain, store_size=False)), 1),
        "zlib": (zlib.compress(plain, 9), 2),
        "zstd": (bytes(cramjam.zstd.compress(plain)), 3),
        "snappy": (bytes(cramjam.snappy.compress_raw(plain)), 4),
    }[codec]
    metadata = _metadata(
        num_messages_in_batch=count, compression=kind, uncompressed_size=len(plain)
    )
    assert eh.parse_header(eh.make_header(metadata, len(packed))).message_count == count


@pytest.mark.parametrize(
    ("key", "expected"),
    [("key1", 462881061), ("key2", 1936800180), ("key01", 39696932), ("key02", 751761803)],
)
def test_sticky_hash_vectors(key: str, expected: int) -> None:
    assert eh.sticky_hash(_metadata(partition_key=key)) == expected
    assert eh.parse_header(eh.make_header(_metadata(partition_key=key))).key_hash == expected


def test_ordering_key_wins_and_base64_is_decoded() -> None:
    both = _metadata(partition_key="key2", ordering_key=b"key1")
    assert eh.sticky_hash(both) == 462881061
    encoded = _metadata(partition_key="a2V5MQ==", partition_key_b64_encoded=True)
    assert eh.sticky_hash(encoded) == 462881061


def test_keyless_hash_spreads_by_sequence() -> None:
    hashes = {eh.sticky_hash(_metadata(sequence_id=n)) for n in range(100)}
    assert len(hashes) == 100


def test_chunks_share_a_hash_and_mark_their_ends() -> None:
    heads = [
        eh.parse_header(eh.make_header(_metadata(uuid="u", num_chunks_from_msg=3, chunk_id=n)))
        for n in range(3)
    ]
    assert len({head.chunk_uuid_hash for head in heads}) == 1
    assert [head.flags & (eh.FLAG_FIRST_CHUNK | eh.FLAG_LAST_CHUNK) for head in heads] == [
        eh.FLAG_FIRST_CHUNK,
        0,
        eh.FLAG_LAST_CHUNK,
    ]
    assert all(head.flags & eh.FLAG_CHUNK for head in heads)


def test_flags_of_marker_transaction_and_encryption() -> None:
    metadata = _metadata(marker_type=21, txnid_least_bits=0, txnid_most_bits=0)
    metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    flags = eh.parse_header(eh.make_header(metadata)).flags
    assert flags == eh.FLAG_MARKER | eh.FLAG_TRANSACTION | eh.FLAG_ENCRYPTED


@pytest.mark.parametrize("bad", [b"", b"\x4d" * 31, b"\x00" * 32, b"\x4d\x02" + b"\x00" * 30])
def test_foreign_bytes_are_refused(bad: bytes) -> None:
    with pytest.raises(eh.EntryHeaderError):
        eh.parse_header(bad)


def test_message_counts() -> None:
    heads = [eh.make_header(_metadata(num_messages_in_batch=n)) for n in (1, 7, 1000)]
    assert eh.message_counts(heads) == [1, 7, 1000]
