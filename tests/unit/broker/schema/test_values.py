"""Texts to the bytes that typed clients exchange, and back; hostile bytes harm nobody."""

import contextlib
import io
import json
import struct
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.schema.definition import SchemaDefinition
from magnetar.broker.schema.key_value import join_parts
from magnetar.broker.schema.value_errors import ValueCodecError
from magnetar.broker.schema.values import KeyValueCodec, ValueCodec, codec_of
from tests.unit.broker.schema.builders import (
    avro,
    field,
    key_value,
    optional,
    plain,
    protobuf_native,
    record,
)


def codec(definition: SchemaDefinition) -> ValueCodec:
    made = codec_of(definition)
    assert made is not None
    assert not isinstance(made, KeyValueCodec)
    return made


def pair_codec(definition: SchemaDefinition) -> KeyValueCodec:
    made = codec_of(definition)
    assert isinstance(made, KeyValueCodec)
    return made


# The bytes are Apache Pulsar 4.2.4's for the same request, where it could encode it.
@pytest.mark.parametrize(
    ("kind", "text", "data", "shown"),
    [
        ("STRING", "gr\u00fcn", "gr\u00fcn".encode(), "gr\u00fcn"),
        ("BYTES", "abc", b"abc", "YWJj"),
        ("INT8", "-7", b"\xf9", -7),
        ("INT16", "-5", b"\xff\xfb", -5),
        ("INT32", "42", b"\0\0\0\x2a", 42),
        ("INT64", "9000000000", b"\x00\x00\x00\x02\x18q\x1a\x00", 9_000_000_000),
        ("FLOAT", "1.5", struct.pack(">f", 1.5), 1.5),
        ("DOUBLE", "-2.5e3", struct.pack(">d", -2500), -2500.0),
        ("DOUBLE", "NaN", struct.pack(">d", float("nan")), "nan"),
        ("BOOLEAN", "true", b"\x01", True),
        ("BOOLEAN", "False", b"\0", False),
        ("DATE", "2026-01-02", struct.pack(">q", 1_767_312_000_000), "2026-01-02T00:00:00Z"),
        ("DATE", "5", struct.pack(">q", 5), "1970-01-01T00:00:00.005Z"),
        ("TIME", "10:11:12.5", struct.pack(">q", 36_672_500), "10:11:12.5"),
        ("TIMESTAMP", "1970-01-01 00:00:01+01:00", struct.pack(">q", -3_599_000), None),
        (
            *("INSTANT", "2026-01-02T03:04:05Z"),
            *(b"\x00\x00\x00\x00iW5\xa5\x00\x00\x00\x00", "2026-01-02T03:04:05Z"),
        ),
        ("INSTANT", "1969-12-31T23:59:59.000000001Z", struct.pack(">qi", -1, 1), None),
        ("LOCAL_DATE", "2026-01-02", b"\x00\x00\x00\x00\x00\x00O\xe7", "2026-01-02"),
        ("LOCAL_TIME", "10:11:12", b"\x00\x00!Z]\x88\x80\x00", "10:11:12"),
        (
            *("LOCAL_DATE_TIME", "2026-01-02T03:04:05"),
            *(struct.pack(">q", 20_455) + b"\0\0\n\x0b\x9dM2\x00", "2026-01-02T03:04:05"),
        ),
    ],
)
def test_primitives(kind: str, text: str, data: bytes, shown: Any) -> None:
    each = codec(plain(kind))
    assert each.encode(text) == data
    if shown is not None:
        assert each.decode(data) == shown
    else:
        assert each.encode(each.decode(data)) == data


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("INT8", text) for text in ("300", "x", "", "1_0", "4.2", "9" * 100)),
        *(("INT64", text) for text in (str(2**63), "0x1")),
        *(("FLOAT", text) for text in ("1e99", "x", "1_0")),
        *(("BOOLEAN", text) for text in ("maybe", "1")),
        *(("DATE", text) for text in ("tomorrow", "2026-13-01")),
        *(("INSTANT", text) for text in ("5", "2026-01-02")),
        *(("LOCAL_TIME", text) for text in ("10:11:12Z", "25:00:00")),
        *(("LOCAL_DATE_TIME", text) for text in ("2026-01-02", "2026-01-02T10:00:00Z")),
    ],
)
def test_texts_that_are_no_value(kind: str, text: str) -> None:
    with pytest.raises(ValueCodecError, match=kind):
        codec(plain(kind)).encode(text)


