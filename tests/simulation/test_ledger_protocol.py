"""One ledger, its writer and up to three recoverers under a hostile network.

The shells run as in production, over a virtual clock; the writer crashes after any network step, is
paused over a whole recovery, or closes; bookies come and go, refuse writes, lose disks. Safety is
checked at each effect (``ledger_world.py``); then all heals and the ledger must end CLOSED,
readable, with everything that was acknowledged.

Replay one seed: python -m tests.simulation.run --world protocol --seed 41
"""

import asyncio
import random

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from tests.simulation.apache_bookie import ApacheBookie
from tests.simulation.apache_world import ApacheLoop, ApacheWorld
from tests.simulation.ledger_world import LedgerWorld
from tests.simulation.simulator import FaultRates, Node, Simulator, run_simulation, seeds

TRIPLES = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (5, 3, 2)]
CHAOS_MS = 6000.0
HEAD_BYTES = 4


class Scenario:
    """What one seed does."""

    #: How often a reader of healed bookies asks, before entries count as unreadable.
    attempts_max = 1

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.rng: random.Random = simulator.rng
        self.triple = self.rng.choice(TRIPLES)
        self.world = self.make_world(self.triple[0] + self.rng.randrange(5))
        self.chaos = True
        self.writer: AsyncLedgerWriter | None = None
        self.writer_node = Node("writer")
        self.recoverers = self._recovering = 0

    def make_world(self, bookie_count: int) -> LedgerWorld:
        return LedgerWorld(self.simulator, bookie_count)

    async def run(self) -> None:
        simulator, rng = self.simulator, self.rng
        client = self.world.client(self.writer_node)
        config = LedgerConfig(*self.triple, digest_type=self.world.digest_type.name)
        self.writer = await client.create_ledger(config)
        self.writer.on_confirmed = self.world.on_confirmed
        simulator.network.faults = FaultRates(
            message_loss=rng.choice([0.0, 0.01, 0.1]),
            message_repeat=rng.choice([0.0, 0.05]),
            delay_ms_max=rng.choice([5.0, 50.0]),
            slow_message=rng.choice([0.0, 0.02]),
            metadata_unknown=rng.choice([0.0, 0.2]),
            metadata_ms_max=rng.choice([5.0, 300.0]),
        )
        if rng.random() < 0.5:
            self.writer_node.steps_to_crash = rng.randrange(400)
        driver = simulator.start(self._write())
        simulator.start(self._trouble_bookies())
        self.recoverers = rng.randrange(4)
        for number in range(self.recoverers):
            simulator.start(self._recover(number))
        simulator.start(self._read_open_ledger())
        await simulator.sleep_ms(CHAOS_MS)
        self.heal()
        simulator.recorder.count("state: writer crashed", not self.writer_node.alive)
        if not self.recoverers and self.writer_node.alive:
            await self._check_writer_goes_on(driver)
        await self._check_recovery_ends()

    # Chaos

    async def _write(self) -> None:
        rng, writer = self.rng, self.writer
        assert writer is not None
        will_close = rng.random() < 0.3
        for _ in range(rng.randrange(60)):
            count = rng.choice([1, 1, 2, 5])
            heads = [b"h%03d" % (writer.next_entry + i) for i in range(count)]
            bodies = [rng.randbytes(rng.randrange(20)) for _ in range(count)]
            if writer.error is not None or not self.writer_node.alive:
                return
            # Before the append: its sends are judged while it runs.
            self.world.payloads += [head + body for head, body in zip(heads, bodies, strict=True)]
            writer.append(heads, bodies)
            if rng.random() < 0.02:
                self._count("writer paused")
                self.writer_node.paused_until = self.simulator.loop.now + rng.uniform(0, 4)
            await self.simulator.sleep_ms(rng.choice([0.0, 1.0, 20.0, 200.0, 400.0]))
        if will_close and self.writer_node.alive:
            try:
                self.world.on_end((await writer.close()).last_entry)
            except LedgerError:
                return

    async def _trouble_bookies(self) -> None:
        rng, world = self.rng, self.world
        disks_to_lose = self.triple[2] - 1 if rng.random() < 0.2 else 0
        rots = not disks_to_lose and self.triple[2] > 1 and rng.random() < 0.3
        down_at_once = rng.choice([0, 1, 1, 2, len(world.bookies)])
        while True:
            await self.simulator.sleep_ms(rng.uniform(10, 400))
            if not self.chaos:
                return
            bookie = world.bookies[rng.choice(sorted(world.bookies))]
            if rng.random() < 0.1 and disks_to_lose:
                disks_to_lose -= 1
                world.lose_disk(bookie.bookie_id)
            elif rots and rng.random() < 0.3:
                assert self.writer is not None
                world.rot(bookie.bookie_id, self.writer.ledger_id)
            elif not bookie.up:
                bookie.up = True
            elif rng.random() < 0.1 and down_at_once > 1:
                self._count("bookies fail together")
                for other in rng.sample(sorted(world.bookies), 2 if len(world.bookies) > 2 else 1):
                    world.bookies[other].refuse_adds = codes.IO_ERROR
            elif bookie.refuse_adds != codes.OK:
                bookie.refuse_adds = codes.OK
            elif rng.random() < 0.2:
                refusals = [codes.READ_ONLY, codes.TOO_MANY_REQUESTS, codes.IO_ERROR]
                bookie.refuse_adds = rng.choice(refusals)
                self._count("bookie refuses adds")
            elif sum(not b.up for b in world.bookies.values()) < down_at_once:
                bookie.up = False
                self._count("bookie down")

    def _count(self, fault: str) -> None:
        self.simulator.recorder.count(f"fault: {fault}")

    async def _recover(self, number: int) -> None:
        rng = self.rng
        node = Node(f"recoverer {number}")
        if rng.random() < 0.4:
            node.steps_to_crash = rng.randrange(60)
        await self.simulator.sleep_ms(rng.uniform(0, CHAOS_MS * 0.7))
        client = self.world.client(node)
        assert self.writer is not None
        for _ in range(5):
            self._recovering += 1
            if self._recovering > 1:
                self.simulator.recorder.count("state: concurrent recoveries")
            try:
                reader = await client.open_ledger(self.writer.ledger_id, recover=True)
            except LedgerError:
                self.simulator.recorder.count("state: recovery gave up")
                await self.simulator.sleep_ms(rng.uniform(0, 300))
            else:
                self.world.on_end(reader.last_confirmed)
                await self._read_all(reader, patient=False)
                return
            finally:
                self._recovering -= 1

    async def _read_open_ledger(self) -> None:
        client = self.world.client(Node("reader"))
        assert self.writer is not None
        while self.chaos:
            await self.simulator.sleep_ms(self.rng.uniform(50, 1500))
            try:
                reader = await client.open_ledger(self.writer.ledger_id, recover=False)
                await self._read_all(reader, patient=False)
            except LedgerError:
                continue

    # Healed

    def heal(self) -> None:
        self.chaos = False
        self.simulator.network.faults = FaultRates()
        for bookie in self.world.bookies.values():
            bookie.up = True
            bookie.refuse_adds = codes.OK
        size, _, ack_quorum = self.triple
        has_spare = ack_quorum > 1 and len(self.world.bookies) > size
        if has_spare and not self.world.lost_disks and self.rng.random() < 0.3:
            self._count("a bookie died for good")
            self.world.bookies[self.rng.choice(sorted(self.world.bookies))].up = False

    async def _check_writer_goes_on(self, driver: asyncio.Task[None]) -> None:
        """L1, L9: with nobody against it, every append is confirmed or the writer has failed."""
        writer = self.writer
        assert writer is not None
        await asyncio.wait([driver], timeout=20)
        for _ in range(200):
            if writer.error is not None or writer.last_confirmed == writer.next_entry - 1:
                break
            await self.simulator.sleep_ms(50)
        done = writer.error is not None or writer.last_confirmed == writer.next_entry - 1
        self.simulator.check(done or not self.writer_node.alive, "L9: appends are stuck")

    async def _check_recovery_ends(self) -> None:
        """L2, and G1: what was acknowledged is readable, byte for byte."""
        client = self.world.client(Node("last recoverer"))
        assert self.writer is not None
        reader: LedgerReader | None = None
        for _ in range(10):
            try:
                reader = await client.open_ledger(self.writer.ledger_id, recover=True)
                break
            except LedgerError as error:
                last_error = error
                await self.simulator.sleep_ms(200)
        if reader is None:
            self.simulator.check(False, f"L2: recovery never ended: {last_error}")
            return
        self.world.on_end(reader.last_confirmed)
        self.simulator.check(reader.metadata.state is LedgerState.CLOSED, "L2: not closed")
        self.simulator.check(
            reader.last_confirmed >= self.world.acked, "5: acknowledged entries are gone"
        )
        self.simulator.check(await self._read_all(reader, patient=True), "13: unreadable entries")
        # 14: whatever the old writer still hears, it confirms nothing above the end.
        await self.simulator.sleep_ms(5000)
        self.simulator.check(self.world.acked <= reader.last_confirmed, "14: confirmed too much")
        writer = self.writer
        is_done = writer.error is not None or writer.last_confirmed == writer.next_entry - 1
        self.simulator.check(is_done or not self.writer_node.alive, "L1: appends without an answer")

    async def _read_all(self, reader: LedgerReader, *, patient: bool) -> bool:
        first, bound = 0, reader.last_confirmed
        attempts = self.attempts_max
        while first <= bound:
            try:
                run = await reader.read(first, bound, 1000)
            except LedgerError:
                if patient:
                    attempts -= 1
                    if not attempts:
                        return False
                else:
                    first += 1
                continue
            payloads = [bytes(body) for body in run.bodies]
            self.world.on_read(first, payloads, bound)
            first += len(payloads)
        return True


@pytest.mark.parametrize("seed", seeds(100))
def test_ledger_protocol(seed: int) -> None:
    run_simulation(seed, lambda simulator: Scenario(simulator).run())


class ApacheScenario(Scenario):
    """The same on Apache's bookies, by the product's client of their protocol."""

    attempts_max = 3  # a bookie that knows no batches closes two connections before it is believed

    def make_world(self, bookie_count: int) -> LedgerWorld:
        return ApacheWorld(self.simulator, bookie_count, self.triple[0])

    def heal(self) -> None:
        super().heal()
        for bookie in self.world.bookies.values():
            assert isinstance(bookie, ApacheBookie)
            bookie.confused = 0.0
            if self.recoverers and self.rng.random() < 0.3:
                self._count("bookie stays read-only")  # recoveries may write to it
                bookie.refuse_adds = codes.READ_ONLY


@pytest.mark.parametrize("seed", seeds(50))
def test_ledger_protocol_on_apaches_bookies(seed: int) -> None:
    run_simulation(seed, lambda simulator: ApacheScenario(simulator).run(), ApacheLoop)
