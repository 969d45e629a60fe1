"""Heads of entries: their first bytes and their sizes, cut from whole entries where these are.

Who counts messages, or plans how much to read, needs 32 bytes of each entry. The whole entries are
read for it all the same, as only they have a digest, but a piece at a time, and don't travel.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.packet import PACKET_HEADER, PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import (
    EntryPrefixesReply,
    ReadReply,
    ReadRequest,
    Stripe,
    TruncatedReply,
)

PIECE_BYTES_MAX: Final = 1024 * 1024
"""Whole entries in memory at a time for one request, unless a single one is larger."""
READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Whole entries that are read for one request; it ends with the entry that reaches this."""
ENTRIES_MAX: Final = 16 * 1024  # of one request
SIZE_BYTES: Final = 4  # beside each cut packet in a reply


async def read_cut(
    read_entries: Callable[[ReadRequest], Awaitable[ReadReply]], request: ReadRequest
) -> TruncatedReply:
    """See ``BookieClient.read_heads``; ``read_entries`` gives checked packets of the bookie."""
    first, stripe, bytes_max = request.first, request.stripe, request.bytes_max
    reply = TruncatedReply(codes.OK, first, [], [])
    cut_bytes = PACKET_HEADER_BYTES + (request.head_bytes or 0)
    count_max = min(request.count_max, ENTRIES_MAX)
    entry_id, read_bytes = first, 0
    while True:
        piece_max = min(PIECE_BYTES_MAX, READ_BYTES_MAX - read_bytes)
        wanted = count_max - len(reply.packets)
        piece = ReadRequest(request.ledger_id, entry_id, wanted, piece_max)
        piece.stripe, piece.creator = stripe, request.creator
        found = await read_entries(piece)
        if found.code != codes.OK or not found.packets:
            if not reply.packets:  # else a read of this one gets the reason
                reply.code = codes.UNAVAILABLE if found.code == codes.OK else found.code
            return reply
        for packet in found.packets:
            size = len(packet)
            bytes_max -= min(size, cut_bytes) + SIZE_BYTES
            if bytes_max < 0 and reply.packets:
                return reply
            reply.packets.append(bytes(packet[:cut_bytes]))  # a view would pin what it is cut from
            reply.sizes.append(size)
            read_bytes += size
        if len(reply.packets) >= count_max or read_bytes >= READ_BYTES_MAX or bytes_max <= 0:
            return reply
        entry_id = stripe.nth(entry_id, len(found.packets))
        await asyncio.sleep(0)  # what is in memory is read without a wait: let others in


def to_heads(reply: TruncatedReply) -> EntryPrefixesReply:
    """Without the packet headers."""
    heads = [packet[PACKET_HEADER_BYTES:] for packet in reply.packets]
    sizes = [size - PACKET_HEADER_BYTES for size in reply.sizes]
    return EntryPrefixesReply(reply.code, reply.first, heads, sizes)


def are_of(reply: TruncatedReply, ledger_id: int, stripe: Stripe) -> bool:
    """True if each packet is of the entry that its place says."""
    unpack = PACKET_HEADER.unpack_from
    for entry_id, packet in zip(stripe.ids(reply.first), reply.packets, strict=False):
        if len(packet) < PACKET_HEADER_BYTES:
            return False
        found_ledger, found_entry, _, _, _ = unpack(packet)
        if found_ledger != ledger_id or found_entry != entry_id:
            return False
    return True
