"""A repair's target loses what it was given before the metadata names it (storage.md 10.1, 29).

The whole cluster, with its judge. A closed ledger lost a bookie, a worker copies its share to the
only other one. When everything was acknowledged the target loses disk or journal, comes back and
has the time to look at all ledgers: none of them names it. Only then the worker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookkeeper.client.config import LedgerConfig
from bookkeeper.client.ledger_store import ledger_path
from bookkeeper.ledger_metadata import LedgerMetadata
from bookkeeper.packet import PACKET_HEADER_BYTES
from tests.simulation.cluster.judge import LedgerHistory, owners
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.metadata_model import ClusterStore
from tests.simulation.cluster.nodes import ClusterLoop
from tests.simulation.cluster.repairs import Repairs
from tests.simulation.cluster.threads import threads_as_events
from tests.simulation.cluster.world import Cluster
from tests.simulation.simulator import Simulator, simulate

ENTRIES = 40
TIME_S = 6.0  # until a bookie that came back has looked at all ledgers, and looked again


class Scenario:
    """``late``: the worker has decided, and its write is under way to the metadata store."""

    def __init__(self, simulator: Simulator, kind: str, *, late: bool) -> None:
        self.cluster = Cluster(simulator, 4)
        self.repairs = Repairs(self.cluster, scrubs=False)
        self.kind, self.late = kind, late
        self.copied = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self) -> LedgerHistory:
        cluster = self.cluster
        await asyncio.gather(*(machine.start() for machine in cluster.machines.values()))
        process = cluster.process("w")
        history: LedgerHistory = await cluster.run_in(process, self._write(process))
        assert history.metadata is not None
        members = history.metadata.last_segment.bookies
        lost = cluster.machines[members[0]]
        (target,) = (m for host, m in cluster.machines.items() if host not in members)
        self._hold_back(history, target)
        lost.stop(power=True)
        self.repairs.start_unit("a0")
        await asyncio.wait_for(self.copied.wait(), 60)
        await self._lose(target)
        await asyncio.sleep(TIME_S)
        self.go_on.set()
        await asyncio.wait_for(self._repaired(history, lost.host), 60)
        return history

    async def _write(self, process: Any) -> LedgerHistory:
        member = self.cluster.member(process)
        await member.pool.start()
        writer = await member.client.create_ledger(LedgerConfig(3, 3, 2))
        history = self.cluster.judge.history(writer.ledger_id)
        history.writer = writer
        writer.on_confirmed = lambda upto: self.cluster.judge.on_confirmed(history, upto)
        for number in range(ENTRIES):
            history.payloads.append(b"h%03d" % number + b"x" * 100)
            writer.append([b"h%03d" % number], [b"x" * 100])
            await asyncio.sleep(0.002)
        while writer.last_confirmed < ENTRIES - 1:
            await writer.next_change()
        await writer.close()
        return history

    def _hold_back(self, history: LedgerHistory, target: BookieMachine) -> None:
        """Stop the worker once the target holds everything, before or after its last look."""
        held = target.promises.entries
        path = ledger_path(history.ledger_id)
        put, get = ClusterStore.put, ClusterStore.get
        loop = self.cluster.loop

        async def wait(store: ClusterStore) -> None:
            if store.process.host == "a0" and len(held[history.ledger_id]) == ENTRIES:
                self.copied.set()
                await self.go_on.wait()

        async def late(store: ClusterStore, where: str, *rest: Any, **options: Any) -> Any:
            if where == path:
                await wait(store)
            return await put(store, where, *rest, **options)

        async def early(store: ClusterStore, where: str) -> Any:
            if not self.copied.is_set():
                await wait(store)  # whatever it asks for next
            return await get(store, where)

        name, stand_in = ("put", late) if self.late else ("get", early)
        patch = pytest.MonkeyPatch()
        patch.setattr(ClusterStore, name, stand_in)
        loop.call_later(1000, patch.undo)
        self.undo: Callable[[], None] = patch.undo

    async def _lose(self, target: BookieMachine) -> None:
        target.stop(power=False)
        if self.kind == "disk":
            target.lose_disk()
        else:
            target.lose_journal()
        await asyncio.sleep(0.5)
        for _ in range(20):
            if target.is_up:
                return
            if not target.process.alive:
                target.accepts_data_loss |= target.refusal is not None
                target.start()
            await asyncio.sleep(0.5)
        raise AssertionError(f"{target} never came back: {target.refusal!r}")

    async def _repaired(self, history: LedgerHistory, lost: str) -> None:
        nodes = self.cluster.server.nodes
        while True:
            metadata = history.metadata
            assert metadata is not None
            is_marked = any("/urL" in path for path in nodes)
            is_replaced = lost not in metadata.last_segment.bookies
            if is_replaced and not is_marked and not self._wrong(history, metadata):
                return
            await asyncio.sleep(0.5)

    def _wrong(self, history: LedgerHistory, metadata: LedgerMetadata) -> list[tuple[str, int]]:
        machines = self.cluster.machines
        return [
            (host, entry_id)
            for entry_id, payload in enumerate(history.payloads)
            for host in owners(metadata, entry_id)
            if (machines[host].read(history.ledger_id, entry_id) or b"")[PACKET_HEADER_BYTES:]
            != payload
        ]


@pytest.mark.parametrize("kind", ["disk", "journal"])
@pytest.mark.parametrize("late", [False, True])
def test_what_a_target_lost_isn_t_taken_for_a_copy(kind: str, late: bool) -> None:
    for seed in range(5):

        async def run(simulator: Simulator) -> None:
            scenario = Scenario(simulator, kind, late=late)
            try:
                await scenario.run()
            finally:
                scenario.undo()

        with threads_as_events():
            outcome = simulate(seed, run, None, ClusterLoop)
        assert outcome.violations == [], f"seed {seed}"
        assert outcome.counters["state: started in limbo"] == 1
        # In time the worker notices; too late, the bookie knows of the repair, and fills itself.
        assert outcome.counters["state: named after it lost its copies"] == late
