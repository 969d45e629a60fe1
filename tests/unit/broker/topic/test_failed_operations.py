"""Deletions and creations that fail at the store: what was is there, or what was asked."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.broker.errors import PersistenceError, TopicNotFoundError
from magnetar.broker.producer.deduplication import DEDUPLICATION_CURSOR
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataError, OutcomeUnknownError
from tests.unit.broker.doubles import Broker, Client, message
from tests.unit.broker.topic.test_deduplication import stored
from tests.unit.broker.topic.test_undecided_appends import _with
from tests.unit.managed_ledger.cluster import CONFIG, eventually

NAME = TopicName.parse("persistent://public/default/t")
LOG = f"/managed-ledgers/{NAME.ml_name}"


def fail(
    broker: Broker, operation: str, path: str, error: Exception, *, times: int = 1
) -> list[str]:
    """The store's next ``times`` such operations fail; OutcomeUnknownError: after they happened."""
    session, hits = broker.service.store, list[str]()
    real: Callable[..., Awaitable[object]] = getattr(session, operation)

    async def failing(at: str, *more: object, **named: object) -> object:
        if at == path and len(hits) < times:
            hits.append(at)
            if isinstance(error, OutcomeUnknownError):
                await real(at, *more, **named)
            raise error
        return await real(at, *more, **named)

    setattr(session, operation, failing)
    return hits


async def consumer(client: Client, name: str, number: int) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic, subscribe.subscription, subscribe.consumer_id = NAME.full, name, number
    subscribe.subType = pb.CommandSubscribe.Exclusive
    subscribe.request_id = next(client.request_ids)
    subscribe.initialPosition = pb.CommandSubscribe.Earliest
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = number, 100
    client.send(command)


async def connected(broker: Broker, port: int = 5000) -> Client:
    client = broker.client(port=port)
    await client.receive_one()
    return client


async def publish(broker: Broker, *ids: int) -> None:
    client = await connected(broker, 5900)
    await client.produce(NAME.full)
    client.feed(b"".join(message(n, b"%d" % n) for n in ids))
    await client.receive(len(ids))
    client.lose()


def ack(client: Client, number: int, command: pb.BaseCommand) -> None:
    got = command.message.message_id
    answer = pb.BaseCommand(type=pb.BaseCommand.ACK)
    answer.ack.consumer_id, answer.ack.ack_type = number, pb.CommandAck.Individual
    position = answer.ack.message_id.add()
    position.ledgerId, position.entryId = got.ledgerId, got.entryId
    client.send(answer)


@pytest.mark.parametrize("error", [MetadataError("connection loss"), OutcomeUnknownError("s")])
async def test_a_subscription_whose_deletion_failed_acknowledges(
    broker: Broker, error: MetadataError
) -> None:
    client = await connected(broker)
    await consumer(client, "s", 1)
    fail(broker, "delete", f"{LOG}/s", error)
    command = pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, 99
    client.send(command)
    if isinstance(error, OutcomeUnknownError):
        assert (await client.receive_one()).success.request_id == 99, "a look tells that it's gone"
    else:
        answer, told = await client.receive(2)
        assert answer.error.request_id == 99
        assert told.close_consumer.consumer_id == 1
    await consumer(client, "s", 2)
    await publish(broker, 0, 1)
    for command in await client.receive(2):
        ack(client, 2, command)
    topic = broker.service.topics[NAME.full]
    assert isinstance(topic, PersistentTopic)
    await eventually(lambda: topic.ledger.cursors["s"].durable_mark_delete[1] == 1)


