"""Core: entries of logs of coordinators and of pending acknowledgements.

docs/formats/transaction-logs.md

Records of coordinators are written by hand, in the bytes that protobuf would write: an object for
each takes four times as long, and a transaction has four records.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from magnetar.broker.protocol.framing import varint
from magnetar.broker.transaction import transaction_records_pb2 as pb

_GROUP: Final = struct.pack(">HH", 0x0E01, 1)
"""In front of several records that are one entry."""
_ELEMENT: Final = b"\x0a"
"""Tag of ``TransactionRecords.records``."""
_JOINED_BYTES_MAX: Final = 1 << 16
"""Above, the next ones are an entry of their own."""
_UINT64: Final = (1 << 64) - 1


@lru_cache(maxsize=1 << 12)
def _number(number: int) -> bytes:
    """Sequences and the like come again and again."""
    return varint(number)


def encode_new(
    least: int, most: int, given_out: int, start_ms: int, timeout_ms: int, owner: str
) -> bytes:
    """``NEW`` of a `TransactionRecord`.

    Args:
        given_out: the highest sequence that was, as in all of these records.
    """
    return b"\x08\x00\x10%b\x18%b\x40%b\x48%b\x58%b%b" % (
        _number(least),
        _number(most),
        _number(timeout_ms & _UINT64),
        _number(start_ms),
        _number(given_out),
        _text(b"\x62", owner) if owner else b"",
    )


def encode_partitions(least: int, most: int, given_out: int, partitions: Iterable[str]) -> bytes:
    """``ADD_PARTITION``."""
    names = b"".join([_partition(each) for each in partitions])
    return b"\x08\x01\x10%b\x18%b%b\x58%b" % (
        _number(least),
        _number(most),
        names,
        _number(given_out),
    )


def encode_subscriptions(
    least: int, most: int, given_out: int, subscriptions: Iterable[tuple[str, str]]
) -> bytes:
    """``ADD_SUBSCRIPTION``."""
    names = b"".join([_subscription(*each) for each in subscriptions])
    return b"\x08\x02\x10%b\x18%b%b\x58%b" % (
        _number(least),
        _number(most),
        names,
        _number(given_out),
    )


def encode_status(least: int, most: int, given_out: int, expected: int, new: int) -> bytes:
    """``UPDATE``: a transaction has got another status."""
    return b"\x08\x03\x10%b\x18%b\x20%c\x28%c\x58%b" % (
        _number(least),
        _number(most),
        expected,
        new,
        _number(given_out),
    )


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return b"%b%b%b" % (tag, varint(len(data)), data)


@lru_cache(maxsize=1 << 10)
def _partition(name: str) -> bytes:
    return _text(b"\x32", name)


@lru_cache(maxsize=1 << 10)
def _subscription(topic: str, subscription: str) -> bytes:
    both = _text(b"\x0a", topic) + _text(b"\x12", subscription)
    return b"\x3a%b%b" % (varint(len(both)), both)


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


def encode_group(records: Iterable[bytes]) -> bytes:
    """One entry: all of the records are stored, or none."""
    return b"".join((_GROUP, *(part for each in records for part in _element(each))))


def _element(record: bytes) -> tuple[bytes, bytes, bytes]:
    """As protobuf writes an element of ``records``."""
    return _ELEMENT, varint(len(record)), record


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
        else:
            parts += _element(entry)
    return b"".join(parts), len(entries)
