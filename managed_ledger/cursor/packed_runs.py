"""Runs of entry ids as record version 2 stores them: the body of a section of `cursor_format`,
drawn in docs/formats/cursor-ledger.md. It is only read: `packed_bitmaps` is written instead, in a
third of the time.

A run is told by distances: how many ids from the end of the one before to its start, how many from
start to end; as columns of bytes, the lowest of all first, in one deflate stream.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate, compress
from typing import Final

from pyroaring import BitMap

from magnetar.managed_ledger.cursor.column_codec import from_little, rows_of
from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END

RUNS_MAX: Final = 1 << 20
"""Most runs that a reader accepts in one body."""

_HEAD: Final = struct.Struct(">II")  # pieces, runs
_PIECE_BYTES: Final = 12  # ledger less the one before it u64, runs u32
_RUN_BYTES: Final = 8  # distance u32, length u32
_MASK: Final = (1 << 64) - 1
_WINDOW_BITS: Final = -15  # deflate without a wrapper: entries have a digest already


def unpack_runs(body: bytes) -> Iterator[tuple[int, BitMap]]:
    """The pieces: ledger id and entries.

    Raises:
        ValueError, struct.error: not what version 2 writes.
    """
    pieces, runs = _HEAD.unpack_from(body)
    if not 0 < pieces <= runs <= RUNS_MAX:
        raise ValueError(f"{pieces} pieces with {runs} runs announced")
    data = _inflated(body[_HEAD.size :], pieces * _PIECE_BYTES + runs * _RUN_BYTES)
    tables = _PIECE_BYTES * pieces
    ledgers = from_little("Q", rows_of(data[: 8 * pieces], 8))
    counts = from_little("I", rows_of(data[8 * pieces : tables], 4))
    if sum(counts) != runs:
        raise ValueError(f"{runs} runs announced, {sum(counts)} in the pieces")
    distances = from_little("I", rows_of(data[tables:], _RUN_BYTES))
    ledger_id = first = 0
    for step, count in zip(ledgers, counts, strict=True):
        ledger_id = (ledger_id + step) & _MASK
        yield (
            ledger_id - (_MASK + 1 if ledger_id > _MASK >> 1 else 0),
            _entries(distances[first : first + 2 * count]),
        )
        first += 2 * count


def runs_in(data: bytes, offset: int) -> int:
    """How many runs the body that begins at ``offset`` announces.

    Raises:
        struct.error: too short for one.
    """
    return int(_HEAD.unpack_from(data, offset)[1])


def _entries(distances: array[int]) -> BitMap:
    """The ids of runs, from distances of their edges. A run that touches the next one, or is empty,
    isn't written and does no harm.
    """
    if not distances:
        raise ValueError("an empty piece")
    edges = list(accumulate(distances))
    if edges[-1] >= ENTRY_END:
        raise ValueError(f"entry {edges[-1]} is beyond what a bitmap holds")
    starts, lengths = edges[0::2], distances[1::2]
    # One by one only what is longer than one: an array is taken ten times as fast.
    if lengths == array("I", [1]) * len(lengths):
        return BitMap(array("I", starts))
    single = [length == 1 for length in lengths]
    found = BitMap(array("I", compress(starts, single)))
    for start, end, is_single in zip(starts, edges[1::2], single, strict=True):
        if not is_single:
            found.add_range(start, end)
    return found


def _inflated(data: bytes, size: int) -> bytes:
    reader = zlib.decompressobj(_WINDOW_BITS)
    try:
        found = reader.decompress(data, size + 1)  # whatever it claims to be, not more than that
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) != size or not reader.eof or reader.unused_data:
        raise ValueError(f"{size} bytes announced, {len(found)} or more found")
    return found