async def test_a_deletion_nobody_knows_the_end_of_closes_the_topic(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connected(broker)
    await consumer(client, "s", 1)
    topic = broker.service.topics[NAME.full]
    real = broker.service.store.get
    down: list[str] = []

    async def away(path: str) -> object:
        if path == f"{LOG}/s" and len(down) < 2:
            down.append(path)
            if len(down) == 2:
                raise MetadataError("connection loss")
        return await real(path)

    monkeypatch.setattr(broker.service.store, "get", away)
    fail(broker, "delete", f"{LOG}/s", MetadataError("connection loss"))
    with pytest.raises(PersistenceError):
        await topic.delete_subscription("s", force=True)
    assert (await client.receive_one()).close_consumer.consumer_id == 1
    await eventually(lambda: NAME.full not in broker.service.topics)
    again = await broker.service.loader.load(NAME, create=False)
    assert "s" in again.subscriptions
    cursor = again.subscriptions["s"].cursor
    assert cursor is not None
    assert not cursor.is_closed


@pytest.mark.parametrize(
    ("operation", "path", "is_gone"),
    [("put", LOG, False), ("delete", f"{LOG}/a", True), ("delete", LOG, True)],
)
async def test_a_topic_whose_deletion_failed_is_as_it_was_or_gone(
    broker: Broker, operation: str, path: str, *, is_gone: bool
) -> None:
    client = await connected(broker)
    await consumer(client, "a", 1)
    await consumer(client, "b", 2)
    await publish(broker, 0)
    first = await client.receive(2)
    ack(client, 1, next(x for x in first if x.message.consumer_id == 1))
    fail(broker, operation, path, MetadataError("connection loss"), times=1 if is_gone else 5)
    with pytest.raises(PersistenceError):
        await broker.service.directory.delete(NAME, force=True)
    told = await client.receive(2)
    assert {x.type for x in told} == {pb.BaseCommand.CLOSE_CONSUMER}, "both have to come back"
    assert not broker.ledgers.open_ledgers
    if is_gone:
        with pytest.raises(TopicNotFoundError):
            await broker.service.directory.delete(NAME)
        assert not await broker.service.directory.exists(NAME)
        await broker.service.directory.create(NAME)
        assert await stored(broker) == []
    else:
        again = await broker.service.loader.load(NAME, create=False)
        backlogs = {
            x.name: x.cursor.state.backlog for x in again.subscriptions.values() if x.cursor
        }
        assert backlogs == {"a": 0, "b": 1}, "nothing of it was touched"
        await broker.service.directory.delete(NAME)


async def test_a_client_that_comes_back_creates_what_a_failed_deletion_left(
    broker: Broker,
) -> None:
    client = await connected(broker)
    await consumer(client, "a", 1)
    await publish(broker, 0)
    await client.receive(1)
    fail(broker, "delete", f"{LOG}/a", MetadataError("connection loss"), times=1)
    with pytest.raises(PersistenceError):
        await broker.service.directory.delete(NAME, force=True)
    await client.receive(1)
    await consumer(client, "a", 2)  # succeeds, at once
    assert await stored(broker) == []


async def test_the_log_of_a_failed_creation_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> None:
        raise MetadataError("connection loss")

    monkeypatch.setattr(ManagedLedger, "set_properties", failing)
    with pytest.raises(Exception, match="connection loss"):
        await broker.service.directory.create(NAME, {"owner": "me"})
    assert not broker.ledgers.open_ledgers
    monkeypatch.undo()
    await publish(broker, 0)
    assert await stored(broker) == [b"0"]


async def test_an_open_log_is_handed_out_only_while_it_is_ours(broker: Broker) -> None:
    log = await broker.ledgers.open(NAME.ml_name, CONFIG)
    assert await broker.ledgers.open(NAME.ml_name, CONFIG) is log
    other = broker.cluster.factory()
    theirs = await other.open(NAME.ml_name, CONFIG)
    done = asyncio.get_running_loop().create_future()
    theirs.append([b"head"], [b"body"], lambda *answer: done.set_result(answer))
    await done
    await other.close()
    again = await asyncio.gather(*(broker.ledgers.open(NAME.ml_name, CONFIG) for _ in range(3)))
    assert again[0] is again[1] is again[2] is not log
    assert again[0].offsets.entry_count == 1


async def test_de_duplication_that_could_not_be_ended_is_ended_later(broker: Broker) -> None:
    await broker.service.apply_config(_with(broker, on=True))
    topic = await broker.service.loader.load(NAME, create=True)
    assert isinstance(topic, PersistentTopic)
    await topic.create_subscription("s", EARLIEST)
    fail(broker, "delete", f"{LOG}/{DEDUPLICATION_CURSOR}", MetadataError("connection loss"))
    await broker.service.apply_config(_with(broker, on=False))
    await eventually(lambda: topic.deduplication is None and not topic._switching)
    assert DEDUPLICATION_CURSOR in topic.ledger.cursors
    topic.sweep_deduplication(0)
    await eventually(lambda: DEDUPLICATION_CURSOR not in topic.ledger.cursors)
