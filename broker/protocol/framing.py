"""Framing of Pulsar's binary protocol, sans I/O: sizes, checksums and the body of payload commands.

Layouts (all integers big-endian):

    simple   [total u32][command size u32][BaseCommand]
    payload  [total u32][command size u32][BaseCommand] BODY
    BODY     [0x0e01][CRC32C u32][metadata size u32][MessageMetadata][payload]

``total`` counts the bytes after itself. The CRC covers metadata size, metadata and payload.
Everything from 0x0e01 on is what the broker stores and delivers unchanged.
Source: docs/spec/wire-protocol.md, "Frames".
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from crc32c import crc32c
from google.protobuf.message import Message

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.pulsar_api_pb2 import BaseCommand, MessageMetadata

MAX_MESSAGE_BYTES = 5_242_880
"""Default ``maxMessageSize``, announced in CONNECTED; clients check their payload against it."""
FRAME_PADDING_BYTES = 10_240
"""Headers come on top of the payload: a frame may be this much larger than the message limit."""
ENTRY_OVERHEAD_BYTES = 512
"""What a bookie's frame has around a message: ids, key, digest, the broker's own metadata."""
CHECKSUM_MAGIC = 0x0E01
NO_ID = 2**64 - 1
"""What the wire has for -1: no request, no message, the latest position."""
CHECKSUM_HEADER_BYTES = 6
"""Magic and CRC in front of the metadata size."""
METADATA_BYTES_MAX = 1024 * 1024
"""Of a message: a field may take two bytes, and to parse 5 MB of them takes 60 ms."""
METADATA_TOO_LARGE = f"Message metadata of more than {METADATA_BYTES_MAX} bytes"

_U32 = Struct(">I")
_TWO_U32 = Struct(">II")
_CHECKSUM_HEAD = Struct(">HI")


# PulsarApi.proto, BaseCommand: the number of a command's field is that of its type.
COMMAND_FIELDS: Final = {
    getattr(pb, field.message_type.name): (field.number, field.name)
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}
"""Number and name of a command's field in a ``BaseCommand``, by class."""


def stored_bytes_max(message_bytes_max: int) -> int:
    """Of a message with its metadata, given ``maxMessageSize``.

    A frame of bookies is as large as one of clients. A message that doesn't fit would end its
    ledger, as bookies close the connection.
    """
    return message_bytes_max + FRAME_PADDING_BYTES - ENTRY_OVERHEAD_BYTES


def varint(number: int) -> bytes:
    """A number as protobuf writes it. REQUIRES: not negative."""
    if number < 1 << 7:
        return bytes((number,))
    if number < 1 << 14:  # most of them; the loop takes four times as long
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    more = bytearray()
    while number > 0x7F:
        more.append(number & 0x7F | 0x80)
        number >>= 7
    more.append(number)
    return bytes(more)


COMMAND_HEADS: Final = {
    kind: pb.BaseCommand(type=number).SerializePartialToString() + varint(number << 3 | 2)  # type: ignore[arg-type] # by the table
    for kind, (number, _) in COMMAND_FIELDS.items()
}
"""By class, what is in front of a command's size: its type, and the tag of its field."""


class MalformedFrameError(Exception):
    """The peer sent bytes that are no frame of this protocol; the connection is to be closed."""


class FrameTooLargeError(MalformedFrameError):
    """A frame announces more bytes than the limit allows."""


def encode(command: Message, body: bytes = b"") -> bytes:
    """The frame of ``pb.CommandFlow(...)`` and the like; with a body that of a SEND.

    Written by hand: to put a command into a ``BaseCommand`` copies it, which takes longer.
    """
    data = command.SerializeToString()
    head = COMMAND_HEADS[type(command)] + varint(len(data))
    size = len(head) + len(data)
    return b"".join((_TWO_U32.pack(size + 4 + len(body), size), head, data, body))


def short_frame(head: bytes, data: bytes) -> bytes:
    """The same of a command that is bytes already. REQUIRES: they are fewer than 128.

    Args:
        head: of ``COMMAND_HEADS``.
    """
    command_bytes = len(head) + 1 + len(data)
    return b"%b%b%c%b" % (_TWO_U32.pack(command_bytes + 4, command_bytes), head, len(data), data)


def encode_body(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Checksum, metadata and payload as they are stored and sent."""
    return checked_body(metadata.SerializeToString(), payload)


def checked_body(metadata: bytes, payload: bytes = b"") -> bytes:
    """The same of metadata that are bytes already."""
    return with_checksum(b"".join((_U32.pack(len(metadata)), metadata, payload)))


def with_checksum(checked: bytes) -> bytes:
    """The same of all that the checksum covers."""
    return _CHECKSUM_HEAD.pack(CHECKSUM_MAGIC, crc32c(checked)) + checked


def parse_entry_body(entry_body: bytes | memoryview) -> tuple[MessageMetadata, memoryview]:
    """Metadata and payload of a stored entry body; the checksum, if there is one, is not verified.

    Raises:
        MalformedFrameError: the bytes are not an entry body.
    """
    view = memoryview(entry_body)
    start, end = 0, len(view)
    if end < 4:
        raise MalformedFrameError(f"payload command with {end} bytes behind the command")
    # Safe without a flag: a metadata size that begins with 0x0e01 would be over 234 MB.
    if view[0] == 0x0E and view[1] == 0x01:
        if end < 10:
            raise MalformedFrameError("payload command ends inside its checksum header")
        start = CHECKSUM_HEADER_BYTES
    metadata_from = start + 4
    payload_from = metadata_from + int.from_bytes(view[start:metadata_from])
    if payload_from > end:
        raise MalformedFrameError(
            f"metadata size {payload_from - metadata_from} exceeds the {end} bytes of the frame"
        )
    metadata = MessageMetadata.FromString(bytes(view[metadata_from:payload_from]))
    return metadata, view[payload_from:]


class FrameReader:
    """Splits a byte stream into frames; for clients, tools and tests.

    The broker's own connections split frames inside their receive buffer, to save a copy.
    """

    def __init__(self, frame_bytes_max: int = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[BaseCommand, bytes]]:
        """Yield each complete frame as (command, bytes behind the command).

        Raises:
            FrameTooLargeError: a frame announces more than the limit.
            MalformedFrameError: sizes contradict each other, or the command can't be decoded.
        """
        self._buffer += data
        while len(self._buffer) >= 4:
            (total,) = _U32.unpack_from(self._buffer)
            if total > self._frame_bytes_max:
                raise FrameTooLargeError(f"frame of {total} bytes, limit {self._frame_bytes_max}")
            if len(self._buffer) < 4 + total:
                return
            frame = bytes(self._buffer[4 : 4 + total])
            del self._buffer[: 4 + total]
            yield _decode_frame(frame)


def _decode_frame(frame: bytes) -> tuple[BaseCommand, bytes]:
    if len(frame) < 4:
        raise MalformedFrameError(f"frame of {len(frame)} bytes holds no command size")
    (size,) = _U32.unpack_from(frame)
    if 4 + size > len(frame):
        raise MalformedFrameError(f"command size {size} exceeds frame of {len(frame)} bytes")
    try:
        command = BaseCommand.FromString(frame[4 : 4 + size])
    except Exception as error:  # upb raises its own DecodeError type
        raise MalformedFrameError(f"command can't be decoded: {error}") from error
    return command, frame[4 + size :]
