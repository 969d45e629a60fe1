"""A page of things that have parts, as partitioned topics: a row for each, a slice at a time.

Only in the order of names. The parts of one thing are at several brokers, and each knows the sum of
its own alone: by that, nobody could tell which things come first by a figure. By name everybody
can. So each broker gives its first ones behind the same name, and what is among the first of all is
among the first of each broker that has a part of it: no part is missing from its sum.
"""

from collections.abc import Mapping

from magnetar.broker.index.figure_table import FigureTable, PageQuery, PageScan, Sight, SlotFilter

_FIRST_PART = "-partition-0"
"""Things are counted by this part, which only one broker has; there is one in all of them."""


class GroupScan(PageScan):
    """Finds one page. Views count parts: which of them are in one, each broker knows alone."""

    def __init__(
        self,
        table: FigureTable,
        query: PageQuery,
        views: Mapping[str, SlotFilter],
        sight: Sight | None = None,
    ) -> None:
        """REQUIRES: the query has no view, and the order of names."""
        assert not query.sort, query
        assert not query.view, query
        super().__init__(table, query, views, sight)
        self._slots_of: dict[str, list[int]] = {}
        self._worst: str | None = None  # behind it nothing counts

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Names in their order, with the slots of their parts. REQUIRES: all steps were taken."""
        names = sorted(self._slots_of, reverse=self._query.descending)
        return [(name, self._slots_of[name]) for name in names[: self._query.limit]]

    @property
    def has_more(self) -> bool:
        return len(self._slots_of) > self._query.limit

    def _count(self, slots: list[int]) -> int:
        names, groups = self._table.names, self._table.groups
        return sum(
            names[slot] is groups[slot] or names[slot].endswith(_FIRST_PART) for slot in slots
        )

    def _with_text(self, slots: list[int], text: str) -> list[int]:
        """What is a part of a thing doesn't match by its number alone, or its sum would lack."""
        folded, groups = self._table.folded, self._table.groups
        return [slot for slot in slots if text in folded[slot][: len(groups[slot])]]

    def _offer(self, slots: list[int]) -> None:
        groups, found = self._table.groups, self._slots_of
        after, descending = self._query.after, self._query.descending
        start, worst = None if after is None else after[1], self._worst
        for slot in slots:
            name = groups[slot]
            if start is not None and (name >= start if descending else name <= start):
                continue
            if worst is not None and (name < worst if descending else name > worst):
                continue
            found.setdefault(name, []).append(slot)
        keep = self._query.limit + 1
        if len(found) > 2 * keep:
            names = sorted(found, reverse=descending)[:keep]
            self._worst = names[-1]
            self._slots_of = {name: found[name] for name in names}
