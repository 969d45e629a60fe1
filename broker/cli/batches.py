"""A batch as the admin API shows it: its messages, framed one behind the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

from google.protobuf.message import DecodeError

from magnetar.broker.cli.errors import CliError
from magnetar.broker.protocol import pulsar_api_pb2 as pb

_U32 = Struct(">I")


def messages_of_batch(data: bytes, count: int) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What is known of each message, and its payload.

    Raises:
        CliError: the server sent something else.
    """
    offset = 0
    for index in range(count):
        if offset + _U32.size > len(data):
            raise CliError(f"the batch ends before message {index} of {count}")
        (size,) = _U32.unpack_from(data, offset)
        start = offset + _U32.size + size
        try:
            single = pb.SingleMessageMetadata.FromString(data[offset + _U32.size : start])
        except DecodeError as error:
            raise CliError(f"message {index} of the batch: {error}") from error
        offset = start + single.payload_size
        facts: dict[str, Any] = {}
        if single.HasField("partition_key"):
            facts["key"] = single.partition_key
        if single.properties:
            facts["properties"] = {pair.key: pair.value for pair in single.properties}
        yield facts, data[start:offset]
