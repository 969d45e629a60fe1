"""Schemas of topics as types of Spark, and values of those schemas. Pure.

An AVRO or JSON schema is an Avro definition, and both kinds of value end in the same shapes. Times
stay the numbers they are on the wire: Arrow makes timestamps of them without passing through
Python's, which know no year 10000. What isn't bounded by its bytes (recursion, arrays of items that
take none) has no type, and so is never decoded: ``fastavro`` has no limits of its own.
"""

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from pyspark.sql import types as spark

from magnetar.broker.schema.avro_values import NotAvroError, parse_named
from magnetar.broker.schema.primitive_values import PACKED
from magnetar.pipeline.errors import PipelineError

_PRECISION_MAX: Final = 38  # of a decimal in Spark and in 128 bits
_UNREADABLE: Final = (
    *(SchemaResolutionError, struct.error, EOFError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError),  # a number with an exponent beyond all bounds; brackets
)
_FLOATS: Final = frozenset({"NaN", "Infinity", "-Infinity"})  # as Jackson writes them in JSON


class SchemaError(PipelineError):
    """A topic has no schema, one that Spark has no types for, or a value isn't of its schema."""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a topic's schema, as a broker tells it."""

    version: int
    kind: str
    """AVRO, JSON, STRING, ..."""
    text: str
    """The definition; of primitive types ""."""


@dataclass(frozen=True, slots=True)
class RecordType:
    """One type in two libraries.

    Attributes:
        shape: what ``fastavro`` or JSON give, to what pyarrow takes for ``arrow``; ValueError: it
            isn't of this type.
    """

    spark: spark.DataType
    arrow: pa.DataType
    shape: Callable[[Any], Any]


def type_of(schema: SchemaVersion) -> RecordType:
    """The type of a schema's values.

    Raises:
        SchemaError: there is none; names the field.
    """
    if (primitive := _PRIMITIVES.get(schema.kind)) is not None:
        return primitive[0]
    if schema.kind not in ("AVRO", "JSON"):
        raise SchemaError(f"values of schemas of type {schema.kind} are not supported")
    names: dict[str, Any] = {}
    return _Definition(names).type_of(_parse(schema, names, logical=True), "", ())


class ValueDecoder:
    """Values of any version of a topic's schema, as the reader's version has them."""

    def __init__(self, reader: SchemaVersion) -> None:
        """Raises SchemaError."""
        self.type: Final = type_of(reader)
        self._reader = reader
        self._parsed = _parse(reader, {}) if reader.kind == "AVRO" else None
        self._writers: dict[int, Any] = {}

    def decode(self, data: bytes, writer: SchemaVersion) -> Any:
        """A value as pyarrow takes it for ``type.arrow``.

        Raises:
            SchemaError: values of the writer's version can't be read as the reader's.
            ValueError: this value isn't one of the schema.
        """
        if writer.kind != self._reader.kind:
            raise SchemaError(
                f"it is of version {writer.version} of the schema, {writer.kind}; the newest, "
                f"{self._reader.version}, is {self._reader.kind}"
            )
        try:
            return self.type.shape(self._raw(data, writer))
        except ValueError as error:
            raise ValueError(f"{error!s:.300}") from error
        except _UNREADABLE as error:
            raise ValueError(f"{type(error).__name__}: {error!s:.300}") from error

    def _raw(self, data: bytes, writer: SchemaVersion) -> Any:
        if writer.kind == "JSON":
            return json.loads(data, parse_float=Decimal)
        if writer.kind != "AVRO":
            return _PRIMITIVES[writer.kind][1](data)
        if (parsed := self._writers.get(writer.version)) is None:
            type_of(writer)  # refuses what isn't bounded
            parsed = self._writers[writer.version] = _parse(writer, {})
        source = io.BytesIO(data)
        reader = None if writer.version == self._reader.version else self._parsed
        value = fastavro.schemaless_reader(source, parsed, reader)
        if rest := len(data) - source.tell():
            raise ValueError(f"{rest} bytes behind its end")
        return value


def _parse(schema: SchemaVersion, names: dict[str, Any], *, logical: bool = False) -> Any:
    """As `parse_named`; without ``logical`` times and decimals are read as numbers and bytes."""
    try:
        return parse_named(schema.text, names, logical=logical)
    except NotAvroError as error:
        raise SchemaError(
            f"version {schema.version} of the schema is no Avro definition: {error}"
        ) from error


