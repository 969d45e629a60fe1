"""The list of ledgers that makes up a managed ledger: what is stored of it, and arithmetic on it.

`ManagedLedgerInfo` is the value of the log's metadata node (docs/formats/managed-ledger.md); every
change of it is a pure function followed by a compare-and-set (`managed_ledger.ledger_info_store`).
Its rows are `managed_ledger.ledger_rows`. `LedgerOffsets` is the same list in memory, with the live
entry count of the ledgers that are written, and answers every question about positions in
O(log n). No I/O, no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import Final

import orjson

from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.errors import ManagedLedgerFormatError
from magnetar.managed_ledger.ledger_rows import ChunkRef, LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.offload.context import (
    CopyState,
    LedgerCopy,
    OffloadContext,
    context_fields,
    copy_fields,
    parse_context,
    parse_copy,
)
from magnetar.managed_ledger.position import EARLIEST, Position

FORMAT_VERSION = 1
OFFLOAD_FORMAT_VERSION = 2
"""Of lists that name copies: a program that doesn't know them would forget where data are."""
CHUNKED_FORMAT_VERSION = 3
"""Of lists that aren't in their node alone."""
APART_FORMAT_VERSION = 4
"""Of lists that name ledgers apart."""
DELETING: Final = "pulsar.deleting"
"""Property of a log whose deletion was decided and isn't finished."""
DELETED_WITH: Final = "pulsar.deleting.logs"
"""Property of such a log: names of others that go with it, a line each."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerInfo:
    """Everything that is stored of a managed ledger, apart from its cursors.

    Invariants: ledger ids strictly ascend; every ledger but the last two is closed, unless its
    close is still under way; a doomed ledger is not in ``ledgers``. Every ledger apart is closed.
    """

    owner: str = ""
    """Token of the owner that wrote this: tells a lost compare-and-set from an ambiguous one."""
    ledgers: LedgerRows = field(default_factory=LedgerRows)
    properties: Mapping[str, str] = field(default_factory=lambda: NO_ITEMS)
    terminated: Position | None = None
    doomed: tuple[int, ...] = ()
    """Ledgers taken from the list whose deletion isn't known to have succeeded."""
    doomed_copies: tuple[LedgerCopy, ...] = ()
    """Copies that no listed ledger has any more, and that may still exist."""
    apart: tuple[LedgerInfo, ...] = ()
    """Ledgers without positions of the log that have, or had, copies: what a compaction left."""

    def with_ledger(self, ledger_id: int) -> ManagedLedgerInfo:
        """Lists a new, open ledger.

        Raises:
            ValueError: its id isn't above every id ever listed, so positions would go backwards.
        """
        last = self.ledgers[-1].ledger_id if self.ledgers else -1
        if ledger_id == last:
            return self  # a change is applied again when its first answer was lost
        if ledger_id <= last:
            raise ValueError(f"ledger {ledger_id} is not above {last}")
        return replace(self, ledgers=self.ledgers.with_row(LedgerInfo(ledger_id)))

    def with_closed(
        self, ledger_id: int, entries: int, size: int, closed_ms: int
    ) -> ManagedLedgerInfo:
        """Records the definite end of a ledger; no change when it isn't listed any more."""
        return self._with(
            [ledger_id], lambda x: replace(x, entries=entries, size=size, closed_ms=closed_ms)
        )

    def without(self, ledger_ids: Collection[int]) -> ManagedLedgerInfo:
        """Takes ledgers from the list; they become doomed."""
        apart = [x for x in self.apart if x.ledger_id in ledger_ids]
        gone = [*self.ledgers.select(ledger_ids), *apart]
        in_bookies = (
            x.ledger_id
            for x in gone
            if x.offload is None or x.offload.state is not CopyState.SETTLED
        )
        return replace(
            self,
            ledgers=self.ledgers.without(ledger_ids),
            doomed=(*self.doomed, *in_bookies),
            doomed_copies=(
                *self.doomed_copies,
                *(x.offload.copy for x in gone if x.offload is not None),
            ),
            apart=tuple(x for x in self.apart if x not in apart) if apart else self.apart,
        )

    def forget(self, ledger_ids: Collection[int]) -> ManagedLedgerInfo:
        """Drops every trace of ledgers, listed or doomed: they don't exist any more."""
        if not ledger_ids:
            return self
        return replace(
            self,
            ledgers=self.ledgers.without(ledger_ids),
            doomed=tuple(x for x in self.doomed if x not in ledger_ids),
        )

    def without_empty(self) -> ManagedLedgerInfo:
        """Dooms closed ledgers without entries, but keeps the last of the list.

        The last one stays because its id is the proof that later positions are greater. None of
        them is ever put into a segment.
        """
        tail = self.ledgers.tail[:-1]
        empty = {x.ledger_id for x in tail if x.closed_ms and not x.entries}
        return self.without(empty) if empty else self

    # Copies: each step changes nothing unless the copy it means is still there.

    def find(self, ledger_id: int) -> LedgerInfo | None:
        """A listed ledger, or one apart."""
        return self.ledgers.find(ledger_id) or self.find_apart(ledger_id)

    def find_apart(self, ledger_id: int) -> LedgerInfo | None:
        """A ledger apart."""
        return next((x for x in self.apart if x.ledger_id == ledger_id), None)

    def with_apart(self, ledger: LedgerInfo) -> ManagedLedgerInfo:
        """Names a closed ledger that isn't the log's, so that it may have a copy."""
        if self.find_apart(ledger.ledger_id) is not None:
            return self
        return replace(self, apart=(*self.apart, ledger))

    def with_copy_started(self, copy: LedgerCopy) -> ManagedLedgerInfo:
        """Names a copy before the first byte of it is written; one that was begun before and
        never proved complete is doomed. No change for a ledger that has a complete one.
        """
        ledger = self.find(copy.ledger_id)
        if ledger is None or not ledger.closed_ms or not ledger.entries:
            return self
        before = ledger.offload
        if before is not None and (before.is_complete or before.copy == copy):
            return self
        cleared = self.without_copy_started(copy.ledger_id)
        return cleared._with([copy.ledger_id], lambda x: replace(x, offload=OffloadContext(copy)))

    def without_copy_started(self, ledger_id: int) -> ManagedLedgerInfo:
        """Dooms a copy that isn't complete."""
        ledger = self.find(ledger_id)
        if ledger is None or ledger.offload is None or ledger.offload.is_complete:
            return self
        doomed = replace(self, doomed_copies=(*self.doomed_copies, ledger.offload.copy))
        return doomed._with([ledger_id], lambda x: replace(x, offload=None))

    def with_copy_complete(
        self, copy: LedgerCopy, completed_ms: int, size: int
    ) -> ManagedLedgerInfo:
        """Return the list with this copy COMPLETE: it was read back and equals the ledger."""
        return self._with_state(
            [copy.ledger_id],
            lambda x: (
                replace(x, state=CopyState.COMPLETE, completed_ms=completed_ms, size=size)
                if x.copy == copy and not x.is_complete
                else x
            ),
        )

    def with_copy_state(self, ledger_ids: Collection[int], state: CopyState) -> ManagedLedgerInfo:
        """Return the list with complete copies moved on to ``state`` (ONLY or SETTLED)."""
        return self._with_state(
            ledger_ids,
            lambda x: replace(x, state=state) if x.is_complete and x.state < state else x,
        )

    def forget_copies(self, uuids: Collection[str]) -> ManagedLedgerInfo:
        """Return the list without these doomed copies: they are deleted."""
        if not self.doomed_copies:
            return self
        kept = tuple(x for x in self.doomed_copies if x.uuid not in uuids)
        return replace(self, doomed_copies=kept)

    def _with_state(
        self, ledger_ids: Collection[int], change: Callable[[OffloadContext], OffloadContext]
    ) -> ManagedLedgerInfo:
        return self._with(
            ledger_ids,
            lambda x: x if x.offload is None else replace(x, offload=change(x.offload)),
        )

    def _with(
        self, ledger_ids: Collection[int], change: Callable[[LedgerInfo], LedgerInfo]
    ) -> ManagedLedgerInfo:
        rows, apart = self.ledgers.changed(ledger_ids, change), self.apart
        if apart:
            apart = tuple(change(x) if x.ledger_id in ledger_ids else x for x in apart)
        if rows is self.ledgers and apart == self.apart:
            return self
        return replace(self, ledgers=rows, apart=apart)

    def with_rows(self, rows: LedgerRows) -> ManagedLedgerInfo:
        """The same rows in other segments."""
        return replace(self, ledgers=rows)

    def with_properties(self, properties: Mapping[str, str]) -> ManagedLedgerInfo:
        """Replaces all properties."""
        return replace(self, properties=properties)

    def with_terminated(self, position: Position) -> ManagedLedgerInfo:
        """Seals the log."""
        return replace(self, terminated=position)

    @property
    def size(self) -> int:
        """Bytes of all closed ledgers, heads and bodies."""
        return self.ledgers.size


