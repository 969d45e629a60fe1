"""A new owner of a managed ledger arrives at every step of the old one.

Rules: docs/spec/storage.md, "Owners of a log".

The old owner rotates with every append and acknowledges with every other. At its n-th network step
it is held: what it sent is on its way, what it is answered waits. The next owner begins to open the
log; at that one's m-th step it is held in turn and the old one goes on, writing data and cursor
ledgers as if nothing were. Then the new one goes on too. So every pair (n, m) is one interleaving
with two switches: the three of 8.4, a take-over within each step of a rotation, and one within each
step of another take-over. Instead of being held either may die, and a third owner may come in
between.

``MAGNETAR_SEEDS=4000`` runs about every pair; by default each n meets a few m.
"""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_form import HeadsInFront
from tests.nightly import NIGHTLY
from tests.simulation.managed_ledger_world import HEAD, Broker, LogWorld
from tests.simulation.simulator import FaultRates, Node, Simulator, run_simulation, seeds
from tests.simulation.test_managed_ledger import verify

OLD_STEPS = 110
"""Steps of an old owner that is let alone: from its open over some five rotations."""
NEW_STEPS = 45
"""Those of an open that takes over three ledgers and a cursor."""
HELD_POLL_S = 0.002


class HeldNode(Node):
    """A process that can be stopped at a network step, and let go on later."""

    def __init__(self, name: str, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.is_held = False
        super().__init__(name)
        self.steps = 0
        self.stop_at = -1
        self.on_stop: Callable[[], None] | None = None

    @property
    def paused_until(self) -> float:
        """A little ahead as long as it is held: whoever delivers asks again then."""
        return self._now_s() + HELD_POLL_S if self.is_held else 0.0

    @paused_until.setter
    def paused_until(self, value: float) -> None:
        self.is_held = value > self._now_s()

    def go_on(self) -> None:
        self.is_held, self.stop_at = False, -1

    def step(self) -> bool:
        if not super().step():
            return False
        self.steps += 1
        if self.steps == self.stop_at and self.on_stop is not None:
            self.on_stop()
        return self.alive


class Takeover:
    """One run: two or three owners, two switches."""

    def __init__(
        self,
        simulator: Simulator,
        old_stop: int,
        new_stop: int,
        *,
        old_dies: bool = False,
        new_dies: bool = False,
        third: bool = False,
    ) -> None:
        self.simulator = simulator
        rng = simulator.rng
        simulator.network.faults = FaultRates(
            delay_ms_max=rng.choice([1.0, 5.0]),
            metadata_ms_max=rng.choice([1.0, 5.0]),
            metadata_unknown=rng.choice([0.0, 0.0, 0.2]),
        )
        quorums = rng.choice([(1, 1, 1), (3, 3, 2)])
        self.config = ManagedLedgerConfig(
            *quorums,
            form=HeadsInFront(len(HEAD)),
            ledger_entries_max=rng.choice([1, 2, 3]),
            ledger_age_min_ms=0,
            cursor_ledger_entries_max=rng.choice([2, 50]),
        )
        self.world = LogWorld(simulator, quorums[0])
        loop = simulator.loop
        count = 3 if third else 2
        self.nodes = [HeldNode(f"owner-{n}", lambda: loop.now) for n in range(count)]
        self.brokers = [Broker(self.world, self.config, x) for x in self.nodes]
        self.stopped = [asyncio.Event() for _ in self.nodes]
        for number, stop in enumerate([old_stop, new_stop]):
            dies = (old_dies, new_dies)[number]
            self.nodes[number].stop_at = stop
            self.nodes[number].on_stop = lambda n=number, d=dies: self._stop(n, d)
        self.opened: list[int] = []

    def _stop(self, number: int, dies: bool) -> None:
        if dies:
            self.nodes[number].alive = False
        else:
            self.nodes[number].is_held = True
        self.stopped[number].set()

    async def _own(self, number: int) -> None:
        broker, simulator = self.brokers[number], self.simulator
        await broker.open()
        self.opened.append(number)
        for turn in range(8):
            broker.append(simulator.rng.choice([1, 2, 4]))
            if turn % 2:
                broker.acknowledge()
            await simulator.sleep_ms(simulator.rng.choice([0.5, 6.0]))
        while broker.reported < len(broker.sent) and broker.node.alive:
            await simulator.sleep_ms(10)

    async def _until(self, number: int, work: asyncio.Task[None], limit_ms: float) -> None:
        """Until it stops, or has done all it wants."""
        stopped = asyncio.ensure_future(self.stopped[number].wait())
        await asyncio.wait(
            [stopped, work], timeout=limit_ms / 1000, return_when=asyncio.FIRST_COMPLETED
        )
        stopped.cancel()

    async def run(self) -> None:
        simulator = self.simulator
        works = [simulator.start(self._own(0))]
        await self._until(0, works[0], 2000)
        works.append(simulator.start(self._own(1)))
        await self._until(1, works[1], 2000)
        if len(self.brokers) == 3:
            works.append(simulator.start(self._own(2)))
            await simulator.sleep_ms(simulator.rng.uniform(0, 40))
        self.nodes[0].go_on()  # the old one goes on, in the middle of the new one's open
        await simulator.sleep_ms(simulator.rng.uniform(0, 60))
        self.nodes[1].go_on()
        simulator.network.faults = FaultRates()
        alive = [n for n, node in enumerate(self.nodes) if node.alive]
        if alive:
            await asyncio.wait([works[n] for n in alive], timeout=120)
        simulator.check(all(works[n].done() for n in alive), "liveness: an owner hangs")
        for n in alive:  # whoever didn't notice yet does now
            if self.brokers[n].log is not None:
                self.brokers[n].append(1)
                self.brokers[n].acknowledge()
        await simulator.sleep_ms(60_000)
        owners = [self.brokers[n] for n in alive]
        for broker in owners:
            simulator.check(
                broker.reported == len(broker.sent), f"liveness: {broker.number} lacks reports"
            )
        fenced = sum(x.is_fenced for x in owners)
        simulator.check(fenced >= len(owners) - 1, f"32: only {fenced} of {len(owners)} are fenced")
        # An owner that died may have fenced the one before: then whoever is asked next opens.
        is_left = fenced < len(owners) or len(owners) < len(self.nodes)
        simulator.check(is_left, "L10: the owners have put an end to each other")
        simulator.recorder.count(f"{len(owners) - fenced} left")
        await verify(self.world, self.brokers)


def takeover_of(simulator: Simulator) -> Takeover:
    """The pair (n, m) and the variant of a seed."""
    rng = random.Random(simulator.seed)
    return Takeover(
        simulator,
        1 + simulator.seed % OLD_STEPS,
        rng.randint(1, NEW_STEPS),
        old_dies=rng.random() < 0.15,
        new_dies=rng.random() < 0.15,
        third=rng.random() < 0.3,
    )


@pytest.mark.parametrize("seed", seeds(OLD_STEPS))
def test_a_new_owner_at_each_step_of_the_old_one(seed: int) -> None:
    run_simulation(seed, lambda simulator: takeover_of(simulator).run())


@pytest.mark.parametrize("new_stop", [3, 12])
def test_the_old_owner_is_held_at_each_step_and_goes_on(new_stop: int) -> None:
    """Many n for some m, without any other fault: until an old owner isn't stopped any more."""
    for old_stop in itertools.count(1, 4 if NIGHTLY else 12):
        takeovers: list[Takeover] = []

        async def run(
            simulator: Simulator, n: int = old_stop, kept: list[Takeover] = takeovers
        ) -> None:
            kept.append(Takeover(simulator, n, new_stop))
            await kept[0].run()

        run_simulation(new_stop, run)  # always the same up to the n-th step
        if not takeovers[0].stopped[0].is_set():
            break
    assert old_stop > 60
