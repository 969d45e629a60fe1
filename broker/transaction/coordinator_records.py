"""Core: entries of logs of coordinators and of pending acknowledgements.

docs/formats/transaction-logs.md
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from magnetar.broker.protocol.framing import varint
from magnetar.broker.transaction import transaction_records_pb2 as pb

_GROUP: Final = struct.pack(">HH", 0x0E01, 1)
"""In front of several records that are one entry."""
_ELEMENT: Final = b"\x0a"
"""Tag of ``TransactionRecords.records``."""
_JOINED_BYTES_MAX: Final = 1 << 16
"""Above, the next ones are an entry of their own."""


def entry_records(entry: bytes) -> list[pb.TransactionRecord]:
    """Records of one entry, in order.

    Raises:
        google.protobuf.message.DecodeError: it isn't an entry of such a log.
    """
    if entry.startswith(_GROUP):
        return list(pb.TransactionRecords.FromString(entry[len(_GROUP) :]).records)
    return [pb.TransactionRecord.FromString(entry)]


def acknowledgement_records(entry: bytes) -> list[pb.PendingAckRecord]:
    """The same of a log of pending acknowledgements."""
    if entry.startswith(_GROUP):
        return list(pb.PendingAckRecords.FromString(entry[len(_GROUP) :]).records)
    return [pb.PendingAckRecord.FromString(entry)]


def encode_group(records: Iterable[pb.TransactionRecord]) -> bytes:
    """One entry: all of the records are stored, or none."""
    return _GROUP + pb.TransactionRecords(records=records).SerializeToString()


def in_groups(entries: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """The same records in fewer entries of the log, each with the number of those it replaces."""
    start = size = 0
    for end, entry in enumerate(entries):
        if size > _JOINED_BYTES_MAX:
            yield _joined(entries[start:end])
            start, size = end, 0
        size += len(entry)
    yield _joined(entries[start:])


def _joined(entries: Sequence[bytes]) -> tuple[bytes, int]:
    if len(entries) == 1:
        return entries[0], 1
    parts = [_GROUP]
    for entry in entries:
        if entry.startswith(_GROUP):
            parts.append(entry[len(_GROUP) :])
        else:  # as protobuf writes an element of ``records``
            parts += (_ELEMENT, varint(len(entry)), entry)
    return b"".join(parts), len(entries)
