"""How a striped ledger (E > Qw) is read: runs of entries that one bookie holds in full. Pure.

A bookie of a striped ensemble holds at most Qw entries in a row, so one request can't bring more.
Several bookies are asked at the same time instead, each for its next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookkeeper.client import quorum


@dataclass(slots=True)
class Run:
    """Entries [first, end), all of them held by the bookie at ``slot``."""

    slot: int
    first: int
    end: int


def held_end(slot: int, first: int, end: int, ensemble_size: int, write_quorum: int) -> int:
    """End of the entries from ``first`` on, up to ``end``, that the slot holds without a gap."""
    while first < end and quorum.has_entry(first, slot, ensemble_size, write_quorum):
        first += 1
    return first


def plan_runs(
    first: int,
    end: int,
    quorums: tuple[int, int],
    order: Callable[[Sequence[int]], Sequence[int]],
    *,
    runs_max: int,
    shift: int = 0,
) -> list[Run]:
    """Runs that follow each other from ``first`` on; at most ``runs_max``, not beyond ``end``.

    Args:
        quorums: E and Qw.
        order: puts the slots of an entry in order of preference; the first one gets the run.
        shift: makes the first run this much shorter (modulo Qw), so that readers of different
            ledgers don't all ask the same bookies of an ensemble whose Qw divides E.
    """
    ensemble_size, write_quorum = quorums
    runs: list[Run] = []
    while first < end and len(runs) < runs_max:
        # The last slot of the write set holds the longest run, so it goes first into the order.
        slots = quorum.write_set(first, ensemble_size, write_quorum)[::-1]
        if shift:
            turn = shift % write_quorum
            slots = slots[turn:] + slots[:turn]
            shift = 0
        slot = order(slots)[0]
        run_end = held_end(slot, first, end, ensemble_size, write_quorum)
        runs.append(Run(slot, first, run_end))
        first = run_end
    return runs
