"""The world: what is true, what the store holds, who leads, and what the balancer does to it.

Time goes in ticks. In each, traffic changes, brokers write reports if the product says that they
are due, leaders hear them (late, perhaps never), and once a minute a leader has its round. A moved
bundle is served by nobody until its unload has ended; then a lookup asks the leader for an owner.

All chance comes from one generator, so a seed is one run.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from magnetar.loadbalance.balancer import Balancer
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.model import (
    BrokerLoad,
    BundleData,
    BundleStats,
    Move,
    ResourceUsage,
    Weights,
    report_due,
)
from magnetar.loadbalance.policies import PlacementPolicies
from magnetar.loadbalance.unload_cooldowns import StoreClock, UnloadCooldowns
from tests.simulation.balancer.loads import Load

TICK_S = 20.0
ROUND_S = 60.0


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """How large it is, and what goes wrong: rates of each move, each report."""

    brokers: int = 20
    bundles: int = 1000
    bundles_per_namespace: int = 32
    message_bytes: float = 1000.0
    mixed_hardware: bool = False
    move_s_max: float = 20.0
    move_failure: float = 0.0
    report_delay_s_max: float = 0.0
    report_loss: float = 0.0


@dataclass(slots=True)
class SimBroker:
    name: str
    capacity: float  # bytes a second at 100 %
    base: float = 0.04  # usage by itself
    bundles: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    in_order: list[str] | None = None  # ``names`` sorted; None: to be sorted
    draining: bool = False
    silent: bool = False  # its reports get lost
    nic_limit: float = -1.0
    written: BrokerLoad | None = None  # what the store holds
    written_s: float = 0.0

    def usage(self, rate: list[float], message_bytes: float) -> float:
        return self.base + sum(rate[each] for each in self.bundles) * message_bytes / self.capacity


@dataclass(slots=True)
class Leader:
    """One term in office: a balancer, and what it has heard.

    Its clock began elsewhere (``ahead_s``), as each process has its own; of the store's clock it
    knows what the times of nodes tell.
    """

    balancer: Balancer
    ahead_s: float
    next_round_s: float
    next_averages_s: float
    store_clock: StoreClock = field(default_factory=StoreClock)
    inbox: list[tuple[float, int, BrokerLoad, float]] = field(default_factory=list)  # heap


class World:
    """Invariant: a bundle is in at most one broker's ``bundles``; ``owner`` says in whose."""

    def __init__(self, config: WorldConfig, settings: BalancerConfig, seed: int) -> None:
        self.config, self.settings, self.rng = config, settings, random.Random(seed)
        self.now_s = 0.0
        self.brokers: dict[str, SimBroker] = {}
        self.membership = 0  # another number whenever one has come or gone
        self.namespace_count = -(-config.bundles // config.bundles_per_namespace)
        self.names = [self._bundle_name(number) for number in range(config.bundles)]
        self.index = {name: number for number, name in enumerate(self.names)}
        self.rate = [0.0] * config.bundles
        self.owner: list[SimBroker | None] = [None] * config.bundles
        self.policies = PlacementPolicies()
        self.leaders: list[Leader] = []
        self.moved: list[tuple[float, int, str, str]] = []  # when, bundle, source, target
        self.counters: Counter[str] = Counter()
        self.history: list[dict[str, float]] = []  # a row for each round
        self.on_move: Callable[[World, Leader, Move], None] | None = None
        self.on_place: Callable[[World, Leader, str, str], None] | None = None
        self.clock_jump_s = 0.0  # of the brokers' own clocks
        # The store: what leaders leave to those after them.
        self.note: bytes | None = None  # of bundles that were moved
        self.store_jump_s = 0.0  # of the store's clock
        self.averages: dict[str, BundleData] = {}
        self._weights = Weights.of(settings)
        self._ending: list[tuple[float, int, int, Move, Leader, bool]] = []  # heap of moves
        self._sequence = 0

    def _bundle_name(self, number: int) -> str:
        count = self.config.bundles_per_namespace
        width = 0xFFFFFFFF // count
        lower = number % count * width
        return f"t/n{number // count}/0x{lower:08x}_0x{lower + width:08x}"

    def namespace_of(self, bundle: int) -> int:
        return bundle // self.config.bundles_per_namespace

    # --- brokers and leaders

    def add_broker(self, name: str, capacity: float = 100e6) -> SimBroker:
        if self.config.mixed_hardware:
            capacity *= self.rng.choice((0.5, 1.0, 2.0))
        broker = self.brokers[name] = SimBroker(name, capacity)
        self.membership += 1
        self.write_report(broker)
        return broker

    def seat(self) -> None:
        """Gives every bundle to some broker, as if long ago: no lookups, no reports yet."""
        names = list(self.brokers)
        for bundle in range(len(self.names)):
            self.give(bundle, self.brokers[self.rng.choice(names)])

    @property
    def moving_count(self) -> int:
        return len(self._ending)

    def kill(self, name: str) -> None:
        """Its nodes vanish; its bundles are looked up in the next tick."""
        for bundle in list(self.brokers[name].bundles):
            self.give(bundle, None)
        del self.brokers[name]
        self.membership += 1
        for leader in self.leaders:
            leader.inbox = [each for each in leader.inbox if each[2].broker_id != name]
            heapq.heapify(leader.inbox)
            leader.balancer.on_broker_gone(name)

    def drain(self, name: str) -> None:
        """An orderly end: its node goes first, then its bundles, then itself."""
        self.counters["drained"] += len(self.brokers[name].bundles)
        self.kill(name)

    def elect(self) -> Leader:
        """A new leader reads what the store holds; one before is gone (see ``leaders``)."""
        balancer = Balancer(self.settings, random.Random(self.rng.randrange(1 << 30)))
        balancer.on_policies(self.policies)
        for name, load in self.averages.items():
            balancer.restore(name, load)
        ahead_s = self.rng.uniform(-1e6, 1e6)
        leader = Leader(balancer, ahead_s, self.now_s + ROUND_S, self.now_s + 900)
        leader.store_clock.learn(self.store_ms, self.now_s + ahead_s)
        for broker in self.brokers.values():
            if broker.written is not None:
                age_s = self.now_s - broker.written_s
                balancer.on_report(broker.written, self.now_s + ahead_s, age_s)
        self.leaders = [leader]
        self.counters["elections"] += 1
        return leader

    def set_policies(self, policies: PlacementPolicies) -> None:
        self.policies = policies
        for leader in self.leaders:
            leader.balancer.on_policies(policies)

    # --- time

    @property
    def store_ms(self) -> int:
        """By the store's clock."""
        return int(1.7e12 + (self.now_s + self.store_jump_s) * 1000)

    def run(self, load: Load, duration_s: float, each: Callable[[], None] | None = None) -> None:
        end_s = self.now_s + duration_s
        while self.now_s < end_s:
            self.tick(load)
            if each is not None:
                each()

    def tick(self, load: Load) -> None:
        self.now_s += TICK_S
        load.apply(self)
        self._end_moves()
        self._look_up()
        for broker in list(self.brokers.values()):
            self._report_if_due(broker)
        for leader in list(self.leaders):
            self._hear(leader)
            if leader.next_round_s <= self.now_s:
                leader.next_round_s += ROUND_S
                self._round(leader)

    def calm(self) -> None:
        """From now on nothing goes wrong by itself."""
        self.config = replace(
            self.config, move_failure=0.0, report_delay_s_max=0.0, report_loss=0.0
        )

    # --- reports

    def _report_if_due(self, broker: SimBroker) -> None:
        age_s = self.now_s - broker.written_s
        now = self._metrics(broker)
        if report_due(broker.written, age_s, now, self.settings, self._weights):
            self.write_report(broker)

    def _metrics(self, broker: SimBroker) -> BrokerLoad:
        config = self.config
        if broker.in_order is None:
            broker.in_order = sorted(broker.names)
        rate = sum([self.rate[each] for each in broker.bundles])
        usage = broker.base + rate * config.message_bytes / broker.capacity
        served = 1.0 if usage <= 1.0 else (1.0 - broker.base) / (usage - broker.base)
        usage = min(1.0, max(0.0, usage + self.rng.uniform(-0.02, 0.02)))
        return BrokerLoad(
            broker.name,
            cpu=ResourceUsage(usage * 800, 800),
            bandwidth_in=ResourceUsage(rate * config.message_bytes, broker.nic_limit),
            msg_rate_in=rate * served,
            msg_throughput_in=rate * served * config.message_bytes,
            last_update_ms=int((self.now_s + self.clock_jump_s) * 1000),
            topics=len(broker.bundles),
            bundles=broker.in_order,
            draining=broker.draining,
        )

    def write_report(self, broker: SimBroker) -> None:
        load = self._metrics(broker)
        size = self.config.message_bytes
        wanted = sum([self.rate[each] for each in broker.bundles])
        served = load.msg_rate_in / wanted if wanted else 1.0
        for bundle in broker.bundles:
            rate = self.rate[bundle] * served
            load.stats[self.names[bundle]] = BundleStats(rate, 0.0, rate * size, 0.0, topics=1)
        self.counters["reports"] += 1
        if broker.silent or self.rng.random() < self.config.report_loss:
            self.counters["reports lost"] += 1
            return
        broker.written, broker.written_s = load, self.now_s
        for leader in self.leaders:
            self._sequence += 1
            heard_s = self.now_s + self.rng.uniform(0, self.config.report_delay_s_max)
            heapq.heappush(leader.inbox, (heard_s, self._sequence, load, self.now_s))

    def _hear(self, leader: Leader) -> None:
        while leader.inbox and leader.inbox[0][0] <= self.now_s:
            _, _, load, made_s = heapq.heappop(leader.inbox)
            if load.broker_id in self.brokers:
                leader.balancer.on_report(load, self.now_s + leader.ahead_s, self.now_s - made_s)

    # --- rounds

    def _round(self, leader: Leader) -> None:
        now_s, own_s = self.now_s, self.now_s + leader.ahead_s
        note_ms = leader.store_clock.now_ms(own_s)
        leader.balancer.restore_cooldowns(UnloadCooldowns.decode(self.note).ages_s(note_ms), own_s)
        moves = [each for each in leader.balancer.round(own_s) if each is not None]
        self.counters["decided"] += len(moves)
        # As the shell does: the note is in the store before the orders leave, by compare-and-set,
        # so that a second leader sees it.
        note, claimed = UnloadCooldowns.decode(self.note).claim(
            [each.bundle for each in moves], note_ms, leader.balancer.grace_s, 1_000_000
        )
        self.note = note.encode("")
        leader.store_clock.learn(self.store_ms, own_s)
        entered = set(claimed)
        for move in moves:
            if move.bundle in entered:
                self._order(leader, move)
            else:
                leader.balancer.on_move_failed(move, own_s)
                self.counters["moves refused"] += 1
        if leader.next_averages_s <= now_s:
            leader.next_averages_s += 900
            self.averages = leader.balancer.averages()
        self._note(leader)

    def _order(self, leader: Leader, move: Move) -> None:
        if self.on_move is not None:
            self.on_move(self, leader, move)
        bundle = self.index[move.bundle]
        owner = self.owner[bundle]
        fails = (
            owner is None
            or owner.name != move.source
            or self.rng.random() < self.config.move_failure
        )
        if fails:
            self.counters["moves failed"] += 1
            leader.balancer.on_move_failed(move, self.now_s + leader.ahead_s)
            return
        self._sequence += 1
        end_s = self.now_s + self.rng.uniform(0, self.config.move_s_max)
        self.moved.append((self.now_s, bundle, move.source, str(move.target)))
        self.counters["moves"] += 1
        heapq.heappush(self._ending, (end_s, self._sequence, bundle, move, leader, True))
        self.give(bundle, None)

    def _end_moves(self) -> None:
        while self._ending and self._ending[0][0] <= self.now_s:
            _, _, bundle, move, leader, _ = heapq.heappop(self._ending)
            leader.balancer.on_moved(move, self.now_s + leader.ahead_s)
            target = self.brokers.get(str(move.target))
            if target is not None and not target.draining:
                self.give(bundle, target)  # told to the clients with the close

    def _look_up(self) -> None:
        """Clients ask for what nobody serves, in no order."""
        moving = {each[2] for each in self._ending}
        asked = [n for n, owner in enumerate(self.owner) if owner is None and n not in moving]
        self.rng.shuffle(asked)
        for bundle in asked:
            if not self.leaders:
                return
            leader = self.rng.choice(self.leaders)
            chosen = leader.balancer.place(self.names[bundle], self.now_s + leader.ahead_s)
            if chosen is None or chosen not in self.brokers:
                self.counters["lookups unanswered"] += 1
                continue
            self.counters["placed"] += 1
            if self.on_place is not None:
                self.on_place(self, leader, self.names[bundle], chosen)
            self.give(bundle, self.brokers[chosen])

    def give(self, bundle: int, broker: SimBroker | None) -> None:
        """Who serves it now; None: nobody, until it is looked up."""
        name, before = self.names[bundle], self.owner[bundle]
        if before is not None:
            before.bundles.discard(bundle)
            before.names.discard(name)
            before.in_order = None
        self.owner[bundle] = broker
        if broker is not None:
            broker.bundles.add(bundle)
            broker.names.add(name)
            broker.in_order = None

    # --- figures

    def usages(self) -> list[float]:
        """True ones, without the limit of 100 %."""
        size = self.config.message_bytes
        return [each.usage(self.rate, size) for each in self.brokers.values()]

    def _note(self, leader: Leader) -> None:
        usages = self.usages()
        mean = sum(usages) / len(usages)
        variance = sum((usage - mean) ** 2 for usage in usages) / len(usages)
        row: dict[str, Any] = {
            "minute": self.now_s / 60,
            "mean": mean,
            "highest": max(usages),
            "lowest": min(usages),
            "deviation": variance**0.5,
            "moves": self.counters["moves"],
        }
        self.history.append(row)
