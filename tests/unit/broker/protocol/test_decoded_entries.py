"""Consumers of the same entries share their messages."""

import gc

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.decoded_entries import DecodedEntries
from magnetar.broker.protocol.messages import (
    OutgoingMessage,
    encode_batch,
    encode_single,
    messages_of,
    open_entry,
)


def add(decoded: DecodedEntries, body: bytes | memoryview) -> None:
    metadata, payload = open_entry(body)
    decoded.add(body, metadata, messages_of(metadata, payload, 1 << 20))


def single(payload: bytes) -> bytes:
    return encode_single("p", OutgoingMessage(payload, 0), 1)[1]


def test_an_entry_is_known_by_its_object() -> None:
    decoded, body = DecodedEntries(), single(b"one")
    same = bytes(bytearray(body))
    add(decoded, body)
    found = decoded.find(body)
    assert found is not None
    assert [message.payload for message in found] == [b"one"]
    assert decoded.find(body) is found
    assert decoded.find(same) is None


def test_the_oldest_ones_go_and_none_is_taken_for_another() -> None:
    decoded = DecodedEntries()
    kept = [single(b"%d" % number) for number in range(1_000)]
    for number in range(1_000):
        add(decoded, kept[number])
        add(decoded, single(b"gone"))  # nobody else keeps it: its address is not used again yet
    found = [decoded.find(body) for body in kept]
    assert [each[0].payload for each in found if each] == [b"%d" % n for n in range(936, 1_000)]
    del kept[:]
    gc.collect()
    others = [single(b"other") for _ in range(1_000)]
    assert not any(map(decoded.find, others))


@pytest.mark.parametrize(
    "body",
    [
        single(bytes(20_000)),
        memoryview(single(b"a view")),
        encode_single("p", OutgoingMessage(b"x", 0), 1, pb.ZLIB)[1],
        encode_batch("p", [OutgoingMessage(b"%d" % n, n) for n in range(17)], 1, pb.NONE)[1],
    ],
    ids=["large", "a view", "compressed", "many messages"],
)
def test_what_is_large_or_depends_on_the_consumer_is_not_kept(body: bytes) -> None:
    decoded = DecodedEntries()
    add(decoded, body)
    assert decoded.find(body) is None


def test_what_is_encrypted_is_not_kept() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.encryption_keys.add(key="k", value=b"v")
    decoded, body = DecodedEntries(), single(b"x")
    decoded.add(body, metadata, messages_of(metadata, b"x", 100))
    assert decoded.find(body) is None
