"""Packets with another digest than CRC32C, kept within one of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie.duplicate_adds import is_same_entry
from magnetar.bookkeeper.bookie_protocol.digests import Digest, DigestType, to_stored
from magnetar.bookkeeper.packet import decode_header, encode_head, is_intact
from magnetar.bookkeeper.wrapped_packet import as_sent, is_wrapped, unwrap_packet, wrap_packet

DIGESTS = [Digest.create(each, b"pw") for each in DigestType if each is not DigestType.CRC32C]


def stored(digest: Digest, lac: int, payload: bytes) -> bytes:
    return to_stored(digest, encode_head(5, 9, lac, 1 << 62, b"", payload), payload)


@given(st.sampled_from(DIGESTS), st.binary(max_size=60))
def test_it_comes_back_as_it_was_sent(digest: Digest, payload: bytes) -> None:
    packet = stored(digest, -1, payload)
    assert not is_wrapped(packet)
    kept = wrap_packet(packet)
    assert is_wrapped(kept)
    assert is_intact(kept)
    assert decode_header(kept)[:3] == (5, 9, -1)
    assert unwrap_packet(kept) == as_sent(kept) == packet
    assert as_sent(memoryview(kept)) == packet


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_recovery_may_rewrite_the_lac_and_nothing_else(digest: Digest) -> None:
    old = wrap_packet(stored(digest, -1, b"p" * 40))
    assert is_same_entry(old, wrap_packet(stored(digest, 8, b"p" * 40)), b"")
    assert not is_same_entry(old, wrap_packet(stored(digest, -1, b"p" * 39 + b"q")), b"")
    assert not is_same_entry(old, stored(digest, -1, b"p" * 40), b"")
