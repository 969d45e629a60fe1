"""WebSocket frames cut by ours and by the library's parser: the same events, however bytes come."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, State
from websockets.server import ServerProtocol

from magnetar.broker.http.websocket.frame_reader import WebSocketFrameReader

Event = tuple[Opcode, bytes, bool]
TEXT_MAX = 70_000


def library() -> ServerProtocol:
    protocol = ServerProtocol(state=OPEN, max_size=TEXT_MAX)
    return protocol


def events_of(protocol: ServerProtocol) -> list[Event]:
    return [
        (each.opcode, bytes(each.data), each.fin)
        for each in protocol.events_received()
        if isinstance(each, Frame)
    ]


def by_library(pieces: list[bytes]) -> tuple[list[Event], State, bytes]:
    protocol = library()
    for piece in pieces:
        protocol.receive_data(piece)
    return events_of(protocol), protocol.state, b"".join(protocol.data_to_send())


def by_ours(pieces: list[bytes]) -> tuple[list[Event], State, bytes]:
    protocol, reader = library(), WebSocketFrameReader(TEXT_MAX)
    events: list[Event] = []
    for piece in pieces:
        for part in reader.read(piece):
            if isinstance(part, bytes):
                protocol.receive_data(part)
                events += events_of(protocol)
            elif protocol.state is OPEN:
                events += [(Opcode.TEXT, payload, True) for payload in part]
    return events, protocol.state, b"".join(protocol.data_to_send())


def frame(
    opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0, masked: bool = True
) -> bytes:
    """As a client sends it; whether it may or not."""
    head = bytes((fin << 7 | reserved << 4 | opcode,))
    size, mask = len(payload), b"\x01\x80\x7f\xff"
    bit = 0x80 if masked else 0
    if size < 126:
        head += bytes((bit | size,))
    elif size < 65_536:
        head += bytes((bit | 126,)) + size.to_bytes(2)
    else:
        head += bytes((bit | 127,)) + size.to_bytes(8)
    if not masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


SIZES = st.sampled_from((0, 1, 3, 125, 126, 127, 300, 16_370, 17_000, 65_535, 65_536, 70_001))
PAYLOADS = st.builds(lambda size, byte: bytes((byte,)) * size, SIZES, st.integers(0, 255))
GOOD = st.builds(frame, st.just(1), PAYLOADS)
ANY = st.builds(
    frame,
    st.sampled_from((0, 1, 2, 3, 8, 9, 10, 11, 15)),
    PAYLOADS,
    fin=st.booleans(),
    reserved=st.sampled_from((0, 0, 0, 0, 1, 7)),
    masked=st.sampled_from((True, True, True, True, False)),
)
FRAGMENTED = st.lists(st.sampled_from((b"", b"ab", b"c" * 200)), min_size=1, max_size=3).map(
    lambda parts: (
        frame(1, b"x", fin=False)
        + b"".join(frame(0, part, fin=False) + frame(9, b"ping") for part in parts)
        + frame(0, b"end")
    )
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.one_of(GOOD, GOOD, FRAGMENTED, ANY), max_size=8),
    st.binary(max_size=12),
    st.integers(0, 2**32),
    st.sampled_from((1, 7, 100, 5_000, 10**6)),
)
def test_both_see_the_same(frames: list[bytes], tail: bytes, seed: int, step: int) -> None:
    data, chance, pieces = b"".join(frames) + tail, random.Random(seed), []
    if step == 1:
        data = data[-3000:]
    at = 0
    while at < len(data):
        size = chance.randint(1, step)
        pieces.append(data[at : at + size])
        at += size
    ours, theirs = by_ours(pieces), by_library(pieces)
    assert ours == theirs


def test_what_lies_in_a_control_frame_that_is_too_long_is_no_text() -> None:
    inside = frame(1, b"hidden-one") * 8
    assert len(inside) == 128  # its size, read as a head, is that of an empty frame
    data = bytes((0x88, 0xFE)) + len(inside).to_bytes(2) + bytes(4) + inside  # masked by zeros
    pieces = [bytes((each,)) for each in data]
    assert by_ours(pieces) == by_library(pieces)
    assert by_ours(pieces)[:2] == ([], State.CLOSING)


@pytest.mark.parametrize("cut", [lambda data: [data], lambda data: [bytes((b,)) for b in data]])
def test_texts_do_not_reach_the_library(cut: Callable[[bytes], list[bytes]]) -> None:
    reader, texts = WebSocketFrameReader(TEXT_MAX), [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 9000]
    found = []
    for piece in cut(b"".join(frame(1, text) for text in texts)):
        for part in reader.read(piece):
            assert isinstance(part, list)
            found += part
    assert found == texts


def test_a_text_above_the_limit_is_the_librarys() -> None:
    assert WebSocketFrameReader(10).read(frame(1, b"x" * 11)) == [frame(1, b"x" * 11)]
    assert WebSocketFrameReader(11).read(frame(1, b"x" * 11)) == [[b"x" * 11]]
