"""The rows of a list of ledgers: the newest as objects, older ones packed and shared. Pure.

A change of the list makes new `LedgerRows`; it shares every segment that it doesn't touch, so its
cost doesn't grow with the number of rows. Most questions about all rows (sums, "is there a copy to
finish") are answered by a segment's figures. A segment is stored as one chunk; its form is that of
docs/formats/managed-ledger.md.

Segments have up to 100, 1,000 or 10,000 rows: ten of a size that lie side by side are joined, and
one of which a row changes is split into ten. So a million rows are about a hundred segments, and a
change of a row writes a hundred rows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
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
"""Rows of a list without chunks, once every broker reads chunks; until then as many as the node
holds."""
CHUNK_ROWS = 100
"""Of the smallest chunks; twice as many are outside chunks, if there are any."""
JOINED = 10
"""So many segments become one."""
ROWS_A_TURN: Final = 1000
"""As many rows as a turn of the loop can bear as objects."""
_ZSTD_LEVEL: Final = 3
_NOT_ROWS: Final = (
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    cramjam.DecompressionError,
)
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
    """Describes a chunk in the list's node; all but ``rows`` and ``crc`` without trimmed rows."""

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

    __slots__ = ("_uuid_width", "completed_ms", "place", "places", "sizes", "states", "uuids")

    def __init__(self, fields: Mapping[str, Any], rows: int) -> None:
        """Raises ValueError, KeyError, TypeError, OverflowError: these aren't such columns."""
        self.states = array("b", fields["states"])
        self.completed_ms = array("q", fields["completed_ms"])
        self.sizes = array("q", fields["sizes"])
        self.place = array("H", fields["place"])
        self.places = [parse_copy({"ledger": 0, "uuid": "", **x}) for x in fields["places"]]
        self._set_uuids(fields["uuids"])
        columns = (self.states, self.completed_ms, self.sizes, self.place, fields["uuids"])
        if any(len(x) != rows for x in columns):
            raise ValueError("columns of copies differ in length")
        has_places = not rows or max(self.place) < len(self.places)
        if not has_places or any(x not in range(_NO_COPY, len(CopyState)) for x in self.states):
            raise ValueError("no columns of copies")

    def _set_uuids(self, uuids: Sequence[str]) -> None:
        """As one string, each as wide as the widest: a million of their own took twice as much."""
        self._uuid_width = width = max(map(len, uuids), default=0)
        self.uuids = "".join(x.ljust(width) for x in uuids)

    def _uuid(self, slot: int) -> str:
        width = self._uuid_width
        return self.uuids[slot * width : (slot + 1) * width].rstrip()

    def part(self, start: int, stop: int) -> _CopyColumns:
        """Of the rows between two slots."""
        part: _CopyColumns = object.__new__(_CopyColumns)
        part.states, part.completed_ms = self.states[start:stop], self.completed_ms[start:stop]
        part.sizes, part.place = self.sizes[start:stop], self.place[start:stop]
        part.places, part._uuid_width = self.places, self._uuid_width
        part.uuids = self.uuids[start * self._uuid_width : stop * self._uuid_width]
        return part

    def append(self, other: _CopyColumns) -> None:
        """REQUIRES: only the caller has this object; the places of both are equal."""
        if self._uuid_width == other._uuid_width:
            self.uuids += other.uuids
        else:
            self._set_uuids([*self._all_uuids(), *other._all_uuids()])
        self.states += other.states
        self.completed_ms += other.completed_ms
        self.sizes += other.sizes
        self.place += other.place

    def equals(self, other: _CopyColumns) -> bool:
        """Tells whether each column is the same."""
        columns = (self.states, self.completed_ms, self.sizes, self.place, self.places)
        if columns != (other.states, other.completed_ms, other.sizes, other.place, other.places):
            return False
        if self._uuid_width == other._uuid_width:
            return self.uuids == other.uuids
        return self._all_uuids() == other._all_uuids()

    def _all_uuids(self) -> list[str]:
        return [self._uuid(slot) for slot in range(len(self.states))]

    def fields(self) -> dict[str, Any]:
        places = [copy_fields(x) for x in self.places]
        return {
            "states": self.states.tolist(),
            "completed_ms": self.completed_ms.tolist(),
            "sizes": self.sizes.tolist(),
            "place": self.place.tolist(),
            "places": [{"driver": x["driver"], "location": x["location"]} for x in places],
            "uuids": self._all_uuids(),
        }

    def context(self, ledger_id: int, slot: int) -> OffloadContext | None:
        if self.states[slot] == _NO_COPY:
            return None
        place = self.places[self.place[slot]]
        copy = LedgerCopy(ledger_id, self._uuid(slot), place.driver, place.location)
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


