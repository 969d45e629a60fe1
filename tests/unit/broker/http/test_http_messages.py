"""Entries taken apart and built: batches, compression, ids, and bytes that lie."""

import base64

import pytest

from magnetar.broker.http.messaging.local_producer import shared_fields
from magnetar.broker.http.websocket.protocol import text_frame_head
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.broker.protocol.messages import (
    MessageIdError,
    OutgoingMessage,
    SingleEncoder,
    UndecodableEntryError,
    encode_batch,
    encode_message_id,
    encode_single,
    messages_of,
    open_entry,
    parse_message_id,
)

LIMIT = 1 << 20


@pytest.mark.parametrize("kind", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_a_single_message_survives(kind: pb.CompressionType.ValueType) -> None:
    message = OutgoingMessage(b"x" * 300, 7, "k", {"a": "b"}, event_time_ms=5)
    _, body, _ = encode_single("p", message, 99, kind)
    (found,) = messages_of(*open_entry(body), LIMIT)
    assert (found.payload, found.key, found.properties) == (b"x" * 300, "k", {"a": "b"})
    assert (found.sequence_id, found.publish_time_ms, found.event_time_ms) == (7, 99, 5)
    assert (found.batch_index, found.producer_name) == (-1, "p")


MESSAGES = [
    OutgoingMessage(b"a" * 300, 7),
    OutgoingMessage(b"", 8),
    OutgoingMessage(b"c", 9, schema_version=b"1"),
    OutgoingMessage(b"d", 3, schema_version=b"1"),
    OutgoingMessage(b"e", 10),
    OutgoingMessage(b"f", 11, "key"),
    OutgoingMessage(b"g", 12, properties={"a": "b"}),
    OutgoingMessage(b"h", 13, event_time_ms=5),
    OutgoingMessage(b"i", 14, deliver_at_ms=5),
    OutgoingMessage(b"j", 15, replicate_to=["west"]),
    OutgoingMessage(b"k", 16, ordering_key=b"o"),
    OutgoingMessage(b"", 17, is_tombstone=True),
    OutgoingMessage(b"m", 18, transaction=(1, 2)),
    OutgoingMessage(b"n", 19, encryption=pb.MessageMetadata(encryption_param=b"p")),
    OutgoingMessage(b"o", 20),
]


@pytest.mark.parametrize("kind", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_entries_of_one_encoder_are_those_of_each_message_alone(
    kind: pb.CompressionType.ValueType,
) -> None:
    encode = SingleEncoder("p", 99, kind).encode
    for message in [*MESSAGES, *(OutgoingMessage(b"z", 2**bits - 1) for bits in (14, 21, 63))]:
        ((metadata, body, sequence_id),) = encode([message])
        alone, wanted, _ = encode_single("p", message, 99, kind)
        assert (body, sequence_id) == (wanted, message.sequence_id)
        assert make_header(metadata) == make_header(alone)


def test_what_entries_share_is_that_of_each_alone() -> None:
    entries = SingleEncoder("p", 99).encode(MESSAGES)
    entries += [encode_batch("p", MESSAGES[:count], 99) for count in (2, 5)]
    alone = [encode_single("p", message, 99)[0] for message in MESSAGES]
    alone += [metadata for metadata, _, _ in entries[-2:]]
    heads, highest_ids, messages = shared_fields(entries, make_header)
    assert heads == [make_header(metadata) for metadata in alone]
    assert highest_ids == [0] * len(MESSAGES) + [8, 10]
    assert messages == len(MESSAGES) + 2 + 5


@pytest.mark.parametrize("kind", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_a_batch_survives(kind: pb.CompressionType.ValueType) -> None:
    messages = [OutgoingMessage(b"%d" % i, i, None if i else "k") for i in range(5)]
    metadata, body, _ = encode_batch("p", messages, 99, kind)
    assert (metadata.num_messages_in_batch, metadata.highest_sequence_id) == (5, 4)
    found = messages_of(*open_entry(body), LIMIT)
    assert [message.payload for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.batch_index for message in found] == [0, 1, 2, 3, 4]
    assert [message.key for message in found] == ["k", None, None, None, None]


def test_text_that_is_not_utf8_is_shown_with_replacement_characters() -> None:
    """C++ producers may put any bytes into keys and properties; readers get text all the same."""
    single = OutgoingMessage(b"x", 0, "kkk", {"ppp": "vvv"})
    _, body, _ = encode_single("p", single, 99)
    metadata_from = 10
    raw = body[metadata_from:]
    for text in (b"kkk", b"ppp", b"vvv"):
        assert text in raw
        raw = raw.replace(text, b"a\xffb")
    (found,) = messages_of(*open_entry(body[:metadata_from] + raw), LIMIT)
    assert (found.key, found.properties) == ("a\ufffdb", {"a\ufffdb": "a\ufffdb"})


def body_of(payload: bytes, **fields: object) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return encode_body(metadata, payload)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0e\x01",
        body_of(b"", num_messages_in_batch=2),
        body_of(b"\0\0\0\xff" + b"x" * 40, num_messages_in_batch=1),
        body_of(b"x" * 100, num_messages_in_batch=-1),
        body_of(b"x" * 100, num_messages_in_batch=2**31 - 1),
        body_of(b"x", compression=pb.LZ4, uncompressed_size=100),
        body_of(b"x", compression=pb.ZLIB, uncompressed_size=100),
        body_of(b"x", compression=pb.ZSTD, uncompressed_size=100),
        body_of(b"x", compression=pb.SNAPPY, uncompressed_size=100),
        body_of(b"x", compression=pb.LZ4, uncompressed_size=LIMIT + 1),
    ],
)
def test_lying_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(UndecodableEntryError):
        messages_of(*open_entry(body), LIMIT)


@pytest.mark.parametrize("kind", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_more_bytes_than_announced_are_refused(kind: pb.CompressionType.ValueType) -> None:
    metadata, body, _ = encode_single("p", OutgoingMessage(b"x" * 1000, 0), 1, kind)
    start = len(body) - len(encode_body(metadata, b""))
    payload = body[-start:]
    metadata.uncompressed_size = 10
    entry = open_entry(encode_body(metadata, payload))
    with pytest.raises(UndecodableEntryError):
        messages_of(*entry, LIMIT)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**14, 2**21, 2**63 - 1])
