"""A repair's target loses what it was given before the metadata names it.

docs/spec/storage.md, "Safety", 29.

The whole cluster, with its judge. A closed ledger lost a bookie, a worker copies its share to the
only other one. When everything was acknowledged the target loses disk or journal, comes back and
has the time to look at all ledgers: none of them names it. Only then the worker goes on.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.bookkeeper.client.ledger_store import ledger_path
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.metadata_model import ClusterStore
from tests.simulation.cluster.nodes import ClusterLoop
from tests.simulation.cluster.repair_targets import BOUND_S, RepairTargetScenario
from tests.simulation.cluster.threads import threads_as_events
from tests.simulation.simulator import Simulator, simulate
from tests.simulation.worlds import SLOW_TARGET, run_seed

ENTRIES = 40
TIME_S = 6.0  # until a bookie that came back has looked at all ledgers, and looked again


class Scenario(RepairTargetScenario):
    """``late``: the worker has decided, and its write is under way to the metadata store."""

    def __init__(self, simulator: Simulator, kind: str, *, late: bool) -> None:
        super().__init__(simulator, ENTRIES)
        self.kind, self.late = kind, late
        self.copied = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self) -> None:
        await self.write()
        self._hold_back()
        self.lost.stop(power=True)
        self.repairs.start_unit("a0")
        await asyncio.wait_for(self.copied.wait(), BOUND_S)
        await self._lose(self.target)
        await asyncio.sleep(TIME_S)
        self.go_on.set()
        await asyncio.wait_for(self.repaired(), BOUND_S)

    def _hold_back(self) -> None:
        """Stop the worker once the target holds everything, before or after its last look."""
        ledger_id, held = self.history.ledger_id, self.target.promises.entries
        path = ledger_path(ledger_id)
        put, get = ClusterStore.put, ClusterStore.get
        loop = self.cluster.loop

        async def wait(store: ClusterStore) -> None:
            if store.process.host == "a0" and len(held[ledger_id]) == ENTRIES:
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


def test_what_waits_for_the_journal_isn_t_taken_for_a_copy() -> None:
    """The bug that the world finds is ``listed_before_it_is_durable`` (``test_rotation.py``)."""
    for seed in range(5):
        outcome = run_seed(SLOW_TARGET, seed)
        assert outcome.violations == [], f"seed {seed}"
        assert outcome.counters["state: listed while copies wait for the journal"] > 0
