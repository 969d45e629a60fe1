"""Core: entries of logs of coordinators and of pending acknowledgements.

docs/formats/transaction-logs.md
"""

import struct
from collections.abc import Iterable
from typing import Final

from magnetar.broker.transaction import transaction_records_pb2 as pb

_GROUP: Final = struct.pack(">HH", 0x0E01, 1)
"""In front of several records that are one entry."""


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
