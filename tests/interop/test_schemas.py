"""Typed producers and consumers of the official Python client, and the registry's HTTP side."""

import json
import struct
from typing import Any

import pulsar
import pytest
from pulsar.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Long,
    Record,
    StringSchema,
)

from tests.interop.conftest import Admin

EARLIEST = pulsar.InitialPosition.Earliest


class Order(Record):  # type: ignore[misc] # the library has no types
    item = pulsar.schema.String()
    count = Integer(default=1)


def version_of_order(**fields: Any) -> Any:
    """Another version of ``Order``: the class's name is the record's."""
    return type("Order", (Record,), fields)


WiderOrder = version_of_order(
    item=pulsar.schema.String(), count=Integer(default=1), weight=Long(required_default=True)
)
OtherOrder = version_of_order(item=Long(required=True))


def schema_path(topic: str) -> str:
    return "/admin/v2/schemas/" + topic.partition("://")[2]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (StringSchema(), ["one", "zwei", "三"]),
        (JsonSchema(Order), [Order(item="a", count=3), Order(item="b", count=-1)]),
        (AvroSchema(Order), [Order(item="a", count=3), Order(item="b", count=-1)]),
    ],
    ids=["string", "json", "avro"],
)
def test_typed_messages(
    client: pulsar.Client, admin: Admin, topic: str, schema: Any, values: list[Any]
) -> None:
    consumer = client.subscribe(topic, "s", schema=schema)
    producer = client.create_producer(topic, schema=schema)
    for value in values:
        producer.send(value)
    for value in values:
        message = consumer.receive(60_000)
        got = message.value()
        assert (
            got == value
            if isinstance(value, str)
            else (got.item, got.count)
            == (
                value.item,
                value.count,
            )
        )
        assert struct.unpack(">q", message.schema_version().encode("latin-1")) == (0,)
        consumer.acknowledge(message)
    status, answer = admin.call("GET", schema_path(topic) + "/schema")
    assert (status, answer["version"]) == (200, 0)
    assert answer["type"] == {"StringSchema": "STRING", "JsonSchema": "JSON"}.get(
        type(schema).__name__, "AVRO"
    )


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_evolution(client: pulsar.Client, topic: str, make: Any) -> None:
    client.create_producer(topic, schema=make(Order)).send(Order(item="old", count=1))
    new = client.create_producer(topic, schema=make(WiderOrder))
    new.send(WiderOrder(item="new", count=2, weight=3))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=make(OtherOrder))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "wrong", schema=make(OtherOrder))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    consumer = client.subscribe(topic, "s", schema=make(Order), initial_position=EARLIEST)
    assert [consumer.receive(60_000).value().item for _ in range(2)] == ["old", "new"]


def test_partitions_share_a_schema(client: pulsar.Client, admin: Admin, topic: str) -> None:
    admin.create_partitioned(topic, 3)
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Order))
    producer = client.create_producer(topic, schema=JsonSchema(Order))
    for n in range(6):
        producer.send(Order(item="x", count=n))
    assert {consumer.receive(60_000).value().count for _ in range(6)} == set(range(6))
    status, answer = admin.call("GET", schema_path(topic + "-partition-1") + "/schemas")
    assert status == 200
    assert [each["version"] for each in answer["getSchemaResponses"]] == [0]


def test_bytes_and_types_mix(client: pulsar.Client, topic: str) -> None:
    """No schema on a topic that has one is allowed until validation is enforced."""
    client.create_producer(topic, schema=StringSchema()).send("typed")
    client.create_producer(topic, schema=BytesSchema()).send(b"raw")
    consumer = client.subscribe(topic, "s", schema=BytesSchema(), initial_position=EARLIEST)
    assert [consumer.receive(60_000).value() for _ in range(2)] == [b"typed", b"raw"]


def test_typed_consumers_need_a_schema_on_topics_with_messages(
    client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"raw")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=StringSchema())


def test_deleting_a_topic_deletes_its_schema(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    client.create_producer(topic, schema=StringSchema()).close()
    assert admin.call("DELETE", admin.topic_path(topic) + "?force=true")[0] == 204
    assert admin.call("GET", schema_path(topic) + "/schema")[0] == 404
    client.create_producer(topic, schema=JsonSchema(Order)).send(Order(item="x", count=1))
    assert (
        json.loads(admin.call("GET", schema_path(topic) + "/schema")[1]["data"])["name"] == "Order"
    )
