"""Availability zones and upgrade domains: a lost zone, or one closed domain, costs no quorum. Pure.

The rules (docs/spec/storage.md, "Zones"), for every write set of a striped ensemble:

* its bookies are in at least ``min_zones`` zones, in ``desired_zones`` if there are so many;
* those of one zone are in different upgrade domains, at the very least not all in the same.

With a write quorum above ``min_zones`` a dead zone leaves legal replacements, and with an ensemble
that is a multiple of the write quorum no write set wraps around to a zone that it has already.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.placement.config import ZoneRules
from magnetar.bookkeeper.client.placement.node_location import (
    DEFAULT_PLACE,
    Locate,
    NodeLocation,
    place_of,
)
from magnetar.bookkeeper.client.placement.policy import Adherence, EnsemblePlacementPolicy
from magnetar.bookkeeper.client.placement.random_placement import RandomPlacement
from magnetar.bookkeeper.client.placement.weighted_selection import (
    WeightedRandomSelection,
    fill,
    grouped,
    pick_one,
)
from magnetar.bookkeeper.client.quorum import FaultDomainAckRule
from magnetar.bookkeeper.errors import NotEnoughBookiesError

_Members = Sequence["NodeLocation | None"]


class ZoneAwarePlacement(EnsemblePlacementPolicy):
    """Chooses by zone and upgrade domain.

    Invariant (strict rules): an ensemble from ``new_ensemble`` never breaks a rule, whatever
    ``replace_bookie`` makes of it, as long as its bookies stay where they are.

    Args:
        locate: paths ``/zone/upgrade-domain``; what has another form is in the default fault
            domain, which strict rules never use.
    """

    def __init__(
        self, rules: ZoneRules, locate: Locate, selection: WeightedRandomSelection
    ) -> None:
        self._rules = rules
        self._locate = locate
        self._selection = selection
        self._random = RandomPlacement(selection)

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._rules.check(ensemble_size, write_quorum, ack_quorum)

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        self.check(ensemble_size, write_quorum, ack_quorum)
        if not self._rules.strict:
            return self._random.new_ensemble(ensemble_size, write_quorum, ack_quorum, writable)
        groups = self._groups(writable)
        tiers = partial(_tiers, self._rules, groups, write_quorum)
        chosen = fill(ensemble_size, groups, tiers, _zone, self._selection)
        if chosen is None:
            places = {f"/{p.zone}/{p.domain}": len(groups[p]) for p in sorted(groups, key=_order)}
            raise NotEnoughBookiesError(
                f"{ensemble_size} bookies with every {write_quorum} neighbours in at least "
                f"{self._rules.min_zones} zones, those of one zone in different upgrade domains: "
                f"not possible with those that accept writes: {places}"
            )
        return chosen

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        if not self._rules.strict:
            return self._random.replace_bookie(slot, ensemble, write_quorum, candidates)
        groups = self._groups(candidates)
        tiers = partial(_tiers, self._rules, groups, write_quorum)
        return pick_one(slot, self._places(ensemble), groups, tiers, self._selection)

    def adherence(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        rules = self._rules
        places = self._places(ensemble)
        desired = min(write_quorum, rules.desired_zones)
        grade = Adherence.STRICT
        for slots in quorum.write_sets(len(ensemble), write_quorum):
            members = [places[slot] for slot in slots]
            zones = len(_domains_by_zone(members))
            if DEFAULT_PLACE in members or zones < rules.min_zones or _crowded(members):
                return Adherence.FAIL
            if zones < desired or len(set(members)) < write_quorum:
                grade = Adherence.SOFT
        return grade

    def ack_spread(self, ensemble: Sequence[str]) -> FaultDomainAckRule | None:
        if not self._rules.spread_acks:
            return None
        masks: dict[str, int] = {}
        for slot, place in enumerate(self._places(ensemble)):
            if place != DEFAULT_PLACE:
                masks[place.zone] = masks.get(place.zone, 0) | 1 << slot
        return FaultDomainAckRule(tuple(masks.values()), self._rules.min_zones)

    def _groups(self, bookies: Collection[str]) -> dict[NodeLocation, list[str]]:
        groups = grouped(bookies, self._place)
        groups.pop(DEFAULT_PLACE, None)
        return groups

    def _place(self, bookie: str) -> NodeLocation:
        return place_of(self._locate(bookie))

    def _places(self, ensemble: Sequence[str]) -> list[NodeLocation]:
        return [self._place(bookie) for bookie in ensemble]


def _zone(place: NodeLocation) -> str:
    return place.zone


def _order(place: NodeLocation) -> tuple[str, str]:
    return place.zone, place.domain


@dataclass(slots=True)
class _WriteSet:
    """One write set as it is before the choice for a slot of it.

    Attributes:
        others: places of its other slots that are known.
        domains: the upgrade domains of those, by zone.
        free: how many of its other slots are still empty.
        zones_needed: so many zones it must have after the choice, empty slots counted as one each.
        crowded_max: so many zones may have all of several bookies in one upgrade domain.
    """

    others: list[NodeLocation]
    domains: dict[str, set[str]]
    free: int
    zones_needed: int
    crowded_max: int

    def allows(self, place: NodeLocation, *, cured_later: bool = False) -> bool:
        """``cured_later``: a bookie in an empty slot may make it two upgrade domains."""
        zones = len(self.domains) + (place.zone not in self.domains) + self.free
        crowded_max = self.crowded_max + cured_later * self.free
        return zones >= self.zones_needed and _crowded([*self.others, place]) <= crowded_max


def _write_set(rules: ZoneRules, others: _Members, old: NodeLocation | None) -> _WriteSet:
    known = [place for place in others if place is not None and place != DEFAULT_PLACE]
    zones_needed, crowded_max = rules.min_zones, 0
    if old is not None:
        # Bookies may have moved, or the rules changed, since they were chosen. Then a replacement
        # must not make it worse; to insist on the rule would often mean no replacement at all.
        now = known if old == DEFAULT_PLACE else [*known, old]
        zones_needed = min(zones_needed, len(_domains_by_zone(now)))
        crowded_max = _crowded(now)
    free = sum(place is None for place in others)
    return _WriteSet(known, _domains_by_zone(known), free, zones_needed, crowded_max)


def _domains_by_zone(places: Collection[NodeLocation]) -> dict[str, set[str]]:
    domains: dict[str, set[str]] = {}
    for place in places:
        domains.setdefault(place.zone, set()).add(place.domain)
    return domains


def _crowded(places: Collection[NodeLocation]) -> int:
    """Zones of which several bookies are all in one upgrade domain."""
    counts = Counter(place.zone for place in places)
    return sum(
        counts[zone] > 1 and len(names) == 1 for zone, names in _domains_by_zone(places).items()
    )


def _tiers(
    rules: ZoneRules,
    groups: Iterable[NodeLocation],
    write_quorum: int,
    slot: int,
    members: _Members,
) -> Iterator[list[NodeLocation]]:
    """Places for ``slot``: first far from its neighbours' zones, at last whatever is legal."""
    old = members[slot]
    write_sets = [
        _write_set(rules, [members[other] for other in others], old)
        for others in quorum.neighbours(slot, len(members), write_quorum)
    ]
    used = {place for each in write_sets for place in each.others}
    legal = _allowed(groups, used, write_sets)
    for reach in (*range(min(write_quorum, rules.desired_zones) - 1, rules.min_zones - 2, -1), 0):
        near = _zones_near(slot, reach, members)
        far = [place for place in legal if place.zone not in near]
        yield [place for place in far if place not in used]
        yield far
    yield _allowed(groups, used, write_sets, cured_later=True)


def _allowed(
    groups: Iterable[NodeLocation],
    used: Collection[NodeLocation],
    write_sets: Sequence[_WriteSet],
    *,
    cured_later: bool = False,
) -> list[NodeLocation]:
    """The places that all write sets allow."""
    verdicts: dict[NodeLocation | str, bool] = {}  # domains of an unused zone are alike
    allowed = []
    for place in groups:
        key = place if place in used else place.zone
        if key not in verdicts:
            verdicts[key] = all(each.allows(place, cured_later=cured_later) for each in write_sets)
        if verdicts[key]:
            allowed.append(place)
    return allowed


def _zones_near(slot: int, reach: int, members: _Members) -> set[str]:
    """Zones of the ``reach`` neighbours on either side, around the ends."""
    size = len(members)
    near = {members[(slot + step) % size] for step in range(-reach, reach + 1) if step % size}
    return {place.zone for place in near if place is not None}
