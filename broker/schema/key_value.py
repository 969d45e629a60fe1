"""KEY_VALUE definitions: two schemas in one. Pure."""

from __future__ import annotations

import struct
from typing import Any, Final

import orjson

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.schema.definition import SCHEMA_TYPES, SchemaDefinition

_LENGTH: Final = struct.Struct(">i")


def split_key_value(definition: SchemaDefinition) -> tuple[SchemaDefinition, SchemaDefinition]:
    """Key and value schema; a part without a type is BYTES.

    Raises:
        InvalidSchemaError: the lengths don't add up, or a part's type is unknown.
    """
    key, rest = _take(definition.data)
    value, rest = _take(rest)
    if rest:
        raise InvalidSchemaError(f"{len(rest)} bytes behind the value schema of a KEY_VALUE schema")
    return _part(definition, "key", key), _part(definition, "value", value)


def _take(data: bytes) -> tuple[bytes, bytes]:
    """The first length-prefixed part, and what follows it."""
    if len(data) < _LENGTH.size:
        raise InvalidSchemaError("KEY_VALUE schema ends before a part's length")
    length = int(_LENGTH.unpack_from(data)[0])
    length = max(length, 0)  # -1: null
    end = _LENGTH.size + length
    if end > len(data):
        raise InvalidSchemaError(f"KEY_VALUE schema ends within a part of {length} bytes")
    return data[_LENGTH.size : end], data[end:]


def _part(definition: SchemaDefinition, name: str, data: bytes) -> SchemaDefinition:
    kind = definition.properties.get(f"{name}.schema.type", "BYTES")
    if kind in ("NONE", "BYTES"):
        kind = "BYTES"
    elif kind not in SCHEMA_TYPES or kind == "KEY_VALUE":
        raise InvalidSchemaError(f"A KEY_VALUE schema's {name} can't be of type {kind}")
    return SchemaDefinition(kind, data)


def texts_of(definition: SchemaDefinition) -> dict[str, Any]:
    """Both parts as HTTP shows them: JSON objects, or an empty text for primitives."""
    key, value = split_key_value(definition)
    return {"key": _shown(key.data), "value": _shown(value.data)}


def _shown(data: bytes) -> Any:
    try:
        return orjson.loads(data) if data else ""
    except orjson.JSONDecodeError:
        return data.decode(errors="replace")


def join_texts(text: str) -> bytes:
    """The bytes of a KEY_VALUE definition out of HTTP's ``{"key": ..., "value": ...}``.

    Raises:
        InvalidSchemaError: not such an object.
    """
    try:
        parts = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidSchemaError(f"Invalid definition of a KEY_VALUE schema: {error}") from error
    if not isinstance(parts, dict) or not parts.keys() >= {"key", "value"}:
        raise InvalidSchemaError("A KEY_VALUE schema is a JSON object with key and value")
    data = b""
    for name in ("key", "value"):
        part = parts[name]
        encoded = part.encode() if isinstance(part, str) else orjson.dumps(part)
        data += _LENGTH.pack(len(encoded)) + encoded
    return data


def is_separated(definition: SchemaDefinition) -> bool:
    """Whether keys travel as the messages' keys, not in the payload (KeyValueEncodingType)."""
    return definition.properties.get("kv.encoding.type", "INLINE").upper() == "SEPARATED"


def join_parts(
    key: SchemaDefinition, value: SchemaDefinition, *, names: tuple[str, str]
) -> SchemaDefinition:
    """A KEY_VALUE definition as Pulsar's REST produce makes it: with separated keys.

    Raises:
        InvalidSchemaError: a part can't be one.
    """
    properties = {"kv.encoding.type": "SEPARATED"}
    data = b""
    for side, part, name in zip(("key", "value"), (key, value), names, strict=True):
        properties[f"{side}.schema.name"] = name
        properties[f"{side}.schema.type"] = "BYTES" if part.type == "NONE" else part.type
        properties[f"{side}.schema.properties"] = orjson.dumps(dict(part.properties)).decode()
        data += _LENGTH.pack(len(part.data)) + part.data
    joined = SchemaDefinition("KEY_VALUE", data, properties)
    split_key_value(joined)
    return joined
