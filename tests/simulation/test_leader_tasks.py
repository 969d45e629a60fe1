"""Leaders that overlap, with clocks of their own, over a store that is slow and loses answers.

Real ``LeaderTasks`` objects; the bundles are a table. Whatever happens, no bundle is ordered to
move twice within the grace period by the true time, which none of them knows; and where the leader
decides by epochs, no order is obeyed once the epoch of a later leader has begun (I29, F35).
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import orjson
import pytest

from magnetar.loadbalance.config import OVERLOAD_SHEDDER, BalancerConfig
from magnetar.loadbalance.documents import broker_load_document
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.leader import LEADER_PATH
from magnetar.loadbalance.leader_epoch import LeaderEpoch
from magnetar.loadbalance.leader_tasks import LeaderTasks, UnloadCallbacks
from magnetar.loadbalance.model import BrokerLoad, BundleStats, Move, ResourceUsage, Split, Weights
from magnetar.loadbalance.policy_reader import PolicyReader
from magnetar.loadbalance.registry import BROKERS_ROOT, BrokerRegistry
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, NotFoundError, SessionLostError
from tests.simulation.simulator import seeds
from tests.simulation.test_bundles_ownership import FaultySession, commit_inline

MIB = 1024 * 1024.0
NAMES = ["a:1", "b:1", "c:1", "d:1"]
BUNDLES = [f"t/n{number % 4}/0x{number:08x}_0x{number + 1:08x}" for number in range(48)]
CONFIG = BalancerConfig(load_balancer_load_shedding_strategy=OVERLOAD_SHEDDER)
GRACE_S = CONFIG.load_balancer_shedding_grace_period_minutes * 60


class SlowSession(FaultySession):
    """So slow that two leaders read the note before one of them writes it."""

    async def _travel(self) -> None:
        for _ in range(self._rng.choice((1, 1, 40))):
            await asyncio.sleep(0)


@dataclass
class Term:
    """One office, with a session and a clock of its own."""

    tasks: LeaderTasks
    store: FaultySession
    registry: BrokerRegistry
    policies: PolicyReader

    def close(self) -> None:
        self.policies.close()


@dataclass
class World:
    seed: int
    by_epoch: bool = False
    now_s: float = 0.0
    owner: dict[str, str] = field(default_factory=dict)
    ordered: list[tuple[float, str, int]] = field(default_factory=list)  # when, bundle, by whom
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # asserted later: a leader survives errors

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.base = EmbeddedMetadataStore.open(None, now_ms=lambda: int(1.7e12 + self.now_s * 1000))
        commit_inline(self.base, self.seed)
        self.owner = {bundle: self.rng.choice(NAMES) for bundle in BUNDLES}
        self.terms: list[Term] = []
        self.broker = LeaderEpoch(SlowSession(self.base, self.rng))  # of those who get orders
        self.begun = 0  # the latest epoch

    async def elect(self) -> None:
        """A new leader; whether the ones before notice is another matter."""
        store, ahead_s = SlowSession(self.base, self.rng), self.rng.uniform(-1e6, 1e6)
        registry = BrokerRegistry(store, Weights.of(CONFIG))
        policies = PolicyReader(store, "c")
        tasks = LeaderTasks(
            *(store, registry, policies, CONFIG),
            leader_epoch=LeaderEpoch(store) if self.by_epoch else None,
            rng=random.Random(self.rng.random()),
            clock=lambda: self.now_s + ahead_s,
        )
        with suppress(NotFoundError):
            await self.base.delete(LEADER_PATH)
        await EmbeddedMetadataStore.put(store, LEADER_PATH, b"", ephemeral=True)
        self.terms.append(Term(tasks, store, registry, policies))

    async def elect_meanwhile(self) -> None:
        """While the ones before are in the middle of a round."""
        for _ in range(self.rng.randrange(200)):
            await asyncio.sleep(0)
        await self.elect()
        await self.round(len(self.terms) - 1)

    async def report(self) -> None:
        """One broker is always too busy, and all have heard of the moves."""
        hot = self.rng.choice(NAMES)
        for name in NAMES:
            mine = sorted(bundle for bundle, owner in self.owner.items() if owner == name)
            load = BrokerLoad(
                name,
                cpu=ResourceUsage(95 if name == hot else 20, 100),
                msg_throughput_in=len(mine) * 10 * MIB,
                stats={each: BundleStats(msg_throughput_in=10 * MIB, topics=1) for each in mine},
                bundles=mine,
                last_update_ms=int(self.now_s * 1000),
            )
            value = orjson.dumps(broker_load_document(load, 0.95 if name == hot else 0.2))
            await self.base.put(f"{BROKERS_ROOT}/{name}", value)

    async def _order(self, number: int, move: Move) -> bool:
        if self.by_epoch:
            begun = self.begun
            if not await self.broker.is_current(move.epoch):
                self.outcomes["of an earlier epoch"] += 1
                return False
            if move.epoch < begun:
                self.broken.append(f"{move} after epoch {begun} had begun")
        for before_s, bundle, by in reversed(self.ordered):
            if bundle == move.bundle:
                if self.now_s - before_s < GRACE_S - 1:
                    self.broken.append(f"{before_s}, {self.now_s}: {move} by {by}, then {number}")
                self.outcomes["again, after a rest"] += 1
                break
        self.ordered.append((self.now_s, move.bundle, number))
        for _ in range(self.rng.randrange(8)):
            await asyncio.sleep(0)
        fate = self.rng.random()
        if fate < 0.05:
            raise SessionLostError("of the one who ordered")
        if fate < 0.15 or self.owner[move.bundle] != move.source:
            return False
        self.owner[move.bundle] = str(move.target)
        return True

    async def round(self, number: int) -> None:
        async def order(move: Move) -> bool:
            return await self._order(number, move)

        async def split(split: Split) -> bool:
            return False

        async def count(namespace: str) -> int:
            return 12

        tasks = self.terms[number].tasks
        if self.by_epoch and not tasks._epoch:
            with suppress(MetadataError):
                await tasks._is_leader()
            self.begun = max(self.begun, tasks._epoch)
        try:
            await tasks._round(UnloadCallbacks(order, split, count))
        except (MetadataError, InvalidDocumentError) as error:
            self.outcomes[type(error).__name__] += 1

    async def run(self, steps: int) -> None:
        for _ in range(2):
            await self.elect()
        await self.report()
        for _ in range(steps):
            acting = range(max(0, len(self.terms) - 3), len(self.terms))  # three believe to lead
            rounds = [self.round(each) for each in acting if self.rng.random() < 0.8]
            if self.rng.random() < 0.2:
                rounds.append(self.elect_meanwhile())
            await asyncio.gather(*rounds)
            self.now_s += self.rng.choice([30.0, 60.0, 90.0, 300.0])
            await self.report()
            for _ in range(20):
                await asyncio.sleep(0)  # events
        self.outcomes["ordered"] = len(self.ordered)
        for term in self.terms:
            self.outcomes["decided"] += term.tasks.balancer.metrics.moves
            term.close()
        await self.base.close()
        assert self.broken == []


_OUTCOMES: dict[tuple[int, bool], Counter[str]] = {}


async def outcomes_of(seed: int, by_epoch: bool) -> Counter[str]:
    """Of a run that several tests look at."""
    if (seed, by_epoch) not in _OUTCOMES:
        world = World(seed, by_epoch)
        await world.run(40)
        _OUTCOMES[seed, by_epoch] = world.outcomes
    return _OUTCOMES[seed, by_epoch]


@pytest.mark.parametrize("by_epoch", [False, True])
@pytest.mark.parametrize("seed", seeds(20))
async def test_overlapping_leaders_move_nothing_twice(seed: int, by_epoch: bool) -> None:
    await outcomes_of(seed, by_epoch)


async def test_runs_with_epochs_meet_what_they_are_for() -> None:
    """Orders are obeyed, and some come from a leader that was deposed meanwhile."""
    outcomes = Counter[str]()
    for seed in range(20):
        outcomes += await outcomes_of(seed, by_epoch=True)
    assert outcomes["ordered"] > 300
    assert outcomes["of an earlier epoch"] > 10


async def test_the_runs_meet_what_they_are_for() -> None:
    """Leaders decide the same move, one is refused, and what has rested moves again."""
    outcomes = Counter[str]()
    for seed in range(10):
        outcomes += await outcomes_of(seed, by_epoch=False)
    assert outcomes["ordered"] > 300
    assert outcomes["decided"] > outcomes["ordered"] + 200
    assert outcomes["again, after a rest"] > 20


async def test_a_seed_replays_its_run() -> None:
    first, second = World(7), World(7)
    await first.run(20)
    await second.run(20)
    assert first.ordered == second.ordered != []
