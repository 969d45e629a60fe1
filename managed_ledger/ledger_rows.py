"""The rows of a list of ledgers: the newest as objects, older ones packed and shared. Pure.

A change of the list makes new `LedgerRows`; it shares every segment that it doesn't touch, so its
cost doesn't grow with the number of rows. Most questions about all rows (sums, "is there a copy to
finish") are answered by a segment's figures. A segment is stored as one chunk; its form is that of
docs/formats/managed-ledger.md.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias, overload
from zlib import crc32

import cramjam
import orjson

from magnetar.managed_ledger.offload.context import (
    CopyState,
    LedgerCopy,
    OffloadContext,
    copy_fields,
    parse_copy,
)

TAIL_ROWS_MAX = 2000
"""Rows outside chunks, once every broker reads chunks; until then as many as the node holds."""
CHUNK_ROWS = 1000
_ZSTD_LEVEL: Final = 3
_NO_COPY: Final = -1

_Numbers: TypeAlias = "array[int]"


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One listed ledger; entries and size are 0 until its end is definite."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    closed_ms: int = 0
    """When its end became definite (wall clock); 0: it may still be open."""
    offload: OffloadContext | None = None
    """Its copy elsewhere."""


class ChunkRef(NamedTuple):
    """What the list's node says of a chunk; all but ``rows`` and ``crc`` without trimmed rows."""

    name: str
    first: int
    last: int
    rows: int
    """Of the chunk as it is stored."""
    trimmed: int
    """How many of its first rows left the list."""
    entries: int
    size: int
    crc: int
    """CRC-32 of the stored value."""


class _CopyColumns:
    """The copies of a segment's rows, by column; a row without one has the state -1."""

    __slots__ = ("completed_ms", "place", "places", "sizes", "states", "uuids")

    def __init__(self, fields: Mapping[str, Any], rows: int) -> None:
        """Raises ValueError, KeyError, TypeError, OverflowError: these aren't such columns."""
        self.states = array("b", fields["states"])
        self.completed_ms = array("q", fields["completed_ms"])
        self.sizes = array("q", fields["sizes"])
        self.place = array("H", fields["place"])
        self.places = [parse_copy({"ledger": 0, "uuid": "", **x}) for x in fields["places"]]
        uuids = fields["uuids"]
        self.uuids = "\n".join(uuids)  # a million strings of their own would take twice as much
        columns = (self.states, self.completed_ms, self.sizes, self.place, uuids)
        if any(len(x) != rows for x in columns) or self.uuids.count("\n") != max(0, rows - 1):
            raise ValueError("columns of copies differ in length")
        has_places = not rows or max(self.place) < len(self.places)
        if not has_places or any(x not in range(_NO_COPY, len(CopyState)) for x in self.states):
            raise ValueError("no columns of copies")

    def fields(self) -> dict[str, Any]:
        places = [copy_fields(x) for x in self.places]
        return {
            "states": self.states.tolist(),
            "completed_ms": self.completed_ms.tolist(),
            "sizes": self.sizes.tolist(),
            "place": self.place.tolist(),
            "places": [{"driver": x["driver"], "location": x["location"]} for x in places],
            "uuids": self.uuids.split("\n"),
        }

    def contexts(self, ids: _Numbers) -> list[OffloadContext | None]:
        return [
            None if state == _NO_COPY else self._context(ledger_id, slot, uuid)
            for slot, (state, ledger_id, uuid) in enumerate(
                zip(self.states, ids, self.uuids.split("\n"), strict=True)
            )
        ]

    def context(self, ledger_id: int, slot: int) -> OffloadContext | None:
        if self.states[slot] == _NO_COPY:
            return None
        return self._context(ledger_id, slot, self.uuids.split("\n")[slot])

    def _context(self, ledger_id: int, slot: int, uuid: str) -> OffloadContext:
        place = self.places[self.place[slot]]
        copy = LedgerCopy(ledger_id, uuid, place.driver, place.location)
        state = CopyState(self.states[slot])
        return OffloadContext(copy, state, self.completed_ms[slot], self.sizes[slot])


