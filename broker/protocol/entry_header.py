"""The broker's entry head: what dispatch needs of an entry, so that it parses no protobuf.

It is kept beside each entry in memory and made again when the entry is read from a ledger: see
`stored_entries`. Earlier releases stored it. Layout (big-endian, 32 bytes), version 1, drawn in
docs/formats/entry-head.md:

    magic 0x4d u8 | version u8 | flags u16 | message count u32 | publish time ms u64
    | deliver-at ms u64 (0: at once) | key hash u32 | chunk uuid hash u32

Behind these 32 bytes is the broker entry metadata of an entry that is stored with it.
"""

import base64
import binascii
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import mmh3

from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata

HEAD_BYTES = 32
FLAG_BATCH = 1
FLAG_MARKER = 2
FLAG_CHUNK = 4
FLAG_ENCRYPTED = 8
FLAG_TRANSACTION = 16
FLAG_KEY = 32
FLAG_FIRST_CHUNK = 64
FLAG_LAST_CHUNK = 128

_ROW = Struct(">2xHI8xQ4xI")
assert _ROW.size == HEAD_BYTES
# low flag bytes of an entry that is one whole, ordinary message
_PLAIN = bytes(
    value for value in range(256) if not value & ~(FLAG_KEY | FLAG_ENCRYPTED | FLAG_TRANSACTION)
)

_MAGIC, _VERSION = 0x4D, 1
_HEAD = Struct(">BBHIQQII")
_COUNT = Struct(">I")
_pack = _HEAD.pack
U32_MAX = 2**32 - 1
_BATCHED_BYTES_MIN = 6
"""Of one message in a batch: size field and the required field of its metadata."""
_EXPANSION_MAX = {1: (0, 255), 2: (6, 1_032), 3: (9, 32_768), 4: (1, 22)}
"""By compression type: bytes of the codec's frame, and how many bytes each other one can stand for.

No less, or an honest batch of equal messages would be counted too low: its consumer would give back
more permits than it was charged, again and again, and the last message's index would be wrong.
"""


class EntryHeaderError(Exception):
    """Bytes do not begin with an entry head this version can read."""


class EntryHeader(NamedTuple):
    """Decoded head; see the module's layout."""

    flags: int
    message_count: int
    publish_time_ms: int
    deliver_at_ms: int
    key_hash: int
    chunk_uuid_hash: int


def make_header(metadata: MessageMetadata, payload_bytes: int = U32_MAX) -> bytes:
    """Head of an entry whose outer metadata is ``metadata``.

    Args:
        payload_bytes: size of what follows the metadata, compressed or encrypted as it may be. It
            bounds the count below.

    Without a key the key hash is 0: only Key_Shared dispatch wants one, and takes it from the
    body (``sticky_hash``), so that other producers don't pay for it.

    The count of a lying client is stored as at least 1, so that permits always move on, and at most
    what its bytes can hold: a consumer is charged so many permits and gives back only what it finds
    in the batch, so that one entry could stop a subscription for ever.
    """
    flags, count, key_hash = 0, 1, 0
    if metadata.HasField("num_messages_in_batch"):  # presence, not value: 1 is a batch too
        flags, count = FLAG_BATCH, metadata.num_messages_in_batch
        if count > 1:
            size = payload_bytes
            if metadata.compression:
                frame_bytes, factor = _EXPANSION_MAX.get(metadata.compression, (0, 1))
                unpacked_max = (size - frame_bytes) * factor
                size = max(size, min(metadata.uncompressed_size, unpacked_max))
            count = min(count, size // _BATCHED_BYTES_MIN)
        count = max(1, count)
    chunk_hash = 0
    if metadata.num_chunks_from_msg > 1:
        flags |= FLAG_CHUNK
        chunk_hash = mmh3.hash(metadata.uuid, signed=False)
        if metadata.chunk_id == 0:
            flags |= FLAG_FIRST_CHUNK
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            flags |= FLAG_LAST_CHUNK
    if metadata.HasField("marker_type"):
        flags |= FLAG_MARKER
    if metadata.encryption_keys:
        flags |= FLAG_ENCRYPTED
    if metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits"):
        flags |= FLAG_TRANSACTION
    if metadata.HasField("ordering_key") or metadata.HasField("partition_key"):
        flags |= FLAG_KEY
        key_hash = sticky_hash(metadata)
    deliver_at = metadata.deliver_at_time
    return _pack(
        _MAGIC,
        _VERSION,
        flags,
        count,
        metadata.publish_time,
        deliver_at if deliver_at > 0 else 0,
        key_hash,
        chunk_hash,
    )


def sticky_hash(metadata: MessageMetadata) -> int:
    """31-bit Murmur3 of the sticky key: ordering key, else partition key, else ``producer-seq``.

    Source: docs/spec/wire-protocol.md, "Key_Shared".
    """
    if metadata.HasField("ordering_key"):
        key: bytes | str = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        key = metadata.partition_key
        if metadata.partition_key_b64_encoded:
            try:
                key = base64.b64decode(key, validate=False)
            except (binascii.Error, ValueError):
                key = metadata.partition_key  # not base64 after all: any stable bytes will do
    else:
        key = f"{metadata.producer_name}-{metadata.sequence_id}"
    return mmh3.hash(key, signed=False) & 0x7FFFFFFF


def parse_header(head: bytes | memoryview) -> EntryHeader:
    """Decode a head.

    Raises:
        EntryHeaderError: wrong magic, unknown version or too few bytes.
    """
    if len(head) < HEAD_BYTES:
        raise EntryHeaderError(f"entry head of {len(head)} bytes, expected {HEAD_BYTES}")
    magic, version, *fields = _HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION:
        raise EntryHeaderError(f"entry head with magic 0x{magic:02x} version {version}")
    return EntryHeader(*fields)


def later_header(header: bytes, ahead_ms: int, *, with_delivery: bool = True) -> bytes:
    """The same with later times: of a broker whose clock is ahead of its clients' clocks.

    What is behind the head isn't kept.

    Args:
        with_delivery: the time of delivery is later, too.
    """
    fields = parse_header(header)
    return _pack(
        _MAGIC,
        _VERSION,
        *fields._replace(
            publish_time_ms=fields.publish_time_ms + ahead_ms,
            deliver_at_ms=fields.deliver_at_ms and fields.deliver_at_ms + ahead_ms * with_delivery,
        ),
    )


def message_counts(heads: Sequence[bytes]) -> list[int]:
    """Message count of each head; the cheap path of dispatch (no checks beyond size)."""
    unpack = _COUNT.unpack_from
    return [unpack(head, 4)[0] for head in heads]


def scan_headers(heads: Sequence[bytes]) -> list[tuple[int, int, int, int]] | None:
    """None: every entry is one ordinary message to be delivered now; else flags, messages, time of
    delivery and hash of the chunk's id of each entry.

    Measured for 100 heads: 0.01 µs per entry for the None, 0.06 with rows.
    """
    joined = b"".join(heads)
    if len(joined) != HEAD_BYTES * len(heads):  # some have broker entry metadata behind them
        joined = b"".join([head[:HEAD_BYTES] for head in heads])
    if (
        not joined[3::32].translate(None, _PLAIN)  # no batch, marker or chunk
        and not any(joined[2::32])
        # A deliver-at time that matters has bits above 2**40 (the year 2004).
        and not joined[18::32].strip(b"\0")
        and not joined[17::32].strip(b"\0")
        and not joined[16::32].strip(b"\0")
    ):
        return None
    return list(_ROW.iter_unpack(joined))
