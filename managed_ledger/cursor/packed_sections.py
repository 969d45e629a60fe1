"""Bitmaps and batch sets of many ledgers in few bytes; bodies of sections of `cursor_format`, drawn
in docs/formats/cursor-ledger.md.

A Roaring bitmap is made of containers for 65,536 ids each. A sparse one lists its ids with 16 bits
each, a clustered one its runs with 32 bits each. Here these lists are taken as they are out of the
portable form of the bitmaps, joined and stored as differences, in columns (`columns`): ids at
random places then take within three percent of what any code needs, regular ones almost nothing.

Sets are packed of batches of up to 64 messages, as most are. Runs, as record version 2 stores them,
are only read: bitmaps are written in a third of the time. A run is told by distances: how many ids
from the end of the one before to its start, how many from start to end; as columns of bytes, the
lowest of all first, in one deflate stream.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterator
from itertools import accumulate, compress
from typing import Final, TypeAlias

from pyroaring import BitMap

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
from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END

ROWS_MAX: Final = 1 << 18
"""Most ids or runs that a reader accepts in one body."""
SETS_MAX: Final = 1 << 18
RUNS_MAX: Final = 1 << 20
"""Most runs that a reader accepts in one body of version 2."""
ARRAY_IDS_MAX: Final = 4096
"""A Roaring container lists at most so many ids."""
WORK_OF_PIECE: Final = 32
"""What it costs to add one, in numbers."""

_ID, _RUN = 1, 2  # numbers in a row
_HEAD: Final = struct.Struct(">BIII")  # numbers in a row, pieces, containers, rows
_PIECE_BYTES: Final = 12  # ledger u64, its first step u16, containers less one u16
_COUNTS: Final = struct.Struct(">II")  # pieces, sets or runs
_RUN_BYTES: Final = 8  # distance u32, length u32
_WINDOW_BITS: Final = -15  # deflate without a wrapper: entries have a digest already
_NO_STEP: Final = bytes(2)
_CONTAINER_BYTES: Final = 4  # high 16 bits of the ids u16, rows less one u16
_MASK: Final = (1 << 64) - 1

# The portable form: https://github.com/RoaringBitmap/RoaringFormatSpec
_ARRAYS: Final = struct.Struct("<II")  # cookie, containers; then (key, ids less one), offsets
_ARRAYS_COOKIE: Final = 12346
_ONE_ARRAY: Final = struct.Struct("<IIHHI")
_ONE_ARRAY_OFFSET: Final = 16
_ONE_RUNS: Final = struct.Struct("<IBHHH")  # cookie, which are runs, key, ids less one, runs
_RUNS_COOKIE: Final = 12347  # and containers less one above


class PackedBitmaps:
    """Gathers bitmaps of one kind for a body.

    Attributes:
        work: what `body` costs, in numbers.
        plain: ledger ids and portable forms of what was added.
    """

    __slots__ = ("_containers", "_counts", "_per_row", "_rows", "plain", "work")

    def __init__(self, per_row: int) -> None:
        self._per_row = per_row
        self._counts = array("H")
        self._containers: list[bytes] = []
        self._rows: list[bytes] = []
        self.plain: list[tuple[int, bytes]] = []
        self.work = 0

    @classmethod
    def of_ids(cls) -> PackedBitmaps:
        return cls(_ID)

    @classmethod
    def of_runs(cls) -> PackedBitmaps:
        return cls(_RUN)

    def add_ids(self, ledger_id: int, body: bytes) -> None:
        """
        Args:
            body: portable form of a bitmap whose containers all list their ids.
        """
        if body[4:8] == b"\1\0\0\0":  # one container, as nearly always
            self._containers.append(body[8:12])
            rows = body[_ONE_ARRAY.size :]
            self._counts.append(0)
        else:
            count = _ARRAYS.unpack_from(body)[1]
            end = _ARRAYS.size + _CONTAINER_BYTES * count
            self._containers.append(body[_ARRAYS.size : end])
            rows = body[end + 4 * count :]  # behind the offsets
            self._counts.append(count - 1)
        self._rows.append(rows)
        self.work += WORK_OF_PIECE + (len(rows) >> 1)
        self.plain.append((ledger_id, body))

    def add_runs(self, ledger_id: int, body: bytes) -> None:
        """
        Args:
            body: portable form of a bitmap that is one container, of runs.
        """
        _, _, key, _, runs = _ONE_RUNS.unpack_from(body)
        self._containers.append(struct.pack("<HH", key, runs - 1))
        self._counts.append(0)
        self._rows.append(body[_ONE_RUNS.size :])
        self.work += WORK_OF_PIECE + 2 * runs
        self.plain.append((ledger_id, body))

    def body(self) -> bytes:
        """REQUIRES: something was added."""
        ledgers = to_little(array("q", [ledger_id for ledger_id, _ in self.plain]))
        ledger_steps = differences(int.from_bytes(ledgers, "little"), len(ledgers), 8)
        containers = b"".join(self._containers)
        rows = b"".join(self._rows)
        number = int.from_bytes(rows, "little")
        if self._per_row == _RUN:  # (first, ids less one) as (first, last)
            number += _firsts_above(rows)
        steps = bytearray(differences(number, len(rows), 2))
        jumps, at = [], 0
        for piece in self._rows:
            jumps.append(steps[at : at + 2])
            steps[at : at + 2] = _NO_STEP
            at += len(piece)
        tables = [
            *columns_of(ledger_steps, 8),
            *columns_of(b"".join(jumps), 2),
            *columns_of(to_little(self._counts), 2),
            *columns_of(containers, _CONTAINER_BYTES),
        ]
        columns = columns_of(bytes(steps), 2 * self._per_row)
        head = _HEAD.pack(
            self._per_row,
            len(self.plain),
            len(containers) // _CONTAINER_BYTES,
            len(rows) // (2 * self._per_row),
        )
        return b"".join((head, compressed(b"".join(tables)), *map(compressed, columns)))


def size_in(data: bytes, offset: int) -> tuple[int, int]:
    """Read the header of a body at ``offset``: return its counts of containers, and of ids or runs.

    Raises:
        struct.error: ``data`` is too short for a header.
    """
    _, _, containers, rows = _HEAD.unpack_from(data, offset)
    return containers, rows


def rows_in(data: bytes, offset: int) -> int:
    """Read the header of a body at ``offset``: return its count of sets or runs.

    Raises:
        struct.error: ``data`` is too short for a header.
    """
    return int(_COUNTS.unpack_from(data, offset)[1])


def unpack_bitmaps(body: bytes) -> Iterator[tuple[int, BitMap]]:
    """Yield each ledger id with its acknowledged entries.

    Raises:
        ValueError, struct.error: `PackedBitmaps` didn't make ``body``.
    """
    per_row, pieces, containers, rows = _HEAD.unpack_from(body)
    if per_row not in (_ID, _RUN) or not 0 < pieces <= containers <= rows <= ROWS_MAX:
        raise ValueError(f"{pieces} pieces, {containers} containers, {rows} rows of {per_row}")
    expander = Expander(body, _HEAD.size)
    tables = expander.next(_PIECE_BYTES * pieces + _CONTAINER_BYTES * containers)
    columns = b"".join([expander.next(rows) for _ in range(2 * per_row)])
    expander.end()
    ledgers = from_little("q", sums(rows_of(tables[: 8 * pieces], 8), 8))
    jumps = rows_of(tables[8 * pieces : 10 * pieces], 2)
    counts = from_little("H", rows_of(tables[10 * pieces : _PIECE_BYTES * pieces], 2))
    heads = rows_of(tables[_PIECE_BYTES * pieces :], _CONTAINER_BYTES)
    sizes = from_little("H", heads)[1::2]
    if sum(counts) + pieces != containers or sum(sizes) + containers != rows:
        raise ValueError(f"{containers} containers with {rows} rows announced, others found")
    steps = bytearray(rows_of(columns, 2 * per_row))
    at = first = 0
    for piece, others in enumerate(counts):
        start = 2 * per_row * first
        steps[start : start + 2] = jumps[2 * piece : 2 * piece + 2]
        if others:
            first += sum(sizes[at : at + others + 1]) + others + 1
        else:
            first += sizes[at] + 1
        at += others + 1
    numbers = sums(bytes(steps), 2)
    if per_row == _RUN:
        bitmaps = _run_bitmaps(heads, sizes, _with_lengths(numbers), counts)
    else:
        bitmaps = _id_bitmaps(heads, sizes, numbers, counts)
    yield from zip(ledgers, bitmaps, strict=True)


def _id_bitmaps(
    heads: bytes, sizes: array[int], numbers: bytes, counts: array[int]
) -> Iterator[BitMap]:
    if max(sizes) >= ARRAY_IDS_MAX:
        raise ValueError(f"a list of {max(sizes) + 1} ids")
    at = first = 0
    for others in counts:
        if not others:
            size = sizes[at]
            end = first + 2 * size + 2
            key = heads[4 * at] | heads[4 * at + 1] << 8
            form = _ONE_ARRAY.pack(_ARRAYS_COOKIE, 1, key, size, _ONE_ARRAY_OFFSET)
        else:
            count = others + 1
            start = _ARRAYS.size + 8 * count
            ends = list(accumulate((2 * x + 2 for x in sizes[at : at + count]), initial=start))
            end = first + ends.pop() - start
            form = _ARRAYS.pack(_ARRAYS_COOKIE, count)
            form += heads[4 * at : 4 * (at + count)] + to_little(array("I", ends))
        yield BitMap.deserialize(form + numbers[first:end])
        at, first = at + others + 1, end


def _run_bitmaps(
    heads: bytes, sizes: array[int], numbers: bytes, counts: array[int]
) -> Iterator[BitMap]:
    if any(counts):
        raise ValueError("a piece of several containers with runs")
    lengths = from_little("H", numbers)[1::2]
    first = 0
    for at, size in enumerate(sizes):
        end = first + size + 1
        ids = sum(lengths[first:end]) + size
        if ids > 0xFFFF:
            raise ValueError(f"{ids + 1} ids in a container")
        key = heads[4 * at] | heads[4 * at + 1] << 8
        form = _ONE_RUNS.pack(_RUNS_COOKIE, 1, key, ids, size + 1)
        yield BitMap.deserialize(form + numbers[4 * first : 4 * end])
        first = end


def _with_lengths(runs: bytes) -> bytes:
    """(first, last) of each run as (first, ids less one)."""
    found = int.from_bytes(runs, "little") - _firsts_above(runs)
    return (found & (1 << 8 * len(runs)) - 1).to_bytes(len(runs), "little")


def _firsts_above(runs: bytes) -> int:
    """The first number of each row in the place of the second one."""
    found = bytearray(len(runs))
    found[2::4], found[3::4] = runs[0::4], runs[1::4]
    return int.from_bytes(found, "little")


Piece: TypeAlias = "tuple[int, array[int], array[int]]"
"""Ledger id, entry ids as "I", and as many masks as "Q"; not empty."""


def pack_sets(pieces: list[Piece]) -> bytes:
    """Of at least one piece; a ledger may come again with other entries."""
    entries = array("I")
    masks = array("Q")
    for _, known, sets in pieces:
        entries.extend(known)
        masks.extend(sets)
    ledgers = to_little(array("q", [ledger_id for ledger_id, _, _ in pieces]))
    counts = to_little(array("I", [len(known) for _, known, _ in pieces]))
    steps = differences(int.from_bytes(ledgers, "little"), len(ledgers), 8)
    tables = b"".join((*columns_of(steps, 8), *columns_of(counts, 4)))
    parts = [_COUNTS.pack(len(pieces), len(entries)), compressed(tables)]
    ids = int.from_bytes(to_little(entries), "little")
    parts += map(compressed, columns_of(differences(ids, 4 * len(entries), 4), 4))
    parts += map(compressed, columns_of(to_little(masks), 8))
    return b"".join(parts)


def unpack_sets(body: bytes) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield each ledger id with its masks by entry id.

    Raises:
        ValueError, struct.error: `pack_sets` didn't make ``body``.
    """
    pieces, sets = _COUNTS.unpack_from(body)
    if not 0 < pieces <= sets <= SETS_MAX:
        raise ValueError(f"{pieces} pieces with {sets} sets announced")
    expander = Expander(body, _COUNTS.size)
    tables = expander.next(_PIECE_BYTES * pieces)
    ids = b"".join([expander.next(sets) for _ in range(4)])
    words = b"".join([expander.next(sets) for _ in range(8)])
    expander.end()
    ledgers = from_little("q", sums(rows_of(tables[: 8 * pieces], 8), 8))
    counts = from_little("I", rows_of(tables[8 * pieces :], 4))
    if sum(counts) != sets:
        raise ValueError(f"{sets} sets announced, {sum(counts)} in the pieces")
    entries = from_little("I", sums(rows_of(ids, 4), 4))
    masks = from_little("Q", rows_of(words, 8))
    first = 0
    for ledger_id, count in zip(ledgers, counts, strict=True):
        end = first + count
        found = dict(zip(entries[first:end], masks[first:end], strict=True))
        yield ledger_id, found
        first = end


