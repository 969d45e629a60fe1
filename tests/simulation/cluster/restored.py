"""A cluster whose metadata store goes back to an older state: ids of ledgers are given out again.

A small world of its own: in the large one an id names one ledger. Here a ledger is its creator's
(``creator_token``), and the judge goes by that.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.duplicate_adds import is_same_entry
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.errors import EntryDiffersError, LedgerError, OtherCreatorError
from magnetar.bookkeeper.layout.layout import JsonLayout
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import AddRequest, ReadReply, ReadRequest
from magnetar.metadata.errors import MetadataError
from tests.simulation.cluster.checker import Checker
from tests.simulation.cluster.clients import LinkedBookie
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.metadata_model import ClusterStore, TreeNode
from tests.simulation.cluster.nodes import Process
from tests.simulation.cluster.world import Cluster, Member, patiently
from tests.simulation.simulator import Simulator

FAILURES: Final = (LedgerError, MetadataError)
HEAD_BYTES: Final = 4
COUNTER: Final = "/ledgers/idgen"


@dataclass(slots=True)
class Line:
    """What one creator wrote to its ledger.

    Attributes:
        acked: everything up to it was confirmed.
        kept: as ``acked`` when the snapshot was taken; -1: the snapshot doesn't know the ledger.
    """

    ledger_id: int
    payloads: list[bytes] = field(default_factory=list)
    acked: int = -1
    kept: int = -1


class RestoredChecker(Checker):
    """No entry under another creator's name, and none replaced, wherever it is."""

    def __init__(self, simulator: Simulator, *, knows_creators: bool) -> None:
        super().__init__(simulator, JsonLayout())
        self.knows_creators = knows_creators
        self.lines: dict[int, Line] = {}  # by creator
        self.disputes: set[tuple[str, int]] = set()  # bookie and ledger

    def on_sent(self, process: Process, request: AddRequest) -> None:
        if not request.creator:
            return
        payloads = self.lines[request.creator].payloads
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            self.check(
                (head + body)[PACKET_HEADER_BYTES:] in payloads[entry_id : entry_id + 1],
                f"{process} sends entry {entry_id} of ledger {request.ledger_id}, which its "
                "creator didn't write",
            )

    def on_added(
        self, machine: BookieMachine, request: AddRequest, code: int, was_fenced: bool
    ) -> None:
        ledger_id = request.ledger_id
        self.count(f"answer: add {codes.code_name(code)}")
        if code in (codes.OTHER_CREATOR, codes.ENTRY_DIFFERS):
            self.disputes.add((machine.host, ledger_id))
        if code != codes.OK:
            return
        held = machine.promises.entries[ledger_id]
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            before = held.get(entry_id)
            self.check(
                before is None or is_same_entry(before, head, body),
                f"{machine.host} replaced entry {entry_id} of ledger {ledger_id}",
            )
            held[entry_id] = head + body

    def on_forced(
        self, machine: BookieMachine, ledger_id: int, early: dict[int, bytes], code: int
    ) -> None:
        return

    def on_fenced(self, machine: BookieMachine, ledger_id: int) -> None:
        return

    def on_read(self, machine: BookieMachine, ledger_id: int, reply: ReadReply, held: bool) -> None:
        self.count(f"answer: read {codes.code_name(reply.code)}")

    def on_denied(
        self, process: Process, machine: BookieMachine, ledger_id: int, entry: int
    ) -> None:
        return

    def on_forgotten(self, machine: BookieMachine, ledger_id: int) -> None:
        self.count("state: a bookie collected a ledger")
        self.check(
            (machine.host, ledger_id) not in self.disputes,
            f"{machine.host} collects ledger {ledger_id}, which two creators claim",
        )

    def on_metadata(
        self, writer: str, path: str, before: TreeNode | None, after: TreeNode | None
    ) -> None:
        return

    def on_entries(
        self, metadata: LedgerMetadata, first: int, payloads: list[bytes], what: str
    ) -> None:
        """Somebody was given entries of this ledger."""
        if self.knows_creators:
            line = self.lines[metadata.creator_token]
            self.check(
                payloads == line.payloads[first : first + len(payloads)],
                f"{what}: entries {first} and following of ledger {line.ledger_id} are not what "
                "its creator wrote",
            )


class _NamelessBookie(LinkedBookie):
    """As clients and bookies were before they knew creators."""

    def add_entries(self, request: AddRequest) -> None:
        request.creator = 0
        super().add_entries(request)

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        return await super().read_entries(replace(request, creator=0))

    async def read_lac(self, *arguments: Any, creator: int = 0, **named: Any) -> Any:
        return await super().read_lac(*arguments, **named)

    async def write_lac(self, *arguments: Any, creator: int = 0, **named: Any) -> int:
        return await super().write_lac(*arguments, **named)


