"""Values of AVRO and JSON schemas. Pure.

A value is given in Avro's JSON encoding; a union's value also without the name of its branch, then
the first branch it fits counts. Bytes are texts of the characters U+0000 to U+00FF. Logical types
are their plain types: a ``timestamp-millis`` is a number. Fields that are left out have their
default.

Cost: every value read or written is a step, and steps are bounded by the bytes or characters given
(``avro_reading``, ``avro_shaping``).
"""

import io
import json
from typing import Any, Final

import fastavro
import orjson
from fastavro.schema import SchemaParseException, UnknownType

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.schema.avro_decoding import (
    DEPTH_MAX,
    EMPTY_VALUES_MAX,
    AvroReader,
    empty_values,
)
from magnetar.broker.schema.avro_definition import parse_avro, without_logical
from magnetar.broker.schema.avro_encoding import shape
from magnetar.broker.schema.value_errors import ValueCodecError

# One item at a time is read: a value of this size may take a second.
DECODE_BYTES_MAX: Final = 1024 * 1024
_NESTED: Final = (dict, list)
_UNPARSABLE: Final = (
    *(SchemaParseException, UnknownType),
    *(ValueError, TypeError, KeyError, AttributeError),
)


class NotAvroError(ValueError):
    """A definition isn't one of Avro's, or is nested too deeply."""


def parse_named(text: str | bytes, names: dict[str, Any], *, logical: bool = False) -> Any:
    """The definition as fastavro holds it, with every name spelled out.

    Args:
        names: gets the named types.
        logical: False: with every logical type as the plain type it stands for.
    Raises:
        NotAvroError: see the class.
    """
    try:
        document = json.loads(text)
        return fastavro.parse_schema(document if logical else without_logical(document), names)
    except _UNPARSABLE as error:
        raise NotAvroError(f"{error!r:.300}") from error
    except RecursionError as error:
        raise NotAvroError("it is nested too deeply") from error


def _named_schemas(data: bytes, type_name: str) -> tuple[Any, dict[str, Any]]:
    names: dict[str, Any] = {}
    try:
        return parse_named(data, names), names
    except NotAvroError as error:
        raise InvalidSchemaError(
            f"Values of this {type_name} schema can't be written: {error}"
        ) from error


def check_empty_values(data: bytes) -> None:
    """A payload must not stand for more than its bytes justify: refuse an AVRO definition that lets
    it. One that ``fastavro`` doesn't take passes: no value of it is read here.

    Raises:
        InvalidSchemaError: a part of it is more than ``EMPTY_VALUES_MAX`` values without a byte.
    """
    try:
        schema, names = _named_schemas(data, "AVRO")
    except InvalidSchemaError:
        return
    if (count := empty_values(schema, names)) > EMPTY_VALUES_MAX:
        told = str(count) if count < 1 << 60 else "very many"
        raise InvalidSchemaError(
            f"AVRO schema with {told} values that take no bytes in one place; at most"
            f" {EMPTY_VALUES_MAX} are accepted"
        )


def _parse_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueCodecError(f"{text!r:.60} is not JSON: {error}") from error


class AvroCodec:
    """Avro's binary form of one schema, without a header."""

    def __init__(self, data: bytes) -> None:
        """Raises InvalidSchemaError."""
        self._schema, self._names = _named_schemas(data, "AVRO")
        parse_avro(data, "AVRO")  # what fastavro doesn't see

    def encode(self, text: str) -> bytes:
        try:
            value = _parse_json(text)
            shaped = shape(self._names, self._schema, value, len(text), lenient=False)
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self._schema, shaped)
        except ValueCodecError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueCodecError(f"{text!r:.60} can't be written: {error!r:.200}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        if len(data) > DECODE_BYTES_MAX:
            raise ValueCodecError(f"{len(data)} bytes of AVRO; at most {DECODE_BYTES_MAX} are read")
        return AvroReader(self._names, data).read(self._schema)


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
            shape(self._names, self._schema, value, len(text), lenient=True)
        except RecursionError as error:
            raise ValueCodecError(f"{text!r:.60} is nested too deeply") from error
        return text.encode()

    def decode(self, data: bytes) -> Any:
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ValueCodecError(f"the payload is not JSON: {error}") from error
        if _is_deep(value):
            raise ValueCodecError(
                f"more than {DEPTH_MAX} objects and arrays within each other: JSON of that depth"
                " can be read, but not written"
            )
        return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        nested = [each for each in level if isinstance(each, _NESTED)]
        if not nested:
            return False
        level = [
            inner
            for each in nested
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return True
