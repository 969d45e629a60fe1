"""What a value costs is bounded by its bytes, whatever its definition says."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.schema.avro_decoding import AvroReader, empty_values
from magnetar.broker.schema.avro_encoding import _Encoder
from magnetar.broker.schema.avro_values import AvroCodec
from magnetar.broker.schema.compatibility import validate
from magnetar.broker.schema.value_errors import ValueCodecError
from magnetar.broker.schema.values import KeyValueCodec, ValueCodec, codec_of
from tests.nightly import NIGHTLY
from tests.unit.broker.schema.builders import avro, field, record


def codec(schema: Any, kind: str = "AVRO") -> ValueCodec:
    made = codec_of(avro(schema, kind))
    assert made is not None
    assert not isinstance(made, KeyValueCodec)
    return made


def doubling(levels: int) -> Any:
    """A record whose value takes no byte and is 2**levels records."""
    inner = record(field("x", "null"), name="R0")
    for n in range(1, levels + 1):
        inner = record(field("a", inner), field("b", f"R{n - 1}"), name=f"R{n}")
    return inner


def wide(fields: int) -> Any:
    """Items of one byte and many values."""
    nulls = (field(f"n{n}", "null") for n in range(fields))
    return {"type": "array", "items": record(field("t", "boolean"), *nulls)}


@pytest.mark.parametrize("schema", [doubling(40), wide(3_990), ["null", doubling(12)]])
def test_definitions_of_values_without_bytes_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchemaError, match="take no bytes"):
        validate(avro(schema))
    validate(avro(schema, "JSON"))  # its values aren't in Avro's binary form


@pytest.mark.parametrize(
    "schema",
    [
        wide(900),
        doubling(7),
        {"type": "array", "items": "null"},
        record(field("next", ["null", "R"]), field("again", {"type": "array", "items": "R"})),
        "null",
    ],
)
def test_definitions_that_people_write_are_taken(schema: Any) -> None:
    validate(avro(schema))


@pytest.mark.parametrize("levels", [16, 40])
def test_an_empty_payload_of_an_old_definition_is_given_up(levels: int) -> None:
    """Stored before definitions were looked at: 2**40 values were read on the loop."""
    with pytest.raises(ValueCodecError, match="too many values"):
        codec(doubling(levels)).decode(b"")


def test_a_byte_is_not_a_thousand_values() -> None:
    with pytest.raises(ValueCodecError, match="too many values"):
        codec(wide(3_990)).decode(b"\x78" + b"\x01" * 60 + b"\0")
    assert codec({"type": "array", "items": "null"}).decode(b"\x06\0") == [None] * 3


def count(value: Any) -> int:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + sum(map(count, inner))
    return 1


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["null", "boolean", "int", "string"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=30).map(
            lambda kinds: {"fields": [field(f"f{n}", kind) for n, kind in enumerate(kinds)]}
        ),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
        inner.filter(lambda kind: not isinstance(kind, str)).map(lambda kind: ["null", kind]),
    ),
    max_leaves=200,
)


def named(schema: Any, counter: list[int]) -> Any:
    """The strategy's records with a name each."""
    if isinstance(schema, list):
        return [named(each, counter) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "fields" in schema:
        counter[0] += 1
        name = f"R{counter[0]}"
        fields = [field(each["name"], named(each["type"], counter)) for each in schema["fields"]]
        return record(*fields, name=name)
    return {key: named(value, counter) for key, value in schema.items()}


@settings(max_examples=150 if NIGHTLY else 40, deadline=None)
@given(SCHEMAS, st.binary(max_size=200))
def test_values_are_bounded_by_bytes(schema: Any, data: bytes) -> None:
    with contextlib.suppress(ValueCodecError, InvalidSchemaError):
        value = codec(named(schema, [0])).decode(data)
        assert count(value) <= 2_000 + 8 * len(data)
        json.dumps(value, allow_nan=False)


def test_a_number_above_64_bits_is_refused() -> None:
    """orjson reads and writes 64 bits: the answer with such a value was an error 500."""
    for data in (b"\xff" * 9 + b"\x7f", b"\xff" * 9 + b"\x02"):
        with pytest.raises(ValueCodecError, match="64 bits"):
            codec("long").decode(data)
    assert codec("long").decode(b"\xff" * 9 + b"\x01") == -(2**63)
    assert codec("long").decode(b"\xfe" + b"\xff" * 8 + b"\x01") == 2**63 - 1


def test_json_that_can_be_read_and_not_written_is_refused() -> None:
    each = codec(record(), "JSON")
    for opening, closing in ((b'{"a":', b"}"), (b"[", b"]")):
        assert each.decode(opening * 200 + b"1" + closing * 200)
        with pytest.raises(ValueCodecError, match="within each other"):
            each.decode(opening * 300 + b"1" + closing * 300)


def test_avro_nested_without_an_end_is_refused() -> None:
    endless = record(field("next", ["null", "R"]))
    assert codec(endless).decode(b"\x02" * 150 + b"\0")
    with pytest.raises(ValueCodecError, match=r"within each other|recursion"):
        codec(endless).decode(b"\x02" * 500 + b"\0")


def test_branches_of_a_union_are_named_once() -> None:
    """3,901 names were listed for each item: 8 seconds of the loop for 32 KiB."""
    branches = ["int", *({"type": "fixed", "name": f"f{n}", "size": 1} for n in range(3_900))]
    each = codec({"type": "array", "items": branches})
    assert len(each.encode("[" + ",".join("1" * 5_000) + "]")) > 10_000
    with pytest.raises(ValueCodecError, match="too much to try"):  # the last branch of all
        each.encode("[" + ",".join(['"x"'] * 5_000).replace('"x"', '{"f3899":"x"}') + "]")


def test_steps_have_an_end_however_long_the_text_is() -> None:
    assert _Encoder({}, 1 << 30, lenient=False)._left == 6_000_000


def test_an_error_names_the_place() -> None:
    nested = record(field("c", {"type": "map", "values": {"type": "array", "items": "int"}}))
    with pytest.raises(ValueCodecError, match=r"^c\.key\[1\] must be an int, not 'x'$"):
        codec(nested).encode('{"c": {"key": [1, "x"]}}')


def test_the_place_of_a_value_is_not_kept_as_text_at_every_level() -> None:
    """Levels x levels x length of a key: 190 times the body at 200 levels."""
    nested = record(field("c", {"type": "map", "values": "R"}))
    key = "k" * 2_000
    text = f'{{"c":{{"{key}":' * 60 + "5" + "}}" * 60
    with pytest.raises(ValueCodecError) as caught:
        codec(nested).encode(text)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).startswith("...")


def test_counting_is_the_definition_s_size() -> None:
    """Each named type is looked at once: this one has 2**60 ways through it."""
    made = AvroCodec(avro(doubling(60)).data)
    assert empty_values(made._schema, made._names) > 2**60
    assert AvroReader({}, b"\x02").read("int") == 1
