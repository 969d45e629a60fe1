"""What a client does when a bookie is older than its requests; what it keeps of those it sent."""

import asyncio
from collections import deque
from dataclasses import replace
from struct import pack, unpack_from

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.add_channel import (
    AddChannel,
    EncodedAdds,
    _take_neighbours,
)
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connection import ConnectionV2
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest
from magnetar.bookkeeper.bookie_protocol.read_channel import ReadChannel
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.transport import AddRequest, ReadRequest


class OldBookie(asyncio.Protocol):
    """As BookKeeper 4.16: it answers reads of single entries, and closes at a batch read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + unpack_from(">I", self._data)[0]:
            size, word = unpack_from(">II", self._data)
            if word >> 16 & 0xFF == v2.BATCH_READ:
                self._transport.close()
                return
            ledger_id, entry_id = unpack_from(">qq", self._data, 8)
            self._data = self._data[4 + size :]
            packet = encode_head(ledger_id, entry_id, -1, 1, b"", b"x") + b"x"
            head = pack(">IIiqq", 24 + len(packet), 0x02020000, 0, ledger_id, entry_id)
            self._transport.write(head + packet)


async def test_a_bookie_without_batch_reads_is_read_singly() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(OldBookie, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve(_: str) -> tuple[str, int]:
        return "127.0.0.1", port

    channel = ReadChannel("b", resolve, ProtocolConfig())
    request, lost = ReadRequest(7, 3, 5), 0
    while lost < 10:
        try:
            reply = await channel.read_entries(request, CRC32C)
            break
        except BookieUnavailableError:  # another replica is asked meanwhile
            lost += 1
    assert (reply.code, len(reply.packets), lost) == (codes.OK, 5, 1)
    assert len((await channel.read_entries(request, CRC32C)).packets) == 5
    await channel.close()
    server.close()


def _crc32c(_ledger_id: int) -> Digest:
    return CRC32C


def adds(size: int) -> AddRequest:
    head = encode_head(1, 0, -1, size, b"", bytes(size))
    ids = range(1)
    return AddRequest(1, bytes(20), ids, [head], [bytes(size)], size, False, lambda _r, _c: None)


def test_bookies_of_a_write_set_get_the_same_bytes() -> None:
    encoded, request = EncodedAdds(), adds(10)
    assert encoded.encode(request, _crc32c) is encoded.encode(request, _crc32c)


def test_what_was_sent_is_not_kept_for_long() -> None:
    encoded = EncodedAdds(bytes_max=1000)
    for size in (10, 400, 400, 5000, 400, *(10,) * 5):
        encoded.encode(adds(size), _crc32c)
        kept = [sum(map(len, frames)) for _, frames, _ in encoded._found.values()]
        assert sum(kept) == encoded._bytes
        assert len(kept) == 1 or sum(kept) <= 1000
    encoded = EncodedAdds()
    for _ in range(100):
        encoded.encode(adds(10), _crc32c)
    assert len(encoded._found) == 64


def row(ledger_id: int, first: int, count: int, size: int = 10, **more: bool) -> AddRequest:
    heads = [encode_head(ledger_id, first + n, 0, 9, b"", bytes(size)) for n in range(count)]
    bodies = [bytes(size)] * count
    total, recovery = count * (size + 36), more.get("recovery", False)
    ids = range(first, first + count)
    return AddRequest(
        ledger_id, bytes(20), ids, heads, bodies, total, recovery, lambda _r, _c: None
    )


def test_neighbours_go_as_one_request() -> None:
    """So far as they are small, and in the same rows of ids for all bookies."""
    queue = deque(row(7, first, 1) for first in range(10, 14))
    queue += [row(7, 14, 3), row(7, 18, 1), row(8, 19, 1), row(8, 20, 1, recovery=True)]
    queue += [row(7, first, 1, 100_000) for first in range(3)]
    queue += [row(7, first, 1) for first in range(62, 66)]
    queue += [replace(row(7, 66, 2), entry_ids=[66, 68]), row(7, 69, 1)]
    singles = [pair for each in queue for pair in zip(each.heads, each.bodies, strict=True)]
    joined = [_take_neighbours(queue, 1000) for _ in range(10)]
    assert not queue
    assert singles == [
        pair for each in joined for pair in zip(each.heads, each.bodies, strict=True)
    ]
    assert [list(each.entry_ids) for each in joined] == [
        *(list(range(10, 17)), [18], [19], [20], [0, 1], [2]),
        *([62, 63], [64, 65], [66, 68], [69]),
    ]


def test_neighbours_are_joined_as_far_as_there_is_room() -> None:
    queue = deque([row(7, 0, 9), row(7, 9, 1), row(7, 10, 2), row(7, 12, 1), row(7, 13, 1)])
    joined = [_take_neighbours(queue, 3) for _ in range(3)]
    assert [len(each.entry_ids) for each in joined] == [9, 3, 2], "the first one goes whole"


async def test_a_reply_leaves_what_is_sent_in_this_turn_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)

    async def resolve(_: str) -> tuple[str, int]:
        return "127.0.0.1", server.sockets[0].getsockname()[1]

    channel = AddChannel("b", resolve, ProtocolConfig(), _crc32c, EncodedAdds())
    sent: list[list[bytes]] = []
    monkeypatch.setattr(ConnectionV2, "send", lambda _self, pieces: sent.append(pieces))
    connection = await channel._connection.get()
    channel.add(row(7, 0, 1))
    await asyncio.sleep(0)
    channel.add(row(7, 1, 1))
    connection.data_received(v2.ENTRY_REPLY.pack(24, v2.header(v2.ADD), 0, 7, 0))
    channel.add(row(7, 2, 1))
    await asyncio.sleep(0)
    assert channel.pending_requests == 2
    assert len(sent) == 2, "the first one, and both others"
    await channel.close()
    server.close()


def test_bookies_of_apaches_hear_nothing_of_creators() -> None:
    """They would take the token for the beginning of the entry."""
    request = replace(adds(10), creator=7)
    encoded = EncodedAdds()
    own = b"".join(encoded.encode(request, _crc32c, is_own=True))
    (plain,) = encoded.encode(request, _crc32c)
    assert len(own) == len(plain) + 8
    assert plain == b"".join(EncodedAdds().encode(replace(request, creator=0), _crc32c))
