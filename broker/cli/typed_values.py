"""Schemas of ``produce -vs`` and of ``consume -st auto_consume``: texts to bytes and back."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from magnetar.broker.cli.errors import CliError
from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import Message
from magnetar.broker.schema.definition import SchemaDefinition, definition_of
from magnetar.broker.schema.key_value import join_parts
from magnetar.broker.schema.value_errors import ValueCodecError
from magnetar.broker.schema.values import (
    KeyValueCodec,
    ValueCodec,
    codec_of,
    decode_message,
    encode_message,
)

_PLAIN = {"bytes": "BYTES", "string": "STRING"}


def parse_schema(text: str) -> SchemaDefinition | None:
    """The schema that ``bytes``, ``string``, ``avro:{...}`` or ``json:{...}`` names; None: bytes.

    Raises:
        CliError: none of these, or the definition is no JSON.
    """
    kind, separator, definition = text.partition(":")
    kind = kind.lower()
    if not separator and kind in _PLAIN:
        return None if kind == "bytes" else SchemaDefinition(_PLAIN[kind], b"")
    if kind not in ("avro", "json") or not separator:
        raise CliError(f"schema {text!r}: bytes, string, avro:{{...}} or json:{{...}} is expected")
    try:
        json.loads(definition)
    except ValueError as error:
        raise CliError(f"schema {kind}: not JSON: {error}") from error
    return SchemaDefinition(kind.upper(), definition.encode())


class Encoder:
    """Texts of messages into payloads, by the schema of a producer."""

    def __init__(self, value: str, key: str, key_value: str) -> None:
        """
        Args:
            value, key: as `parse_schema` takes them.
            key_value: "separated", "inline", or "": the key is just a text.
        Raises:
            CliError: a schema that can't be used.
        """
        self.definition = parse_schema(value)
        if key_value:
            parts = [parse_schema(text) or SchemaDefinition("BYTES", b"") for text in (key, value)]
            joined = join_parts(parts[0], parts[1], names=("key", "value"))
            properties = {**joined.properties, "kv.encoding.type": key_value.upper()}
            self.definition = replace(joined, properties=properties)
        self._codec = _codec(self.definition)

    def encode(self, text: bytes, key: str | None) -> tuple[bytes, str | None, bool]:
        """Payload, key, and whether the key is in base64.

        Raises:
            CliError: the text is no value of the schema.
        """
        if self._codec is None:
            return text, key, False
        try:
            payload, key, is_base64 = encode_message(self._codec, key, text.decode())
        except (ValueCodecError, UnicodeDecodeError) as error:
            raise CliError(f"{text[:80]!r} is no value of the schema: {error}") from error
        if isinstance(self._codec, KeyValueCodec) and not is_base64:
            key = None  # it is in the payload
        return payload, key, is_base64


class Decoder:
    """Payloads into what can be shown, by the schema that each message names."""

    def __init__(self, ask: Callable[[str, bytes], Awaitable[pb.Schema | None]]) -> None:
        """``ask(topic, version)`` gets a schema from the broker."""
        self._ask = ask
        self._codecs: dict[tuple[str, bytes], ValueCodec | KeyValueCodec | None] = {}

    async def decode(self, topic: str, message: Message) -> str:
        """JSON of the value; text of it where there is no schema or it doesn't fit."""
        asked = (topic, message.schema_version)
        if asked not in self._codecs:
            wire = await self._ask(*asked)
            self._codecs[asked] = None if wire is None else _codec(definition_of(wire))
        key, payload, codec = message.key, message.payload, self._codecs[asked]
        try:
            if codec is None:
                return payload.decode(errors="replace")
            value = decode_message(codec, key, payload, key_is_base64=message.key_is_base64)
        except ValueCodecError:
            return payload.decode(errors="replace")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _codec(definition: SchemaDefinition | None) -> ValueCodec | KeyValueCodec | None:
    if definition is None:
        return None
    try:
        return codec_of(definition)
    except InvalidSchemaError as error:
        raise CliError(f"the schema can't be used: {error}") from error
