"""TransferShedder: pairs of the busiest and the idlest broker, while loads deviate too much.

It goes by the standard deviation of moving averages, after the condition has held for more than
three rounds, and rests each broker for three minutes after a move. Bundles are taken from the ten
busiest, smallest first; where all of these are too large, from the next ten; and where one is
larger than what is to go, a smaller one of the target may come back for it.

Brokers whose report is old or that rest are left out one by one. (Pulsar skips the whole round for
one of them, so that one silent broker stops all balancing, and in a large cluster some broker
always rests.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.loadbalance.plan import Plan, ProjectedLoad
from magnetar.loadbalance.shedding.shedder import throughput_of


@dataclass(slots=True)
class _LoadStats:
    """Mean and deviation of all loads, kept up to date move by move."""

    count: int
    total: float
    squares: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def deviation(self) -> float:
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2))

    def replace(self, old: float, new: float) -> None:
        self.total += new - old
        self.squares += new * new - old * old


class TransferShedder:
    """Keeps for how many rounds in a row the cluster was uneven."""

    def __init__(self) -> None:
        self._hits = 0

    def run(self, plan: Plan) -> Iterator[None]:
        plan.rank(plan.average)
        yield
        ranked = plan.ranked()
        if len(ranked) < 2:
            self._hits = 0
            return
        scores = [each.score for each in ranked]
        spread = _LoadStats(len(scores), sum(scores), sum(score * score for score in scores))
        if not _is_uneven(plan, ranked[-1], ranked[0], spread):
            self._hits = 0
            return
        self._hits += 1
        if self._hits <= plan.config.load_balancer_shedding_condition_hit_count_threshold:
            return
        delay_s = plan.config.load_balance_shedding_delay_in_seconds
        rested = [each for each in plan.rested() if plan.now_s >= each.state.moved_s + delay_s]
        yield from _pair_off(plan, rested, spread)


def _pair_off(plan: Plan, ranked: list[ProjectedLoad], spread: _LoadStats) -> Iterator[None]:
    sources_left = plan.config.load_balancer_max_number_of_broker_shedding_per_cycle
    low, high = 0, len(ranked) - 1
    while low < high and sources_left > 0:
        source, target = ranked[high], ranked[low]
        if not _is_uneven(plan, source, target, spread):
            return
        before = (source.score, target.score)
        if _transfer(plan, source, target):
            spread.replace(before[0], source.score)
            spread.replace(before[1], target.score)
            sources_left -= 1
            low += 1
        high -= 1  # a source that can't give anything doesn't use up its partner
        yield


def _is_uneven(plan: Plan, high: ProjectedLoad, low: ProjectedLoad, spread: _LoadStats) -> bool:
    wanted = plan.config.load_balancer_broker_load_target_std
    overloaded = plan.config.load_balancer_broker_overloaded_threshold_percentage / 100
    multiplier = min(0.5, max(0.0, wanted / 2))
    return (
        spread.deviation > wanted
        or low.score < spread.mean * multiplier
        or low.throughput < high.throughput * multiplier
        or (high.score > overloaded and high.score > spread.mean + wanted)
    )


def _transfer(plan: Plan, source: ProjectedLoad, target: ProjectedLoad) -> bool:
    """Halves the difference of the two as well as bundles allow; whether anything moved."""
    if source.score <= 0:
        return False
    wanted = source.throughput * (source.score - target.score) / 2 / source.score
    bundles = _movable(plan, source)
    count = plan.config.load_balancer_max_number_of_bundles_in_bundle_load_report
    step = count if count > 0 else max(1, len(bundles))
    reason = f"average {source.score:.2f}, {target.broker} {target.score:.2f}"
    for first in range(0, len(bundles), step):
        if _give(plan, source, target, bundles[first : first + step], wanted, reason):
            return True
    return False


def _movable(plan: Plan, projected: ProjectedLoad) -> list[tuple[float, str]]:
    bundles = plan.movable(projected, throughput_of)
    if plan.config.load_balancer_shedding_bundles_with_policies_enabled:
        return bundles
    return [each for each in bundles if not plan.has_policies(each[1])]


def _give(
    plan: Plan,
    source: ProjectedLoad,
    target: ProjectedLoad,
    bundles: list[tuple[float, str]],
    wanted: float,
    reason: str,
) -> bool:
    net, before = 0.0, len(plan.moves)
    back = _movable(plan, target)
    for size, bundle in reversed(bundles):  # smallest first
        left = wanted - net
        part = plan.usage_part(source, size)
        if size <= left:
            if plan.move(bundle, source, part, reason, target) is not None:
                net += size
            continue
        for small_size, small in back:  # largest first: the first that fits is the best
            if 0 < size - small_size <= left:
                small_part = plan.usage_part(target, small_size)
                if plan.swap(bundle, source, part, small, target, small_part, reason):
                    net += size - small_size
                    back.remove((small_size, small))
                break
    return len(plan.moves) > before
