"""One managed ledger, several owners, a hostile network.

Brokers open the log at random times, each fencing the one before, append, rotate all the time,
crash after any network step, are paused over a take-over; bookies come and go; the answers of
metadata writes are lost. Every acknowledgement is judged when it is given
(``managed_ledger_world.py``). Then all heals, a fresh owner opens the log, and it must hold every
acknowledged payload once, at its position, in order.

Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest tests/simulation/test_managed_ledger.py
"""

import asyncio
import itertools
import random

import pytest

from magnetar.bookkeeper import codes
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.position import EARLIEST
from tests.simulation.managed_ledger_world import HEAD, Broker, LogWorld
from tests.simulation.simulator import FaultRates, Simulator, run_simulation, seeds

CHAOS_MS = 8000.0
QUORUMS = [(1, 1, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2)]


def config_of(rng: random.Random, *, with_trimming: bool = False) -> ManagedLedgerConfig:
    ensemble, write, ack = rng.choice(QUORUMS)
    retention = 0 if with_trimming else -1
    return ManagedLedgerConfig(
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        form=HeadsInFront(len(HEAD)),
        ledger_entries_max=rng.choice([1, 3, 8, 30]),
        ledger_age_min_ms=0,
        ledger_age_max_ms=rng.choice([500, 10**7]),
        retention_ms=retention,
        retention_bytes=retention,
    )


