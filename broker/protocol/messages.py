"""Stored entries taken apart for HTTP readers, and entries built from HTTP writers' messages.

The broker never opens payloads for binary clients. A WebSocket or REST client has no client library
that would, so here batches are unpacked and decompressed, within a byte limit given by the caller.
"""

import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import TypeAlias

from google.protobuf.message import DecodeError

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import CompressionError, compress, decompress
from magnetar.broker.protocol.framing import (
    MalformedFrameError,
    encode_body,
    parse_entry_body,
    varint,
    with_checksum,
)
from magnetar.broker.protocol.text import readable
from magnetar.managed_ledger.cursor.ack_state import BATCH_WORDS_MAX

_U32 = Struct(">I")
_MESSAGE_BYTES_MIN = 6
"""Of a batch: the size of its metadata, and the payload's size in there."""
BATCH_MESSAGES_MAX = 64 * BATCH_WORDS_MAX
"""No cursor keeps which messages of a larger batch are acknowledged."""
MESSAGES_AT_ONCE = 1_000
"""Of a batch: what takes some milliseconds to be unpacked."""
_ID_BYTES_MAX = 10  # of a number in protobuf
_IDS_ALIKE = 1_024  # parts of message ids that are kept
_INDEX_TAG, _SIZE_TAG = 4 << 3, 6 << 3  # PulsarApi.proto MessageIdData: batch_index, batch_size
INFLATE_BYTES_MAX = 1024 * 1024
"""Decompressed on the loop, in a turn of it."""
HEAVY_BYTES = 64 * 1024
"""Of a client's: what can take the loop 10 ms to be read, checked, compressed or hashed, at 2 µs a
property of eight bytes, and so takes a thread, which costs a tenth of a millisecond."""


Entry: TypeAlias = tuple[pb.MessageMetadata, bytes, int]
"""To be published: metadata, body and sequence id (of a batch the lowest).

Entries may share metadata that says the same of all of them but for the sequence id.
"""


class UndecodableEntryError(Exception):
    """An entry holds no message that can be shown: broken batch, unknown or lying compression."""


class MessageIdError(ValueError):
    """The text is no serialized message id."""


@dataclass(slots=True)
class Message:
    """One message as a reader sees it. ``batch_index`` is -1 outside of a batch."""

    batch_index: int
    batch_size: int
    payload: bytes
    key: str | None
    properties: dict[str, str]
    publish_time_ms: int
    event_time_ms: int
    sequence_id: int
    producer_name: str
    encryption: pb.MessageMetadata | None = None  # set: payload is still encrypted
    schema_version: bytes = b""
    """As the producer's client wrote it; empty: raw bytes."""
    key_is_base64: bool = False

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory, and on its way to a client."""
        return len(self.payload) + 64 + 64 * len(self.properties) + len(self.key or "")


@dataclass(slots=True)
class OutgoingMessage:
    """One message a client asks to publish, already validated."""

    payload: bytes
    sequence_id: int
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int = 0
    deliver_at_ms: int = 0
    deliver_after_ms: int = 0
    """Relative form, turned into ``deliver_at_ms`` by the publisher."""
    replicate_to: Sequence[str] = ()
    key_is_base64: bool = False
    """``key`` stands for bytes: of a separated KEY_VALUE schema."""
    schema_version: bytes = b""
    """As ``version_bytes`` makes it; empty: no schema."""
    encryption: pb.MessageMetadata | None = None
    """Set: the payload is compressed and encrypted already; its keys and how it was made."""
    is_value: bool = False
    """The payload is stored as it is; else it may be a text that a schema makes into one."""
    ordering_key: bytes = b""
    is_tombstone: bool = False
    """Without a value, which an empty payload isn't."""
    transaction: tuple[int, int] | None = None
    """Coordinator and sequence of a `TransactionId`; one for all messages of a batch."""

    @property
    def is_plain(self) -> bool:
        """Nothing but a payload, perhaps by a schema."""
        return (
            self.key is None
            and not self.properties
            and not (self.event_time_ms or self.deliver_at_ms or self.replicate_to)
            and not (self.ordering_key or self.is_tombstone)
            and self.encryption is None
            and self.transaction is None
        )


def open_entry(body: bytes | memoryview) -> tuple[pb.MessageMetadata, memoryview]:
    """Metadata and payload of one entry, as stored.

    Raises:
        UndecodableEntryError: it isn't one.
    """
    try:
        return parse_entry_body(body)
    except (MalformedFrameError, DecodeError) as error:
        raise _broken(str(error)) from error


