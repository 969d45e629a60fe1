"""What entries and ids cost HTTP clients' feeds is bounded, whatever they claim."""

import asyncio
import struct

import pytest

from magnetar.broker.http.messaging import entry_unpacker as entry_unpacker
from magnetar.broker.http.messaging.internal_consumer import PARTIAL_BYTES_MAX, InternalConsumer
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import compress
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.broker.protocol.messages import (
    MESSAGES_AT_ONCE,
    OutgoingMessage,
    UndecodableEntryError,
    encode_batch,
    encode_single,
    is_large,
    messages_in,
    messages_of,
    open_entry,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.consumer import SHARED, SubscribeRequest
from tests.unit.broker.doubles import Broker

NAME = TopicName.parse("persistent://public/default/bounded")


def batch(count: int, data: bytes, kind: int = pb.ZSTD) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        compression=kind,  # type: ignore[arg-type] # one of the enum
        uncompressed_size=len(data),
        num_messages_in_batch=count,
    )


@pytest.mark.parametrize("single", [b"", b"\x18\x00"], ids=["empty", "shortest"])
def test_a_batch_of_millions_of_messages_is_refused(single: bytes) -> None:
    """700 bytes were 5.2 million messages, 12 seconds of the loop and 1.2 GB."""
    count = 1_000_000
    data = (struct.pack(">I", len(single)) + single) * count
    with pytest.raises(UndecodableEntryError, match="batch of 1000000 messages"):
        messages_of(batch(count, data), compress(pb.ZSTD, data), len(data))


def test_a_message_without_its_payload_s_size_is_refused() -> None:
    data = struct.pack(">I", 2) + b"\x28\x01"  # an event time only; then room for a second one
    with pytest.raises(UndecodableEntryError, match="payload's size"):
        messages_of(batch(1, data), compress(pb.ZSTD, data), 100)


class Opened:
    """A feed of a topic in memory, which takes what it gets."""

    def __init__(self, broker: Broker, buffer_bytes: int) -> None:
        self.consumer_feed = InternalConsumer(
            broker.service, self._take, lambda: None, buffer_bytes
        )
        self.taken: list[tuple[int, bytes]] = []
        self.most = 0
        self.held = False

    async def open(self) -> None:
        request = SubscribeRequest(subscription="s", sub_type=SHARED, consumer_name="c")
        await self.consumer_feed.open((NAME,), request, remote="r", client_version="")

    def _take(self) -> None:
        if not self.held:
            self.consumer_feed.add_credit(1_000_000)
            deliveries = self.consumer_feed.take(1_000_000)
            self.most = max(self.most, len(deliveries))
            self.taken += [(d.message.batch_index, d.message.payload) for d in deliveries]
            self.consumer_feed.release(deliveries)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.taken) < count:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.001)


@pytest.fixture
async def opened() -> Opened:
    return Opened(await Broker().start(), 4 << 20)


def many(count: int) -> bytes:
    messages = [OutgoingMessage(b"%d" % n, n) for n in range(count)]
    return encode_batch("p", messages, 1, pb.ZSTD)[1]


async def test_a_large_batch_comes_in_slices_and_in_order(opened: Opened) -> None:
    consumer_feed = opened.consumer_feed
    await opened.open()
    source = consumer_feed._sources[0]
    consumer_feed.add_entry(source, 1, 0, many(3_500), 0, None)
    consumer_feed.add_entry(source, 1, 1, many(2), 0, None)  # waits behind the large one
    await opened.until(3_502)
    assert [payload for _, payload in opened.taken[:3_500]] == [b"%d" % n for n in range(3_500)]
    assert opened.taken[3_500:] == [(0, b"0"), (1, b"1")]
    assert opened.most <= MESSAGES_AT_ONCE + 2
    assert consumer_feed._unpacker is None or not consumer_feed._unpacker._waiting
    async with asyncio.timeout(60):
        while consumer_feed.buffered_bytes:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.001)
    consumer_feed.close()


async def test_consumers_of_an_entry_share_its_message_and_mark_it_each_for_himself(
    opened: Opened,
) -> None:
    """500 that didn't read held 26 MiB of copies."""
    consumer_feed = opened.consumer_feed
    await opened.open()
    opened.held = True
    source = consumer_feed._sources[0]
    body = encode_single("p", OutgoingMessage(b"one", 0), 1)[1]
    for entry_id in (7, 8):
        consumer_feed.add_entry(source, 1, entry_id, body, entry_id - 7, None)
    consumer_feed.add_entry(source, 1, 9, bytes(bytearray(body)), 0, None)
    first, second, other = consumer_feed.ready
    assert first.message is second.message
    assert first.message is not other.message
    assert first.message == other.message
    assert [each.redelivery_count for each in (first, second)] == [0, 1]
    assert first.key != second.key
    assert consumer_feed.buffered_bytes == 3 * first.message.held_bytes
    consumer_feed.close()


