"""Digests, keys and explicit LACs, beside bytes that Apache's client has written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie_protocol.digests import (
    CRC32C,
    NO_PACKET,
    Digest,
    DigestType,
    decode_lac,
    encode_lac,
    from_stored,
    to_stored,
)
from magnetar.bookkeeper.packet import encode_head, is_intact

PASSWORD = b"secret"
#: Entry 1 with LAC 0, length 14 and payload "hello 1", of a ledger of each digest.
STORED = {
    DigestType.HMAC: (5, "c202a5deffa450cd291c317d91c309a82ea0a940"),
    DigestType.CRC32: (6, "0000000017917213"),
    DigestType.CRC32C: (7, "089b3f71"),
    DigestType.DUMMY: (8, ""),
}
DIGESTS = [Digest.create(each, PASSWORD) for each in DigestType]


@pytest.mark.parametrize("digest_type", DigestType)
def test_an_entry_of_apaches_client(digest_type: DigestType) -> None:
    ledger_id, digest_text = STORED[digest_type]
    digest = Digest.create(digest_type, PASSWORD)
    stored = bytes.fromhex(
        f"{ledger_id:016x}{1:016x}{0:016x}{14:016x}{digest_text}" + b"hello 1".hex()
    )
    packet = encode_head(ledger_id, 1, 0, 14, b"hel", b"lo 1")
    assert to_stored(digest, packet, b"lo 1") == stored
    assert from_stored(digest, stored) == packet + b"lo 1"


@given(st.sampled_from(DIGESTS), st.binary(max_size=40), st.binary(max_size=40))
def test_there_and_back(digest: Digest, head: bytes, body: bytes) -> None:
    packet = encode_head(3, 4, 2, 99, head, body)
    found = from_stored(digest, to_stored(digest, packet, body))
    assert found == packet + body
    assert is_intact(found)


@given(st.sampled_from(DIGESTS), st.integers(0), st.integers(1, 255))
def test_a_changed_byte_is_seen(digest: Digest, place: int, change: int) -> None:
    stored = bytearray(to_stored(digest, encode_head(3, 4, 2, 7, b"he", b"llo w"), b"llo w"))
    stored[place % len(stored)] ^= change
    is_sound = from_stored(digest, bytes(stored)) != NO_PACKET
    assert is_sound is (digest.type is DigestType.DUMMY)


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("size", [0, 31])
def test_less_than_a_packet(digest: Digest, size: int) -> None:
    assert from_stored(digest, bytes(size)) == NO_PACKET


def test_an_explicit_lac_of_apaches_client() -> None:
    body = bytes.fromhex("0000000000000025 0000000000000013 81989db4")
    assert encode_lac(CRC32C, 37, 19) == body
    assert decode_lac(CRC32C, 37, body) == 19


@pytest.mark.parametrize("digest", DIGESTS)
def test_an_explicit_lac_of_another_ledger_or_damaged(digest: Digest) -> None:
    body = encode_lac(digest, 37, 19)
    assert decode_lac(digest, 37, body) == 19
    assert decode_lac(digest, 38, body) == -1
    assert decode_lac(digest, 37, body[:-1]) == -1
    assert decode_lac(digest, 37, body + b"x") == -1
    if digest.size:
        assert decode_lac(digest, 37, body[:-1] + bytes([body[-1] ^ 1])) == -1
