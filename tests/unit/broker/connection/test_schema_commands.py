"""Schemas over the binary protocol: GET_SCHEMA, GET_OR_CREATE_SCHEMA, PRODUCER, SUBSCRIBE."""

import json
from typing import Any

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.broker.schema.builders import optional, record

TOPIC = "persistent://public/default/t"
NONE = pb.Schema.Type.Value("None")


async def ready(broker: Broker, port: int = 5000) -> Client:
    client = broker.client(port=port)
    assert (await client.receive_one()).type == pb.BaseCommand.CONNECTED
    return client


def fill(schema: pb.Schema, kind: pb.Schema.Type.ValueType, definition: Any = None) -> None:
    schema.name, schema.type = "", kind
    schema.schema_data = b"" if definition is None else json.dumps(definition).encode()


async def produce(
    client: Client, kind: pb.Schema.Type.ValueType, definition: Any = None, **fields: Any
) -> pb.BaseCommand:
    command = client.producer_command(**fields)
    fill(command.producer.schema, kind, definition)
    client.send(command)
    return await client.receive_one()


async def subscribe(
    client: Client,
    kind: pb.Schema.Type.ValueType | None,
    definition: Any = None,
    *,
    topic: str = "t",
    consumer_id: int = 1,
) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription = topic, f"s{consumer_id}"
    request.subType, request.consumer_id = pb.CommandSubscribe.Exclusive, consumer_id
    request.request_id = next(client.request_ids)
    if kind is not None:
        fill(request.schema, kind, definition)
    client.send(command)
    return await client.receive_one()


async def get_schema(
    client: Client, version: bytes | None = None, topic: str = "t"
) -> pb.CommandGetSchemaResponse:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA)
    command.getSchema.request_id, command.getSchema.topic = 77, topic
    if version is not None:
        command.getSchema.schema_version = version
    client.send(command)
    reply = (await client.receive_one()).getSchemaResponse
    assert reply.request_id == 77
    assert reply.HasField("error_code") == bool(reply.error_message)
    return reply


async def get_or_create(
    client: Client, kind: pb.Schema.Type.ValueType, definition: Any = None, topic: str = "t"
) -> pb.CommandGetOrCreateSchemaResponse:
    command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.request_id, request.topic = 78, topic
    fill(request.schema, kind, definition)
    client.send(command)
    reply = (await client.receive_one()).getOrCreateSchemaResponse
    assert reply.request_id == 78
    assert reply.HasField("error_code") == bool(reply.error_message)
    return reply


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


async def set_policies(broker: Broker, **policies: Any) -> None:
    await broker.service.policies.update_namespace("public/default", lambda old: old | policies)


async def test_producers_register_and_consumers_fetch(broker: Broker) -> None:
    client = await ready(broker)
    first = (await produce(client, pb.Schema.Avro, record("a"))).producer_success
    assert first.schema_version == version(0)
    wider = record("a", optional("b"))
    second = await produce(client, pb.Schema.Avro, wider, producer_id=2)
    assert second.producer_success.schema_version == version(1)
    latest = await get_schema(client)
    assert (latest.schema_version, latest.schema.type) == (version(1), pb.Schema.Avro)
    assert (latest.schema.name, json.loads(latest.schema.schema_data)) == ("t", wider)
    older = await get_schema(client, version(0), "t-partition-3")
    assert json.loads(older.schema.schema_data) == record("a")
    client.feed(message(0, schema_version=version(0)))
    assert len(receipts([await client.receive_one()])) == 1


async def test_properties_travel(broker: Broker) -> None:
    client = await ready(broker)
    command = client.producer_command()
    fill(command.producer.schema, pb.Schema.Json, record("a"))
    command.producer.schema.properties.add(key="__jsr310ConversionEnabled", value="false")
    client.send(command)
    await client.receive_one()
    got = (await get_schema(client)).schema.properties
    assert [(pair.key, pair.value) for pair in got] == [("__jsr310ConversionEnabled", "false")]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (None, pb.TopicNotFound),
        (version(0), pb.TopicNotFound),
        (version(2**63), pb.TopicNotFound),
        (b"odd", pb.TopicNotFound),
    ],
)
async def test_there_is_no_schema(broker: Broker, asked: bytes | None, code: int) -> None:
    client = await ready(broker)
    await client.produce()
    assert (await get_schema(client, asked)).error_code == code


async def test_what_get_schema_refuses_and_what_empty_means(broker: Broker) -> None:
    client = await ready(broker)
    assert (await get_schema(client, topic="a/b")).error_code == pb.InvalidTopicName
    # The version of messages without a schema: Go asks before it decodes them
    plain = await get_schema(client, b"")
    assert not plain.HasField("error_code")
    assert (plain.schema.type, plain.schema_version) == (NONE, b"")


async def test_get_or_create(broker: Broker) -> None:
    client = await ready(broker)
    assert (await get_or_create(client, pb.Schema.String)).error_code == pb.TopicNotFound
    await client.produce()
    assert (await get_or_create(client, NONE)).schema_version == b""
    assert (await get_or_create(client, pb.Schema.String)).schema_version == version(0)
    assert (await get_or_create(client, pb.Schema.String)).schema_version == version(0)
    assert (await get_or_create(client, pb.Schema.Int8)).error_code == pb.IncompatibleSchema
    assert (await get_or_create(client, pb.Schema.Avro, 3)).error_code == pb.IncompatibleSchema
    refused = await get_or_create(client, pb.Schema.AutoConsume)
    assert refused.error_code == pb.IncompatibleSchema
    large = await get_or_create(client, pb.Schema.Avro, "x" * 600_000)
    assert large.error_code == pb.IncompatibleSchema


