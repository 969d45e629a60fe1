"""Which entries a subscription has acknowledged: calls in, answers out; no clock, task or store.

Everything up to and including ``mark_delete`` is acknowledged. Above it, acknowledged entries are
one bitmap per ledger, so a million holes cost what a million bits cost, and there is no limit past
which holes are forgotten. A batch of which only some indexes are acknowledged keeps a bit mask of
the indexes that are left.

The state also collects what changed since it was last stored (`take_increment`), so that an
ordinary cursor write is a few dozen bytes however large the state is.

All calls take many positions at once; the common case, a list that continues at mark-delete,
touches no bitmap at all.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from struct import error as StructError
from struct import pack, unpack
from typing import Final, Protocol, TypeVar

from pyroaring import BitMap

from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.errors import InvalidPositionError
from magnetar.managed_ledger.position import Position, format_position

_Value = TypeVar("_Value")

BATCH_WORDS_MAX: Final = 4096
"""Longest ack set accepted, in words of 64 indexes: what a client can make us keep per entry."""

WIDE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a cursor, kept for batches acknowledged in part that are larger than `_WIDE_BITS` messages."""

_WIDE_BITS: Final = 1_024
_WORD_MASK: Final = (1 << 64) - 1
_PROPERTIES_AT_ONCE: Final = 1000
_PROPERTIES_CHARACTERS_AT_ONCE: Final = 16 << 10
_SET_BYTES: Final = 14  # stored of a batch of up to 64 messages
_ADOPTED_LEDGERS: Final = 1000  # of a slice
_ADOPTED_SETS: Final = 16 << 10


class LedgerPositions(Protocol):
    """Defines the calls of the state to its log: a part of `managed_ledger_info.LedgerOffsets`."""

    @property
    def last_confirmed(self) -> Position: ...

    def entries(self, ledger_id: int) -> int | None: ...

    def next_position(self, position: Position) -> Position: ...

    def previous_position(self, position: Position) -> Position: ...

    def entries_between(self, after: Position, upto: Position) -> int: ...


def words_to_mask(words: Sequence[int]) -> int:
    """The bit mask that an ack set of the wire stands for (bit set: index not acknowledged).

    Raises:
        InvalidPositionError: more than `BATCH_WORDS_MAX` words.
    """
    if len(words) == 1:
        return words[0] & _WORD_MASK
    if len(words) > BATCH_WORDS_MAX:
        raise InvalidPositionError(
            f"an ack set of {len(words)} words; at most {BATCH_WORDS_MAX} are accepted"
        )
    # Not word by word: to shift a growing number is quadratic, 20 ms for the longest set.
    try:
        data = pack(f"<{len(words)}q", *words)
    except StructError:  # unsigned ones, as other clients write them
        data = pack(f"<{len(words)}Q", *(word & _WORD_MASK for word in words))
    return int.from_bytes(data, "little")