class _Sums(NamedTuple):
    """Over rows; see `PackedRows`."""

    entries: int
    size: int
    copied_size: int
    uncopied: int
    started: int
    only: int


def _sums(entries: _Numbers, sizes: _Numbers, states: _Numbers | None) -> _Sums:
    total, size, uncopied = sum(entries), sum(sizes), len(entries) - entries.count(0)
    if not states:
        return _Sums(total, size, 0, uncopied, 0, 0)
    complete = int(CopyState.COMPLETE)
    counts = (states.count(CopyState.STARTED), states.count(CopyState.ONLY))
    if max(states) < complete:
        return _Sums(total, size, 0, uncopied, *counts)
    if min(states) >= complete:
        return _Sums(total, size, size, 0, *counts)
    rows = list(zip(entries, sizes, states, strict=True))
    copied = sum(x for _, x, state in rows if state >= complete)
    uncopied = sum(1 for n, _, state in rows if n and state < complete)
    return _Sums(total, size, copied, uncopied, *counts)


class PackedRows:
    """Rows in ascending order of their ids, packed; never changed.

    Attributes:
        name: of the chunk that stores it; "": none does yet.
        crc: of that chunk.
        trimmed: first rows of the columns that aren't rows of the list any more.
        size, entries: sums over the rows.
        copied_size: the part of ``size`` that has a complete copy.
        uncopied: rows with entries and without a complete copy.
        started, only: rows whose copy is in that state.
    """

    __slots__ = (
        "_closed_ms",
        "_copies",
        "_entries",
        "_ids",
        "_oldest",
        "_ref",
        "_sizes",
        "copied_size",
        "crc",
        "entries",
        "name",
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
        sums: _Sums | None = None,
    ) -> None:
        """Args:
        sums: over the rows that aren't trimmed, if they are known.
        """
        self._ids, self._entries, self._sizes, self._closed_ms = columns
        self._copies, self.trimmed, self.name, self.crc = copies, trimmed, name, crc
        self._ref: ChunkRef | None = None
        self._oldest: tuple[int, int | None] | None = None
        if sums is None:
            states = None if copies is None else copies.states[trimmed:]
            sums = _sums(self._entries[trimmed:], self._sizes[trimmed:], states)
        self.entries, self.size, self.copied_size, self.uncopied, self.started, self.only = sums

    @property
    def _all_sums(self) -> _Sums:
        copied = (self.copied_size, self.uncopied, self.started, self.only)
        return _Sums(self.entries, self.size, *copied)

    @property
    def oldest_closed_ms(self) -> int:
        """The lowest."""
        return self._oldest_times()[0]

    @property
    def oldest_complete_ms(self) -> int | None:
        """The lowest of copies in the state COMPLETE; None without any."""
        return self._oldest_times()[1]

    def _oldest_times(self) -> tuple[int, int | None]:
        if self._oldest is None:
            complete = None
            if self._copies is not None:
                times = self._copies.completed_ms[self.trimmed :]
                states = zip(times, self._copies.states[self.trimmed :], strict=True)
                complete = min((x for x, n in states if n == CopyState.COMPLETE), default=None)
            self._oldest = (min(self._closed_ms[self.trimmed :], default=0), complete)
        return self._oldest

    def complete_until(self, completed_ms: int) -> Iterator[int]:
        """Ids of the rows whose copy is in the state COMPLETE and got there by that time."""
        copies, start = self._copies, self.trimmed
        if copies is None or self.oldest_complete_ms is None:
            return iter(())
        columns = (self._ids[start:], copies.states[start:], copies.completed_ms[start:])
        return (
            ledger_id
            for ledger_id, state, at_ms in zip(*columns, strict=True)
            if state == CopyState.COMPLETE and at_ms <= completed_ms
        )

    def is_like(self, other: PackedRows) -> bool:
        """Tells whether both may form one segment: of one size, their copies in one state."""
        if self._level == _LEVELS - 1 or self._level != other._level:
            return False
        if self._copies is None or other._copies is None:
            return self._copies is other._copies
        states = {*self._copies.states[self.trimmed :], *other._copies.states[other.trimmed :]}
        return len(states) == 1 and self._copies.places == other._copies.places

    @property
    def _level(self) -> int:
        if len(self) <= CHUNK_ROWS:
            return 0
        return 1 if len(self) <= CHUNK_ROWS * JOINED else 2

    @classmethod
    def joined(cls, segments: Sequence[PackedRows]) -> PackedRows:
        """One of several. REQUIRES: they follow one another, and each is like the next."""
        first = segments[0]._part(0, len(segments[0]))
        columns, copies = first._columns(), first._copies
        for segment in segments[1:]:
            for column, other in zip(columns, segment._columns(), strict=True):
                column += other[segment.trimmed :]
            if copies is not None and segment._copies is not None:
                copies.append(segment._copies.part(segment.trimmed, len(segment._ids)))
        return cls(columns, copies)

    def _part(self, start: int, stop: int) -> PackedRows:
        start, stop = start + self.trimmed, stop + self.trimmed
        ids, entries, sizes, closed_ms = (x[start:stop] for x in self._columns())
        copies = None if self._copies is None else self._copies.part(start, stop)
        return PackedRows((ids, entries, sizes, closed_ms), copies)

    def replaced(self, rows: Mapping[int, LedgerInfo | None]) -> list[PackedRows]:
        """Segments of its rows, with others, or none, in the places of some: what is changed will
        be changed again, so these are in a small one.
        """
        if len(self) <= CHUNK_ROWS:
            kept = [x for x in (rows.get(x.ledger_id, x) for x in self) if x is not None]
            return [PackedRows.of(kept)] if kept else []
        step = max(CHUNK_ROWS, -(-len(self) // JOINED))
        segments: list[PackedRows] = []
        for start in range(0, len(self), step):
            part = self._part(start, start + step)
            some = {x: row for x, row in rows.items() if part.first_id <= x <= part.last_id}
            segments += part.replaced(some) if some else [part]
        return segments

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
        except _NOT_ROWS as error:
            raise ValueError(repr(error)) from error
        if not same or any(a >= b for a, b in pairwise(ids)):
            raise ValueError("no ascending rows")
        if not 0 <= ref.trimmed < len(ids) or found.ref() != ref:
            raise ValueError(f"not the rows of {ref}")
        found._oldest_times()  # now: those of a million rows in one turn of the loop are too long
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
        return PackedRows(
            *(self._columns(), self._copies, self.trimmed, name, crc), sums=self._all_sums
        )

    def without_first(self, count: int) -> PackedRows:
        """Without some rows, in the same chunk."""
        start, trimmed = self.trimmed, self.trimmed + count
        states = None if self._copies is None else self._copies.states[start:trimmed]
        gone = _sums(self._entries[start:trimmed], self._sizes[start:trimmed], states)
        left = _Sums(*(x - y for x, y in zip(self._all_sums, gone, strict=True)))
        return PackedRows(self._columns(), self._copies, trimmed, self.name, self.crc, left)

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

    def find(self, ledger_id: int) -> LedgerInfo | None:
        """A row."""
        at = self.slot_of(ledger_id)
        return None if at is None else self[at]

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
        return map(self.__getitem__, range(len(self)))

    def pieces(self, start: int = 0) -> Iterator[Sequence[LedgerInfo]]:
        """See `LedgerRows.pieces`.

        Args:
            start: index of the first row.
        """
        for first in range(start, len(self), ROWS_A_TURN):
            yield [self[at] for at in range(first, min(first + ROWS_A_TURN, len(self)))]

    def slot_from(self, ledger_id: int) -> int:
        """Index of the first row with this id or a higher one."""
        return bisect_left(self._ids, ledger_id, self.trimmed) - self.trimmed

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PackedRows) or self.trimmed != other.trimmed:
            return False
        if self.name and self.name == other.name:
            return self.crc == other.crc
        for ours, theirs in zip(self._columns(), other._columns(), strict=True):
            if ours[self.trimmed :] != theirs[self.trimmed :]:
                return False
        if self._copies is None and other._copies is None:
            return True
        if self._copies is not None and other._copies is not None:
            start, stop = self.trimmed, len(self._ids)
            if self._copies.part(start, stop).equals(other._copies.part(start, stop)):
                return True
        return all(map(LedgerInfo.__eq__, self, other))  # the columns of equal copies may differ

    __hash__ = None  # type: ignore[assignment]  # equal ones may have other names


_LEVELS: Final = 3
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
        for segment in self.segments:
            yield from segment.pieces()
        for start in range(0, len(self.tail), ROWS_A_TURN):
            yield self.tail[start : start + ROWS_A_TURN]

    @property
    def size(self) -> int:
        """Bytes of all closed ledgers."""
        size = 0  # no generators: each walk through all topics asks for it
        for segment in self.segments:
            size += segment.size
        for row in self.tail:
            size += row.size
        return size

    def find(self, ledger_id: int) -> LedgerInfo | None:
        """The row of a ledger."""
        if not self.segments or ledger_id > self.segments[-1].last_id:
            slot = bisect_left(self.tail, ledger_id, key=_id_of)
            found = self.tail[slot] if slot < len(self.tail) else None
            return found if found is not None and found.ledger_id == ledger_id else None
        return self.segments[self._segment_of(ledger_id)].find(ledger_id)

    def select(self, ledger_ids: Collection[int]) -> list[LedgerInfo]:
        """The rows of those of the ledgers that are listed."""
        by_segment, rest = self._by_segment(ledger_ids)
        rows = (
            self.segments[number].find(ledger_id)
            for number in sorted(by_segment)
            for ledger_id in sorted(by_segment[number])
        )
        packed = [x for x in rows if x is not None]
        return packed + [x for x in self.tail if x.ledger_id in rest]

    def has(self, ledger_id: int) -> bool:
        """Tells whether a ledger is listed."""
        if not self.segments or ledger_id > self.segments[-1].last_id:
            return self.find(ledger_id) is not None
        return self.segments[self._segment_of(ledger_id)].slot_of(ledger_id) is not None

    def ids(self) -> Iterator[int]:
        """All ids, ascending."""
        for segment in self.segments:
            yield from segment.ids
        yield from (x.ledger_id for x in self.tail)

    def segments_from(self, ledger_id: int) -> tuple[PackedRows, ...]:
        """Return the segments that hold ``ledger_id`` or later ids."""
        return self.segments[bisect_left(self.segments, ledger_id, key=_last_id_of) :]

    def from_id(self, ledger_id: int) -> Iterator[LedgerInfo]:
        """Yield the rows of ``ledger_id`` and of all later ledgers."""
        for segment in self.segments_from(ledger_id):
            yield from map(segment.__getitem__, range(segment.slot_from(ledger_id), len(segment)))
        yield from self.tail[bisect_left(self.tail, ledger_id, key=_id_of) :]

    def with_row(self, row: LedgerInfo) -> LedgerRows:
        """Return the rows with one more at the end."""
        return self._with((*self.tail, row), {})

    def changed(
        self, ledger_ids: Collection[int], change: Callable[[LedgerInfo], LedgerInfo]
    ) -> LedgerRows:
        """Return the rows with those of these ledgers changed; ``self`` if no row differs."""
        by_segment, rest = self._by_segment(ledger_ids)
        tail = tuple(change(x) if x.ledger_id in rest else x for x in self.tail)
        changed: dict[int, Sequence[PackedRows]] = {}
        for number, ids in by_segment.items():
            old = filter(None, map(self.segments[number].find, ids))
            rows = {x.ledger_id: new for x in old if (new := change(x)) != x}
            if rows:
                changed[number] = self.segments[number].replaced(rows)
        if tail == self.tail and not changed:
            return self
        return self._with(tail, changed)

    def without(self, ledger_ids: Collection[int]) -> LedgerRows:
        """Return the rows without these ledgers; ``self`` if none is listed."""
        by_segment, rest = self._by_segment(ledger_ids)
        tail = tuple(x for x in self.tail if x.ledger_id not in rest)
        if len(tail) == len(self.tail) and not by_segment:
            return self
        left = {n: _without(self.segments[n], ids) for n, ids in by_segment.items()}
        return self._with(tail, left)

    def cut(self, tail_rows_max: int) -> LedgerRows:
        """Return the rows with the oldest rows of the tail moved into one more segment.

        Return ``self`` if the tail has at most ``tail_rows_max`` rows, or if one of the rows to
        move is of an open ledger and can still change or be removed.
        """
        if len(self.tail) <= tail_rows_max:
            return self
        count = min(len(self.tail) - 1, CHUNK_ROWS)
        rows = self.tail[:count]
        if not all(x.closed_ms and x.entries for x in rows):
            return self
        return LedgerRows(self.tail[count:], (*self.segments, PackedRows.of(rows)))

    def joined(self) -> LedgerRows:
        """With the first ten small segments that lie side by side in one; itself without any."""
        start = 0
        for end, segment in enumerate(self.segments):
            if end and not segment.is_like(self.segments[end - 1]):
                start = end
            if end - start + 1 == JOINED:
                one = PackedRows.joined(self.segments[start : end + 1])
                segments = (*self.segments[:start], one, *self.segments[end + 1 :])
                return LedgerRows(self.tail, segments)
        return self

    def with_segments(self, others: Mapping[int, PackedRows]) -> LedgerRows:
        """With other segments at these indexes, of the same rows."""
        return self._with(self.tail, {number: (each,) for number, each in others.items()})

    def _with(
        self, tail: tuple[LedgerInfo, ...], others: Mapping[int, Sequence[PackedRows]]
    ) -> LedgerRows:
        if others:
            by_index = (others.get(n, (x,)) for n, x in enumerate(self.segments))
            return LedgerRows(tail, tuple(chain.from_iterable(by_index)))
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
        if self.segments is other.segments:
            return self.tail == other.tail
        if self._packed == other._packed:
            return self.tail == other.tail and _are_equal(self.segments, other.segments)
        return _are_equal(self.blocks(), other.blocks())

    __hash__ = None  # type: ignore[assignment]  # never a key

    def __repr__(self) -> str:
        return f"LedgerRows({len(self.segments)} segments, {self.tail!r})"


def _are_equal(blocks: Iterable[PackedRows], others: Iterable[PackedRows]) -> bool:
    """Tells whether all rows are the same, by column, however they are divided into segments:
    a million rows as objects would hold the loop for seconds.
    """
    left, others_left = iter(blocks), iter(others)
    block, other, at, other_at = next(left, None), next(others_left, None), 0, 0
    while block is not None and other is not None:
        count = min(len(block) - at, len(other) - other_at)
        if count == len(block) == len(other) and block.trimmed == other.trimmed:
            is_same = block == other
        else:
            is_same = block._part(at, at + count) == other._part(other_at, other_at + count)
        if not is_same:
            return False
        at, other_at = at + count, other_at + count
        if at == len(block):
            block, at = next(left, None), 0
        if other_at == len(other):
            other, other_at = next(others_left, None), 0
    return True


def ids_gone(before: LedgerRows, after: LedgerRows) -> list[int]:
    """Ids that one list has and a later one hasn't; segments that both have cost nothing."""
    gone: list[int] = []
    old, new = {x.ledger_id for x in before.tail}, {x.ledger_id for x in after.tail}
    if before.segments is not after.segments:
        kept = {id(x._ids): x for x in after.segments}
        for segment in before.segments:
            there = kept.pop(id(segment._ids), None)
            if there is None:
                old.update(segment.ids)
            elif there.trimmed > segment.trimmed:
                gone += segment._ids[segment.trimmed : there.trimmed]
        for segment in kept.values():
            new.update(segment.ids)
    return gone + sorted(old - new)


def _without(segment: PackedRows, ids: set[int]) -> list[PackedRows]:
    if len(ids) == len(segment):
        return []
    if max(ids) == segment[len(ids) - 1].ledger_id:  # its first ones
        return [segment.without_first(len(ids))]
    return segment.replaced(dict.fromkeys(ids))


def _id_of(row: LedgerInfo) -> int:
    return row.ledger_id


def _last_id_of(segment: PackedRows) -> int:
    return segment.last_id
