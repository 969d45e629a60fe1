"""Races of clients that leave with what was begun for them."""

import asyncio
import gc
from collections.abc import Sequence

import pytest

from magnetar.bookkeeper.errors import EntryDigestError
from magnetar.broker.connection.connection import Connection
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.errors import MetadataWriteError
from tests.unit.broker.doubles import Broker, MemoryTransport, message
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"


async def test_the_queue_moves_on_when_the_first_owner_leaves_before_it_owns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch is being stored when its connection goes: the waiting one is next."""
    store_epoch, begun = PersistentTopic._store_epoch, asyncio.Event()

    async def never(topic: PersistentTopic, epoch: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(PersistentTopic, "_store_epoch", never)
    first, second = broker.client(), broker.client(port=5001)
    await first.receive(1)
    await second.receive(1)
    first.send(first.producer_command(producer_access_mode=pb.Exclusive))
    await begun.wait()
    answer, _ = await second.produce(producer_access_mode=pb.WaitForExclusive)
    assert not answer.producer_success.producer_ready
    monkeypatch.setattr(PersistentTopic, "_store_epoch", store_epoch)
    first.lose()
    ready = await second.receive_one()
    assert ready.producer_success.producer_ready
    assert list(broker.service.topics[TOPIC].producers) == [answer.producer_success.producer_name]


def subscribe(request_id: int, subscription: str, *, durable: bool) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t", subscription
    command.subscribe.subType = pb.CommandSubscribe.Exclusive
    command.subscribe.consumer_id = command.subscribe.request_id = request_id
    command.subscribe.durable = durable
    return command


async def test_a_reader_s_subscription_ends_though_its_client_left_during_a_seek(
    broker: Broker,
) -> None:
    client = broker.client()
    await client.receive(1)
    client.send(subscribe(1, "reader", durable=False))
    await client.receive(1)
    topic = broker.service.topics[TOPIC]
    subscription = topic.subscriptions["reader"]
    await subscription.reset((-1, -1))  # closes its consumer, and the client doesn't come back
    client.lose()
    assert "reader" in topic.subscriptions  # it might: a reader subscribes again after a seek
    for _ in range(3):
        broker.cluster.now_ms += 60_000
        await broker.service.background_tasks.end_orphans(broker.service.clock())
    await eventually(lambda: "reader" not in topic.subscriptions)
    assert subscription.cursor is not None
    await eventually(lambda: isinstance(topic, PersistentTopic) and not topic.ledger.cursors)


async def test_a_reader_s_subscription_ends_though_its_client_left_while_it_was_made(
    broker: Broker,
) -> None:
    client = broker.client()
    await client.receive(1)
    await client.produce()
    client.send(subscribe(1, "reader", durable=False))
    client.lose()
    topic = broker.service.topics[TOPIC]
    for _ in range(20):
        await asyncio.sleep(0)
    for _ in range(3):
        broker.cluster.now_ms += 60_000
        await broker.service.background_tasks.end_orphans(broker.service.clock())
    await eventually(lambda: not topic.subscriptions)


async def test_a_durable_subscription_outlives_its_consumers(broker: Broker) -> None:
    client = broker.client()
    await client.receive(1)
    client.send(subscribe(1, "mine", durable=True))
    await client.receive(1)
    client.lose()
    for _ in range(3):
        broker.cluster.now_ms += 60_000
        await broker.service.background_tasks.end_orphans(broker.service.clock())
    assert "mine" in broker.service.topics[TOPIC].subscriptions


class StuckTransport(MemoryTransport):
    """A peer that reads nothing: everything stays in the send buffer."""

    connection: Connection
    high = 0

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.high = high

    def writelines(self, buffers: Sequence[bytes | memoryview]) -> None:
        self.unsent += sum(map(len, buffers))
        if self.unsent > self.high:
            self.connection.pause_writing()


async def test_a_client_that_reads_nothing_costs_the_same_with_any_number_of_consumers(
    broker: Broker,
) -> None:
    """All of its consumers could take messages in the same tick."""
    count, payload = 24, bytes(128 * 1024)
    producer = broker.client(port=5001)
    await producer.receive_one()
    for number in range(count):
        await producer.produce(f"t{number}", producer_id=number)
        topic = broker.service.topics[f"{TOPIC}{number}"]
        await topic.create_subscription("s", (-1, -1))
        for sequence in range(16):  # 2 MiB a topic
            producer.feed(message(sequence, payload, number))
        await producer.receive(16)
    client = broker.client(port=5002)
    await client.receive_one()
    flows = []
    for number in range(count):
        command = subscribe(number, "s", durable=True)
        command.subscribe.topic = f"t{number}"
        command.subscribe.subType = (
            pb.CommandSubscribe.Shared if number % 2 else pb.CommandSubscribe.Exclusive
        )
        client.send(command)
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = number, 1000
        flows.append(flow)
    await client.receive(count)
    stuck = StuckTransport()
    stuck.connection = client.connection
    stuck.high = 1024 * 1024
    client.connection._transport = stuck  # type: ignore[assignment] # a double
    client.send(*flows)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not client.connection.writable
    assert 0 < stuck.unsent < 4 * 1024 * 1024


@pytest.mark.parametrize("failing", ["metadata", "entry"])
async def test_a_subscription_that_storage_refuses_is_an_error_not_a_lost_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    client = broker.client()
    await client.receive(1)
    await client.produce()
    topic = broker.service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)

    async def fail(*_: object, **__: object) -> None:
        if failing == "metadata":
            raise MetadataWriteError("/path", OSError("disk full"))
        raise EntryDigestError("entry 0 is damaged")

    monkeypatch.setattr(
        ManagedLedger, "open_cursor" if failing == "metadata" else "find_newest", fail
    )
    client.feed(message(0))
    await client.receive(1)
    command = subscribe(1, "s", durable=True)
    command.subscribe.start_message_rollback_duration_sec = 60
    client.send(command)
    answer = await client.receive_one()
    assert (answer.error.request_id, answer.error.error) == (1, pb.PersistenceError)
    assert not client.connection.closed
    monkeypatch.undo()
    client.send(subscribe(2, "s", durable=True))
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS


async def test_an_unsubscribe_that_storage_refuses_is_an_error_not_a_lost_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = broker.client()
    await client.receive(1)
    client.send(subscribe(1, "s", durable=True))
    await client.receive(1)

    async def fail(*_: object) -> None:
        raise MetadataWriteError("/path", OSError("disk full"))

    monkeypatch.setattr(ManagedLedger, "delete_cursor", fail)
    command = pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, 2
    client.send(command)
    answer, told = await client.receive(2)
    assert (answer.error.request_id, answer.error.error) == (2, pb.PersistenceError)
    assert told.close_consumer.consumer_id == 1, "it has to come back"
    assert not client.connection.closed
    monkeypatch.undo()
    client.send(subscribe(3, "s", durable=True))  # it is still there, and works
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS


async def test_a_subscription_that_can_t_be_opened_once_its_client_has_left_is_no_error_of_ours(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = broker.client()
    await client.receive(1)
    await client.produce()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def fail(*_: object) -> None:
        begun.set()
        await go_on.wait()
        raise ManagedLedgerFencedError("another owner has taken over")

    monkeypatch.setattr(ManagedLedger, "open_cursor", fail)
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    client.send(subscribe(1, "mine", durable=True))
    await begun.wait()
    opening = broker.service.topics[TOPIC]._opening
    assert list(opening) == ["mine"]
    client.lose()
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    await eventually(lambda: not opening)
    gc.collect()
    assert told == []