async def test_incompatible_producers_are_refused(broker: Broker) -> None:
    client = await ready(broker)
    await produce(client, pb.Schema.Avro, record("a"))
    refused = await produce(client, pb.Schema.Avro, record("a", "b"), producer_id=2)
    assert refused.error.error == pb.IncompatibleSchema
    assert 2 not in client.connection.producers
    await set_policies(broker, schema_compatibility_strategy="FORWARD")
    taken = await produce(client, pb.Schema.Avro, record("a", "b"), producer_id=2)
    assert taken.producer_success.schema_version == version(1)
    await set_policies(broker, is_allow_auto_update_schema=False)
    refused = await produce(client, pb.Schema.Avro, record("a", "b", "c"), producer_id=3)
    assert refused.error.error == pb.IncompatibleSchema


async def test_producers_without_schema(broker: Broker) -> None:
    client = await ready(broker)
    await produce(client, pb.Schema.String)
    assert (await client.produce(producer_id=2))[0].producer_success.schema_version == b""
    none = await produce(client, NONE, producer_id=3)
    assert none.producer_success.schema_version == b""
    await set_policies(broker, schema_validation_enforced=True)
    refused, _ = await client.produce(producer_id=4)
    assert refused.error.error == pb.IncompatibleSchema
    assert (await client.produce(topic="u", producer_id=5))[0].HasField("producer_success")


async def test_the_first_consumer_of_an_unused_topic_sets_the_schema(broker: Broker) -> None:
    client = await ready(broker)
    assert (await subscribe(client, pb.Schema.AutoConsume)).HasField("success")
    assert (await get_schema(client)).error_code == pb.TopicNotFound
    assert (await subscribe(client, pb.Schema.String, consumer_id=2)).HasField("success")
    assert (await get_schema(client)).schema.type == pb.Schema.String
    other = await subscribe(client, pb.Schema.Int32, consumer_id=3)
    assert other.error.error == pb.IncompatibleSchema
    assert (await subscribe(client, None, consumer_id=4)).HasField("success")


async def test_consumers_of_used_topics_are_only_checked(broker: Broker) -> None:
    client = await ready(broker)
    await client.produce()
    client.feed(message(0))
    await client.receive_one()
    client.close_producer()
    await client.receive_one()
    refused = await subscribe(client, pb.Schema.String)
    assert refused.error.error == pb.IncompatibleSchema
    assert "t" not in {s for topic in broker.service.topics.values() for s in topic.subscriptions}
    # A producer may still give the topic its first schema
    typed = await produce(client, pb.Schema.String, producer_id=2)
    assert typed.producer_success.schema_version == version(0)
    assert (await subscribe(client, pb.Schema.String, consumer_id=2)).HasField("success")


async def test_what_a_consumer_keeps_is_small(broker: Broker) -> None:
    client = await ready(broker)
    await subscribe(client, pb.Schema.Avro, record("a", doc="d" * 100_000))
    (consumer,) = broker.service.topics[TOPIC].subscriptions["s1"].consumers
    assert consumer.request.schema is not None
    assert (consumer.request.schema.type, consumer.request.schema.data) == ("AVRO", b"")


async def test_a_schema_stays_while_the_other_domain_uses_it(broker: Broker) -> None:
    client, service = await ready(broker), broker.service
    volatile, durable = TopicName.parse("non-persistent://public/default/t"), TopicName.parse("t")
    await produce(client, pb.Schema.String)
    await client.produce(topic=str(volatile), producer_id=2)
    await service.directory.delete(volatile, force=True)
    assert (await client.receive_one()).HasField("close_producer")
    assert (await get_schema(client)).schema.type == pb.Schema.String
    await service.directory.delete(durable, force=True)
    assert (await client.receive_one()).HasField("close_producer")
    assert (await get_schema(client)).error_code == pb.TopicNotFound


async def test_deleting_topics_deletes_their_schemas(broker: Broker) -> None:
    client, service = await ready(broker), broker.service
    await produce(client, pb.Schema.String)
    await service.directory.delete(TopicName.parse("t"), force=True)
    assert (await client.receive_one()).HasField("close_producer")
    assert (await get_schema(client)).error_code == pb.TopicNotFound

    await service.directory.create_partitioned(TopicName.parse("p"), 2)
    for index in range(2):
        typed = await produce(
            client, pb.Schema.Int8, topic=f"p-partition-{index}", producer_id=10 + index
        )
        assert typed.producer_success.schema_version == version(0)
    await service.directory.delete(TopicName.parse("p-partition-0"), force=True)
    assert (await client.receive_one()).HasField("close_producer")
    assert (await get_schema(client, topic="p")).schema.type == pb.Schema.Int8
    await service.directory.delete_partitioned(TopicName.parse("p"), force=True)
    assert (await client.receive_one()).HasField("close_producer")
    assert (await get_schema(client, topic="p")).error_code == pb.TopicNotFound
