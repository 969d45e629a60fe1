"""What counts as the same entry when one is sent again."""

from __future__ import annotations

from bookkeeper.bookie.re_adds import is_same_entry
from bookkeeper.packet import PACKET_HEADER_BYTES, encode_head

LAC, DIGEST = range(16, 24), range(32, PACKET_HEADER_BYTES)


def test_only_what_a_recovery_rewrites_may_differ() -> None:
    """Whichever byte of a packet another ledger's entry differs in."""
    stored = encode_head(1, 2, 1, 300, b"head", b"body") + b"body"
    for at in range(len(stored)):
        sent = bytearray(stored)
        sent[at] ^= 1
        for cut in (0, PACKET_HEADER_BYTES, len(sent)):
            is_same = is_same_entry(stored, sent[:cut], sent[cut:])
            assert is_same == (at in LAC or at in DIGEST), f"byte {at}, cut at {cut}"
    assert not is_same_entry(stored, stored, b"y")
    assert not is_same_entry(stored, stored[:-1], b"")
