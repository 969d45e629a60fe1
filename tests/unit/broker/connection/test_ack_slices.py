"""One ACK or redelivery command has room for a million words or 90,000 ids: others get turns."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.connection import connection as connection
from magnetar.broker.connection import consumer_commands as consumer_commands
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.unit.broker.doubles import Broker, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"


async def subscribed(broker: Broker) -> Any:
    client, producer = broker.client(), broker.client(port=5001)
    await client.receive_one()
    await producer.receive_one()
    await producer.produce(TOPIC)
    producer.feed(message(0))
    await producer.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = TOPIC, "s"
    command.subscribe.subType, command.subscribe.consumer_id = pb.CommandSubscribe.Shared, 1
    command.subscribe.request_id = 1
    client.send(command)
    await client.receive_one()
    return client


def ack(ids: int, words: list[int]) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
    command.ack.request_id = 7
    for entry in range(ids):
        command.ack.message_id.add(ledgerId=123_456, entryId=entry, ack_set=words)
    return command


@pytest.mark.parametrize(("ids", "words"), [(100, [1] * 4_096), (5_000, [1]), (5_000, [])])
async def test_a_large_ack_is_taken_in_turns(
    monkeypatch: pytest.MonkeyPatch, ids: int, words: list[int]
) -> None:
    broker = await Broker().start()
    client = await subscribed(broker)
    taken: list[int] = []
    split = consumer_commands._split

    def counted(message_ids: Any) -> Any:
        taken.append(len(message_ids))
        return split(message_ids)

    monkeypatch.setattr(consumer_commands, "_split", counted)
    client.send(ack(ids, words))
    assert not client.transport.closed
    assert sum(taken) <= 2_000  # looked at, and nothing done with them yet
    taken.clear()
    turns = 0
    while sum(taken) < ids:
        assert turns < 10_000
        before = sum(taken)
        await asyncio.sleep(0)
        assert sum(taken) - before <= 64
        turns += 1
    assert turns > 1
    answers: list[pb.BaseCommand] = []
    while not answers:
        await asyncio.sleep(0.01)
        answers = [each for each in client.take() if each.type == pb.BaseCommand.ACK_RESPONSE]
    assert answers[0].ackResponse.request_id == 7
    await broker.close()


async def test_an_ordinary_ack_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await Broker().start()
    client = await subscribed(broker)
    monkeypatch.setattr(consumer_commands, "_ack_in_slices", None)
    client.send(ack(1_000, []))
    client.send(ack(1_000, [-1] * 16))
    assert not client.transport.closed
    await broker.close()


@pytest.mark.parametrize("end", ["the consumer closes", "the connection is lost"])
async def test_what_was_sent_before_the_end_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(consumer_commands, "IDS_AT_ONCE", 4)
    monkeypatch.setattr(connection, "IDS_AT_ONCE", 4)
    monkeypatch.setattr(consumer_commands, "_IDS_PER_TURN", 2)
    broker = await Broker().start()
    client = await subscribed(broker)
    producer = broker.client(port=5002)
    await asyncio.sleep(0.05)
    assert (await producer.receive_one()).type == pb.BaseCommand.CONNECTED
    found, _ = await producer.produce(TOPIC, producer_name="second")
    assert found.type == pb.BaseCommand.PRODUCER_SUCCESS, found
    producer.feed(b"".join(message(number) for number in range(20)))
    ledger_id = receipts(await producer.receive(20))[0][1]
    cursor = broker.service.topics[TOPIC].subscriptions["s"].cursor
    assert cursor is not None
    assert cursor.state.backlog == 20
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
    for entry in range(21):
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry)
    client.send(command)
    if end == "the connection is lost":
        client.lose()
    else:
        close = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id, close.close_consumer.request_id = 1, 9
        client.send(close)
    await eventually(lambda: cursor.state.backlog == 0)
    await broker.close()
