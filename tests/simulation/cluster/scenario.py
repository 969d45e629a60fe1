"""What happens in one seed of the whole cluster: work, trouble, healing, and what must follow.

Which kinds of trouble a seed knows is chance, too: with all of them at once little would work, and
deep states would never be reached.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.placement import PlacementConfig, make_placement
from magnetar.bookkeeper.client.placement.config import ZONE_AWARE
from magnetar.bookkeeper.errors import LedgerError, NoSuchEntryError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.transport import ReadRequest
from tests.simulation.cluster.checker import LedgerHistory
from tests.simulation.cluster.healing import Healed
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.metadata_model import MetadataFaults
from tests.simulation.cluster.nodes import LinkFaults
from tests.simulation.cluster.owners import FAILURES, Owner
from tests.simulation.cluster.repairs import Repairs
from tests.simulation.cluster.trouble import KINDS, Trouble
from tests.simulation.cluster.world import Cluster, Member, patiently
from tests.simulation.simulator import Simulator

TRIPLES: Final = ((2, 2, 2), (3, 3, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2))
ZONED_TRIPLES: Final = ((3, 3, 2), (3, 3, 3))
CHAOS_MS: Final = 5000.0
HEAD_BYTES: Final = 4


class ClusterScenario:
    """One seed. Subclasses know less, and that more often."""

    ZONED = 0.25
    KNOWN = 0.4  # of the kinds of trouble
    ALWAYS: frozenset[str] = frozenset()
    DESTROYED: tuple[str, ...] = ("", "", "disk", "journal", "bits")
    REPAIRED = 0.6
    LAYOUT: type[Layout] = JsonLayout

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.rng: random.Random = simulator.rng
        self.chaos = True
        self.is_zoned = self.rng.random() < self.ZONED
        count = 6 if self.is_zoned else self.rng.choice([4, 5, 5, 6])
        self.cluster = Cluster(
            simulator, count, upgrade_domains=self.rng.choice([1, 2]), layout=self.LAYOUT()
        )
        self.histories: list[LedgerHistory] = []
        self.owners = [Owner(self, f"w{n}") for n in range(self.rng.choice([1, 2, 2, 3]))]
        self._triples = self.rng.sample(ZONED_TRIPLES if self.is_zoned else TRIPLES, 2)
        self._recovering: dict[int, int] = {}
        self._kinds = {kind for kind in KINDS if self.rng.random() < self.KNOWN} | self.ALWAYS
        if self.is_zoned and self.has("zone outages"):
            # An auditor that was cut off may still mark what it saw before; here it sees all.
            self._kinds -= {"metadata outages", "lost sessions", "pauses", "bad metadata"}
            self.cluster.checker.checks_marks = True
        self._destroyed = self.rng.choice(self.DESTROYED)
        self.lost_machine: BookieMachine | None = None  # for good
        self.repairs = Repairs(self.cluster, scrubs=self._destroyed == "bits")
        self.has_auto_recovery = self.rng.random() < self.REPAIRED
        # Dice of its own: seeds without deferred adds are the runs they were before there were any.
        self.deferred_rng = random.Random(2 * simulator.seed + 1)
        self.defers = self.deferred_rng.random() < 0.3
        self.busy_rng = random.Random(3 * simulator.seed + 2)
        self.has_busy_targets = self.busy_rng.random() < 0.3

    @property
    def living(self) -> list[BookieMachine]:
        """Machines that run once all is healed."""
        return [m for m in self.cluster.machines.values() if m is not self.lost_machine]

    def has(self, kind: str) -> bool:
        return kind in self._kinds

    def triple(self) -> tuple[int, int, int]:
        return self.rng.choice(self._triples)

    def _set_placement(self) -> None:
        if self.is_zoned:
            config = PlacementConfig(policy=ZONE_AWARE)
            self.cluster.checker.strict_zones = config.zones.min_zones
            self.cluster.placement = lambda pool: make_placement(
                config, self.rng, pool.location, pool.health.quarantined
            )

    async def run(self) -> None:
        cluster = self.cluster
        self._set_placement()
        if self.has("wrong clocks"):
            for machine in cluster.machines.values():
                machine.clock_rate = self.rng.uniform(0.6, 1.7)
                machine.clock_offset_ms = self.rng.uniform(-3_600_000, 3_600_000)
        await asyncio.gather(*(machine.start() for machine in cluster.machines.values()))
        self._begin_trouble()
        owners = [owner.start() for owner in self.owners]
        for number in range(self.rng.randrange(3)):
            self._start_in(f"r{number}", self._recover_some)
        for number in range(self.rng.randrange(1, 3)):
            self._start_in(f"t{number}", self._tail)
        if self.has_auto_recovery:
            for number in range(2):
                self.repairs.start_unit(f"a{number}")
        if self.has("passwords"):
            self._start_in("x", self._intrude)
        if self.has_busy_targets:
            cluster.simulator.start(self._keep_targets_busy())
        trouble = cluster.simulator.start(Trouble(self).run())
        await cluster.simulator.sleep_ms(CHAOS_MS)
        self.chaos = False
        trouble.cancel()
        await self._heal()
        await Healed(self, owners).check()

    def _begin_trouble(self) -> None:
        rng, cluster = self.rng, self.cluster
        if self.has("bad links"):
            cluster.links.faults = LinkFaults(
                loss=rng.choice([0.0, 0.01, 0.05]),
                repeat=rng.choice([0.0, 0.03]),
                delay_ms_max=rng.choice([3.0, 30.0]),
                slow=rng.choice([0.0, 0.02]),
            )
        if self.has("bad metadata"):
            cluster.server.faults = MetadataFaults(
                delay_ms_max=rng.choice([3.0, 100.0]),
                unknown=rng.choice([0.0, 0.1]),
                lag_ms_max=rng.choice([0.0, 0.0, 500.0]),
            )

    async def _keep_targets_busy(self) -> None:
        """Bookies that have no room for copies, and some for longer than anybody asks: also when
        all else is healed, as most repairs are made then."""
        rng, machines = self.busy_rng, list(self.cluster.machines.values())
        loop, end_s = self.cluster.loop, self.cluster.loop.now + 2 * CHAOS_MS / 1000
        while loop.now < end_s:
            rng.choice(machines).busy_until = loop.now + rng.uniform(0.1, 5.0)
            await asyncio.sleep(rng.uniform(0.1, 0.6))

    def _start_in(self, host: str, work: Callable[[Member], Any]) -> None:
        process = self.cluster.process(host)

        async def run() -> None:
            member = self.cluster.member(process)
            await patiently(member.pool.start)
            await work(member)

        self.cluster.run_in(process, run())

    # Recoverers and readers

    async def recover(self, member: Member, history: LedgerHistory) -> LedgerReader:
        """Open with recovery; what it says of the end is judged."""
        ledger_id = history.ledger_id
        self._recovering[ledger_id] = self._recovering.get(ledger_id, 0) + 1
        if self._recovering[ledger_id] > 1:
            self.cluster.recorder.count("state: concurrent recoveries")
        try:
            reader = await member.client.open_ledger(ledger_id, history.password, recover=True)
        except LedgerError:
            self.cluster.recorder.count("state: recovery gave up")
            raise
        finally:
            self._recovering[ledger_id] -= 1
        if not history.deleted:
            self.cluster.checker.on_end(history, reader.last_confirmed)
        return reader

    async def _recover_some(self, member: Member) -> None:
        rng = self.rng
        while self.chaos:
            await asyncio.sleep(rng.uniform(0.3, 3.0))
            if not self.histories:
                continue
            history = rng.choice(self.histories)
            try:
                reader = await self.recover(member, history)
                await self.read_all(reader, history)
            except FAILURES:
                continue

    async def _intrude(self, member: Member) -> None:
        """Fence and write without the password."""
        while self.chaos:
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))
            if not self.histories:
                continue
            history = self.histories[-1]
            # One that never heard of the ledger would take the first key it is given.
            hosts = [
                host
                for host, machine in self.cluster.machines.items()
                if history.ledger_id in machine.promises.entries
            ]
            if not hosts:
                continue
            bookie = member.pool.client(self.rng.choice(hosts))
            reply = await bookie.read_entries(
                ReadRequest(history.ledger_id, 0, 1, 1000, fence=True, master_key=bytes(20))
            )
            self.simulator.check(
                reply.code != codes.OK,
                f"BK-135: {bookie.bookie_id} was fenced without the password",
            )

    async def _tail(self, member: Member) -> None:
        """Follow ledgers that are being written."""
        rng = self.rng
        while self.chaos:
            await asyncio.sleep(rng.uniform(0.05, 0.6))
            if not self.histories:
                continue
            history = self.histories[-1]
            try:
                reader = await member.client.open_ledger(
                    history.ledger_id, history.password, recover=False
                )
                await self.read_all(reader, history)
                for _ in range(rng.randrange(4)):
                    bound, wait_s = reader.last_confirmed, rng.uniform(0.01, 0.4)
                    if rng.random() < 0.5:
                        await reader.wait(bound, wait_s)
                    else:
                        await asyncio.sleep(wait_s)
                        await reader.refresh()
                    self.simulator.check(
                        reader.last_confirmed >= bound,
                        f"9: a reader's bound fell from {bound} to {reader.last_confirmed}",
                    )
                    await self.read_all(reader, history, bound + 1)
            except FAILURES:
                continue

    async def read_all(
        self, reader: LedgerReader, history: LedgerHistory, first: int = 0
    ) -> LedgerError | None:
        """Everything up to the reader's bound; the first error, after which it goes on."""
        checker, bound = self.cluster.checker, reader.last_confirmed
        reader._start = self.rng.randrange(reader.metadata.ensemble_size)  # not always the same
        failure: LedgerError | None = None
        while first <= bound:
            try:
                run = await reader.read(first, bound, 1500)
            except LedgerError as error:
                if isinstance(error, NoSuchEntryError):
                    checker.on_no_entry(history, first)
                failure = failure or error
                first += 1
                continue
            payloads = [bytes(body) for body in run.bodies]
            checker.on_payloads(history, first, payloads, bound)
            first += len(payloads)
        return failure

    async def delete(self, member: Member, history: LedgerHistory) -> None:
        history.deleted = True
        self.cluster.recorder.count("state: ledger deleted")
        await member.client.delete_ledger(history.ledger_id)

    # The end of all trouble

    async def _heal(self) -> None:
        cluster = self.cluster
        cluster.recorder.event("healed")
        cluster.links.faults = LinkFaults()
        cluster.links.cut.clear()
        cluster.links.gray.clear()
        cluster.server.faults = MetadataFaults()
        cluster.server.up = True
        for store in cluster.stores():
            store.connect()
        spare = len(cluster.machines) - max(triple[0] for triple in self._triples)
        running = [m for m in cluster.machines.values() if m.wants_to_run]
        if self.has("a death") and not self._destroyed and spare > 0 and running:
            self.lost_machine = self.rng.choice(running)
            self.lost_machine.wants_to_run = False
            self.lost_machine.stop(power=True)
            cluster.recorder.count("fault: a bookie died for good")
        for machine in cluster.machines.values():
            machine.fs.faults.power_loss_at = machine.fs.faults.fail_at = None
            machine.process.disk_ms_max = 2.0
            machine.process.paused_until = 0.0
            machine.empty_disk()
        for member in cluster.members:
            member.process.paused_until = 0.0
            member.process.steps_to_crash = None


class ZoneScenario(ClusterScenario):
    """Whole zones are down for a while, and nothing else ever is: so no audit is under way then."""

    ZONED = REPAIRED = 1.0
    KNOWN = 0.0
    ALWAYS = frozenset({"zone outages"})
    DESTROYED = ("",)

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(simulator)
        self.cluster.checker.zone_ms = 100.0


class ReturnScenario(ClusterScenario):
    """Bookies that were given up come back to ledgers that nobody writes any more."""

    ZONED = KNOWN = 0.0
    REPAIRED = 1.0
    ALWAYS = frozenset({"killed bookies", "crashing owners"})
    DESTROYED = ("",)


class DecayScenario(ClusterScenario):
    """Bits flip on disks, and bookies are killed."""

    ZONED = KNOWN = 0.0
    REPAIRED = 1.0
    ALWAYS = frozenset({"killed bookies"})
    DESTROYED = ("bits",)


class BookKeeperScenario(ClusterScenario):
    """Metadata are in Apache BookKeeper's form."""

    LAYOUT = BookKeeperLayout
