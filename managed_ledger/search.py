"""The last entry that satisfies a monotone predicate, by halves: for resets and expiry by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

Predicate: TypeAlias = Callable[[bytes, Buffer], bool]
"""Of an entry's head and body."""


async def find_newest(
    log: ManagedLedger, predicate: Predicate, after: Position, upto: Position
) -> Position | None:
    """See `ManagedLedger.find_newest`."""
    ledgers = log.ledgers
    found: Position | None = None
    upto = min(upto, ledgers.last_confirmed)
    count = ledgers.entries_between(after, upto)
    while count > 0:
        half = (count + 1) // 2
        position = ledgers.position_after(after, half)
        if position > upto:
            break
        if await _test(log, position, predicate):
            found = after = position
        elif half == 1:
            break
        else:
            upto = ledgers.previous_position(position)
        count = ledgers.entries_between(after, upto)
    return found


async def _test(log: ManagedLedger, position: Position, predicate: Predicate) -> bool:
    chunk = None if log.log_cache is None else log.log_cache.find(*position)
    if chunk is not None:
        batch = chunk.slice(position[1], 1, 1)
    else:
        try:
            batch = await log.read_path().read_entry(position)
        except LedgerError:
            if log.ledgers.is_valid(position):
                raise
            return True  # trimmed meanwhile: what follows is later
    return predicate(batch.heads[0], batch.bodies[0])
