"""Groups of bookies that new ledgers and copies are kept on. Pure."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from magnetar.bookkeeper.client.placement.policy import EnsemblePlacementPolicy
from magnetar.bookkeeper.client.placement.wrappers import WrappedPolicy
from magnetar.bookkeeper.errors import NotEnoughBookiesError

# A ledger of a namespace with bookie affinity has this custom metadata: Pulsar's
# EnsemblePlacementPolicyConfig as JSON, with these properties.
_POLICY_OF_LEDGER: Final = "EnsemblePlacementPolicyConfig"
_POLICY_CLASS: Final = (
    "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
)
_FIRST: Final = "isolationBookieGroups"
_SECOND: Final = "secondaryIsolationBookieGroups"
ALL_BOOKIES: Final = "*"
"""As a name of a group: no bookie is left out."""
ISOLATED_CLASSES: Final = (
    "IsolatedBookieEnsemblePlacementPolicy",
    "ZkIsolatedBookieEnsemblePlacementPolicy",  # until Pulsar 2.8
)

GroupsOf: TypeAlias = Callable[[str], Collection[str]]
"""Names of the groups that a bookie is in; none: nobody has put it into one."""


@dataclass(frozen=True, slots=True)
class IsolationGroups:
    """Names of groups.

    Attributes:
        first: their bookies are taken; empty: those of no group.
        second: these, too, where the first ones have too few.
    """

    first: frozenset[str]
    second: frozenset[str] = frozenset()

    def allowed(self, bookies: Collection[str], size: int, groups_of: GroupsOf) -> Collection[str]:
        """Those of ``bookies`` that an ensemble of this size may be taken from."""
        if ALL_BOOKIES in self.first:
            return bookies
        groups = {bookie: frozenset(groups_of(bookie)) for bookie in bookies}
        allowed = {bookie for bookie in bookies if groups[bookie] & self.first}
        if len(allowed) < size:
            allowed |= {bookie for bookie in bookies if groups[bookie] & self.second}
        if len(allowed) < size:
            allowed |= {bookie for bookie in bookies if not groups[bookie]}
        return allowed

    def __str__(self) -> str:
        """Which bookies these are, for texts; "": all of them."""
        if ALL_BOOKIES in self.first:
            return ""
        named = [", ".join(sorted(names)) for names in (self.first, self.second) if names]
        return f"those of {'; then '.join([*(f'group {each}' for each in named), 'no group'])}"


def _names(text: str) -> frozenset[str]:
    return frozenset(name for each in text.split(",") if (name := each.strip()))


def groups_of_settings(first: str, second: str) -> IsolationGroups | None:
    """Out of two lists with commas; None: the first one is empty, all bookies are taken."""
    return IsolationGroups(names, _names(second)) if (names := _names(first)) else None


def groups_of_ledger(custom_metadata: Mapping[str, bytes]) -> IsolationGroups | None:
    """What the ledger's creator wished for; None: nothing, or it can't be read."""
    try:
        found = json.loads(custom_metadata[_POLICY_OF_LEDGER])
        if found["policyClass"].rpartition(".")[2] not in ISOLATED_CLASSES:
            return None
        properties = found["properties"]
        # Pulsar's policy doesn't look for groups when it is made without this property.
        return IsolationGroups(
            _names(properties.get(_FIRST, ALL_BOOKIES)), _names(properties.get(_SECOND, ""))
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def metadata_of_groups(first: str | None, second: str | None) -> dict[str, bytes]:
    """Custom metadata of a ledger that is kept on groups, byte for byte as Pulsar writes it.

    Args:
        first, second: names with commas, as an operator gave them; None: not given.
    """
    given = {name: text for name, text in ((_FIRST, first), (_SECOND, second)) if text is not None}
    fields = ",\n".join(
        f'    "{name}" : {json.dumps(text, ensure_ascii=False)}' for name, text in given.items()
    )
    properties = f"{{\n{fields}\n  }}" if given else "{ }"
    text = f'{{\n  "policyClass" : "{_POLICY_CLASS}",\n  "properties" : {properties}\n}}'
    return {_POLICY_OF_LEDGER: text.encode()}


class IsolationPlacement(WrappedPolicy):
    """Another policy on the bookies of some groups.

    As Pulsar's IsolatedBookieEnsemblePlacementPolicy: where the first groups have too few bookies
    for an ensemble, those of the second are taken, too, and where these are too few, bookies of no
    group at all. Bookies of other groups are never taken.

    Args:
        groups: None: all bookies are taken.
    """

    def __init__(
        self, policy: EnsemblePlacementPolicy, groups: IsolationGroups | None, groups_of: GroupsOf
    ) -> None:
        super().__init__(policy)
        self._groups, self._groups_of = groups, groups_of

    def for_ledger(self, custom_metadata: Mapping[str, bytes]) -> EnsemblePlacementPolicy:
        groups = groups_of_ledger(custom_metadata)
        return self if groups is None else IsolationPlacement(self._policy, groups, self._groups_of)

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        allowed = self._allowed(writable, ensemble_size)
        try:
            return self._policy.new_ensemble(ensemble_size, write_quorum, ack_quorum, allowed)
        except NotEnoughBookiesError as error:
            if not (restriction := self.restriction):
                raise
            raise NotEnoughBookiesError(
                f"{error}; of {len(writable)} bookies that accept writes, {len(allowed)} may be "
                f"taken: {restriction}"
            ) from error

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        others = {bookie for at, bookie in enumerate(ensemble) if at != slot}
        allowed = self._allowed(others.union(candidates), len(ensemble))
        mine = [bookie for bookie in candidates if bookie in allowed]
        return self._policy.replace_bookie(slot, ensemble, write_quorum, mine)

    def missing(self, ensemble_size: int, write_quorum: int, writable: Collection[str]) -> int:
        allowed = self._allowed(writable, ensemble_size)
        return self._policy.missing(ensemble_size, write_quorum, allowed)

    @property
    def restriction(self) -> str:
        return str(self._groups or "")

    def _allowed(self, bookies: Collection[str], size: int) -> Collection[str]:
        groups = self._groups
        return bookies if groups is None else groups.allowed(bookies, size, self._groups_of)
