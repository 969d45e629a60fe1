"""Entries of compacted ledgers, as Apache Pulsar writes them.

    entry    id size u32 | MessageIdData | size u32 | entry of the topic

All integers are big-endian; the entry of the topic is as it lies in the topic's ledger.
"""

from struct import Struct

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.errors import LedgerError
from magnetar.broker.protocol.pulsar_api_pb2 import MessageIdData
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position

_U32 = Struct(">I")


class CompactedEntryError(LedgerError):
    """Bytes that are no entry of a compacted ledger."""


def encode_compacted(position: Position, partition: int, prefix: bytes, body: Buffer) -> bytes:
    """Return the entry that stands for an entry of the topic.

    Args:
        partition: index of the topic's partition, -1: it has none.
        prefix: what lies before the body in the topic's ledger.
    """
    message_id = MessageIdData(ledgerId=position[0], entryId=position[1], partition=partition)
    packed = message_id.SerializeToString()
    size = len(prefix) + len(body)
    return b"".join((_U32.pack(len(packed)), packed, _U32.pack(size), prefix, body))


def decode_compacted(entry: Buffer) -> tuple[Position, Buffer]:
    """Position and stored form of the topic's entry.

    Raises:
        CompactedEntryError: it is damaged.
    """
    if len(entry) < 8:
        raise CompactedEntryError(f"compacted entry of {len(entry)} bytes")
    at = 4 + _U32.unpack_from(entry)[0]
    if at + 4 > len(entry):
        raise CompactedEntryError(f"id up to byte {at} in a compacted entry of {len(entry)}")
    try:
        message_id = MessageIdData.FromString(bytes(entry[4:at]))
    except DecodeError as error:
        raise CompactedEntryError(f"id of a compacted entry: {error}") from error
    size = _U32.unpack_from(entry, at)[0]
    if at + 4 + size > len(entry):
        raise CompactedEntryError(f"{size} bytes behind byte {at} of {len(entry)}")
    return (message_id.ledgerId, message_id.entryId), entry[at + 4 : at + 4 + size]
