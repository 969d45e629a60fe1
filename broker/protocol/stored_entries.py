"""Entries of topics as they lie in ledgers, byte for byte as Apache Pulsar stores them.

    entry     [broker entry metadata] body
    body      0x0e01 | CRC32C u32 | metadata size u32 | MessageMetadata | payload
    broker entry metadata    0x0e02 | size u32 | BrokerEntryMetadata

Entries of earlier releases have the 32 bytes of `entry_header` in front of the body; they stay
readable. Forms: docs/formats/topic-entry.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.broker.protocol.entry_header import (
    HEAD_BYTES,
    later_header,
    make_header,
    message_counts,
)
from magnetar.broker.protocol.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata

Buffer: TypeAlias = bytes | memoryview

BROKER_METADATA_MAGIC: Final = b"\x0e\x02"
BROKER_METADATA_HEAD_BYTES: Final = 6
_OLD_MAGIC: Final = 0x4D  # of an earlier release's head; a size that begins so would be 1.3 GB
_MAGIC: Final = 0x0E
_BROKER_METADATA: Final = 0x02
_CHECKED: Final = 0x01
_U32 = Struct(">I").unpack_from
_BROKER_HEAD = Struct(">2sI")
_UNDECODABLE: Final = make_header(MessageMetadata(), 0)


def encode_broker_metadata(metadata: BrokerEntryMetadata) -> bytes:
    """Return what lies in front of a body that has it."""
    data = metadata.SerializeToString()
    return _BROKER_HEAD.pack(BROKER_METADATA_MAGIC, len(data)) + data


def decode_broker_metadata(head: bytes) -> BrokerEntryMetadata | None:
    """Return the broker entry metadata behind an entry's head; None: the entry has none."""
    if len(head) == HEAD_BYTES:
        return None
    return BrokerEntryMetadata.FromString(head[HEAD_BYTES + BROKER_METADATA_HEAD_BYTES :])


@dataclass(frozen=True, slots=True)
class PulsarEntries:
    """The `EntryForm` of topics.

    Attributes:
        is_clock_ahead: of a broker with a `VirtualClock`: the broker's timestamp is the publish
            time by that clock, and says how far ahead it was.
    """

    is_clock_ahead: bool = False

    def prefixes(self, heads: Sequence[bytes]) -> list[bytes]:
        if sum(map(len, heads)) == HEAD_BYTES * len(heads):
            return [b""] * len(heads)
        return [head[HEAD_BYTES:] for head in heads]

    def unstored_bytes(self) -> int:
        return HEAD_BYTES

    def split(self, entries: Sequence[Buffer]) -> tuple[list[bytes], list[Buffer]]:
        """An entry that isn't Pulsar's counts as one message, as in Pulsar: its consumer tells."""
        heads: list[bytes] = []
        bodies: list[Buffer] = []
        metadata = MessageMetadata()  # one for all: to make one takes as long as to parse it
        for entry in entries:
            try:
                head, at = _head_of(entry, len(entry), metadata, self.is_clock_ahead)
            except (DecodeError, ValueError):
                head, at = _UNDECODABLE, 0
            heads.append(head)
            bodies.append(entry[at:] if at else entry)
        return heads, bodies


PULSAR_ENTRIES: Final = PulsarEntries()


def without_head(entry: Buffer) -> tuple[Buffer, Buffer]:
    """What `PulsarEntries.prefixes` gives of one entry, and its body, without a look at that."""
    if len(entry) >= 10:
        if entry[0] == _OLD_MAGIC:
            return b"", entry[HEAD_BYTES:]
        if entry[0] == _MAGIC and entry[1] == _BROKER_METADATA:
            at = BROKER_METADATA_HEAD_BYTES + _U32(entry, 2)[0]
            if at + 10 <= len(entry):
                return entry[:at], entry[at:]
    return b"", entry


def leading_counts(prefixes: Sequence[Buffer], sizes: Sequence[int]) -> list[int]:
    """Messages of entries, from their first bytes; ends before one that they don't tell of.

    Args:
        sizes: of the whole entries.
    """
    heads: list[bytes] = []
    metadata = MessageMetadata()
    for prefix, size in zip(prefixes, sizes, strict=True):
        try:
            heads.append(_head_of(prefix, size, metadata, False)[0])
        except (DecodeError, ValueError):
            break
    return message_counts(heads)


def _head_of(
    known: Buffer, size: int, metadata: MessageMetadata, is_clock_ahead: bool
) -> tuple[bytes, int]:
    """An entry's head, and where its body begins.

    Args:
        known: the entry, or its beginning.
        size: of the entry.
        metadata: to parse into.

    Raises:
        DecodeError, ValueError: it isn't Pulsar's, or its metadata don't end in ``known``.
    """
    if len(known) < 10:
        raise ValueError(f"entry of {size} bytes")
    if known[0] == _OLD_MAGIC:
        return bytes(known[:HEAD_BYTES]), HEAD_BYTES
    at = 0
    if known[0] == _MAGIC and known[1] == _BROKER_METADATA:
        at = BROKER_METADATA_HEAD_BYTES + _U32(known, 2)[0]
        if at + 10 > len(known):
            raise ValueError(f"broker entry metadata of {at} bytes in an entry of {size}")
    start = at + 4
    if known[at] == _MAGIC and known[at + 1] == _CHECKED:
        start = at + 10
    end = start + _U32(known, start - 4)[0]
    if end > len(known):
        raise ValueError(f"metadata up to byte {end} in an entry of {size}")
    metadata.ParseFromString(known[start:end])  # type: ignore[arg-type] # upb takes any buffer
    head = make_header(metadata, size - end)
    if at:
        stored = bytes(known[:at])
        found = BrokerEntryMetadata.FromString(stored[BROKER_METADATA_HEAD_BYTES:])
        if found.broker_timestamp:  # this is an entry's time, as in Pulsar
            later_ms = found.broker_timestamp - metadata.publish_time
            head = later_header(head, later_ms, with_delivery=is_clock_ahead)
        head += stored
    return head, at
