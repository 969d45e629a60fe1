"""The log's worlds with lists in many tiny chunks, and with little that may be doomed at once.

A collector looks for leaked chunks all the time. 41: what the list's node names is there. 42: once
nobody writes any more, one round of the collector leaves the named chunks only.
"""

from typing import Any

import pytest

from magnetar.managed_ledger import closing, ledger_rows, trim_path
from magnetar.managed_ledger.factory import ROOT
from magnetar.managed_ledger.ledger_info_chunks import chunks_path
from magnetar.managed_ledger.orphan_ledgers import collect_leaked_chunks
from magnetar.metadata.errors import MetadataError
from tests.simulation import test_managed_ledger, test_managed_ledger_offload
from tests.simulation.ledger_world import SimulatedStore
from tests.simulation.managed_ledger_world import PATH, LogWorld
from tests.simulation.simulator import Node, Simulator, run_simulation, seeds
from tests.simulation.test_managed_ledger_takeover import takeover_of


def tiny_chunks(change: Any) -> None:
    """Args:
    change: of an attribute: ``monkeypatch.setattr`` fits.
    """
    change(ledger_rows, "TAIL_ROWS_MAX", 2)
    change(ledger_rows, "CHUNK_ROWS", 2)
    change(ledger_rows, "JOINED", 2)
    change(trim_path, "DOOMED_MAX", 3)
    change(closing, "DOOMED_MAX", 3)


async def takeover_beside_a_collector(simulator: Simulator) -> None:
    takeover = takeover_of(simulator)
    store = SimulatedStore(Node("collector"), takeover.world)
    collector = simulator.start(_collect(simulator, store))
    await takeover.run()
    collector.cancel()
    await collect_leaked_chunks(store, ROOT)
    _check_chunks(takeover.world)


async def _collect(simulator: Simulator, store: SimulatedStore) -> None:
    while True:
        try:
            deleted = await collect_leaked_chunks(store, ROOT)
        except MetadataError:
            continue
        if deleted:
            simulator.recorder.count("leaked chunks collected")
        await simulator.sleep_ms(20)


def _check_chunks(world: LogWorld) -> None:
    info, parent = world.stored(), chunks_path(PATH) + "/"
    named = set() if info is None else {x.name for x in info.ledgers.segments}
    stored = {x.removeprefix(parent) for x in world.registry.nodes if x.startswith(parent)}
    world.simulator.check(stored == named, f"42: chunks {stored - named} are leaked")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_chunks(monkeypatch.setattr)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_log(seed: int) -> None:
    run_simulation(seed, lambda each: test_managed_ledger.Scenario(each).run())


@pytest.mark.parametrize("seed", seeds(10))
def test_two_writers_race(seed: int) -> None:
    run_simulation(seed, test_managed_ledger.race)


@pytest.mark.parametrize("seed", seeds(10))
def test_a_takeover(seed: int) -> None:
    run_simulation(seed, takeover_beside_a_collector)


@pytest.mark.parametrize("seed", seeds(10))
def test_copies_come_and_go(seed: int) -> None:
    run_simulation(seed, test_managed_ledger_offload.come_and_go)
