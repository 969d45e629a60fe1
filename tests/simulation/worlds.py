"""The simulations that run by seed, by name."""

from collections.abc import Callable
from typing import Any, Final, TextIO, TypeAlias

from tests.simulation import test_ledger_protocol
from tests.simulation.apache_world import ApacheLoop
from tests.simulation.cluster.late_forces import LateForceScenario
from tests.simulation.cluster.nodes import ClusterLoop
from tests.simulation.cluster.repair_targets import SlowTargetScenario
from tests.simulation.cluster.restored import RestoredScenario, SurvivorsScenario
from tests.simulation.cluster.scenario import (
    BookKeeperScenario,
    ClusterScenario,
    DecayScenario,
    ReturnScenario,
    ZoneScenario,
)
from tests.simulation.cluster.threads import threads_as_events
from tests.simulation.simulator import Outcome, Simulator, simulate

RunSeed: TypeAlias = Callable[[int, TextIO | None], Outcome]


def _protocol(seed: int, log: TextIO | None) -> Outcome:
    return simulate(seed, lambda each: test_ledger_protocol.Scenario(each).run(), log)


def _apache(seed: int, log: TextIO | None) -> Outcome:
    scenario = test_ledger_protocol.ApacheScenario
    return simulate(seed, lambda each: scenario(each).run(), log, ApacheLoop)


def _of(scenario: Callable[[Simulator], Any]) -> RunSeed:
    """Of a cluster of real bookies."""

    def run(seed: int, log: TextIO | None) -> Outcome:
        with threads_as_events():
            return simulate(seed, lambda each: scenario(each).run(), log, ClusterLoop)

    return run


#: One ledger over model bookies: cheap, so that many schedules of the protocol are tried.
PROTOCOL: Final = "protocol"
#: The same over Apache's wire.
APACHE: Final = "apache"
#: Real bookies, disks, sessions, several ledgers and all who work on them.
CLUSTER: Final = "cluster"
#: The same, with metadata in the form of Apache BookKeeper's.
BOOKKEEPER: Final = "bookkeeper layout"
#: The same bookies under a metadata store that goes back to an older state.
RESTORED: Final = "restored"
#: Few kinds of trouble, so that what is rare in the other worlds happens in every second seed.
ZONES, RETURNS, DECAY, SURVIVORS = "zones", "returns", "decay", "survivors"
#: One schedule each, for what is too rare in all of those.
LATE_FORCES, SLOW_TARGET = "late forces", "slow target"

WORLDS: Final[dict[str, RunSeed]] = {
    PROTOCOL: _protocol,
    APACHE: _apache,
    CLUSTER: _of(ClusterScenario),
    BOOKKEEPER: _of(BookKeeperScenario),
    RESTORED: _of(RestoredScenario),
    ZONES: _of(ZoneScenario),
    RETURNS: _of(ReturnScenario),
    DECAY: _of(DecayScenario),
    SURVIVORS: _of(SurvivorsScenario),
    LATE_FORCES: _of(LateForceScenario),
    SLOW_TARGET: _of(SlowTargetScenario),
}


def replay_command(world: str, seed: int) -> str:
    """What to type to see just this run again."""
    return f"python -m tests.simulation.run --world {world} --seed {seed}"


def run_seed(world: str, seed: int, log: TextIO | None = None) -> Outcome:
    """One run, from its first event to its last."""
    return WORLDS[world](seed, log)


def check_seed(world: str, seed: int) -> None:
    """Run it, for tests; see `check`."""
    check(world, run_seed(world, seed))


def check(world: str, outcome: Outcome) -> None:
    """For tests.

    Raises:
        AssertionError: with violated invariants and the command that replays the run.
    """
    if outcome.violations:
        text, seed = "\n  ".join(outcome.violations[:5]), outcome.seed
        raise AssertionError(f"seed {seed}; again: {replay_command(world, seed)}\n  {text}")
