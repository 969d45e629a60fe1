"""Acknowledged entries as bodies of sections, each in the form that takes least."""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from pyroaring import BitMap

from magnetar.managed_ledger.cursor.packed_sections import (
    ARRAY_IDS_MAX,
    WORK_OF_PIECE,
    PackedBitmaps,
)

Body: TypeAlias = tuple[int | None, bytes]
"""The ledger and a bitmap of it in portable form, or None and packed bitmaps of many ledgers."""

_BLOCK: Final = 1 << 16  # ids of a Roaring container, which has 8 KiB at most
_BLOCK_IDS_MIN: Final = 256  # in a block of its own; fewer go with those of other blocks
_DENSE_BITS: Final = 5
_SPLIT_RUNS: Final = 1000  # a part with so many is surely a container of runs, not of bits
_PACKED_WORK: Final = 48 << 10  # of all that is gathered: about a millisecond
_PACKED_BYTES_MIN: Final = 512  # fewer bytes of bitmaps stay what they are
_FRAME_BYTES: Final = 13  # of a section with one bitmap


def acked_bodies(acked: Mapping[int, BitMap]) -> Iterator[Body]:
    """None is much work. The bitmaps are live ones: between two bodies they may get entries, or
    lose their first ones, or all.
    """
    if len(acked) == 1:  # as in most increments, of which there is one each write
        [(ledger_id, entries)] = acked.items()
        if 2 * len(entries) < _PACKED_BYTES_MIN:
            if entries:
                entries.run_optimize()
                yield ledger_id, entries.serialize()
            return
    gathered = _SectionBuilder()
    for ledger_id, entries in acked.items():
        if len(entries) > ARRAY_IDS_MAX and entries.max() >= _BLOCK:
            for piece in _pieces(entries):
                gathered.add(ledger_id, piece)
                if gathered.work >= _PACKED_WORK:
                    yield from gathered.take()
        elif entries:
            gathered.add(ledger_id, entries)
        if gathered.work >= _PACKED_WORK:
            yield from gathered.take()
    yield from gathered.take(all_of_it=True)


def _pieces(entries: BitMap) -> Iterator[BitMap]:
    """A large bitmap in parts, ascending: each is one container, or has few entries."""
    first = 0
    while entries and entries.max() >= first:
        index = entries.rank(first - 1) if first else 0
        low = entries[index]
        end = (low | _BLOCK - 1) + 1
        if entries.rank(end - 1) - index < _BLOCK_IDS_MIN:
            end = _end_of(entries, index + ARRAY_IDS_MAX)
        first = end
        # A slice would be made id by id.
        yield entries & BitMap(range(low, end))


def _end_of(entries: BitMap, count: int) -> int:
    """Behind the first ``count`` ids."""
    return int(entries[count]) if count < len(entries) else int(entries.max()) + 1


class _SectionBuilder:
    """Collects the acknowledged entries to write together, by their form.

    Attributes:
        work: about what `take` costs; at `_PACKED_WORK` it is due.
    """

    __slots__ = ("_dense", "_ids", "_runs", "work")

    def __init__(self) -> None:
        self.work = 0
        self._ids = PackedBitmaps.of_ids()
        self._runs = PackedBitmaps.of_runs()
        self._dense: list[Body] = []

    def add(self, ledger_id: int, piece: BitMap) -> None:
        """
        Args:
            piece: of one container, or of few entries.
        """
        has_runs = piece.run_optimize()
        body = piece.serialize()
        self.work += WORK_OF_PIECE + (len(body) >> 1)
        if not has_runs:
            if len(piece) <= ARRAY_IDS_MAX:
                self._ids.add_ids(ledger_id, body)
            else:
                self._add_dense(ledger_id, piece, body)
        elif body[2:4] == b"\0\0":  # one container
            self._runs.add_runs(ledger_id, body)
        else:
            listed = BitMap(piece.to_array(), optimize=False)
            self._ids.add_ids(ledger_id, listed.serialize())

    def _add_dense(self, ledger_id: int, piece: BitMap, body: bytes) -> None:
        """One container of bits: as it is, or in parts that list their ids or their runs."""
        count = len(piece)
        runs = count - piece.intersection_cardinality(piece.shift(1))
        # So many bits for each are about what packing comes to, at many times the cost.
        if 8 * len(body) <= _DENSE_BITS * min(count, 2 * runs):
            self._dense.append((ledger_id, body))
            self.work = _PACKED_WORK
            return
        step = ARRAY_IDS_MAX if count <= 2 * runs else count * _SPLIT_RUNS // runs
        first = piece.min()
        for index in range(step, count + step, step):
            end = _end_of(piece, index)
            self.add(ledger_id, piece & BitMap(range(first, end)))
            first = end

    def take(self, *, all_of_it: bool = False) -> Iterator[Body]:
        """Takes the complete sections: dense pieces, and the fuller group when both have enough."""
        dense, self._dense = self._dense, []
        yield from dense
        ids, runs = self._ids, self._runs
        is_full = ids.work + runs.work >= _PACKED_WORK
        if all_of_it or (is_full and ids.work >= runs.work):
            self._ids = PackedBitmaps.of_ids()
            yield from _smaller(ids)
        if all_of_it or (is_full and ids.work < runs.work):
            self._runs = PackedBitmaps.of_runs()
            yield from _smaller(runs)
        self.work = self._ids.work + self._runs.work


def _smaller(group: PackedBitmaps) -> list[Body]:
    size = sum(len(body) + _FRAME_BYTES for _, body in group.plain)
    if group.plain and size >= _PACKED_BYTES_MIN:
        packed = group.body()
        if len(packed) < size:
            return [(None, packed)]
    return list(group.plain)
