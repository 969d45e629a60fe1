"""Plans a round of shedding: brokers to judge, bundles to move, their targets, and common rules.

A strategy ranks brokers by a score (usage, or messages, or bytes), says how much of it a broker
should give, and asks ``Plan.move`` bundle by bundle. The plan refuses what no strategy may do:

- a broker that was part of a move which its reports don't show yet;
- a bundle that moved within the grace period, is moving, is pinned to a broker or excluded;
- the only bundle of a broker, or more bundles than a round may move;
- a broker whose report is old, that is draining, outside of the isolation policy, worse for the
  anti-affinity group, or full, as a target;
- a move after which the target would stand higher than the source: so no move calls for its
  opposite, and a bundle that is larger than the difference stays where it is.

Without a target of the strategy's own it goes to the broker with the lowest score. Choosing it by
another measure than the one that called for the move is how load is sent in circles.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.loadbalance.broker_selector import BrokerSelector
from magnetar.loadbalance.cluster_state import STEP, BrokerState, ClusterState
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.model import BundleData, Move, namespace_of
from magnetar.loadbalance.policies import SYSTEM_NAMESPACE, pinned_broker

_ROUNDING: Final = 1e-9


@dataclass(slots=True)
class ProjectedLoad:
    """A broker in this round, as it will be when the moves of the round are made."""

    state: BrokerState
    score: float
    usage: float
    rate: float
    throughput: float
    bundles: int
    in_cooldown: bool  # neither source nor target of another move now
    given: int = 0  # bundles it loses in this round

    @property
    def broker(self) -> str:
        return self.state.broker


class Plan:
    """The state of one round; lives as long as it."""

    def __init__(
        self,
        state: ClusterState,
        placement: BrokerSelector,
        config: BalancerConfig,
        in_cooldown: Collection[str],
        now_s: float,
    ) -> None:
        """``in_cooldown``: bundles that must not move now."""
        self.config, self.now_s = config, now_s
        self.moves: list[Move] = []
        self._state, self._placement, self._in_cooldown = state, placement, in_cooldown
        self._history = config.load_balancer_history_resource_percentage
        self._may_move: dict[str, bool] = {}  # by namespace
        # Sorted by score. A pool: those that may take bundles of an isolation policy (None: of
        # namespaces without one), as far as they don't rest. Else each bundle would be offered to
        # all that rest, and after a large round half of the brokers do.
        self._order: list[tuple[float, str]] = []
        self._pools: dict[str | None, list[tuple[float, str]]] = {}
        self.projections: dict[str, ProjectedLoad] = {}

    def evaluate(self) -> Iterator[None]:
        """Takes all standings, before anything else; stops after every few brokers."""
        for number, (name, broker) in enumerate(list(self._state.brokers.items()), 1):
            if self._placement.is_fresh(broker, self.now_s) and not broker.load.draining:
                self.projections[name] = _projected_load(broker, self.now_s)
            if not number % STEP:
                yield

    # --- ranking

    def rank(self, score: Callable[[ProjectedLoad], float]) -> None:
        """Judge by another score; moves of this round are in the figures that it may use."""
        for projected in self.projections.values():
            projected.score = score(projected)
        self._order = sorted([(each.score, name) for name, each in self.projections.items()])
        self._pools.clear()

    def ranked(self) -> list[ProjectedLoad]:
        """By score, lowest first."""
        return [self.projections[name] for _, name in self._order]

    def rested(self) -> list[ProjectedLoad]:
        """List the brokers that may take part in moves."""
        return [each for each in self.ranked() if not each.in_cooldown]

    def average(self, projected: ProjectedLoad) -> float:
        """Moving average of usage; moves of this round are in it."""
        before = projected.state.average_at(self.now_s, self._history)
        return max(0.0, before + projected.usage - projected.state.usage)

    # --- bundles

    def movable(
        self, projected: ProjectedLoad, size: Callable[[BundleData], float]
    ) -> list[tuple[float, str]]:
        """(size, bundle) of those that a broker may lose, largest first; none of size zero."""
        loads, owners, in_cooldown = self._state.bundles, self._state.owners, self._in_cooldown
        placed, may_move, broker = projected.state.placed, self._may_move, projected.broker
        found = []
        for name in projected.state.bundles:
            load = loads.get(name)
            if load is None or name in in_cooldown or name in placed or owners.get(name) != broker:
                continue
            namespace = namespace_of(name)
            if namespace not in may_move:
                may_move[namespace] = self._is_movable(namespace)
            if may_move[namespace] and (its := size(load)) > 0:
                found.append((its, name))
        found.sort(reverse=True)
        return found

    def _is_movable(self, namespace: str) -> bool:
        return not (
            namespace == SYSTEM_NAMESPACE
            or namespace in self.config.load_balancer_shedding_excluded_namespaces
            or pinned_broker(namespace) is not None
        )

    def has_policies(self, bundle: str) -> bool:
        """Tell whether isolation or anti-affinity policies cover the bundle's namespace."""
        namespace = namespace_of(bundle)
        return self._placement.is_isolated(namespace) or self._placement.has_group(namespace)

    @staticmethod
    def usage_part(projected: ProjectedLoad, size: float) -> float:
        """Of the broker's usage, by the bundle's share of its bytes."""
        throughput = projected.state.load.throughput
        if throughput <= 0:
            return 0.0
        return projected.state.reported_usage * min(1.0, size / throughput)

    def bundle_usage(self, bundle: str, projected: ProjectedLoad) -> float:
        """The same for a bundle whose size was told in messages."""
        return self._state.usage_of(self._state.bundles[bundle], projected.state)

    # --- moves

    @property
    def is_full(self) -> bool:
        return len(self.moves) >= self.config.load_balancer_max_unloads_per_round

    def move(
        self,
        bundle: str,
        source: ProjectedLoad,
        part: float,
        reason: str,
        target: ProjectedLoad | None = None,
    ) -> Move | None:
        """Moves it, if there is where to; the scores of both are changed by ``part``.

        Args:
            part: of the source's score that the bundle causes.
            target: the strategy's choice; None: the lowest score that may have it.
        Returns:
            None: it stays.
        """
        if self.is_full or source.in_cooldown or source.bundles - 1 < 1:
            return None
        if target is None:
            target = self._lowest(bundle, source, part)
        elif not self._fits(target, source, part) or not self._takes(bundle, target):
            target = None
        if target is None:
            return None
        return self._decide(bundle, source, target, part, reason)

    def swap(
        self,
        large: str,
        source: ProjectedLoad,
        large_part: float,
        small: str,
        target: ProjectedLoad,
        small_part: float,
        reason: str,
    ) -> bool:
        """Sends a bundle and takes a smaller one back, where the large one alone is too much.

        Only if the source stays at least as high as the target, and a quarter lower than it is.
        """
        net = large_part - small_part
        if (
            len(self.moves) + 2 > self.config.load_balancer_max_unloads_per_round
            or net <= 0
            or target.score + net > source.score - net + _ROUNDING
            or source.score - net >= 0.75 * source.score
            or not (self._takes(large, target) and self._takes(small, source))
        ):
            return False
        self._decide(large, source, target, large_part, reason)
        self._decide(small, target, source, small_part, reason)
        return True

    def _lowest(self, bundle: str, source: ProjectedLoad, part: float) -> ProjectedLoad | None:
        apart: frozenset[str] | None = None
        for number, (_, name) in enumerate(self._pool_of(bundle)):
            target = self.projections[name]
            if not self._fits(target, source, part):
                return None  # nor does any that stands higher
            if not number:
                apart = self._anti_affinity(bundle)  # dear, and seldom asked for
            if self._has_room(bundle, target, apart):
                return target
        return None

    def _pool_of(self, bundle: str) -> list[tuple[float, str]]:
        namespace = namespace_of(bundle)
        policy = self._placement.policy_name(namespace)
        pool = self._pools.get(policy)
        if pool is None:
            allows, projections = self._placement.allows, self.projections
            pool = self._pools[policy] = [
                each
                for each in self._order
                if not projections[each[1]].in_cooldown and allows(namespace, each[1])
            ]
        return pool

    @staticmethod
    def _fits(target: ProjectedLoad, source: ProjectedLoad, part: float) -> bool:
        return target is not source and target.score + part <= source.score - part + _ROUNDING

    def _takes(self, bundle: str, target: ProjectedLoad) -> bool:
        return not target.in_cooldown and self._has_room(
            bundle, target, self._anti_affinity(bundle)
        )

    def _has_room(self, bundle: str, target: ProjectedLoad, apart: frozenset[str] | None) -> bool:
        load, broker = self._state.bundles[bundle], target.state
        return (
            # Again, though it is in the pool: policies and brokers change during a round.
            self._placement.allows(namespace_of(bundle), broker.broker)
            and (apart is None or broker.broker in apart)
            and broker.load.persistent_topics_enabled
            and broker.topics + load.topics <= self.config.load_balancer_broker_max_topics
        )

    def _anti_affinity(self, bundle: str) -> frozenset[str] | None:
        """Brokers that are best for its group; None: it has none."""
        namespace = namespace_of(bundle)
        if not self._placement.has_group(namespace):
            return None
        allowed = [each for each in self._placement.allowed(namespace) if each in self.projections]
        return frozenset(self._placement.anti_affinity_filter(bundle, allowed))

    def _decide(
        self, bundle: str, source: ProjectedLoad, target: ProjectedLoad, part: float, reason: str
    ) -> Move:
        load = self._state.bundles[bundle]
        usage = self._state.usage_of(load, source.state)
        for projected, sign in ((source, -1), (target, 1)):
            self._rescore(projected, max(0.0, projected.score + sign * part))
            projected.usage = max(0.0, projected.usage + sign * usage)
            projected.rate = max(0.0, projected.rate + sign * load.short.rate)
            projected.throughput = max(0.0, projected.throughput + sign * load.short.throughput)
            projected.bundles += sign
        source.given += 1
        # At once, so that the next bundle of the same group finds this one where it will be.
        self._state.add_pending(bundle, source.broker, target.broker, self.now_s)
        made = Move(bundle, source.broker, target.broker, reason)
        self.moves.append(made)
        return made

    def _rescore(self, projected: ProjectedLoad, score: float) -> None:
        before = (projected.score, projected.broker)
        projected.score = score
        for ranking in (self._order, *self._pools.values()):
            place = bisect_left(ranking, before)
            if place < len(ranking) and ranking[place] == before:
                del ranking[place]
                insort(ranking, (score, projected.broker))


def _projected_load(broker: BrokerState, now_s: float) -> ProjectedLoad:
    usage = broker.usage
    coming = sum(name not in broker.bundles for name in broker.placed)
    return ProjectedLoad(
        broker,
        usage,
        usage,
        broker.rate,
        broker.throughput,
        len(broker.bundles) + coming,
        broker.in_cooldown(now_s),
    )
