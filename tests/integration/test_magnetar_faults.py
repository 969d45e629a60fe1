"""Faults of embedded brokers: clients of the official library that rely on luck get wrong results.

Payments are summed twice: by code that takes each message for a new payment, and by code that knows
a payment again.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.broker.errors import BrokerError, PersistenceError, TopicFencedError
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.embedding import EmbeddedBroker
from magnetar.errors import EmbeddedError
from magnetar.fresh_namespace import FreshNamespace
from tests.official_client import client_of

_MS_MAX = 30_000
_COUNT = 12
_SETTINGS: dict[str, Any] = {
    "forceDeleteTenantAllowed": True,
    # Only a subscription's first acknowledgment is stored before the topic is closed.
    "managedLedgerDefaultMarkDeleteRateLimit": 0.001,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(**_SETTINGS) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[pulsar.Client]:
    with client_of(broker.service_url) as client:
        yield client


@pytest.fixture
def space(broker: EmbeddedBroker) -> Iterator[FreshNamespace]:
    with FreshNamespace(broker) as space:
        yield space


def pay(producer: pulsar.Producer, first: int = 0, end: int = _COUNT) -> None:
    """Payments of 1 each."""
    for number in range(first, end):
        producer.send(b"1", partition_key=str(number))


def received(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(_MS_MAX) for _ in range(count)]


def received_to_end(producer: pulsar.Producer, consumer: pulsar.Consumer) -> list[pulsar.Message]:
    """All that there is."""
    producer.send(b"end")
    messages = []
    while (message := consumer.receive(_MS_MAX)).data() != b"end":
        messages.append(message)
    return messages


def sloppy_sum(messages: list[pulsar.Message]) -> int:
    return sum(int(message.data()) for message in messages)


def careful_sum(messages: list[pulsar.Message]) -> int:
    return sum({message.partition_key(): int(message.data()) for message in messages}.values())


def keys(messages: list[pulsar.Message]) -> list[str]:
    return [message.partition_key() for message in messages]


def test_a_lost_receipt_makes_producers_send_again(
    space: FreshNamespace, client: pulsar.Client
) -> None:
    runs = []
    for _ in range(2):
        topic = space.topic()
        consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
        space.faults.start(seed=7, drop_receipts=0.2)
        pay(producer)
        space.faults.stop()
        runs.append(received_to_end(producer, consumer))
    assert sloppy_sum(runs[0]) > _COUNT
    assert careful_sum(runs[0]) == _COUNT
    assert keys(runs[0]) == keys(runs[1])

    space.admin("POST", f"/admin/v2/namespaces/{space.namespace}/deduplication", True)
    topic = space.topic()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    space.faults.start(seed=7, drop_receipts=0.2)
    pay(producer)
    space.faults.stop()
    assert sloppy_sum(received_to_end(producer, consumer)) == _COUNT


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive])
def test_a_duplicate_comes_twice(
    space: FreshNamespace, client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    runs = []
    for _ in range(2):
        topic = space.topic()
        consumer = client.subscribe(topic, "s", consumer_type=kind)
        producer = client.create_producer(topic)
        space.faults.start(seed=3, duplicate=0.3)
        for number in range(_COUNT):
            pay(producer, number, number + 1)
        runs.append(received_to_end(producer, consumer))
        space.faults.stop()
    assert sloppy_sum(runs[0]) > _COUNT
    assert careful_sum(runs[0]) == _COUNT
    if kind == pulsar.ConsumerType.Shared:  # of others, all comes again that isn't acknowledged
        assert sorted(keys(runs[0])) == sorted(keys(runs[1]))


def test_after_an_unload_comes_again_what_was_not_acknowledged(
    space: FreshNamespace, client: pulsar.Client
) -> None:
    topic = space.topic()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    pay(producer, 0, 6)
    taken = received(consumer, 6)  # and worked on; the acknowledgments would come now
    space.faults.unload(topic)
    pay(producer, 6, _COUNT)
    taken += received_to_end(producer, consumer)
    assert sloppy_sum(taken) > _COUNT
    assert careful_sum(taken) == _COUNT


def test_producers_don_t_mind_an_unload(space: FreshNamespace, client: pulsar.Client) -> None:
    topic = space.topic()
    producer = client.create_producer(topic)
    space.faults.start(seed=1, unload=0.2)
    pay(producer, 0, _COUNT - 1)
    pay(producer, _COUNT - 1)
    space.faults.stop()
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert keys(received_to_end(producer, consumer)) == [str(number) for number in range(_COUNT)]


@pytest.mark.parametrize("error", [TopicFencedError, PersistenceError])
def test_a_subscribe_that_meets_an_unload_is_tried_again(
    space: FreshNamespace,
    client: pulsar.Client,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BrokerError],
) -> None:
    subscribe, refused = PersistentTopic.subscribe, 0

    async def refuse_twice(topic: PersistentTopic, *arguments: Any) -> Consumer:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise error("it is being closed")
        return await subscribe(topic, *arguments)

    monkeypatch.setattr(PersistentTopic, "subscribe", refuse_twice)
    topic = space.topic()
    consumer = client.subscribe(topic, "s")
    assert refused == 2
    producer = client.create_producer(topic)
    pay(producer)
    assert len(received_to_end(producer, consumer)) == _COUNT


def test_a_fenced_topic_forgets_acknowledgments(
    space: FreshNamespace, client: pulsar.Client
) -> None:
    sums = []
    for fault in (space.faults.unload, space.faults.fence):
        topic = space.topic()
        consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
        pay(producer)
        taken = received(consumer, _COUNT)
        for message in taken:
            consumer.acknowledge(message)
        consumer.close()  # the broker has the acknowledgments
        fault(topic)
        pay(producer, 0, 1)  # once more: it is stored when the topic is there again
        consumer = client.subscribe(topic, "s")
        taken += received_to_end(producer, consumer)
        sums.append((sloppy_sum(taken) - 1, careful_sum(taken)))
    assert sums[0] == (_COUNT, _COUNT)
    assert sums[1][0] > sums[1][1] == _COUNT


def test_fencing_loses_nothing_that_a_producer_was_told(
    space: FreshNamespace, client: pulsar.Client
) -> None:
    topic = space.topic()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    space.faults.start(seed=5, fence=0.2)
    pay(producer)
    space.faults.stop()
    assert careful_sum(received_to_end(producer, consumer)) == _COUNT


def sent_in_three_attempts(producer: pulsar.Producer, key: str) -> bool:
    """A wrong way: after a time-out nobody knows whether the message is stored."""
    for _ in range(3):
        try:
            producer.send(b"1", partition_key=key)
        except pulsar.Timeout:
            continue
        return True
    return False


def test_a_slow_disk_tells_who_has_no_patience(
    space: FreshNamespace, client: pulsar.Client
) -> None:
    topic = space.topic()
    consumer = client.subscribe(topic, "s")
    hasty = client.create_producer(topic, send_timeout_millis=100)
    patient = client.create_producer(topic)
    pay(hasty, 0, 1)
    pay(patient, 1, 2)
    space.faults.start(slow_disk=1.0, slow_disk_delay="300ms")
    assert not sent_in_three_attempts(hasty, "2")
    pay(patient, 3, 4)
    space.faults.stop()
    taken = received_to_end(patient, consumer)
    assert [keys(taken).count(str(number)) for number in range(4)] == [1, 1, 3, 1]


def test_a_killed_broker_comes_back_at_its_ports_and_its_time() -> None:
    with (
        magnetar.embedded(mode="process", clock="virtual", **_SETTINGS) as broker,
        client_of(broker.service_url) as client,
    ):
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
        reminders = client.subscribe("r", "s", consumer_type=pulsar.ConsumerType.Shared)
        client.create_producer("r").send(b"later", deliver_after=timedelta(days=1))
        broker.advance("12h")
        pay(producer)
        taken = received(consumer, _COUNT)
        for message in taken:
            consumer.acknowledge(message)
        before = (broker.pid, broker.service_url, broker.web_url)
        broker.faults.kill()
        assert (broker.service_url, broker.web_url) == before[1:]
        assert broker.pid != before[0]
        taken += received_to_end(producer, consumer)
        assert sloppy_sum(taken) > _COUNT
        assert careful_sum(taken) == _COUNT
        client.create_producer("r").send(b"at once")  # its consumer is connected again
        assert reminders.receive(_MS_MAX).data() == b"at once"
        broker.advance("12h")
        assert reminders.receive(_MS_MAX).data() == b"later"


def test_a_broker_is_killed_by_chance_and_loses_nothing_that_a_producer_was_told() -> None:
    """The same messages are killed for the same seed: they are the ones that come twice."""
    runs, killed = [], []
    for _ in range(2):
        with (
            magnetar.embedded(mode="process", clock="virtual", **_SETTINGS) as broker,
            client_of(broker.service_url) as client,
        ):
            broker.advance("2h")
            consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
            broker.faults.start(seed=4, kill=0.2)
            pids = {broker.pid}
            for number in range(_COUNT):
                pay(producer, number, number + 1)
                pids.add(broker.pid)
            broker.faults.stop()
            broker.advance("1h")
            runs.append(received_to_end(producer, consumer))
            killed.append(len(pids) - 1)
    assert killed[0] == killed[1] >= 2
    assert sloppy_sum(runs[0]) >= _COUNT + killed[0]
    assert careful_sum(runs[0]) == _COUNT
    assert sorted(keys(runs[0])) == sorted(keys(runs[1]))


def test_faults_end_with_their_test(broker: EmbeddedBroker, client: pulsar.Client) -> None:
    with FreshNamespace(broker) as other:
        other.faults.start(drop_receipts=1)
    client.create_producer("after").send(b"x")  # which would never end


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda broker: broker.faults.start(duplicate=1.5), "duplicate=1.5"),
        (lambda broker: broker.faults.start(unload="often"), "unload='often': a rate"),
        (lambda broker: broker.faults.unload("nobody-uses-it"), "isn't loaded"),
        (lambda broker: broker.faults.fence("non-persistent://public/default/x"), "isn't loaded"),
        (lambda broker: broker.faults.kill(), 'mode="process"'),
        (lambda broker: broker.faults.start(kill=0.1), 'mode="process"'),
    ],
)
def test_what_can_t_be_is_told(
    broker: EmbeddedBroker, fault: Callable[[EmbeddedBroker], None], said: str
) -> None:
    with pytest.raises(EmbeddedError, match=said):
        fault(broker)