def mask_to_words(mask: int) -> list[int]:
    """Signed 64-bit words, lowest indexes first, without trailing zero words."""
    count = -(-mask.bit_length() // 64)
    return list(unpack(f"<{count}q", mask.to_bytes(8 * count, "little")))


def run_end(entries: BitMap, start: int) -> int:
    """First id from ``start`` on that isn't in the bitmap; O(log of the run) bitmap look-ups."""
    step = 64
    # pyroaring answers nonsense for ranges that end above the largest id.
    while start + step <= ENTRY_END and entries.contains_range(start, start + step):
        start += step
        step *= 2
    while step > 1:
        step //= 2
        if start + step <= ENTRY_END and entries.contains_range(start, start + step):
            start += step
    return start


def runs_of(acked: Mapping[int, BitMap], runs_max: int) -> list[tuple[Position, Position]]:
    """The first runs of entries in bitmaps by ledger, none of them empty: (before first, last)."""
    found: list[tuple[Position, Position]] = []
    for ledger_id in sorted(acked):
        entries = acked[ledger_id]
        start: int | None = entries.min()
        while start is not None:
            if len(found) == runs_max:
                return found
            end = run_end(entries, start)
            found.append(((ledger_id, start - 1), (ledger_id, end - 1)))
            rank = entries.rank(end)  # how many ids are at or below the end
            start = entries[rank] if rank < len(entries) else None
    return found


class _WideSets:
    """How much memory batch sets of many messages take; small ones take what their entry does.

    Sets leave without a word, so that those that are gone are looked for when there is no room,
    and then not again before an eighth as many sets were refused as there are.
    """

    def __init__(self) -> None:
        self._sizes: dict[Position, int] = {}
        self._bytes = 0
        self._refusals_left = 0

    def add(self, position: Position, size: int, live: Mapping[int, Mapping[int, int]]) -> None:
        """
        Raises:
            InvalidPositionError: there is no room for ``size`` bytes.
        """
        if self._bytes + size > WIDE_BYTES_MAX and self._refusals_left == 0:
            self._sizes = {
                known: bytes_
                for known, bytes_ in self._sizes.items()
                if known[1] in live.get(known[0], ())
            }
            self._bytes = sum(self._sizes.values())
            self._refusals_left = len(self._sizes) // 8
        if self._bytes + size > WIDE_BYTES_MAX:
            self._refusals_left = max(self._refusals_left - 1, 0)
            raise InvalidPositionError(
                f"large batches acknowledged in part take {self._bytes} bytes; at most"
                f" {WIDE_BYTES_MAX} are kept of a subscription"
            )
        self._bytes += size - self._sizes.get(position, 0)
        self._sizes[position] = size


@dataclass(slots=True, eq=False, repr=False)
class AckState:
    """Acknowledged positions of one cursor. One object, because every method keeps, or relies on,
    the invariants between its bitmaps, batch sets and mark-delete.

    Invariants, after every call: all ids in ``_acked`` are above mark_delete and exist in the log;
    the entry after mark_delete isn't in it; no bitmap and no dict of sets is empty; an entry with a
    batch set isn't acknowledged.
    """

    _log: LedgerPositions
    mark_delete: Position
    properties: dict[str, int] = field(default_factory=lambda: NO_ITEMS, init=False)
    generation: int = field(default=0, init=False)
    """Grows with every reset: what was read or dispatched before belongs to the past."""
    _acked: dict[int, BitMap] = field(default_factory=lambda: NO_ITEMS, init=False)
    _batch_sets: dict[int, dict[int, int]] = field(default_factory=lambda: NO_ITEMS, init=False)
    _wide: _WideSets | None = field(default=None, init=False)
    _changed_acked: dict[int, BitMap] = field(default_factory=lambda: NO_ITEMS, init=False)
    _changed_batches: dict[int, BitMap] = field(default_factory=lambda: NO_ITEMS, init=False)
    _properties_changed: bool = field(default=False, init=False)
    _stored_mark_delete: Position = field(init=False)

    def __post_init__(self) -> None:
        self._stored_mark_delete = self.mark_delete

    # -- acknowledgements ------------------------------------------------------------------------

    def ack(self, positions: Sequence[Position]) -> bool:
        """Acknowledge whole entries, in any order; unknown, trimmed and acknowledged ones are
        ignored.

        Returns:
            Whether anything changed.
        """
        if not positions:
            return False
        ledger_id = positions[0][0]
        entries = [entry_id for ledger, entry_id in positions if ledger == ledger_id]
        if len(entries) == len(positions):
            return self._ack_entries(ledger_id, entries)
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions:
            by_ledger.setdefault(ledger_id, []).append(entry_id)
        # Ascending, so that mark-delete passes each ledger end at once.
        results = [self._ack_entries(ledger, by_ledger[ledger]) for ledger in sorted(by_ledger)]
        return any(results)

    def ack_cumulative(
        self, position: Position, properties: Mapping[str, int] | None = None
    ) -> bool:
        """Acknowledge everything up to and including ``position``.

        Args:
            properties: replace the stored ones; None keeps them. Ignored with a position below
                mark-delete, which is ignored as well.

        Raises:
            InvalidPositionError: the position is beyond the last confirmed entry.
        """
        target = self._existing(position)
        if target < self.mark_delete:
            return False
        changed = False
        if properties is not None and properties != self.properties:
            self.set_properties(properties)
            changed = True
        if target > self.mark_delete:
            self._move(target)
            changed = True
        return changed

    def set_properties(self, properties: Mapping[str, int]) -> None:
        """Replace the position's properties."""
        self.properties = dict(properties)
        self._properties_changed = True

    def ack_batch(self, position: Position, ack_set: Sequence[int]) -> bool:
        """Acknowledge indexes of one batch.

        Args:
            ack_set: words as on the wire, bit set = index not acknowledged; combined by AND with
                what is known. Empty or zero: the whole entry.

        Returns:
            Whether anything changed. `is_acked` tells whether the entry is done as a whole.

        Raises:
            InvalidPositionError: the set is too long, or there is no room for one more of its size.
        """
        ledger_id, entry_id = position
        remaining = words_to_mask(ack_set)
        if remaining == 0:
            return self._ack_entries(ledger_id, [entry_id])
        if self.is_acked(position) or not self._exists(position):
            return False
        sets = self._batch_sets.get(ledger_id)
        known = None if sets is None else sets.get(entry_id)
        if known is not None:
            remaining &= known
            if remaining == 0:
                return self._ack_entries(ledger_id, [entry_id])
            if remaining == known:
                return False
        if known is None and remaining.bit_length() > _WIDE_BITS:
            if self._wide is None:
                self._wide = _WideSets()
            self._wide.add(position, remaining.bit_length() >> 3, self._batch_sets)
        if sets is None:
            sets = {}
            self._batch_sets = _with(self._batch_sets, ledger_id, sets)
        sets[entry_id] = remaining
        if (entries := self._changed_batches.get(ledger_id)) is None:
            entries = BitMap()
            self._changed_batches = _with(self._changed_batches, ledger_id, entries)
        entries.add(entry_id)
        return True

    def ack_cumulative_batch(self, position: Position, ack_set: Sequence[int]) -> bool:
        """Acknowledge everything before ``position`` and the cleared indexes of its batch.

        Raises:
            InvalidPositionError: the position is beyond the last confirmed entry.
        """
        if words_to_mask(ack_set) == 0:
            return self.ack_cumulative(position)
        self._existing(position)
        if position <= self.mark_delete:
            return False
        before = self._log.previous_position(position)
        changed = before > self.mark_delete
        if changed:
            self._move(before)
        return self.ack_batch(position, ack_set) or changed

    def advance_to(self, mark_delete: Position) -> bool:
        """Move forward without a question: the log below was trimmed. Never moves back."""
        if mark_delete <= self.mark_delete:
            return False
        self._move(mark_delete)
        return True

    # -- questions -------------------------------------------------------------------------------

    def is_acked(self, position: Position) -> bool:
        """Tells whether the whole entry is acknowledged."""
        if position <= self.mark_delete:
            return True
        entries = self._acked.get(position[0])
        return entries is not None and 0 <= position[1] < ENTRY_END and position[1] in entries

    def acked_in(self, ledger_id: int, first: int, count: int) -> list[int] | None:
        """Acknowledged ids among ``first .. first + count - 1``, ascending; None when there are
        none.
        """
        end = first + count
        marked_ledger, marked = self.mark_delete
        if ledger_id < marked_ledger:
            return list(range(first, end)) or None
        below: list[int] = []
        if ledger_id == marked_ledger and first <= marked:
            below = list(range(first, min(marked + 1, end)))
        entries = self._acked.get(ledger_id)
        end = min(end, ENTRY_END)
        if entries is not None and first < end and entries.range_cardinality(first, end):
            below.extend(entries & BitMap(range(first, end)))
        return below or None

    def batch_ack_set(self, position: Position) -> list[int] | None:
        """Words of the indexes left of a partly acknowledged batch; None when it isn't one."""
        sets = self._batch_sets.get(position[0])
        mask = None if sets is None else sets.get(position[1])
        return None if mask is None else mask_to_words(mask)

    def batch_messages_left(self, position: Position) -> int:
        """How many indexes are left of a partly acknowledged batch; 0 when it isn't one."""
        sets = self._batch_sets.get(position[0])
        return 0 if sets is None else sets.get(position[1], 0).bit_count()

    def first_unacked(self) -> Position:
        """Where a rewound reader starts; exists, or is the next to be written."""
        if self._acked:
            self._advance()  # the log may have lost or trimmed the ledgers in between
        return self._log.next_position(self.mark_delete)

    def first_unacked_from(self, position: Position) -> Position | None:
        """First unacknowledged entry at or after a position; None: there is none yet."""
        log = self._log
        found = log.next_position(max((position[0], position[1] - 1), self.mark_delete))
        while found <= log.last_confirmed:
            entries = self._acked.get(found[0])
            if entries is None or found[1] not in entries:
                return found
            found = log.next_position((found[0], run_end(entries, found[1]) - 1))
        return None

    @property
    def backlog(self) -> int:
        """Confirmed entries that aren't acknowledged as a whole; O(ledgers with holes)."""
        last = self._log.last_confirmed
        if not self._acked:
            # Most cursors, of very many, are at the end of their log.
            return (
                0 if self.mark_delete >= last else self._log.entries_between(self.mark_delete, last)
            )
        total = self._log.entries_between(self.mark_delete, last)
        return total - sum(map(len, self._acked.values()))

    @property
    def acked_above(self) -> int:
        """Acknowledged entries above mark-delete."""
        return sum(map(len, self._acked.values()))

    @property
    def range_count(self) -> int:
        """Runs of acknowledged entries above mark-delete; a few bitmap operations a ledger."""
        return sum(len(x) - x.intersection_cardinality(x.shift(1)) for x in self._acked.values())

    @property
    def bitmap_bytes(self) -> int:
        """Memory of the bitmaps, which is about what a snapshot of them takes."""
        total = 0
        for entries in self._acked.values():
            metrics = entries.get_statistics()
            total += metrics["n_bytes_array_containers"]
            total += metrics["n_bytes_run_containers"] + metrics["n_bytes_bitset_containers"]
        return total

    @property
    def work(self) -> int:
        """About what encoding everything takes, as `cursor_format.work_of` counts it."""
        return 2 * self.acked_above + _SET_BYTES * self.batch_set_count

    @property
    def changed_work(self) -> int:
        """The same of the next increment."""
        entries = sum(map(len, self._changed_acked.values()))
        return 2 * entries + _SET_BYTES * sum(map(len, self._changed_batches.values()))

    @property
    def has_many_properties(self) -> bool:
        """Too many for an increment, and for encoding them at once."""
        properties = self.properties
        return (
            len(properties) > _PROPERTIES_AT_ONCE
            or sum(map(len, properties)) > _PROPERTIES_CHARACTERS_AT_ONCE
        )

    @property
    def properties_changed(self) -> bool:
        """Since the last `take_increment` or `mark_stored`."""
        return self._properties_changed

    def ranges(self, ranges_max: int) -> list[tuple[Position, Position]]:
        """The first runs of acknowledged entries above mark-delete, as (before first, last)."""
        return runs_of(self._acked, ranges_max)

    @property
    def batch_set_count(self) -> int:
        """Partly acknowledged batches."""
        return sum(map(len, self._batch_sets.values()))

    # -- stored form -----------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        """Tells whether the state changed since the last `take_increment` or `mark_stored`."""
        return (
            self.mark_delete != self._stored_mark_delete
            or bool(self._changed_acked)
            or bool(self._changed_batches)
            or self._properties_changed
        )

    def take_increment(self) -> CursorImage:
        """Takes the changes since the last take; the caller stores them, or a whole image later."""
        mark_delete = self.mark_delete
        acked = _above(self._changed_acked, mark_delete)
        batches = {
            ledger_id: {e: sets[e] for e in entries if e in sets}
            for ledger_id, entries in self._changed_batches.items()
            if (sets := self._batch_sets.get(ledger_id)) is not None
        }
        properties = dict(self.properties) if self._properties_changed else None
        self._clear_changes()
        return CursorImage(mark_delete, acked, batches, properties)

    def image(self) -> CursorImage:
        """Return the whole state. It shares its bitmaps and sets with the cursor: encode it before
        the next change, or in pieces as `mark_stored` describes.
        """
        return CursorImage(
            self.mark_delete, dict(self._acked), dict(self._batch_sets), dict(self.properties)
        )

    def mark_stored(self) -> None:
        """Forget the recorded changes: the caller begins to store a whole image.

        Later changes are stored as an increment to that image. The caller may encode it over
        several ticks if it encodes mark-delete and the properties last. Acknowledgements are only
        added, so a piece may be newer than this call, and a piece below the new mark-delete isn't
        needed.
        """
        self._clear_changes()

    def image_for_reset(
        self,
        position: Position,
        ack_set: Sequence[int] = (),
        properties: Mapping[str, int] = NO_ITEMS,
    ) -> CursorImage:
        """Return the image of a cursor that delivers the entry at ``position`` next.

        If that entry doesn't exist, the cursor delivers the next one that does. A position beyond
        the end means the end of the log: the cursor delivers only new entries.

        Args:
            ack_set: non-empty: indexes of the entry at ``position`` that are left to deliver.
            properties: of the new position.
        """
        if position > self._log.last_confirmed:
            mark_delete = self._log.last_confirmed
        else:
            mark_delete = self._log.previous_position(position)
        image = CursorImage(mark_delete, properties=dict(properties))
        mask = words_to_mask(ack_set)
        if mask and self._exists(position):
            image.batch_sets[position[0]] = {position[1]: mask}
        return image

    def adopt(self, image: CursorImage) -> None:
        """Replace everything by a stored image, which must not be used afterwards; forgets what
        changed before.
        """
        self.generation += 1
        for _ in self.adopt_slices(image):
            pass

    def adopt_slices(self, image: CursorImage) -> Iterator[None]:
        """`adopt` of what was stored, at an open: drops whatever the log doesn't have (any more).
        In slices of a millisecond or so, for a caller with other things to do in between; until the
        last one the state is in the making, and nothing else may be asked of it.

        A mark-delete beyond the end goes to the end, one in a trimmed ledger counts as is: the next
        existing entry follows it.
        """
        self.mark_delete = min(image.mark_delete, self._log.last_confirmed)
        self.properties = dict(image.properties) if image.properties else NO_ITEMS
        self._acked, self._batch_sets = {}, {}
        for count, (ledger_id, entries) in enumerate(image.acked.items(), 1):
            low, end = self._range_above(ledger_id)
            if entries and entries.min() < low:
                entries.remove_range(0, min(low, ENTRY_END))
            if entries and entries.max() >= end:
                entries.remove_range(end, ENTRY_END)
            if entries:
                self._acked[ledger_id] = entries
            if count % _ADOPTED_LEDGERS == 0:
                yield
        for ledger_id, sets in image.batch_sets.items():
            yield from self._adopt_sets(ledger_id, sets)
        if self._acked:
            self._advance()
        self._clear_changes()

    def _adopt_sets(self, ledger_id: int, sets: dict[int, int]) -> Iterator[None]:
        low, end = self._range_above(ledger_id)
        if low >= end:
            return
        acked = self._acked.get(ledger_id)
        entries = iter(sets)
        dropped: list[BitMap] = []
        while some := array("I", islice(entries, _ADOPTED_SETS)):
            known = BitMap(some)
            kept = known & BitMap(range(low, end))
            if acked is not None:
                kept -= acked
            if len(kept) < len(known):
                dropped.append(known - kept)
            yield
        for known in dropped:
            for entry_id in known:
                del sets[entry_id]
            yield
        if sets:
            self._batch_sets[ledger_id] = sets

    def _range_above(self, ledger_id: int) -> tuple[int, int]:
        """Entries that a ledger has above mark-delete, of those that a bitmap holds: first, end."""
        marked_ledger, marked = self.mark_delete
        confirmed = self._log.entries(ledger_id)
        if confirmed is None or ledger_id < marked_ledger:
            return ENTRY_END, 0
        return marked + 1 if ledger_id == marked_ledger else 0, min(confirmed, ENTRY_END)

    # -- inside ----------------------------------------------------------------------------------

    def _ack_entries(self, ledger_id: int, entries: list[int]) -> bool:
        """``entries``: not empty."""
        confirmed = self._log.entries(ledger_id)
        marked_ledger, marked = self.mark_delete
        if confirmed is None or ledger_id < marked_ledger:
            return False
        first, count = entries[0], len(entries)
        low = 0
        if ledger_id == marked_ledger:
            low = marked + 1
            if (
                first == low
                and low + count <= confirmed
                and (count == 1 or entries == list(range(first, first + count)))
            ):
                self._move((ledger_id, marked + count))
                return True
        try:
            fresh = BitMap(entries)
        except OverflowError:
            fresh = BitMap([e for e in entries if 0 <= e < ENTRY_END])
        if low:
            fresh.remove_range(0, min(low, ENTRY_END))
        if fresh and fresh.max() >= confirmed:
            fresh.remove_range(confirmed, ENTRY_END)
        acked = self._acked.get(ledger_id)
        if acked is not None:
            fresh -= acked
        if not fresh:
            return False
        self._add(ledger_id, acked, fresh)
        return True

    def _add(self, ledger_id: int, acked: BitMap | None, fresh: BitMap) -> None:
        """Adds ids that are above mark-delete, exist and aren't acknowledged yet."""
        if (sets := self._batch_sets.get(ledger_id)) is not None:
            if len(fresh) < len(sets):
                done = [e for e in fresh if e in sets]
            else:
                done = [e for e in sets if e in fresh]
            _drop(self._batch_sets, ledger_id, done)
        changed = self._changed_acked.get(ledger_id)
        if changed is None:
            self._changed_acked = _with(self._changed_acked, ledger_id, fresh.copy())
        else:
            changed |= fresh
        if acked is None:
            acked = fresh
            self._acked = _with(self._acked, ledger_id, acked)
        else:
            acked |= fresh
        marked_ledger, marked = self.mark_delete
        if acked.min() == (marked + 1 if ledger_id == marked_ledger else 0):
            self._advance()

    def _move(self, mark_delete: Position) -> None:
        """REQUIRES: not below the current one. Drops what it passes."""
        marked_ledger, marked = self.mark_delete
        crossed = mark_delete[0] != marked_ledger
        self.mark_delete = mark_delete
        if self._acked:
            if crossed:
                for ledger_id in [i for i in self._acked if i < mark_delete[0]]:
                    del self._acked[ledger_id]
            self._advance()
        if self._batch_sets:
            self._drop_passed_sets(marked + 1 if not crossed else 0)

    def _advance(self) -> None:
        """Moves mark-delete over the acknowledged entries behind it, over ledger ends too."""
        ledger_id, entry_id = self.mark_delete
        while True:
            entries = self._acked.get(ledger_id)
            if entries is not None:
                entries.remove_range(0, min(entry_id + 1, ENTRY_END))
                if entries and entries.min() == entry_id + 1:
                    entry_id = run_end(entries, entry_id + 1) - 1
                    entries.remove_range(0, entry_id + 1)
                if not entries:
                    del self._acked[ledger_id]
            if len(self._acked) == (ledger_id in self._acked):
                break  # no other ledger to go on to
            next_ledger, next_entry = self._log.next_position((ledger_id, entry_id))
            entries = self._acked.get(next_ledger)
            if next_ledger == ledger_id or entries is None or next_entry not in entries:
                break
            ledger_id, entry_id = next_ledger, next_entry - 1
        self.mark_delete = (ledger_id, entry_id)

    def _drop_passed_sets(self, first: int) -> None:
        """``first``: the lowest entry id of mark-delete's ledger that may have a set to drop."""
        marked_ledger, marked = self.mark_delete
        for ledger_id in [i for i in self._batch_sets if i < marked_ledger]:
            del self._batch_sets[ledger_id]
        if (sets := self._batch_sets.get(marked_ledger)) is not None:
            # Whichever is shorter: acknowledging in order must not cost a walk over all sets.
            if marked - first < len(sets):
                passed = [e for e in range(first, marked + 1) if e in sets]
            else:
                passed = [e for e in sets if e <= marked]
            _drop(self._batch_sets, marked_ledger, passed)

    def _exists(self, position: Position) -> bool:
        confirmed = self._log.entries(position[0])
        return confirmed is not None and 0 <= position[1] < min(confirmed, ENTRY_END)

    def _existing(self, position: Position) -> Position:
        """The last existing entry at or before ``position``."""
        if position > self._log.last_confirmed:
            raise InvalidPositionError(
                f"{format_position(position)} is beyond the last confirmed entry "
                f"{format_position(self._log.last_confirmed)}"
            )
        confirmed = self._log.entries(position[0])
        if confirmed is not None and position[1] < confirmed:
            return position
        return self._log.previous_position(position)

    def _clear_changes(self) -> None:
        self._changed_acked = self._changed_batches = NO_ITEMS
        self._properties_changed = False
        self._acked = self._acked or NO_ITEMS
        self._batch_sets = self._batch_sets or NO_ITEMS
        self._stored_mark_delete = self.mark_delete


def _with(items: dict[int, _Value], ledger_id: int, value: _Value) -> dict[int, _Value]:
    """The dict with one more item: itself, unless it is the empty one of all idle cursors."""
    if items is NO_ITEMS:
        return {ledger_id: value}
    items[ledger_id] = value
    return items


def _above(acked: dict[int, BitMap], mark_delete: Position) -> dict[int, BitMap]:
    """The parts above mark-delete; may change the bitmaps given."""
    marked_ledger, marked = mark_delete
    kept = {}
    for ledger_id, entries in acked.items():
        if ledger_id == marked_ledger:
            entries.remove_range(0, min(marked + 1, ENTRY_END))
        if ledger_id >= marked_ledger and entries:
            kept[ledger_id] = entries
    return kept


def _drop(batch_sets: dict[int, dict[int, int]], ledger_id: int, entries: list[int]) -> None:
    sets = batch_sets[ledger_id]
    for entry_id in entries:
        del sets[entry_id]
    if not sets:
        del batch_sets[ledger_id]
