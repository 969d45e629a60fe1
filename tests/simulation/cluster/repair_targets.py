"""A closed ledger loses a bookie, and a worker copies its share to the only other one."""

import asyncio

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from tests.simulation.cluster.checker import LedgerHistory, owners
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.nodes import Process
from tests.simulation.cluster.repairs import Repairs
from tests.simulation.cluster.world import Cluster
from tests.simulation.simulator import Simulator

BOUND_S = 60
SLOW_MS = 20_000.0  # the worker waits 1 s for an answer
SLOW_S = 6.0  # until the worker has asked a second time


class RepairTargetScenario:
    """``write`` comes first; ``target`` isn't in the ledger's ensemble, ``lost`` is."""

    def __init__(self, simulator: Simulator, entries: int) -> None:
        self.cluster = Cluster(simulator, 4)
        self.repairs = Repairs(self.cluster, scrubs=False)
        self._entries = entries
        self.history: LedgerHistory
        self.lost: BookieMachine
        self.target: BookieMachine

    async def write(self) -> None:
        """Start the bookies, write the ledger and close it."""
        machines = self.cluster.machines
        await asyncio.gather(*(machine.start() for machine in machines.values()))
        process = self.cluster.process("w")
        self.history = await self.cluster.run_in(process, self._write(process))
        assert self.history.metadata is not None
        members = self.history.metadata.last_segment.bookies
        self.lost = machines[members[0]]
        (self.target,) = (m for host, m in machines.items() if host not in members)

    async def _write(self, process: Process) -> LedgerHistory:
        member = self.cluster.member(process)
        await member.pool.start()
        writer = await member.client.create_ledger(LedgerConfig(3, 3, 2))
        history = self.cluster.checker.history(writer.ledger_id)
        history.writer = writer
        writer.on_confirmed = lambda upto: self.cluster.checker.on_confirmed(history, upto)
        for number in range(self._entries):
            history.payloads.append(b"h%03d" % number + b"x" * 100)
            writer.append([b"h%03d" % number], [b"x" * 100])
            await asyncio.sleep(0.002)
        while writer.last_confirmed < self._entries - 1:
            await writer.next_change()
        await writer.close()
        return history

    async def repaired(self) -> None:
        """Until no marker is left and every owner has all of its copies."""
        while True:
            if self._is_repaired():
                return
            await asyncio.sleep(0.5)

    def _is_repaired(self) -> bool:
        metadata = self.history.metadata
        assert metadata is not None
        if self.lost.host in metadata.last_segment.bookies:
            return False
        if any("/urL" in path for path in self.cluster.server.nodes):
            return False
        return all(
            (self.cluster.machines[host].read(metadata.ledger_id, entry_id) or b"")[
                PACKET_HEADER_BYTES:
            ]
            == payload
            for entry_id, payload in enumerate(self.history.payloads)
            for host in owners(metadata, entry_id)
        )


class SlowTargetScenario(RepairTargetScenario):
    """The target's disk is slow: the worker gives up waiting for the copies, and asks again.

    The copies of the first attempt still wait for the target's journal, all of them: the worker
    sends two batches of three entries before it waits for an answer.
    """

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(simulator, entries=6)

    async def run(self) -> None:
        await self.write()
        self._count_listings()
        self.target.process.disk_ms_max = SLOW_MS
        self.lost.stop(power=True)
        self.repairs.start_unit("a0")
        await asyncio.sleep(SLOW_S)
        self.target.process.disk_ms_max = 2.0
        await asyncio.wait_for(self.repaired(), BOUND_S)

    def _count_listings(self) -> None:
        target, last = self.target, len(self.history.payloads) - 1
        assert target.bookie is not None
        ask = target.bookie.list_entries

        async def list_entries(ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
            if target.read(ledger_id, last) and not target.has_durably(ledger_id, last):
                self.cluster.recorder.count("state: listed while copies wait for the journal")
            return await ask(ledger_id, creator=creator)

        target.bookie.list_entries = list_entries  # type: ignore[method-assign]