def encode_info(info: ManagedLedgerInfo, *, is_chunked: bool = False) -> bytes:
    """The value of the log's metadata node. REQUIRES: every segment is stored.

    Args:
        is_chunked: chunks exist that this list doesn't name.
    """
    rows = info.ledgers.tail
    value: dict[str, object] = {
        "format": FORMAT_VERSION,  # or a higher one: see below
        "owner": info.owner,
        "ledgers": [[x.ledger_id, x.entries, x.size, x.closed_ms] for x in rows],
    }
    if info.properties:
        value["properties"] = dict(info.properties)
    if info.terminated is not None:
        value["terminated"] = list(info.terminated)
    if info.doomed:
        value["doomed"] = list(info.doomed)
    offloads = [context_fields(x.offload) for x in (*rows, *info.apart) if x.offload is not None]
    if offloads or info.doomed_copies:
        value["format"] = OFFLOAD_FORMAT_VERSION
        value["offloads"] = offloads
        value["doomed_copies"] = [copy_fields(x) for x in info.doomed_copies]
    # An earlier release deletes the node of a deleted log once all that is doomed is gone.
    is_half_deleted = bool(rows) and DELETING in info.properties
    if info.ledgers.segments or is_chunked or is_half_deleted:
        value["format"] = CHUNKED_FORMAT_VERSION
        value["chunks"] = [list(x.ref()) for x in info.ledgers.segments]
    if info.apart:
        value["format"] = APART_FORMAT_VERSION
        value["apart"] = [[x.ledger_id, x.entries, x.size, x.closed_ms] for x in info.apart]
    return orjson.dumps(value)


