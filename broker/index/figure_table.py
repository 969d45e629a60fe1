"""Figures of many named things, in columns: a page of them, counts and sums, a slice at a time.

Nothing is kept in order. A page is found by one look at every row, of which only those count that
are better than the worst of the page so far; that is 5 to 20 ms for 100,000 rows, in slices. An
order that is kept had to be renewed for every row that changes, whoever asks.
"""

from array import array
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import Any, Final, TypeVar

UNKNOWN: Final = -inf
"""Stands for a figure that isn't known; such rows come last in both orders."""
LOADED, UNLOADED_HERE, UNLOADED, ELSEWHERE, _FREE = range(5)
"""Places of a row: served here; in a bundle of this broker, of none, of another one."""
SLICE_ROWS: Final = 1_000
"""Looked at before others get their turn on the loop: half a millisecond."""

_MORE_ROWS: Final = 1_000
_PARTS: Final = 64
_Number = TypeVar("_Number", int, float)
_Kept = TypeVar("_Kept", list[Any], "array[Any]", bytearray)
_RUN_ROWS: Final = 16
"""Rows of a namespace that lie together from so many on are added without a look at each."""
_RUNS_MAX: Final = 64
"""Of a step: a run of rows of one namespace is an addition to each of its figures."""


class SlotsByKey:
    """A dictionary in parts: one of 100,000 keys holds the loop for 2 to 4 ms when it grows."""

    def __init__(self) -> None:
        self.parts = tuple(dict[Hashable, int]() for _ in range(_PARTS))

    def part(self, key: Hashable) -> dict[Hashable, int]:
        # Bits that are high: by the low ones a dictionary finds the place of a key.
        return self.parts[(hash(key) >> 40) % _PARTS]

    def get(self, key: Hashable) -> int | None:
        return self.part(key).get(key)

    def __getitem__(self, key: Hashable) -> int:
        return self.part(key)[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self.part(key)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


class FigureTable:
    """Rows with a name, a namespace, a place and figures; only its methods change it.

    Invariant: a slot holds one row or is free; a row keeps its slot as long as it is there.
    """

    def __init__(self, fields: Sequence[str], *, are_parts: bool = False) -> None:
        """Columns and lists may be longer than there are slots.

        Args:
            fields: names of the figures.
            are_parts: whether who may see a row is asked with its group, not with its key.
        """
        self.fields = tuple(fields)
        self._growing: list[tuple[Any, Any]] = []  # what has something by slot, and what is added
        self.columns = {field: self.numbers("d", UNKNOWN) for field in fields}
        self._columns = tuple(self.columns.values())
        self.slot_of = SlotsByKey()
        self.end = 0
        """Behind the last slot."""
        self.keys: list[Any] = self._by_slot([None])
        self.names: list[str] = self._by_slot([""])
        """By slot: what rows of equal figures are in the order of."""
        self.folded: list[str] = self._by_slot([""])
        """The same in small letters."""
        self.groups: list[str] = self._by_slot([""])
        """What a row is a part of, by whose name it begins: itself, if it is no part."""
        self.asked = self.groups if are_parts else self.keys
        """What who may see a row is asked with."""
        self.places = self._by_slot(bytearray([_FREE]))
        self.spaces = self.numbers("L", 0)
        self.space_names: list[str] = []
        """Namespaces by the numbers in ``spaces``."""
        self.space_of: dict[str, int] = {}
        self.as_of_ms = 0
        """When the figures were taken."""
        self.version = 0
        """Another one whenever anything has changed."""
        self._free: list[int] = []
        self._blank = [UNKNOWN] * len(fields)

    def __len__(self) -> int:
        return len(self.slot_of)

    def numbers(self, typecode: str, value: _Number) -> "array[_Number]":
        """An array with a number of each row; of new slots it is ``value``.

        REQUIRES: there are no rows yet.
        """
        return self._by_slot(array(typecode, [value]))

    def _by_slot(self, one: _Kept) -> _Kept:
        more = one * _MORE_ROWS
        kept = more[:]
        self._growing.append((kept, more))
        return kept

    def add(
        self, key: Hashable, name: str, namespace: str, place: int, group: str | None = None
    ) -> int:
        """Add a row without figures; answers its slot. REQUIRES: none of this key is there.

        Args:
            group: what it is a part of; None: itself.
        """
        space = self.space_of.get(namespace)
        if space is None:
            space = self.space_of[namespace] = len(self.space_names)
            self.space_names.append(namespace)
        if self._free:
            slot = self._free.pop()
        else:
            slot, self.end = self.end, self.end + 1
            # One of them a row, as it may be moved when it grows.
            if (number := slot % _MORE_ROWS) < len(self._growing):
                kept, more = self._growing[number]
                kept.extend(more)
        folded = name.lower()
        self.keys[slot], self.names[slot], self.groups[slot] = key, name, group or name
        self.folded[slot] = name if folded == name else folded
        self.places[slot], self.spaces[slot] = place, space
        self.slot_of.part(key)[key] = slot
        self.version += 1
        return slot

    def set(self, slot: int, figures: Sequence[float]) -> None:
        """All figures of a row, in the order of ``fields``."""
        if self._columns[0][slot] == UNKNOWN:  # it has none yet, as all rows at first
            for column, value in zip(self._columns, figures, strict=True):
                column[slot] = value
            self.version += 1
            return
        changed = False
        for column, value in zip(self._columns, figures, strict=True):
            if column[slot] != value:
                column[slot] = value
                changed = True
        self.version += changed

    def move(self, slot: int, place: int) -> None:
        """A row has another place; one that isn't loaded has no figures."""
        if self.places[slot] != place:
            self.places[slot] = place
            self.version += 1
            if place != LOADED:
                self.set(slot, self._blank)

    def remove(self, slot: int) -> None:
        key = self.keys[slot]
        del self.slot_of.part(key)[key]
        self.keys[slot] = None
        self.names[slot] = self.folded[slot] = self.groups[slot] = ""
        self.places[slot] = _FREE
        self.set(slot, self._blank)
        self._free.append(slot)
        self.version += 1

    def figures(self, slot: int) -> list[float]:
        """In the order of ``fields``."""
        return [column[slot] for column in self._columns]


def subscription_key(full: str, name: str) -> Hashable:
    """The key of a subscription's row.

    A text, which collections of garbage don't walk through; but two names could be read out of it
    where the topic's contains a line break.
    """
    return (full, name) if "\n" in full else f"{full}\n{name}"


SlotFilter = Callable[[FigureTable, list[int]], list[int]]
"""Those of the slots whose rows belong to a view."""
_NOTHING: Final = object()
Sight = Mapping[int, Callable[[Any], bool] | None]
"""What a role may see, by the number of a namespace: None: all of it; else asked for each row.
A namespace that isn't in it can't be seen."""
PageKey = tuple[float | None, str]
"""Where a page begins: behind the row with this figure (None: sorted by name) and this name."""


def visible_slots(
    table: FigureTable, slots: Sequence[int], place_max: int, sight: Sight | None
) -> list[int]:
    """Those of the slots that hold a row of such a place which may be seen."""
    places, spaces, asked = table.places, table.spaces, table.asked
    found = [slot for slot in slots if places[slot] <= place_max]
    if sight is None:
        return found
    found = [slot for slot in found if spaces[slot] in sight]
    return [slot for slot in found if (may := sight[spaces[slot]]) is None or may(asked[slot])]


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What is asked for."""

    sort: str = ""
    """A field; "": the name."""
    descending: bool = False
    after: PageKey | None = None
    limit: int = 50
    text: str = ""
    """A part of the name, in small letters."""
    namespace: str = ""
    view: str = ""
    place_max: int = UNLOADED
    points: int = 0
    """Of each row's recent history."""
    grouped: bool = False
    """Whether the parts of one thing are one row; only of all views, in the order of names."""
    only: frozenset[Hashable] | None = None
    """Keys of the rows that count; None: all do."""


@dataclass(frozen=True, slots=True)
class Page:
    """The answer: slots of the rows, and how many there are."""

    slots: list[int]
    total: int
    """Rows of the namespace, or of all, that may be seen."""
    matching: int
    """Those of them that have the text and are in the view."""
    views: dict[str, int]
    """Rows with the text, by view."""
    has_more: bool


def _spaces_of(table: FigureTable, namespace: str) -> frozenset[int] | None:
    """Numbers of a namespace, or of all namespaces of a tenant; None: of all."""
    if not namespace:
        return None
    if "/" in namespace:
        return frozenset({table.space_of.get(namespace, -1)})
    prefix = f"{namespace}/"
    return frozenset(
        number for number, name in enumerate(table.space_names) if name.startswith(prefix)
    )


class PageScan:
    """Finds one page. Rows that change meanwhile count as they are when they are looked at."""

    def __init__(
        self,
        table: FigureTable,
        query: PageQuery,
        views: Mapping[str, SlotFilter],
        sight: Sight | None = None,
    ) -> None:
        """``sight``: None: everything may be seen."""
        self._table, self._query, self._views, self._sight = table, query, views, sight
        self._slots: Sequence[int] = range(table.end)
        if query.only is not None:
            found = (table.slot_of.get(key) for key in query.only)
            self._slots = [slot for slot in found if slot is not None]
        self._next, self._end = 0, len(self._slots)
        self._total = self._matching = 0
        self._counts = dict.fromkeys(views, 0)
        self._best: list[tuple[float, str, int]] | list[tuple[str, int]] = []
        self._spaces = _spaces_of(table, query.namespace)

    def step(self) -> bool:
        """Look at the next rows; False: those were the last."""
        first, self._next = self._next, min(self._next + SLICE_ROWS, self._end)
        slots = visible_slots(
            self._table, self._slots[first : self._next], self._query.place_max, self._sight
        )
        if self._spaces is not None:
            chosen_spaces, spaces = self._spaces, self._table.spaces
            slots = [slot for slot in slots if spaces[slot] in chosen_spaces]
        self._total += self._count(slots)
        if text := self._query.text:
            slots = self._with_text(slots, text)
        chosen = slots
        for name, keep in self._views.items():
            kept = keep(self._table, slots)
            self._counts[name] += len(kept)
            if name == self._query.view:
                chosen = kept
        self._matching += self._count(chosen)
        if chosen:
            self._offer(chosen)
        return self._next < self._end

    @property
    def page(self) -> Page:
        """REQUIRES: all steps were taken."""
        limit = self._query.limit
        return Page(
            [row[-1] for row in self._best[:limit]],
            self._total,
            self._matching,
            self._counts,
            len(self._best) > limit,
        )

    def _count(self, slots: list[int]) -> int:
        return len(slots)

    def _with_text(self, slots: list[int], text: str) -> list[int]:
        folded = self._table.folded
        return [slot for slot in slots if text in folded[slot]]

    def _offer(self, slots: list[int]) -> None:
        if self._query.sort:
            self._offer_figures(slots)
        else:
            self._offer_names(slots)

    def _offer_figures(self, slots: list[int]) -> None:
        query, names = self._query, self._table.names
        figures = self._table.columns[query.sort]
        keep = query.limit + 1
        if query.descending:
            rows = [(-figures[slot], names[slot], slot) for slot in slots]
        else:
            rows = [(turned(figures[slot], descending=False), names[slot], slot) for slot in slots]
        if (after := query.after) is not None:
            low = (turned(after[0] or 0.0, descending=query.descending), after[1], inf)
            rows = [row for row in rows if row > low]
        best: list[tuple[float, str, int]] = self._best  # type: ignore[assignment]
        if len(best) == keep:
            worst = best[-1]
            rows = [row for row in rows if row < worst]
        if rows:
            self._best = sorted([*best, *rows])[:keep]

    def _offer_names(self, slots: list[int]) -> None:
        query, names = self._query, self._table.names
        descending, keep = query.descending, query.limit + 1
        rows = [(names[slot], slot) for slot in slots]
        if (after := query.after) is not None:
            name = after[1]
            rows = [row for row in rows if (row[0] < name if descending else row[0] > name)]
        best: list[tuple[str, int]] = self._best  # type: ignore[assignment]
        if len(best) == keep:
            worst = best[-1]
            rows = [row for row in rows if (row > worst if descending else row < worst)]
        if rows:
            self._best = sorted([*best, *rows], reverse=descending)[:keep]


def turned(figure: float, *, descending: bool) -> float:
    """A figure so that pages begin with the smallest, and unknown ones come last."""
    return -figure if descending or figure == UNKNOWN else figure


class SumScan:
    """Adds up the figures of each namespace, a slice of rows at a time."""

    def __init__(
        self,
        table: FigureTable,
        greatest: Collection[str],
        sight: Sight | None = None,
        place_max: int = UNLOADED,
    ) -> None:
        """``greatest``: fields of which the greatest figure is wanted, not the sum."""
        self._table, self._sight, self._place_max = table, sight, place_max
        self._summed = [
            (at, column)
            for at, (field, column) in enumerate(table.columns.items())
            if field not in greatest
        ]
        self._greatest = [
            (at, column)
            for at, (field, column) in enumerate(table.columns.items())
            if field in greatest
        ]
        self._blank = [UNKNOWN if field in greatest else 0.0 for field in table.fields]
        self._next, self._end = 0, table.end
        self.rows: dict[int, int] = {}
        """Rows by the number of their namespace, loaded or not."""
        self.loaded: dict[int, int] = {}
        self.figures: dict[int, list[float]] = {}
        """Of the loaded ones, in the order of the table's fields."""

    def step(self) -> bool:
        """Add the next rows; False: those were the last."""
        slot, end = self._next, min(self._next + SLICE_ROWS, self._end)
        spaces, places = self._table.spaces, self._table.places
        others: list[int] = []
        runs = 0
        while slot < end and runs < _RUNS_MAX:
            runs += 1
            space, first = spaces[slot], slot
            while slot < end and spaces[slot] == space:
                slot += 1
            is_whole = places.count(LOADED, first, slot) == slot - first >= _RUN_ROWS
            if is_whole and self._sees_all(space):
                self._add_run(space, first, slot)
            else:
                others.extend(range(first, slot))
        self._add_rows(others)
        self._next = slot
        return slot < self._end

    def _sees_all(self, space: int) -> bool:
        return self._sight is None or self._sight.get(space, _NOTHING) is None

    def _add_run(self, space: int, first: int, end: int) -> None:
        """Loaded rows of one namespace that lie together, as most do: no look at each of them."""
        self.rows[space] = self.rows.get(space, 0) + end - first
        self.loaded[space] = self.loaded.get(space, 0) + end - first
        figures = self.figures.setdefault(space, self._blank.copy())
        for at, column in self._summed:
            figures[at] += sum(column[first:end])
        for at, column in self._greatest:
            figures[at] = max(figures[at], *column[first:end])

    def _add_rows(self, slots: Sequence[int]) -> None:
        table = self._table
        loaded: dict[int, list[int]] = {}
        for slot in visible_slots(table, slots, self._place_max, self._sight):
            space = table.spaces[slot]
            self.rows[space] = self.rows.get(space, 0) + 1
            if table.places[slot] == LOADED:
                loaded.setdefault(space, []).append(slot)
        for space, chosen in loaded.items():
            self.loaded[space] = self.loaded.get(space, 0) + len(chosen)
            figures = self.figures.setdefault(space, self._blank.copy())
            of = itemgetter(*chosen, chosen[0])  # of one alone it would be no tuple
            for at, column in self._summed:
                figures[at] += sum(of(column)[:-1])
            for at, column in self._greatest:
                figures[at] = max(figures[at], *of(column))