def unpack_runs(body: bytes) -> Iterator[tuple[int, BitMap]]:
    """Yield each ledger id with its acknowledged entries.

    Raises:
        ValueError, struct.error: version 2 didn't make ``body``.
    """
    pieces, runs = _COUNTS.unpack_from(body)
    if not 0 < pieces <= runs <= RUNS_MAX:
        raise ValueError(f"{pieces} pieces with {runs} runs announced")
    data = _inflated(body[_COUNTS.size :], pieces * _PIECE_BYTES + runs * _RUN_BYTES)
    tables = _PIECE_BYTES * pieces
    ledgers = from_little("Q", rows_of(data[: 8 * pieces], 8))
    counts = from_little("I", rows_of(data[8 * pieces : tables], 4))
    if sum(counts) != runs:
        raise ValueError(f"{runs} runs announced, {sum(counts)} in the pieces")
    distances = from_little("I", rows_of(data[tables:], _RUN_BYTES))
    ledger_id = first = 0
    for step, count in zip(ledgers, counts, strict=True):
        ledger_id = (ledger_id + step) & _MASK
        signed = ledger_id - (_MASK + 1 if ledger_id > _MASK >> 1 else 0)
        yield signed, _entries(distances[first : first + 2 * count])
        first += 2 * count


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