@dataclass(frozen=True, slots=True)
class LedgerInfoNode:
    """Holds the node's content: the list without the rows in chunks, and references to chunks."""

    info: ManagedLedgerInfo
    chunks: tuple[ChunkRef, ...]
    is_chunked: bool
    """There may be chunks, named or not."""

    @property
    def is_deleted(self) -> bool:
        """The log's deletion was decided."""
        return DELETING in self.info.properties

    def with_segments(self, segments: Iterable[PackedRows]) -> ManagedLedgerInfo:
        """The whole list. REQUIRES: these are the chunks, in order."""
        return replace(self.info, ledgers=LedgerRows(self.info.ledgers, tuple(segments)))


def decode_list_node(value: bytes, path: str) -> LedgerInfoNode:
    """Inverse of `encode_info`; unknown fields are ignored, so that a later version may add some.

    Raises:
        ManagedLedgerFormatError: damaged, or of another format version; names ``path``.
    """
    try:
        fields = orjson.loads(value)
        version = fields["format"]
        if version not in range(FORMAT_VERSION, APART_FORMAT_VERSION + 1):
            raise ManagedLedgerFormatError(
                f"{path}: format version {version!r}, this program reads "
                f"{FORMAT_VERSION} to {APART_FORMAT_VERSION}"
            )
        contexts = [parse_context(x) for x in fields.get("offloads", ())]
        offloads = {x.copy.ledger_id: x for x in contexts}
        ledgers, apart = (
            tuple(
                LedgerInfo(ledger_id, entries, size, closed_ms, offloads.pop(ledger_id, None))
                for ledger_id, entries, size, closed_ms in (_integers(row, 4) for row in rows)
            )
            for rows in (fields["ledgers"], fields.get("apart", ()))
        )
        if offloads:
            raise ValueError(f"copies of ledgers that aren't listed: {sorted(offloads)}")
        terminated = fields.get("terminated")
        info = ManagedLedgerInfo(
            owner=_text(fields["owner"]),
            ledgers=LedgerRows(ledgers),
            properties={_text(k): _text(v) for k, v in fields.get("properties", {}).items()}
            or NO_ITEMS,
            terminated=None if terminated is None else _position(terminated),
            doomed=tuple(_integers(fields.get("doomed", []), None)),
            doomed_copies=tuple(parse_copy(x) for x in fields.get("doomed_copies", ())),
            apart=apart,
        )
        is_chunked = version == CHUNKED_FORMAT_VERSION or "chunks" in fields
        chunks = tuple(_chunk(x) for x in fields["chunks"]) if is_chunked else ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManagedLedgerFormatError(f"{path}: {error!r}") from error
    spans = [(x.first, x.last) for x in chunks] + [(x.ledger_id, x.ledger_id) for x in ledgers]
    is_in_order = all(before[1] < after[0] for before, after in pairwise(spans))
    if not is_in_order or any(x.first > x.last for x in chunks):
        raise ManagedLedgerFormatError(f"{path}: ledger ids don't ascend: {spans[:100]}")
    return LedgerInfoNode(info, chunks, is_chunked)


