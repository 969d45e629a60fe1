"""Frames of version 2, beside bytes between Apache's client and bookie."""

from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest, DigestType
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import encode_head, encode_heads

KEY_TEXT = "e793cbc379107648537183605cd361d3bb789a39"  # of the password "secret"
KEY = bytes.fromhex(KEY_TEXT)
ADD_REPLY = bytes.fromhex("00000018 02010000 00000000 0000000000000024 0000000000000000")


def add_reply(ledger_id: int, entry_id: int, code: int = 0) -> bytes:
    return pack(">IIiqq", 24, 0x02010000, code, ledger_id, entry_id)


def read_reply(ledger_id: int, entry_id: int, code: int, packet: bytes) -> bytes:
    return pack(">IIiqq", 24 + len(packet), 0x02020000, code, ledger_id, entry_id) + packet


def batch_reply(request_id: int, code: int, packets: list[bytes]) -> bytes:
    body = b"".join(pack(">I", len(each)) + each for each in packets)
    return pack(">IIiqqq", 32 + len(body), 0x02070000, code, 5, 0, request_id) + body


def encode_adds(
    heads: list[bytes], bodies: list[bytes], *, recovery: bool, digest: Digest = CRC32C
) -> bytes:
    return b"".join(v2.encode_adds(KEY, heads, bodies, recovery=recovery, digest=digest))


def test_an_add_of_apaches_client() -> None:
    head = encode_head(36, 0, -1, 6, b"fake", b" 0")
    expected = (
        f"00000042 02010000 {KEY_TEXT} 0000000000000024 0000000000000000 ffffffffffffffff"
        " 0000000000000006 ecb30004 66616b652030"
    )
    assert encode_adds([head], [b" 0"], recovery=False) == bytes.fromhex(expected)


def test_a_recovery_add_has_both_flags() -> None:
    frame = encode_adds([encode_head(1, 0, -1, 0, b"", b"")], [b""], recovery=True)
    assert frame[4:8].hex() == "02010006"


def test_an_add_with_another_digest() -> None:
    digest = Digest.create(DigestType.CRC32, b"secret")
    frame = encode_adds(
        [encode_head(6, 1, 0, 14, b"", b"hello 1")],
        [b"hello 1"],
        recovery=False,
        digest=digest,
    )
    assert frame.endswith(bytes.fromhex("000000000000000e 0000000017917213") + b"hello 1")


def test_reads_of_apaches_client() -> None:
    fencing = v2.encode_read(36, v2.LAST_ENTRY, flags=v2.DO_FENCING, master_key=KEY)
    assert fencing.hex() == "00000028020200010000000000000024" + "ff" * 8 + KEY_TEXT
    plain = "00000014 02020000 0000000000000024 0000000000000001"
    assert v2.encode_read(36, 1) == bytes.fromhex(plain)


def test_a_batch_read() -> None:
    frame = v2.encode_batch_read(5, 2, 9, 100, 1 << 20)
    assert frame == pack(">IIqqqiq", 40, 0x02070000, 5, 2, 9, 100, 1 << 20)


def test_an_adds_reply() -> None:
    (found,) = v2.ReplyDecoder(1 << 20).feed(ADD_REPLY)
    assert found == v2.AddReplies(36, 0, 1, 0)


def test_replies_in_a_row_are_one() -> None:
    data = b"".join(add_reply(7, entry) for entry in range(5)) + add_reply(7, 5, 104)
    data += add_reply(8, 6) + read_reply(7, -1, 2, b"") + add_reply(7, 7)
    found = list(v2.ReplyDecoder(1 << 20).feed(data))
    assert found[:3] == [
        v2.AddReplies(7, 0, 5, 0),
        v2.AddReplies(7, 5, 1, 104),
        v2.AddReplies(8, 6, 1, 0),
    ]
    assert found[3] == v2.ReadReplyV2(7, -1, 2, memoryview(b""))
    assert found[4] == v2.AddReplies(7, 7, 1, 0)


replies = st.one_of(
    st.builds(add_reply, st.integers(0, 3), st.integers(0, 9), st.sampled_from([0, 104])),
    st.builds(read_reply, st.integers(0, 3), st.integers(-1, 9), st.just(0), st.binary()),
    st.builds(batch_reply, st.integers(0, 9), st.just(0), st.lists(st.binary(), max_size=3)),
)


def told(decoder: v2.ReplyDecoder, pieces: list[bytes]) -> list[object]:
    """Replies, an add's for each entry: how many of them are in a row depends on the cuts."""
    found: list[object] = []
    for piece in pieces:
        for reply in decoder.feed(piece):
            if isinstance(reply, v2.AddReplies):
                found += [
                    (reply.ledger_id, reply.first + place, reply.code)
                    for place in range(reply.count)
                ]
            else:
                found.append(reply)
    return found


@given(st.lists(replies, max_size=8), st.lists(st.integers(0, 400), max_size=6))
def test_cuts_make_no_difference(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(bounds)]
    assert told(v2.ReplyDecoder(1 << 20), pieces) == told(v2.ReplyDecoder(1 << 20), [data])


@pytest.mark.parametrize(
    "data",
    [
        pack(">I", 1 << 20) + bytes(28),
        pack(">I", 4) + bytes(28),
        pack(">IIiqq", 24, 0x03010000, 0, 1, 1),
        pack(">IIiqq", 24, 0x02050000, 0, 1, 1),
        pack(">IIiq", 16, 0x02020000, 0, 1),
        batch_reply(1, 0, [b"abc"])[:-1].replace(pack(">I", 39), pack(">I", 38), 1),
    ],
    ids=["too large", "too small", "version 3", "no such operation", "short", "cut entry"],
)
def test_senseless_replies(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(v2.ReplyDecoder(1 << 20).feed(data))


def test_many_adds_are_one_message() -> None:
    heads, _ = encode_heads(3, 0, -1, 0, [b"a", b"b"], [b"1", b"22"])
    frame = encode_adds(heads, [b"1", b"22"], recovery=False)
    one = encode_adds(heads[:1], [b"1"], recovery=False)
    assert frame.startswith(one)
    assert frame[len(one) :] == encode_adds(heads[1:], [b"22"], recovery=False)


def test_large_bodies_are_not_copied() -> None:
    bodies = [b"1", bytes(20_000), bytes(30_000)]
    heads, _ = encode_heads(3, 0, -1, 0, [b""] * 3, bodies)
    pieces = v2.encode_adds(KEY, heads, bodies, recovery=False)
    assert [any(piece is body for piece in pieces) for body in bodies[1:]] == [True, True]
    pairs = zip(heads, bodies, strict=True)
    each = [encode_adds([head], [body], recovery=False) for head, body in pairs]
    assert b"".join(pieces) == b"".join(each)