class RestoredScenario:
    """One seed."""

    KNOWS = 0.75  # creators, in so many seeds
    KILLED = 0.7  # whoever had ledgers before the restore
    OPEN_S: tuple[float, ...] = (0.0, 0.1, 0.2, 1.5)  # how long a ledger stays open without adds

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.rng: random.Random = simulator.rng
        self.cluster = Cluster(simulator, self.rng.choice([3, 3, 4]))
        knows = self.rng.random() < self.KNOWS
        checker = self.checker = RestoredChecker(simulator, knows_creators=knows)
        cluster = self.cluster
        for machine in cluster.machines.values():
            machine._checker = checker
            machine.on_open = self._collect
        checker.machines, checker.zones = cluster.machines, cluster.checker.zones
        cluster.checker = checker
        cluster.server.on_change = checker.on_metadata
        if not knows:
            cluster.linked = self._nameless  # type: ignore[method-assign]
        self.chaos = True
        self.writers: list[AsyncLedgerWriter] = []

    def _nameless(self, process: Process, host: str) -> LinkedBookie:
        return _NamelessBookie(self.cluster, process, self.cluster.machines[host])

    def _collect(self, machine: BookieMachine, bookie: Bookie, store: ClusterStore) -> None:
        collector = GarbageCollector(bookie, LedgerStore(store))
        machine.process.context.run(collector.start, 0.4)

    async def run(self) -> None:
        await asyncio.gather(*(m.start() for m in self.cluster.machines.values()))
        trouble = self.simulator.start(self._trouble())
        nodes: dict[str, TreeNode] = {}
        old = [self._start("old", lambda member: self._write(member, 4)) for _ in range(2)]
        await asyncio.sleep(self.rng.uniform(0.1, 1.5))
        nodes = self._snapshot()
        # Theirs are the ids that are given out again: each process takes a block of its own.
        old += [self._start("mid", lambda member: self._write(member, 4)) for _ in range(2)]
        await asyncio.sleep(self.rng.uniform(0.2, 1.5))
        if self.rng.random() < self.KILLED:  # as the note says: restart brokers after a restore
            for member in self.cluster.members:
                self.cluster.kill(member)
        self._restore(nodes)
        new = [self._start("new", lambda member: self._write(member, 5)) for _ in range(2)]
        readers = [self._start("reader", self._recover_some) for _ in range(2)]
        await asyncio.sleep(4.0)
        self.chaos = False
        trouble.cancel()
        await self._heal()
        await asyncio.wait([*old, *new, *readers], timeout=20)
        await asyncio.wait([self._start("last", self._check_all)], timeout=60)

    def _start(self, host: str, work: Callable[[Member], Any]) -> asyncio.Task[Any]:
        process = self.cluster.process(host)

        async def run() -> None:
            member = self.cluster.member(process)
            await patiently(member.pool.start)
            await work(member)

        return self.cluster.run_in(process, run())

    # The store

    def _snapshot(self) -> dict[str, TreeNode]:
        self.simulator.recorder.event("snapshot")
        for line in self.checker.lines.values():
            line.kept = line.acked
        return {path: n for path, n in self.cluster.server.nodes.items() if _is_restored(path)}

    def _restore(self, nodes: dict[str, TreeNode]) -> None:
        server = self.cluster.server
        self.simulator.recorder.event("restored")
        self.simulator.recorder.count("fault: metadata store restored")
        for path in [path for path in server.nodes if _is_restored(path)]:
            if path not in nodes:
                server._set("restore", path, None)
        for path, node in nodes.items():
            if server.nodes.get(path) != node:
                server._set("restore", path, node)

    # Work

    async def _write(self, member: Member, ledgers: int) -> None:
        """Ledgers, one after the other; one in four gets no entry before its owner goes on."""
        rng = self.rng
        for _ in range(ledgers):
            try:
                writer = await member.client.create_ledger(LedgerConfig(3, 3, 2))
            except FAILURES:
                await asyncio.sleep(0.1)
                continue
            line = Line(writer.ledger_id)
            self.checker.lines[writer.metadata.creator_token] = line

            def on_confirmed(upto: int, line: Line = line) -> None:
                line.acked = upto

            writer.on_confirmed = on_confirmed
            for _ in range(rng.choice([0, 2, 5, 9])):
                if writer.error is not None:
                    break
                self._append(writer, line)
                await asyncio.sleep(rng.choice([0.0, 0.01, 0.05]))
            await asyncio.sleep(rng.choice(self.OPEN_S))
            try:
                if isinstance(writer.error, OtherCreatorError | EntryDiffersError):
                    await member.client.delete_ledger(writer.ledger_id)  # as managed ledgers do
                elif rng.random() < 0.5:
                    await writer.close()
            except FAILURES:
                continue

    def _append(self, writer: AsyncLedgerWriter, line: Line) -> None:
        first = writer.next_entry
        heads = [b"h%03d" % (first + i) for i in range(self.rng.choice([1, 2]))]
        # The same lengths for all, as those of other ledgers often are.
        bodies = [b"%016x" % self.rng.getrandbits(64) for _ in heads]
        line.payloads += [head + body for head, body in zip(heads, bodies, strict=True)]
        try:
            writer.append(heads, bodies)
        except LedgerError:
            del line.payloads[first:]

    async def _recover_some(self, member: Member) -> None:
        ledgers = LedgerStore(member.store)
        while self.chaos:
            await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            try:
                ids = [id_ async for found in ledgers.ranges() for id_ in found.ledger_ids]
                if ids:
                    recover = self.rng.random() < 0.7
                    await self._read(member, self.rng.choice(ids), "a reader", recover=recover)
            except FAILURES:
                continue

    async def _read(self, member: Member, ledger_id: int, who: str, *, recover: bool) -> int:
        """Its last confirmed entry; all that is read is judged."""
        reader = await member.client.open_ledger(ledger_id, recover=recover)
        reader._start = self.rng.randrange(3)
        first, last = 0, reader.last_confirmed
        if self.checker.knows_creators:
            line = self.checker.lines[reader.metadata.creator_token]
            self.simulator.check(
                last < len(line.payloads),
                f"{who}: ledger {ledger_id} ends at {last}, {len(line.payloads)} were written",
            )
        while first <= last:
            run = await reader.read(first, last, 1000)
            found = [bytes(body) for body in run.bodies]
            self.checker.on_entries(reader.metadata, first, found, who)
            first += len(found)
        return last

    # Trouble, and its end

    async def _trouble(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.6))
            machine = self.rng.choice(list(self.cluster.machines.values()))
            if not machine.process.alive:
                machine.start()
            elif machine.is_up and self.rng.random() < 0.6:
                machine.stop(power=self.rng.random() < 0.6)
            elif machine.is_up:
                machine.fail_call(self.rng.randrange(20), power=True)

    async def _heal(self) -> None:
        for machine in self.cluster.machines.values():
            machine.fs.faults.power_loss_at = machine.fs.faults.fail_at = None
        for _ in range(100):
            for machine in self.cluster.machines.values():
                if not machine.process.alive:
                    machine.start()
            if all(machine.is_up for machine in self.cluster.machines.values()):
                return
            await asyncio.sleep(0.1)
        self.simulator.check(False, "L7: a bookie never came back")

    async def _check_all(self, member: Member) -> None:
        """Each ledger of the store ends, with what its creator wrote; survivors lost nothing."""
        ledgers = LedgerStore(member.store)
        async for found in ledgers.ranges():
            for ledger_id in found.ledger_ids:
                await self._check_ledger(member, ledger_id)
        for machine in self.cluster.machines.values():
            if machine.is_up:
                machine.check_promises()

    async def _check_ledger(self, member: Member, ledger_id: int) -> None:
        for attempt in range(20):
            try:
                last = await self._read(member, ledger_id, "the last reader", recover=True)
            except FAILURES as error:
                if attempt == 19 and self.checker.knows_creators:
                    self.simulator.check(False, f"ledger {ledger_id} can't be read: {error!r}")
                await asyncio.sleep(0.3)
            else:
                break
        else:
            return
        metadata = await member.client.read_ledger_metadata(ledger_id)
        assert metadata is not None
        line = self.checker.lines[metadata.creator_token]
        if self.checker.knows_creators:
            self.simulator.check(
                last >= line.kept,
                f"ledger {ledger_id} ends at {last}, {line.kept} was acknowledged and survived",
            )


class SurvivorsScenario(RestoredScenario):
    """Nobody is restarted: who made a ledger before the restore goes on with it."""

    KNOWS, KILLED = 1.0, 0.0
    OPEN_S = (0.2, 1.5, 2.5)


def _is_restored(path: str) -> bool:
    name = path.removeprefix("/ledgers/")
    return path == COUNTER or (name != path and name[:1].isdigit())
