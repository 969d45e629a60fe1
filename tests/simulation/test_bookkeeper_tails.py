"""A writer with pauses, and clients in other places that tail its ledger.

The network loses, repeats and delays, bookies come and go, one may hear the tails and not the
writer; the writer changes its ensemble, sleeps, closes, or is recovered by somebody else. Whatever
a tail is shown was acknowledged and is what the writer wrote (11, 12); every wait ends (L8); and
once all is healed each tail sees every acknowledged entry within the explicit-LAC interval and a
moment (L6), and the end.

Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest tests/simulation/test_bookkeeper_tails.py
"""

import asyncio
from collections.abc import Callable

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    LedgerConfig,
    ReadConfig,
    SpeculationConfig,
    WriteConfig,
)
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.packet import decode_header
from magnetar.bookkeeper.transport import AddRequest, LacReply, ReadRequest
from magnetar.metadata.store import EventType, MetadataEvent, Watch
from tests.simulation.ledger_world import LedgerWorld, SimulatedBookieClient, SimulatedStore
from tests.simulation.simulator import FaultRates, Node, Simulator, run_simulation, seeds

TRIPLES = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 2, 2), (5, 3, 2)]
CHAOS_MS = 8000.0
LAC_INTERVAL_MS = 40
WAIT_S = 2.0
SLACK_S = 5.0  # a last look at bookies and metadata, each with its own timeout
HEAD_BYTES = 4


class _Watch(Watch):
    def __init__(self, watchers: list[Callable[[], None]], tell: Callable[[], None]) -> None:
        self._watchers, self._tell = watchers, tell

    def close(self) -> None:
        if self._tell in self._watchers:
            self._watchers.remove(self._tell)


class WatchedStore(SimulatedStore):
    """Tells of writes to ledgers, a little later than they happen."""

    def __init__(self, node: Node, world: "TailWorld") -> None:
        super().__init__(node, world)
        self._tails = world

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        watchers = self._tails.watchers

        def tell() -> None:
            on_event(MetadataEvent(EventType.MODIFIED, path_prefix))

        watchers.append(tell)
        return _Watch(watchers, tell)


class PollingBookieClient(SimulatedBookieClient):
    """Long polls by asking again and again: an answer is as late as one look at most."""

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        loop = self._world.simulator.loop
        deadline = loop.time() + wait_s
        while True:
            reply = await self.read_lac(ledger_id, fence=False, creator=creator)
            packet = reply.last_packet
            lac = max(reply.explicit_lac, -1 if packet is None else decode_header(packet).lac)
            if reply.code not in (codes.OK, codes.NO_LEDGER) or lac > above:
                found = self._bookie.read(ReadRequest(ledger_id, above + 1, 1, 1)).packets
                reply.next_packet = found[0] if found else None
                return reply
            if loop.time() >= deadline:
                return reply
            await asyncio.sleep(min(0.02, max(deadline - loop.time(), 0.001)))

    def add_entries(self, request: AddRequest) -> None:
        if not self._is_cut_off():
            super().add_entries(request)
            return
        delay_s = 1.0  # the transport's timeout
        loop = self._world.simulator.loop
        loop.call_later(delay_s, request.done, request, codes.UNAVAILABLE)

    def _is_cut_off(self) -> bool:
        world = self._world
        assert isinstance(world, TailWorld)
        return self._node.name == "writer" and self.bookie_id == world.deaf

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        if self._is_cut_off():
            return codes.UNAVAILABLE
        code = await self._network.call(
            self._node,
            self._bookie,
            lambda: self._bookie.write_lac(ledger_id, lac, master_key, creator),
        )
        return codes.UNAVAILABLE if code is None else code