def _copy_columns(rows: Sequence[LedgerInfo]) -> dict[str, Any] | None:
    """The columns of `_CopyColumns`; None: no row has a copy."""
    contexts = [x.offload for x in rows]
    if not any(contexts):
        return None
    numbers: dict[tuple[Any, ...], int] = {}
    places: list[dict[str, Any]] = []
    place: list[int] = []
    for each in contexts:
        if each is None:
            place.append(0)
            continue
        key = (each.copy.driver, *sorted(each.copy.location.items()))
        if key not in numbers:
            numbers[key] = len(places)
            places.append({"driver": each.copy.driver, "location": dict(each.copy.location)})
        place.append(numbers[key])
    return {
        "states": [_NO_COPY if x is None else int(x.state) for x in contexts],
        "completed_ms": [0 if x is None else x.completed_ms for x in contexts],
        "sizes": [0 if x is None else x.size for x in contexts],
        "place": place,
        "places": places,
        "uuids": ["" if x is None else x.copy.uuid for x in contexts],
    }


class PackedRows:
    """Rows in ascending order of their ids, packed; never changed.

    Attributes:
        name: of the chunk that stores it; "": none does yet.
        crc: of that chunk.
        trimmed: first rows of the columns that aren't rows of the list any more.
        size, entries: sums over the rows.
        copied_size: the part of ``size`` that has a complete copy.
        uncopied: rows with entries and without a complete copy.
        oldest_closed_ms: the lowest.
        started, only: rows whose copy is in that state.
        oldest_complete_ms: the lowest of copies in the state COMPLETE; None without any.
    """

    __slots__ = (
        "_closed_ms",
        "_copies",
        "_entries",
        "_ids",
        "_ref",
        "_sizes",
        "copied_size",
        "crc",
        "entries",
        "name",
        "oldest_closed_ms",
        "oldest_complete_ms",
        "only",
        "size",
        "started",
        "trimmed",
        "uncopied",
    )

    def __init__(
        self,
        columns: tuple[_Numbers, _Numbers, _Numbers, _Numbers],
        copies: _CopyColumns | None,
        trimmed: int = 0,
        name: str = "",
        crc: int = 0,
    ) -> None:
        self._ids, self._entries, self._sizes, self._closed_ms = columns
        self._ref: ChunkRef | None = None
        self._copies, self.trimmed, self.name, self.crc = copies, trimmed, name, crc
        entries, sizes = self._entries[trimmed:], self._sizes[trimmed:]
        self.size, self.entries = sum(sizes), sum(entries)
        self.oldest_closed_ms = min(self._closed_ms[trimmed:], default=0)
        self.copied_size = self.started = self.only = 0
        self.oldest_complete_ms: int | None = None
        self.uncopied = len(entries) - entries.count(0)
        if copies is not None:
            self._count_copies(copies, entries, sizes)

    def _count_copies(self, copies: _CopyColumns, entries: _Numbers, sizes: _Numbers) -> None:
        states = copies.states[self.trimmed :]
        self.started, self.only = states.count(CopyState.STARTED), states.count(CopyState.ONLY)
        complete = int(CopyState.COMPLETE)
        self.uncopied = sum(
            1 for n, state in zip(entries, states, strict=True) if n and state < complete
        )
        self.copied_size = sum(
            x for x, state in zip(sizes, states, strict=True) if state >= complete
        )
        times = copies.completed_ms[self.trimmed :]
        self.oldest_complete_ms = min(
            (x for x, state in zip(times, states, strict=True) if state == complete), default=None
        )

    @classmethod
    def of(cls, rows: Sequence[LedgerInfo]) -> PackedRows:
        """Packs rows."""
        columns = (
            array("q", [x.ledger_id for x in rows]),
            array("q", [x.entries for x in rows]),
            array("q", [x.size for x in rows]),
            array("q", [x.closed_ms for x in rows]),
        )
        fields = _copy_columns(rows)
        return cls(columns, None if fields is None else _CopyColumns(fields, len(rows)))

    def encode(self) -> bytes:
        """The value of its chunk. REQUIRES: nothing is trimmed."""
        fields: dict[str, Any] = {
            "ids": self._ids.tolist(),
            "entries": self._entries.tolist(),
            "sizes": self._sizes.tolist(),
            "closed_ms": self._closed_ms.tolist(),
        }
        if self._copies is not None:
            fields["copies"] = self._copies.fields()
        return bytes(cramjam.zstd.compress(orjson.dumps(fields), _ZSTD_LEVEL))

    @classmethod
    def decode(cls, value: bytes, ref: ChunkRef) -> PackedRows:
        """Inverse of `encode`, without the rows that ``ref`` calls trimmed.

        Raises:
            ValueError: this isn't the value that ``ref`` means.
        """
        if crc32(value) != ref.crc:
            raise ValueError(f"checksum {crc32(value)}, not {ref.crc}")
        try:
            fields = orjson.loads(bytes(cramjam.zstd.decompress(value)))
            names = ("ids", "entries", "sizes", "closed_ms")
            ids, entries, sizes, closed_ms = (array("q", fields[x]) for x in names)
            copies = fields.get("copies")
            found = cls(
                (ids, entries, sizes, closed_ms),
                None if copies is None else _CopyColumns(copies, len(ids)),
                *(ref.trimmed, ref.name, ref.crc),
            )
            same = len({*map(len, (ids, entries, sizes, closed_ms))}) == 1
        except (KeyError, TypeError, OverflowError, cramjam.DecompressionError) as error:
            raise ValueError(repr(error)) from error
        if not same or any(a >= b for a, b in pairwise(ids)):
            raise ValueError("no ascending rows")
        if not 0 <= ref.trimmed < len(ids) or found.ref() != ref:
            raise ValueError(f"not the rows of {ref}")
        return found

    def ref(self) -> ChunkRef:
        """For the list's node. REQUIRES: it is stored."""
        if self._ref is None:  # each change of the list writes all of them
            self._ref = ChunkRef(
                *(self.name, self.first_id, self.last_id, len(self._ids), self.trimmed),
                *(self.entries, self.size, self.crc),
            )
        return self._ref

    def stored_as(self, name: str, crc: int) -> PackedRows:
        """The same rows, in a chunk."""
        return PackedRows(self._columns(), self._copies, self.trimmed, name, crc)

    def without_first(self, count: int) -> PackedRows:
        """Without some rows, in the same chunk."""
        trimmed = self.trimmed + count
        return PackedRows(self._columns(), self._copies, trimmed, self.name, self.crc)

    def _columns(self) -> tuple[_Numbers, _Numbers, _Numbers, _Numbers]:
        return (self._ids, self._entries, self._sizes, self._closed_ms)

    @property
    def first_id(self) -> int:
        return self._ids[self.trimmed]

    @property
    def last_id(self) -> int:
        return self._ids[-1]

    @property
    def ids(self) -> _Numbers:
        """A copy of the ids."""
        return self._ids[self.trimmed :]

    @property
    def entry_counts(self) -> _Numbers:
        """A copy of the rows' entries."""
        return self._entries[self.trimmed :]

    @property
    def sizes(self) -> _Numbers:
        """A copy of the rows' sizes."""
        return self._sizes[self.trimmed :]

    def slot_of(self, ledger_id: int) -> int | None:
        """Index of a row; None: there is no such row."""
        slot = bisect_left(self._ids, ledger_id, self.trimmed)
        found = slot < len(self._ids) and self._ids[slot] == ledger_id
        return slot - self.trimmed if found else None

    def has_rows_of(self, other: PackedRows) -> bool:
        """Whether the ids are the same for certain, without looking at each."""
        return self._ids is other._ids and self.trimmed == other.trimmed

    def __len__(self) -> int:
        return len(self._ids) - self.trimmed

    def __getitem__(self, index: int) -> LedgerInfo:
        slot = index + self.trimmed
        ledger_id, copies = self._ids[slot], self._copies
        return LedgerInfo(
            *(ledger_id, self._entries[slot], self._sizes[slot], self._closed_ms[slot]),
            None if copies is None else copies.context(ledger_id, slot),
        )

    def __iter__(self) -> Iterator[LedgerInfo]:
        if self._copies is None:
            contexts: list[OffloadContext | None] = [None] * len(self._ids)
        else:
            contexts = self._copies.contexts(self._ids)
        columns = zip(*self._columns(), contexts, strict=True)
        return (LedgerInfo(*x) for n, x in enumerate(columns) if n >= self.trimmed)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PackedRows) or self.trimmed != other.trimmed:
            return False
        if self.name and self.name == other.name:
            return self.crc == other.crc
        return self._ids == other._ids and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal ones may have other names


