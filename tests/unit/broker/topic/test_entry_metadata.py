"""Broker entry metadata: what they are, who sees them, and that indexes go on."""

from collections.abc import AsyncIterator

import pytest

from magnetar.broker.config import (
    BrokerConfig,
    ConfigError,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader
from magnetar.broker.protocol.stored_entries import (
    PULSAR_ENTRIES,
    decode_broker_metadata,
)
from magnetar.broker.pulsar_settings import BROKER_TIMESTAMP, MESSAGE_INDEX
from magnetar.broker.topic.entry_metadata import index_of
from magnetar.broker.topic.persistent_topic import PersistentTopic
from tests.unit.broker.doubles import Broker, Client, message

NOW_MS = 1_700_000_000_000
NAME = "persistent://public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(
        broker_entry_metadata_interceptors=f"{BROKER_TIMESTAMP},{MESSAGE_INDEX}",
        exposing_broker_entry_metadata_to_client_enabled=True,
    ).start()
    yield broker
    await broker.close()


async def publish(broker: Broker) -> Client:
    """One message, a batch of ten, another message."""
    client = broker.client()
    await client.receive_one()
    await client.produce()
    broker.cluster.now_ms = NOW_MS + 5
    client.feed(message(0) + message(1, bytes(60), num_messages_in_batch=10) + message(2))
    await client.receive(3)
    return client


def topic_of(broker: Broker) -> PersistentTopic:
    topic = broker.service.topics[NAME]
    assert isinstance(topic, PersistentTopic)
    return topic


async def indexes(topic: PersistentTopic) -> list[int]:
    log, found = topic.ledger, list[int]()
    position = log.offsets.first_position()
    while (batch := await log.read(position, 100, 1 << 20)) is not None:
        found += map(index_of, batch.heads)
        position = (batch.ledger_id, batch.last + 1)
    return found


async def test_an_index_counts_messages_and_is_that_of_the_last_one(broker: Broker) -> None:
    await publish(broker)
    topic = topic_of(broker)
    assert await indexes(topic) == [0, 10, 11]
    batch = await topic.ledger.read(topic.ledger.offsets.first_position(), 100, 1 << 20)
    assert batch is not None
    assert decode_broker_metadata(batch.heads[0]) == pb.BrokerEntryMetadata(
        broker_timestamp=NOW_MS + 5, index=0
    )
    # What a read from a ledger makes of it is what was in the cache.
    stored = [
        prefix + bytes(body)
        for prefix, body in zip(PULSAR_ENTRIES.prefixes(batch.heads), batch.bodies, strict=True)
    ]
    assert stored[0][:2] == b"\x0e\x02"
    assert PULSAR_ENTRIES.split(stored) == (batch.heads, batch.bodies)


async def test_the_index_goes_on_when_the_topic_is_loaded_again(broker: Broker) -> None:
    await publish(broker)
    await broker.service.loader.unload(NAME)
    await publish(broker)
    assert await indexes(topic_of(broker)) == [0, 10, 11, 12, 22, 23]


async def test_the_index_outlives_its_entries(broker: Broker) -> None:
    """The last ledger is gone: the list of ledgers has the index."""
    await publish(broker)
    topic = topic_of(broker)
    await topic.ledger.truncate()
    assert await topic.ledger.read(topic.ledger.offsets.first_position(), 1, 1) is None
    assert topic.properties == {}  # it isn't a user's
    await broker.service.loader.unload(NAME)
    await publish(broker)
    assert await indexes(topic_of(broker)) == [12, 22, 23]


@pytest.mark.parametrize("asks", [True, False])
async def test_consumers_that_ask_for_it_get_it(broker: Broker, asks: bool) -> None:
    await publish(broker)
    client = broker.client(connect=False)
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "test", 21
    command.connect.feature_flags.supports_broker_entry_metadata = asks
    client.send(command)
    await client.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = NAME, "s"
    command.subscribe.subType = pb.CommandSubscribe.Exclusive
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    command.subscribe.initialPosition = pb.CommandSubscribe.Earliest
    client.send(command)
    await client.receive_one()
    seen = len(client.transport.written)
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, 100
    client.send(command)
    await client.receive(3)
    frames = list(FrameReader().feed(bytes(client.transport.written[seen:])))
    assert {body[:2] for _, body in frames} == {b"\x0e\x02" if asks else b"\x0e\x01"}


def test_an_unknown_interceptor_is_refused() -> None:
    with pytest.raises(ConfigError, match="Foo"):
        BrokerConfig(broker_entry_metadata_interceptors=f"{MESSAGE_INDEX},org.example.Foo")
