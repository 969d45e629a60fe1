"""Which ledgers are to be copied, and which copies are old enough to be the only ones. Pure.

Only ledgers before the current one are ever copied, and never the last of the list: it may be
written, and what proves that later ids are greater stays where everybody looks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from managed_ledger.ledger_list import LedgerInfo
from managed_ledger.offload.config import OffloadConfig
from managed_ledger.offload.context import CopyState
from managed_ledger.position import Position

__all__ = ["is_offloaded", "ledgers_before", "ledgers_to_copy", "ledgers_to_release"]


def is_offloaded(ledger: LedgerInfo) -> bool:
    """Whether there is a complete copy."""
    return ledger.offload is not None and ledger.offload.is_complete


def ledgers_to_copy(
    ledgers: Sequence[LedgerInfo], written: int, config: OffloadConfig, now_ms: int
) -> list[int]:
    """Ids by the thresholds of size and age, oldest first.

    Args:
        ledgers: the stored list.
        written: the ledger that is written; it and later ones are left alone.
        now_ms: wall clock; a close in its future means "just now".
    """
    if not config.is_automatic:
        return []
    chosen: list[int] = []
    size = 0
    for ledger in reversed(list(_closed(ledgers, written))):
        size += ledger.size
        if is_offloaded(ledger):
            continue
        too_much = 0 <= config.threshold_bytes < size
        age_ms = max(0, now_ms - ledger.closed_ms)
        too_old = 0 <= config.threshold_s * 1000 <= age_ms
        if too_much or too_old:
            chosen.append(ledger.ledger_id)
    return chosen[::-1]


def ledgers_before(
    ledgers: Sequence[LedgerInfo], written: int, position: Position
) -> tuple[list[int], int]:
    """Ids of the ledgers before that of the position that have no copy yet, oldest first; and
    the first ledger that an offload up to there leaves alone.
    """
    chosen: list[int] = []
    for ledger in _closed(ledgers, written):
        if ledger.ledger_id >= position[0]:
            return chosen, ledger.ledger_id
        if not is_offloaded(ledger):
            chosen.append(ledger.ledger_id)
    return chosen, min(written, ledgers[-1].ledger_id)


def ledgers_to_release(
    ledgers: Sequence[LedgerInfo], config: OffloadConfig, now_ms: int
) -> list[int]:
    """Ids of the ledgers that bookies have kept beside a complete copy for long enough."""
    if config.deletion_lag_ms < 0:
        return []
    return [
        ledger.ledger_id
        for ledger in ledgers
        if ledger.offload is not None
        and ledger.offload.state is CopyState.COMPLETE
        # A clock that went back makes it younger: it stays longer.
        and now_ms - ledger.offload.completed_ms >= config.deletion_lag_ms
    ]


def _closed(ledgers: Sequence[LedgerInfo], written: int) -> Iterator[LedgerInfo]:
    """The ledgers that may have a copy."""
    for ledger in ledgers[:-1]:
        if ledger.ledger_id < written and ledger.closed_ms and ledger.entries:
            yield ledger
