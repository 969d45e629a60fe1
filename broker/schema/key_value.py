"""KEY_VALUE definitions: two schemas in one. Pure."""

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
    try:
        key, value = take_parts(definition.data)
    except ValueError as error:
        raise InvalidSchemaError(f"KEY_VALUE schema: {error}") from error
    return _part(definition, "key", key or b""), _part(definition, "value", value or b"")


def take_parts(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Key and value, each behind its length; None: null. Raises ValueError: the lengths are wrong.

    Source: KeyValueSchemaInfo and KeyValue.java of apache/pulsar.
    """
    parts: list[bytes | None] = []
    at = 0
    for name in ("key", "value"):
        if len(data) < at + _LENGTH.size:
            raise ValueError(f"it ends before the {name}'s length")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + max(length, 0)
        if at > len(data):
            raise ValueError(f"it ends within the {name}, of {length} bytes")
        parts.append(data[at - length : at] if length >= 0 else None)
    if at < len(data):
        raise ValueError(f"{len(data) - at} bytes behind the value")
    return parts[0], parts[1]


def put_parts(key: bytes | None, value: bytes) -> bytes:
    """The inverse of `take_parts`."""
    head = _LENGTH.pack(-1) if key is None else _LENGTH.pack(len(key)) + key
    return head + _LENGTH.pack(len(value)) + value


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
    texts = (parts["key"], parts["value"])
    return put_parts(*(t.encode() if isinstance(t, str) else orjson.dumps(t) for t in texts))


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
    for side, part, name in zip(("key", "value"), (key, value), names, strict=True):
        properties[f"{side}.schema.name"] = name
        properties[f"{side}.schema.type"] = "BYTES" if part.type == "NONE" else part.type
        properties[f"{side}.schema.properties"] = orjson.dumps(dict(part.properties)).decode()
    joined = SchemaDefinition("KEY_VALUE", put_parts(key.data, value.data), properties)
    split_key_value(joined)
    return joined
