"""What may be read of a log at one moment: for readers that go to the bookies themselves.

Taken without a pause, so all of it is of the same moment. What such a reader needs beside it, the
metadata of the ledgers, is read afterwards: then they name the bookies of every entry up to
``last_confirmed``, as a writer stores a change of bookies before it confirms what they hold.
Meanwhile ledgers may be trimmed; ``without_trimmed`` leaves out what is gone by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from managed_ledger.ledger_rows import LedgerInfo
    from managed_ledger.managed_ledger import ManagedLedger
    from managed_ledger.offload.context import OffloadContext

__all__ = ["LogExtent", "ReadableLedger", "extent_of"]


@dataclass(frozen=True, slots=True)
class ReadableLedger:
    """One listed ledger.

    Attributes:
        entries: confirmed ones.
        size: their bytes, heads and bodies; -1: its close is being recorded, only its own metadata
            say by now.
        closed_ms: wall clock; 0: it may still be written.
        offload: its copy, complete or not.
    """

    ledger_id: int
    entries: int
    size: int
    closed_ms: int = 0
    offload: OffloadContext | None = None

    @property
    def copy(self) -> OffloadContext | None:
        """Its copy, if that is complete."""
        return self.offload if self.offload is not None and self.offload.is_complete else None

    @property
    def is_in_bookies(self) -> bool:
        """Whether they may be asked for it."""
        return self.offload is None or not self.offload.is_only


@dataclass(frozen=True, slots=True)
class LogExtent:
    """Invariant: ids ascend; no ledger is above ``last_confirmed``, which may be in none of them.

    Attributes:
        first: the first existing entry; there is none: the next to be written.
        last_confirmed: see `LedgerList.last_confirmed`.
        terminated: there will never be another entry.
    """

    first: Position
    last_confirmed: Position
    terminated: bool
    ledgers: tuple[ReadableLedger, ...]

    def without_trimmed(self, now: LogExtent) -> LogExtent:
        """The same moment, without what is gone by a later one; copies are those of the later one.

        Args:
            now: of the same log, with ledgers from the same id on.
        """
        left = {x.ledger_id: x.offload for x in now.ledgers}
        ledger_id, entry_id = self.last_confirmed
        return replace(
            self,
            # All of it may be gone, and more written since.
            first=min(now.first, (ledger_id, entry_id + 1)),
            ledgers=tuple(
                replace(x, offload=left[x.ledger_id]) for x in self.ledgers if x.ledger_id in left
            ),
        )


def extent_of(log: ManagedLedger, from_ledger: int = EARLIEST[0]) -> LogExtent:
    """The log as it is now; what it costs grows with the ledgers from ``from_ledger`` on only.

    Args:
        from_ledger: ledgers below aren't listed; ``first`` may be in one.
    """
    last_confirmed = log.last_confirmed
    ledgers = []
    for x in log.lists.info.ledgers.from_id(from_ledger):
        if x.ledger_id > last_confirmed[0]:
            break
        # None: the stored list is a step ahead of the log's, and the ledger about to go.
        if (entries := log.ledger_entries(x.ledger_id)) is not None:
            size = _size(log, x, entries)
            ledgers.append(ReadableLedger(x.ledger_id, entries, size, x.closed_ms, x.offload))
    return LogExtent(
        log.first_position(), last_confirmed, log.terminated is not None, tuple(ledgers)
    )


def _size(log: ManagedLedger, ledger: LedgerInfo, entries: int) -> int:
    if ledger.closed_ms:
        return ledger.size
    if not entries:
        return 0
    writer = None if log.appends is None else log.appends.writers.get(ledger.ledger_id)
    return -1 if writer is None else writer.confirmed_length
