"""The frames of a read: one request, one reply. No I/O (docs/formats)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, unpack_from
from struct import pack as struct_pack
from typing import Final

from bookkeeper.transport import ReadReply
from bookkeeper.transport_grpc.errors import FrameError

#: ledger u64, first entry u64, count u32, bytes u32, flags u8; the master key follows
READ_REQUEST: Final = Struct(">QQIIB")
FLAG_FENCE: Final = 1
READ_REPLY: Final = Struct(">BIQ")  # code u8, count u32, first entry u64; sizes u32 and packets
KEY_BYTES_MAX: Final = 255
_U32_MAX: Final = (1 << 32) - 1


@dataclass(slots=True)
class ReadRequest:
    """Arguments of ``BookieClient.read_entries``."""

    ledger_id: int
    first: int
    count_max: int
    bytes_max: int
    fence: bool
    master_key: bytes


def encode_read_request(request: ReadRequest) -> bytes:
    """Limits above what 32 bits hold are cut to that."""
    return (
        READ_REQUEST.pack(
            request.ledger_id,
            request.first,
            min(request.count_max, _U32_MAX),
            min(request.bytes_max, _U32_MAX),
            FLAG_FENCE if request.fence else 0,
        )
        + request.master_key
    )


def decode_read_request(frame: bytes) -> ReadRequest:
    """Raises: FrameError: no read request."""
    if not READ_REQUEST.size <= len(frame) <= READ_REQUEST.size + KEY_BYTES_MAX:
        raise FrameError(f"a read request of {len(frame)} bytes")
    ledger_id, first, count_max, bytes_max, flags = READ_REQUEST.unpack_from(frame)
    if flags & ~FLAG_FENCE:
        raise FrameError(f"unknown flags {flags} in a read request")
    if ledger_id >> 63 or first >> 63:
        raise FrameError(f"ledger {ledger_id}, entry {first} in a read request")
    key = frame[READ_REQUEST.size :]
    return ReadRequest(ledger_id, first, count_max, bytes_max, bool(flags & FLAG_FENCE), key)


def encode_read_reply(code: int, first: int, packets: Sequence[bytes | memoryview]) -> bytes:
    count = len(packets)
    sizes = struct_pack(f">{count}I", *map(len, packets))
    return b"".join((READ_REPLY.pack(code, count, first), sizes, *packets))


def decode_read_reply(frame: bytes) -> ReadReply:
    """The packets are views of ``frame``.

    Raises:
        FrameError: no read reply.
    """
    if len(frame) < READ_REPLY.size:
        raise FrameError(f"a read reply of {len(frame)} bytes")
    code, count, first = READ_REPLY.unpack_from(frame)
    offset = READ_REPLY.size + 4 * count
    if offset > len(frame):
        raise FrameError(f"a read reply of {len(frame)} bytes for {count} packets")
    sizes = unpack_from(f">{count}I", frame, READ_REPLY.size)
    if offset + sum(sizes) != len(frame):
        raise FrameError("a read reply whose packets don't fill it")
    view = memoryview(frame)
    packets: list[bytes | memoryview] = []
    for size in sizes:
        packets.append(view[offset : offset + size])
        offset += size
    return ReadReply(code, first, packets)
