"""What dispatch tells of itself in statistics."""

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_FIRST_CHUNK,
    FLAG_LAST_CHUNK,
    make_header,
)
from magnetar.broker.subscription.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    SubscribeRequest,
)
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.dispatch.builders import Bench, FakeSink, non_persistent, settle
from tests.unit.broker.dispatch.doubles import head
from tests.waiting import eventually

NOW = 1_800_000_000_000
_CHUNKS = (FLAG_CHUNK | FLAG_FIRST_CHUNK, FLAG_CHUNK, FLAG_CHUNK | FLAG_LAST_CHUNK)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_parts_of_chunked_messages_have_a_rate(sub_type: int) -> None:
    bench = Bench()
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, partition_key="k",
        num_chunks_from_msg=2, uuid="u", chunk_id=0,
    )  # fmt: skip
    for number in range(2):
        metadata.chunk_id = number
        bench.ledger.append(make_header(metadata))
    plain = pb.MessageMetadata(producer_name="p", sequence_id=2, publish_time=1, partition_key="k")
    bench.ledger.append(make_header(plain))
    consumer, sink = await bench.consumer(sub_type, permits=10)
    await eventually(lambda: len(sink.got) == 3)
    assert consumer.chunks_out == 2
    run_at_once(bench.subscription.sample_steps(NOW))
    assert consumer.stats()["chunkedMessageRate"] == 0.0  # one point is no rate
    metadata.uuid = "v"
    for number in range(2):
        metadata.chunk_id = number
        bench.ledger.append(make_header(metadata))
    bench.subscription.wake()
    await eventually(lambda: len(sink.got) == 5)
    run_at_once(bench.subscription.sample_steps(NOW + 4000))
    stats = bench.subscription.stats(NOW + 4000)
    assert stats["chunkedMessageRate"] == stats["consumers"][0]["chunkedMessageRate"] == 0.5


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED])
async def test_so_have_those_of_topics_without_storage(sub_type: int) -> None:
    subscription, _ = non_persistent()
    request = SubscribeRequest(subscription="s", sub_type=sub_type, durable=False)
    consumer = await subscription.add_consumer(request, FakeSink())
    subscription.flow(consumer, 10)
    for now_ms in (NOW, NOW + 1000):
        subscription.dispatch([head(flags=each) for each in _CHUNKS] + [head()], [b"x"] * 4)
        run_at_once(subscription.sample_steps(now_ms))
    assert consumer.messages_out == 8
    assert subscription.stats(NOW)["chunkedMessageRate"] == 3.0


async def test_who_waits_for_the_former_owner_of_its_key_is_counted() -> None:
    bench = Bench()
    first, _ = await bench.consumer(KEY_SHARED, "one", permits=100)

    async def publish() -> None:
        for number in range(20):
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=number, publish_time=1, partition_key=f"k{number}"
            )
            bench.ledger.append(make_header(metadata))
        bench.subscription.wake()
        await settle()

    await publish()
    assert first.unacked == 20
    await bench.consumer(KEY_SHARED, "two", permits=100)
    await publish()
    stats = bench.subscription.stats(NOW)
    moved = stats["drainingHashesCount"]
    assert 0 < moved <= stats["msgInReplay"] < 20
    assert stats["drainingHashesUnackedMessages"] == moved
    metrics = stats["consumers"][0]
    assert metrics["consumerName"] == "one"
    assert stats["consumers"][1]["drainingHashes"] == []
    shown = metrics["drainingHashes"]
    assert [each["hash"] for each in shown] == sorted({each["hash"] for each in shown})
    assert len(shown) == moved
    assert all(each["blockedAttempts"] > 0 and each["unackMsgs"] == 1 for each in shown)
    assert stats["drainingHashesClearedTotal"] == metrics["drainingHashesClearedTotal"] == 0

    bench.subscription.acknowledge(first, [(10, entry) for entry in range(20)])
    await eventually(lambda: bench.subscription.stats(NOW)["msgInReplay"] == 0)
    stats = bench.subscription.stats(NOW)
    assert stats["drainingHashesCount"] == stats["drainingHashesUnackedMessages"] == 0
    assert stats["drainingHashesClearedTotal"] == moved
    assert [each["drainingHashesClearedTotal"] for each in stats["consumers"]] == [moved, 0]


async def test_delayed_messages_take_memory() -> None:
    bench = Bench()
    _, sink = await bench.consumer(SHARED, permits=10)
    due_ms = bench.service.now_ms + 3_600_000
    for _ in range(3):
        bench.ledger.append(head(deliver_at_ms=due_ms))
    bench.ledger.append(head())
    bench.subscription.wake()
    await eventually(lambda: len(sink.got) == 1)
    stats = bench.subscription.stats(NOW)
    assert stats["msgDelayed"] == 3
    assert 0 < stats["delayedMessageIndexSizeInBytes"] < 3_000
