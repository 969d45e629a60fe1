"""Values of AVRO and JSON schemas. Pure.

A value is given in Avro's JSON encoding; a union's value also without the name of its branch, then
the first branch it fits counts. Bytes are texts of the characters U+0000 to U+00FF. Logical types
are their plain types: a ``timestamp-millis`` is a number. Fields that are left out have their
default.

``fastavro`` writes (ten times faster than Apache's ``avro``), ``avro`` reads: ``fastavro`` ends the
process on a hostile payload of a recursive schema (its compiled reader has no depth limit).
"""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any, Final

import fastavro
import orjson
from avro.errors import AvroException
from avro.io import BinaryDecoder, DatumReader
from fastavro.schema import SchemaParseException, UnknownType

from broker.errors import InvalidSchemaError
from broker.service.schemas.avro_form import parse_avro, without_logical
from broker.service.schemas.value_errors import ValueCodecError

__all__ = ["AvroCodec", "JsonCodec"]

_INTS: Final = {"int": 2**31, "long": 2**63}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_READ_ERRORS: Final = (
    *(AvroException, ValueError, TypeError, KeyError, AttributeError, IndexError),
    *(RecursionError, OverflowError, MemoryError, struct.error),
)
_MISSING: Final = object()
_VARINT_BYTES_MAX: Final = 10
_STEPS_BASE: Final = 20_000
_STEPS_PER_CHARACTER: Final = 8
# Apache avro reads one item at a time: a value of this size may take a second.
DECODE_BYTES_MAX: Final = 1024 * 1024


def _named_schemas(data: bytes, type_name: str) -> tuple[Any, dict[str, Any]]:
    """The definition as fastavro holds it, with every name spelled out, and its named types."""
    names: dict[str, Any] = {}
    try:
        document = without_logical(json.loads(data))
        return fastavro.parse_schema(document, names), names
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as error:
        raise InvalidSchemaError(
            f"Values of this {type_name} schema can't be written: {error!r:.300}"
        ) from error
    except RecursionError as error:
        raise InvalidSchemaError(f"{type_name} schema is nested too deeply") from error


class _TooComplexError(Exception):
    """The value was given up: no branch of a union, however often tried, may catch this."""


class _Shaper:
    """JSON values to what fastavro writes, or why that can't be."""

    __slots__ = ("_left", "_lenient", "_names")

    def __init__(self, names: dict[str, Any], text_length: int, *, lenient: bool) -> None:
        """
        Args:
            text_length: of the value; what it may cost grows with it.
            lenient: as JSON readers are: fields without a default may be missing.
        """
        self._names = names
        self._lenient = lenient
        # Unions within unions: each level may try all branches, which is exponential in the depth.
        self._left = _STEPS_BASE + _STEPS_PER_CHARACTER * text_length

    def shape(self, schema: Any, value: Any, where: str) -> Any:
        """Raises ValueCodecError."""
        self._left -= 1
        if self._left < 0:
            raise _TooComplexError
        if isinstance(schema, list):
            return self._union(schema, value, where)
        if isinstance(schema, str):
            if (named := self._names.get(schema)) is not None:
                return self.shape(named, value, where)
            return self._primitive(schema, value, where)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, value, where)
        if kind == "array":
            items = schema["items"]
            values = _expect(value, list, "an array", where)
            return [self.shape(items, each, f"{where}[{n}]") for n, each in enumerate(values)]
        if kind == "map":
            values = _expect(value, dict, "an object", where)
            inner = schema["values"]
            return {key: self.shape(inner, each, f"{where}.{key}") for key, each in values.items()}
        if kind == "enum":
            if value not in schema["symbols"]:
                raise _wrong(where, f"one of {', '.join(schema['symbols'][:8])}", value)
            return value
        if kind == "fixed":
            if self._lenient:  # JSON libraries have their own idea of bytes
                return _expect(value, str, "a text", where)
            data = _raw(value, where)
            if len(data) != schema["size"]:
                raise _wrong(where, f"{schema['size']} bytes", value)
            return data
        return self.shape(kind, value, where)

    def _record(self, schema: Any, value: Any, where: str) -> dict[str, Any]:
        values = _expect(value, dict, "an object", where)
        shaped: dict[str, Any] = {}
        for field in schema["fields"]:
            name = field["name"]
            given = values.get(name, _MISSING)
            if given is _MISSING:
                given = field.get("default", _MISSING)
                if given is _MISSING:
                    if self._lenient:
                        continue
                    raise ValueCodecError(f"{where or 'the value'} lacks the field {name}")
            shaped[name] = self.shape(field["type"], given, f"{where}.{name}".lstrip("."))
        return shaped

    def _union(self, branches: list[Any], value: Any, where: str) -> Any:
        names = [_branch_name(branch) for branch in branches]
        if value is None and "null" in names:
            return None
        if isinstance(value, dict) and len(value) == 1:
            ((tag, inner),) = value.items()
            if tag in names:
                return tag, self.shape(branches[names.index(tag)], inner, f"{where}.{tag}")
        for name, branch in zip(names, branches, strict=True):
            try:
                return name, self.shape(branch, value, where)
            except ValueCodecError:
                continue
        raise _wrong(where, " or ".join(names), value)

    def _primitive(self, kind: str, value: Any, where: str) -> Any:
        if (limit := _INTS.get(kind)) is not None:
            number = _expect(value, int, f"an {kind}" if kind == "int" else f"a {kind}", where)
            if not -limit <= number < limit:
                raise _wrong(where, f"within the range of {kind}", value)
            return number
        if kind in ("float", "double"):
            if value in ("NaN", "Infinity", "-Infinity"):
                return float(value)
            number = _expect(value, int | float, f"a {kind}", where)
            if kind == "float" and abs(number) > 3.4028235677973366e38:
                raise _wrong(where, "within the range of float", value)
            return float(number)
        if kind == "string":
            return _expect(value, str, "a text", where)
        if kind == "bytes":
            return _expect(value, str, "a text", where) if self._lenient else _raw(value, where)
        if kind == "boolean":
            if not isinstance(value, bool):
                raise _wrong(where, "true or false", value)
            return value
        if value is not None:
            raise _wrong(where, "null", value)
        return None


