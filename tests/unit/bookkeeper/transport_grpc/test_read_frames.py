"""The frames of a read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookkeeper import codes
from bookkeeper.transport_grpc.errors import FrameError
from bookkeeper.transport_grpc.read_frames import (
    READ_REQUEST,
    ReadRequest,
    decode_read_reply,
    decode_read_request,
    encode_read_reply,
    encode_read_request,
)

_IDS = st.integers(0, (1 << 63) - 1)
_LIMITS = st.integers(0, (1 << 32) - 1)


@given(_IDS, _IDS, _LIMITS, _LIMITS, st.booleans(), st.binary(max_size=40))
def test_requests_survive_the_wire(
    ledger_id: int, first: int, count_max: int, bytes_max: int, fence: bool, key: bytes
) -> None:
    request = ReadRequest(ledger_id, first, count_max, bytes_max, fence, key)
    assert decode_read_request(encode_read_request(request)) == request


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
        READ_REQUEST.pack(1, 2, 3, 4, 2),
        READ_REQUEST.pack(1 << 63, 2, 3, 4, 0),
        READ_REQUEST.pack(1, 1 << 63, 3, 4, 0),
        READ_REQUEST.pack(1, 2, 3, 4, 0) + bytes(256),
    ],
)
def test_garbage_for_a_request_is_refused(frame: bytes) -> None:
    with pytest.raises(FrameError):
        decode_read_request(frame)
