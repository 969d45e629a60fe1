"""Racks: the bookies of a write set stand in several, if there are several. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.placement.config import RackRules
from magnetar.bookkeeper.client.placement.node_location import DEFAULT_RACK, Locate, rack_of
from magnetar.bookkeeper.client.placement.policy import Adherence, EnsemblePlacementPolicy
from magnetar.bookkeeper.client.placement.weighted_selection import (
    WeightedRandomSelection,
    fill,
    grouped,
    pick_one,
)
from magnetar.bookkeeper.client.quorum import FaultDomainAckRule
from magnetar.bookkeeper.errors import NotEnoughBookiesError

_Members = Sequence["str | None"]


@dataclass(eq=False)
class RackAwarePlacement(EnsemblePlacementPolicy):
    """Prefers a rack that no write set has yet; with ``enforce`` a minimum of racks is a must.

    Quorums of any size can be placed: smaller ones need fewer racks.

    Args:
        locate: a bookie's whole path is its rack; without one it is in the default rack.
    """

    _rules: RackRules
    _locate: Locate
    _selection: WeightedRandomSelection

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        groups = self._groups(writable)
        tiers = partial(_tiers, self._rules, groups, write_quorum)
        chosen = fill(ensemble_size, groups, tiers, _any_rack, self._selection)
        if chosen is None:
            racks = {rack: len(bookies) for rack, bookies in sorted(groups.items())}
            rule = (
                f"with every {write_quorum} neighbours in at least "
                f"{min(self._rules.min_racks, write_quorum)} racks "
                if self._rules.enforce
                else ""
            )
            raise NotEnoughBookiesError(
                f"{ensemble_size} bookies {rule}are not among those that accept writes: {racks}"
            )
        return chosen

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        groups = self._groups(candidates)
        tiers = partial(_replacement_tiers, self._rules, groups, write_quorum)
        return pick_one(slot, self._racks(ensemble), groups, tiers, self._selection)

    def adherence(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        rules = self._rules
        racks = self._racks(ensemble)
        if rules.enforce and DEFAULT_RACK in racks:
            return Adherence.FAIL
        wanted = min(rules.min_racks, write_quorum)
        write_sets = quorum.write_sets(len(ensemble), write_quorum)
        if all(len({racks[slot] for slot in slots}) >= wanted for slots in write_sets):
            return Adherence.STRICT
        return Adherence.FAIL if rules.enforce else Adherence.SOFT

    def ack_spread(self, ensemble: Sequence[str]) -> FaultDomainAckRule | None:
        if not self._rules.spread_acks:
            return None
        masks: dict[str, int] = {}
        for slot, rack in enumerate(self._racks(ensemble)):
            masks[rack] = masks.get(rack, 0) | 1 << slot
        return FaultDomainAckRule(tuple(masks.values()), self._rules.min_racks)

    def _groups(self, bookies: Collection[str]) -> dict[str, list[str]]:
        groups = grouped(bookies, self._rack)
        if self._rules.enforce:
            groups.pop(DEFAULT_RACK, None)
        return groups

    def _rack(self, bookie: str) -> str:
        return rack_of(self._locate(bookie))

    def _racks(self, ensemble: Sequence[str]) -> list[str]:
        return [self._rack(bookie) for bookie in ensemble]


def _any_rack(rack: str) -> None:
    """Racks are all of one kind."""


def _tiers(
    rules: RackRules, groups: Mapping[str, object], write_quorum: int, slot: int, members: _Members
) -> Iterator[Collection[str]]:
    """Racks for ``slot``: first new to its write sets, then enough of them, then any."""
    companions = {
        members[other]
        for others in quorum.neighbours(slot, len(members), write_quorum)
        for other in others
    }
    yield [rack for rack in groups if rack not in companions]
    yield _legal(rules, groups, write_quorum, slot, members)
    if not rules.enforce:
        yield groups


def _replacement_tiers(
    rules: RackRules, groups: Mapping[str, object], write_quorum: int, slot: int, members: _Members
) -> Iterator[Collection[str]]:
    """The failed one's own rack first: what else depends on it is spread as it was."""
    legal = _legal(rules, groups, write_quorum, slot, members)
    yield [rack for rack in legal if rack == members[slot]]
    yield [rack for rack in legal if rack not in members]
    yield from _tiers(rules, groups, write_quorum, slot, members)


def _legal(
    rules: RackRules, groups: Mapping[str, object], write_quorum: int, slot: int, members: _Members
) -> list[str]:
    """Racks with which no write set has, or can only get, fewer than it needs.

    With fewer already (bookies have moved, or the rules changed) it must not become worse.
    """
    legal, old = list(groups), members[slot]
    nowhere = {None, DEFAULT_RACK} if rules.enforce else {None}
    for others in quorum.neighbours(slot, len(members), write_quorum):
        racks = {members[other] for other in others} - nowhere
        free = sum(members[other] is None for other in others)
        needed = min(rules.min_racks, write_quorum)
        if old is not None:
            needed = min(needed, len((racks | {old}) - nowhere))
        legal = [rack for rack in legal if len(racks | {rack}) + free >= needed]
    return legal
