"""Subscription types end to end with the official client; runs against Apache Pulsar as well."""

import secrets
import threading

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from tests.official_client import open_client

NAMES = ("alpha", "b", "consumer-3")
DEADLINE_S = 30.0


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/dispatch-{secrets.token_hex(6)}"


class Collector:
    """Acknowledges and remembers what the consumers of one subscription get."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, int]] = []  # consumer, key, number
        self._changed = threading.Condition()

    def listener(self, name: str, *, acknowledge: bool = True) -> object:
        def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            if acknowledge:
                consumer.acknowledge(message)
            with self._changed:
                self.got.append((name, message.partition_key(), int(message.data())))
                self._changed.notify_all()

        return on_message

    def wait_for(self, numbers: set[int]) -> None:
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: numbers <= {number for _, _, number in self.got}, DEADLINE_S
            )
        assert arrived, f"{len(self.got)} messages came"

    def wait_for_consumers(self, *names: str) -> None:
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: set(names) <= {name for name, _, _ in self.got}, DEADLINE_S
            )
        assert arrived, f"not all of {names} got messages"


def test_key_shared_keeps_keys_together_while_consumers_come_and_go(
    client: pulsar.Client, topic: str
) -> None:
    collector = Collector()

    def join(name: str) -> pulsar.Consumer:
        return client.subscribe(
            topic,
            "s",
            consumer_type=ConsumerType.KeyShared,
            consumer_name=name,
            message_listener=collector.listener(name),
            initial_position=InitialPosition.Earliest,
        )

    consumers = {name: join(name) for name in NAMES[:2]}
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(3_000):
        producer.send_async(b"%d" % number, None, partition_key=f"key{number % 40}")
        if number == 1_000:
            consumers[NAMES[2]] = join(NAMES[2])
        if number == 2_000:
            # on a slow machine the producer is done before a consumer has got its first message
            collector.wait_for_consumers(NAMES[0], NAMES[2])
            consumers.pop(NAMES[0]).close()
    producer.flush()
    collector.wait_for(set(range(3_000)))
    collector.wait_for_consumers(*NAMES)
    first_seen: dict[str, list[int]] = {}
    for _, key, number in collector.got:
        numbers = first_seen.setdefault(key, [])
        if number not in numbers:  # unacknowledged ones of the consumer that left come again
            numbers.append(number)
    assert all(numbers == sorted(numbers) for numbers in first_seen.values())


def test_what_a_lost_shared_consumer_held_goes_to_the_others(
    client: pulsar.Client, service_url: str, topic: str
) -> None:
    collector, silent = Collector(), Collector()
    other = open_client(service_url)
    other.subscribe(
        topic,
        "s",
        consumer_type=ConsumerType.Shared,
        message_listener=silent.listener("silent", acknowledge=False),
    )
    client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, message_listener=collector.listener("live")
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(200):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    other.close()
    collector.wait_for(set(range(200)))


def test_failover_hands_over_without_a_gap(client: pulsar.Client, topic: str) -> None:
    collector = Collector()
    consumers = {
        name: client.subscribe(
            topic,
            "s",
            consumer_type=ConsumerType.Failover,
            consumer_name=name,
            message_listener=collector.listener(name),
        )
        for name in NAMES
    }
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(100):
        producer.send(b"%d" % number)
    collector.wait_for(set(range(100)))
    active = collector.got[-1][0]
    consumers.pop(active).close()
    for number in range(100, 200):
        producer.send(b"%d" % number)
    collector.wait_for(set(range(200)))
    successor = collector.got[-1][0]
    assert successor != active
    tail = [number for name, _, number in collector.got if name == successor]
    assert sorted(set(tail[-100:])) == list(range(100, 200))
    assert tail[-100:] == sorted(tail[-100:])
