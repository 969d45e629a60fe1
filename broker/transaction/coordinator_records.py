"""Core: entries of the log of a coordinator. docs/formats/transaction-logs.md."""

import struct
from collections.abc import Iterable
from typing import Final

from magnetar.broker.transaction import transaction_records_pb2 as pb

GROUP: Final = struct.pack(">HH", 0x0E01, 1)
"""In front of several records that are one entry, also in logs of pending acknowledgements."""


def entry_records(entry: bytes) -> list[pb.TransactionRecord]:
    """Records of one entry, in order.

    Raises:
        google.protobuf.message.DecodeError: it isn't an entry of such a log.
    """
    if entry.startswith(GROUP):
        return list(pb.TransactionRecords.FromString(entry[len(GROUP) :]).records)
    return [pb.TransactionRecord.FromString(entry)]


def encode_group(records: Iterable[pb.TransactionRecord]) -> bytes:
    """One entry: all of the records are stored, or none."""
    return GROUP + pb.TransactionRecords(records=records).SerializeToString()
