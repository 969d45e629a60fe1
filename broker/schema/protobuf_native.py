"""PROTOBUF_NATIVE definitions: a descriptor set in JSON, and its root message. Pure."""

import base64
import binascii
from typing import Final

import orjson
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from magnetar.broker.errors import InvalidSchemaError

_INVALID: Final = "Invalid schema definition data for PROTOBUF_NATIVE schema"


def root_message(data: bytes) -> str:
    """Full name of the root message, which the descriptor set must define.

    Source: Pulsar's ProtobufNativeSchemaData: ``fileDescriptorSet`` (base64),
    ``rootMessageTypeName``, ``rootFileDescriptorName``.

    Raises:
        InvalidSchemaError: not that form, or the set doesn't define the root message.
    """
    try:
        document = orjson.loads(data)
        root, file_name = document["rootMessageTypeName"], document["rootFileDescriptorName"]
        encoded = base64.b64decode(document["fileDescriptorSet"], validate=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(encoded).file
    except (ValueError, TypeError, KeyError, binascii.Error, DecodeError) as error:
        raise InvalidSchemaError(f"{_INVALID}: {type(error).__name__}: {error}") from error
    names = {
        f"{file.package}.{message.name}".lstrip(".")
        for file in files
        if file.name == file_name
        for message in file.message_type
    }
    # A nested root is found by its outermost message.
    if not isinstance(root, str) or not any(
        root == name or root.startswith(name + ".") for name in names
    ):
        raise InvalidSchemaError(f"{_INVALID}: {file_name} doesn't define the root message {root}")
    return root