class Scenario:
    """What one seed does."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.rng = simulator.rng
        self.config = config_of(self.rng, with_trimming=self.rng.random() < 0.4)
        self.world = LogWorld(simulator, self.config.ensemble_size + self.rng.randrange(3))
        self.brokers: list[Broker] = []
        self.chaos = True

    async def run(self) -> None:
        simulator, rng = self.simulator, self.rng
        simulator.network.faults = FaultRates(
            message_loss=rng.choice([0.0, 0.01, 0.05]),
            message_repeat=rng.choice([0.0, 0.05]),
            delay_ms_max=rng.choice([5.0, 50.0]),
            slow_message=rng.choice([0.0, 0.01]),
            metadata_unknown=rng.choice([0.0, 0.1, 0.3, 0.6]),
            metadata_ms_max=rng.choice([5.0, 100.0]),
        )
        for _ in range(rng.randint(1, 4)):
            simulator.start(self._broker())
        simulator.start(self._trouble_bookies())
        await simulator.sleep_ms(CHAOS_MS)
        await self._heal_and_verify()

    async def _broker(self) -> None:
        rng, simulator = self.rng, self.simulator
        await simulator.sleep_ms(rng.uniform(0, CHAOS_MS / 2))
        broker = Broker(self.world, self.config)
        self.brokers.append(broker)
        if rng.random() < 0.4:
            broker.node.steps_to_crash = rng.randrange(300)
        await broker.open()
        while self.chaos and broker.node.alive:
            broker.append(rng.choice([1, 1, 2, 7]))
            if rng.random() < 0.3:
                broker.acknowledge()
            if rng.random() < 0.02:
                broker.node.paused_until = simulator.loop.now + rng.uniform(0, 4)
            assert broker.log is not None
            if rng.random() < 0.03:
                broker.log.sweep(int(simulator.loop.now * 1000))
            if broker.is_fenced or rng.random() < 0.01:
                await broker.log.close()
                broker.is_fenced = False
                if rng.random() < 0.5:
                    return
                await broker.open()
            await simulator.sleep_ms(rng.choice([0.0, 1.0, 20.0, 200.0]))

    async def _trouble_bookies(self) -> None:
        rng = self.rng
        while self.chaos:
            bookie = rng.choice(list(self.world.bookies.values()))
            if rng.random() < 0.5:
                bookie.up = not bookie.up
            else:
                bookie.refuse_adds = rng.choice([codes.OK, codes.OK, codes.IO_ERROR])
            await self.simulator.sleep_ms(rng.uniform(50, 1500))

    async def _heal_and_verify(self) -> None:
        self.chaos = False
        self.simulator.network.faults = FaultRates()
        for bookie in self.world.bookies.values():
            bookie.up, bookie.refuse_adds = True, codes.OK
        await self.simulator.sleep_ms(30_000)
        alive = [x for x in self.brokers if x.node.alive and x.log is not None]
        for broker in alive:
            self.simulator.check(
                broker.reported == len(broker.sent),
                f"liveness: broker {broker.number} was told of {broker.reported} of "
                f"{len(broker.sent)} entries",
            )
        for broker in alive:
            if broker.is_owner:
                await self._end_cleanly(broker)
        await verify(self.world, self.brokers)

    async def _end_cleanly(self, broker: Broker) -> None:
        """Acknowledgements that nobody waits for are stored in time, and by a close at once."""
        assert broker.log is not None
        if broker.log.failure is not None:
            return  # it closed the log, and didn't come back
        broker.node.steps_to_crash = None
        broker.append(5)
        await self.simulator.sleep_ms(5_000)
        # What failed before is tried again with the next one only.
        broker.acknowledge()
        if broker.receipts.random() < 0.5:
            await broker.log.close()
        else:
            await self.simulator.sleep_ms(5_000)
        broker.expect_stored()


async def verify(world: LogWorld, brokers: list[Broker]) -> None:
    """A fresh owner reads the log, and can write it; nothing fails any more."""
    world.simulator.network.faults = FaultRates()
    config = ManagedLedgerConfig(form=HeadsInFront(len(HEAD)), retention_ms=-1, retention_bytes=-1)
    last = Broker(world, config)
    log = await last.open()
    found = await last.read_all(EARLIEST)
    consumed = EARLIEST
    if (cursor := log.cursors.get("sub")) is not None:
        consumed = cursor.mark_delete
        world.check_cursor(cursor, found)
    world.check_log(found, brokers, consumed)
    world.check_list()
    world.simulator.check(
        log.offsets.entry_count == len(found), "entry_count differs from what is read"
    )
    last.append(3)
    while last.reported < 3:
        await world.simulator.sleep_ms(10)
    world.simulator.check(not last.failed, "the healed log took no append")
    await log.close()
    world.check_list()
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


@pytest.mark.parametrize("seed", seeds(35))
def test_acknowledged_means_kept_once_in_order(seed: int) -> None:
    run_simulation(seed, lambda simulator: Scenario(simulator).run())


async def crash_while_rotating(simulator: Simulator, steps: int, entries_max: int) -> bool:
    """A writer that rotates dies at its n-th network step; another takes over."""
    config = ManagedLedgerConfig(
        form=HeadsInFront(len(HEAD)),
        ledger_entries_max=entries_max,
        ledger_age_min_ms=0,
        retention_ms=-1,
        retention_bytes=-1,
    )
    world = LogWorld(simulator, 1)
    first = Broker(world, config)
    first.node.steps_to_crash = steps

    async def write() -> None:
        await first.open()
        for _ in range(3):
            first.append(3)
            await simulator.sleep_ms(7)

    writing = simulator.start(write())
    await simulator.sleep_ms(200)
    has_crashed = not first.node.alive
    simulator.check(has_crashed or writing.done(), "the writer hangs")
    await verify(world, [first])
    return has_crashed


@pytest.mark.parametrize("entries_max", [1, 4])
def test_crash_after_every_step_of_rotations(entries_max: int) -> None:
    crashes = 0
    for steps in itertools.count():
        if not run_simulation(
            steps,
            lambda simulator, n=steps: crash_while_rotating(simulator, n, entries_max),  # type: ignore[misc]
        ):
            break
        crashes += 1
    assert crashes > 20


async def race(simulator: Simulator) -> None:
    """Brokers open at the same moment and write as long as they can: one is left at last."""
    rng = simulator.rng
    simulator.network.faults = FaultRates(
        delay_ms_max=rng.choice([2.0, 20.0]),
        metadata_unknown=rng.choice([0.0, 0.3]),
        metadata_ms_max=rng.choice([1.0, 20.0]),
    )
    config = config_of(rng)
    world = LogWorld(simulator, config.ensemble_size)
    brokers = [Broker(world, config) for _ in range(rng.choice([2, 2, 3]))]

    async def write(broker: Broker) -> None:
        await simulator.sleep_ms(rng.uniform(0, 5))
        await broker.open()
        for _ in range(40):
            broker.append(rng.randint(1, 3))
            await simulator.sleep_ms(rng.choice([0.0, 5.0]))

    writers = [simulator.start(write(x)) for x in brokers]
    await asyncio.gather(*writers)
    await simulator.sleep_ms(60_000)
    for broker in brokers:  # whoever didn't notice yet does now
        broker.append(1)
    await simulator.sleep_ms(60_000)
    simulator.check(all(x.reported == len(x.sent) for x in brokers), "a report is missing")
    simulator.check(
        sum(x.is_fenced for x in brokers) == len(brokers) - 1, "not exactly one is left"
    )
    world.check_list()  # a new owner forgets what it lists and doesn't find
    await verify(world, brokers)


@pytest.mark.parametrize("seed", seeds(35))
def test_two_writers_race(seed: int) -> None:
    run_simulation(seed, race)
