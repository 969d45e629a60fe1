"""Digests of entries as BookKeeper writes them, and packets with ours instead.

A stored packet is ``ledger id 8 | entry id 8 | LAC 8 | length 8 | digest | payload``. The digest
covers the 32 bytes before it and the payload. With CRC32C that is our own packet (``packet.py``);
with any other digest the two functions at the end turn one into the other, so that nothing above
needs to know. Layouts: docs/formats/bookkeeper-protocol.md.
"""

import hashlib
import hmac
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, TypeAlias

from crc32c import crc32c

from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, Buffer
from magnetar.bookkeeper.wrapped_packet import (
    FOREIGN_DIGEST_BYTES_MAX,
    is_wrapped,
    unwrap_packet,
    wrap_packet,
)

DIGESTED_BYTES: Final = 32
"""Header of a packet before its digest."""
_CRC32: Final = Struct(">Q")
_CRC32C: Final = Struct(">I")
_LAC: Final = Struct(">qq")


class DigestType(Enum):
    """The names and numbers of ledger metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of one ledger's packets."""

    type: DigestType
    size: int
    """Bytes."""
    of: Callable[[Buffer, Buffer], bytes]
    """Of what comes before it and of the payload."""

    @classmethod
    def create(cls, digest_type: DigestType, password: bytes) -> "Digest":
        """``password``: of the ledger; HMAC has a key made of it."""
        match digest_type:
            case DigestType.CRC32C:
                return CRC32C
            case DigestType.CRC32:
                return _OF_CRC32
            case DigestType.DUMMY:
                return _NONE
        key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()

        def of(head: Buffer, payload: Buffer) -> bytes:
            return hmac.digest(key, b"".join((head, payload)), "sha1")

        return cls(digest_type, 20, of)


DigestOf: TypeAlias = Callable[[int], Digest]
"""Of a ledger's id."""

CRC32C: Final = Digest(
    DigestType.CRC32C, 4, lambda head, payload: _CRC32C.pack(crc32c(payload, crc32c(head)))
)
_OF_CRC32: Final = Digest(
    DigestType.CRC32, 8, lambda head, payload: _CRC32.pack(zlib.crc32(payload, zlib.crc32(head)))
)
_NONE: Final = Digest(DigestType.DUMMY, 0, lambda _head, _payload: b"")
NO_PACKET: Final = b""
"""Instead of a packet that doesn't fit its digest: corrupt for everybody who reads it."""


def to_stored(digest: Digest, packet_head: bytes, body: Buffer) -> bytes:
    """A packet of ours, as an add request has it, with this digest."""
    head, payload = packet_head[:DIGESTED_BYTES], packet_head[PACKET_HEADER_BYTES:] + body
    return b"".join((head, digest.of(head, payload), payload))


def from_stored(digest: Digest, stored: Buffer) -> bytes:
    """Our packet, or ``NO_PACKET``."""
    begin = DIGESTED_BYTES + digest.size
    if len(stored) < begin:
        return NO_PACKET
    head, payload = bytes(stored[:DIGESTED_BYTES]), bytes(stored[begin:])
    if not hmac.compare_digest(digest.of(head, payload), stored[DIGESTED_BYTES:begin]):
        return NO_PACKET
    return b"".join((head, CRC32C.of(head, payload), payload))


def to_kept(digest: Digest, packet_head: bytes, body: Buffer) -> bytes:
    """A packet of ours as a bookie of ours keeps it, when the ledger's digest is this one."""
    if digest is CRC32C:
        return packet_head + body
    return wrap_packet(to_stored(digest, packet_head, body))


def from_kept(digest: Digest, kept: Buffer) -> bytes:
    """As ``from_stored``. A packet that isn't wrapped came from a client of ours that knew no
    digests but CRC32C."""
    if digest is CRC32C or not is_wrapped(kept):
        return bytes(kept)
    return from_stored(digest, unwrap_packet(kept))


def encode_lac(digest: Digest, ledger_id: int, lac: int) -> bytes:
    """An explicit last-add-confirmed as it is sent, kept and given back."""
    head = _LAC.pack(ledger_id, lac)
    return head + digest.of(head, b"")


def foreign_lac_digest(ledger_id: int, lac: int, body: bytes) -> bytes | None:
    """What stands behind the LAC in its body; None: CRC32C, or no digest that there is."""
    digest = body[_LAC.size :]
    if body[: _LAC.size] != _LAC.pack(ledger_id, lac) or len(digest) > FOREIGN_DIGEST_BYTES_MAX:
        return None
    return None if body == encode_lac(CRC32C, ledger_id, lac) else digest


def encode_kept_lac(ledger_id: int, lac: int, foreign_digest: bytes | None) -> bytes:
    """A LAC's body, from what ``foreign_lac_digest`` said of it."""
    if foreign_digest is None:
        return encode_lac(CRC32C, ledger_id, lac)
    return _LAC.pack(ledger_id, lac) + foreign_digest


def decode_lac(digest: Digest, ledger_id: int, body: Buffer) -> int:
    """The last-add-confirmed; -1: it doesn't fit its digest, or is another ledger's."""
    head = bytes(body[: _LAC.size])
    if len(body) != _LAC.size + digest.size:
        return -1
    if not hmac.compare_digest(digest.of(head, b""), body[_LAC.size :]):
        return -1
    found, lac = _LAC.unpack(head)
    return int(lac) if found == ledger_id else -1
