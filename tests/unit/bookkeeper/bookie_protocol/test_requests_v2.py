"""Requests of version 2 at a bookie, beside what our client and Apache's send."""

from dataclasses import dataclass
from itertools import pairwise
from struct import pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol import requests_v2 as bookie
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest, DigestType
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.wrapped_packet import as_sent

KEY = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")
ADD_OF_APACHE = bytes.fromhex(
    "00000042 02010000 e793cbc379107648537183605cd361d3bb789a39 0000000000000024 0000000000000000"
    "ffffffffffffffff 0000000000000006 ecb30004 66616b652030"
)
FENCING_READ_OF_APACHE = bytes.fromhex("00000028 02020001 0000000000000024 ffffffffffffffff") + KEY
LIMIT = 64 * 1024


def decode(data: bytes, frame_bytes_max: int = LIMIT) -> list[bookie.ClientRequest]:
    return list(bookie.RequestDecoder(frame_bytes_max).feed(data))


def add(ledger_id: int, entry_id: int, payload: bytes, digest: Digest = CRC32C) -> bytes:
    head = encode_head(ledger_id, entry_id, entry_id - 1, 7, b"", payload)
    return b"".join(v2.encode_adds(KEY, [head], [payload], recovery=False, digest=digest))


def test_an_add_of_apaches_client() -> None:
    (found,) = decode(ADD_OF_APACHE)
    assert isinstance(found, bookie.AddsV2)
    assert (found.ledger_id, found.first, found.master_key) == (36, 0, KEY)
    assert (found.heads, found.bodies, found.size) == ([ADD_OF_APACHE[28:]], [b""], 42)
    reply = bookie.encode_add_replies(found.word, 0, 36, range(1))
    assert reply.hex() == "00000018020100000000000000000000000000240000000000000000"


def test_a_fencing_read_of_apaches_client() -> None:
    (found,) = decode(FENCING_READ_OF_APACHE)
    assert isinstance(found, bookie.ReadsV2)
    assert (found.ledger_id, found.first, found.master_key) == (36, -1, KEY)
    assert found.fences


@dataclass
class Flat:
    """What a request asks of one entry, whichever run it came in."""

    ledger_id: int
    entry_id: int
    packet: bytes | None


def flatten(requests: list[bookie.ClientRequest]) -> list[Flat]:
    flat: list[Flat] = []
    for each in requests:
        if isinstance(each, bookie.AddsV2):
            assert each.size == sum(map(len, each.heads)) + sum(map(len, each.bodies))
            for number, pair in enumerate(zip(each.heads, each.bodies, strict=True), each.first):
                flat.append(Flat(each.ledger_id, number, bytes(as_sent(b"".join(pair)))))
        else:
            assert isinstance(each, bookie.ReadsV2)
            ids = range(each.first, each.first + each.count)
            flat += [Flat(each.ledger_id, entry_id, None) for entry_id in ids]
    return flat


ENTRY = st.tuples(
    st.booleans(),
    st.integers(1, 2),
    st.integers(0, 5),
    st.sampled_from([b"", b"small", b"l" * 5000]),
    st.sampled_from([Digest.create(each, b"") for each in DigestType]),
)


@given(st.lists(ENTRY, max_size=12), st.lists(st.integers(0, 1 << 16), max_size=6))
def test_requests_come_whole_and_in_order_however_they_are_cut(
    entries: list[tuple[bool, int, int, bytes, Digest]], cuts: list[int]
) -> None:
    frames, expected = [], []
    for is_add, ledger_id, entry_id, payload, digest in entries:
        if is_add:
            frames.append(add(ledger_id, entry_id, payload, digest))
            expected.append(Flat(ledger_id, entry_id, frames[-1][28:]))
        else:
            frames.append(v2.encode_read(ledger_id, entry_id))
            expected.append(Flat(ledger_id, entry_id, None))
    data = b"".join(frames)
    decoder = bookie.RequestDecoder(LIMIT)
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    found = [r for begin, end in pairwise(bounds) for r in decoder.feed(data[begin:end])]
    assert flatten(found) == expected


