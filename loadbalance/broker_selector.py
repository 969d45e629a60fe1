"""Chooses the broker for a bundle without an owner. Pure.

Rules: docs/spec/bundles.md, "Placement".

Filters narrow the live brokers down, then a strategy chooses. Isolation binds whatever is left;
every other filter is dropped when nothing would be left.

| strategy | chooses |
|---|---|
| AvgShedder | any, by chance; what it moved goes where it was to go (``placed``) |
| LeastLongTermMessageRate | the fewest messages over a long time, brokers below 85 % first |
| LeastResourceUsageWithWeight | by chance among those clearly below the mean usage |
| RoundRobinBrokerSelector | the next one |

A choice counts as load of its broker at once (``ClusterState.add_pending``), so a thousand bundles
of a dead broker, placed before a broker reports, don't all go to the broker that was idlest before.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from magnetar.loadbalance.cluster_state import BrokerState, ClusterState
from magnetar.loadbalance.config import (
    AVG_SHEDDER,
    LEAST_LONG_TERM_MESSAGE_RATE,
    LEAST_RESOURCE_USAGE,
    PLACEMENTS,
    ROUND_ROBIN,
    BalancerConfig,
    strategy_name,
)
from magnetar.loadbalance.model import SelectionRandom, namespace_of
from magnetar.loadbalance.policies import (
    SYSTEM_NAMESPACE,
    NamespaceIsolationPolicy,
    PlacementPolicies,
    anti_affinity_filter,
    pinned_broker,
)

_VERSION: Final = re.compile(r"\d+(?:\.\d+)*")
_NAMESPACES_MAX: Final = 100_000

_Allowed = tuple[list[str], frozenset[str]]
_Strategy = Callable[[Sequence[BrokerState], float], BrokerState]


class BrokerSelector:
    """Chooses brokers; keeps nothing but the turn of round robin and what policies allow."""

    def __init__(self, state: ClusterState, config: BalancerConfig, rng: SelectionRandom) -> None:
        self._state, self._config, self._rng = state, config, rng
        self._turn = 0
        self._policies = PlacementPolicies()
        self._policy_of: dict[str, NamespaceIsolationPolicy | None] = {}  # by namespace
        self._allowed: dict[str | None, _Allowed] = {}  # by policy, of ``_membership``
        self._membership = -1  # of the brokers that ``_allowed`` is about
        strategies: dict[str, _Strategy] = {
            AVG_SHEDDER: self._by_chance,
            LEAST_LONG_TERM_MESSAGE_RATE: self._least_rate,
            LEAST_RESOURCE_USAGE: self._least_usage,
            ROUND_ROBIN: self._next,
        }
        name = strategy_name(config.load_balancer_load_placement_strategy, PLACEMENTS)
        self._strategy = strategies[name]

    def use(self, policies: PlacementPolicies) -> None:
        self._policies = policies
        self._policy_of.clear()
        self._allowed.clear()

    def place(self, bundle: str, now_s: float, *, non_persistent: bool = False) -> str | None:
        """Choose the broker that should own the bundle; None: no broker may.

        Args:
            non_persistent: topics of that kind are asked for.
        """
        namespace = namespace_of(bundle)
        if (named := pinned_broker(namespace)) is not None:
            return named if named in self._state.brokers else None
        allowed = self._serving(self.allowed(namespace), now_s, non_persistent)
        if not allowed:
            return None
        if namespace in self._config.load_balancer_shedding_excluded_namespaces:
            return self._next(allowed, now_s).broker  # never moved later: spread it now
        candidates = self._filtered(bundle, namespace, allowed)
        chosen = self._strategy(candidates, now_s)
        overloaded = self._config.load_balancer_broker_overloaded_threshold_percentage / 100
        if chosen.usage > overloaded and len(candidates) < len(allowed):
            # The preferences cost too much, if others have room. Anti-affinity is one of them: best
            # effort. (Pulsar drops them also when no broker has room, which helps no broker.)
            roomy = [each for each in allowed if each.usage <= overloaded]
            chosen = self._strategy(roomy, now_s) if roomy else chosen
        return chosen.broker

    def allowed(self, namespace: str) -> list[str]:
        """Live brokers that isolation leaves, sorted."""
        return self._allowed_of(namespace)[0]

    def allows(self, namespace: str, broker: str) -> bool:
        """Tell whether isolation lets a live broker serve a namespace."""
        return broker in self._allowed_of(namespace)[1]

    def _allowed_of(self, namespace: str) -> _Allowed:
        """Computed again when a broker comes or goes."""
        if self._membership != self._state.membership:
            self._membership = self._state.membership
            self._allowed.clear()
        name = self.policy_name(namespace)
        found = self._allowed.get(name)
        if found is None:
            live = sorted(self._state.brokers)
            names = self._policies.isolation.candidates(namespace, live)
            found = self._allowed[name] = (names, frozenset(names))
        return found

    def policy_name(self, namespace: str) -> str | None:
        """Name the isolation policy that governs the namespace; None: no policy governs it."""
        policy = self._isolation_of(namespace)
        return None if policy is None else policy.name

    def _isolation_of(self, namespace: str) -> NamespaceIsolationPolicy | None:
        if namespace not in self._policy_of:
            if len(self._policy_of) >= _NAMESPACES_MAX:  # names that clients make up
                self._policy_of.clear()
            self._policy_of[namespace] = self._policies.isolation.policy_of(namespace)
        return self._policy_of[namespace]

    def is_fresh(self, broker: BrokerState, now_s: float) -> bool:
        """Tell whether the broker's last report is young enough to judge by."""
        return now_s - broker.made_s <= self._config.load_balancer_broker_load_data_ttl_in_seconds

    def anti_affinity_filter(self, bundle: str, brokers: Sequence[str]) -> Sequence[str]:
        """Those of ``brokers`` that are best for the bundle's anti-affinity group, if any."""
        namespace = namespace_of(bundle)
        group = self._policies.group_of(namespace)
        if group is None or not brokers:
            return brokers
        spread = self._state.spread
        owner = self._state.owners.get(bundle)
        if owner is not None:  # where it is now doesn't count
            own = {name: count - (name == owner) for name, count in spread[namespace].items()}
            spread = {**spread, namespace: {name: count for name, count in own.items() if count}}
        domains = self._policies.domains if self._config.failure_domains_enabled else None
        return anti_affinity_filter(
            namespace, self._policies.members(group), brokers, spread, domains
        )

    def has_group(self, namespace: str) -> bool:
        return self._policies.group_of(namespace) is not None

    def is_isolated(self, namespace: str) -> bool:
        return self.policy_name(namespace) is not None

    # --- filters

    def _serving(
        self, allowed: Sequence[str], now_s: float, non_persistent: bool
    ) -> list[BrokerState]:
        """Filter brokers that serve such topics; prefer those with fresh reports."""
        serving = []
        for name in allowed:
            broker = self._state.brokers[name]
            load = broker.load
            takes = (
                load.non_persistent_topics_enabled
                if non_persistent
                else load.persistent_topics_enabled
            )
            if takes and not load.draining:
                serving.append(broker)
        # All old: better an unjudged broker than none.
        return [each for each in serving if self.is_fresh(each, now_s)] or serving

    def _filtered(
        self, bundle: str, namespace: str, allowed: list[BrokerState]
    ) -> list[BrokerState]:
        topics_max = self._config.load_balancer_broker_max_topics
        left = [each for each in allowed if each.topics <= topics_max] or allowed
        if self._policies.group_of(namespace) is not None:
            apart = set(self.anti_affinity_filter(bundle, [each.broker for each in left]))
            left = [each for each in left if each.broker in apart]
        even = self._config.load_balancer_distribute_bundles_evenly_enabled
        if even or namespace == SYSTEM_NAMESPACE:
            held = self._state.held(namespace)
            fewest = min(held.get(each.broker, 0) for each in left)
            left = [each for each in left if held.get(each.broker, 0) == fewest]
        if self._config.prefer_later_versions:
            left = _latest(left)
        return left

    # --- strategies: none of them gets an empty list

    def _by_chance(self, candidates: Sequence[BrokerState], now_s: float) -> BrokerState:
        return candidates[self._rng.randrange(len(candidates))]

    def _next(self, candidates: Sequence[BrokerState], now_s: float) -> BrokerState:
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    def _least_rate(self, candidates: Sequence[BrokerState], now_s: float) -> BrokerState:
        overloaded = self._config.load_balancer_broker_overloaded_threshold_percentage / 100
        # All overloaded: Pulsar takes any. The fewest messages are no worse than chance.
        usable = [each for each in candidates if each.usage <= overloaded] or candidates
        least = min(each.long_rate for each in usable)
        return self._by_chance([each for each in usable if each.long_rate == least], now_s)

    def _least_usage(self, candidates: Sequence[BrokerState], now_s: float) -> BrokerState:
        history = self._config.load_balancer_history_resource_percentage
        gap = self._config.load_balancer_average_resource_usage_difference_threshold_percentage
        usage = [each.average_at(now_s, history) for each in candidates]
        mean = sum(usage) / len(usage)
        for limit in (mean - gap / 100, mean):  # none is clearly below: never one above
            best = [each for each, its in zip(candidates, usage, strict=True) if its <= limit]
            if best:
                return self._by_chance(best, now_s)
        return candidates[usage.index(min(usage))]  # equal but for rounding


def _latest(brokers: list[BrokerState]) -> list[BrokerState]:
    """Those of the highest version; all of them when one's version can't be read."""
    versions = []
    for each in brokers:
        found = _VERSION.match(each.load.version)
        if found is None:
            return brokers
        versions.append(tuple(int(part) for part in found[0].split(".")))
    highest = max(versions)
    return [each for each, its in zip(brokers, versions, strict=True) if its == highest]
