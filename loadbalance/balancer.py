"""The leader's judgement: reports in, placements, moves and splits out. Pure.

One object for each term as the leader; the shell feeds it, asks it and does what it says:

| event | call |
|---|---|
| a report was read; a broker's node is gone | ``on_report``, ``on_broker_gone`` |
| policies, domains, groups were read or changed | ``on_policies`` |
| a stored average or quota of a bundle was read | ``restore`` |
| a lookup found no owner | ``place`` |
| every minute | ``round``, then ``splits`` |
| a move or a split ended | ``on_moved``, ``on_move_failed``, ``on_split``, ``on_split_failed`` |
| every 15 minutes | ``averages``, ``averages_by_broker``: to be stored |
| a note tells of bundles that leaders have moved | ``restore_cooldowns`` |

Until the policies are known nothing is placed or moved: isolation mustn't fail open. All times are
seconds of the leader's own clock that never jumps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.loadbalance.auto_split import BundleSplitStrategy
from magnetar.loadbalance.broker_selector import BrokerSelector
from magnetar.loadbalance.cluster_state import ClusterState
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.model import (
    BrokerLoad,
    BundleData,
    Move,
    SelectionRandom,
    Split,
    Weights,
    namespace_of,
)
from magnetar.loadbalance.plan import Plan
from magnetar.loadbalance.policies import PlacementPolicies
from magnetar.loadbalance.shedders import make_shedder

_ANSWER_S: Final = 300.0
"""A move without an answer for so long has failed."""
_FAILED_REST_S: Final = 300.0
"""A bundle whose move failed isn't tried again before."""
_END: Final = object()


@dataclass(slots=True)
class BalancerMetrics:
    """Counters since becoming the leader, and how the last round saw the cluster."""

    rounds: int = 0
    moves: int = 0
    moves_failed: int = 0
    splits: int = 0
    placements: int = 0
    unplaced: int = 0  # lookups for which no broker may serve
    brokers: int = 0
    unjudged: int = 0  # draining, or their report is too old
    overloaded: int = 0
    usage_mean: float = 0.0
    usage_max: float = 0.0


