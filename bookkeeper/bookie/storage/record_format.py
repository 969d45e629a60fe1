"""The record: the unit of journal and entry log. Constants and functions for both.

``record = header (16 bytes, big-endian) | body``

======  ===  ============================================================================
word    u32  kind in the upper 4 bits, length of the body in the lower 28
crc     u32  CRC32C, see below
tag     u64  of the journal segment it was written to: segment id (32 bits), random (32 bits)
======  ===  ============================================================================

An ENTRY record's body is a packet. The CRC covers the tag, the word and the first 36 bytes of the
body: for an entry that is the packet header, whose digest covers the payload, so a payload is
hashed once in its life on the write path. Tag and word enter as the start value of the CRC,
``CRC32C(tag) XOR word``: a different start value always gives a different CRC.

The random half of the tag makes records of an older use of a recycled file, and records that a
malicious client hides in its payload, recognisable as not ours. docs/formats/journal.md draws this.
"""

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES

RECORD_HEADER: Final = Struct(">IIQ")
RECORD_HEADER_BYTES: Final = 16
LENGTH_MASK: Final = (1 << 28) - 1
KIND_SHIFT: Final = 28
_CRC_COVERS: Final = PACKET_HEADER_BYTES
_TAG: Final = Struct(">Q")

ENTRY: Final = 1  # body: a packet
LEDGER_KEY: Final = 2  # body: ledger_id u64, master key
FENCE: Final = 3  # body: ledger_id u64
EXPLICIT_LAC: Final = 4  # body: journal_format.encode_explicit_lac
GROUP: Final = 5  # body: bytes of the group u64, from this header to the end of its padding
PADDING: Final = 6  # body: zeros
LEDGER_CREATOR: Final = 7  # body: ledger_id u64, creator u64, flags u8
METADATA_MARK: Final = 8  # body: id of the embedded metadata store, its commit number u64

SMALL_ENTRY_BYTES: Final = 16 * 1024  # up to this, copying is cheaper than more objects
_ENTRY_BITS: Final = ENTRY << KIND_SHIFT
_ENTRY_HEADERS: Final = Struct(">IIQQQqQI")  # record header and packet header
_DIGESTED_BYTES: Final = PACKET_HEADER_BYTES - 4

assert RECORD_HEADER.size == RECORD_HEADER_BYTES


def make_tag(segment_id: int, nonce: int) -> int:
    """Tag of a journal segment; ``nonce`` is a random 32-bit number."""
    return (segment_id & 0xFFFFFFFF) << 32 | (nonce & 0xFFFFFFFF)


def crc_seed(tag: int) -> int:
    return crc32c(_TAG.pack(tag))


def encode_record(kind: int, tag: int, body: bytes) -> bytes:
    """One small record as a single buffer."""
    word = kind << KIND_SHIFT | len(body)
    crc = crc32c(body[:_CRC_COVERS], crc_seed(tag) ^ word)
    return RECORD_HEADER.pack(word, crc, tag) + body


def encode_entries(
    tag: int, seed: int, heads: Sequence[bytes], bodies: Sequence[bytes], sizes: Sequence[int]
) -> list[bytes]:
    """ENTRY records as buffers: one joined buffer, or header, head and body of each entry.

    Args:
        seed: ``crc_seed(tag)``.
        sizes: ``len(head) + len(body)`` of each entry.
    """
    pack, bits = RECORD_HEADER.pack, _ENTRY_BITS
    headers = [
        pack(bits | size, crc32c(head[:_CRC_COVERS], seed ^ (bits | size)), tag)
        for size, head in zip(sizes, heads, strict=True)
    ]
    buffers = list(chain.from_iterable(zip(headers, heads, bodies, strict=True)))
    if sum(sizes) <= SMALL_ENTRY_BYTES * len(sizes):
        return [b"".join(buffers)]
    return buffers


def encode_entry(tag: int, seed: int, head: bytes, body: bytes) -> bytes:
    """``encode_entries`` for one small entry, without its loops."""
    word = _ENTRY_BITS | (len(head) + len(body))
    crc = crc32c(head[:_CRC_COVERS], seed ^ word)
    return b"".join((RECORD_HEADER.pack(word, crc, tag), head, body))


def count_intact_entries(
    data: bytes | memoryview, sizes: Sequence[int], ledger_id: int, first_entry: int
) -> int:
    """How many ids of ``sizes`` (0: a hole) are intact from the start of ``data`` on.

    Checks of each record: length, CRC, ledger and entry id, payload digest.
    """
    view = memoryview(data)
    unpack, limit = _ENTRY_HEADERS.unpack_from, len(data)
    at = seed = 0
    last_tag = -1
    for index, size in enumerate(sizes):
        if size == 0:
            continue
        body = at + RECORD_HEADER_BYTES
        end = body + size
        if end > limit or size < PACKET_HEADER_BYTES:
            return index
        word, crc, tag, found_ledger, found_entry, _, _, digest = unpack(data, at)
        if tag != last_tag:
            seed, last_tag = crc_seed(tag), tag
        covered = data[body : body + _CRC_COVERS]
        if (
            word != _ENTRY_BITS | size
            or found_entry != first_entry + index
            or found_ledger != ledger_id
            or crc32c(covered, seed ^ word) != crc
            or crc32c(view[body + _CRC_COVERS : end], crc32c(covered[:_DIGESTED_BYTES])) != digest
        ):
            return index
        at = end
    return len(sizes)


def check_record(data: bytes | memoryview, offset: int) -> tuple[int, int, int] | None:
    """Kind, body length and tag of the record at ``offset``; None: there is no intact record.

    The CRC is checked, the payload's digest is not. The body may be cut short by the end of
    ``data``, as long as what the CRC covers is there.
    """
    body = offset + RECORD_HEADER_BYTES
    if body > len(data):
        return None
    word, crc, tag = RECORD_HEADER.unpack_from(data, offset)
    length = word & LENGTH_MASK
    covered = data[body : body + min(length, _CRC_COVERS)]
    if word >> KIND_SHIFT == 0 or len(covered) < min(length, _CRC_COVERS):
        return None
    if crc32c(covered, crc32c(_TAG.pack(tag)) ^ word) != crc:
        return None
    return word >> KIND_SHIFT, length, tag
