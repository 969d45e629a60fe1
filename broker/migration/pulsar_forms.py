"""What brokers of Apache Pulsar store of logs and cursors, to and from our own values. Pure.

docs/formats/pulsar-metadata.md. A stored message is changed, not made anew, where there is one:
fields that we don't know stay in it.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from pyroaring import BitMap

from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.protocol import pulsar_api_pb2 as wire
from magnetar.broker.protocol.compression import CompressionError, compress, decompress
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.position import Position
from magnetar.metadata.store import VALUE_BYTES_MAX

NO_LEDGER: Final = -1
"""``cursorsLedgerId`` of a cursor whose position is in its node."""
_MAGIC: Final = 0x4778
_CONTAINER: Final = struct.Struct(">HI")
_MESSAGE_BYTES_MAX: Final = 256 << 20
_CODECS: Final = {
    pb.CompressionHeader.LZ4: wire.LZ4,
    pb.CompressionHeader.ZLIB: wire.ZLIB,
    pb.CompressionHeader.ZSTD: wire.ZSTD,
    pb.CompressionHeader.SNAPPY: wire.SNAPPY,
}
_WORD_BITS: Final = 64
_WORD_MASK: Final = (1 << _WORD_BITS) - 1

M = TypeVar("M", bound=Message)


def parse(kind: type[M], value: bytes, where: str) -> M:
    """A message as it is stored.

    Raises:
        PulsarFormatError: it isn't one.
    """
    try:
        return kind.FromString(value)
    except DecodeError as error:
        raise PulsarFormatError(f"{where}: not a {kind.__name__}: {error}") from error


def unpack(value: bytes, where: str) -> bytes:
    """The message in a node's value, which may be compressed whatever the brokers' settings say.

    Raises:
        PulsarFormatError: a container that can't be opened.
    """
    if len(value) < _CONTAINER.size or value[:2] != _MAGIC.to_bytes(2):
        return value  # no message begins with the magic
    _, size = _CONTAINER.unpack_from(value)
    end = _CONTAINER.size + size
    header = parse(pb.CompressionHeader, value[_CONTAINER.size : end], where)
    if header.compressionType == pb.CompressionHeader.NONE:
        return value[end:]
    codec = _CODECS[header.compressionType]
    try:
        return decompress(codec, value[end:], header.uncompressedSize, _MESSAGE_BYTES_MAX)
    except CompressionError as error:
        raise PulsarFormatError(f"{where}: {error}") from error


def pack(message: Message) -> bytes:
    """A node's value: plain, or with zstd if the node wouldn't hold it otherwise."""
    plain = message.SerializeToString()
    if len(plain) <= VALUE_BYTES_MAX:
        return plain
    header = pb.CompressionHeader(
        compressionType=pb.CompressionHeader.ZSTD, uncompressedSize=len(plain)
    ).SerializeToString()
    return _CONTAINER.pack(_MAGIC, len(header)) + header + compress(wire.ZSTD, plain)


def log_node(value: bytes, where: str) -> pb.ManagedLedgerNode:
    """
    Raises:
        PulsarFormatError: not the list of a managed ledger, or its ids don't ascend.
    """
    node = parse(pb.ManagedLedgerNode, unpack(value, where), where)
    ids = [each.ledgerId for each in node.ledgers]
    if any(one >= other for one, other in pairwise(ids)):
        raise PulsarFormatError(f"{where}: ledger ids don't ascend: {ids[:20]}")
    return node


def cursor_node(value: bytes, where: str) -> pb.ManagedCursorNode:
    """
    Raises:
        PulsarFormatError: not a cursor's node.
    """
    return parse(pb.ManagedCursorNode, unpack(value, where), where)


def image_of_node(node: pb.ManagedCursorNode, entries: Mapping[int, int]) -> CursorImage:
    """Position and acknowledgements in a cursor's node.

    Args:
        entries: number of entries by ledger, of the log's list.
    """
    return _image(
        (node.markDeleteLedgerId, node.markDeleteEntryId),
        _in_ranges(node.individualDeletedMessages, entries),
        node.batchedEntryDeletionIndexInfo,
        node.properties,
    )


def image_of_entry(entry: pb.CursorEntry, entries: Mapping[int, int]) -> CursorImage:
    """The same of the last entry of a cursor ledger, which may have both forms of ranges."""
    acked = _in_ranges(entry.individualDeletedMessages, entries)
    for each in entry.individualDeletedMessageRanges:
        _add(acked, each.ledgerId, _bits(mask_of(each.words)))
    return _image(
        (entry.ledgerId, entry.entryId),
        acked,
        entry.batchedEntryDeletionIndexInfo,
        entry.properties,
    )


def _image(
    mark_delete: Position,
    acked: dict[int, BitMap],
    sets: Iterable[pb.BatchIndexes],
    properties: Iterable[pb.LongProperty],
) -> CursorImage:
    image = CursorImage(mark_delete, acked, properties={p.name: p.value for p in properties})
    for each in sets:
        position = (each.position.ledgerId, each.position.entryId)
        # Pulsar leaves sets behind of batches that are acknowledged as a whole.
        if position <= mark_delete or position[1] in acked.get(position[0], ()):
            continue
        if mask := mask_of(each.deleteSet):
            image.batch_sets.setdefault(position[0], {})[position[1]] = mask
        else:
            _add(acked, position[0], BitMap([position[1]]))
    return image


def _in_ranges(ranges: Iterable[pb.PositionRange], entries: Mapping[int, int]) -> dict[int, BitMap]:
    acked: dict[int, BitMap] = {}
    for each in ranges:
        lower, upper = each.lower, each.upper
        first = lower.entryId + 1
        if lower.ledgerId != upper.ledgerId:
            _add(acked, lower.ledgerId, BitMap(range(first, entries.get(lower.ledgerId, 0))))
            for ledger_id, count in entries.items():
                if lower.ledgerId < ledger_id < upper.ledgerId:
                    _add(acked, ledger_id, BitMap(range(count)))
            first = 0
        _add(acked, upper.ledgerId, BitMap(range(first, upper.entryId + 1)))
    return acked


def _add(acked: dict[int, BitMap], ledger_id: int, found: BitMap) -> None:
    if found:
        acked[ledger_id] = acked.get(ledger_id, BitMap()) | found


def mask_of(words: Sequence[int]) -> int:
    """Java's ``BitSet.toLongArray()`` as one number; words of zero at the end are fine."""
    mask = 0
    for number, word in enumerate(words):
        mask |= (word & _WORD_MASK) << (_WORD_BITS * number)
    return mask