def test_neighbours_are_one_request() -> None:
    adds = b"".join(add(7, entry_id, b"x") for entry_id in range(5))
    reads = b"".join(v2.encode_read(7, entry_id) for entry_id in range(3, 9))
    assert [type(each) for each in decode(adds + reads)] == [bookie.AddsV2, bookie.ReadsV2]
    assert len(decode(add(7, 0, b"") + add(7, 0, b""))) == 2
    assert len(decode(add(7, 0, b"") + add(8, 1, b""))) == 2
    assert len(decode(v2.encode_read(7, -1) + v2.encode_read(7, 0))) == 2


def test_neighbours_are_checked_each() -> None:
    """One whose digest doesn't fit is wrapped, and the others aren't."""
    frames = [add(7, entry_id, b"x" * 50) for entry_id in range(6)]
    frames[4] = frames[4][:-1] + b"y"
    (request,) = decode(b"".join(frames))
    assert isinstance(request, bookie.AddsV2)
    assert [head == frame[28:] for head, frame in zip(request.heads, frames, strict=True)] == [
        *([True] * 4),
        False,
        True,
    ]
    assert [each.packet for each in flatten([request])] == [frame[28:] for frame in frames]


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_are_requests_or_an_error(data: bytes) -> None:
    try:
        for begin in range(0, len(data), 7):
            list(bookie.RequestDecoder(LIMIT).feed(pack(">I", len(data) - begin) + data[begin:]))
    except FrameError:
        pass


def test_a_frame_may_have_its_limit_with_its_length() -> None:
    payload = b"x" * (1000 - 28 - 36)
    assert len(decode(add(1, 0, payload), 1000)) == 1
    with pytest.raises(FrameError):
        decode(add(1, 0, payload + b"x"), 1000)


@pytest.mark.parametrize(
    "frame",
    [
        pack(">I", 0),
        pack(">II", 4, 0x02040000),  # READ_LAC has a number in version 2, and no bookie answers it
        pack(">IIqq", 20, 0x02020001, 1, 1),  # a fence without a key
        pack(">II20sq", 32, 0x02010000, KEY, 1),
    ],
)
def test_what_closes_the_connection(frame: bytes) -> None:
    with pytest.raises(FrameError):
        decode(frame)


def test_version_3_comes_first_or_never() -> None:
    body = b"\x0a\x06\x08\x03\x10\x08\x18\x01"
    frame = pack(">I", len(body)) + body
    assert [type(each) for each in decode(frame + ADD_OF_APACHE)] == [bookie.BodyV3, bookie.AddsV2]
    with pytest.raises(FrameError, match="behind"):
        decode(ADD_OF_APACHE + frame)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_are_answered_in_kind(version: int) -> None:
    word = 2 if version == 0 else version << 24 | 2 << 16
    (found,) = decode(pack(">IIqq", 20, word, 4, 5))
    assert isinstance(found, bookie.ReadsV2)
    assert bookie.encode_entry_reply(found.word, 0, 4, 5)[4:8] == pack(">I", word)


def test_newer_versions_and_short_packets_are_refused() -> None:
    newer = pack(">IIqq", 20, 0x04020000, 4, 5)
    short = pack(">II20sqq", 40, 0x02010000, KEY, 4, 5)
    codes = [unpack_from(">IIiqq", each.reply)[2:] for each in decode(newer + short)]  # type: ignore[union-attr]
    assert codes == [(103, 4, 5), (100, 4, 5)]


def test_a_packet_that_could_be_a_wrapped_one_is_refused() -> None:
    packet = pack(">qqqQI", 4, 5, -1, 1 << 63, 0)
    (found,) = decode(pack(">II20s", 24 + len(packet), 0x02010000, KEY) + packet)
    assert isinstance(found, bookie.RefusedV2)
    assert unpack_from(">IIiqq", found.reply)[2:] == (100, 4, 5)
