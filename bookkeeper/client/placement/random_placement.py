"""Any bookies, wherever they are. Pure."""

from collections.abc import Collection, Sequence

from magnetar.bookkeeper.client.placement.policy import EnsemblePlacementPolicy, PlacementRandom
from magnetar.bookkeeper.client.placement.weighted_selection import WeightedRandomSelection
from magnetar.bookkeeper.errors import NotEnoughBookiesError


class RandomPlacement(EnsemblePlacementPolicy):
    """Any distinct bookies: spreads ledgers evenly and knows nothing of racks and zones."""

    def __init__(self, chance: PlacementRandom | WeightedRandomSelection) -> None:
        self._selection = (
            chance
            if isinstance(chance, WeightedRandomSelection)
            else WeightedRandomSelection(chance)
        )

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
        return tuple(self._selection.sample(candidates, ensemble_size))

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        return self._selection.sample(sorted(candidates), 1)[0] if candidates else None
