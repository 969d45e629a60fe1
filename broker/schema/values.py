"""Values as text, as HTTP carries them, to and from the bytes that typed clients exchange. Pure.

One codec per definition. ``encode`` takes the text a REST producer gives, ``decode`` gives what
JSON can show. Payloads come from anybody: whatever is wrong with one is a ``ValueCodecError``, and
none may cost more than its size allows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from magnetar.broker.schema.definition import AVRO_FORMS, SchemaDefinition
from magnetar.broker.schema.key_value import is_separated, split_key_value
from magnetar.broker.schema.primitive_values import primitive_codec
from magnetar.broker.schema.value_errors import ValueCodecError

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH: Final = struct.Struct(">i")


class ValueCodec(Protocol):
    """Of one definition; stateless."""

    def encode(self, text: str) -> bytes:
        """Raises ValueCodecError: the text is no value of the schema."""

    def decode(self, data: bytes) -> Any:
        """A value that JSON can hold. Raises ValueCodecError."""


class KeyValueCodec:
    """Key and value, each by its own schema.

    INLINE: both in the payload, each behind its length (-1: null). SEPARATED: the payload is the
    value, the key is the message's key in base64 (KeyValueSchemaImpl of apache/pulsar).
    """

    def __init__(self, key: ValueCodec, value: ValueCodec, *, separated: bool) -> None:
        self.key = key
        self.value = value
        self.separated = separated

    def encode_pair(self, key_text: str | None, value_text: str) -> tuple[bytes | None, bytes]:
        """Key bytes for the metadata (None: the payload holds it, or there is none) and payload.

        Raises:
            ValueCodecError: one of the texts is no value of its schema.
        """
        key = None if key_text is None else self.key.encode(key_text)
        value = self.value.encode(value_text)
        if self.separated:
            return key, value
        head = _LENGTH.pack(-1) if key is None else _LENGTH.pack(len(key)) + key
        return None, head + _LENGTH.pack(len(value)) + value

    def decode_pair(self, key: bytes | None, payload: bytes) -> dict[str, Any]:
        """``{"key": ..., "value": ...}``; ``key``: of the metadata, used when separated.

        Raises:
            ValueCodecError: not what this schema writes.
        """
        if self.separated:
            value: bytes | None = payload
        else:
            key, rest = _take(payload)
            value, rest = _take(rest)
            if rest:
                raise ValueCodecError(f"{len(rest)} bytes behind the value")
        return {
            "key": None if key is None else self.key.decode(key),
            "value": None if value is None else self.value.decode(value),
        }


def _take(data: bytes) -> tuple[bytes | None, bytes]:
    if len(data) < _LENGTH.size:
        raise ValueCodecError("key and value end before a length")
    length = int(_LENGTH.unpack_from(data)[0])
    if length < 0:
        return None, data[_LENGTH.size :]
    end = _LENGTH.size + length
    if end > len(data):
        raise ValueCodecError(f"key and value end within {length} bytes")
    return data[_LENGTH.size : end], data[end:]


def codec_of(definition: SchemaDefinition) -> ValueCodec | KeyValueCodec | None:
    """The codec of a valid definition; None: values of its type have no text form here.

    Takes milliseconds for a large definition: keep the result.

    Raises:
        InvalidSchemaError: the definition isn't one of its type.
    """
    if definition.type != "KEY_VALUE":
        return _part_codec(definition)
    key, value = map(_part_codec, split_key_value(definition))
    if key is None or value is None:
        return None
    return KeyValueCodec(key, value, separated=is_separated(definition))


def _part_codec(definition: SchemaDefinition) -> ValueCodec | None:
    if (codec := primitive_codec(definition.type)) is not None:
        return codec
    if definition.type == "PROTOBUF_NATIVE":
        # Imported when used: these libraries would be a tenth of the broker's start.
        from magnetar.broker.schema.protobuf_values import ProtobufCodec

        return ProtobufCodec(definition.data)
    # PROTOBUF (not native) names a class of the producer, not how its bytes are laid out.
    if definition.type in AVRO_FORMS - {"PROTOBUF"}:
        from magnetar.broker.schema.avro_values import AvroCodec, JsonCodec

        kind: Callable[[bytes], ValueCodec] = AvroCodec if definition.type == "AVRO" else JsonCodec
        return kind(definition.data)
    return None
