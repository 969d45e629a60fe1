"""Regions, then racks: as many bookies of an ensemble in each region as there can be. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.placement.config import RegionRules
from magnetar.bookkeeper.client.placement.node_location import Locate, levels
from magnetar.bookkeeper.client.placement.policy import Adherence, EnsemblePlacementPolicy
from magnetar.bookkeeper.client.placement.weighted_selection import (
    WeightedRandomSelection,
    fill,
    grouped,
    pick_one,
)
from magnetar.bookkeeper.client.quorum import FaultDomainAckRule
from magnetar.bookkeeper.errors import NotEnoughBookiesError

_Place: TypeAlias = tuple[str, str]
"""Region and rack."""
_DEFAULT: _Place = ("default-region", "default-rack")


@dataclass(eq=False)
class RegionAwarePlacement(EnsemblePlacementPolicy):
    """Spreads over regions evenly, as far as their bookies suffice, and over racks within them.

    Args:
        locate: paths ``/region/rack``; what has another form is in the default region.
    """

    _rules: RegionRules
    _locate: Locate
    _selection: WeightedRandomSelection

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._rules.check(ensemble_size, write_quorum, ack_quorum)

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        self.check(ensemble_size, write_quorum, ack_quorum)
        groups = grouped(writable, self._place)
        # With one region there is nothing to spread over: its racks are what is left.
        needed = self._rules.min_regions if len(set(map(_region, groups))) > 1 else 1
        tiers = partial(_tiers, groups, write_quorum, needed)
        chosen = fill(ensemble_size, groups, tiers, _region, self._selection)
        if chosen is None:
            places = {f"/{'/'.join(place)}": len(groups[place]) for place in sorted(groups)}
            raise NotEnoughBookiesError(
                f"{ensemble_size} bookies with every {write_quorum} neighbours in at least "
                f"{self._rules.min_regions} regions are not among those that accept writes: "
                f"{places}"
            )
        return chosen

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        groups = grouped(candidates, self._place)
        places = [self._place(bookie) for bookie in ensemble]
        tiers = partial(_replacement_tiers, groups, write_quorum)
        return pick_one(slot, places, groups, tiers, self._selection)

    def adherence(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        return Adherence.STRICT if self._spans(ensemble, write_quorum) else Adherence.FAIL

    def ack_spread(self, ensemble: Sequence[str]) -> FaultDomainAckRule | None:
        if not self._rules.spread_acks:
            return None
        masks: dict[str, int] = {}
        for slot, bookie in enumerate(ensemble):
            region = self._place(bookie)[0]
            masks[region] = masks.get(region, 0) | 1 << slot
        return FaultDomainAckRule(tuple(masks.values()), self._rules.min_regions)

    def _spans(self, ensemble: Sequence[str], write_quorum: int) -> bool:
        """Each write set has the minimum of regions."""
        regions = [self._place(bookie)[0] for bookie in ensemble]
        return all(
            len({regions[slot] for slot in slots}) >= self._rules.min_regions
            for slots in quorum.write_sets(len(ensemble), write_quorum)
        )

    def _place(self, bookie: str) -> _Place:
        names = levels(self._locate(bookie) or "")
        return (names[0], names[1]) if len(names) == 2 else _DEFAULT


def _region(place: _Place) -> str:
    return place[0]


def _tiers(
    groups: Collection[_Place],
    write_quorum: int,
    needed: int,
    slot: int,
    members: Sequence[_Place | None],
) -> Iterator[list[_Place]]:
    """Places for ``slot``: of the regions that have the fewest first, there new racks first.

    Args:
        needed: regions that each write set must have in the end.
    """
    taken = [place for at, place in enumerate(members) if place is not None and at != slot]
    counts = Counter(map(_region, taken))
    legal = list(groups)
    for others in quorum.neighbours(slot, len(members), write_quorum):
        places = [members[other] for other in others]
        regions = {place[0] for place in places if place is not None}
        free = places.count(None)
        legal = [place for place in legal if len(regions | {place[0]}) + free >= needed]
    for count in sorted({counts[region] for region, _ in legal}):
        level = [place for place in legal if counts[place[0]] == count]
        yield [place for place in level if place not in taken]
        yield level


def _replacement_tiers(
    groups: Collection[_Place], write_quorum: int, slot: int, members: Sequence[_Place | None]
) -> Iterator[list[_Place]]:
    """The failed one's own rack, its region, then as for a new ensemble, but for the minimum of
    regions: rather a bookie in any region than none, as in Pulsar.
    """
    old = members[slot]
    assert old is not None
    yield [place for place in groups if place == old]
    yield [place for place in groups if place[0] == old[0] and place not in members]
    yield [place for place in groups if place[0] == old[0]]
    yield from _tiers(groups, write_quorum, 1, slot, members)