async def test_small_entries_that_are_much_together_are_inflated_elsewhere(opened: Opened) -> None:
    consumer_feed = opened.consumer_feed
    await opened.open()
    payload = bytes(300_000)
    message = OutgoingMessage(payload, 0)
    for entry_id in range(10):
        body = encode_single("p", message, 1, pb.ZLIB)[1]
        consumer_feed.add_entry(consumer_feed._sources[0], 1, entry_id, body, 0, None)
    assert len(opened.taken) + len(consumer_feed.ready) == 3  # within 1 MiB
    consumer_feed.announce()
    await opened.until(10)
    assert {data for _, data in opened.taken} == {payload}
    while consumer_feed._unpacker is not None:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.001)
    consumer_feed.add_entry(consumer_feed._sources[0], 1, 10, body, 0, None)  # in another turn
    assert consumer_feed._unpacker is None
    consumer_feed.close()


async def test_a_slice_is_bounded_by_what_it_takes_in_memory(opened: Opened) -> None:
    await opened.open()
    properties = {f"{n}": "" for n in range(2_000)}
    messages = [OutgoingMessage(b"", n, properties=properties) for n in range(100)]
    body = encode_batch("p", messages, 1)[1]
    metadata = pb.MessageMetadata(num_messages_in_batch=1_001)
    assert is_large(metadata)
    found, error = entry_unpacker._next_of(messages_in(*_opened(body)))
    assert (len(found), error) == (9, None)  # 128 KB each


def _opened(body: bytes) -> tuple[pb.MessageMetadata, bytes]:
    metadata, payload = open_entry(body)
    return metadata, bytes(payload)


async def test_unpacking_waits_for_room(opened: Opened) -> None:
    consumer_feed = opened.consumer_feed
    await opened.open()
    consumer_feed.buffer_bytes_max, opened.held = 100_000, True
    consumer_feed.add_entry(consumer_feed._sources[0], 1, 0, many(20_000), 0, None)
    async with asyncio.timeout(60):
        while consumer_feed.buffered_bytes < consumer_feed.buffer_bytes_max:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(consumer_feed.ready) <= 100_000 // 64 + MESSAGES_AT_ONCE
    opened.held = False
    opened._take()
    await opened.until(20_000)
    consumer_feed.close()


async def test_a_batch_that_breaks_late_is_done_once_the_rest_is(opened: Opened) -> None:
    consumer_feed = opened.consumer_feed
    await opened.open()
    source = consumer_feed._sources[0]
    part = struct.pack(">I", 2) + b"\x18\x00"
    data = part * 1_500 + struct.pack(">I", 1 << 30) + bytes(8_000)
    body = encode_body(batch(2_000, data), compress(pb.ZSTD, data))
    consumer_feed.add_entry(source, 7, 0, body, 0, None)
    await opened.until(1_500)
    async with asyncio.timeout(60):
        while (7, 0) not in source.partial:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.001)
    bits, size = source.partial[7, 0]
    assert size == 2_000
    assert bits == (1 << 2_000) - (1 << 1_500)
    consumer_feed.close()


async def test_closing_ends_what_is_being_unpacked(opened: Opened) -> None:
    consumer_feed = opened.consumer_feed
    await opened.open()
    opened.held = True
    consumer_feed.add_entry(consumer_feed._sources[0], 1, 0, many(5_000), 0, None)
    waiting = consumer_feed._unpacker
    assert isinstance(waiting, entry_unpacker.Unpacker)
    consumer_feed.close()
    assert waiting._task is not None
    await asyncio.wait((waiting._task,), timeout=60)
    assert waiting._task.done()
    assert not consumer_feed.ready


async def test_ids_of_huge_batches_cost_bounded_memory(opened: Opened) -> None:
    """20,000 made-up ids took 2.6 GB: 128 KiB each for a batch of a million messages."""
    consumer_feed = opened.consumer_feed
    await opened.open()
    source = consumer_feed._sources[0]
    for entry in range(2_000):
        consumer_feed.acknowledge((-1, 1, entry, 200_000, 262_144))
    assert source.partial_bytes <= PARTIAL_BYTES_MAX
    assert sum(bits.bit_length() >> 3 for bits, _ in source.partial.values()) <= PARTIAL_BYTES_MAX
    consumer_feed.acknowledge((-1, 1, 5_000, 1, 1 << 20))  # no batch is that large
    assert (1, 5_000) not in source.partial
    consumer_feed.close()


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 511, 512, 513, 1000, 5_000])
def test_long_keys_have_java_s_hash(length: int) -> None:
    key = "".join(chr(0x20 + 37 * n % 0xD000) for n in range(length)) + "\U0001f600\uffff"
    value = 0
    for unit in struct.unpack(f">{length + 3}H", key.encode("utf-16-be")):
        value = (31 * value + unit) % 2**32
    assert java_string_hash(key) == value & 0x7FFFFFFF
