"""Packets with another digest than CRC32C, as our bookies keep them.

A bookie of ours checks what it reads from its disks by the packet's CRC32C. Apache BookKeeper's
clients may give a ledger another digest, or none. Such a packet is kept whole within one of ours:
the digest that it came with is the beginning of the payload, and the highest bit of the length,
which no ledger reaches, says so.

``ledger id | entry id | LAC | length, highest bit set | CRC32C | foreign digest | payload``
"""

from struct import Struct
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, Buffer

DIGESTED_BYTES: Final = PACKET_HEADER_BYTES - 4
"""Of a packet before its digest, whichever that is."""
FOREIGN_DIGEST_BYTES_MAX: Final = 20
_LENGTH_AT: Final = 24
_MARK: Final = 0x80
_DIGEST: Final = Struct(">I")


def is_wrapped(packet: Buffer) -> bool:
    """True for what ``wrap_packet`` made. REQUIRES: a whole header."""
    return bool(packet[_LENGTH_AT] & _MARK)


def wrap_packet(packet: Buffer) -> bytes:
    """REQUIRES: at least ``DIGESTED_BYTES``, and not ``is_wrapped``."""
    head = bytearray(packet[:DIGESTED_BYTES])
    head[_LENGTH_AT] |= _MARK
    rest = packet[DIGESTED_BYTES:]
    return b"".join((head, _DIGEST.pack(crc32c(rest, crc32c(head))), rest))


def unwrap_packet(packet: Buffer) -> bytes:
    """What ``wrap_packet`` was given. REQUIRES: ``is_wrapped``."""
    head = bytearray(packet[:DIGESTED_BYTES])
    head[_LENGTH_AT] &= ~_MARK
    return b"".join((head, packet[PACKET_HEADER_BYTES:]))


def as_sent(packet: Buffer) -> Buffer:
    """A packet of a bookie as its writer sent it."""
    return unwrap_packet(packet) if is_wrapped(packet) else packet