_LONG_TAIL: Final = 16


class LedgerRows(Sequence[LedgerInfo]):
    """All rows of one list, ids ascending; never changed."""

    __slots__ = ("_packed", "_starts", "_tail_block", "segments", "tail")

    def __init__(
        self, tail: Iterable[LedgerInfo] = (), segments: tuple[PackedRows, ...] = ()
    ) -> None:
        """Args:
        tail: the newest rows.
        segments: those before them.
        """
        self.tail = tuple(tail)
        self.segments = segments
        self._packed = sum(map(len, segments))
        self._starts: list[int] | None = None
        self._tail_block: PackedRows | None = None

    def blocks(self) -> Iterator[PackedRows]:
        """All rows, in order, by segment; the last one is the tail."""
        yield from self.segments
        if not self.tail:
            return
        block = self._tail_block or PackedRows.of(self.tail)
        if len(self.tail) > _LONG_TAIL:  # an idle log has no need of it
            self._tail_block = block
        yield block

    def pieces(self) -> Iterator[Sequence[LedgerInfo]]:
        """All rows, in order, so many at a time as a turn of the loop can bear."""
        yield from map(list, self.segments)
        for start in range(0, len(self.tail), CHUNK_ROWS):
            yield self.tail[start : start + CHUNK_ROWS]

    @property
    def size(self) -> int:
        """Bytes of all closed ledgers."""
        return sum(x.size for x in self.segments) + sum(x.size for x in self.tail)

    def find(self, ledger_id: int) -> LedgerInfo | None:
        """The row of a ledger."""
        if not self.segments or ledger_id > self.segments[-1].last_id:
            slot = bisect_left(self.tail, ledger_id, key=_id_of)
            found = self.tail[slot] if slot < len(self.tail) else None
            return found if found is not None and found.ledger_id == ledger_id else None
        segment = self.segments[self._segment_of(ledger_id)]
        at = segment.slot_of(ledger_id)
        return None if at is None else segment[at]

    def select(self, ledger_ids: Collection[int]) -> list[LedgerInfo]:
        """The rows of those of the ledgers that are listed."""
        by_segment, rest = self._by_segment(ledger_ids)
        rows = [
            x
            for number in sorted(by_segment)
            for x in self.segments[number]
            if x.ledger_id in by_segment[number]
        ]
        return rows + [x for x in self.tail if x.ledger_id in rest]

    def has(self, ledger_id: int) -> bool:
        """Whether a ledger is listed."""
        if not self.segments or ledger_id > self.segments[-1].last_id:
            return self.find(ledger_id) is not None
        return self.segments[self._segment_of(ledger_id)].slot_of(ledger_id) is not None

    def ids(self) -> Iterator[int]:
        """All ids, ascending."""
        for segment in self.segments:
            yield from segment.ids
        yield from (x.ledger_id for x in self.tail)

    def segments_from(self, ledger_id: int) -> tuple[PackedRows, ...]:
        """All but those whose rows are below an id."""
        return self.segments[bisect_left(self.segments, ledger_id, key=_last_id_of) :]

    def from_id(self, ledger_id: int) -> Iterator[LedgerInfo]:
        """The rows from an id on."""
        for segment in self.segments_from(ledger_id):
            yield from (x for x in segment if x.ledger_id >= ledger_id)
        yield from self.tail[bisect_left(self.tail, ledger_id, key=_id_of) :]

    def with_row(self, row: LedgerInfo) -> LedgerRows:
        """With one more at the end."""
        return self._with((*self.tail, row), {})

    def changed(
        self, ledger_ids: Collection[int], change: Callable[[LedgerInfo], LedgerInfo]
    ) -> LedgerRows:
        """With other rows for these ledgers, if they are listed; itself if none is different."""
        by_segment, rest = self._by_segment(ledger_ids)
        tail = tuple(change(x) if x.ledger_id in rest else x for x in self.tail)
        changed: dict[int, PackedRows | None] = {}
        for number, ids in by_segment.items():
            old = list(self.segments[number])
            rows = [change(x) if x.ledger_id in ids else x for x in old]
            if rows != old:
                changed[number] = PackedRows.of(rows)
        if tail == self.tail and not changed:
            return self
        return self._with(tail, changed)

    def without(self, ledger_ids: Collection[int]) -> LedgerRows:
        """Without these ledgers; itself if none is listed."""
        by_segment, rest = self._by_segment(ledger_ids)
        tail = tuple(x for x in self.tail if x.ledger_id not in rest)
        if len(tail) == len(self.tail) and not by_segment:
            return self
        left = {n: _without(self.segments[n], ids) for n, ids in by_segment.items()}
        return self._with(tail, left)

    def cut(self, tail_rows_max: int) -> LedgerRows:
        """With the oldest rows of the tail in one more segment, if the tail has more rows; itself
        if it hasn't, or if they aren't all closed and can still change or leave.
        """
        if len(self.tail) <= tail_rows_max:
            return self
        count = min(CHUNK_ROWS, len(self.tail) - 1)
        rows = self.tail[:count]
        if not all(x.closed_ms and x.entries for x in rows):
            return self
        return LedgerRows(self.tail[count:], (*self.segments, PackedRows.of(rows)))

    def with_segments(self, others: Mapping[int, PackedRows]) -> LedgerRows:
        """With other segments at these indexes, of the same rows."""
        return self._with(self.tail, others)

    def _with(
        self, tail: tuple[LedgerInfo, ...], others: Mapping[int, PackedRows | None]
    ) -> LedgerRows:
        if others:
            by_index = (others.get(n, x) for n, x in enumerate(self.segments))
            return LedgerRows(tail, tuple(x for x in by_index if x is not None))
        rows = object.__new__(LedgerRows)
        rows.tail, rows.segments, rows._tail_block = tail, self.segments, None
        rows._packed, rows._starts = self._packed, self._starts
        return rows

    def _by_segment(self, ledger_ids: Collection[int]) -> tuple[dict[int, set[int]], set[int]]:
        """The ids that are rows of segments, by the segment's index; and all others."""
        by_segment: dict[int, set[int]] = {}
        rest: set[int] = set()
        end = self.segments[-1].last_id if self.segments else -1
        for ledger_id in ledger_ids:
            if ledger_id > end:
                rest.add(ledger_id)
                continue
            number = self._segment_of(ledger_id)
            if self.segments[number].slot_of(ledger_id) is not None:
                by_segment.setdefault(number, set()).add(ledger_id)
        return by_segment, rest

    def _segment_of(self, ledger_id: int) -> int:
        """Index of the only segment that may have the row. REQUIRES: not above all of them."""
        return bisect_left(self.segments, ledger_id, key=_last_id_of)

    def __len__(self) -> int:
        return self._packed + len(self.tail)

    @overload
    def __getitem__(self, index: int) -> LedgerInfo: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LedgerInfo, ...]: ...
    def __getitem__(self, index: int | slice) -> LedgerInfo | tuple[LedgerInfo, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        if at >= self._packed:
            return self.tail[at - self._packed]
        if at < len(self.segments[0]):
            return self.segments[0][at]
        if self._starts is None:
            self._starts = list(accumulate(map(len, self.segments), initial=0))
        number = bisect_right(self._starts, at) - 1
        return self.segments[number][at - self._starts[number]]

    def __iter__(self) -> Iterator[LedgerInfo]:
        for segment in self.segments:
            yield from segment
        yield from self.tail

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LedgerRows) or len(self) != len(other):
            return False
        if len(self.segments) == len(other.segments):
            return self.tail == other.tail and self.segments == other.segments
        return all(map(LedgerInfo.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # never a key

    def __repr__(self) -> str:
        return f"LedgerRows({len(self.segments)} segments, {self.tail!r})"


def ids_gone(before: LedgerRows, after: LedgerRows) -> list[int]:
    """Ids that one list has and a later one hasn't; segments that both have cost nothing."""
    gone: list[int] = []
    if before.segments is not after.segments:
        kept = {x.last_id: x for x in after.segments}
        for segment in before.segments:
            there = kept.get(segment.last_id)
            if there is None or not there.has_rows_of(segment):
                gone += [x for x in segment.ids if not after.has(x)]
    if before.tail != after.tail:
        left = {x.ledger_id for x in after.tail}
        ids = (x.ledger_id for x in before.tail)
        gone += [x for x in ids if x not in left and not after.has(x)]
    return gone


def _without(segment: PackedRows, ids: set[int]) -> PackedRows | None:
    if len(ids) == len(segment):
        return None
    if max(ids) == segment.ids[len(ids) - 1]:  # its first ones
        return segment.without_first(len(ids))
    return PackedRows.of([x for x in segment if x.ledger_id not in ids])


def _id_of(row: LedgerInfo) -> int:
    return row.ledger_id


def _last_id_of(segment: PackedRows) -> int:
    return segment.last_id
