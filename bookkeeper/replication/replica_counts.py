"""How many intact places an entry has: from what bookies say they hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magnetar.bookkeeper.replication.fragments import Fragment, Run, subtract_runs


@dataclass(slots=True)
class ReplicaCounts:
    """Entries of a fragment (or ledger) that have too few copies; each kind holds the next."""

    under_write_quorum: int = 0
    under_ack_quorum: int = 0
    no_replica: int = 0

    def add(self, other: ReplicaCounts) -> None:
        self.under_write_quorum += other.under_write_quorum
        self.under_ack_quorum += other.under_ack_quorum
        self.no_replica += other.no_replica


def missing_runs(fragment: Fragment, slot: int, held: Sequence[Run]) -> Iterator[Run]:
    """Entries that the bookie at ``slot`` owns and doesn't hold.

    Takes a step for each run it owns, found or not: one every E entries in a striped ledger.

    Args:
        held: what the bookie has of the ledger, ascending.
    """
    return subtract_runs(fragment.runs_of(slot), held)


def count_replicas(
    missing: Sequence[Sequence[Run]], write_quorum: int, ack_quorum: int
) -> ReplicaCounts:
    """Of one fragment.

    Args:
        missing: by slot, the runs of entries that it owns and doesn't hold.
    """
    edges = sorted(
        edge for runs in missing for first, end in runs for edge in ((first, 1), (end, -1))
    )
    counts = ReplicaCounts()
    absent = at = 0
    for entry_id, step in edges:
        entries = entry_id - at
        if absent:
            counts.under_write_quorum += entries
            if write_quorum - absent < ack_quorum:
                counts.under_ack_quorum += entries
            if absent >= write_quorum:
                counts.no_replica += entries
        absent += step
        at = entry_id
    return counts
