"""The frames of a read."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import ALL_ENTRIES, ReadRequest, Stripe, TruncatedReply
from magnetar.bookkeeper.transport_grpc.read_frames import (
    CUT,
    FLAG_FENCE,
    FLAG_HEADS,
    FLAG_STRIPE,
    READ_REQUEST,
    STRIPE,
    decode_heads_reply,
    decode_read_reply,
    decode_read_request,
    encode_heads_reply,
    encode_read_reply,
    encode_read_request,
)

_IDS = st.integers(0, (1 << 63) - 1)
_LIMITS = st.integers(0, (1 << 32) - 1)


@given(_IDS, _IDS, _LIMITS, _LIMITS, st.booleans(), st.binary(max_size=40), _IDS)
def test_requests_survive_the_wire(
    ledger_id: int,
    first: int,
    count_max: int,
    bytes_max: int,
    fence: bool,
    key: bytes,
    creator: int,
) -> None:
    request = ReadRequest(ledger_id, first, count_max, bytes_max, fence, key, creator=creator)
    assert decode_read_request(encode_read_request(request)) == request


@st.composite
def striped_requests(draw: st.DrawFn) -> ReadRequest:
    """Requests for entries or heads of a stripe, which has the first entry."""
    cycle = draw(st.integers(1, 0xFFFF))
    stripe = Stripe(cycle, draw(st.integers(0, cycle - 1)), draw(st.integers(1, cycle)))
    run = draw(st.integers(0, (1 << 40) - 1)) * cycle + stripe.offset
    first = run + draw(st.integers(0, stripe.width - 1))
    key, head_bytes = draw(st.binary(max_size=40)), draw(st.none() | _LIMITS)
    limits = (draw(_LIMITS), draw(_LIMITS))
    creator = draw(st.just(0) | _IDS)
    return ReadRequest(draw(_IDS), first, *limits, False, key, stripe, head_bytes, creator)


@given(striped_requests())
def test_requests_for_stripes_and_heads_survive_the_wire(request: ReadRequest) -> None:
    decoded = decode_read_request(encode_read_request(request))
    assert replace(decoded, stripe=request.stripe) == request
    # Whatever means all entries may come as the one that is usual.
    assert decoded.stripe in (request.stripe, ALL_ENTRIES)
    ids = zip(decoded.stripe.ids(request.first), request.stripe.ids(request.first), strict=False)
    assert all(a == b for a, b in islice(ids, 100))


@given(striped_requests(), st.data())
def test_a_truncated_request_of_these_is_refused(request: ReadRequest, data: st.DataObject) -> None:
    request.master_key = b""
    encoded = encode_read_request(request)
    with pytest.raises(FrameError):
        decode_read_request(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def test_heads_and_stripes_are_asked_for_with_flags_that_older_bookies_refuse() -> None:
    """They know fewer flags, in this byte, and check it before what follows."""
    request = ReadRequest(1, 0, 1, 1, False, b"", head_bytes=32)
    assert encode_read_request(request)[READ_REQUEST.size - 1] & ~FLAG_FENCE == FLAG_HEADS
    request = ReadRequest(1, 0, 1, 1, False, b"", Stripe(3, 0, 2))
    assert encode_read_request(request)[READ_REQUEST.size - 1] & ~FLAG_FENCE == FLAG_STRIPE


def test_who_wants_all_entries_asks_as_ever() -> None:
    request = ReadRequest(1, 0, 9, 9, False, b"key", ALL_ENTRIES)
    assert encode_read_request(request) == READ_REQUEST.pack(1, 0, 9, 9, 0) + b"key"


def test_limits_beyond_the_field_are_cut() -> None:
    request = ReadRequest(1, 2, 1 << 60, 1 << 60, False, b"")
    decoded = decode_read_request(encode_read_request(request))
    assert (decoded.count_max, decoded.bytes_max) == ((1 << 32) - 1, (1 << 32) - 1)


@given(st.integers(0, 255), _IDS, st.lists(st.binary(max_size=50), max_size=20))
def test_replies_survive_the_wire(code: int, first: int, packets: list[bytes]) -> None:
    reply = decode_read_reply(encode_read_reply(code, first, packets))
    assert (reply.code, reply.first) == (code, first)
    assert [bytes(found) for found in reply.packets] == packets


@given(st.lists(st.binary(max_size=50), max_size=5), st.data())
def test_a_truncated_reply_is_refused(packets: list[bytes], data: st.DataObject) -> None:
    encoded = encode_read_reply(codes.OK, 0, packets)
    with pytest.raises(FrameError):
        decode_read_reply(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def cut_reply(
    packets: list[bytes], head_bytes: int, code: int = 0, first: int = 0
) -> TruncatedReply:
    cut = [packet[: 36 + head_bytes] for packet in packets]
    return TruncatedReply(code, first, cut, [len(packet) for packet in packets])


_PACKETS = st.lists(st.binary(min_size=1, max_size=80), max_size=20)


@given(st.integers(0, 255), _IDS, _PACKETS, st.integers(0, 60))
def test_replies_with_heads_survive_the_wire(
    code: int, first: int, packets: list[bytes], head_bytes: int
) -> None:
    reply = cut_reply(packets, head_bytes, code, first)
    assert decode_heads_reply(encode_heads_reply(reply), head_bytes) == reply


@given(_PACKETS, st.integers(0, 60), st.data())
def test_a_truncated_reply_with_heads_is_refused(
    packets: list[bytes], head_bytes: int, data: st.DataObject
) -> None:
    encoded = encode_heads_reply(cut_reply(packets, head_bytes))
    with pytest.raises(FrameError):
        decode_heads_reply(encoded[: data.draw(st.integers(0, len(encoded) - 1))], head_bytes)


@given(_PACKETS, st.data())
def test_a_bit_that_changed_on_the_way_is_noticed(
    packets: list[bytes], data: st.DataObject
) -> None:
    encoded = bytearray(encode_heads_reply(cut_reply(packets, 32)))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FrameError):
        decode_heads_reply(bytes(encoded), 32)


@given(_PACKETS)
def test_a_reply_to_another_cut_is_refused(packets: list[bytes]) -> None:
    longer = [packet for packet in packets if len(packet) > 46]
    encoded = encode_heads_reply(cut_reply([*longer, bytes(80)], 10))
    with pytest.raises(FrameError, match="fill"):
        decode_heads_reply(encoded, 11)


@given(st.binary(max_size=100))
def test_garbage_is_refused_or_consistent(garbage: bytes) -> None:
    try:
        reply = decode_read_reply(garbage)
    except FrameError:
        return
    assert encode_read_reply(reply.code, reply.first, reply.packets) == garbage


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        READ_REQUEST.pack(1, 2, 3, 4, 0)[:-1],
        READ_REQUEST.pack(1, 2, 3, 4, 8),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_STRIPE),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_STRIPE | FLAG_FENCE) + STRIPE.pack(3, 0, 3),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_STRIPE) + STRIPE.pack(3, 0, 0),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_STRIPE) + STRIPE.pack(3, 0, 2),  # without entry 2
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_STRIPE) + STRIPE.pack(3, 0, 3) + bytes(256),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS | FLAG_FENCE) + CUT.pack(32, 1, 0, 1),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS) + CUT.pack(32, 0, 0, 0),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS) + CUT.pack(32, 3, 0, 0),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS) + CUT.pack(32, 3, 0, 4),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS) + CUT.pack(32, 3, 3, 1),
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS) + CUT.pack(32, 3, 0, 2),  # without entry 2
        READ_REQUEST.pack(1, 2, 3, 4, FLAG_HEADS) + CUT.pack(32, 1, 0, 1) + bytes(256),
        READ_REQUEST.pack(1 << 63, 2, 3, 4, 0),
        READ_REQUEST.pack(1, 1 << 63, 3, 4, 0),
        READ_REQUEST.pack(1, 2, 3, 4, 0) + bytes(256),
    ],
)
def test_garbage_for_a_request_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        decode_read_request(frame)