def _branch_name(branch: Any) -> str:
    """As fastavro's pairs and Avro's JSON encoding name it."""
    if isinstance(branch, str):
        return branch
    kind: str = branch["type"]
    return str(branch["name"]) if kind in _NAMED else kind


def _expect(value: Any, kind: Any, what: str, where: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _wrong(where, what, value)
    return value


def _raw(value: Any, where: str) -> bytes:
    try:
        return str(_expect(value, str, "a text of bytes", where)).encode("latin-1")
    except UnicodeEncodeError as error:
        raise _wrong(where, "characters U+0000 to U+00FF, one for each byte", value) from error


def _wrong(where: str, wanted: str, value: Any) -> ValueCodecError:
    if isinstance(value, dict | list):  # not its text: that may be long, and made for each branch
        told = "an object" if isinstance(value, dict) else "an array"
    else:
        told = f"{value!r:.60}"
    return ValueCodecError(f"{where or 'the value'} must be {wanted:.200}, not {told}")


def _parse_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueCodecError(f"{text!r:.60} is not JSON: {error}") from error


class AvroCodec:
    """Avro's binary form of one schema, without a header."""

    def __init__(self, data: bytes) -> None:
        """Raises InvalidSchemaError."""
        self._schema, names = _named_schemas(data, "AVRO")
        self._names = names
        self._readable = parse_avro(data, "AVRO")
        self._endless = _has_weightless_items(self._schema, names, set())

    def encode(self, text: str) -> bytes:
        try:
            value = _parse_json(text)
            shaped = _Shaper(self._names, len(text), lenient=False).shape(self._schema, value, "")
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self._schema, shaped)
        except ValueCodecError:
            raise
        except _TooComplexError as error:
            raise ValueCodecError("unions within unions: too much to try") from error
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueCodecError(f"{text!r:.60} can't be written: {error!r:.200}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        if self._endless:
            raise ValueCodecError("arrays of items without bytes aren't read: they have no bound")
        if len(data) > DECODE_BYTES_MAX:
            raise ValueCodecError(f"{len(data)} bytes of AVRO; at most {DECODE_BYTES_MAX} are read")
        decoder = _BoundedDecoder(io.BytesIO(data))
        try:
            value = DatumReader(self._readable).read(decoder)
            return _shown(value)
        except _READ_ERRORS as error:
            raise ValueCodecError(f"not what this AVRO schema writes: {error!r:.200}") from error


class JsonCodec:
    """JSON text whose fields a definition in Avro's form describes.

    The text is stored as it is given. Readers ignore what they don't know, so only a field of a
    wrong type is refused.
    """

    def __init__(self, data: bytes) -> None:
        """Raises InvalidSchemaError."""
        self._schema, self._names = _named_schemas(data, "JSON")

    def encode(self, text: str) -> bytes:
        value = _parse_json(text)
        try:
            _Shaper(self._names, len(text), lenient=True).shape(self._schema, value, "")
        except _TooComplexError as error:
            raise ValueCodecError("unions within unions: too much to try") from error
        except RecursionError as error:
            raise ValueCodecError(f"{text!r:.60} is nested too deeply") from error
        return text.encode()

    def decode(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ValueCodecError(f"the payload is not JSON: {error}") from error


class _BoundedDecoder(BinaryDecoder):
    """The library's would shift an endless number for ever."""

    def read_long(self) -> int:
        number, shift = 0, 0
        for _ in range(_VARINT_BYTES_MAX):
            byte = self.read(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError("a number of more than ten bytes")

    read_int = read_long


def _shown(value: Any) -> Any:
    """What JSON can hold, in the form ``encode`` takes."""
    match value:
        case dict():
            return {key: _shown(each) for key, each in value.items()}
        case list():
            return [_shown(each) for each in value]
        case bytes():
            return value.decode("latin-1")
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def _has_weightless_items(schema: Any, names: dict[str, Any], seen: set[str]) -> bool:
    """Whether an array's items may take no bytes: ten bytes could claim 2**60 of them."""
    if isinstance(schema, str):
        if schema not in names or schema in seen:
            return False
        return _has_weightless_items(names[schema], names, seen)
    if isinstance(schema, list):
        return any(_has_weightless_items(branch, names, seen) for branch in schema)
    kind = schema["type"]
    if kind in ("record", "error"):
        seen.add(schema["name"])
        return any(_has_weightless_items(each["type"], names, seen) for each in schema["fields"])
    if kind == "array":
        items = schema["items"]
        return _weightless(items, names, set()) or _has_weightless_items(items, names, seen)
    if kind == "map":
        return _has_weightless_items(schema["values"], names, seen)
    return False if kind in ("enum", "fixed") else _has_weightless_items(kind, names, seen)


def _weightless(schema: Any, names: dict[str, Any], seen: set[str]) -> bool:
    if isinstance(schema, str):
        if schema not in names:
            return schema == "null"
        return schema not in seen and _weightless(names[schema], names, seen)
    if isinstance(schema, list):
        return False  # the branch's index takes a byte
    kind = schema["type"]
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if kind in ("record", "error"):
        seen.add(schema["name"])
        return all(_weightless(each["type"], names, seen) for each in schema["fields"])
    return False if kind in ("array", "map", "enum") else _weightless(kind, names, seen)