@given(
    st.sampled_from(["INT8", "INT64", "DOUBLE", "DATE", "TIME", "INSTANT", "LOCAL_DATE_TIME"]),
    st.binary(max_size=20),
)
def test_any_bytes_are_shown_or_refused(kind: str, data: bytes) -> None:
    with contextlib.suppress(ValueCodecError):
        json.dumps(codec(plain(kind)).decode(data), allow_nan=False)


EVERYTHING = record(
    *(
        field("i", "int"),
        field("l", {"type": "long", "logicalType": "timestamp-millis"}),
        field("f", "float"),
        field("d", "double"),
        field("t", "boolean"),
        field("s", "string"),
        field("b", "bytes"),
        field("x", {"type": "fixed", "name": "X", "size": 2}),
        field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        field("a", {"type": "array", "items": ["null", "long", "string"]}),
        field("m", {"type": "map", "values": "int"}),
        field("r", ["null", "R"]),
        field("n", "null"),
        optional("o"),
    )
)
GIVEN = {
    "i": -1,
    "l": 2**40,
    "f": 1.5,
    "d": 2,
    "t": True,
    "s": "ü",
    "b": "\x00\xff",
    "x": "ab",
    "e": "B",
    "a": [None, 5, "five", {"long": 6}],
    "m": {"k": 1},
    "r": None,
    "n": None,
}


def test_avro_writes_what_the_library_reads() -> None:
    each = codec(avro(EVERYTHING))
    data = each.encode(json.dumps(GIVEN))
    schema = fastavro.parse_schema(EVERYTHING)
    assert fastavro.schemaless_reader(io.BytesIO(data), schema, None) == {
        **GIVEN,
        "b": b"\x00\xff",
        "x": b"ab",
        "a": [None, 5, "five", 6],
        "o": None,
        "d": 2.0,
        "l": fastavro.schemaless_reader(
            io.BytesIO(codec(avro("long")).encode(str(2**40))),
            {"type": "long", "logicalType": "timestamp-millis"},
            None,
        ),
    }


def test_avro_shows_what_it_takes() -> None:
    each = codec(avro(EVERYTHING))
    data = each.encode(json.dumps({**GIVEN, "r": {"R": GIVEN}, "o": {"string": "x"}}))
    shown = each.decode(data)
    assert (shown["o"], shown["r"]["b"], shown["a"]) == ("x", "\x00\xff", [None, 5, "five", 6])
    assert each.encode(json.dumps(shown)) == data
    numbers = codec(avro({"type": "array", "items": "double"}))
    assert numbers.decode(numbers.encode('["NaN", "-Infinity", 1]')) == ["NaN", "-Infinity", 1.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"i": "1"}, "i must be an int"),
        ({"i": 2**31}, "range of int"),
        ({"i": True}, "i must be an int"),
        ({"t": 1}, "true or false"),
        ({"b": "\u0100"}, "one for each byte"),
        ({"x": "abc"}, "2 bytes"),
        ({"e": "C"}, "one of A, B"),
        ({"a": [1.5]}, r"a\[0\] must be null or long or string"),
        ({"m": []}, "m must be an object, not an array"),
        ({"o": 5}, "o must be"),
        ({"f": 1e39}, "range of float"),
        ({"n": 0}, "null"),
    ],
)
def test_avro_names_what_is_wrong(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueCodecError, match=said):
        codec(avro(EVERYTHING)).encode(json.dumps({**GIVEN, **change}))
    if not change.keys() & {"b", "x"}:  # JSON libraries have their own idea of bytes
        with pytest.raises(ValueCodecError, match=said):
            codec(avro(EVERYTHING, "JSON")).encode(json.dumps({**GIVEN, **change}))


def test_a_field_without_a_default_may_not_be_left_out_of_avro() -> None:
    definition = record("a", optional("b"))
    with pytest.raises(ValueCodecError, match="lacks the field a"):
        codec(avro(definition)).encode("{}")
    assert codec(avro(definition, "JSON")).encode("{}") == b"{}"
    assert codec(avro(definition)).encode('{"a": 1, "unknown": 2}') == b"\x02\x00"


