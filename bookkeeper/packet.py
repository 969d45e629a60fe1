"""The packet: how one entry travels to a bookie, lies on its disks and comes back.

``packet = header (36 bytes, big-endian) | payload``, where the header is

==========  ====  =======================================================================
ledger_id   u64
entry_id    u64
lac         i64   the writer's last-add-confirmed when it first sent the packet; -1: none
length      u64   cumulative payload bytes of the ledger, this entry included
digest      u32   CRC32C over the 32 bytes above and the payload
==========  ====  =======================================================================

The payload is the appending layer's head followed by the body (docs/internals/contracts.md).
On the write path an entry is two buffers, ``packet header + head`` and ``body``, never joined.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

Buffer: TypeAlias = "bytes | bytearray | memoryview"

PACKET_HEADER: Final = Struct(">QQqQI")
PACKET_HEADER_BYTES: Final = 36
_DIGESTED = Struct(">QQqQ")  # the part of the header that the digest covers
_DIGESTED_BYTES: Final = 32
_DIGEST = Struct(">I")

assert PACKET_HEADER.size == PACKET_HEADER_BYTES
assert _DIGESTED.size == _DIGESTED_BYTES


class PacketHeader(NamedTuple):
    """A decoded packet header; field meanings in the module's table."""

    ledger_id: int
    entry_id: int
    lac: int
    length: int
    digest: int


def encode_head(
    ledger_id: int, entry_id: int, lac: int, length: int, head: bytes, body: Buffer
) -> bytes:
    """Packet header followed by ``head``, ready to be an element of ``AddRequest.heads``.

    Args:
        length: cumulative payload bytes of the ledger, this entry (``head`` and ``body``) included.
    """
    digested = _DIGESTED.pack(ledger_id, entry_id, lac, length)
    digest = crc32c(body, crc32c(head, crc32c(digested)))
    return b"".join((digested, _DIGEST.pack(digest), head))


def encode_heads(
    ledger_id: int,
    first_entry_id: int,
    lac: int,
    length: int,
    heads: Sequence[bytes],
    bodies: Sequence[Buffer],
) -> tuple[list[bytes], int]:
    """``encode_head`` for a run of consecutive entries: one call per batch.

    Args:
        length: cumulative payload bytes of the ledger before the first of these entries.

    Returns:
        The encoded heads and the ledger's length after the last entry.
    """
    pack_digested, pack_digest, join = _DIGESTED.pack, _DIGEST.pack, b"".join
    encoded = []
    for entry_id, (head, body) in enumerate(zip(heads, bodies, strict=True), first_entry_id):
        length += len(head) + len(body)
        digested = pack_digested(ledger_id, entry_id, lac, length)
        digest = crc32c(body, crc32c(digested + head))
        encoded.append(join((digested, pack_digest(digest), head)))
    return encoded, length


def decode_header(packet: Buffer) -> PacketHeader:
    """The header that it begins with.

    Raises:
        struct.error: fewer than 36 bytes.
    """
    return PacketHeader._make(PACKET_HEADER.unpack_from(packet))


def is_intact(packet: Buffer) -> bool:
    """True if a whole packet (header and payload) carries the digest of its own bytes."""
    if len(packet) < PACKET_HEADER_BYTES:
        return False
    (digest,) = _DIGEST.unpack_from(packet, _DIGESTED_BYTES)
    view = memoryview(packet)
    return bool(digest == crc32c(view[PACKET_HEADER_BYTES:], crc32c(view[:_DIGESTED_BYTES])))
