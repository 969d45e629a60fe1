"""Entries of compacted ledgers, as Apache Pulsar writes them.

    entry    id size u32 | MessageIdData | size u32 | entry of the topic

All integers are big-endian; the entry of the topic is as it lies in the topic's ledger.
"""

from collections.abc import Awaitable, Callable, Sequence
from struct import Struct

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.errors import LedgerError
from magnetar.broker.protocol.pulsar_api_pb2 import MessageIdData
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.entry_form import EntryForm
from magnetar.managed_ledger.position import Position

_U32 = Struct(">I")


class CompactedEntryError(LedgerError):
    """Bytes that are no entry of a compacted ledger."""


def encode_compacted(position: Position, partition: int, prefix: Buffer, body: Buffer) -> bytes:
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
    position, first, end = decode_compacted_head(entry)
    if end > len(entry):
        raise CompactedEntryError(f"{end - first} bytes behind byte {first} of {len(entry)}")
    return position, entry[first:end]


def decode_compacted_head(entry: Buffer) -> tuple[Position, int, int]:
    """Position of the topic's entry, and where its stored form begins and ends.

    Args:
        entry: a beginning of it is enough.

    Raises:
        CompactedEntryError: it is damaged, or the beginning is too short.
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
    first = at + 4
    position = (message_id.ledgerId, message_id.entryId)
    return position, first, first + _U32.unpack_from(entry, at)[0]


def batches_of(found: Sequence[tuple[Position, Buffer]], form: EntryForm) -> list[EntryBatch]:
    """Decoded entries in the form of the topic's log, by runs of consecutive positions."""
    heads, bodies = form.split([stored for _, stored in found])
    batches: list[EntryBatch] = []
    for (position, _), head, body in zip(found, heads, bodies, strict=True):
        last = batches[-1] if batches else None
        if last is not None and (last.ledger_id, last.last + 1) == position:
            last.heads.append(head)
            last.bodies.append(body)
        else:
            batches.append(EntryBatch(*position, [head], [body]))
    return batches


async def first_not_before(count: int, is_before: Callable[[int], Awaitable[bool]]) -> int:
    """Number of the first of so many entries that isn't before what is looked for; the count: all
    are.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if await is_before(middle):
            low = middle + 1
        else:
            high = middle
    return low