def is_chunk(metadata: pb.MessageMetadata) -> bool:
    """Whether the payload is a slice that can be joined with others.

    Encrypted slices can't: each was encrypted by itself, and we have no keys.
    """
    return metadata.num_chunks_from_msg > 1 and not metadata.encryption_keys


def messages_of(
    metadata: pb.MessageMetadata, payload: bytes | bytearray | memoryview, payload_bytes_max: int
) -> list[Message]:
    """Messages of one entry, compacted-out ones left out; encrypted entries come as one message.

    Args:
        payload: as stored, or that of joined chunks.
        payload_bytes_max: largest size after decompression that is accepted.
    Raises:
        UndecodableEntryError: see the class.
    """
    if metadata.HasField("marker_type"):
        return []
    data = inflated(metadata, payload, payload_bytes_max)
    if metadata.encryption_keys:
        return [_single(metadata, data, metadata)]
    if not metadata.HasField("num_messages_in_batch"):
        return [_single(metadata, data)]
    return [message for message in messages_in(metadata, data) if message is not None]


def is_large(metadata: pb.MessageMetadata) -> bool:
    """Whether `messages_of` would hold the loop for more than some milliseconds, whatever the
    entry's bytes are: a few hundred of them may stand for megabytes, or a million messages.
    """
    if metadata.encryption_keys or metadata.HasField("marker_type"):
        return False
    if metadata.num_messages_in_batch > MESSAGES_AT_ONCE:
        return True
    if len(metadata.properties) > MESSAGES_AT_ONCE:
        return True
    return metadata.compression != pb.NONE and metadata.uncompressed_size > INFLATE_BYTES_MAX


def inflated(
    metadata: pb.MessageMetadata, payload: bytes | bytearray | memoryview, payload_bytes_max: int
) -> bytes:
    """The payload of an entry as it was before compression; of an encrypted one as it is. May take
    a thread's time.

    Raises:
        UndecodableEntryError: see the class.
    """
    if metadata.compression == pb.NONE or metadata.encryption_keys:
        return bytes(payload)
    try:
        kind, size = metadata.compression, metadata.uncompressed_size
        return decompress(kind, payload, size, payload_bytes_max)
    except CompressionError as error:
        raise UndecodableEntryError(str(error)) from error


def decode_whole_entry(
    body: bytes | memoryview, payload_bytes_max: int
) -> tuple[pb.MessageMetadata, bytes]:
    """Metadata and uncompressed payload of one entry; a batch stays framed, encryption stays.

    Raises:
        UndecodableEntryError: see the class.
    """
    metadata, payload = open_entry(body)
    return metadata, inflated(metadata, payload, payload_bytes_max)


def _single(
    metadata: pb.MessageMetadata, payload: bytes, encryption: pb.MessageMetadata | None = None
) -> Message:
    return Message(
        -1,
        0,
        payload,
        readable(metadata.partition_key) if metadata.HasField("partition_key") else None,
        _properties(metadata.properties) if metadata.properties else {},
        metadata.publish_time,
        metadata.event_time,
        metadata.sequence_id,
        readable(metadata.producer_name),
        encryption,
        metadata.schema_version,
        metadata.partition_key_b64_encoded,
    )


