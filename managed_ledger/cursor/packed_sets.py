"""Batch sets of many ledgers in few bytes; the body of a section of `cursor_format`, drawn in
docs/formats/cursor-ledger.md. Only of batches of up to 64 messages, as most are.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final, TypeAlias

from magnetar.managed_ledger.cursor.column_codec import (
    Expander,
    columns_of,
    compressed,
    differences,
    from_little,
    rows_of,
    sums,
    to_little,
)

SETS_MAX: Final = 1 << 18
"""Most sets that a reader accepts in one body."""

_HEAD: Final = struct.Struct(">II")  # pieces, sets
_PIECE_BYTES: Final = 12  # ledger u64, sets u32
_MASK: Final = (1 << 64) - 1


Piece: TypeAlias = "tuple[int, array[int], array[int]]"
"""Ledger id, entry ids as "I", and as many masks as "Q"; not empty."""


def pack_sets(pieces: list[Piece]) -> bytes:
    """Of at least one piece; a ledger may come again with other entries."""
    entries = array("I")
    masks = array("Q")
    for _, known, sets in pieces:
        entries.extend(known)
        masks.extend(sets)
    ledgers = to_little(array("Q", [ledger_id & _MASK for ledger_id, _, _ in pieces]))
    counts = to_little(array("I", [len(known) for _, known, _ in pieces]))
    steps = differences(int.from_bytes(ledgers, "little"), len(ledgers), 8)
    tables = b"".join((*columns_of(steps, 8), *columns_of(counts, 4)))
    parts = [_HEAD.pack(len(pieces), len(entries)), compressed(tables)]
    ids = int.from_bytes(to_little(entries), "little")
    parts += map(compressed, columns_of(differences(ids, 4 * len(entries), 4), 4))
    parts += map(compressed, columns_of(to_little(masks), 8))
    return b"".join(parts)


def sets_in(data: bytes, offset: int) -> int:
    """How many sets the body that begins at ``offset`` announces.

    Raises:
        struct.error: too short for one.
    """
    return int(_HEAD.unpack_from(data, offset)[1])


def unpack_sets(body: bytes) -> Iterator[tuple[int, dict[int, int]]]:
    """The pieces: ledger id and masks by entry id.

    Raises:
        ValueError, struct.error: not what `pack_sets` makes.
    """
    pieces, sets = _HEAD.unpack_from(body)
    if not 0 < pieces <= sets <= SETS_MAX:
        raise ValueError(f"{pieces} pieces with {sets} sets announced")
    expander = Expander(body, _HEAD.size)
    tables = expander.next(_PIECE_BYTES * pieces)
    ids = b"".join([expander.next(sets) for _ in range(4)])
    words = b"".join([expander.next(sets) for _ in range(8)])
    expander.end()
    ledgers = from_little("Q", sums(rows_of(tables[: 8 * pieces], 8), 8))
    counts = from_little("I", rows_of(tables[8 * pieces :], 4))
    if sum(counts) != sets:
        raise ValueError(f"{sets} sets announced, {sum(counts)} in the pieces")
    entries = from_little("I", sums(rows_of(ids, 4), 4))
    masks = from_little("Q", rows_of(words, 8))
    first = 0
    for ledger_id, count in zip(ledgers, counts, strict=True):
        end = first + count
        found = dict(zip(entries[first:end], masks[first:end], strict=True))
        yield ledger_id - (_MASK + 1 if ledger_id > _MASK >> 1 else 0), found
        first = end
