"""Values with a schema as columns of real Spark, sent by the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import Array, AvroSchema, Integer, JsonSchema, Long, Map, Record, String

from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.record_types import SchemaError
from magnetar.pipeline.records import records
from tests.pipeline.topics import Addresses, admin, client_of, load
from tests.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Item(Record):  # type: ignore[misc] # the library has no types
    sku = String(required=True)
    count = Integer(required=True)


class Order(Record):  # type: ignore[misc] # the library has no types
    id = Long(required=True)
    items = Array(Item())
    labels = Map(String())


_SHIPMENT = {
    "type": "record",
    "name": "Shipment",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
_NOTED: dict[str, Any] = {
    **_SHIPMENT,
    "fields": [*_SHIPMENT["fields"], {"name": "note", "type": "string", "default": "-"}],
}
_AT_MS = 1_700_000_000_123
_UNION = {"type": "record", "name": "U", "fields": [{"name": "u", "type": ["int", "string"]}]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    folder: Path = tmp_path_factory.mktemp("records")
    with StandaloneProcess(folder / "data") as process:
        yield Addresses(process.service_url, process.admin_url)


def _send(broker: Addresses, topic: str, schema: Any, values: Sequence[Any]) -> list[str]:
    """Ids of the messages."""
    with client_of(broker) as client:
        producer = client.create_producer(topic, schema=schema, batching_enabled=False)
        places = [producer.send(value) for value in values]
        producer.close()
    return [f"{place.ledger_id()}:{place.entry_id()}" for place in places]


def _decoded(spark: SparkSession, broker: Addresses, topic: str, **options: str) -> DataFrame:
    return records(load(spark, broker, topic), topic, adminUrl=broker.admin_url, **options)


@pytest.mark.parametrize("schema", [AvroSchema, JsonSchema])
def test_records_of_the_official_client(
    spark: SparkSession, broker: Addresses, schema: Any
) -> None:
    topic = f"orders-{schema.__name__}"
    admin(broker, "PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", 2)
    orders = [
        Order(id=n, items=[Item(sku=f"s{n}", count=n)] * (n % 3), labels={"n": str(n)})
        for n in range(50)
    ]
    _send(broker, topic, schema(Order), orders)
    table = load(spark, broker, topic)
    frame = records(table, topic, adminUrl=broker.admin_url)
    assert frame.columns == [*table.columns, "record"]
    found = frame.select("record.*", "topic").orderBy("id").collect()
    assert {row.topic for row in found} == {f"persistent://public/default/{topic}"}
    assert [(row.id, [tuple(each) for each in row["items"]], row.labels) for row in found] == [
        (n, [(f"s{n}", n)] * (n % 3), {"n": str(n)}) for n in range(50)
    ]


def test_rows_of_all_versions_have_the_type_of_the_newest(
    spark: SparkSession, broker: Addresses
) -> None:
    _send(broker, "versions", AvroSchema(None, _SHIPMENT), [{"id": 1, "at": _AT_MS}])
    _send(broker, "versions", AvroSchema(None, _NOTED), [{"id": 2, "at": _AT_MS, "note": "n"}])
    frame = _decoded(spark, broker, "versions")
    kind = frame.schema["record"].dataType.simpleString()
    assert kind == "struct<id:int,at:timestamp,note:string>"
    # Tasks meet a version that is newer than the table: they ask for it.
    late = {**_NOTED, "fields": [*_NOTED["fields"], {"name": "x", "type": "int", "default": 0}]}
    newest = {"id": 3, "at": _AT_MS, "note": "", "x": 1}
    _send(broker, "versions", AvroSchema(None, late), [newest])
    columns = ("record.id", "unix_millis(record.at)", "record.note")
    assert [tuple(row) for row in frame.selectExpr(*columns).orderBy("id").collect()] == [
        (1, _AT_MS, "-"),
        (2, _AT_MS, "n"),
        (3, _AT_MS, ""),
    ]
    # A tombstone has no record.
    table = load(spark, broker, "versions").selectExpr(
        "if(entryId >= 0, null, value) AS value", "schemaVersion"
    )
    empty = records(table, "versions", adminUrl=broker.admin_url).collect()
    assert [row.record for row in empty] == [None] * 3


def test_streams_have_records(spark: SparkSession, broker: Addresses, tmp_path: Path) -> None:
    _send(broker, "stream", AvroSchema(None, _NOTED), [{"id": 1, "at": 0, "note": "n"}] * 20)
    stream = spark.readStream.format("magnetar").option("adminUrl", broker.admin_url)
    table = stream.option("subscribe", "stream").option("startingOffsets", "earliest").load()
    query = (
        records(table, "stream", adminUrl=broker.admin_url)
        .selectExpr("record.note", "record.id")
        .writeStream.format("memory")
        .queryName("stream_records")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [tuple(row) for row in spark.table("stream_records").collect()] == [("n", 1)] * 20


def test_values_that_are_not_of_the_schema(spark: SparkSession, broker: Addresses) -> None:
    topic = "malformed"
    _send(broker, topic, AvroSchema(None, _SHIPMENT), [{"id": 1, "at": _AT_MS}])
    _, place = _send(broker, topic, pulsar.schema.BytesSchema(), [b"\x08\x02", b"junk"])
    with pytest.raises(Exception, match=f"default/{topic}: message {place} isn't of its schema: "):
        _decoded(spark, broker, topic).collect()
    lenient = _decoded(spark, broker, topic, malformed="null")
    found = lenient.selectExpr("value", "unix_millis(record.at) AS at", "record").collect()
    assert sorted((bytes(row.value), row.at) for row in found if row.record is None) == [
        (b"junk", None)
    ]
    assert sorted(row.at for row in found if row.record is not None) == [1, _AT_MS]


def test_versions_and_topics_of_others_are_named(spark: SparkSession, broker: Addresses) -> None:
    (place,) = _send(broker, "named", AvroSchema(None, _SHIPMENT), [{"id": 1, "at": 0}])
    table = load(spark, broker, "named")
    access = {"adminUrl": broker.admin_url, "malformed": "null"}
    unknown = table.selectExpr(
        "value", "ledgerId", "entryId", "X'0000000000000063' AS schemaVersion"
    )
    told = rf"default/named: message {place}: version 99 of the schema is unknown \(known: 0\)"
    with pytest.raises(Exception, match=told):
        records(unknown, "named", **access).collect()
    _send(broker, "other", AvroSchema(None, _SHIPMENT), [{"id": 1, "at": 0}])
    with pytest.raises(Exception, match=r"a row of topic persistent://public/default/named; the"):
        records(table, "other", **access).collect()


def test_text_and_what_cannot_be_decoded(spark: SparkSession, broker: Addresses) -> None:
    _send(broker, "texts", pulsar.schema.StringSchema(), ["one", "zwölf"])
    assert sorted(row.record for row in _decoded(spark, broker, "texts").collect()) == [
        "one",
        "zwölf",
    ]
    _send(broker, "bare", pulsar.schema.BytesSchema(), [b"1"])
    with pytest.raises(SchemaError, match=r"default/bare has no schema: .*use the column value"):
        _decoded(spark, broker, "bare")
    union = {"type": "AVRO", "schema": json.dumps(_UNION), "properties": {}}
    admin(broker, "POST", "/admin/v2/schemas/public/default/bare/schema", union)
    with pytest.raises(SchemaError, match="default/bare: field u: of unions only"):
        _decoded(spark, broker, "bare")
    table = load(spark, broker, "texts")
    for frame, options, match in (
        (table, {"malformed": "skip"}, "malformed is fail or null, not 'skip'"),
        (table.drop("schemaVersion"), {}, "no column schemaVersion"),
        (table.withColumnRenamed("key", "record"), {}, "a column record already"),
    ):
        with pytest.raises(OptionsError, match=match):
            records(frame, "texts", adminUrl=broker.admin_url, **options)
