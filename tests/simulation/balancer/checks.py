"""Rules that hold at every decision, whatever the strategy, and what they are called in the spec.

| rule | spec |
|---|---|
| a bundle moves at most once in half an hour, also when leaders change or there are two | I16 |
| no move to its source, to a broker that is dead, draining or silent | I16, F24 |
| no placement or move outside of isolation, or to a dead broker | I14, I25 |
| pinned, excluded and system bundles don't move | 7.1 |
| no broker gives its last bundle | I16 |
| so many moves a round, so many sources (Transfer), one pair (Uniform) | I17 |
| every bundle has one owner or is on its way; the leader's books add up | I8 |
"""

from collections import Counter
from typing import Final

from magnetar.loadbalance.model import Move, namespace_of
from magnetar.loadbalance.policies import SYSTEM_NAMESPACE, pinned_broker
from tests.simulation.balancer.world import Leader, World

_GRACE_S: Final = 1800.0


class Watch:
    """Looks at one world. ``violations`` says what was broken, when and by what."""

    def __init__(self, world: World) -> None:
        self.violations: list[str] = []
        self.returns = 0  # bundles that came back within an hour to where they had been
        self._world = world
        self._last: dict[str, tuple[float, str]] = {}
        self._round: tuple[int, float] = (0, -1.0)
        self._sources: Counter[str] = Counter()
        self._candidates: dict[str, frozenset[str]] = {}  # by namespace, for those that live
        self._lived: tuple[object, int] = (None, -1)
        world.on_move, world.on_place = self._on_move, self._on_place

    def _fail(self, rule: str, what: object) -> None:
        self.violations.append(f"{self._world.now_s:.0f} s: {rule}: {what}")

    def _on_move(self, world: World, leader: Leader, move: Move) -> None:
        now_s, settings = world.now_s, world.settings
        moved_s, before = self._last.get(move.bundle, (-1e9, ""))
        if now_s - moved_s < _GRACE_S:
            self._fail("grace", move)
        if move.target == before and now_s - moved_s < 3600:
            self.returns += 1
        self._last[move.bundle] = (now_s, move.source)
        target = world.brokers.get(str(move.target))
        if move.target == move.source or target is None or target.draining:
            self._fail("target", move)
        state = leader.balancer.state
        believed = state.brokers[str(move.target)]
        age_s = now_s + leader.ahead_s - believed.made_s
        if age_s > settings.load_balancer_broker_load_data_ttl_in_seconds:
            self._fail("silent target", move)
        namespace = namespace_of(move.bundle)
        if (
            pinned_broker(namespace) is not None
            or namespace == SYSTEM_NAMESPACE
            or namespace in settings.load_balancer_shedding_excluded_namespaces
        ):
            self._fail("pinned", move)
        self._check_isolation(world, move.bundle, str(move.target))
        self._check_round(world, leader, move)

    def _check_round(self, world: World, leader: Leader, move: Move) -> None:
        this_round = (id(leader), world.now_s)
        if this_round != self._round:
            self._round = this_round
            self._sources.clear()
        self._sources[move.source] += 1
        settings = world.settings
        if sum(self._sources.values()) > settings.load_balancer_max_unloads_per_round:
            self._fail("moves of a round", sum(self._sources.values()))
        giver = leader.balancer.state.brokers[move.source]
        if len(giver.bundles) <= self._sources[move.source]:
            self._fail("last bundle", move)
        strategy = settings.load_balancer_load_shedding_strategy
        swaps = 2 if strategy == "TransferShedder" else 1
        limit = {
            "TransferShedder": settings.load_balancer_max_number_of_broker_shedding_per_cycle,
            "UniformLoadShedder": 1,
        }.get(strategy, 1_000_000)
        if len(self._sources) > limit * swaps:
            self._fail("sources of a round", sorted(self._sources))

    def _on_place(self, world: World, leader: Leader, bundle: str, broker: str) -> None:
        if broker not in world.brokers or world.brokers[broker].draining:
            self._fail("placed at a dead broker", (bundle, broker))
        self._check_isolation(world, bundle, broker)

    def _check_isolation(self, world: World, bundle: str, broker: str) -> None:
        if self._lived != (world.policies, world.membership):
            self._lived = (world.policies, world.membership)
            self._candidates.clear()
        namespace = namespace_of(bundle)
        found = self._candidates.get(namespace)
        if found is None:
            found = frozenset(world.policies.isolation.candidates(namespace, sorted(world.brokers)))
            self._candidates[namespace] = found
        if broker not in found:
            self._fail("isolation", (bundle, broker))

    def check_books(self) -> None:
        """What the leaders believe adds up. Costs as much as a round: not at every tick."""
        for leader in self._world.leaders:
            state = leader.balancer.state
            counts: dict[str, Counter[str]] = {}
            for bundle, broker in state.owners.items():
                counts.setdefault(namespace_of(bundle), Counter())[broker] += 1
            if counts != state.spread:
                self._fail("spread", "counts differ from owners")
            placed = Counter(name for each in state.brokers.values() for name in each.placed)
            if placed and max(placed.values()) > 1:
                self._fail("placed", placed.most_common(1))
            for each in state.brokers.values():
                for name in each.placed:
                    if state.owners.get(name) != each.broker:
                        self._fail("owners", (name, each.broker))
                rest = sum(one.throughput for one in each.expected.values())
                if abs(rest - each.total.throughput) > 1.0:
                    self._fail("sums", each.broker)

    def check_served(self) -> None:
        """Every bundle has an owner, or is on its way."""
        world = self._world
        for number, owner in enumerate(world.owner):
            if owner is not None and world.brokers.get(owner.name) is not owner:
                self._fail("served by the dead", world.names[number])
        lost = sum(owner is None for owner in world.owner)
        if lost > world.moving_count:
            self._fail("served by nobody", lost)
