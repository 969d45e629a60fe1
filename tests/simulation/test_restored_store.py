"""Seeds of the world whose metadata store goes back (``cluster/restored.py``), and their states."""

from collections import Counter

from tests.simulation.simulator import seeds
from tests.simulation.worlds import RESTORED, check_seed, replay_command, run_seed

#: What fifteen seeds must have met, at least so often.
REACHED = {
    "answer: add ENTRY_DIFFERS": 2,
    "answer: add OTHER_CREATOR": 10,
    "fault: metadata store restored": 15,
    "fault: power cut": 20,
    "state: a bookie collected a ledger": 20,
}


def test_no_ledger_has_what_its_creator_did_not_write_and_nothing_is_replaced() -> None:
    met: Counter[str] = Counter()
    for seed in range(15):
        outcome = run_seed(RESTORED, seed)
        assert not outcome.violations, (replay_command(RESTORED, seed), outcome.violations[:3])
        met += outcome.counters
    assert {what: met[what] for what, least in REACHED.items() if met[what] < least} == {}


def test_seeds_of_the_command_line() -> None:
    """``--seed N`` replays one."""
    for seed in list(seeds())[:3]:
        check_seed(RESTORED, seed)