class _Definition:
    """Types of the nodes of one parsed definition."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def type_of(self, node: Any, where: str, around: tuple[str, ...]) -> RecordType:
        """
        Args:
            where: ``field.inner``; "": the value itself.
            around: full names of the records this node is in.
        """
        if isinstance(node, list):
            return self._union(node, where, around)
        if isinstance(node, str):
            if node in around:
                raise _refusal(where, f"{node} contains itself, which Spark has no type for")
            node = self._names.get(node, {"type": node})
        match node["type"]:
            case "record" | "error":
                return self._record(node, where, (*around, node["name"]))
            case "array":
                item = self.type_of(node["items"], f"{where}[]", around)
                return RecordType(
                    spark.ArrayType(item.spark), pa.list_(item.arrow), _array(item.shape)
                )
            case "map":
                value = self.type_of(node["values"], f"{where}{{}}", around)
                return RecordType(
                    spark.MapType(spark.StringType(), value.spark),
                    *(pa.map_(pa.string(), value.arrow), _map(value.shape)),
                )
            case "enum":
                return RecordType(spark.StringType(), pa.string(), _symbol(node["symbols"]))
            case "fixed" if not node["size"]:
                raise _refusal(where, "it takes no bytes")
        return _leaf(node, where)

    def _union(self, node: list[Any], where: str, around: tuple[str, ...]) -> RecordType:
        branches = [each for each in node if each not in ("null", {"type": "null"})]
        if len(branches) != 1:
            raise _refusal(where, "of unions only those of null and one other type are supported")
        inner = self.type_of(branches[0], where, around)
        return inner if len(node) == 1 else RecordType(inner.spark, inner.arrow, _or_null(inner))

    def _record(self, node: Any, where: str, around: tuple[str, ...]) -> RecordType:
        if not node["fields"]:
            raise _refusal(where, f"{node['name']} has no fields")
        types: list[tuple[str, RecordType]] = []
        defaults: dict[str, Any] = {}
        for each in node["fields"]:
            name = each["name"]
            inner = f"{where}.{name}" if where else name
            types.append((name, self.type_of(each["type"], inner, around)))
            if "default" in each:
                defaults[name] = each["default"]
            elif isinstance(each["type"], list) and "null" in each["type"]:
                defaults[name] = None
        return RecordType(
            spark.StructType([spark.StructField(name, kind.spark) for name, kind in types]),
            pa.struct([(name, kind.arrow) for name, kind in types]),
            _fields([(name, kind.shape) for name, kind in types], defaults),
        )


def _refusal(where: str, why: str) -> SchemaError:
    return SchemaError(f"{f'field {where}' if where else 'the value'}: {why}")


def _leaf(node: Any, where: str) -> RecordType:
    kind, logical = node["type"], node.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed") and "precision" in node:
        precision, scale = node["precision"], node.get("scale", 0)
        if not 0 <= scale <= precision <= _PRECISION_MAX:
            raise _refusal(where, f"decimal({precision}, {scale}); Spark has up to 38 digits")
        return RecordType(
            spark.DecimalType(precision, scale),
            *(pa.decimal128(precision, scale), _decimal(precision, scale)),
        )
    if (found := _LEAVES.get((kind, logical)) or _LEAVES.get((kind, ""))) is None:
        raise _refusal(where, f"Spark has no type for {kind} alone")
    return found


# --- values


def _expected(what: str, value: Any) -> ValueError:
    return ValueError(f"{value!r:.60} is no {what}")


def _whole(bits: int, factor: int = 1) -> Callable[[Any], int]:
    """Whole numbers that times ``factor`` have so many bits."""
    end = 1 << (bits - 1)

    def shape(value: Any) -> int:
        if type(value) is not int or not -end <= value * factor < end:
            raise _expected(f"number of {bits} bits", value)
        return value * factor

    return shape


def _real(value: Any) -> float:
    if type(value) in (float, int, Decimal) or (type(value) is str and value in _FLOATS):
        return float(value)
    raise _expected("number", value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _expected("boolean", value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _expected("text", value)
    if not value.isascii():
        value.encode()  # JSON may hold half of a pair, which Arrow refuses with the whole batch
    return value


def _bytes(value: Any) -> bytes:
    """JSON's text as it is: some clients write base64 there, others don't."""
    return value if isinstance(value, bytes) else _text(value).encode()


def _symbol(symbols: list[str]) -> Callable[[Any], str]:
    known = frozenset(symbols)

    def shape(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise _expected(f"symbol of {symbols!r:.100}", value)
        return value

    return shape


def _decimal(precision: int, scale: int) -> Callable[[Any], Decimal]:
    def shape(value: Any) -> Decimal:
        if isinstance(value, bytes):
            unscaled = int.from_bytes(value, signed=True)
            if abs(unscaled) < 10**precision:
                sign, digits, _ = Decimal(unscaled).as_tuple()
                return Decimal((sign, digits, -scale))  # scaleb() rounds to 28 digits
        elif type(value) in (int, Decimal):
            number = Decimal(value)
            exponent = number.as_tuple().exponent
            fits = not number or number.adjusted() < precision - scale
            if isinstance(exponent, int) and exponent >= -scale and fits:
                return number
        raise _expected(f"decimal({precision}, {scale})", value)

    return shape


def _or_null(inner: RecordType) -> Callable[[Any], Any]:
    return lambda value: None if value is None else inner.shape(value)


def _array(shape_item: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def shape(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _expected("array", value)
        return [shape_item(each) for each in value]

    return shape


def _map(shape_value: Callable[[Any], Any]) -> Callable[[Any], list[tuple[str, Any]]]:
    def shape(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _expected("map", value)
        return [(_text(name), shape_value(each)) for name, each in value.items()]

    return shape


def _fields(
    shapes: list[tuple[str, Callable[[Any], Any]]], defaults: Mapping[str, Any]
) -> Callable[[Any], dict[str, Any]]:
    def shape(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _expected("record", value)
        record = {}
        for name, shape_field in shapes:
            if name not in value and name not in defaults:
                raise ValueError(f"field {name} is missing")
            try:
                record[name] = shape_field(value[name] if name in value else defaults[name])
            except ValueError as error:
                raise ValueError(f"field {name}: {error}") from error
        return record

    return shape


# --- types without parts

_BOOLEAN: Final = RecordType(spark.BooleanType(), pa.bool_(), _truth)
_INT: Final = RecordType(spark.IntegerType(), pa.int32(), _whole(32))
_LONG: Final = RecordType(spark.LongType(), pa.int64(), _whole(64))
_FLOAT: Final = RecordType(spark.FloatType(), pa.float32(), _real)
_DOUBLE: Final = RecordType(spark.DoubleType(), pa.float64(), _real)
_STRING: Final = RecordType(spark.StringType(), pa.string(), _text)
_BINARY: Final = RecordType(spark.BinaryType(), pa.binary(), _bytes)
_DATE: Final = RecordType(spark.DateType(), pa.date32(), _whole(32))


def _moment(micros: int) -> RecordType:
    """Counts from 1970 in units of so many microseconds."""
    return RecordType(spark.TimestampType(), pa.timestamp("us", "UTC"), _whole(64, micros))


def _local_moment(micros: int) -> RecordType:
    return RecordType(spark.TimestampNTZType(), pa.timestamp("us"), _whole(64, micros))


_LEAVES: Final[Mapping[tuple[str, str], RecordType]] = {
    ("boolean", ""): _BOOLEAN,
    ("int", ""): _INT,
    ("int", "date"): _DATE,
    ("long", ""): _LONG,
    ("long", "timestamp-millis"): _moment(1000),
    ("long", "timestamp-micros"): _moment(1),
    ("long", "local-timestamp-millis"): _local_moment(1000),
    ("long", "local-timestamp-micros"): _local_moment(1),
    ("float", ""): _FLOAT,
    ("double", ""): _DOUBLE,
    ("string", ""): _STRING,
    ("bytes", ""): _BINARY,
    ("fixed", ""): _BINARY,
}
"""By type and logical type; a logical type that isn't here counts as its plain type."""


