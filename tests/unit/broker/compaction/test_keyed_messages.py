"""Keys of batches by compiled code and by protobuf: the same of any bytes."""

import random
from collections.abc import Callable
from struct import Struct

import pytest

from magnetar.broker.compaction import keyed_messages
from magnetar.broker.compaction.keyed_messages import KeyedMessage, OpenedEntry
from magnetar.broker.protocol import plain_sends
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import compress
from magnetar.broker.protocol.framing import encode_body

_U32 = Struct(">I")
Change = Callable[[random.Random, bytes], bytes]


def part(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice((0, 1, 200)))
    single = pb.SingleMessageMetadata(payload_size=len(payload))
    if rng.random() < 0.7:
        single.partition_key = rng.choice(("", "a", "ключ", "k" * 200))
    if rng.random() < 0.3:
        single.null_value = rng.random() < 0.5
    if rng.random() < 0.3:
        single.compacted_out = rng.random() < 0.5
    if rng.random() < 0.3:
        single.properties.add(key="k", value="v" * rng.randrange(300))
    if rng.random() < 0.3:
        single.ordering_key = rng.randbytes(5)
        single.event_time, single.sequence_id = rng.getrandbits(64), rng.getrandbits(40)
        single.partition_key_b64_encoded, single.null_partition_key = True, False
    data = single.SerializeToString()
    return _U32.pack(len(data)) + data + payload


def batch(rng: random.Random, change: Change | None) -> bytes:
    count = rng.choice((1, 2, 7))
    data = b"".join(part(rng) for _ in range(count))
    if change is not None:
        data = change(rng, data)
    codec = rng.choice((pb.NONE, pb.LZ4))
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        num_messages_in_batch=count if rng.random() < 0.95 else rng.choice((0, -1, 8, 2**31 - 1)),
        compression=codec,
        uncompressed_size=len(data),
    )
    return encode_body(metadata, compress(codec, data))


def flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4))):
        changed[rng.randrange(len(changed))] = rng.choice((0, 1, 4, 0x7F, 0xFF, rng.getrandbits(8)))
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def opened(body: bytes) -> tuple[bool, list[KeyedMessage]]:
    entry = OpenedEntry(body)
    return entry.is_opaque, entry.messages


@pytest.mark.skipif(plain_sends.scan_keys is None, reason="installed without a C compiler")
@pytest.mark.parametrize("change", [None, flip, cut])
def test_both_ways_find_the_same(change: Change | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    bodies = [batch(rng, change) for _ in range(4_000)]
    compiled = [opened(body) for body in bodies]
    assert {is_opaque for is_opaque, _ in compiled} == ({True} if change is cut else {True, False})
    monkeypatch.setattr(keyed_messages, "scan_keys", None)
    assert compiled == [opened(body) for body in bodies]


@pytest.mark.skipif(plain_sends.scan_keys is None, reason="installed without a C compiler")
def test_keys_of_clients_are_read_by_the_compiled_code() -> None:
    assert plain_sends.scan_keys is not None
    single = pb.SingleMessageMetadata(payload_size=2, partition_key="a").SerializeToString()
    removing = pb.SingleMessageMetadata(payload_size=0, null_value=True).SerializeToString()
    gone = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
    data = b"".join(
        _U32.pack(len(each)) + each + payload
        for each, payload in ((single, b"xy"), (removing, b""), (gone, b""))
    )
    found = [(b"a", False, False), (None, True, False), (None, True, True)]
    assert plain_sends.scan_keys(data, 3) == found
    assert plain_sends.scan_keys(memoryview(data), 2) == found[:2]
    assert plain_sends.scan_keys(data, 4) is None
