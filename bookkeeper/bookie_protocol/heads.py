"""Cut packets on their way from our bookie to our client: as one packet of a batch's reply. Pure.

``CRC32C of the rest u32 | count u32 | size of each whole packet u32 ... | cut packets``
"""

from struct import Struct, unpack_from
from struct import pack as struct_pack
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, Buffer
from magnetar.bookkeeper.transport import TruncatedReply

_START: Final = Struct(">II")
_COUNT: Final = Struct(">I")


def encode_heads(reply: TruncatedReply) -> bytes:
    """Its packets and sizes."""
    count = len(reply.packets)
    body = b"".join((struct_pack(f">{count + 1}I", count, *reply.sizes), *reply.packets))
    return _COUNT.pack(crc32c(body)) + body


def decode_heads(found: Buffer, first: int, head_bytes: int) -> TruncatedReply:
    """Of a request with ``head_bytes`` from entry ``first`` on.

    Raises:
        FrameError: not what ``encode_heads`` made, or bytes of it changed on the way: a cut
            packet's own digest can't be checked, so all of them have one.
    """
    if len(found) < _START.size:
        raise FrameError(f"heads of {len(found)} bytes")
    frame = bytes(found)
    digest, count = _START.unpack_from(frame)
    if digest != crc32c(memoryview(frame)[_COUNT.size :]):
        raise FrameError("heads that don't fit their digest")
    offset = _START.size + _COUNT.size * count
    if offset > len(frame):
        raise FrameError(f"heads of {len(frame)} bytes for {count} packets")
    sizes = unpack_from(f">{count}I", frame, _START.size)
    packets: list[bytes] = []
    for size in sizes:
        end = offset + min(size, PACKET_HEADER_BYTES + head_bytes)
        packets.append(frame[offset:end])
        offset = end
    if offset != len(frame):
        raise FrameError("heads that don't fill their frame")
    return TruncatedReply(codes.OK, first, packets, list(sizes))