def test_json_travels_as_it_is_given() -> None:
    each = codec(avro(record("a"), "JSON"))
    assert each.encode('{ "a": 1, "more": [] }') == b'{ "a": 1, "more": [] }'
    assert each.decode(b'{"a":1}') == {"a": 1}
    for text in ("{", "[]", '{"a": "x"}', "NaN", "[" * 5000):
        with pytest.raises(ValueCodecError):
            each.encode(text)
    with pytest.raises(ValueCodecError):
        each.decode(b"\xff")


ENDLESS = record(field("next", ["null", "R"]))


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (ENDLESS, b"\x02" * 500_000),  # fastavro's reader ends the process here
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
        ({"type": "array", "items": record(field("n", "null"))}, b"\xfe\xff\xff\xff\x7f\x00"),
        ("long", b"\xff" * 500_000),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("bytes", b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        (["null", "int"], b"\x08"),
        ("string", b"\x02\xff"),
        ("int", b""),
        ("long", b"\0" * (1024 * 1024 + 1)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_hostile_avro_is_refused(schema: Any, data: bytes) -> None:
    with pytest.raises(ValueCodecError):
        codec(avro(schema)).decode(data)


def test_a_deep_value_is_written_or_refused() -> None:
    each = codec(avro(ENDLESS))
    assert each.decode(each.encode('{"next":' * 50 + "null" + "}" * 50))["next"] is not None
    for depth in (400, 900):
        try:
            each.encode('{"next":' * depth + "null" + "}" * depth)
        except ValueCodecError as error:
            assert "recursion" in str(error)  # noqa: PT017 - either may happen


def test_unions_within_unions_are_given_up() -> None:
    """Each level tries both branches, so that a text of 1 kB would take 2**60 tries."""
    inner = record(field("x", ["A", "B", "null"]), field("y", "int"), name="B")
    outer = record(field("x", ["A", inner, "null"]), field("y", "int"), name="A")
    schema = record(field("x", [outer, "B"]))
    text = '{"x":' * 60 + "5" + ',"y":1}' * 60
    with pytest.raises(ValueCodecError, match="too much to try"):
        codec(avro(schema)).encode(text)


@settings(max_examples=60)
@given(st.binary(max_size=60))
def test_any_bytes_of_avro_are_shown_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueCodecError):
        json.dumps(codec(avro(EVERYTHING)).decode(data), allow_nan=False)


def test_protobuf() -> None:
    each = codec(protobuf_native("p.Order"))
    data = each.encode('{"a": 300}')
    assert data == b"\x08\xac\x02"
    assert each.decode(data) == {"a": 300}
    for text in ('{"a": "x"}', '{"b": 1}', "[]", "{", '{"a": 99999999999}'):
        with pytest.raises(ValueCodecError):
            each.encode(text)
    with pytest.raises(ValueCodecError):
        each.decode(b"\x08")


def test_key_and_value() -> None:
    inline = pair_codec(key_value(plain("STRING"), plain("INT32")))
    assert inline.encode_pair("k", "5") == (None, b"\0\0\0\x01k\0\0\0\x04\0\0\0\x05")
    assert inline.encode_pair(None, "5") == (None, b"\xff\xff\xff\xff\0\0\0\x04\0\0\0\x05")
    assert inline.decode_pair(None, b"\0\0\0\x01k\0\0\0\x04\0\0\0\x05") == {"key": "k", "value": 5}
    for broken in (b"", b"\0\0\0\x02k", b"\0\0\0\0\0\0\0\0x"):
        with pytest.raises(ValueCodecError):
            inline.decode_pair(None, broken)
    joined = join_parts(plain("INT8"), avro(record("a")), names=("k", "v"))
    assert joined.properties["key.schema.type"] == "INT8"
    assert joined.properties["kv.encoding.type"] == "SEPARATED"
    separated = pair_codec(joined)
    assert separated.encode_pair("7", '{"a": 1}') == (b"\x07", b"\x02")
    assert separated.decode_pair(b"\x07", b"\x02") == {"key": 7, "value": {"a": 1}}
    with pytest.raises(InvalidSchemaError):
        join_parts(key_value(plain("STRING"), plain("INT32")), plain("INT8"), names=("k", "v"))


def test_types_without_a_text_form() -> None:
    assert codec_of(avro(record("a"), "PROTOBUF")) is None
    assert codec_of(plain("EXTERNAL")) is None
    assert codec_of(key_value(plain("STRING"), avro(record("a"), "PROTOBUF"))) is None
