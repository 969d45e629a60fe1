"""One read has room for thousands of commands: others get turns between them. SENDs of several
reads in one turn are published together.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.broker.connection import command_turns
from magnetar.broker.connection import connection as connection_module
from magnetar.broker.connection.command_turns import COMMAND_COST
from magnetar.broker.connection.handlers import HANDLERS
from magnetar.broker.connection.receive_buffer import SHARED_BYTES
from magnetar.broker.producer.producer import PublishBatch
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.topic.persistent_topic import PersistentTopic
from tests.raw_client import encode_command
from tests.unit.broker.doubles import Broker, message
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
PER_TURN = 5


def close_of_none(request_id: int) -> bytes:
    """CLOSE_PRODUCER of a producer that isn't there: answered at once."""
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id, command.close_producer.request_id = 999, request_id
    return encode_command(command)


async def ready(monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Any]:
    """A client with a producer, whose commands are taken five a turn."""
    for module in (command_turns, connection_module):
        monkeypatch.setattr(module, "COST_PER_TURN", PER_TURN * COMMAND_COST)
    broker = await Broker().start()
    client = broker.client()
    await asyncio.sleep(0.05)
    client.take()
    await client.produce(TOPIC)
    return broker, client


def answered(client: Any) -> list[int]:
    client.connection._flush()
    return [command.success.request_id for command in client.take()]


async def test_many_commands_of_one_read_are_taken_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await ready(monkeypatch)
    client.feed(b"".join(map(close_of_none, range(1, 24))))
    assert answered(client) == [1, 2, 3, 4, 5]
    assert not client.transport.reading
    client.feed(close_of_none(24))  # a transport that had read more before it was paused
    taken = []
    while not client.transport.reading:
        await asyncio.sleep(0)
        taken.append(answered(client))
    assert [each for turn in taken for each in turn] == list(range(6, 25))
    assert max(map(len, taken)) == PER_TURN
    client.feed(close_of_none(25))
    assert answered(client) == [25]
    await broker.close()


async def test_messages_and_a_frame_under_way_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await ready(monkeypatch)
    topic = broker.service.topics[TOPIC]
    seen: list[int] = []
    publish = topic.publish

    def published(batches: Any) -> None:
        for batch in batches:
            seen.extend(batch.sequence_ids)
        publish(batches)

    monkeypatch.setattr(topic, "publish", published)
    commands = b"".join(map(close_of_none, range(1, 11)))
    data = message(1) + message(2) + commands + message(3) + close_of_none(11) + message(4)
    client.feed(data[:-3])
    assert seen == [1, 2]
    await eventually(lambda: client.transport.reading)
    assert seen == [1, 2, 3]  # they didn't pass the commands in front of them
    client.feed(data[-3:])
    assert seen == [1, 2, 3, 4]
    await broker.close()