def _properties(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    # C++ producers may put any bytes into them
    return {readable(pair.key): readable(pair.value) for pair in pairs}


def batch_parts(
    metadata: pb.MessageMetadata, data: bytes
) -> Iterator[tuple[pb.SingleMessageMetadata, bytes]]:
    """Metadata and payload of each message of a batch, also of those that were compacted out.

    Args:
        data: as `inflated` gives it.
    Raises:
        UndecodableEntryError: the batch is broken at the next message.
    """
    count, offset, end = metadata.num_messages_in_batch, 0, len(data)
    if not 0 < count <= min(end // _MESSAGE_BYTES_MIN, BATCH_MESSAGES_MAX):
        raise _broken(f"batch of {count} messages in {end} bytes")
    for index in range(count):
        if offset + 4 > end:
            raise _broken(f"batch ends before message {index} of {count}")
        (size,) = _U32.unpack_from(data, offset)
        payload_from = offset + 4 + size
        if payload_from > end:
            raise _broken(f"metadata of message {index} leaves its batch")
        try:
            single = pb.SingleMessageMetadata.FromString(data[offset + 4 : payload_from])
        except DecodeError as error:
            raise _broken(f"metadata of message {index}: {error}") from error
        if not single.IsInitialized():
            raise _broken(f"metadata of message {index} lacks its payload's size")
        offset = payload_from + single.payload_size
        if single.payload_size < 0 or offset > end:
            raise _broken(f"payload of message {index} leaves its batch")
        yield single, data[payload_from:offset]


def messages_in(metadata: pb.MessageMetadata, data: bytes) -> Iterator[Message | None]:
    """One message after the other, made when it is asked for; None: it was compacted out.

    Args:
        data: as `inflated` gives it.
    Raises:
        UndecodableEntryError: the batch is broken at the next message.
    """
    if not metadata.HasField("num_messages_in_batch"):
        yield _single(metadata, data)
        return
    count, schema_version = metadata.num_messages_in_batch, metadata.schema_version
    publish_time, producer = metadata.publish_time, readable(metadata.producer_name)
    for index, (single, payload) in enumerate(batch_parts(metadata, data)):
        if single.compacted_out:
            yield None
            continue
        yield Message(
            index,
            count,
            payload,
            readable(single.partition_key) if single.HasField("partition_key") else None,
            _properties(single.properties) if single.properties else {},
            publish_time,
            single.event_time,
            single.sequence_id,
            producer,
            None,
            schema_version,
            single.partition_key_b64_encoded,
        )


def _broken(why: str) -> UndecodableEntryError:
    return UndecodableEntryError(f"entry can't be decoded: {why}")


def is_set(words: Sequence[int], index: int) -> bool:
    """A bit of an ack set: whether the message with that index is still unacknowledged."""
    return index >> 6 < len(words) and bool(words[index >> 6] >> (index & 63) & 1)


def _start_metadata(
    producer_name: str, message: OutgoingMessage, publish_time_ms: int
) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=message.sequence_id,
        publish_time=publish_time_ms,
    )
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    if message.replicate_to:
        metadata.replicate_to.extend(message.replicate_to)
    if message.schema_version:
        metadata.schema_version = message.schema_version
    if message.transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = message.transaction
    return metadata


def _compress_into(
    metadata: pb.MessageMetadata, payload: bytes, kind: pb.CompressionType.ValueType
) -> bytes:
    if kind == pb.NONE:
        return payload
    metadata.compression, metadata.uncompressed_size = kind, len(payload)
    return compress(kind, payload)


class SingleEncoder:
    """Messages of one producer as entries of their own, published at one time.

    Those that differ in payload and sequence id only share one metadata object, and the bytes of it
    around the sequence id: to make them for each takes longer than the rest.
    """

    def __init__(
        self, producer_name: str, publish_time_ms: int, kind: pb.CompressionType.ValueType = pb.NONE
    ) -> None:
        self._name, self._time_ms, self._kind = producer_name, publish_time_ms, kind
        self._shared: pb.MessageMetadata | None = None
        self._schema_version = b""
        self._fronts: list[bytes] = []
        """By the size of a sequence id: what is in front of it, the size of all metadata first."""
        self._back = b""

    def encode(self, messages: Iterable[OutgoingMessage]) -> list[Entry]:
        """As ``encode_single`` each; a run of them may share one metadata object."""
        entries: list[Entry] = []
        for message in messages:
            if not message.is_plain or self._kind:
                entries.append(encode_single(self._name, message, self._time_ms, self._kind))
                continue
            metadata, sequence_id = self._shared, message.sequence_id
            if metadata is None or message.schema_version != self._schema_version:
                metadata = self._share(message)
            number = varint(sequence_id)
            body = with_checksum(self._fronts[len(number)] + number + self._back + message.payload)
            entries.append((metadata, body, sequence_id))
        return entries

    def _share(self, message: OutgoingMessage) -> pb.MessageMetadata:
        metadata = self._shared = _start_metadata(self._name, message, self._time_ms)
        self._schema_version = message.schema_version
        # Fields lie in the order of their numbers: the name, the sequence id, all others.
        metadata.sequence_id = 0
        start = pb.MessageMetadata(producer_name=self._name, sequence_id=0)
        front = start.SerializePartialToString()[:-1]
        self._back = metadata.SerializeToString()[len(front) + 1 :]
        size = len(front) + len(self._back)
        self._fronts = [_U32.pack(size + id_bytes) + front for id_bytes in range(_ID_BYTES_MAX + 1)]
        return metadata


def encode_single(
    producer_name: str,
    message: OutgoingMessage,
    publish_time_ms: int,
    kind: pb.CompressionType.ValueType = pb.NONE,
) -> Entry:
    """One message as an entry of its own."""
    metadata = _start_metadata(producer_name, message, publish_time_ms)
    if message.key is not None:
        metadata.partition_key = message.key
        if message.key_is_base64:
            metadata.partition_key_b64_encoded = True
    if message.properties:
        for key, value in message.properties.items():
            metadata.properties.add(key=key, value=value)
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.ordering_key:
        metadata.ordering_key = message.ordering_key
    if message.is_tombstone:
        metadata.null_value = True
    if message.encryption is not None:
        metadata.MergeFrom(message.encryption)
        return metadata, encode_body(metadata, message.payload), message.sequence_id
    body = encode_body(metadata, _compress_into(metadata, message.payload, kind))
    return metadata, body, message.sequence_id


def encode_batch(
    producer_name: str,
    messages: Sequence[OutgoingMessage],
    publish_time_ms: int,
    kind: pb.CompressionType.ValueType = pb.NONE,
) -> Entry:
    """Several messages as one batch entry.

    REQUIRES: no message is delayed or names clusters (those can't share an entry).
    """
    parts: list[bytes] = []
    single = pb.SingleMessageMetadata()
    for message in messages:
        single.Clear()
        single.payload_size, single.sequence_id = len(message.payload), message.sequence_id
        if message.key is not None:
            single.partition_key = message.key
        if message.properties:
            for key, value in message.properties.items():
                single.properties.add(key=key, value=value)
        if message.event_time_ms:
            single.event_time = message.event_time_ms
        if message.ordering_key:
            single.ordering_key = message.ordering_key
        if message.is_tombstone:
            single.null_value = True
        data = single.SerializeToString()
        parts += (_U32.pack(len(data)), data, message.payload)
    metadata = _start_metadata(producer_name, messages[0], publish_time_ms)
    metadata.num_messages_in_batch = len(messages)
    metadata.highest_sequence_id = messages[-1].sequence_id
    if messages[0].key is not None:
        metadata.partition_key = messages[0].key  # what the official clients do: routing by key
    if messages[0].ordering_key:
        metadata.ordering_key = messages[0].ordering_key
    body = encode_body(metadata, _compress_into(metadata, b"".join(parts), kind))
    return metadata, body, messages[0].sequence_id


def encode_message_id(
    ledger_id: int,
    entry_id: int,
    partition: int,
    batch_index: int = -1,
    batch_size: int = 0,
    first_chunk: tuple[int, int] | None = None,
) -> str:
    """Base64 of a serialized MessageIdData, as WebSocket clients know it.

    Args:
        first_chunk: ledger and entry of a chunked message's first chunk; its id is its last one's.
    """
    parts = (_front_of_id(ledger_id), varint(entry_id), _partition_of_id(partition))
    data = b"%b%b%b" % parts
    if batch_index >= 0:
        data += b"%c%b%c%b" % (_INDEX_TAG, varint(batch_index), _SIZE_TAG, varint(batch_size))
    if first_chunk is not None:
        first = pb.MessageIdData(
            ledgerId=first_chunk[0], entryId=first_chunk[1], partition=partition
        )
        data += pb.MessageIdData(first_chunk_message_id=first).SerializePartialToString()
    return binascii.b2a_base64(data, newline=False).decode()


# Ids are made for each receipt and delivery, by hand: neighbours differ in the entry only.


@lru_cache(_IDS_ALIKE)
def _front_of_id(ledger_id: int) -> bytes:
    """What is in front of the entry's number."""
    return pb.MessageIdData(ledgerId=ledger_id, entryId=0).SerializeToString()[:-1]


@lru_cache(_IDS_ALIKE)
def _partition_of_id(partition: int) -> bytes:
    return pb.MessageIdData(partition=partition).SerializePartialToString()


def parse_message_id(text: str) -> pb.MessageIdData:
    """The inverse of ``encode_message_id``; padding at its end may be missing, as for Java.

    Raises:
        MessageIdError: not base64, or not a message id.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        data = pb.MessageIdData.FromString(binascii.a2b_base64(padded, strict_mode=True))
    except (binascii.Error, ValueError) as error:
        raise MessageIdError(f"not base64: {error}") from error
    except DecodeError as error:
        raise MessageIdError(f"not a message id: {error}") from error
    if not data.IsInitialized():
        raise MessageIdError("not a message id: ledger or entry id is missing")
    if data.ledgerId >= 2**63 or data.entryId >= 2**63:
        raise MessageIdError("ledger or entry id out of range")
    return data
