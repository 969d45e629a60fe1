"""Two forces of one ledger; a bookie's answer to the first comes when the second is under way."""

import asyncio

import pytest

from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from tests.simulation.cluster.clients import LinkedBookie
from tests.simulation.cluster.nodes import Process
from tests.simulation.cluster.world import Cluster
from tests.simulation.simulator import Simulator

ENTRIES = 5  # before each force
ACKED_S = 0.1  # all three bookies have acknowledged by then
BOUND_S = 60
SLOW_MS = 400.0  # a link waits 1 s for an answer


class LateForceScenario:
    """The second force is soon answered by slot 0 only: the disks of the others are slow."""

    def __init__(self, simulator: Simulator) -> None:
        self.cluster = Cluster(simulator, 3)
        self._bookies: list[str] = []
        self._is_second = False
        self._late = asyncio.Event()  # slot 2's answer to the first force goes to the writer

    async def run(self) -> None:
        machines = self.cluster.machines.values()
        await asyncio.gather(*(machine.start() for machine in machines))
        process = self.cluster.process("w")
        with pytest.MonkeyPatch.context() as patch:
            self._hold_back(patch)
            await self.cluster.run_in(process, self._write(process))

    def _hold_back(self, patch: pytest.MonkeyPatch) -> None:
        send = LinkedBookie.force

        async def force(
            bookie: LinkedBookie, ledger_id: int, first: int, *, master_key: bytes
        ) -> int:
            is_held = bookie.bookie_id == self._bookies[2] and not self._is_second
            code = await send(bookie, ledger_id, first, master_key=master_key)
            if is_held:
                await self._late.wait()
                self.cluster.recorder.count("state: late answer to a force")
            return code

        patch.setattr(LinkedBookie, "force", force)

    async def _write(self, process: Process) -> None:
        member = self.cluster.member(process)
        await member.pool.start()
        config = LedgerConfig(3, 3, 2, deferred_sync=True)
        writer = await member.client.create_ledger(config)
        history = self.cluster.checker.history(writer.ledger_id)
        history.writer = writer
        writer.on_confirmed = lambda upto: self.cluster.checker.on_confirmed(history, upto)
        assert history.metadata is not None
        self._bookies += history.metadata.last_segment.bookies
        await self._append(writer, history.payloads)
        await asyncio.wait_for(writer.force(), BOUND_S)
        for host in self._bookies[1:]:
            self.cluster.machines[host].process.disk_ms_max = SLOW_MS
        await self._append(writer, history.payloads)
        self._is_second = True
        second = asyncio.create_task(writer.force())
        await asyncio.sleep(ACKED_S)  # slot 0 has answered
        self._late.set()
        durable = await asyncio.wait_for(second, BOUND_S)
        self.cluster.checker.check(durable == 2 * ENTRIES - 1, f"force: up to {durable}")

    async def _append(self, writer: AsyncLedgerWriter, payloads: list[bytes]) -> None:
        for number in range(len(payloads), len(payloads) + ENTRIES):
            payloads.append(b"h%03d" % number + b"x" * 100)
            writer.append([b"h%03d" % number], [b"x" * 100])
        await asyncio.sleep(ACKED_S)
