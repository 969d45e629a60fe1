"""Checks of the processes of one ``magnetar standalone --processes N``. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.doctor.findings import Finding, Severity

STORAGE_PROCESS: Final = "storage"
ENDS_MAX: Final = 20
"""Ends of a process that are remembered one by one."""
RESTARTED_MS: Final = 600_000
"""Ends are told for so long."""
_STARTING_MAX_MS: Final = 60_000
"""A first start of a large store may take a while."""
_ENDS_MANY: Final = 3
"""So many within ``RESTARTED_MS`` are no chance."""
_READY: Final = "ready"
_STAYS_DOWN: Final = "stopped"
_STARTING: Final = "starting"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process, as the command that started it sees it.

    Attributes:
        state: "ready", "starting", "restarting" (dead, until it is started again), "stopped", ...
        since_ms: milliseconds since 1970.
        how_ended: its last end, as "killed by SIGKILL"; "": it has never ended.
        ends: since the command's start.
        ends_ms: the last ``ENDS_MAX`` of them.
        broker_id: of a broker.
    """

    name: str
    state: str
    since_ms: int
    how_ended: str = ""
    ends: int = 0
    ends_ms: tuple[int, ...] = ()
    broker_id: str = ""


@dataclass(frozen=True, slots=True)
class ProcessesFacts:
    """
    Attributes:
        brokers: ids of those that have a session; None: not known.
    """

    now_ms: int
    processes: Sequence[ProcessFacts]
    brokers: Collection[str] | None = None


def check_processes(facts: ProcessesFacts) -> Iterator[Finding]:
    for each in facts.processes:
        recent = [at for at in each.ends_ms if facts.now_ms - at < RESTARTED_MS]
        if each.ends and each.state != _READY:
            yield _down(each)
        elif each.state != _READY:
            if facts.now_ms - each.since_ms >= _STARTING_MAX_MS:
                yield _hangs_at_start(each)
        elif facts.brokers is not None and _is_absent(each, facts.brokers):
            yield Finding(
                "process-down",
                Severity.WARNING,
                each.name,
                f"{each.name}: the process is there, but its session is lost: it is paused, or"
                " hangs. If it stays so, kill it: it is started again."
                " Other brokers serve its topics",
            )
        elif recent:
            yield _restarted(each, recent)


def _is_absent(process: ProcessFacts, brokers: Collection[str]) -> bool:
    return process.broker_id not in ("", *brokers)


def _down(process: ProcessFacts) -> Finding:
    name, is_storage = process.name, process.name == STORAGE_PROCESS
    if process.state == _STAYS_DOWN:
        next_ = "It isn't started again: the log says why, and the command must be started anew"
    elif process.state == _STARTING:
        next_ = "It is starting"
    else:
        next_ = "It is started again within 10 s"
    if is_storage:
        harm = "Nothing is stored, and no topic can be looked up, until it is back: clients wait"
    else:
        harm = "Other brokers serve its topics"
    return Finding(
        "process-down",
        Severity.CRITICAL if is_storage or process.state == _STAYS_DOWN else Severity.WARNING,
        name,
        f"{name}: the process isn't there: {process.how_ended}. {next_}. {harm}",
        since_ms=process.ends_ms[-1] if process.ends_ms else process.since_ms,
    )


def _hangs_at_start(process: ProcessFacts) -> Finding:
    return Finding(
        "process-down",
        Severity.WARNING,
        process.name,
        f"{process.name}: the process has been starting for over a minute. The log says what it"
        " waits for. If it says nothing, the process is paused, or hangs: kill it, and it is"
        " started again. Other brokers serve its topics",
        since_ms=process.since_ms,
    )


def _restarted(process: ProcessFacts, recent: Sequence[int]) -> Finding:
    count = len(recent)
    times = "once" if count == 1 else f"{count} times"
    return Finding(
        "process-restarted",
        Severity.WARNING if count >= _ENDS_MANY else Severity.NOTE,
        process.name,
        f"{process.name}: the process serves, but ended {times} within"
        f" {RESTARTED_MS // 60_000} minutes, the last time {process.how_ended}. The log says more",
        since_ms=recent[-1],
    )
