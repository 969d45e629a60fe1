"""Several processes open one managed ledger in the same moment.

Rules: docs/spec/storage.md, "Owners of a log" and "Cursors".

Each asks once, as brokers do that a client's look-up has sent to the same topic. Nothing fails, but
any of them may stand still for a while in the middle of its open. So one of them has the log in the
end, not none and not two, and it is the one that the list names. The others were told so, by their
open or by the first thing they wrote.
"""

import asyncio

import pytest

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, OpenFailedError
from tests.simulation.managed_ledger_world import HEAD, Broker, LogWorld
from tests.simulation.simulator import FaultRates, Simulator, run_simulation, seeds
from tests.simulation.test_managed_ledger import verify


class Openers:
    """An owner that is alive or not, and those that come after it, all at once."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        rng = simulator.rng
        quorums = rng.choice([(1, 1, 1), (3, 3, 2)])
        self.config = ManagedLedgerConfig(
            *quorums,
            form=HeadsInFront(len(HEAD)),
            ledger_entries_max=rng.choice([1, 3, 50]),
            ledger_age_min_ms=0,
            cursor_ledger_entries_max=rng.choice([2, 50]),
        )
        self.world = LogWorld(simulator, quorums[0])
        self.old = Broker(self.world, self.config)
        self.brokers = [Broker(self.world, self.config) for _ in range(rng.choice([2, 3, 4]))]
        self.told: set[Broker] = set()  # by their open that another has the log

    async def run(self) -> None:
        simulator, rng = self.simulator, self.simulator.rng
        simulator.network.faults = FaultRates(
            delay_ms_max=rng.choice([1.0, 5.0, 20.0]), metadata_ms_max=rng.choice([1.0, 5.0, 20.0])
        )
        await self.old.open()
        self.old.append(12)  # what the others' consumers find
        while self.old.reported < len(self.old.sent):
            await simulator.sleep_ms(5)
        await self._serve(self.old, rng.choice([0, 4]))
        if rng.random() < 0.6:
            self.old.node.alive = False
        for broker in self.brokers:
            simulator.start(self._stand_still(broker))
        await asyncio.gather(*(simulator.start(self._on_accepted(x)) for x in self.brokers))
        await simulator.sleep_ms(30_000)
        for broker in self._opened:  # whoever didn't notice yet does now
            broker.append(1)
            broker.acknowledge(singly=True)
        await simulator.sleep_ms(30_000)
        left = [x for x in self._opened if not x.is_fenced]
        simulator.check(len(left) == 1, f"L10: {len(left)} of {len(self.brokers)} are left")
        for broker in left:
            assert broker.log is not None
            simulator.check(await broker.log.owns_list(), "32: it isn't the one of the list")
        simulator.recorder.count(f"{len(self.told)} of {len(self.brokers)} yielded at their open")
        await verify(self.world, [self.old, *self.brokers])

    @property
    def _opened(self) -> list[Broker]:
        return [x for x in self.brokers if x not in self.told]

    async def _stand_still(self, broker: Broker) -> None:
        simulator, rng = self.simulator, self.simulator.rng
        for _ in range(4):
            await simulator.sleep_ms(rng.uniform(0, 60))
            broker.node.paused_until = simulator.loop.now + rng.uniform(0, 0.06)

    async def _on_accepted(self, broker: Broker) -> None:
        await self.simulator.sleep_ms(self.simulator.rng.uniform(0, 12))
        try:
            await broker.open_once()
        except (OpenFailedError, ManagedLedgerFencedError):
            self.told.add(broker)
        else:
            await self._serve(broker, 6)

    async def _serve(self, broker: Broker, turns: int) -> None:
        rng = self.simulator.rng
        has_producer = rng.random() < 0.5  # else only consumers at first: nothing is fenced yet
        for turn in range(turns):
            broker.acknowledge(singly=True)
            await self.simulator.sleep_ms(rng.choice([0.0, 3.0, 30.0]))
            if has_producer or turn > 2:
                broker.append(rng.choice([1, 2, 4]))
            await self.simulator.sleep_ms(rng.choice([0.5, 6.0]))


async def open_together(simulator: Simulator) -> None:
    await Openers(simulator).run()


@pytest.mark.parametrize("seed", seeds(80))
def test_of_several_openers_one_is_left(seed: int) -> None:
    run_simulation(seed, open_together)
