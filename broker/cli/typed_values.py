"""Schemas of ``produce -vs`` and of ``consume -st auto_consume``: texts to bytes and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from magnetar.broker.cli.errors import CliError
from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.schema.definition import SchemaDefinition, definition_of
from magnetar.broker.schema.key_value import join_parts
from magnetar.broker.schema.value_errors import ValueCodecError
from magnetar.broker.schema.values import KeyValueCodec, ValueCodec, codec_of

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
        try:
            match self._codec:
                case None:
                    return text, key, False
                case KeyValueCodec():
                    key_bytes, payload = self._codec.encode_pair(key, text.decode())
                    if key_bytes is None:
                        return payload, None, False
                    return payload, base64.b64encode(key_bytes).decode(), True
                case codec:
                    return codec.encode(text.decode()), key, False
        except (ValueCodecError, UnicodeDecodeError) as error:
            raise CliError(f"{text[:80]!r} is no value of the schema: {error}") from error


class Decoder:
    """Payloads into what can be shown, by the schema that each message names."""

    def __init__(self, ask: Callable[[str, bytes], pb.Schema | None]) -> None:
        """``ask(topic, version)`` gets a schema from the broker."""
        self._ask = ask
        self._codecs: dict[tuple[str, bytes], ValueCodec | KeyValueCodec | None] = {}

    def decode(self, topic: str, version: bytes, key: str | None, payload: bytes) -> str:
        """JSON of the value; text of it where there is no schema or it doesn't fit."""
        asked = (topic, version)
        if asked not in self._codecs:
            wire = self._ask(topic, version)
            self._codecs[asked] = None if wire is None else _codec(definition_of(wire))
        codec = self._codecs[asked]
        try:
            match codec:
                case None:
                    return payload.decode(errors="replace")
                case KeyValueCodec():
                    key_bytes = None if key is None else base64.b64decode(key)
                    value: Any = codec.decode_pair(key_bytes, payload)
                case _:
                    value = codec.decode(payload)
        except (ValueCodecError, ValueError):
            return payload.decode(errors="replace")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _codec(definition: SchemaDefinition | None) -> ValueCodec | KeyValueCodec | None:
    if definition is None:
        return None
    try:
        return codec_of(definition)
    except InvalidSchemaError as error:
        raise CliError(f"the schema can't be used: {error}") from error
