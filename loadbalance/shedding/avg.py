"""AvgShedder: the busiest broker gives to the idlest, the second busiest to the second idlest, ...

Only after a difference has lasted: 40 points for two rounds, 15 points for eight. All pairs act in
the same round, so a cluster of any size is even after a few.

What lasts is that a broker stands on one side: high, or low. (Pulsar counts any pair that it is in,
so where two halves of a cluster are busy in turn, each minute the other one, it moves bundles from
one to the other and back for ever, and every move is wrong a minute later.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from magnetar.loadbalance.model import BundleData
from magnetar.loadbalance.plan import Plan, ProjectedLoad
from magnetar.loadbalance.shedding.shedder import rate_of, throughput_of

_POINTS: Final = 100.0


class _PairRounds(NamedTuple):
    is_high: bool
    rounds: int


class AvgShedder:
    """Keeps for how many rounds in a row a broker was the high or the low one of such a pair."""

    def __init__(self) -> None:
        self._low: dict[str, _PairRounds] = {}
        self._high: dict[str, _PairRounds] = {}

    def run(self, plan: Plan) -> Iterator[None]:
        plan.rank(lambda projected: projected.usage)
        ranked = plan.rested()
        for counts in (self._low, self._high):
            for gone in counts.keys() - plan.projections.keys():
                del counts[gone]
        for target, source in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            difference = (source.score - target.score) * _POINTS
            if self._lasts(plan, source, target, difference):
                _even_out(plan, source, target, f"{difference:.0f} points above {target.broker}")
                yield
        yield

    def _lasts(
        self, plan: Plan, source: ProjectedLoad, target: ProjectedLoad, difference: float
    ) -> bool:
        """Counts the round for both; True: it is time to act, and to count anew."""
        config = plan.config
        pair = ((source.broker, True), (target.broker, False))
        due = False
        for counts, threshold, hits in (
            (
                self._low,
                config.load_balancer_avg_shedder_low_threshold,
                config.load_balancer_avg_shedder_hit_count_low_threshold,
            ),
            (
                self._high,
                config.load_balancer_avg_shedder_high_threshold,
                config.load_balancer_avg_shedder_hit_count_high_threshold,
            ),
        ):
            for name, is_high in pair:
                if difference < threshold:
                    counts.pop(name, None)
                    continue
                before = counts.get(name)
                rounds = before.rounds + 1 if before and before.is_high is is_high else 1
                counts[name] = _PairRounds(is_high, rounds)
                due = due or rounds >= hits
        if due:
            for name, _ in pair:
                self._low.pop(name, None)
                self._high.pop(name, None)
        return due


def _even_out(plan: Plan, source: ProjectedLoad, target: ProjectedLoad, reason: str) -> None:
    left, size = _amount(plan, source, target)
    for its, bundle in plan.movable(source, size):
        if its <= left and not plan.is_full:
            part = plan.bundle_usage(bundle, source)
            if plan.move(bundle, source, part, reason, target) is not None:
                left -= its


def _amount(
    plan: Plan, source: ProjectedLoad, target: ProjectedLoad
) -> tuple[float, Callable[[BundleData], float]]:
    """How much goes, and in what it is measured; 0.0 where it isn't worth it."""
    config, fraction = plan.config, plan.config.max_unload_percentage
    messages = (source.rate - target.rate) * fraction
    if messages > config.min_unload_message:
        return messages, rate_of
    volume = (source.throughput - target.throughput) * fraction
    if volume <= config.min_unload_message_throughput:
        # Not in Pulsar: a small machine may be full with less traffic than a large one that is
        # idle. What the difference of usage is in bytes, if they are what fills it.
        volume = source.throughput * (source.score - target.score) / source.score * fraction
    return (volume if volume > config.min_unload_message_throughput else 0.0), throughput_of
