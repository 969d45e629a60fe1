"""Describes the readable part of a log at one moment, for readers that read from bookies.

Taken without a pause, so all of it is of the same moment. Such a reader reads the metadata of the
ledgers afterwards: so they name the bookies of every entry up to
``last_confirmed``, as a writer stores a change of bookies before it confirms what they hold.
Meanwhile ledgers may be trimmed; ``left_of`` leaves out what is gone by then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from magnetar.managed_ledger.ledger_rows import ROWS_A_TURN, LedgerInfo, PackedRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.offload.context import OffloadContext
from magnetar.managed_ledger.position import EARLIEST, Position


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
        """Tells whether a reader may read the ledger from bookies."""
        return self.offload is None or not self.offload.is_only


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """Invariant: ids ascend; no ledger is above ``last_confirmed``, which may be in none of them.

    Attributes:
        first: the first existing entry; there is none: the next to be written.
        last_confirmed: see `LedgerList.last_confirmed`.
        terminated: there will never be another entry.
        from_ledger: ledgers below aren't listed.
        packed: the older ledgers, which are closed, and some below ``from_ledger``.
        newest: those behind them.
    """

    first: Position
    last_confirmed: Position
    terminated: bool
    from_ledger: int
    packed: tuple[PackedRows, ...]
    newest: tuple[ReadableLedger, ...]

    def pieces(self) -> Iterator[Sequence[ReadableLedger]]:
        """All ledgers, in order, so many at a time as a turn of the loop can bear."""
        for segment in self.packed:
            for rows in segment.pieces(segment.slot_from(self.from_ledger)):
                yield [
                    ReadableLedger(x.ledger_id, x.entries, x.size, x.closed_ms, x.offload)
                    for x in rows
                ]
        for start in range(0, len(self.newest), ROWS_A_TURN):
            yield self.newest[start : start + ROWS_A_TURN]

    def first_left(self, log: ManagedLedger) -> Position:
        """The first of its entries that is there now; there is none: the one behind the last."""
        ledger_id, entry_id = self.last_confirmed
        # All of it may be gone, and more written since.
        return min(log.offsets.first_position(), (ledger_id, entry_id + 1))


def extent_of(log: ManagedLedger, from_ledger: int = EARLIEST[0]) -> ReadableRange:
    """The log as it is now; costs no more for a million ledgers than for some thousand.

    Args:
        from_ledger: ledgers below aren't listed; ``first`` may be in one.
    """
    last_confirmed, rows = log.last_confirmed, log.lists.info.ledgers
    newest = []
    for x in rows.tail:
        if x.ledger_id > last_confirmed[0]:
            break
        # None: the stored list is a step ahead of the log's, and the ledger about to go.
        entries = log.offsets.entries(x.ledger_id) if x.ledger_id >= from_ledger else None
        if entries is not None:
            size = _size(log, x, entries)
            newest.append(ReadableLedger(x.ledger_id, entries, size, x.closed_ms, x.offload))
    return ReadableRange(
        *(log.offsets.first_position(), last_confirmed, log.terminated is not None, from_ledger),
        *(rows.segments_from(from_ledger), tuple(newest)),
    )


def left_of(ledgers: Sequence[ReadableLedger], log: ManagedLedger) -> list[ReadableLedger]:
    """Those of an earlier moment that are listed now; copies are those of now.

    Args:
        ledgers: one of its pieces.
    """
    if not ledgers:
        return []
    first, last = ledgers[0].ledger_id, ledgers[-1].ledger_id
    rows = takewhile(lambda x: x.ledger_id <= last, log.lists.info.ledgers.from_id(first))
    offloads = {x.ledger_id: x.offload for x in rows}
    return [replace(x, offload=offloads[x.ledger_id]) for x in ledgers if x.ledger_id in offloads]


def _size(log: ManagedLedger, ledger: LedgerInfo, entries: int) -> int:
    if ledger.closed_ms:
        return ledger.size
    if not entries:
        return 0
    writer = None if log.appends is None else log.appends.writers.get(ledger.ledger_id)
    return -1 if writer is None else writer.confirmed_length
