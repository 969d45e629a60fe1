"""The frames of the add stream: what is encoded is decoded, and nothing else is believed."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import AddRequest
from magnetar.bookkeeper.transport_grpc.add_frames import (
    ANSWER_RUN,
    COPY_BYTES_MAX,
    FLAG_CREATOR,
    FRAME_HEADER,
    MANY_BYTES_MAX,
    AddFrame,
    decode_answers,
    decode_message,
    encode_answers,
    encode_message,
    merge_requests,
    split_request,
)


def _ignore(_request: AddRequest, _code: int) -> None:
    raise AssertionError("a codec answers nothing")


def make_request(
    ledger_id: int,
    ids: Sequence[int],
    bodies: Sequence[bytes],
    *,
    key: bytes = bytes(20),
    recovery: bool = False,
    deferred: bool = False,
    creator: int = 0,
    head: bytes = b"head",
) -> AddRequest:
    heads = [
        packet.encode_head(ledger_id, entry_id, entry_id - 1, 7, head, body)
        for entry_id, body in zip(ids, bodies, strict=True)
    ]
    size = sum(map(len, heads)) + sum(map(len, bodies))
    return AddRequest(
        *(ledger_id, key, ids, heads, list(bodies), size, recovery, _ignore),
        deferred_sync=deferred,
        creator=creator,
    )


def _frame(count: int, first: int, flags: int, key_bytes: int, rest: bytes) -> bytes:
    total = FRAME_HEADER.size + len(rest)
    return FRAME_HEADER.pack(total, count, 0, first, flags, key_bytes) + rest


def _packets(request: AddRequest) -> list[bytes]:
    return [head + body for head, body in zip(request.heads, request.bodies, strict=True)]


def _decoded_packets(frame: AddFrame) -> list[bytes]:
    return [head + bytes(body) for head, body in zip(frame.heads, frame.bodies, strict=True)]


@st.composite
def requests(draw: st.DrawFn) -> list[AddRequest]:
    """Requests of one to three ledgers, some of which go on where the one before ended."""
    made: list[AddRequest] = []
    next_ids = dict.fromkeys(range(3), 0)
    for _ in range(draw(st.integers(1, 6))):
        ledger_id = draw(st.integers(0, 2))
        first = next_ids[ledger_id] + draw(st.sampled_from((0, 0, 5)))
        count = draw(st.integers(1, 5))
        ids: Sequence[int] = range(first, first + count)
        if draw(st.booleans()):
            ids = sorted(draw(st.sets(st.integers(first, first + 40), min_size=1, max_size=5)))
        next_ids[ledger_id] = ids[-1] + 1
        size = st.sampled_from((0, 1, 100, COPY_BYTES_MAX - 40, COPY_BYTES_MAX, 3 * COPY_BYTES_MAX))
        bodies = [bytes(draw(size)) for _ in ids]
        key = draw(st.sampled_from((b"", bytes(20), b"k" * 20)))
        recovery, deferred = draw(st.booleans()), draw(st.booleans())
        creator = draw(st.sampled_from((0, 1, (1 << 63) - 1)))
        rights: dict[str, Any] = {"recovery": recovery, "deferred": deferred}
        made.append(make_request(ledger_id, ids, bodies, key=key, creator=creator, **rights))
    return made


@given(requests())
def test_decoding_gives_back_what_was_encoded(sent: list[AddRequest]) -> None:
    groups = merge_requests(sent)
    assert [request for group in groups for request in group] == sent
    frames = decode_message(encode_message(groups))
    assert len(frames) == len(groups)
    for frame, group in zip(frames, groups, strict=True):
        assert frame.is_intact
        assert frame.ledger_id == group[0].ledger_id
        assert {frame.recovery} == {request.recovery for request in group}
        assert {frame.deferred_sync} == {request.deferred_sync for request in group}
        assert frame.master_key == group[0].master_key
        assert {frame.creator} == {request.creator for request in group}
        assert list(frame.entry_ids) == [id_ for request in group for id_ in request.entry_ids]
        assert _decoded_packets(frame) == [p for request in group for p in _packets(request)]
        assert frame.size == sum(request.body_bytes for request in group)


def test_neighbours_become_one_frame_only_if_nothing_tells_them_apart() -> None:
    first = make_request(1, range(2), [b"a", b"b"])
    same = make_request(1, range(2, 3), [b"c"])
    gap = make_request(1, range(4, 5), [b"d"])
    recovery = make_request(1, range(5, 6), [b"e"], recovery=True)
    other_key = make_request(1, range(6, 7), [b"f"], key=b"k" * 20)
    deferred = make_request(1, range(7, 8), [b"g"], key=b"k" * 20, deferred=True)
    other_ledger = make_request(2, range(8, 9), [b"h"])
    other_creator = make_request(2, range(9, 10), [b"i"], creator=5)
    sent = [first, same, gap, recovery, other_key, deferred, other_ledger, other_creator]
    assert merge_requests(sent) == [
        [first, same],
        [gap],
        [recovery],
        [other_key],
        [deferred],
        [other_ledger],
        [other_creator],
    ]


def test_a_bookie_that_knows_no_creators_gets_the_frames_it_knows() -> None:
    request = make_request(1, range(2), [b"a", b"b"], creator=5)
    plain = make_request(1, range(2), [b"a", b"b"])
    assert encode_message([[request]], creators=False) == encode_message([[plain]])
    (frame,) = decode_message(encode_message([[request]], creators=False))
    assert frame.creator == 0
    assert len(encode_message([[request]])) == len(encode_message([[plain]])) + 8
    cut = _frame(1, 0, FLAG_CREATOR, 0, bytes(7))
    with pytest.raises(FrameError):
        decode_message(cut)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.integers(1, 900))
def test_a_request_is_split_into_pieces_that_fit(sizes: list[int], bytes_max: int) -> None:
    answers: list[int] = []
    request = make_request(1, range(5, 5 + len(sizes)), [bytes(size) for size in sizes])
    request.done = lambda whole, code: answers.append(code) if whole is request else None
    pieces = split_request(request, bytes_max)
    assert [id_ for piece in pieces for id_ in piece.entry_ids] == list(request.entry_ids)
    assert [p for piece in pieces for p in _packets(piece)] == _packets(request)
    assert not any(piece.deferred_sync for piece in pieces)
    request.deferred_sync = True
    assert all(piece.deferred_sync for piece in split_request(request, bytes_max))
    for piece in pieces:
        assert piece.body_bytes == sum(map(len, _packets(piece)))
        assert piece.body_bytes <= bytes_max or len(piece.heads) == 1
    for piece in pieces:
        assert answers == []
        piece.done(piece, codes.OK)
    assert answers == [codes.OK]


def test_a_split_request_fails_with_its_first_failure() -> None:
    answers: list[int] = []
    request = make_request(1, range(3), [bytes(10)] * 3)
    request.done = lambda _, code: answers.append(code)
    first, second, third = split_request(request, 1)
    second.done(second, codes.FENCED)
    third.done(third, codes.UNAVAILABLE)
    first.done(first, codes.OK)
    assert answers == [codes.FENCED]


@given(requests(), st.data())
def test_a_truncated_message_is_refused_or_has_fewer_frames(
    sent: list[AddRequest], data: st.DataObject
) -> None:
    groups = merge_requests(sent)
    message = encode_message(groups)
    cut = message[: data.draw(st.integers(0, len(message) - 1))]
    try:
        frames = decode_message(cut)
    except FrameError:
        return
    assert len(frames) < len(groups)  # cut between two frames
    assert encode_message(groups[: len(frames)]) == cut


@given(requests(), st.randoms(use_true_random=False))
def test_a_flipped_bit_is_never_taken_for_the_entry(
    sent: list[AddRequest], rng: random.Random
) -> None:
    groups = merge_requests(sent)
    message = bytearray(encode_message(groups))
    message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
    whole = {
        (request.ledger_id, entry_id, data)
        for request in sent
        for entry_id, data in zip(request.entry_ids, _packets(request), strict=True)
    }
    try:
        frames = decode_message(bytes(message))
    except FrameError:
        return
    for frame in frames:
        if frame.is_intact:  # then the bit was in flags or key, which rights are checked against
            for entry_id, data in zip(frame.entry_ids, _decoded_packets(frame), strict=True):
                assert (frame.ledger_id, entry_id, data) in whole


@given(st.binary(max_size=400))
def test_garbage_is_refused(garbage: bytes) -> None:
    try:
        frames = decode_message(garbage)
    except FrameError:
        return
    assert not any(frame.is_intact for frame in frames)  # 2^-32 at best


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 5, "no frame header"),
        (FRAME_HEADER.pack(12, 1, 0, 0, 0, 0), "claims 12 bytes"),
        (FRAME_HEADER.pack(1 << 30, 1, 0, 0, 0, 0), "claims 1073741824 bytes"),
        (_frame(0, 0, 0, 0, b""), "0 entries"),
        (_frame(1 << 31, 0, 0, 0, b""), "2147483648 entries"),
        (_frame(1, 0, 128, 0, bytes(40)), "unknown flags"),
        (_frame(1, 0, 0, 255, bytes(40)), "1 entries"),
        (_frame(1, 1 << 63, 0, 0, bytes(40)), "entry ids"),
        (_frame(1, 5, 2, 0, bytes(48)), "don't ascend"),
        (_frame(1, 0, 0, 0, b"\0\0\0\x07" + bytes(36)), "sizes of packets"),
    ],
)
def test_the_reason_of_a_refusal_is_told(message: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        decode_message(message)


def test_only_a_single_entry_makes_a_large_message() -> None:
    large = make_request(1, range(1), [bytes(MANY_BYTES_MAX)])
    small = make_request(1, range(1, 2), [b"x"])
    (frame,) = decode_message(encode_message([[large]]))
    assert frame.is_intact
    for groups in ([[large], [small]], [[large, small]], [[small], [large]]):
        with pytest.raises(FrameError, match="more than one entry"):
            decode_message(encode_message(groups))


def test_an_entry_of_another_ledger_or_id_is_not_intact() -> None:
    request = make_request(1, range(1), [b"body"])
    assert decode_message(encode_message([[request]]))[0].is_intact
    request.ledger_id = 2
    assert not decode_message(encode_message([[request]]))[0].is_intact
    request.ledger_id, request.entry_ids = 1, range(1, 2)
    assert not decode_message(encode_message([[request]]))[0].is_intact


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 255)), min_size=1, max_size=50))
def test_answers_survive_the_wire_in_order(answers: list[tuple[int, int]]) -> None:
    runs = decode_answers(encode_answers(answers))
    assert [(first + i, code) for first, count, code in runs for i in range(count)] == answers


def test_answers_in_a_row_are_one_run() -> None:
    assert decode_answers(encode_answers([(n, 0) for n in range(100)])) == [(0, 100, 0)]


@pytest.mark.parametrize("message", [b"", b"x", ANSWER_RUN.pack(1, 1, 0) + b"x"])
def test_garbage_for_answers_is_refused(message: bytes) -> None:
    with pytest.raises(FrameError):
        decode_answers(message)
