"""Schemas as types of Spark, and their values in AVRO, JSON and primitive layouts."""

import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.pipeline.record_types import SchemaError, SchemaVersion, ValueDecoder, type_of

_ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "count", "type": "int"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "scores", "type": {"type": "map", "values": ["null", "double"]}},
    {"name": "home", "type": ["null", _ADDRESS]},
    {"name": "work", "type": ["null", "Address"]},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
    },
    {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
    {"name": "ok", "type": {"type": "boolean"}},
]
_ORDER = {"type": "record", "name": "Outer$Order", "namespace": "acme", "fields": _FIELDS}
_DDL = (
    "struct<id:bigint,count:int,note:string,kind:string,tags:array<string>,"
    "scores:map<string,double>,home:struct<city:string>,work:struct<city:string>,day:date,"
    "at:timestamp,exact:timestamp,price:decimal(38,2),raw:binary,ok:boolean>"
)


def _version(schema: object, kind: str = "AVRO", version: int = 0) -> SchemaVersion:
    return SchemaVersion(version, kind, json.dumps(schema))


def _record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def _written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


_int64s = st.integers(-(2**63), 2**63 - 1)
_texts = st.text()
_orders = st.fixed_dictionaries(
    {
        "id": _int64s,
        "count": st.integers(-(2**31), 2**31 - 1),
        "note": st.none() | _texts,
        "kind": st.sampled_from("AB"),
        "tags": st.lists(_texts, max_size=3),
        "scores": st.dictionaries(_texts, st.none() | st.floats(allow_nan=False), max_size=3),
        "home": st.none() | st.fixed_dictionaries({"city": _texts}),
        "work": st.none() | st.fixed_dictionaries({"city": _texts}),
        "day": st.integers(-(2**31), 2**31 - 1),
        "at": st.integers(-(2**63) // 1000 + 1, 2**63 // 1000),
        "exact": _int64s,
        "price": st.integers(-(10**38) + 1, 10**38 - 1),
        "raw": st.text("abc", min_size=4, max_size=4),
        "ok": st.booleans(),
    }
)


def _shape(order: dict[str, Any]) -> dict[str, Any]:
    """What pyarrow is to get for an order."""
    sign, digits, _ = Decimal(order["price"]).as_tuple()
    return {
        **order,
        "scores": list(order["scores"].items()),
        "at": order["at"] * 1000,
        "price": Decimal((sign, digits, -2)),
        "raw": order["raw"].encode(),
    }


def test_types_are_the_same_for_spark_and_arrow() -> None:
    kind = type_of(_version(_ORDER))
    assert kind.spark.simpleString() == _DDL
    assert to_arrow_type(kind.spark, timezone="UTC") == kind.arrow


@given(_orders)
def test_avro_values_come_out_as_they_went_in(order: dict[str, Any]) -> None:
    plain = [{**each} for each in _FIELDS]
    for each in plain[8:12]:
        each["type"] = each["type"]["type"]  # written as the plain numbers and bytes they are
    unscaled = order["price"].to_bytes(17, signed=True)
    data = _written(
        {**_ORDER, "name": "Order", "fields": plain},
        {**order, "price": unscaled, "raw": order["raw"].encode()},
    )
    decoder = ValueDecoder(_version(_ORDER))
    shape = decoder.decode(data, _version(_ORDER))
    assert shape == _shape(order)
    assert pa.array([shape, None], decoder.type.arrow).null_count == 1


@given(_orders)
def test_json_values_come_out_as_they_went_in(order: dict[str, Any]) -> None:
    sign, digits, _ = Decimal(order["price"]).as_tuple()
    text = json.dumps({**order, "price": 0, "more": [1]}).replace(
        '"price": 0', f'"price": {Decimal((sign, digits, -2)):f}'
    )
    decoder = ValueDecoder(_version(_ORDER, "JSON"))
    shape = decoder.decode(text.encode(), _version(_ORDER, "JSON"))
    assert shape == _shape(order)
    pa.array([shape], decoder.type.arrow)


@given(st.binary(max_size=60))
def test_other_bytes_end_as_values_or_errors(data: bytes) -> None:
    for kind in ("AVRO", "JSON"):
        decoder = ValueDecoder(_version(_ORDER, kind))
        try:
            shape = decoder.decode(data, _version(_ORDER, kind))
        except ValueError:
            continue
        pa.array([shape], decoder.type.arrow)


@pytest.mark.parametrize("items", ["long", ["null", "long"], "bytes", _ADDRESS])
@pytest.mark.parametrize("count", [2**62, -(2**62), 2**31])
def test_counts_without_end_are_errors(items: Any, count: int) -> None:
    """Also where the newest version has no such field and the reader only skips it."""
    long = _version(_record({"name": "l", "type": {"type": "array", "items": items}}))
    gone = _version(_record({"name": "n", "type": "int", "default": 0}), version=1)
    data = _written("long", count)
    for data_of in (data, data + b"\x02", data + _written("long", 2**40) * 3):
        for reader in (long, gone):
            with pytest.raises(ValueError, match=r"EOFError|IndexError|end"):
                ValueDecoder(reader).decode(data_of, long)


def test_an_older_writer_is_resolved_to_the_newest_version() -> None:
    old = _version(_record({"name": "id", "type": "int"}, {"name": "gone", "type": "string"}))
    new = _version(
        _record(
            {"name": "number", "aliases": ["id"], "type": "long"},
            {"name": "n", "type": "string", "default": "x"},
        ),
        version=1,
    )
    data = _written(json.loads(old.text), {"id": 7, "gone": "g"})
    decoder = ValueDecoder(new)
    assert decoder.decode(data, old) == {"number": 7, "n": "x"}
    with pytest.raises(ValueError, match="4 bytes behind its end"):
        decoder.decode(data + b"\0\0\0\0", new)
    with pytest.raises(SchemaError, match="of version 0 of the schema, JSON; the newest, 1, is AV"):
        decoder.decode(data, _version({}, "JSON"))


def test_json_fields_that_are_left_out_have_their_default() -> None:
    schema = _version(
        _record(
            {"name": "id", "type": "long"},
            {"name": "n", "type": "string", "default": "x"},
            {"name": "o", "type": ["null", "int"]},
        ),
        "JSON",
    )
    decoder = ValueDecoder(schema)
    assert decoder.decode(b'{"id": 1}', schema) == {"id": 1, "n": "x", "o": None}
    for text, told in (
        (b'{"n": "y"}', "field id is missing"),
        (b'{"id": "7"}', "field id: '7' is no number of 64 bits"),
        (b'{"id": true}', "field id: True is no number"),
        (b'{"id": 9223372036854775808}', "field id: 9223372036854775808 is no number of 64 bits"),
        (b'{"id": 1, "n": null}', "field n: None is no text"),
        (b'{"id": 1, "n": "\\ud800"}', "field n: .*surrogates"),
        (b'{"id": 1e99999999999999999999}', "InvalidOperation"),
        (b"[1]", "is no record"),
        (b"\xff", "decode"),
        (b"[" * 100_000, "RecursionError|recursion"),
    ):
        with pytest.raises(ValueError, match=told):
            decoder.decode(text, schema)


@pytest.mark.parametrize("number", ["1.234", "100.00", "1e999999999", '"1"', "true", "NaN"])
def test_json_numbers_that_are_no_such_decimal(number: str) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = _version(_record({"name": "price", "type": kind}), "JSON")
    decoder = ValueDecoder(schema)
    assert decoder.decode(b'{"price": -99.9}', schema) == {"price": Decimal("-99.9")}
    with pytest.raises(ValueError, match=r"field price: .* is no decimal\(4, 2\)"):
        decoder.decode(b'{"price": %s}' % number.encode(), schema)


_DECIMAL = {"type": "bytes", "logicalType": "decimal"}
_TREE = _record({"name": "children", "type": {"type": "array", "items": "R"}})


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (_TREE, r"field children\[\]: R contains itself"),
        (_record({"name": "a", "type": _record({"name": "b", "type": ["int", "long"]}, name="I")}),
         "field a.b: of unions only those of null and one other"),
        (_record({"name": "m", "type": {"type": "map", "values": ["null"]}}), r"field m\{\}: of"),
        (_record({"name": "n", "type": "null"}), "field n: Spark has no type for null alone"),
        (_record({"name": "l", "type": {"type": "array", "items": _record(name="E")}}),
         r"field l\[\]: E has no fields"),
        (_record({"name": "z", "type": {"type": "fixed", "name": "Z", "size": 0}}), "field z: it"),
        (_record({"name": "d", "type": {**_DECIMAL, "precision": 39}}),
         r"field d: decimal\(39, 0\)"),
        (_record({"name": "u", "type": "Unknown"}), "version 0 of the schema is no Avro"),
        ({"properties": {}}, "version 0 of the schema is no Avro definition"),
        (7, "version 0 of the schema is no Avro definition"),
    ],
)  # fmt: skip
def test_definitions_without_a_type_name_the_field(schema: object, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        type_of(_version(schema))


def test_an_older_writer_that_is_not_bounded_is_refused_too() -> None:
    newest = _version(_record({"name": "n", "type": "int", "default": 0}), version=1)
    with pytest.raises(SchemaError, match=r"field children\[\]: R contains itself"):
        ValueDecoder(newest).decode(b"\x02" * 500_000, _version(_TREE))


@pytest.mark.parametrize("kind", ["KEY_VALUE", "PROTOBUF", "PROTOBUF_NATIVE"])
def test_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(SchemaError, match=f"of type {kind} are not supported"):
        type_of(SchemaVersion(0, kind, ""))


@pytest.mark.parametrize(
    ("kind", "data", "ddl", "shape"),
    [
        ("STRING", "é".encode(), "string", "é"),
        ("BYTES", b"\xff", "binary", b"\xff"),
        ("BOOLEAN", b"\1", "boolean", True),
        ("INT8", b"\xff", "tinyint", -1),
        ("INT16", b"\1\0", "smallint", 256),
        ("INT32", struct.pack(">i", -5), "int", -5),
        ("INT64", struct.pack(">q", 2**62), "bigint", 2**62),
        ("FLOAT", struct.pack(">f", 1.5), "float", 1.5),
        ("DOUBLE", struct.pack(">d", 0.1), "double", 0.1),
        ("TIMESTAMP", struct.pack(">q", 1_001), "timestamp", 1_001_000),
        ("INSTANT", struct.pack(">qi", -1, 999_999_999), "timestamp", -1),
        ("LOCAL_DATE", struct.pack(">q", 20_000), "date", 20_000),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 1_000), "timestamp_ntz", 86_400_000_001),
    ],
)
def test_primitive_layouts(kind: str, data: bytes, ddl: str, shape: object) -> None:
    schema = SchemaVersion(0, kind, "")
    decoder = ValueDecoder(schema)
    assert decoder.type.spark.simpleString() == ddl
    assert to_arrow_type(decoder.type.spark, timezone="UTC") == decoder.type.arrow
    assert decoder.decode(data, schema) == shape
    pa.array([shape], decoder.type.arrow)
    if kind != "BYTES":
        with pytest.raises(ValueError, match=r"bytes are no|can't decode"):
            decoder.decode(data + b"\xff", schema)
