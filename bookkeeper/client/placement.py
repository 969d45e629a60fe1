"""Which bookies a new ledger gets, and who replaces one that failed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from bookkeeper.errors import NotEnoughBookiesError

T = TypeVar("T")


class Rng(Protocol):
    """Chance as an argument; ``random.Random`` fits."""

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...

    def random(self) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...


class Placement(Protocol):
    """Chooses among the writable bookies that are registered now."""

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        """E distinct bookies.

        Raises:
            NotEnoughBookiesError: fewer are registered; retry when some come back.
        """
        ...

    def replace_bookie(
        self,
        slot: int,
        ensemble: Sequence[str],
        excluded: Collection[str],
        writable: Collection[str],
    ) -> str | None:
        """A bookie for ``slot``, none of ``ensemble`` or ``excluded``; None: there is no other."""
        ...


class RandomPlacement:
    """Any distinct bookies: spreads ledgers evenly and knows nothing of racks and zones."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        # Sorted: the same seed must give the same choice, whatever order the set has.
        candidates = sorted(writable)
        if len(candidates) < ensemble_size:
            raise NotEnoughBookiesError(
                f"an ensemble of {ensemble_size} needs more than the {len(candidates)} bookies "
                f"that accept writes: {candidates}"
            )
        return tuple(self._rng.sample(candidates, ensemble_size))

    def replace_bookie(
        self,
        slot: int,
        ensemble: Sequence[str],
        excluded: Collection[str],
        writable: Collection[str],
    ) -> str | None:
        candidates = sorted(set(writable) - set(ensemble) - set(excluded))
        return self._rng.sample(candidates, 1)[0] if candidates else None


def choose_replacements(
    placement: Placement,
    ensemble: Sequence[str],
    failed: dict[int, str],
    excluded: Collection[str],
    writable: Collection[str],
) -> dict[int, tuple[str, str]]:
    """slot -> (failed bookie, new bookie), for those failed ones that are still at their slot.

    Replaces as many as there are other bookies for; fewer than asked is a legal result.
    """
    members = list(ensemble)
    barred = set(excluded) | set(failed.values())
    chosen: dict[int, tuple[str, str]] = {}
    for slot, bookie in sorted(failed.items()):
        if members[slot] != bookie:
            continue
        newcomer = placement.replace_bookie(slot, members, barred, writable)
        if newcomer is not None:
            members[slot] = newcomer
            chosen[slot] = (bookie, newcomer)
    return chosen