@pytest.mark.parametrize("partition", [-1, 0, 300])
@pytest.mark.parametrize("batch", [(-1, 0), (0, 1), (700, 1000)])
def test_message_ids_are_as_protobuf_writes_them(
    number: int, partition: int, batch: tuple[int, int]
) -> None:
    wanted = pb.MessageIdData(ledgerId=number, entryId=number, partition=partition)
    if batch[0] >= 0:
        wanted.batch_index, wanted.batch_size = batch
    found = encode_message_id(number, number, partition, *batch)
    assert base64.b64decode(found) == wanted.SerializeToString()
    wanted.first_chunk_message_id.CopyFrom(
        pb.MessageIdData(ledgerId=3, entryId=4, partition=partition)
    )
    found = encode_message_id(number, number, partition, *batch, (3, 4))
    assert base64.b64decode(found) == wanted.SerializeToString()


def test_message_ids_survive() -> None:
    found = parse_message_id(encode_message_id(12, 4, 3, 7, 9))
    assert (found.ledgerId, found.entryId, found.partition) == (12, 4, 3)
    assert (found.batch_index, found.batch_size) == (7, 9)
    assert parse_message_id(encode_message_id(1, 0, -1)).batch_index == -1


@pytest.mark.parametrize("text", ["*", "AAAA", "", "é", "CA=="])
def test_what_is_no_message_id(text: str) -> None:
    with pytest.raises(MessageIdError):
        parse_message_id(text)


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0)]
)
def test_keys_hash_as_in_java(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65_536, b"\x81\x7f" + bytes(5) + b"\x01\0\0"),
    ],
)
def test_frame_heads(size: int, head: bytes) -> None:
    assert text_frame_head(size) == head
