"""Policies around a policy: quarantined bookies last, smaller ensembles when need be. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence

from magnetar.bookkeeper.client.placement.policy import Adherence, EnsemblePlacementPolicy
from magnetar.bookkeeper.client.quorum import FaultDomainAckRule
from magnetar.bookkeeper.errors import NotEnoughBookiesError, PlacementRuleError


class WrappedPolicy(EnsemblePlacementPolicy):
    """What is the same as in the policy inside."""

    def __init__(self, policy: EnsemblePlacementPolicy) -> None:
        self._policy = policy

    @property
    def restriction(self) -> str:
        return self._policy.restriction

    def missing(self, ensemble_size: int, write_quorum: int, writable: Collection[str]) -> int:
        return self._policy.missing(ensemble_size, write_quorum, writable)

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._policy.check(ensemble_size, write_quorum, ack_quorum)

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        return self._policy.replace_bookie(slot, ensemble, write_quorum, candidates)

    def adherence(self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int) -> Adherence:
        return self._policy.adherence(ensemble, write_quorum, ack_quorum)

    def ack_spread(self, ensemble: Sequence[str]) -> FaultDomainAckRule | None:
        return self._policy.ack_spread(ensemble)


class QuarantinePlacement(WrappedPolicy):
    """Another policy without the bookies to avoid; with them when there are not enough others."""

    def __init__(
        self, policy: EnsemblePlacementPolicy, to_avoid: Callable[[], Collection[str]]
    ) -> None:
        super().__init__(policy)
        self._to_avoid = to_avoid

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        preferred = self._without_avoided(writable)
        if len(preferred) < len(writable):
            try:
                return self._policy.new_ensemble(ensemble_size, write_quorum, ack_quorum, preferred)
            except NotEnoughBookiesError:
                pass
        return self._policy.new_ensemble(ensemble_size, write_quorum, ack_quorum, writable)

    def replace_bookie(
        self, slot: int, ensemble: Sequence[str], write_quorum: int, candidates: Collection[str]
    ) -> str | None:
        preferred = self._without_avoided(candidates)
        if len(preferred) < len(candidates):
            chosen = self._policy.replace_bookie(slot, ensemble, write_quorum, preferred)
            if chosen is not None:
                return chosen
        return self._policy.replace_bookie(slot, ensemble, write_quorum, candidates)

    def _without_avoided(self, writable: Collection[str]) -> Collection[str]:
        avoided = self._to_avoid()
        return [b for b in writable if b not in avoided] if avoided else writable


class OpportunisticStripingPlacement(WrappedPolicy):
    """Another policy that stripes over fewer bookies, down to Qw, when E can't be had."""

    def for_ledger(self, custom_metadata: Mapping[str, bytes]) -> EnsemblePlacementPolicy:
        return OpportunisticStripingPlacement(self._policy.for_ledger(custom_metadata))

    def missing(self, ensemble_size: int, write_quorum: int, writable: Collection[str]) -> int:
        return self._policy.missing(write_quorum, write_quorum, writable)

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        """As the policy's, but maybe shorter than ``ensemble_size``."""
        try:
            return self._policy.new_ensemble(ensemble_size, write_quorum, ack_quorum, writable)
        except NotEnoughBookiesError as error:
            for size in range(ensemble_size - 1, write_quorum - 1, -1):
                try:
                    return self._policy.new_ensemble(size, write_quorum, ack_quorum, writable)
                except (NotEnoughBookiesError, PlacementRuleError):
                    continue
            raise error
