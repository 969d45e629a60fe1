"""Heads cut from whole entries: which entries, how many bytes, and what ends a reply."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.entry_prefixes import (
    ENTRIES_MAX,
    PIECE_BYTES_MAX,
    READ_BYTES_MAX,
    are_of,
    read_cut,
)
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, encode_head
from magnetar.bookkeeper.transport import (
    ALL_ENTRIES,
    ReadReply,
    ReadRequest,
    Stripe,
    TruncatedReply,
)

LEDGER = 7


class Source(BookieClient):
    """Gives entries as a bookie does, and counts what it gave."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes  # entry id -> bytes of its packet
        self.asked: list[tuple[int, int, int]] = []
        self.given_bytes = 0
        self.largest_bytes = 0
        self.failing: dict[int, int] = {}  # entry id -> code

    @property
    def bookie_id(self) -> str:
        return "b1"

    def packet(self, entry_id: int) -> bytes:
        body = b"%032d" % entry_id + bytes(max(0, self.sizes[entry_id] - 68))
        body = body[: self.sizes[entry_id] - PACKET_HEADER_BYTES]
        return encode_head(LEDGER, entry_id, -1, 0, b"", body) + body

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        first, count_max, bytes_max = request.first, request.count_max, request.bytes_max
        assert request.ledger_id == LEDGER
        assert count_max > 0
        assert bytes_max > 0
        self.asked.append((first, count_max, bytes_max))
        packets: list[bytes | memoryview] = []
        size = 0
        for entry_id in islice(request.stripe.ids(first), count_max):
            if entry_id in self.failing or entry_id not in self.sizes:
                break
            if packets and size + self.sizes[entry_id] > bytes_max:
                break
            packets.append(memoryview(self.packet(entry_id)))
            size += self.sizes[entry_id]
        self.given_bytes += size
        self.largest_bytes = max(self.largest_bytes, size)
        code = codes.OK if packets else self.failing.get(first, codes.NO_ENTRY)
        return ReadReply(code, first, packets)

    async def cut(
        self,
        first: int,
        count_max: int,
        head_bytes: int = 32,
        stripe: Stripe = ALL_ENTRIES,
        bytes_max: int = 1 << 30,
    ) -> TruncatedReply:
        request = ReadRequest(LEDGER, first, count_max, bytes_max)
        request.stripe, request.head_bytes = stripe, head_bytes
        return await read_cut(self.read_entries, request)


@st.composite
def stripes(draw: st.DrawFn) -> Stripe:
    cycle = draw(st.integers(1, 9))
    return Stripe(cycle, draw(st.integers(0, cycle - 1)), draw(st.integers(1, cycle)))


@given(stripes(), st.integers(0, 40), st.integers(0, 60))
def test_a_stripe_counts_and_runs_as_its_ids_say(stripe: Stripe, first: int, span: int) -> None:
    assert stripe.is_legal
    while not stripe.has(first):
        first += 1
    end = first + span
    assert stripe.count(first, end) == sum(map(stripe.has, range(first, end)))
    ids = [e for e in range(first, end) if stripe.has(e)]
    assert [stripe.nth(first, number) for number in range(len(ids))] == ids
    assert list(islice(stripe.ids(first), len(ids))) == ids
    run_end = stripe.run_end(first, end)
    assert all(map(stripe.has, range(first, run_end)))
    assert run_end == end or not stripe.has(run_end)


@given(
    stripes(),
    st.integers(0, 20),
    st.integers(1, 50),
    st.sampled_from([0, 1, 32, 100]),
    st.lists(st.integers(36, 150), min_size=1, max_size=60),
    st.sets(st.integers(0, 59), max_size=3),
)
async def test_heads_are_those_of_the_stripe_up_to_the_first_gap(
    stripe: Stripe,
    first: int,
    count_max: int,
    head_bytes: int,
    sizes: list[int],
    missing: set[int],
) -> None:
    while not stripe.has(first):
        first += 1
    source = Source({e: size for e, size in enumerate(sizes) if e not in missing and stripe.has(e)})
    reply = await source.cut(first, count_max, head_bytes, stripe)
    wanted: list[int] = []
    entry_id = first
    while len(wanted) < count_max and (entry_id in source.sizes or not stripe.has(entry_id)):
        if stripe.has(entry_id):
            wanted.append(entry_id)
        entry_id += 1
    assert reply.code == (codes.OK if wanted else codes.NO_ENTRY)
    assert reply.packets == [source.packet(e)[: 36 + head_bytes] for e in wanted]
    assert reply.sizes == [source.sizes[e] for e in wanted]
    assert are_of(reply, LEDGER, stripe)
    # No entry of another bookie is asked for: each look-up of a hole would cost a disk read.
    assert all(stripe.has(asked) for asked, _, _ in source.asked)


