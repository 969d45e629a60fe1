"""Seeds of the whole cluster (``cluster/scenario.py``) in CI, and that they aren't empty."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.nightly import NIGHTLY
from tests.simulation.simulator import Outcome, seeds
from tests.simulation.worlds import (
    BOOKKEEPER,
    CLUSTER,
    DECAY,
    PROTOCOL,
    RESTORED,
    RETURNS,
    SURVIVORS,
    WORLDS,
    ZONES,
    check,
    check_seed,
    run_seed,
)

#: What a hundred seeds must have met, at least ten times each.
REACHED = (
    "fault: bit flipped",
    "fault: bookie killed",
    "fault: disk full",
    "fault: disk lost",
    "fault: journal lost",
    "fault: message lost",
    "fault: metadata answer lost",
    "fault: partition",
    "fault: power cut",
    "fault: session lost",
    "state: IN_RECOVERY to CLOSED",
    "state: OPEN to CLOSED",
    "state: a bookie collected a ledger",
    "state: a bookie ended by a disk error",
    "state: a recovery's segments",
    "state: concurrent recoveries",
    "state: ensemble change",
    "state: ensemble change in place",
    "state: owner crashed",
    "state: recovered above what was acknowledged",
    "state: started in limbo",
    "answer: read UNKNOWN_LEDGER_STATE",
    "answer: force UNKNOWN_LEDGER_STATE",
    "state: forced",
)


@cache
def outcome(seed: int) -> Outcome:
    """Of a run that several tests look at."""
    return run_seed(CLUSTER, seed)


@pytest.mark.parametrize("seed", seeds(100))
def test_cluster(seed: int) -> None:
    check(CLUSTER, outcome(seed))


@pytest.mark.parametrize("seed", seeds(20))
def test_cluster_in_bookkeepers_layout(seed: int) -> None:
    check_seed(BOOKKEEPER, seed)


@pytest.mark.parametrize("world", [ZONES, RETURNS, DECAY, SURVIVORS])
def test_worlds_of_one_kind_of_trouble(world: str) -> None:
    for seed in range(3):
        check_seed(world, seed)


def test_the_seeds_meet_what_they_are_for() -> None:
    met: Counter[str] = Counter()
    for seed in range(100):
        met += outcome(seed).counters
    rare = {what: met[what] for what in REACHED if met[what] < 10}
    assert not rare


def test_a_seed_is_the_same_run_every_time() -> None:
    """Twice in this process, and twice in others that hash texts or place objects in other ways."""
    wanted = [
        (world, seed)
        for world in (PROTOCOL, CLUSTER, BOOKKEEPER, RESTORED)
        for seed in range(40, 52 if NIGHTLY else 42)
    ]
    here = [[run_seed(*each).digest for each in wanted] for _ in range(2)]
    code = (
        "from tests.simulation.worlds import run_seed\n"
        f"for _ in range(2): print(*(run_seed(*each).digest for each in {wanted!r}))"
    )
    found = [
        [line.split() for line in _said_by(code, hash_seed, allocator)]
        for hash_seed, allocator in (("1", "pymalloc"), ("2", "malloc"))
    ]
    assert [here, *found] == [here] * 3
    assert here[0] == here[1]
    assert len(set(here[0])) == len(wanted)


def _said_by(code: str, hash_seed: str, allocator: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONMALLOC": allocator},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


def test_a_violation_names_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = WORLDS[PROTOCOL]

    def violated(seed: int, log: object) -> object:
        outcome = run(seed, None)
        outcome.violations.append("5: as a test")
        return outcome

    monkeypatch.setitem(WORLDS, PROTOCOL, violated)
    with pytest.raises(AssertionError, match=r"(?s)--world protocol --seed 3\n.*5: as a test"):
        check_seed(PROTOCOL, 3)