def _chunk(row: object) -> ChunkRef:
    if not isinstance(row, list):
        raise ValueError(f"not a chunk: {row!r}")
    return ChunkRef(_text(row[0]), *_integers(row[1:], 7))


def _integers(row: object, count: int | None) -> list[int]:
    if not isinstance(row, list) or not all(type(x) is int for x in row):
        raise ValueError(f"not a list of integers: {row!r}")
    if count is not None and len(row) != count:
        raise ValueError(f"not {count} integers: {row!r}")
    return row


def _position(row: object) -> Position:
    ledger_id, entry_id = _integers(row, 2)
    return (ledger_id, entry_id)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a string: {value!r}")
    return value


class LedgerOffsets:
    """Positions over the listed ledgers, by prefix sums.

    An entry's *rank* counts the entries before it, those of trimmed ledgers included; ranks shift
    when a ledger in the middle goes, so they never leave a call. ``_starts[i]`` is the rank of the
    first entry of ledger i.
    """

    __slots__ = ("_counts", "_ids", "_starts", "last_confirmed")

    def __init__(self, ledgers: Iterable[tuple[int, int]] = ()) -> None:
        """Args:
        ledgers: (ledger id, confirmed entries), ids ascending.
        """
        self._ids = array("q")
        self._counts = array("q")
        self._starts = array("q")
        self.last_confirmed: Position = EARLIEST
        """Never decreases, not even when its ledger is trimmed."""
        rows = list(ledgers)
        self.extend(array("q", [x for x, _ in rows]), array("q", [x for _, x in rows]))

    def extend(self, ids: array[int], counts: array[int]) -> None:
        """Ledgers and their confirmed entries follow. REQUIRES: ids ascend, above all others."""
        if not ids:
            return
        assert not self._ids or ids[0] > self._ids[-1]
        starts = accumulate(counts, initial=self._end)
        self._starts.extend(islice(starts, len(ids)))
        self._ids.extend(ids)
        self._counts.extend(counts)
        newest = next((n for n in range(len(ids) - 1, -1, -1) if counts[n]), None)
        if newest is not None:
            self.last_confirmed = (ids[newest], counts[newest] - 1)
        elif self.last_confirmed[1] < 0:
            self.last_confirmed = (ids[-1], -1)

    def add(self, ledger_id: int) -> None:
        """A new, empty ledger was listed. REQUIRES: its id is above all others."""
        assert not self._ids or ledger_id > self._ids[-1]
        self._starts.append(self._end)
        self._ids.append(ledger_id)
        self._counts.append(0)

    def confirm(self, ledger_id: int, entry_id: int) -> None:
        """Entries of a listed ledger up to ``entry_id`` are durable."""
        ids, counts, starts = self._ids, self._counts, self._starts
        slot = len(ids) - 1
        while ids[slot] != ledger_id:  # the ledger that is written is the last or the one before
            slot -= 1
        if entry_id < counts[slot]:
            return
        counts[slot] = entry_id + 1
        for later in range(slot + 1, len(ids)):
            starts[later] = starts[later - 1] + counts[later - 1]
        self.last_confirmed = (ledger_id, entry_id)

    def remove(self, ledger_ids: Collection[int]) -> None:
        """Ledgers were taken from the list: trimmed ones, or an empty one in the middle."""
        gone = {*ledger_ids}
        first = 0
        while first < len(self._ids) and self._ids[first] in gone:
            gone.discard(self._ids[first])
            first += 1
        del self._ids[:first], self._counts[:first], self._starts[:first]
        for ledger_id in gone:
            slot = self._slot(ledger_id)
            if slot is None:
                continue
            count = self._counts[slot]
            del self._ids[slot], self._counts[slot], self._starts[slot]
            if count:
                for later in range(slot, len(self._starts)):
                    self._starts[later] -= count

    @property
    def _end(self) -> int:
        """The rank after the last entry."""
        return self._starts[-1] + self._counts[-1] if self._ids else 0

    @property
    def _first(self) -> int:
        """The rank of the first entry: trimming leaves the other ranks as they are."""
        return self._starts[0] if self._ids else 0

    @property
    def entry_count(self) -> int:
        """Confirmed entries of all listed ledgers."""
        return self._end - self._first

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ledger_ids(self) -> list[int]:
        """A copy of the listed ids."""
        return list(self._ids)

    def counts(self) -> list[tuple[int, int]]:
        """(ledger id, confirmed entries) of every listed ledger."""
        return list(zip(self._ids, self._counts, strict=True))

    def entries(self, ledger_id: int) -> int | None:
        """Confirmed entries of one ledger; None when it isn't listed."""
        slot = self._slot(ledger_id)
        return None if slot is None else self._counts[slot]

    def _slot(self, ledger_id: int) -> int | None:
        slot = bisect_right(self._ids, ledger_id) - 1
        return slot if slot >= 0 and self._ids[slot] == ledger_id else None

    def is_valid(self, position: Position) -> bool:
        """Tells whether a confirmed entry exists at the position."""
        entries = self.entries(position[0])
        return entries is not None and 0 <= position[1] < entries

    def first_at_or_after(self, position: Position) -> Position | None:
        """First existing entry at or after the position; None when there is none."""
        rank = self._entries_upto((position[0], position[1] - 1))
        return self._at(rank) if rank < self._end else None

    def first_position(self) -> Position:
        """First existing entry; the next to be written when there is none."""
        return self.next_position(EARLIEST)

    def next_position(self, position: Position) -> Position:
        """First existing entry after the position; after all of them, the next to be written."""
        rank = self._entries_upto(position)
        if rank < self._end:
            return self._at(rank)
        ledger_id, entry_id = self.last_confirmed
        return (ledger_id, entry_id + 1)

    def previous_position(self, position: Position) -> Position:
        """Last existing entry before the position; just before the first ledger when none is."""
        rank = self._entries_upto((position[0], position[1] - 1))
        if rank > self._first:
            return self._at(rank - 1)
        before_all = (self._ids[0], -1) if self._ids else EARLIEST
        return min(before_all, self.last_confirmed)

    def position_after(self, position: Position, entries: int) -> Position:
        """``entries`` steps of `next_position`; the position itself for 0."""
        if entries <= 0:
            return position
        rank = self._entries_upto(position) + entries - 1
        if rank < self._end:
            return self._at(rank)
        return self.next_position(self.last_confirmed)

    def position_before_last(self, entries: int) -> Position:
        """The highest one behind which there are so many existing entries, or all."""
        rank = self._entries_upto(self.last_confirmed) - entries - 1
        return self._at(rank) if rank >= self._first else EARLIEST

    def entries_between(self, after: Position, upto: Position) -> int:
        """Existing entries in ``(after, upto]``; 0 when upto <= after."""
        return max(0, self._entries_upto(upto) - self._entries_upto(after))

    def _entries_upto(self, position: Position) -> int:
        """The rank of the first existing entry after the position."""
        slot = bisect_right(self._ids, position[0]) - 1
        if slot < 0:
            return self._first
        count = self._counts[slot]
        if self._ids[slot] == position[0] and position[1] < count:
            count = max(position[1] + 1, 0)
        return self._starts[slot] + count

    def _at(self, rank: int) -> Position:
        # The last of several equal starts is the one that has entries: the others are empty.
        slot = bisect_right(self._starts, rank) - 1
        return (self._ids[slot], rank - self._starts[slot])
