"""Power fails in every kind of call of a bookie's storage: nothing acknowledged is ever lost.

And the other way round: for each sync in the code, a storage without this one sync is caught losing
something. A sync that no test misses would be a sync nobody needs.
"""

import re
from itertools import chain
from pathlib import Path

import pytest

from magnetar import bookkeeper
from magnetar.bookkeeper.bookie.journal.journal_format import journal_directory
from magnetar.bookkeeper.errors import BookkeeperError, MissingFileError
from tests.simulation.bookie_machine import Machine
from tests.simulation.simulator import seeds

ROUNDS = 4

# Sync points whose loss must be noticed, one by one, and seeds that noticed when they were last
# looked for. The search begins there: a seed is another run after each change of code.
NEEDED = {
    "journal.group": 0,
    "journal.room": 31,
    "journal.segment-header": 0,
    "journal.segment-name": 0,
    "entry-log.data": 0,
    "entry-log.name": 0,
    "index.format": 149,
    "index.flush": 0,
    "index.mark": 2,
    "index.drop": 45,
    "index.drop-log": 173,
}
# As these, of a bookie with several ledger directories.
NEEDED_BY_SEVERAL = {"entry-log.removal": 139}
# tests/unit/bookkeeper/bookie/test_cookie.py and test_bookie_lost_files.py
COOKIE = {"cookie.data", "cookie.name"}
LIMBO = {"index.limbo"}


def run(seed: int, ignored: frozenset[str] = frozenset(), directories_max: int = 1) -> set[str]:
    """Several lives of one machine; the sync points it used.

    Args:
        directories_max: of entry logs; it begins with fewer, and none is ever taken away.
    """
    machine = Machine(seed, ignored)
    for _ in range(ROUNDS):
        if directories_max > 1:
            machine.ledger_directories = machine.rng.randrange(
                machine.ledger_directories, directories_max + 1
            )
        # Mostly somewhere in the work, often in the start itself.
        calls = machine.rng.randrange(30 if machine.rng.random() < 0.3 else 400)
        machine.run_until_power_loss(calls, steps_max=400)
    machine.start()
    machine.check_promises()
    return machine.seen


@pytest.mark.parametrize("seed", seeds(40))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", seeds(20))
def test_nothing_acknowledged_is_lost_with_several_journals(seed: int) -> None:
    """Their number grows from life to life: ledgers move to other journals."""
    machine = Machine(seed)
    for _ in range(ROUNDS):
        machine.journals = machine.rng.randrange(machine.journals, 4)
        calls = machine.rng.randrange(40 if machine.rng.random() < 0.3 else 400)
        machine.run_until_power_loss(calls, steps_max=400)
    machine.start()
    machine.check_promises()


@pytest.mark.parametrize("seed", seeds(20))
def test_nothing_acknowledged_is_lost_with_several_ledger_directories(seed: int) -> None:
    """A checkpoint counts when the entry logs of all of them are durable (PR #3329)."""
    run(seed, directories_max=3)


@pytest.mark.parametrize("seed", seeds(20))
def test_nothing_is_lost_beside_ledgers_that_are_emptied(seed: int) -> None:
    """What is written to them afterwards is kept, and so are their fences and the other ledgers."""
    machine = Machine(seed)
    machine.empties = True
    for _ in range(ROUNDS):
        machine.run_until_power_loss(machine.rng.randrange(400), steps_max=400)
    machine.start()
    machine.check_promises()


def test_a_journal_that_is_gone_is_noticed() -> None:
    """One of three has lost its marked segment, or all of them, or isn't asked for any more."""
    for number in range(3):
        for everything in (False, True):
            machine = Machine(seed=number)
            machine.journals = 3
            machine.start()
            for _ in range(300):
                machine.step()
            directory = journal_directory(number)
            names = [n for n in machine.fs.list(directory) if n.endswith(".journal")]
            for name in names if everything else names[:1]:
                machine.fs.remove(f"{directory}/{name}")
            with pytest.raises(MissingFileError, match=f"{directory}/"):
                machine.start()
    machine = Machine(seed=1)
    machine.journals = 3
    machine.start()
    machine.journals = 2
    with pytest.raises(MissingFileError, match="more than 2"):
        machine.start()


def caught_by(ignored: frozenset[str], near: int, directories_max: int = 1) -> int | None:
    """A seed that notices the missing syncs, looked for from ``near`` on."""
    for seed in chain(range(near, 400), range(near)):
        try:
            run(seed, ignored, directories_max)
        except (AssertionError, BookkeeperError, FileNotFoundError, KeyError):
            return seed
    return None


@pytest.mark.parametrize("sync_point", NEEDED)
def test_every_sync_is_needed(sync_point: str) -> None:
    seed = caught_by(frozenset({sync_point}), NEEDED[sync_point])
    assert seed is not None, f"nobody misses the sync {sync_point}"


@pytest.mark.parametrize("sync_point", NEEDED_BY_SEVERAL)
def test_every_sync_of_several_directories_is_needed(sync_point: str) -> None:
    seed = caught_by(frozenset({sync_point}), NEEDED_BY_SEVERAL[sync_point], directories_max=3)
    assert seed is not None, f"nobody misses the sync {sync_point}"


def test_the_table_names_every_sync_point_of_the_code() -> None:
    root = Path(bookkeeper.__file__).parent / "bookie"
    text = "".join(path.read_text() for path in sorted(root.rglob("*.py")))
    named = set(re.findall(r'"((?:journal|entry-log|index|cookie)\.[a-z-]+)"', text))
    named.discard("cookie.json")  # a file
    assert named == {*NEEDED, *NEEDED_BY_SEVERAL, *COOKIE, *LIMBO}


def test_the_simulation_reaches_every_sync_point() -> None:
    seen: set[str] = set()
    for seed in range(100):
        seen |= run(seed)
    assert seen == {*NEEDED, *NEEDED_BY_SEVERAL}