async def test_acknowledgements_of_one_read_are_taken_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client = await ready(monkeypatch)
    taken: list[int] = []
    count = PER_TURN * COMMAND_COST  # an ACK costs one
    monkeypatch.setitem(
        HANDLERS,
        pb.BaseCommand.ACK,
        lambda _, command: taken.append(command.message_id[0].entryId),
    )
    monkeypatch.setattr(  # as compiled code reads them
        connection_module, "on_entries_acked", lambda *found: taken.append(found[3][0][1])
    )
    acks = []
    for number in range(2 * count + 1):
        command = pb.BaseCommand(type=pb.BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
        command.ack.message_id.add(ledgerId=1, entryId=number)
        acks.append(encode_command(command))
    client.feed(b"".join(acks) + close_of_none(1))
    assert taken == list(range(count))
    turns = 0
    while not client.transport.reading:
        await asyncio.sleep(0)
        turns += 1
        assert len(taken) <= (turns + 1) * count
    assert taken == list(range(2 * count + 1))
    assert answered(client) == [1]
    await broker.close()


@pytest.mark.parametrize(
    ("kind", "answer"), [("subscribe", "success"), ("producer", "producer_success")]
)
async def test_fewer_commands_that_open_something_are_taken_in_a_tick(
    kind: str, answer: str
) -> None:
    broker = await Broker().start()
    client = broker.client()
    await client.receive_one()
    await client.produce(TOPIC)
    commands = []
    for number in range(1, 101):
        command = pb.BaseCommand(type=pb.BaseCommand.Type.Value(kind.upper()))
        opened = getattr(command, kind)
        opened.topic, opened.request_id = TOPIC, number
        if kind == "producer":
            opened.producer_id = 100 + number
        else:
            opened.consumer_id, opened.subscription = number, f"s{number}"
            opened.subType = pb.CommandSubscribe.Exclusive
        commands.append(encode_command(command))
    opening = client.connection.consumers if kind == "subscribe" else client.connection.producers
    before, at_once = len(opening), command_turns.COST_PER_TURN // command_turns.OPENING_COST
    client.feed(b"".join(commands))
    assert len(opening) == before + at_once == before + 16
    await eventually(lambda: client.transport.reading)
    answers = await client.receive(100)
    assert {getattr(each, answer).request_id for each in answers} == set(range(1, 101))
    await broker.close()


async def test_all_connections_share_what_one_tick_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, quiet = await ready(monkeypatch)
    others = [broker.client() for _ in range(20)]
    await asyncio.sleep(0.05)
    for client in others:
        client.take()
        client.feed(b"".join(map(close_of_none, range(1, PER_TURN + 1))))
    at_once = [answered(client) for client in others]
    least = command_turns._AT_ONCE // COMMAND_COST
    assert at_once == [[1, 2, 3, 4, 5], *([list(range(1, least + 1))] * 19)]
    quiet.feed(close_of_none(1))
    assert answered(quiet) == [1]  # it doesn't wait for those who have more
    taken = [len(each) for each in at_once]
    while not all(client.transport.reading for client in others):
        await asyncio.sleep(0)
        taken = [
            len(answered(client)) + so_far for client, so_far in zip(others, taken, strict=True)
        ]
    assert taken == [PER_TURN] * 20
    await asyncio.sleep(0)
    others[1].feed(b"".join(map(close_of_none, range(1, PER_TURN + 1))))
    assert answered(others[1]) == [1, 2, 3, 4, 5]  # a tick of its own
    await broker.close()


async def test_the_rest_of_a_lost_connection_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client = await ready(monkeypatch)
    client.feed(b"".join(map(close_of_none, range(1, 24))))
    taken: list[int] = []
    monkeypatch.setattr(client.connection, "_take_command", lambda *_: taken.append(1))
    client.lose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not taken
    await broker.close()


async def published(monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Any, list[int]]:
    """A client with a producer, and how many messages each call of its topic's publish has."""
    sizes: list[int] = []
    publish = PersistentTopic.publish

    def counted(topic: PersistentTopic, batches: Sequence[PublishBatch]) -> None:
        sizes.extend(len(batch.sequence_ids) for batch in batches)
        publish(topic, batches)

    monkeypatch.setattr(PersistentTopic, "publish", counted)
    broker, client = await ready(monkeypatch)
    return broker, client, sizes


def large(first: int, end: int) -> bytes:
    return b"".join(message(n, payload=bytes(100_000)) for n in range(first, end))


def one_read(first: int) -> bytes:
    """Six messages that fill the room of a read."""
    data, without = large(first, first + 5), message(first + 5, payload=b"")
    return data + message(first + 5, payload=bytes(SHARED_BYTES - len(data) - len(without)))


async def test_reads_that_fill_their_room_are_one_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client, sizes = await published(monkeypatch)
    client.feed(large(0, 8))  # 512 KiB, then less than there is room
    assert sizes == [8]
    await client.receive(8)
    await broker.close()


async def test_a_read_that_fills_its_room_may_be_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, client, sizes = await published(monkeypatch)
    client.feed(one_read(0))  # and nothing follows
    assert not sizes
    await asyncio.sleep(0)
    assert sizes == [6]
    await client.receive(6)
    client.feed(one_read(6))
    client.lose()  # what came before the end is stored, as ever
    await asyncio.sleep(0)
    assert sizes == [6, 6]
    await broker.close()


async def test_what_waits_for_the_next_read_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, client, sizes = await published(monkeypatch)
    client.feed(large(0, 60))
    await asyncio.sleep(0)
    assert sum(sizes) == 60
    assert max(sizes) * 100_000 < 2_000_000  # a megabyte, and the read that goes beyond it
    await broker.close()


async def test_a_client_that_sends_much_is_read_again_in_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the loop reads 32 times in a row: 10 MiB at once held all others for 25 ms."""
    broker, client, sizes = await published(monkeypatch)
    data = memoryview(b"".join(message(n) for n in range(20_000)))
    start = 0
    for _ in range(20_000 // connection_module._HELD_SENDS_MAX):
        before = len(sizes)
        while client.transport.reading and start < len(data):
            piece = data[start : start + len(client.connection.get_buffer(-1))]
            client.feed(piece)
            start += len(piece)
        assert len(sizes) <= before + 1
        await asyncio.sleep(0)
    assert sum(sizes) == 20_000
    room = SHARED_BYTES // len(message(0))
    assert max(sizes) <= connection_module._HELD_SENDS_MAX + room
    assert client.transport.reading
    await client.receive(20_000)
    await broker.close()
