"""ThresholdShedder: brokers more than ten points above the mean give away the difference.

It goes by a moving average over rounds, so a spike does little. The average trails what the moves
have done already; to act on it once more would send too much. So each move changes the averages of
both brokers at once, by what it is expected to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from magnetar.loadbalance.plan import Plan, ProjectedLoad
from magnetar.loadbalance.shedding.shedder import shed_bytes

_MARGIN: Final = 0.05
_MIB: Final = 1024 * 1024


class ThresholdShedder:
    """Keeps the moving average of each broker."""

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}

    def run(self, plan: Plan) -> Iterator[None]:
        self._step(plan)
        plan.rank(lambda projected: self._averages[projected.broker])
        ranked = plan.ranked()
        if len(ranked) < 2:
            return
        config = plan.config
        mean = sum(each.score for each in ranked) / len(ranked)
        threshold = config.load_balancer_broker_threshold_shedder_percentage / 100
        chosen = 0
        for source in reversed(ranked):
            above = source.score - mean - threshold
            if above < 0 or plan.is_full:
                break
            chosen += self._shed(
                plan, source, above + _MARGIN, f"{source.score:.2f}, mean {mean:.2f}"
            )
            yield
        lowest = plan.ranked()[0].score
        if config.lower_boundary_shedding_enabled and not chosen and lowest < mean - threshold:
            source = next((each for each in reversed(ranked) if each.bundles > 1), ranked[-1])
            self._shed(plan, source, threshold * 0.5, f"lowest {lowest:.2f}, mean {mean:.2f}")
            yield

    def _step(self, plan: Plan) -> None:
        history, before = plan.config.load_balancer_history_resource_percentage, self._averages
        self._averages = {
            name: before.get(name, projected.usage) * history + projected.usage * (1 - history)
            for name, projected in plan.projections.items()
        }

    def _shed(self, plan: Plan, source: ProjectedLoad, fraction: float, reason: str) -> int:
        """Gives away that fraction of the bytes; how many bundles these are."""
        amount, before = source.throughput * fraction, len(plan.moves)
        if amount < plan.config.load_balancer_bundle_unload_min_throughput_threshold * _MIB:
            return 0
        shed_bytes(plan, source, amount, reason)
        for name in {source.broker, *(move.target for move in plan.moves[before:])}:
            if name is not None:
                self._averages[name] = plan.projections[name].score
        return len(plan.moves) - before
