"""The rows of the table of a cluster's processes. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.broker.local_cluster.member_process import Member, MemberState
from magnetar.broker.local_cluster.plan import PlannedProcess

COLUMNS: Final = ("process", "pid", "address", "state", "health", "memory", "CPU", "restarts")
_MIB: Final = 1024 * 1024
_ORDER: Final = (
    *(MemberState.READY, MemberState.STARTING, MemberState.RESTARTING),
    *(MemberState.STOPPING, MemberState.STOPPED, MemberState.WAITING),
)


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """The last look at a process from outside.

    Attributes:
        health: a word or two; "": nothing is known yet.
        resident_bytes, cpu_share: None: there is no process. The share is of one core.
    """

    health: str = ""
    resident_bytes: int | None = None
    cpu_share: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessRow:
    state: MemberState
    cells: tuple[str, ...]  # as COLUMNS


def row(process: PlannedProcess, member: Member, stats: ProcessStats) -> ProcessRow:
    alive = member.pid != 0
    memory = stats.resident_bytes if alive else None
    cpu = stats.cpu_share if alive else None
    return ProcessRow(
        member.state,
        (
            process.name,
            str(member.pid) if alive else "-",
            process.address,
            str(member.state),
            (stats.health if member.state is MemberState.READY else "") or "-",
            "-" if memory is None else f"{memory / _MIB:.0f} MiB",
            "-" if cpu is None else f"{cpu:.0%}",
            str(member.restarts),
        ),
    )


def summary(rows: Iterable[ProcessRow]) -> str:
    """As "8 ready, 1 restarting"."""
    counts = Counter(each.state for each in rows)
    return ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts[state])


def text_table(rows: Iterable[ProcessRow]) -> Iterator[str]:
    """Lines with aligned columns, for outputs that aren't a terminal."""
    lines = [COLUMNS, *(each.cells for each in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
