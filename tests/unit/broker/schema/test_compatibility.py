"""Which definition may follow which: a table of evolutions per strategy, and what is no schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.broker.schema.compatibility import (
    Strategy,
    check_consumer,
    check_evolution,
    same_definition,
    validate,
)
from magnetar.broker.schema.definition import SchemaDefinition
from tests.unit.broker.schema.builders import (
    avro,
    field,
    key_value,
    optional,
    plain,
    protobuf_native,
    record,
)


def allowed(strategy: Strategy, history: list[SchemaDefinition], new: SchemaDefinition) -> bool:
    try:
        check_evolution(strategy, history, new)
    except IncompatibleSchemaError:
        return False
    return True


def enum(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


# old, new: (new reads old, old reads new), by Avro's rules of resolution
EVOLUTIONS: list[tuple[str, Any, Any, bool, bool]] = [
    ("nothing changes", record("a"), record("a"), True, True),
    ("field added", record("a"), record("a", "b"), False, True),
    ("field added with default", record("a"), record("a", optional("b")), True, True),
    ("field removed", record("a", "b"), record("a"), True, False),
    ("field with default removed", record("a", optional("b")), record("a"), True, True),
    ("field renamed", record("a"), record("b"), False, False),
    (
        *("field renamed with alias", record("a")),
        *(record({**field("b", "int"), "aliases": ["a"]}), True, False),
    ),
    ("int to long", record("a"), record(field("a", "long")), True, False),
    ("int to string", record("a"), record(field("a", "string")), False, False),
    ("string to bytes", "string", "bytes", True, True),
    ("float to double", "float", "double", True, False),
    ("made optional", record("a"), record(field("a", ["null", "int"])), True, False),
    ("union grows", ["null", "int"], ["null", "int", "string"], True, False),
    ("enum grows", enum("A"), enum("A", "B"), True, False),
    ("enum grows, with default", enum("A", default="A"), enum("A", "B"), True, True),
    ("record renamed", record("a"), record("a", name="S"), True, True),
    ("record renamed and grown", record("a"), record("a", "b", name="S"), False, True),
    (
        "record renamed, type changed",
        record("a"),
        record(field("a", "string"), name="S"),
        False,
        False,
    ),
    (
        *("inner record renamed", record(field("n", record("a", name="N")))),
        *(record(field("n", record("a", name="M"))), True, True),
    ),
    (
        *("record of a union renamed", record(field("n", ["null", record("a", name="N")]))),
        *(record(field("n", ["null", record("a", name="M")])), True, True),
    ),
    (
        "enum renamed",
        record(field("n", enum("A"))),
        record(field("n", enum("A", name="F"))),
        False,
        False,
    ),
    (
        *("fixed renamed", {"type": "fixed", "name": "F", "size": 4}),
        *({"type": "fixed", "name": "G", "size": 4}, False, False),
    ),
    ("only doc changes", record("a"), record("a", doc="text"), True, True),
    (
        *("nested field added", record(field("n", record("a", name="N")))),
        *(record(field("n", record("a", "b", name="N"))), False, True),
    ),
    (
        *("array items widen", {"type": "array", "items": "int"}),
        *({"type": "array", "items": "long"}, True, False),
    ),
    (
        *("fixed grows", {"type": "fixed", "name": "F", "size": 4}),
        *({"type": "fixed", "name": "F", "size": 8}, False, False),
    ),
    (
        *("recursive, field added", record(field("next", ["null", "R"]))),
        *(record(field("next", ["null", "R"]), optional("b")), True, True),
    ),
]


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize("row", EVOLUTIONS, ids=lambda row: row[0])
def test_avro_evolutions(row: tuple[str, Any, Any, bool, bool], kind: str) -> None:
    _, before, after, new_reads_old, old_reads_new = row
    old, new = avro(before, kind), avro(after, kind)
    expected = {
        Strategy.ALWAYS_COMPATIBLE: True,
        Strategy.ALWAYS_INCOMPATIBLE: False,
        Strategy.BACKWARD: new_reads_old,
        Strategy.BACKWARD_TRANSITIVE: new_reads_old,
        Strategy.FORWARD: old_reads_new,
        Strategy.FORWARD_TRANSITIVE: old_reads_new,
        Strategy.FULL: new_reads_old and old_reads_new,
        Strategy.FULL_TRANSITIVE: new_reads_old and old_reads_new,
    }
    assert {strategy: allowed(strategy, [old], new) for strategy in Strategy} == expected


@pytest.mark.parametrize("strategy", Strategy)
def test_anything_may_be_the_first(strategy: Strategy) -> None:
    check_evolution(strategy, [], avro(record("a")))


def test_transitive_strategies_look_at_every_version() -> None:
    # b goes and comes back as something else: only the first version knows of it.
    history = [avro(record("a", optional("b"))), avro(record("a"))]
    new = avro(record("a", {"name": "b", "type": "long", "default": 0}))
    for name in ("BACKWARD", "FORWARD", "FULL"):
        assert allowed(Strategy[name], history, new)
        assert not allowed(Strategy[f"{name}_TRANSITIVE"], history, new)


def test_types_must_not_change() -> None:
    for old, new in [
        (plain("STRING"), plain("INT32")),
        (avro(record("a")), avro(record("a"), "JSON")),
        (plain("STRING"), avro("string")),
    ]:
        assert not allowed(Strategy.FULL, [old], new)
        assert allowed(Strategy.ALWAYS_COMPATIBLE, [old], new)
    assert allowed(Strategy.FULL_TRANSITIVE, [plain("DATE")], plain("DATE"))


def test_key_value_by_both_parts() -> None:
    old = key_value(plain("STRING"), avro(record("a")))
    wider = avro(record("a", optional("b")))
    assert allowed(Strategy.FULL, [old], key_value(plain("STRING"), wider))
    assert not allowed(Strategy.FULL, [old], key_value(plain("INT32"), wider))
    assert not allowed(Strategy.FULL, [old], key_value(plain("STRING"), avro(record("b"))))
    turned = key_value(avro(record("a")), plain("STRING"))
    assert not allowed(Strategy.FULL, [turned], key_value(avro(record("b")), plain("STRING")))


def test_protobuf_native_keeps_its_root_message() -> None:
    old = protobuf_native("p.M", "M")
    assert allowed(Strategy.FULL, [old], protobuf_native("p.M", "M", "N"))
    assert not allowed(Strategy.FULL, [old], protobuf_native("p.N", "M", "N"))
    assert allowed(Strategy.ALWAYS_COMPATIBLE, [old], protobuf_native("p.N", "N"))


# --- hostile sizes


def test_comparisons_are_given_up() -> None:
    """400 branches against 400 others, none of which fits."""

    def unions(prefix: str) -> SchemaDefinition:
        branches = [record(prefix, name=f"{prefix}{n}") for n in range(400)]
        return avro(record(field("u", branches)))

    with pytest.raises(IncompatibleSchemaError, match="steps"):
        check_evolution(Strategy.BACKWARD, [unions("A")], unions("B"))


def test_huge_definitions_are_refused() -> None:
    validate(avro(record(*(f"a{n}" for n in range(2_000)))))
    for definition in (record(*(f"a{n}" for n in range(4_100))), enum(*map(str, range(4_100)))):
        with pytest.raises(InvalidSchemaError, match="at most"):
            validate(avro(definition))


# --- consumers


def test_consumers_must_read_the_newest() -> None:
    history = [avro(record("a")), avro(record("a", "b"))]
    for strategy in (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FULL):
        check_consumer(strategy, history, avro(record("a")))
        with pytest.raises(IncompatibleSchemaError):
            check_consumer(strategy, history, avro(record("a", "c")))
    # The whole strategy, against every version
    with pytest.raises(IncompatibleSchemaError):
        check_consumer(Strategy.FULL_TRANSITIVE, history, avro(record("a")))
    check_consumer(Strategy.ALWAYS_COMPATIBLE, history, plain("STRING"))


def test_consumers_of_a_topic_without_schema_are_refused() -> None:
    with pytest.raises(IncompatibleSchemaError, match="does not have schema"):
        check_consumer(Strategy.FULL, [], plain("STRING"))
    check_consumer(Strategy.ALWAYS_COMPATIBLE, [], plain("STRING"))


def test_always_incompatible_lets_known_schemas_read() -> None:
    history = [avro(record("a"))]
    check_consumer(Strategy.ALWAYS_INCOMPATIBLE, history, avro(record("a", doc="d")))
    with pytest.raises(IncompatibleSchemaError):
        check_consumer(Strategy.ALWAYS_INCOMPATIBLE, history, avro(record("a", optional("b"))))


# --- sameness


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (record("a"), record("a", doc="d", aliases=["Q"]), True),
        (record("a", namespace="n"), record("a", name="n.R"), True),
        (record("a"), record({"type": {"type": "int"}, "doc": "d", "name": "a"}), True),
        (record("a"), record({"name": "a", "type": "int", "order": "ascending"}), True),
        (
            record(field("x", record("a", name="N")), field("y", "N"), namespace="n"),
            record(field("x", record("a", name="n.N")), field("y", "n.N"), namespace="n"),
            True,
        ),
        (record("a"), record("b"), False),
        (record("a"), record("a", name="S"), False),
        (record("a", namespace="n"), record("a", namespace="m"), False),
        (record(optional("a")), record(field("a", ["null", "string"])), False),
        ({"type": "int", "logicalType": "date"}, "int", False),
        (
            record({"name": "a", "type": "int", "default": 1}),
            record({"name": "a", "type": "int", "default": True}),
            False,
        ),
        ({"type": "array", "items": {"type": "int"}}, {"type": "array", "items": "int"}, True),
    ],
)
def test_sameness_looks_through_spelling(one: Any, other: Any, same: bool) -> None:
    assert same_definition(avro(one), avro(other)) is same
    assert same_definition(avro(other), avro(one)) is same


def test_sameness_needs_one_type() -> None:
    assert not same_definition(avro(record("a")), avro(record("a"), "JSON"))
    assert same_definition(plain("INT8"), plain("INT8"))
    assert not same_definition(protobuf_native("p.M"), protobuf_native("p.N"))


# --- what is no schema


@pytest.mark.parametrize(
    "definition",
    [
        *(SchemaDefinition("AVRO", data) for data in (b"", b"{", b"[1]", b"{}", b"\xff", b"3")),
        SchemaDefinition("AVRO", b'"nosuch"'),
        SchemaDefinition("AVRO", b'{"type":"record","name":"R"}'),
        SchemaDefinition("AVRO", b"[" * 100_000),
        SchemaDefinition("AVRO", b'{"type":' * 5_000 + b'"int"' + b"}" * 5_000),
        SchemaDefinition("JSON", b'{"type":"object","id":"urn:x"}'),
        SchemaDefinition("STRING", b"x"),
        SchemaDefinition("INT8", b"zz"),
        SchemaDefinition("AUTO_CONSUME", b""),
        SchemaDefinition("NOSUCH", b""),
        SchemaDefinition("NONE", b""),
        SchemaDefinition("PROTOBUF_NATIVE", b"{}"),
        SchemaDefinition("PROTOBUF_NATIVE", b"[]"),
        protobuf_native("p.Other", "M"),
        SchemaDefinition("KEY_VALUE", b""),
        SchemaDefinition("KEY_VALUE", b"\0\0\0\x05ab"),
        SchemaDefinition("KEY_VALUE", b"\0\0\0\0\0\0\0\0x"),
        key_value(plain("STRING"), plain("KEY_VALUE")),
        key_value(SchemaDefinition("AVRO", b"{"), plain("STRING")),
    ],
    ids=lambda definition: f"{definition.type} {definition.data[:20]!r}",
)
def test_invalid_definitions(definition: SchemaDefinition) -> None:
    with pytest.raises(InvalidSchemaError):
        validate(definition)


@pytest.mark.parametrize(
    "definition",
    [
        avro(record("a", optional("b"))),
        avro({"type": "long", "logicalType": "timestamp-millis"}),
        avro({"type": "string", "logicalType": "nobody-knows"}),
        avro({"type": "string", "avro.java.string": "String"}),
        avro(record("a", name="Outer$Inner", namespace="com.example")),
        avro(record("a"), "JSON"),
        *(plain(kind) for kind in ("STRING", "BOOLEAN", "INT64", "LOCAL_DATE_TIME", "INSTANT")),
        protobuf_native("p.M"),
        protobuf_native("M", package=""),
        protobuf_native("p.M.Inner", "M"),
        key_value(plain("BYTES"), avro(record("a"), "JSON")),
        SchemaDefinition("KEY_VALUE", b"\xff\xff\xff\xff\0\0\0\0"),
    ],
    ids=lambda definition: f"{definition.type} {definition.data[:20]!r}",
)
def test_valid_definitions(definition: SchemaDefinition) -> None:
    validate(definition)
    assert same_definition(definition, definition)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["int", "record", "R", "enum"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "fields", "items", "values", "symbols", "size", "default"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(_JSON, _JSON)
def test_hostile_json_is_a_schema_or_refused(one: Any, other: Any) -> None:
    definitions = [SchemaDefinition("AVRO", json.dumps(each).encode()) for each in (one, other)]
    for definition in definitions:
        try:
            validate(definition)
        except InvalidSchemaError:
            return
    same_definition(*definitions)
    allowed(Strategy.FULL, definitions[:1], definitions[1])


@given(st.binary(max_size=40))
def test_hostile_bytes_are_refused_or_split(data: bytes) -> None:
    for kind in ("KEY_VALUE", "PROTOBUF_NATIVE", "AVRO"):
        with pytest.raises(InvalidSchemaError):
            validate(SchemaDefinition(kind, b"!" + data))
