"""What every placement policy can do, and what policies are given."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from magnetar.bookkeeper.client.quorum import FaultDomainAckRule

T = TypeVar("T")


class PlacementRandom(Protocol):
    """Chance as an argument; ``random.Random`` fits."""

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...

    def random(self) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...


class Adherence(Enum):
    """How well an ensemble follows its policy."""

    FAIL = "fail"  # a rule is broken: it should be repaired
    SOFT = "soft"  # all rules hold, the spread that is wished for isn't reached
    STRICT = "strict"


class EnsemblePlacementPolicy(ABC):
    """Chooses among bookies that accept writes now; read-only ones are never given to it.

    Unless a policy says otherwise, every quorum can be placed and every ensemble is as wished for.
    """

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:  # noqa: B027
        """Could ledgers with these quorums be placed, given enough bookies?

        Raises:
            PlacementRuleError: no cluster could satisfy the rules.
        """

    @abstractmethod
    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        """E distinct bookies; fewer, at least Qw, only if the policy was told to stripe less.

        Raises:
            PlacementRuleError: see ``check``.
            NotEnoughBookiesError: too few are registered, or not in the right places; retry when
                some come back.
        """

    @abstractmethod
    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        """One of ``candidates`` for ``slot``; None: none is allowed.

        Args:
            candidates: accept writes, and none of them is in ``ensemble``.
        """

    def for_ledger(self, custom_metadata: Mapping[str, bytes]) -> "EnsemblePlacementPolicy":
        """The policy of one ledger: its creator may have named groups."""
        return self

    def missing(self, ensemble_size: int, write_quorum: int, writable: Collection[str]) -> int:
        """How many more bookies must accept writes, of those that may be taken; 0: enough do."""
        return max(0, ensemble_size - len(writable))

    @property
    def restriction(self) -> str:
        """Which bookies may be taken, for error texts; "": all of them."""
        return ""

    def adherence(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        """How well this ensemble follows the policy, wherever its bookies are now."""
        return Adherence.STRICT

    def ack_spread(self, ensemble: Sequence[str]) -> FaultDomainAckRule | None:
        """What the acks of an entry must span beside their number; None: nothing."""
        return None


def choose_replacements(
    placement: EnsemblePlacementPolicy,
    ensemble: Sequence[str],
    write_quorum: int,
    failed: dict[int, str],
    candidates: Collection[str],
) -> dict[int, tuple[str, str]]:
    """slot -> (failed bookie, new bookie), for those failed ones that are still at their slot.

    Replaces as many as there are other bookies for; fewer than asked is a legal result. One after
    the other, so that the ensemble follows the policy whichever of them can't be replaced.

    Args:
        candidates: accept writes; those that are in ``ensemble`` or in ``failed`` don't count.
    """
    members = list(ensemble)
    others = set(candidates).difference(failed.values())
    chosen: dict[int, tuple[str, str]] = {}
    for slot, bookie in sorted(failed.items()):
        if members[slot] != bookie:
            continue
        newcomer = placement.replace_bookie(slot, members, write_quorum, others.difference(members))
        if newcomer is not None:
            members[slot] = newcomer
            chosen[slot] = (bookie, newcomer)
    return chosen
