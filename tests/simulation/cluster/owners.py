"""Owners of logs in a simulated cluster: they write ledgers, one after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import LedgerError
from magnetar.metadata.errors import MetadataError
from tests.simulation.cluster.checker import LedgerHistory
from tests.simulation.cluster.nodes import Process
from tests.simulation.cluster.world import Member, patiently

if TYPE_CHECKING:
    from tests.simulation.cluster.scenario import ClusterScenario

FAILURES: Final = (LedgerError, MetadataError)


class Owner:
    """Appends to ledgers, one after the other; dies, and comes back to recover what it left."""

    def __init__(self, scenario: ClusterScenario, host: str) -> None:
        self.scenario = scenario
        self.cluster = scenario.cluster
        self.host = host
        self.member: Member | None = None
        self.left: list[LedgerHistory] = []  # not closed by us
        self.closed: list[LedgerHistory] = []
        self.writer: AsyncLedgerWriter | None = None
        self.appends = scenario.rng.randrange(5, 30)
        self.busy = False

    def start(self) -> asyncio.Task[Any]:
        process = self.cluster.process(self.host)
        rng = self.scenario.rng
        if self.scenario.has("crashing owners") and process.name.endswith(".1"):
            process.steps_to_crash = rng.randrange(20, 300)
        return self.cluster.run_in(process, self._run(process))

    async def _run(self, process: Process) -> None:
        member = self.member = self.cluster.member(process)
        self.writer = None
        await patiently(member.pool.start)
        while self.scenario.chaos or self.appends > 0:
            try:
                await self._recover_left(member)
                await self._write_one(member)
            except FAILURES as error:
                self.cluster.recorder.event("owner", process, type(error).__name__)
                await asyncio.sleep(self.scenario.rng.uniform(0.05, 0.5))
            if self.appends <= 0:
                return

    async def _recover_left(self, member: Member) -> None:
        """As a new owner of a log does: whatever isn't closed is, oldest first."""
        while self.left:
            history = self.left[0]
            await self.scenario.recover(member, history)
            self.left.pop(0)
            self.closed.append(history)

    async def _write_one(self, member: Member) -> None:
        scenario, rng = self.scenario, self.scenario.rng
        password = b"secret" if scenario.has("passwords") else b""
        deferred = scenario.defers and scenario.deferred_rng.random() < 0.6
        config = LedgerConfig(*scenario.triple(), password=password, deferred_sync=deferred)
        writer = await member.client.create_ledger(config)
        history = self.cluster.checker.history(writer.ledger_id)
        history.password = password
        history.writer, self.writer = writer, writer
        scenario.histories.append(history)
        self.left.append(history)
        writer.on_confirmed = lambda upto: self.cluster.checker.on_confirmed(history, upto)
        if deferred and not scenario.repairs.scrubs:  # as for other slow disks
            for host in writer.metadata.last_segment.bookies:
                if scenario.deferred_rng.random() < 0.5:  # so that more waits for it
                    self.cluster.machines[host].process.disk_ms_max = 200.0
        for _ in range(rng.randrange(2, 14)):
            if writer.error is not None or self.appends <= 0:
                break
            self.appends -= 1
            self._append(writer, history)
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.02, 0.2, 0.4]))
            if deferred and scenario.deferred_rng.random() < 0.3:
                await self._force(writer)
        if deferred:
            while writer.error is None and writer.last_confirmed < writer.next_entry - 1:
                await self._force(writer)
                await asyncio.sleep(0.02)
        if rng.random() < 0.6 and writer.error is None:
            await self._close(writer, history)

    async def _force(self, writer: AsyncLedgerWriter) -> None:
        """Deferred adds: only what this answers was promised to us (``Judge.on_confirmed``)."""
        written = writer.last_written
        if self.scenario.chaos and self.scenario.deferred_rng.random() < 0.3:
            await self._restart_a_member(writer)
        durable = await writer.force()
        self.cluster.recorder.count("state: forced", durable > -1)
        self.cluster.checker.check(
            durable >= written, f"force: ledger {writer.ledger_id}: up to {durable}, not {written}"
        )

    async def _restart_a_member(self, writer: AsyncLedgerWriter) -> None:
        """It comes back without what it had only in memory, and is asked to vouch for it."""
        dice, machines = self.scenario.deferred_rng, self.cluster.machines
        machine = machines[dice.choice(writer.metadata.last_segment.bookies)]
        if not machine.is_up or not machine.wants_to_run:
            return
        self.cluster.recorder.count("fault: bookie killed before a force")
        machine.stop(power=dice.random() < 0.5)
        for _ in range(20):
            if not machine.process.alive and machine.wants_to_run and machine.refusal is None:
                machine.start()
            await asyncio.sleep(0.05)
            if machine.is_up:
                return

    def _append(self, writer: AsyncLedgerWriter, history: LedgerHistory) -> None:
        rng = self.scenario.rng
        count = rng.choice([1, 1, 2, 4])
        first = writer.next_entry
        heads = [b"h%03d" % (first + i) for i in range(count)]
        size = rng.choice([0, 8, 8, 120, 700])
        bodies = [b"%d.%d." % (history.ledger_id, first + i) + b"x" * size for i in range(count)]
        # Before the append: its sends are judged while it runs.
        history.payloads += [head + body for head, body in zip(heads, bodies, strict=True)]
        try:
            writer.append(heads, bodies)
        except LedgerError:
            del history.payloads[first:]

    async def _close(self, writer: AsyncLedgerWriter, history: LedgerHistory) -> None:
        for _ in range(100):  # most owners let their entries be confirmed first
            if writer.error is not None or writer.last_confirmed == writer.next_entry - 1:
                break
            await asyncio.sleep(0.02)
        metadata = await writer.close()
        self.cluster.checker.on_end(history, metadata.last_entry)
        self.left.remove(history)
        self.closed.append(history)
