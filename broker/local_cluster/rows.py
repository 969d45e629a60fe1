"""What the table of a cluster's processes shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from broker.local_cluster.member import Member, State
from broker.local_cluster.plan import PlannedProcess

__all__ = ["COLUMNS", "Facts", "Row", "row", "summary", "text_table"]

COLUMNS: Final = ("process", "pid", "address", "state", "health", "memory", "CPU", "restarts")
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen of a process from outside, last time.

    Attributes:
        health: a word or two; "": nothing is known yet.
        resident_bytes, cpu_share: None: there is no process. The share is of one core.
    """

    health: str = ""
    resident_bytes: int | None = None
    cpu_share: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    state: State
    cells: tuple[str, ...]  # as COLUMNS


def row(process: PlannedProcess, member: Member, facts: Facts) -> Row:
    alive = member.pid != 0
    memory = facts.resident_bytes if alive else None
    cpu = facts.cpu_share if alive else None
    return Row(
        member.state,
        (
            process.name,
            str(member.pid) if alive else "-",
            process.address,
            str(member.state),
            (facts.health if member.state is State.READY else "") or "-",
            "-" if memory is None else f"{memory / _MIB:.0f} MiB",
            "-" if cpu is None else f"{cpu:.0%}",
            str(member.restarts),
        ),
    )


def summary(rows: Iterable[Row]) -> str:
    """As "8 ready, 1 restarting"."""
    counts: dict[State, int] = {}
    for each in rows:
        counts[each.state] = counts.get(each.state, 0) + 1
    order = (State.READY, State.STARTING, State.RESTARTING, State.STOPPING, State.STOPPED)
    return ", ".join(
        f"{counts[state]} {state}" for state in (*order, State.WAITING) if state in counts
    )


def text_table(rows: Iterable[Row]) -> Iterator[str]:
    """Lines with aligned columns, for outputs that aren't a terminal."""
    lines = [COLUMNS, *(each.cells for each in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    for line in lines:
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