def _unpacked(kind: str, join: Callable[..., Any] = lambda value: value) -> Callable[..., Any]:
    codec = PACKED[kind]
    return lambda data: join(*codec.unpack(data))


_TIMES: Final = {  # in microseconds
    "INSTANT": (_moment(1), lambda seconds, nanos: seconds * 1_000_000 + nanos // 1000),
    "LOCAL_DATE_TIME": (_local_moment(1), lambda day, nanos: day * 86_400_000_000 + nanos // 1000),
}
_NUMBERS: Final = {
    "BOOLEAN": _BOOLEAN,
    "INT8": RecordType(spark.ByteType(), pa.int8(), _whole(8)),
    "INT16": RecordType(spark.ShortType(), pa.int16(), _whole(16)),
    "INT32": _INT,
    "INT64": _LONG,
    "FLOAT": _FLOAT,
    "DOUBLE": _DOUBLE,
    "DATE": _moment(1000),  # java.util.Date, a moment
    "TIMESTAMP": _moment(1000),
    "TIME": _LONG,
    "LOCAL_DATE": _DATE,
    "LOCAL_TIME": _LONG,
}
_PRIMITIVES: Final[Mapping[str, tuple[RecordType, Callable[[bytes], Any]]]] = {
    "STRING": (_STRING, bytes.decode),
    "BYTES": (_BINARY, bytes),
    **{kind: (type_, _unpacked(kind)) for kind, type_ in _NUMBERS.items()},
    **{kind: (type_, _unpacked(kind, join)) for kind, (type_, join) in _TIMES.items()},
}
