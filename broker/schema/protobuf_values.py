"""Values of PROTOBUF_NATIVE schemas: JSON in protobuf's own mapping. Pure."""

import base64
from graphlib import TopologicalSorter
from typing import Any, Final

import orjson
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.schema.protobuf_native import root_message
from magnetar.broker.schema.value_errors import ValueCodecError

_DEPTH_MAX: Final = 100
DECODE_BYTES_MAX: Final = 1024 * 1024


class ProtobufCodec:
    """Messages of a definition's root type, in a descriptor pool of its own."""

    def __init__(self, data: bytes) -> None:
        """Raises InvalidSchemaError: the descriptor set doesn't hold together."""
        root = root_message(data)
        encoded = base64.b64decode(orjson.loads(data)["fileDescriptorSet"])
        files = {
            each.name: each for each in descriptor_pb2.FileDescriptorSet.FromString(encoded).file
        }
        imports = {name: files.keys() & each.dependency for name, each in files.items()}
        pool = DescriptorPool()
        try:
            for name in TopologicalSorter(imports).static_order():
                pool.Add(files[name])
            descriptor = pool.FindMessageTypeByName(root)
            self._class: Any = message_factory.GetMessageClass(descriptor)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidSchemaError(
                f"Values of this PROTOBUF_NATIVE schema can't be written: {error!r:.300}"
            ) from error
        self._pool = pool
        self._is_object = not root.startswith("google.protobuf.")

    def encode(self, text: str) -> bytes:
        message = self._class()
        if text.lstrip()[:1] == "[" and self._is_object:  # the library takes [] for a message
            raise ValueCodecError(f"{text!r:.60} is an array, not an object")
        try:
            json_format.Parse(
                text, message, descriptor_pool=self._pool, max_recursion_depth=_DEPTH_MAX
            )
            return bytes(message.SerializeToString())
        except (json_format.ParseError, EncodeError, ValueError, TypeError) as error:
            raise ValueCodecError(f"{text!r:.60} can't be written: {error!s:.200}") from error

    def decode(self, data: bytes) -> Any:
        if len(data) > DECODE_BYTES_MAX:
            raise ValueCodecError(
                f"{len(data)} bytes of PROTOBUF_NATIVE; at most {DECODE_BYTES_MAX} are read"
            )
        try:
            return json_format.MessageToDict(
                self._class.FromString(data),
                preserving_proto_field_name=True,
                descriptor_pool=self._pool,
            )
        except (DecodeError, json_format.Error, ValueError, TypeError, RecursionError) as error:
            raise ValueCodecError(
                f"not what this PROTOBUF_NATIVE schema writes: {error!s:.200}"
            ) from error
