"""Strategies that take load from brokers, all by the rules of ``plan.py``. Pure."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from magnetar.loadbalance.config import (
    AVG_SHEDDER,
    OVERLOAD_SHEDDER,
    SHEDDERS,
    THRESHOLD_SHEDDER,
    TRANSFER_SHEDDER,
    UNIFORM_SHEDDER,
    strategy_name,
)
from magnetar.loadbalance.model import BundleData
from magnetar.loadbalance.plan import Plan, ProjectedLoad

_MARGIN: Final = 0.05  # below the limit, so that the next message doesn't call for another move
_MIB: Final = 1024 * 1024
_POINTS: Final = 100.0


class Shedder(Protocol):
    """Keeps what it has to know of earlier rounds, above all how long a difference lasts."""

    def run(self, plan: Plan) -> Iterator[None]:
        """Makes the moves of one round by ``plan.move``.

        Yields after each broker or so, for the caller to do something else in between.
        """


def rate_of(load: BundleData) -> float:
    return load.short.rate


def throughput_of(load: BundleData) -> float:
    return load.short.throughput


def shed_bytes(plan: Plan, source: ProjectedLoad, amount: float, reason: str) -> float:
    """Moves the largest bundles until ``amount`` bytes a second are gone, or nothing fits.

    Overshoots by less than one bundle. Scores must be shares of usage.

    Returns:
        Bytes a second that were moved.
    """
    moved = 0.0
    for size, bundle in plan.movable(source, throughput_of):
        if moved >= amount or plan.is_full:
            break
        if plan.move(bundle, source, plan.usage_part(source, size), reason) is not None:
            moved += size
    return moved


class OverloadShedder:
    """Only brokers above 85 % give anything away.

    So a new broker stays empty while the others are at 80 %, and when all are above nothing helps:
    a broker gives to one that stands lower, never in turn.

    It has no memory.
    """

    def run(self, plan: Plan) -> Iterator[None]:
        limit = plan.config.load_balancer_broker_overloaded_threshold_percentage / 100
        plan.rank(lambda projected: projected.usage)
        yield
        hot = [each for each in plan.ranked() if each.usage >= limit]
        for source in reversed(hot):
            if source.usage >= limit and not plan.is_full:  # it may have changed meanwhile
                amount = source.throughput * (source.usage - limit + _MARGIN)
                shed_bytes(plan, source, amount, f"usage {source.usage:.2f}")
            yield


class ThresholdShedder:
    """Brokers more than ten points above the mean give away the difference.

    It goes by a moving average over rounds, so a spike does little. The average trails what the
    moves have done already; to act on it once more would send too much. So each move changes
    the averages of both brokers at once, by what it is expected to do.

    It keeps the moving average of each broker.
    """

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


class UniformLoadShedder:
    """The broker with the most messages gives to the one with the fewest.

    If messages are even it goes by bytes. One pair a round, and not even a fifth of the
    difference by default, so many brokers take many rounds. A broker that can't give anything
    is passed over.

    It has no memory.
    """

    def run(self, plan: Plan) -> Iterator[None]:
        config = plan.config
        plan.rank(lambda projected: projected.rate)
        yield
        high, low = _ends(plan)
        if (high - low) * 100 / max(low, 1.0) > (
            config.load_balancer_msg_rate_difference_shedder_threshold
        ):
            yield from _even_out(plan, rate_of, config.min_unload_message, "messages")
        if plan.moves:
            return
        plan.rank(lambda projected: projected.throughput)
        yield
        high, low = _ends(plan)
        if high / max(low, 1.0) > (
            config.load_balancer_msg_throughput_multiplier_difference_shedder_threshold
        ):
            least = config.min_unload_message_throughput
            yield from _even_out(plan, throughput_of, least, "bytes")


def _ends(plan: Plan) -> tuple[float, float]:
    """Highest and lowest score; nothing to do for fewer than two brokers."""
    ranked = plan.ranked()
    return (ranked[-1].score, ranked[0].score) if ranked else (0.0, 0.0)


def _even_out(
    plan: Plan, size: Callable[[BundleData], float], least: float, what: str
) -> Iterator[None]:
    """From the highest broker that can give something."""
    ranked = plan.rested()
    if not ranked:
        return
    target = ranked[0]
    for source in reversed(ranked):
        amount = (source.score - target.score) * plan.config.max_unload_percentage
        if amount < least:
            return
        _shed(plan, source, target, amount, size, f"{amount:.0f} {what}")
        if plan.moves:
            return
        yield


def _shed(
    plan: Plan,
    source: ProjectedLoad,
    target: ProjectedLoad,
    amount: float,
    size: Callable[[BundleData], float],
    reason: str,
) -> None:
    count_max = plan.config.max_unload_bundle_num_per_shedding
    left = amount
    for its, bundle in plan.movable(source, size):
        if 0 <= count_max <= source.given:
            return
        if its <= left and plan.move(bundle, source, its, reason):
            left -= its


class _PairRounds(NamedTuple):
    is_high: bool
    rounds: int


class AvgShedder:
    """The busiest broker gives to the idlest, the second busiest to the second idlest, ...

    Only after a difference has lasted: 40 points for two rounds, 15 points for eight. All pairs
    act in the same round, so a cluster of any size is even after a few.

    A broker must stay on one side, high or low, for all these rounds. (Pulsar counts any pair that
    has the broker. Where two halves of a cluster are busy in turn, each minute the other one,
    Pulsar moves bundles from one to the other and back for ever, and every move is wrong a
    minute later.)

    It keeps for how many rounds in a row a broker was the high or the low one of such a pair.
    """

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
                _even_pair(plan, source, target, f"{difference:.0f} points above {target.broker}")
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


def _even_pair(plan: Plan, source: ProjectedLoad, target: ProjectedLoad, reason: str) -> None:
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
        # idle. The difference of usage is converted to bytes, as if bytes cause all usage.
        volume = source.throughput * (source.score - target.score) / source.score * fraction
    return (volume if volume > config.min_unload_message_throughput else 0.0), throughput_of


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
    """Pairs of the busiest and the idlest broker, while loads deviate too much.

    It goes by the standard deviation of moving averages, after the condition has held for more
    than three rounds, and rests each broker for three minutes after a move. Bundles are taken
    from the ten busiest, smallest first; where all of these are too large, from the next ten;
    and where one is larger than what is to go, a smaller one of the target may come back for
    it.

    Brokers whose report is old or that rest are left out one by one. (Pulsar skips the whole
    round for one of them, so that one silent broker stops all balancing, and in a large cluster
    some broker always rests.)

    It keeps for how many rounds in a row the cluster was uneven.
    """

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


_BY_NAME: Final[dict[str, Callable[[], Shedder]]] = {
    AVG_SHEDDER: AvgShedder,
    OVERLOAD_SHEDDER: OverloadShedder,
    THRESHOLD_SHEDDER: ThresholdShedder,
    UNIFORM_SHEDDER: UniformLoadShedder,
    TRANSFER_SHEDDER: TransferShedder,
}


def make_shedder(setting: str) -> Shedder:
    """The strategy that a setting names, without a memory of rounds before.

    Raises:
        InvalidSettingError: there is none of that name.
    """
    return _BY_NAME[strategy_name(setting, SHEDDERS)]()
