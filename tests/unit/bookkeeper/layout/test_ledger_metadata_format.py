"""Ledger metadata in BookKeeper's form."""

from dataclasses import replace

import pytest
from hypothesis import given

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.ledger_metadata_format import decode, encode
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, begin_recovery
from tests.unit.bookkeeper.client.test_ledger_metadata import ledgers

HEADER = b"BookieMetadataFormatVersion\t3\n"


def of_pulsar(token: str = "6000") -> bytes:
    """Of an open ledger of a topic in a cluster of Pulsar 4.2.4."""
    bookies = "".join("0a0f" + f"127.0.0.1:3320{n}".encode().hex() for n in (3, 2, 1))
    custom = b""
    for key, value in (
        (b"pulsar/managed-ledger", b"public/default/persistent/orders"),
        (b"component", b"managed-ledger"),
        (b"application", b"pulsar"),
    ):
        pair = bytes([0x0A, len(key)]) + key + bytes([0x12, len(value)]) + value
        custom += bytes([0x5A, len(pair)]) + pair
    body = bytes.fromhex(f"080310031800 20ffffffffffffffffff01 2801 3235 {bookies} 1000")
    body += bytes.fromhex("380342004802") + custom + bytes.fromhex(token)
    return HEADER + bytes([len(body) & 0x7F | 0x80, len(body) >> 7]) + body


def test_a_ledger_of_pulsar() -> None:
    found = decode(18, of_pulsar())
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (3, 3, 2)
    assert found.segments[0].bookies == ("127.0.0.1:33203", "127.0.0.1:33202", "127.0.0.1:33201")
    assert (found.state, found.last_entry, found.length) == (LedgerState.OPEN, -1, 0)
    assert found.custom_metadata["pulsar/managed-ledger"] == b"public/default/persistent/orders"
    assert (found.digest_type, found.password) == ("CRC32C", b"")
    assert (found.created_ms, found.creator_token) == (-1, 0)
    assert encode(found) == of_pulsar()


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"secret", "e793cbc379107648537183605cd361d3bb789a39"),
    ],
)
def test_the_empty_password_has_a_key_too(password: bytes, key: str) -> None:
    assert replace(decode(18, of_pulsar()), password=password).master_key.hex() == key


def test_what_is_not_known_is_kept() -> None:
    newer = of_pulsar("6000 6805 7203616263")  # fields 13 and 14
    metadata = begin_recovery(decode(18, newer))
    assert metadata is not None
    written = encode(metadata)
    assert written.endswith(bytes.fromhex("6000 6805 7203616263"))
    closed = replace(decode(18, written), state=LedgerState.CLOSED, last_entry=22, length=1406)
    assert encode(closed).endswith(bytes.fromhex("6000 6805 7203616263"))
    assert (decode(18, encode(closed)).last_entry, decode(18, encode(closed)).length) == (22, 1406)


@given(ledgers())
def test_there_and_back(metadata: LedgerMetadata) -> None:
    found = decode(metadata.ledger_id, encode(metadata))
    assert found == metadata
    assert encode(found) == encode(metadata)


def test_format_2_is_text() -> None:
    text = (
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 2\nlength: 9\n"
        b'lastEntryId: 3\nstate: CLOSED\nsegment {\n  ensembleMember: "a:1"\n'
        b'  ensembleMember: "b:2"\n  firstEntryId: 0\n}\ndigestType: CRC32\npassword: "pw"\n'
    )
    found = decode(4, text)
    assert (found.ack_quorum, found.last_entry, found.digest_type) == (2, 3, "CRC32")
    assert found.password == b"pw"
    assert decode(4, encode(found)) == found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "begins with no BookieMetadataFormatVersion"),
        (b"{}", "begins with no BookieMetadataFormatVersion"),
        (b"BookieMetadataFormatVersion\t4\n\x00", "format '4' is not known"),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n0\n", "format '1' is not known"),
        (HEADER, "no size"),
        (HEADER + b"\x05\x08\x03", "5 bytes are announced, 2 are there"),
        (HEADER + b"\xff" * 12, "no size"),
        (HEADER + b"\x02\x08\x03", "missing required fields: ensembleSize"),
        (of_pulsar()[:-8], "announced"),
        (of_pulsar().replace(bytes.fromhex("2801"), bytes.fromhex("2809"), 1), "state 9 is not"),
        (of_pulsar().replace(bytes.fromhex("3803"), bytes.fromhex("3805"), 1), "digest type 5 is"),
        (of_pulsar().replace(b"127.0.0.1:33202", b"127.0.0.1:33203"), "not 3 distinct bookies"),
    ],
    ids=[
        *("empty", "json", "format 4", "format 1", "no size", "short", "endless size", "fields"),
        *("cut", "no such state", "no such digest", "a bookie twice"),
    ],
)
def test_what_is_no_ledgers_metadata(value: bytes, said: str) -> None:
    with pytest.raises(LedgerMetadataError, match=f"ledger 4: .*{said}"):
        decode(4, value)
