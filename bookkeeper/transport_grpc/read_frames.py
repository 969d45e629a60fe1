"""The frames of a read: one request, one reply. No I/O (docs/formats)."""

from collections.abc import Sequence
from struct import Struct, unpack_from
from struct import pack as struct_pack
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import (
    ALL_ENTRIES,
    ReadReply,
    ReadRequest,
    Stripe,
    TruncatedReply,
)

#: ledger u64, first entry u64, count u32, bytes u32, flags u8; what the flag says and the master
#: key follow
READ_REQUEST: Final = Struct(">QQIIB")
FLAG_FENCE: Final = 1
# Bookies from before these refuse: they know no such flags.
FLAG_HEADS: Final = 2
FLAG_STRIPE: Final = 4
FLAG_CREATOR: Final = 8  # beside any of these: the creator's token is right before the master key
CUT: Final = Struct(">IHHH")  # head bytes u32; cycle, offset and width of the stripe, u16 each
STRIPE: Final = Struct(">HHH")  # the same without heads
READ_REPLY: Final = Struct(">BIQ")  # code u8, count u32, first entry u64; sizes u32 and packets
HEADS_CRC: Final = Struct(">I")  # in front of a reply with heads: CRC32C of the rest
CREATOR: Final = Struct(">Q")
KEY_BYTES_MAX: Final = 255
_MORE_BYTES: Final = {0: 0, FLAG_FENCE: 0, FLAG_HEADS: CUT.size, FLAG_STRIPE: STRIPE.size}
_U32_MAX: Final = (1 << 32) - 1


def encode_read_request(request: ReadRequest) -> bytes:
    """Limits above what 32 bits hold are cut to that."""
    stripe, flags, more = request.stripe, FLAG_FENCE if request.fence else 0, b""
    if request.head_bytes is not None:
        flags |= FLAG_HEADS
        head_bytes = min(request.head_bytes, _U32_MAX)
        more = CUT.pack(head_bytes, stripe.cycle, stripe.offset, stripe.width)
    elif stripe != ALL_ENTRIES:
        flags |= FLAG_STRIPE
        more = STRIPE.pack(stripe.cycle, stripe.offset, stripe.width)
    if request.creator:
        flags |= FLAG_CREATOR
        more += CREATOR.pack(request.creator)
    fixed = READ_REQUEST.pack(
        request.ledger_id,
        request.first,
        min(request.count_max, _U32_MAX),
        min(max(0, request.bytes_max), _U32_MAX),
        flags,
    )
    return b"".join((fixed, more, request.master_key))


def decode_read_request(frame: bytes) -> ReadRequest:
    """Raises: FrameError: no read request."""
    if len(frame) < READ_REQUEST.size:
        raise FrameError(f"a read request of {len(frame)} bytes")
    ledger_id, first, count_max, bytes_max, flags = READ_REQUEST.unpack_from(frame)
    has_creator, flags = bool(flags & FLAG_CREATOR), flags & ~FLAG_CREATOR
    if flags not in _MORE_BYTES:
        raise FrameError(f"unknown flags {flags} in a read request")
    key_at = READ_REQUEST.size + _MORE_BYTES[flags] + CREATOR.size * has_creator
    if not key_at <= len(frame) <= key_at + KEY_BYTES_MAX:
        raise FrameError(f"a read request of {len(frame)} bytes with flags {flags}")
    if ledger_id >> 63 or first >> 63:
        raise FrameError(f"ledger {ledger_id}, entry {first} in a read request")
    request = ReadRequest(
        ledger_id, first, count_max, bytes_max, flags == FLAG_FENCE, frame[key_at:]
    )
    if has_creator:
        (request.creator,) = CREATOR.unpack_from(frame, key_at - CREATOR.size)
    if flags == FLAG_HEADS:
        request.head_bytes, *numbers = CUT.unpack_from(frame, READ_REQUEST.size)
        request.stripe = _checked(Stripe(*numbers), first)
    elif flags == FLAG_STRIPE:
        request.stripe = _checked(Stripe(*STRIPE.unpack_from(frame, READ_REQUEST.size)), first)
    return request


def _checked(stripe: Stripe, first: int) -> Stripe:
    if not stripe.is_legal or not stripe.has(first):
        raise FrameError(f"{stripe} from entry {first} on in a read request")
    return stripe


def encode_read_reply(code: int, first: int, packets: Sequence[bytes | memoryview]) -> bytes:
    count = len(packets)
    sizes = struct_pack(f">{count}I", *map(len, packets))
    return b"".join((READ_REPLY.pack(code, count, first), sizes, *packets))


def decode_read_reply(frame: bytes) -> ReadReply:
    """The packets are views of ``frame``.

    Raises:
        FrameError: no read reply.
    """
    code, first, sizes, offset = _decode_sizes(frame, 0)
    if offset + sum(sizes) != len(frame):
        raise FrameError("a read reply whose packets don't fill it")
    view = memoryview(frame)
    packets: list[bytes | memoryview] = []
    for size in sizes:
        packets.append(view[offset : offset + size])
        offset += size
    return ReadReply(code, first, packets)


def encode_heads_reply(reply: TruncatedReply) -> bytes:
    count = len(reply.packets)
    fixed = READ_REPLY.pack(reply.code, count, reply.first)
    body = b"".join((fixed, struct_pack(f">{count}I", *reply.sizes), *reply.packets))
    return HEADS_CRC.pack(crc32c(body)) + body


def decode_heads_reply(frame: bytes, head_bytes: int) -> TruncatedReply:
    """Of a request with ``head_bytes``.

    Raises:
        FrameError: no such reply, or bytes of it changed on the way: a cut packet's own digest
            can't be checked, so the reply has one.
    """
    if len(frame) < HEADS_CRC.size:
        raise FrameError(f"a reply with heads of {len(frame)} bytes")
    if HEADS_CRC.unpack_from(frame)[0] != crc32c(memoryview(frame)[HEADS_CRC.size :]):
        raise FrameError("a reply with heads that doesn't fit its digest")
    code, first, sizes, offset = _decode_sizes(frame, HEADS_CRC.size)
    cut_bytes = PACKET_HEADER_BYTES + head_bytes
    packets: list[bytes] = []
    for size in sizes:
        end = offset + min(size, cut_bytes)
        packets.append(frame[offset:end])
        offset = end
    if offset != len(frame):
        raise FrameError("a reply with heads that don't fill it")
    return TruncatedReply(code, first, packets, list(sizes))


def _decode_sizes(frame: bytes, at: int) -> tuple[int, int, tuple[int, ...], int]:
    """Code, first entry, sizes, and where the packets begin.

    Raises: FrameError: the frame is too short.
    """
    if len(frame) < at + READ_REPLY.size:
        raise FrameError(f"a read reply of {len(frame)} bytes")
    code, count, first = READ_REPLY.unpack_from(frame, at)
    at += READ_REPLY.size
    if at + 4 * count > len(frame):
        raise FrameError(f"a read reply of {len(frame)} bytes for {count} packets")
    return code, first, unpack_from(f">{count}I", frame, at), at + 4 * count