class Balancer:
    """Invariants: a bundle moves at most once in a grace period; it has one expected owner."""

    def __init__(self, config: BalancerConfig, rng: SelectionRandom) -> None:
        self.config, self.metrics = config, BalancerMetrics()
        history = config.load_balancer_history_resource_percentage
        self.state = ClusterState(Weights.of(config), history)
        self._placement = BrokerSelector(self.state, config, rng)
        self._shedder = make_shedder(config.load_balancer_load_shedding_strategy)
        self._chooser = BundleSplitStrategy(config)
        self._policies_known = False
        self._moving: dict[str, tuple[Move, float]] = {}  # by bundle: since when
        self._splitting: set[str] = set()
        self._cooldown_until: dict[str, float] = {}  # bundle: until when

    @property
    def grace_s(self) -> float:
        """How long a bundle is in cooldown after a move."""
        return self.config.load_balancer_shedding_grace_period_minutes * 60

    # --- what happened

    def on_report(self, load: BrokerLoad, now_s: float, age_s: float = 0.0) -> None:
        """A report that wasn't told before.

        Args:
            age_s: how long ago it was made. By the store's clock, not by the broker's: clocks
                jump, and a report from the future would stay fresh for ever.
        """
        self.state.on_report(load, now_s, max(0.0, age_s))

    def on_broker_gone(self, broker: str) -> None:
        self.state.on_broker_gone(broker)

    def on_policies(self, policies: PlacementPolicies) -> None:
        """All of them. Don't call it with what could only be read in part."""
        self._placement.use(policies)
        self._policies_known = True

    def restore(self, bundle: str, load: BundleData) -> None:
        """Set a bundle's load from an earlier leader's average or a quota, unless it is known."""
        self.state.bundles.setdefault(bundle, load)

    def restore_cooldowns(self, ages_s: Mapping[str, float], now_s: float) -> None:
        """Add cooldowns of bundles that leaders have moved, by age. A longer known one stays."""
        for bundle, age_s in ages_s.items():
            until_s = now_s + self.grace_s - max(0.0, age_s)
            if until_s > max(now_s, self._cooldown_until.get(bundle, now_s)):
                self._cooldown_until[bundle] = until_s

    def on_moved(self, move: Move, now_s: float) -> None:
        """It is unloaded at its source."""
        if self._moving.pop(move.bundle, None) is not None:
            self._cooldown_until[move.bundle] = now_s + self.grace_s

    def on_move_failed(self, move: Move, now_s: float) -> None:
        """It is where it was. It may be tried again later."""
        if self._moving.pop(move.bundle, None) is None:
            return
        self.metrics.moves_failed += 1
        self._cooldown_until[move.bundle] = now_s + min(_FAILED_REST_S, self.grace_s)
        if move.target is not None:
            self.state.rollback(move.bundle, move.source, move.target)

    def on_split(self, split: Split) -> None:
        """The bundle is gone; its parts show in the next report of their owner."""
        self._splitting.discard(split.bundle)
        self.forget_bundles([split.bundle])

    def on_split_failed(self, split: Split) -> None:
        self._splitting.discard(split.bundle)

    def forget_bundles(self, names: Iterable[str]) -> None:
        """They don't exist any more."""
        names = list(names)
        self.state.forget_bundles(names)
        for name in names:
            self._moving.pop(name, None)
            self._cooldown_until.pop(name, None)

    # --- what to do

    def place(self, bundle: str, now_s: float, *, non_persistent: bool = False) -> str | None:
        """The broker that should acquire a bundle that has no owner.

        The same one again until its report shows the bundle, or should have.

        Returns:
            None: no broker may serve it, or the policies aren't known yet. Ask again later.
        """
        if not self._policies_known:
            return None
        holder = self.state.brokers.get(self.state.owners.get(bundle, ""))
        if (
            holder is not None
            and bundle in holder.placed
            and not holder.load.draining
            and self._placement.allows(namespace_of(bundle), holder.broker)
        ):
            return holder.broker
        chosen = self._placement.place(bundle, now_s, non_persistent=non_persistent)
        if chosen is None:
            self.metrics.unplaced += 1
            return None
        self.metrics.placements += 1
        self.state.add_pending(bundle, None, chosen, now_s)
        return chosen

    def round(self, now_s: float) -> Iterator[Move | None]:
        """The moves of one round of shedding, to be carried out as they come.

        None: nothing to do, but a good moment to let others run; a step takes about a millisecond
        in the largest clusters. Reports may come in between.
        """
        self._forget_old(now_s)
        config = self.config
        if not (config.load_balancer_enabled and config.load_balancer_shedding_enabled):
            return
        if not self._policies_known:
            return
        yield from self.state.settle(now_s)
        yield None
        plan = Plan(self.state, self._placement, config, self._in_cooldown(), now_s)
        yield from plan.evaluate()
        self._look(plan)
        if len(plan.projections) < 2:
            return
        self.metrics.rounds += 1
        yield None
        told = 0
        steps = self._shedder.run(plan)
        going_on = True
        try:
            while going_on:
                going_on = next(steps, _END) is not _END  # the last step may have moves, too
                for move in plan.moves[told:]:
                    told += 1
                    self._moving[move.bundle] = (move, now_s)
                    self.metrics.moves += 1
                    yield move
                yield None
        finally:
            for move in plan.moves[told:]:  # the caller didn't ask for the rest
                assert move.target is not None
                self.state.rollback(move.bundle, move.source, move.target)

    def splits(self, bundles_of: Callable[[str], int | None]) -> list[Split]:
        """Bundles to be cut at their owners.

        Args:
            bundles_of: how many bundles a namespace has; None: not known, so no cut.
        """
        if not (
            self.config.load_balancer_enabled
            and self.config.load_balancer_auto_bundle_split_enabled
        ):
            return []
        busy = self._splitting | self._moving.keys()
        splits = self._chooser.choose(self.state, bundles_of, busy)
        for split in splits:
            self._splitting.add(split.bundle)
        self.metrics.splits += len(splits)
        return splits

    # --- what to store

    def averages(self) -> dict[str, BundleData]:
        """The busiest bundles, ten for each broker: thousands of nodes would hurt the store."""
        count = self.config.load_balancer_max_number_of_bundles_in_bundle_load_report
        bundles = self.state.bundles
        owned = [(name, bundles[name]) for name in self.state.owners if name in bundles]
        if count >= 0:
            owned.sort(key=lambda item: (-item[1].long.throughput, item[0]))
            del owned[count * len(self.state.brokers) :]
        return dict(owned)

    def averages_by_broker(self) -> dict[str, list[BundleData]]:
        """Loads of the bundles that each broker reports; to be summed up by ``documents.py``."""
        bundles = self.state.bundles
        return {
            name: [bundles[bundle] for bundle in broker.load.stats if bundle in bundles]
            for name, broker in self.state.brokers.items()
        }

    # --- inside

    def _in_cooldown(self) -> set[str]:
        return {*self._cooldown_until, *self._moving, *self._splitting}

    def _forget_old(self, now_s: float) -> None:
        for name in [key for key, until_s in self._cooldown_until.items() if until_s <= now_s]:
            del self._cooldown_until[name]
        overdue = [move for move, since_s in self._moving.values() if since_s <= now_s - _ANSWER_S]
        for move in overdue:
            self.on_move_failed(move, now_s)

    def _look(self, plan: Plan) -> None:
        """How the cluster is doing, for metrics and operators."""
        usages = [each.usage for each in plan.projections.values()]
        limit = self.config.load_balancer_broker_overloaded_threshold_percentage / 100
        metrics = self.metrics
        metrics.brokers = len(self.state.brokers)
        metrics.unjudged = metrics.brokers - len(usages)
        metrics.overloaded = sum(usage >= limit for usage in usages)
        metrics.usage_mean = sum(usages) / len(usages) if usages else 0.0
        metrics.usage_max = max(usages, default=0.0)
