"""The packet header: layout, digest, and that any flipped bit is noticed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes, errors, packet


def _crc32c_bit_by_bit(data: bytes) -> int:
    """RFC 3720, appendix B.4: the polynomial 0x1EDC6F41, reflected."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_layout_is_pinned() -> None:
    encoded = packet.encode_head(1, 2, -1, 5, b"he", b"llo")
    assert encoded[:32] == struct.pack(">QQqQ", 1, 2, -1, 5)
    assert encoded[36:] == b"he"
    digest = _crc32c_bit_by_bit(struct.pack(">QQqQ", 1, 2, -1, 5) + b"hello")
    assert encoded[32:36] == struct.pack(">I", digest)
    assert packet.decode_header(encoded) == (1, 2, -1, 5, digest)


def test_encode_heads_equals_encode_head_one_by_one() -> None:
    heads, bodies = [b"a" * 32, b"", b"c"], [b"x" * 1000, b"y", b""]
    encoded, length = packet.encode_heads(7, 10, 9, 100, heads, bodies)
    assert length == 100 + 1032 + 1 + 1
    assert encoded == [
        packet.encode_head(7, 10, 9, 1132, heads[0], bodies[0]),
        packet.encode_head(7, 11, 9, 1133, heads[1], bodies[1]),
        packet.encode_head(7, 12, 9, 1134, heads[2], bodies[2]),
    ]
    assert all(packet.is_intact(head + body) for head, body in zip(encoded, bodies, strict=True))
    assert not packet.is_intact(encoded[1] + b"z")
    assert not packet.is_intact(b"short")


@given(st.binary(max_size=64), st.binary(max_size=300), st.data())
def test_any_flipped_bit_is_noticed(head: bytes, body: bytes, data: st.DataObject) -> None:
    whole = bytearray(packet.encode_head(3, 4, 2, len(head) + len(body), head, body) + body)
    assert packet.is_intact(whole)
    assert packet.is_intact(memoryview(whole))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << (bit % 8)
    assert not packet.is_intact(whole)


def test_a_short_packet_is_not_intact() -> None:
    assert not packet.is_intact(b"\0" * 35)


@pytest.mark.parametrize("code", range(1, len(codes.CODE_NAMES)))
def test_every_code_has_an_error_that_carries_it(code: int) -> None:
    error = errors.error_for_code(code, "add to ledger 5")
    assert error.code == code
    assert codes.code_name(code) in str(error)


def test_unknown_codes_prove_nothing() -> None:
    assert codes.code_name(99) == "CODE(99)"
    assert isinstance(errors.error_for_code(99, "x"), errors.BookieUnavailableError)
    assert not codes.is_explicit_negative(99)
    assert codes.is_explicit_negative(codes.NO_ENTRY)
