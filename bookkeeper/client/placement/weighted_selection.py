"""Chance and search, the same for all policies: one of several bookies, one bookie for each slot.

Bookies of one group (a rack, an upgrade domain) are alike for the rules, so searching goes by
groups and stays small however many bookies there are.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Generic, TypeAlias, TypeVar

from magnetar.bookkeeper.client.placement.policy import PlacementRandom

#: Free bytes on a bookie's disks; 0: unknown.
Weigh: TypeAlias = Callable[[str], int]

K = TypeVar("K", bound=Hashable)

_SEARCH_STEPS: Final = 2_000


@dataclass(eq=False)
class WeightedRandomSelection:
    """Picks one bookie by chance, those with more free space more often if weights are given.

    Args:
        weigh: None: all are equal.
        max_multiple: no bookie counts as more than this times the median, so that a new and empty
            one isn't flooded.
    """

    _rng: PlacementRandom
    _weigh: Weigh | None = None
    _max_multiple: float = 3.0

    def weights(self, bookies: Iterable[str]) -> Mapping[str, float] | None:
        """What each one counts among these; None: all the same."""
        if self._weigh is None:
            return None
        free = {bookie: self._weigh(bookie) for bookie in bookies}
        known = sorted(bytes_free for bytes_free in free.values() if bytes_free > 0)
        if not known:
            return None
        middle = len(known) // 2
        median = known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
        most, least = self._max_multiple * median, known[0]
        return {
            b: min(bytes_free, most) if bytes_free > 0 else least for b, bytes_free in free.items()
        }

    def pick(self, candidates: Sequence[str], weights: Mapping[str, float] | None) -> str:
        """One of ``candidates``: at least one, in an order that doesn't depend on chance."""
        if weights is None:
            return self._rng.sample(candidates, 1)[0]
        sums = list(accumulate(weights[bookie] for bookie in candidates))
        # The sum times a chance just below 1 may round up to the sum itself.
        place = min(bisect_right(sums, self._rng.random() * sums[-1]), len(sums) - 1)
        return candidates[place]

    def sample(self, candidates: Sequence[str], count: int) -> list[str]:
        """``count`` different ones of ``candidates``."""
        weights = self.weights(candidates)
        if weights is None:
            return self._rng.sample(candidates, count)
        left, chosen = list(candidates), []
        for _ in range(count):
            chosen.append(self.pick(left, weights))
            left.remove(chosen[-1])
        return chosen


def grouped(bookies: Iterable[str], group_of: Callable[[str], K]) -> dict[K, list[str]]:
    """Bookies by group, in order of their names."""
    groups: dict[K, list[str]] = {}
    for bookie in sorted(bookies):
        groups.setdefault(group_of(bookie), []).append(bookie)
    return groups


#: Which groups a slot may be filled from, the preferred ones first: (slot, groups of all slots).
#: A slot that is empty has None; the one that is asked for has the group of the replaced bookie.
Tiers: TypeAlias = Callable[[int, Sequence[K | None]], Iterator[Collection[K]]]


def pick_one(
    slot: int,
    members: Sequence[K | None],
    groups: Mapping[K, Sequence[str]],
    tiers: Tiers[K],
    selection: WeightedRandomSelection,
) -> str | None:
    """A bookie of the first tier that has any."""
    for tier in tiers(slot, members):
        allowed = set(tier)
        candidates = [b for group, bookies in groups.items() if group in allowed for b in bookies]
        if candidates:
            return selection.pick(candidates, selection.weights(candidates))
    return None


def fill(
    size: int,
    groups: Mapping[K, Sequence[str]],
    tiers: Tiers[K],
    kind_of: Callable[[K], Hashable],
    selection: WeightedRandomSelection,
) -> tuple[str, ...] | None:
    """A bookie for every slot, each from its first tier, or a later one if later slots need that.

    Args:
        kind_of: groups of one kind are alike for the rules as long as none of them is used.

    Returns:
        None: there is no way, or it is so well hidden that the search gave up.
    """
    search = _Search(size, groups, tiers, kind_of, selection)
    return tuple(search.chosen) if search.fill_from(0) else None


class _Search(Generic[K]):
    """Depth first over the slots; the first try is the choice slot by slot without a look ahead."""

    def __init__(
        self,
        size: int,
        groups: Mapping[K, Sequence[str]],
        tiers: Tiers[K],
        kind_of: Callable[[K], Hashable],
        selection: WeightedRandomSelection,
    ) -> None:
        self.chosen: list[str] = []
        self._members: list[K | None] = [None] * size
        self._free = {group: list(bookies) for group, bookies in groups.items()}
        self._group_of = {b: group for group, bookies in groups.items() for b in bookies}
        self._tiers = tiers
        self._kind_of = kind_of
        self._selection = selection
        self._weights = selection.weights(self._group_of)
        self._steps = 0

    def fill_from(self, slot: int) -> bool:
        if slot == len(self._members):
            return True
        tried: set[Hashable] = set()
        for allowed in self._tiers(slot, self._members):
            while candidates := self._candidates(allowed, tried):
                self._steps += 1
                if self._steps > _SEARCH_STEPS:
                    return False
                bookie = self._selection.pick(candidates, self._weights)
                group = self._group_of[bookie]
                alike = self._equivalence_key(group)
                place = self._free[group].index(bookie)
                del self._free[group][place]
                self._members[slot] = group
                self.chosen.append(bookie)
                if self.fill_from(slot + 1):
                    return True
                self.chosen.pop()
                self._members[slot] = None
                self._free[group].insert(place, bookie)
                tried.add(alike)
        return False

    def _candidates(self, tier: Collection[K], tried: set[Hashable]) -> list[str]:
        allowed = set(tier)
        return [
            bookie
            for group, bookies in self._free.items()
            if group in allowed and not (tried and self._equivalence_key(group) in tried)
            for bookie in bookies
        ]

    def _equivalence_key(self, group: K) -> Hashable:
        """The same for groups that would all fail if one does: exchanging them changes nothing."""
        if group in self._members:
            return group
        return self._kind_of(group), min(len(self._free[group]), len(self._members))
