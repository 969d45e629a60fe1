"""What every user does first: produce, consume, acknowledge, negative-acknowledge, redeliver."""

import datetime
import itertools
import time

import pulsar
import pytest
from _pulsar import ConsumerType, ProducerAccessMode

from tests.interop.conftest import RECEIVE_MS

EARLIEST = pulsar.InitialPosition.Earliest


def _drain(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    messages = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        messages.append(message)
    return messages


def _assert_silent(consumer: pulsar.Consumer, ms: int = 400) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(ms)


@pytest.mark.parametrize("batching", [False, True])
def test_order_and_content(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=5
    )
    for n in range(500):
        producer.send_async(b"%d" % n, None, properties={"n": str(n)}, partition_key=f"k{n % 3}")
    producer.flush()
    messages = _drain(consumer, 500)
    assert [m.data() for m in messages] == [b"%d" % n for n in range(500)]
    assert [m.properties() for m in messages] == [{"n": str(n)} for n in range(500)]
    assert [m.partition_key() for m in messages] == [f"k{n % 3}" for n in range(500)]
    ids = [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages]
    assert ids == sorted(ids)
    _assert_silent(consumer)


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize(
    "compression",
    [
        *(pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib),
        *(pulsar.CompressionType.ZSTD, pulsar.CompressionType.SNAPPY),
    ],
)
def test_compression_passes_through(
    client: pulsar.Client, topic: str, compression: pulsar.CompressionType, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, compression_type=compression, batching_enabled=batching
    )
    payload = b"compress me " * 1000
    for _ in range(10):
        producer.send_async(payload, None)
    producer.flush()
    assert [m.data() for m in _drain(consumer, 10)] == [payload] * 10


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_payload_sizes(client: pulsar.Client, topic: str, size: int) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    payload = bytes(range(256)) * (size // 256 + 1)
    producer.send(payload[:size])
    assert _drain(consumer, 1)[0].data() == payload[:size]


def test_chunked_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payload = bytes(range(256)) * 50_000  # 12.8 MB: three chunks
    sent = producer.send(payload)
    message = consumer.receive(RECEIVE_MS)
    assert message.data() == payload
    assert (sent.ledger_id(), sent.entry_id()) == (
        message.message_id().ledger_id(),
        message.message_id().entry_id(),
    )
    consumer.acknowledge(message)
    _assert_silent(consumer)


def test_new_subscription_starts_at_latest_unless_asked(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"old")
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=EARLIEST)
    producer.send(b"new")
    assert [m.data() for m in _drain(latest, 1)] == [b"new"]
    assert [m.data() for m in _drain(earliest, 2)] == [b"old", b"new"]


def test_unacknowledged_come_again_to_the_next_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    received = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    for n in (1, 3, 5):
        consumer.acknowledge(received[n])
    consumer.close()
    again = client.subscribe(topic, "s")
    expected = [b"%d" % n for n in range(10) if n not in (1, 3, 5)]
    assert [m.data() for m in _drain(again, 7)] == expected
    _assert_silent(again)


def test_cumulative_acknowledgement(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    received = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(received[6])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert [m.data() for m in _drain(again, 3)] == [b"7", b"8", b"9"]


def test_negative_acknowledgement_redelivers_with_a_count(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"x")
    counts = []
    for _ in range(3):
        message = consumer.receive(RECEIVE_MS)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    message = consumer.receive(RECEIVE_MS)
    counts.append(message.redelivery_count())
    consumer.acknowledge(message)
    assert counts == [0, 1, 2, 3]


def test_acknowledgement_timeout_redelivers(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000
    )
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"x")
    assert consumer.receive(RECEIVE_MS).redelivery_count() == 0
    consumer.redeliver_unacknowledged_messages()
    again = consumer.receive(RECEIVE_MS)
    assert again.data() == b"x"
    consumer.acknowledge(again)


def test_shared_consumers_divide_the_work(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, receiver_queue_size=10)
        for _ in range(3)
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(300):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    seen: list[list[bytes]] = [[], [], []]
    deadline = time.monotonic() + 60
    while sum(map(len, seen)) < 300 and time.monotonic() < deadline:
        for mine, consumer in zip(seen, consumers, strict=True):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            mine.append(message.data())
            consumer.acknowledge(message)
    assert sorted(itertools.chain(*seen)) == sorted(b"%d" % n for n in range(300))
    assert all(len(mine) > 30 for mine in seen), [len(mine) for mine in seen]


def test_exclusive_refuses_a_second_consumer(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_types_do_not_mix(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=ConsumerType.Failover)


def test_failover_takes_over_what_is_unacknowledged(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=ConsumerType.Failover, consumer_name=name)
        for name in ("a", "b")
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(b"%d" % n)
    active, messages = _active(consumers)
    standby = consumers[1 - consumers.index(active)]
    messages += [active.receive(RECEIVE_MS) for _ in range(9)]
    assert [m.data() for m in messages] == [b"%d" % n for n in range(10)]
    for message in messages[:4]:
        active.acknowledge(message)
    active.close()
    assert [m.data() for m in _drain(standby, 6)] == [b"%d" % n for n in range(4, 10)]


def _active(consumers: list[pulsar.Consumer]) -> tuple[pulsar.Consumer, list[pulsar.Message]]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for consumer in consumers:
            try:
                return consumer, [consumer.receive(100)]
            except pulsar.Timeout:
                continue
    raise AssertionError("no consumer became active")


def test_unsubscribe_forgets_the_position(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"1")
    _drain(consumer, 1)
    consumer.unsubscribe()
    again = client.subscribe(topic, "s", initial_position=EARLIEST)
    # No durable subscription was left, so the message may be gone or not; the new one must arrive.
    producer.send(b"2")
    first = again.receive(RECEIVE_MS).data()
    assert first in (b"1", b"2")
    if first == b"1":
        assert again.receive(RECEIVE_MS).data() == b"2"


def test_delayed_message_waits_on_shared(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.Shared)
    producer = client.create_producer(topic)
    orders = []
    for _ in range(3):  # a machine that stalls for seconds has both due at once: again
        start = time.monotonic()
        producer.send(b"late", deliver_after=datetime.timedelta(seconds=2))
        producer.send(b"now")
        arrived = {}
        for message in (_drain(consumer, 1)[0] for _ in range(2)):
            arrived[message.data()] = time.monotonic() - start
        assert arrived.keys() == {b"late", b"now"}
        assert arrived[b"late"] > 0.9  # one tick early is allowed, no more
        orders.append(list(arrived))
        if orders[-1] == [b"now", b"late"]:
            return
    raise AssertionError(orders)


def test_exclusive_producer_fences_others(client: pulsar.Client, topic: str) -> None:
    holder = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        holder = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    holder.close()


def test_producer_name_is_unique_and_sequence_ids_count(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="me")
    assert producer.producer_name() == "me"
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="me")
    assert producer.last_sequence_id() == -1
    producer.send(b"x")
    assert producer.last_sequence_id() == 0


def test_event_time_and_ordering_key(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"x", event_timestamp=123_456, ordering_key="o")
    message = consumer.receive(RECEIVE_MS)
    assert message.event_timestamp() == 123_456
    assert message.ordering_key() == "o"
    assert abs(message.publish_timestamp() - time.time() * 1000) < 60_000
