"""Readers, seek, last message id, table view, partitioned topics, patterns, dead letters."""

import re
import time

import pulsar
import pytest
from _pulsar import ConsumerType

from tests.interop.conftest import RECEIVE_MS, Admin
from tests.waiting import wait_until

EARLIEST = pulsar.InitialPosition.Earliest


def _send(
    client: pulsar.Client, topic: str, count: int, **options: object
) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, batching_enabled=False, **options)
    ids = [producer.send(b"%d" % n) for n in range(count)]
    producer.close()
    return ids


def _read_all(reader: pulsar.Reader) -> list[bytes]:
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS).data())
    return found


def test_reader_from_earliest_and_latest(client: pulsar.Client, topic: str) -> None:
    keep = client.subscribe(topic, "keep")  # holds the data
    _send(client, topic, 10)
    assert _read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == [
        b"%d" % n for n in range(10)
    ]
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    _send(client, topic, 1)
    assert latest.read_next(RECEIVE_MS).data() == b"0"
    keep.close()


@pytest.mark.parametrize("inclusive", [False, True])
def test_reader_from_an_id(client: pulsar.Client, topic: str, inclusive: bool) -> None:
    keep = client.subscribe(topic, "keep")
    ids = _send(client, topic, 10)
    reader = client.create_reader(topic, ids[4], start_message_id_inclusive=inclusive)
    assert _read_all(reader) == [b"%d" % n for n in range(4 if inclusive else 5, 10)]
    keep.close()


def test_reader_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    keep = client.subscribe(topic, "keep")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=50
    )
    ids: list[pulsar.MessageId] = []
    for n in range(10):
        producer.send_async(b"%d" % n, lambda _, message_id: ids.append(message_id))
    producer.flush()
    wait_until(lambda: len(ids) == 10)
    assert _read_all(client.create_reader(topic, ids[4])) == [b"%d" % n for n in range(5, 10)]
    keep.close()


def test_empty_topic_has_nothing(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()


def test_seek_by_id_and_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    # Holds the data: what every subscription has acknowledged is deleted when the ledger rotates.
    keep = client.subscribe(topic, "keep")
    ids = _send(client, topic, 5)
    time.sleep(0.02)  # the publish times of both halves must differ
    middle_ms = int(time.time() * 1000)
    time.sleep(0.02)
    _send(client, topic, 5)
    for _ in range(10):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    consumer.seek(ids[2])
    # The client itself drops the named message: the default is exclusive.
    assert consumer.receive(RECEIVE_MS).data() == b"3"
    consumer.seek(middle_ms)
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(5)] == [b"%d" % n for n in range(5)]
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(RECEIVE_MS).data() == b"0"
    consumer.seek(pulsar.MessageId.latest)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(400)
    keep.close()


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = _send(client, topic, 3)
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())


def test_reader_seek(client: pulsar.Client, topic: str) -> None:
    keep = client.subscribe(topic, "keep")
    ids = _send(client, topic, 10)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert len(_read_all(reader)) == 10
    reader.seek(ids[7])
    assert _read_all(reader) == [b"8", b"9"]
    keep.close()


def test_table_view(client: pulsar.Client, topic: str) -> None:
    keep = client.subscribe(topic, "keep")
    producer = client.create_producer(topic)
    for n in range(20):
        producer.send(b"%d" % n, partition_key=f"k{n % 4}")
    view = client.create_table_view(topic)
    wait_until(lambda: len(view) == 4)
    assert {key: view.get(key) for key in ("k0", "k3")} == {"k0": b"16", "k3": b"19"}
    producer.send(b"new", partition_key="k0")
    wait_until(lambda: view.get("k0") == b"new")
    view.close()
    keep.close()


def test_partitioned_topic(client: pulsar.Client, admin: Admin, topic: str) -> None:
    admin.create_partitioned(topic, 3)
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    for n in range(30):
        producer.send(b"%d" % n)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(30)]
    assert {m.data() for m in messages} == {b"%d" % n for n in range(30)}
    assert {m.message_id().partition() for m in messages} == {0, 1, 2}
    for message in messages:
        consumer.acknowledge(message)
    status, stats = admin.call(
        "GET", admin.topic_path(topic) + "/partitioned-stats?perPartition=true"
    )
    assert status == 200
    assert len(stats["partitions"]) == 3
    assert stats["msgInCounter"] == 30


def test_keyed_messages_stay_in_their_partition(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    admin.create_partitioned(topic, 3)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for n in range(30):
        producer.send(b"%d" % n, partition_key=f"key-{n % 6}")
    homes: dict[str, set[int]] = {}
    for _ in range(30):
        message = consumer.receive(RECEIVE_MS)
        homes.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    assert all(len(partitions) == 1 for partitions in homes.values())


def test_pattern_subscription(client: pulsar.Client, topic: str) -> None:
    producers = {name: client.create_producer(f"{topic}-{name}") for name in ("a", "b", "c")}
    other = client.create_producer(topic)
    consumer = client.subscribe(re.compile(f"{topic}-[ab]"), "s", initial_position=EARLIEST)
    for name, producer in producers.items():
        producer.send(name.encode())
    other.send(b"other")
    assert {consumer.receive(RECEIVE_MS).data() for _ in range(2)} == {b"a", b"b"}
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def test_several_topics_at_once(client: pulsar.Client, topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    consumer = client.subscribe(names, "s")
    for name in names:
        client.create_producer(name).send(name.encode())
    assert {consumer.receive(RECEIVE_MS).data() for _ in names} == {name.encode() for name in names}


def test_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    dlq = client.subscribe(f"{topic}-s-DLQ", "dead", initial_position=EARLIEST)
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-s-DLQ", "init"),
    )
    client.create_producer(topic).send(b"poison")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    assert dlq.receive(RECEIVE_MS).data() == b"poison"


def test_non_persistent_topic(client: pulsar.Client, topic: str) -> None:
    name = topic.replace("persistent://", "non-persistent://")
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    for n in range(20):
        producer.send(b"%d" % n)
    received = [consumer.receive(RECEIVE_MS).data() for _ in range(20)]
    assert received == [b"%d" % n for n in range(20)]


def test_terminated_topic(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"last")
    status, _ = admin.call("POST", admin.topic_path(topic) + "/terminate")
    assert status == 200
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"more")
    assert consumer.receive(RECEIVE_MS).data() == b"last"
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
