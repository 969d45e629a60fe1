"""Values as text, as HTTP carries them, to and from the bytes that typed clients exchange. Pure.

One codec per definition. ``encode`` takes the text a REST producer gives, ``decode`` gives what
JSON can show. Payloads come from anybody: whatever is wrong with one is a ``ValueCodecError``, and
none may cost more than its size allows.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from magnetar.broker.schema.definition import AVRO_FORMS, SchemaDefinition
from magnetar.broker.schema.key_value import is_separated, put_parts, split_key_value, take_parts
from magnetar.broker.schema.primitive_values import primitive_codec
from magnetar.broker.schema.value_errors import ValueCodecError


class ValueCodec(Protocol):
    """Of one definition; stateless."""

    def encode(self, text: str) -> bytes:
        """Raises ValueCodecError: the text is no value of the schema."""

    def decode(self, data: bytes) -> Any:
        """A value that JSON can hold. Raises ValueCodecError."""


@dataclass(frozen=True, slots=True)
class KeyValueCodec:
    """Key and value, each by its own schema.

    INLINE: both in the payload, each behind its length (-1: null). SEPARATED: the payload is the
    value, the key is the message's key in base64 (KeyValueSchemaImpl of apache/pulsar).
    """

    key: ValueCodec
    value: ValueCodec
    separated: bool

    def encode_pair(self, key_text: str | None, value_text: str) -> tuple[bytes | None, bytes]:
        """Key bytes for the metadata (None: the payload holds it, or there is none) and payload.

        Raises:
            ValueCodecError: one of the texts is no value of its schema.
        """
        key = None if key_text is None else self.key.encode(key_text)
        value = self.value.encode(value_text)
        if self.separated:
            return key, value
        return None, put_parts(key, value)

    def decode_pair(self, key: bytes | None, payload: bytes) -> dict[str, Any]:
        """``{"key": ..., "value": ...}``; ``key``: of the metadata, used when separated.

        Raises:
            ValueCodecError: not what this schema writes.
        """
        value: bytes | None = payload
        if not self.separated:
            try:
                key, value = take_parts(payload)
            except ValueError as error:
                raise ValueCodecError(f"key and value: {error}") from error
        return {
            "key": None if key is None else self.key.decode(key),
            "value": None if value is None else self.value.decode(value),
        }


def encode_message(
    codec: ValueCodec | KeyValueCodec, key: str | None, text: str
) -> tuple[bytes, str | None, bool]:
    """A message's payload, its key, and whether that is base64.

    Raises:
        ValueCodecError: the text, or the key, is no value of the schema.
    """
    if not isinstance(codec, KeyValueCodec):
        return codec.encode(text), key, False
    key_bytes, payload = codec.encode_pair(key, text)
    if key_bytes is not None:
        return payload, b64encode(key_bytes).decode(), True
    return payload, key, False


def decode_message(
    codec: ValueCodec | KeyValueCodec, key: str | None, payload: bytes, *, key_is_base64: bool
) -> Any:
    """The value of a message, of a pair with its key; raises ValueCodecError."""
    if not isinstance(codec, KeyValueCodec):
        return codec.decode(payload)
    if key is None or not codec.separated:
        return codec.decode_pair(None, payload)
    try:
        key_bytes = b64decode(key) if key_is_base64 else key.encode()
    except ValueError as error:
        raise ValueCodecError(f"the key is not base64: {error}") from error
    return codec.decode_pair(key_bytes, payload)


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