def words_of(mask: int) -> list[int]:
    """The reverse, in signed words."""
    words = list[int]()
    while mask:
        word = mask & _WORD_MASK
        words.append(word - (1 << _WORD_BITS) if word >> (_WORD_BITS - 1) else word)
        mask >>= _WORD_BITS
    return words


def _bits(mask: int) -> BitMap:
    found, start = BitMap(), 0
    while mask:
        low = mask & _WORD_MASK
        found |= BitMap(start + bit for bit in range(_WORD_BITS) if low >> bit & 1)
        mask >>= _WORD_BITS
        start += _WORD_BITS
    return found


def set_position(node: pb.ManagedCursorNode, image: CursorImage) -> None:
    """Puts a position and its acknowledgements into a cursor's node; the rest of it stays."""
    node.cursorsLedgerId = NO_LEDGER
    node.markDeleteLedgerId, node.markDeleteEntryId = image.mark_delete
    del node.individualDeletedMessages[:]
    for ledger_id in sorted(image.acked):
        for first, last in runs_of(image.acked[ledger_id]):
            node.individualDeletedMessages.add(
                lower=pb.NestedPosition(ledgerId=ledger_id, entryId=first - 1),
                upper=pb.NestedPosition(ledgerId=ledger_id, entryId=last),
            )
    del node.batchedEntryDeletionIndexInfo[:]
    for ledger_id, sets in sorted(image.batch_sets.items()):
        for entry_id, mask in sorted(sets.items()):
            node.batchedEntryDeletionIndexInfo.add(
                position=pb.NestedPosition(ledgerId=ledger_id, entryId=entry_id),
                deleteSet=words_of(mask),
            )
    del node.properties[:]
    for name, value in (image.properties or {}).items():
        node.properties.add(name=name, value=value)


def runs_of(entries: BitMap) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs = list[tuple[int, int]]()
    for entry in entries:
        if runs and runs[-1][1] == entry - 1:
            runs[-1] = (runs[-1][0], entry)
        else:
            runs.append((entry, entry))
    return runs


def properties_of(pairs: Iterable[pb.KeyValue | pb.StringProperty]) -> dict[str, str]:
    """Texts by name."""
    return {each.key if isinstance(each, pb.KeyValue) else each.name: each.value for each in pairs}
