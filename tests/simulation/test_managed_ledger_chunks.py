"""The log's worlds with lists in many tiny chunks, and with little that may be doomed at once."""

from __future__ import annotations

from typing import Any

import pytest

from managed_ledger import ending, ledger_rows, trim_path
from tests.simulation import test_managed_ledger, test_managed_ledger_offload
from tests.simulation.simulator import run_simulation, seeds
from tests.simulation.test_managed_ledger_takeover import takeover_of


def tiny_chunks(change: Any) -> None:
    """Args:
    change: of an attribute: ``monkeypatch.setattr`` fits.
    """
    change(ledger_rows, "TAIL_ROWS_MAX", 2)
    change(ledger_rows, "CHUNK_ROWS", 2)
    change(trim_path, "DOOMED_MAX", 3)
    change(ending, "DOOMED_MAX", 3)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_chunks(monkeypatch.setattr)


@pytest.mark.parametrize("seed", seeds(40))
def test_the_log(seed: int) -> None:
    run_simulation(seed, lambda each: test_managed_ledger.Scenario(each).run())


@pytest.mark.parametrize("seed", seeds(20))
def test_two_writers_race(seed: int) -> None:
    run_simulation(seed, test_managed_ledger.race)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_takeover(seed: int) -> None:
    run_simulation(seed, lambda each: takeover_of(each).run())


@pytest.mark.parametrize("seed", seeds(15))
def test_copies_come_and_go(seed: int) -> None:
    run_simulation(seed, test_managed_ledger_offload.come_and_go)
