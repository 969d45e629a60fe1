"""Packed runs of record version 2: read for ever, or refused; nobody writes them any more."""

import base64
import struct
import zlib
from array import array

import pytest
from pyroaring import BitMap

from magnetar.managed_ledger.cursor.cursor_format import ImageReplay, decode_record
from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from magnetar.managed_ledger.cursor.packed_sections import unpack_runs

STORED = base64.b64decode(
    "xQIBAQAAAAD//////////wMAAAAaAAAAAAAAAAcAAAABAAAAAwABCwAAAAAAAAAFAAAAqQAAAAMAAAWcYmWsA4iBgRkgBgYG"
    "gIAAICAACAgAAgKAgACgdyleADExMAHEwMAAEBAAxMw/CkbBSAGMwbQHBe2jYBRQAwDEMApGwSigIhAUHgWjgBoAIIZRMApG"
    "ARUBI8MoGAXUAACNglEwCkbBKBh8ACDGUTAKRgxgpwNgHAWjgCoAIIZRMApGwSgYBYMOADQKRsEoGAWjYPABgEbBKBgFo2AU"
    "DD4AGAAEAAAAEQAAAAEAAAAB//////////tuAQAAABAAAAAAAAAABAAAAAAAAABj"
)
"""A snapshot as the writer of version 2 made it."""


def test_a_snapshot_of_version_2_is_read() -> None:
    assert STORED[1] == 2
    replay = ImageReplay()
    replay.on_record(decode_record(STORED, "test"), "test")
    acked = {
        5: BitMap(range(3, 12_000, 16)),
        6: BitMap([n for start in range(1, 9_000, 90) for n in range(start, start + 7)]),
        900: BitMap(range(70_000, 3_000_000, 5_000)),
    }
    assert replay.image("test") == CursorImage((4, 99), acked, {7: {3: 0b1011}}, {"n": -5})


def columns_of(numbers: "array[int]", width: int) -> bytes:
    return b"".join(numbers.tobytes()[n::width] for n in range(width))


def packed_body(
    pieces: int, runs: int, ledgers: list[int], counts: list[int], numbers: list[int]
) -> bytes:
    """A body that says what it is told to; numbers: distance and length of each run."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    heads = columns_of(array("Q", ledgers), 8) + columns_of(array("I", counts), 4)
    data = heads + columns_of(array("I", numbers), 8)
    return struct.pack(">II", pieces, runs) + packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "unpack"),
        (struct.pack(">II", 1, 1), "announced, 0 or more found"),
        (struct.pack(">II", 0, 0), "0 pieces"),
        (struct.pack(">II", 2, 1), "2 pieces with 1 runs"),
        (struct.pack(">II", 1, 1 << 30), "1 pieces with"),
        (struct.pack(">II", 1, 1) + b"\xff\xff", "invalid"),
        (packed_body(1, 2, [5], [2], [1, 1]), "28 bytes announced"),
        (packed_body(1, 1, [5], [1], [1, 1, 1, 1]), "20 bytes announced"),
        (packed_body(1, 1, [5], [1], [1, 1]) + b"x", "20 bytes announced"),
        (packed_body(1, 1, [5], [2], [1, 1]), "1 runs announced, 2 in the pieces"),
        (packed_body(2, 2, [5, 6], [2, 0], [1, 1, 1, 1]), "empty piece"),
        (packed_body(1, 1, [5], [1], [ENTRY_END - 1, 1]), "beyond"),
    ],
)
def test_damaged_bodies_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises((ValueError, struct.error), match=reason):
        list(unpack_runs(body))


def test_what_a_body_claims_costs_no_more_memory_than_it_may() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = bomb.compress(bytes(256 << 20)) + bomb.flush()
    with pytest.raises(ValueError, match="20 bytes announced, 21 or more found"):
        list(unpack_runs(struct.pack(">II", 1, 1) + data))
