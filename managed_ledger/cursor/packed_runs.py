"""Runs of entry ids in few bytes, where a bitmap would need many: the body of a section of
`cursor_format`, drawn in docs/formats/cursor-ledger.md.

A Roaring bitmap costs a bit an entry where many are acknowledged, and 2 bytes an acknowledged entry
or 4 a run where they are far apart. What is far apart is better told by distances: how many ids
from the end of a run to the start of the next one, how many from start to end. As columns of bytes,
the lowest of all first, most of them are equal, and the others have few values: deflate's Huffman
code (without its search for repeated strings) brings runs at random places to within a tenth of
what any code needs, and regular ones to almost nothing.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress
from typing import Final

from pyroaring import BitMap

from managed_ledger.cursor.cursor_image import ENTRY_END

RUNS_MAX: Final = 1 << 20
"""Most runs that a reader accepts in one body."""

_HEAD: Final = struct.Struct(">II")  # pieces, runs
_PIECE_BYTES: Final = 12  # ledger less the one before it u64, runs u32
_RUN_BYTES: Final = 8  # distance u32, length u32
_MASK: Final = (1 << 64) - 1
_WINDOW_BITS: Final = -15  # deflate without a wrapper: entries have a digest already
_MEM_LEVEL: Final = 9


def edges_of(entries: BitMap) -> BitMap:
    """Where runs start and, one behind their last id, end; in turns.

    REQUIRES: the last id there is (`ENTRY_END` - 1) isn't among them: its run has no end.
    """
    return entries ^ entries.shift(1)


def pack_runs(pieces: Iterable[tuple[int, BitMap]]) -> bytes:
    """
    Args:
        pieces: ledger ids and edges, none empty; a ledger may come again with other entries.
    """
    ledgers, counts, distances = array("Q"), array("I"), []
    before = 0
    for ledger_id, edges in pieces:
        ledgers.append((ledger_id - before) & _MASK)
        before = ledger_id
        counts.append(len(edges) // 2)
        distances.append(_distances(edges.to_array()))
    packer = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEM_LEVEL, zlib.Z_RLE)
    parts = [_HEAD.pack(len(ledgers), sum(counts))]
    for rows, width in (
        (_little(ledgers), 8),
        (_little(counts), 4),
        (b"".join(distances), _RUN_BYTES),
    ):
        for column in range(width):
            parts.append(packer.compress(rows[column::width]))
            # A block each: the values of one column say nothing of the next one's.
            parts.append(packer.flush(zlib.Z_BLOCK))
    parts.append(packer.flush())
    return b"".join(parts)


def unpack_runs(body: bytes) -> Iterator[tuple[int, BitMap]]:
    """The pieces: ledger id and entries.

    Raises:
        ValueError, struct.error: not what `pack_runs` makes.
    """
    pieces, runs = _HEAD.unpack_from(body)
    if not 0 < pieces <= runs <= RUNS_MAX:
        raise ValueError(f"{pieces} pieces with {runs} runs announced")
    data = _inflated(body[_HEAD.size :], pieces * _PIECE_BYTES + runs * _RUN_BYTES)
    ledgers = _from_little("Q", _rows(data, 0, pieces, 8))
    counts = _from_little("I", _rows(data, 8 * pieces, pieces, 4))
    if sum(counts) != runs:
        raise ValueError(f"{runs} runs announced, {sum(counts)} in the pieces")
    distances = _from_little("I", _rows(data, _PIECE_BYTES * pieces, runs, _RUN_BYTES))
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


def _distances(edges: array[int]) -> bytes:
    """Each edge less the one before it, as u32, little-endian; the first as it is."""
    data = _little(edges)
    # One subtraction of long numbers: edges ascend, so that none borrows from its neighbour.
    number = int.from_bytes(data, "little") - int.from_bytes(bytes(4) + data[:-4], "little")
    return number.to_bytes(len(data), "little")


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


def _rows(data: bytes, start: int, count: int, width: int) -> bytes:
    """Numbers of ``width`` bytes from their columns."""
    rows = bytearray(count * width)
    for column in range(width):
        rows[column::width] = data[start : start + count]
        start += count
    return bytes(rows)


def _inflated(data: bytes, size: int) -> bytes:
    reader = zlib.decompressobj(_WINDOW_BITS)
    try:
        found = reader.decompress(data, size + 1)  # whatever it claims to be, not more than that
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) != size or not reader.eof or reader.unused_data:
        raise ValueError(f"{size} bytes announced, {len(found)} or more found")
    return found


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _from_little(code: str, data: bytes) -> array[int]:
    numbers = array(code, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