class TailWorld(LedgerWorld):
    """The world of one ledger, with watches and long polls."""

    def __init__(self, simulator: Simulator, bookie_count: int) -> None:
        super().__init__(simulator, bookie_count)
        self.watchers: list[Callable[[], None]] = []
        self.deaf = ""  # a bookie that the writer can't reach, and everybody else can

    def tail_client(self, node: Node, spread_ms: int) -> BookKeeperClient:
        pool = BookiePool()
        for bookie in self.bookies.values():
            pool.add(PollingBookieClient(node, bookie, self))
        speculation = SpeculationConfig(self.simulator.rng.choice([0, 20, 200]), 400)
        return BookKeeperClient(
            *(WatchedStore(node, self), pool, RandomPlacement(self.simulator.rng)),
            clock=lambda: int(self.simulator.loop.now * 1000),
            rng=self.simulator.rng,
            config=ClientConfig(
                recovery_read_entries=7,
                reads=ReadConfig(
                    reorder=self.simulator.rng.random() < 0.5,
                    speculation=speculation,
                    lac_speculation=SpeculationConfig(spread_ms, 3 * spread_ms),
                ),
                writes=WriteConfig(explicit_lac_interval_ms=LAC_INTERVAL_MS),
            ),
        )

    def on_metadata(self, node: Node, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        super().on_metadata(node, old, new)
        for tell in list(self.watchers):
            self.simulator.loop.call_later(self.simulator.rng.uniform(0, 0.05), tell)


class Scenario:
    """What one seed does."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.rng = simulator.rng
        self.triple = self.rng.choice(TRIPLES)
        self.world = TailWorld(simulator, self.triple[0] + self.rng.randrange(4))
        self.chaos = True
        self.seen: dict[str, int] = {}  # tail -> entries it has got
        self.ended: set[str] = set()
        self.writer: AsyncLedgerWriter

    async def run(self) -> None:
        simulator, rng, world = self.simulator, self.rng, self.world
        writer_node = Node("writer")
        client = world.tail_client(writer_node, 100)
        self.writer = writer = await client.create_ledger(LedgerConfig(*self.triple))
        writer.on_confirmed = world.on_confirmed
        simulator.network.faults = FaultRates(
            message_loss=rng.choice([0.0, 0.02, 0.1]),
            message_repeat=rng.choice([0.0, 0.05]),
            delay_ms_max=rng.choice([5.0, 30.0]),
            slow_message=rng.choice([0.0, 0.02]),
            metadata_ms_max=rng.choice([5.0, 100.0]),
        )
        driver = simulator.start(self._write())
        simulator.start(self._trouble_bookies())
        tails = [simulator.start(self._tail(f"tail {n}")) for n in range(1 + rng.randrange(3))]
        await simulator.sleep_ms(CHAOS_MS)
        self.chaos = False
        simulator.network.faults = FaultRates()
        for bookie in world.bookies.values():
            bookie.up = True
        await driver
        await self._settle()
        if rng.random() < 0.5:
            world.deaf = rng.choice(sorted(world.bookies))
        if writer.error is None:
            self._append()
        await self._settle()
        await self._check_tails_see_everything(world.acked)
        await self._end()
        done, _ = await asyncio.wait(tails, timeout=60)
        simulator.check(len(done) == len(tails), f"L6: the end was seen by {self.ended} only")
        for task in done:
            task.result()
        upto = world.acked + 1
        behind = {tail: count for tail, count in self.seen.items() if count < upto}
        simulator.check(not behind, f"L6: {behind} of {upto} entries at the end")

    async def _write(self) -> None:
        rng, writer = self.rng, self.writer
        while self.chaos:
            for _ in range(rng.choice([1, 1, 3, 8])):
                if writer.error is not None:
                    return
                self._append()
                await self.simulator.sleep_ms(rng.choice([0.0, 0.0, 2.0]))
            await self.simulator.sleep_ms(rng.choice([1.0, 30.0, 300.0, 1500.0]))

    def _append(self) -> None:
        head = b"h%03d" % (self.writer.next_entry % 1000)
        body = self.rng.randbytes(self.rng.randrange(20))
        self.world.payloads.append(head + body)
        self.writer.append([head], [body])

    async def _trouble_bookies(self) -> None:
        rng, names = self.rng, sorted(self.world.bookies)
        down_at_once = rng.choice([0, 1, 1, 2])
        while self.chaos:
            await self.simulator.sleep_ms(rng.uniform(50, 900))
            bookie = self.world.bookies[rng.choice(names)]
            if not bookie.up:
                bookie.up = True
            elif sum(not b.up for b in self.world.bookies.values()) < down_at_once and self.chaos:
                bookie.up = False

    async def _settle(self) -> None:
        """The writer has confirmed what it sent, or has failed for good."""
        writer = self.writer
        for _ in range(400):
            if writer.error is not None or writer.last_confirmed == writer.next_entry - 1:
                return
            await self.simulator.sleep_ms(50)
        self.simulator.check(False, "L9: appends are stuck")

    async def _check_tails_see_everything(self, upto: int) -> None:
        """Nothing more is appended: it is for the explicit LAC to tell."""
        if self.writer.error is not None:
            return
        for _ in range(200):
            if all(count > upto for count in self.seen.values()):
                return
            await self.simulator.sleep_ms(50)
        self.simulator.check(False, f"L6: {self.seen}, acknowledged is {upto}")

    async def _end(self) -> None:
        if self.writer.error is None and self.rng.random() < 0.5:
            await self.writer.close()
            return
        client = self.world.tail_client(Node("recoverer"), 100)
        for _ in range(20):
            try:
                await client.open_ledger(self.writer.ledger_id, recover=True)
                return
            except LedgerError:
                await self.simulator.sleep_ms(200)
        self.simulator.check(False, "L2: recovery never ended")

    # Tails

    async def _tail(self, name: str) -> None:
        client = self.world.tail_client(Node(name), self.rng.choice([50, 400, 1500]))
        self.seen[name] = 0
        reader: LedgerReader | None = None
        while reader is None:
            try:
                reader = await client.open_ledger(self.writer.ledger_id, recover=False)
            except LedgerError:
                await self.simulator.sleep_ms(100)
        while not (reader.is_closed and self.seen[name] > reader.last_confirmed):
            try:
                await self._follow(name, reader)
            except LedgerError:
                await self.simulator.sleep_ms(self.rng.uniform(1, 100))
        self.ended.add(name)

    async def _follow(self, name: str, reader: LedgerReader) -> None:
        first, bound = self.seen[name], reader.last_confirmed
        if first <= bound:
            run = await reader.read(first, bound, 200)
            payloads = [bytes(body) for body in run.bodies]
            self.world.on_read(first, payloads, bound)
            self.seen[name] += len(payloads)
            return
        loop = self.simulator.loop
        began_s = loop.time()
        try:
            await reader.wait(first - 1, WAIT_S)
        finally:
            took_s = loop.time() - began_s
            self.simulator.check(took_s < WAIT_S + SLACK_S, f"L8: a wait took {took_s:.1f} s")
        if not reader.is_closed:
            shown, acked = reader.last_confirmed, self.world.acked
            self.simulator.check(shown <= acked, f"11: {shown} is shown, {acked} acknowledged")


@pytest.mark.parametrize("seed", seeds(60))
def test_tails(seed: int) -> None:
    run_simulation(seed, lambda simulator: Scenario(simulator).run())