async def test_whole_entries_are_read_in_pieces_up_to_a_bound() -> None:
    source = Source(dict.fromkeys(range(400), 50_000))
    reply = await source.cut(0, 400)
    assert READ_BYTES_MAX <= source.given_bytes < READ_BYTES_MAX + 50_000
    assert source.largest_bytes <= PIECE_BYTES_MAX
    assert len(reply.packets) == source.given_bytes // 50_000
    assert max(map(len, reply.packets)) == 68


async def test_an_entry_larger_than_every_bound_still_comes() -> None:
    source = Source({0: 100, 1: READ_BYTES_MAX + 1, 2: 100})
    reply = await source.cut(0, 3, bytes_max=0)
    assert (reply.code, reply.sizes) == (codes.OK, [100])
    reply = await source.cut(1, 3)
    assert (reply.code, reply.sizes) == (codes.OK, [READ_BYTES_MAX + 1])


@given(st.integers(0, 3000), st.sampled_from([0, 32, 500]))
async def test_a_reply_stops_before_its_bytes(bytes_max: int, head_bytes: int) -> None:
    source = Source(dict.fromkeys(range(60), 200))
    reply = await source.cut(0, 60, head_bytes, bytes_max=bytes_max)
    each = min(200, 36 + head_bytes) + 4
    assert len(reply.packets) == max(1, min(60, bytes_max // each))


async def test_one_request_has_a_bound_of_entries() -> None:
    source = Source(dict.fromkeys(range(ENTRIES_MAX + 10), 36))
    reply = await source.cut(0, 1 << 32)
    assert len(reply.packets) == ENTRIES_MAX


async def test_what_goes_wrong_behind_the_first_entry_only_ends_the_reply() -> None:
    source = Source(dict.fromkeys(range(10), 100))
    source.failing[4] = codes.IO_ERROR
    reply = await source.cut(0, 10)
    assert (reply.code, len(reply.packets)) == (codes.OK, 4)
    reply = await source.cut(4, 10)
    assert (reply.code, reply.packets) == (codes.IO_ERROR, [])


async def test_heads_come_without_packet_headers_and_with_the_sizes_of_entries() -> None:
    source = Source({0: 36, 1: 40, 2: 1000})
    reply = await source.read_heads(ReadRequest(LEDGER, 0, 3, head_bytes=32))
    assert (reply.code, reply.first, reply.sizes) == (codes.OK, 0, [0, 4, 964])
    assert reply.heads == [b"", b"0000", b"%032d" % 2]


@pytest.mark.parametrize(
    ("first", "count_max", "head_bytes", "stripe"),
    [
        (-1, 1, 32, ALL_ENTRIES),
        (0, 0, 32, ALL_ENTRIES),
        (0, 1, -1, ALL_ENTRIES),
        (0, 1, 32, Stripe(0, 0, 0)),
        (0, 1, 32, Stripe(1 << 16, 0, 1)),
        (0, 1, 32, Stripe(3, 1, 2)),
    ],
)
async def test_requests_without_sense_are_refused(
    first: int, count_max: int, head_bytes: int, stripe: Stripe
) -> None:
    source = Source({0: 100})
    request = ReadRequest(LEDGER, first, count_max, stripe=stripe, head_bytes=head_bytes)
    reply = await source.read_heads(request)
    assert (reply.code, reply.heads) == (codes.BAD_REQUEST, [])
    assert source.asked == []


async def test_packets_of_other_entries_are_told_apart() -> None:
    source = Source(dict.fromkeys(range(4), 100))
    reply = await source.cut(0, 4)
    assert are_of(reply, LEDGER, ALL_ENTRIES)
    assert not are_of(reply, LEDGER + 1, ALL_ENTRIES)
    assert not are_of(reply, LEDGER, Stripe(3, 0, 2))
    reply.packets[1:3] = reply.packets[2:0:-1]
    assert not are_of(reply, LEDGER, ALL_ENTRIES)
    assert not are_of(TruncatedReply(codes.OK, 0, [b"short"], [5]), LEDGER, ALL_ENTRIES)
