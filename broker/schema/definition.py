"""What a schema is: a type, its definition's bytes and properties; and its form on the wire.

Pure: no loop, clock or store.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.protocol import pulsar_api_pb2 as pb

_VERSION = struct.Struct(">q")
DEFINITION_BYTES_MAX: Final = 512 * 1024
"""Of one definition with its properties: what must be parsed while a client waits."""

AUTO_CONSUME: Final = "AUTO_CONSUME"
_NONE: Final = "NONE"
AVRO_FORMS: Final = frozenset({"AVRO", "JSON", "PROTOBUF"})
"""Types whose definition is an Avro schema (JSON since protocol version 13)."""

# PulsarApi.proto Schema.Type -> the name that HTTP and properties use
_NAMES: Final = {
    "None": _NONE,
    "String": "STRING",
    "Json": "JSON",
    "Protobuf": "PROTOBUF",
    "Avro": "AVRO",
    "Bool": "BOOLEAN",
    "Int8": "INT8",
    "Int16": "INT16",
    "Int32": "INT32",
    "Int64": "INT64",
    "Float": "FLOAT",
    "Double": "DOUBLE",
    "Date": "DATE",
    "Time": "TIME",
    "Timestamp": "TIMESTAMP",
    "KeyValue": "KEY_VALUE",
    "Instant": "INSTANT",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "ProtobufNative": "PROTOBUF_NATIVE",
    "AutoConsume": AUTO_CONSUME,
    "External": "EXTERNAL",
}
_NAME_BY_NUMBER: Final = {pb.Schema.Type.Value(wire): name for wire, name in _NAMES.items()}
_NUMBER_BY_NAME: Final = {name: number for number, name in _NAME_BY_NUMBER.items()}
SCHEMA_TYPES: Final = frozenset(_NUMBER_BY_NAME) - {AUTO_CONSUME, _NONE}
"""Names of the types that a registry can hold."""


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A schema as its author gave it. Properties don't count when two are compared."""

    type: str
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def size_bytes(self) -> int:
        return len(self.data) + sum(len(k) + len(v) for k, v in self.properties.items())


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version in a topic's history."""

    version: int
    """From 0, growing; deletion markers use up versions too."""
    timestamp_ms: int
    definition: SchemaDefinition
    deleted: bool = False
    """A marker: this version and those before it are no longer served."""


def definition_of(schema: pb.Schema) -> SchemaDefinition | None:
    """What a client sent; None when it is raw bytes, which is no schema.

    AUTO_CONSUME comes out as a type of its own: the caller decides.

    Raises:
        InvalidSchemaError: larger than the limit.
    """
    name = _NAME_BY_NUMBER[schema.type]
    if name == _NONE:
        return None
    definition = SchemaDefinition(
        name, schema.schema_data, {pair.key: pair.value for pair in schema.properties}
    )
    if definition.size_bytes > DEFINITION_BYTES_MAX:
        raise InvalidSchemaError(
            f"Schema of {definition.size_bytes} bytes; at most {DEFINITION_BYTES_MAX} are stored"
        )
    return definition


def fill_wire(target: pb.Schema, name: str, definition: SchemaDefinition) -> None:
    """Write a definition into a reply; ``name`` is the topic's, as Pulsar does."""
    target.name = name
    target.type = pb.Schema.Type.ValueType(_NUMBER_BY_NAME[definition.type])
    target.schema_data = definition.data
    for key, value in sorted(definition.properties.items()):
        target.properties.add(key=key, value=value)


def version_bytes(version: int | None) -> bytes:
    """The version as clients carry it: 8 bytes big-endian; empty: there is none."""
    return b"" if version is None else _VERSION.pack(version)


def parse_version(data: bytes) -> int | None:
    """The version in a client's bytes; None when they can't be one of ours."""
    return int(_VERSION.unpack(data)[0]) if len(data) == _VERSION.size else None
