"""Definitions for tests, in few characters."""

import base64
import json
import struct
from typing import Any

from google.protobuf import descriptor_pb2

from magnetar.broker.schema.definition import SchemaDefinition


def record(*fields: Any, name: str = "R", **attributes: Any) -> dict[str, Any]:
    """A record; a field is its name (an int) or the whole JSON of it."""
    listed = [{"name": f, "type": "int"} if isinstance(f, str) else f for f in fields]
    return {"type": "record", "name": name, "fields": listed, **attributes}


def optional(name: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", "string"], "default": None}


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def avro(schema: Any, kind: str = "AVRO", **properties: str) -> SchemaDefinition:
    return SchemaDefinition(kind, json.dumps(schema).encode(), properties)


def plain(kind: str) -> SchemaDefinition:
    return SchemaDefinition(kind, b"")


def key_value(key: SchemaDefinition, value: SchemaDefinition) -> SchemaDefinition:
    parts = (struct.pack(">i", len(part.data)) + part.data for part in (key, value))
    types = {"key.schema.type": key.type, "value.schema.type": value.type}
    return SchemaDefinition("KEY_VALUE", b"".join(parts), types)


def protobuf_native(root: str, *messages: str, package: str = "p") -> SchemaDefinition:
    """A descriptor set of one file, with the named top-level messages."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="f.proto", package=package)
    for message in messages or (root.rpartition(".")[2],):
        file.message_type.add(name=message).field.add(name="a", number=1, type=5, label=1)
    document = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "f.proto",
    }
    return SchemaDefinition("PROTOBUF_NATIVE", json.dumps(document).encode())
