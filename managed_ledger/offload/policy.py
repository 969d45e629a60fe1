"""Which ledgers are to be copied, and which copies are old enough to be the only ones. Pure.

Only ledgers before the current one are ever copied, and never the last of the list: it may be
written, and what proves that later ids are greater stays where everybody looks for it. Each answer
has the oldest `AT_ONCE` at most: the caller asks again when these are done.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.offload.config import OffloadConfig
from magnetar.managed_ledger.offload.context import CopyState
from magnetar.managed_ledger.position import Position

AT_ONCE = 1000


def is_offloaded(ledger: LedgerInfo) -> bool:
    """Tells whether the ledger has a complete copy."""
    return ledger.offload is not None and ledger.offload.is_complete


def ledgers_to_copy(
    ledgers: LedgerRows, written: int, config: OffloadConfig, now_ms: int
) -> list[int]:
    """Ids by the thresholds of size and age, oldest first.

    Args:
        ledgers: the stored list.
        written: the ledger that is written; it and later ones are left alone.
        now_ms: wall clock; a close in its future means "just now".
    """
    if not config.is_automatic or not ledgers:
        return []
    end = min(written, ledgers[-1].ledger_id)
    size = ledgers.size - sum(x.size for x in ledgers.from_id(end))
    chosen: list[int] = []
    for block in ledgers.blocks():
        if not block.uncopied or not _is_due(config, size, block.oldest_closed_ms, now_ms):
            size -= block.size
            continue
        for ledger in _closed(block, end):
            if _is_due(config, size, ledger.closed_ms, now_ms) and not is_offloaded(ledger):
                chosen.append(ledger.ledger_id)
                if len(chosen) == AT_ONCE:
                    return chosen
            size -= ledger.size
    return chosen


def is_apart_due(ledger: LedgerInfo, config: OffloadConfig, now_ms: int) -> bool:
    """Whether a ledger that isn't the log's is to be copied: the thresholds hold for it alone."""
    is_due = config.is_automatic and _is_due(config, ledger.size, ledger.closed_ms, now_ms)
    return is_due and bool(ledger.entries) and not is_offloaded(ledger)


def _is_due(config: OffloadConfig, size: int, closed_ms: int, now_ms: int) -> bool:
    """Args:
    size: of the ledger and all later ones that are closed.
    """
    too_much = 0 <= config.threshold_bytes < size
    age_ms = max(0, now_ms - closed_ms)
    return too_much or 0 <= config.threshold_s * 1000 <= age_ms


def ledgers_before(ledgers: LedgerRows, written: int, position: Position) -> tuple[list[int], int]:
    """Ids of the ledgers before that of the position that have no copy yet, oldest first; and
    the first ledger that an offload up to there leaves alone.
    """
    end = min(written, ledgers[-1].ledger_id)
    first_kept = next((x.ledger_id for x in _closed(ledgers.from_id(position[0]), end)), end)
    chosen: list[int] = []
    for block in ledgers.blocks():
        if block.first_id >= first_kept:
            break
        if block.uncopied:
            before = _closed(block, first_kept)
            chosen += [x.ledger_id for x in before if not is_offloaded(x)]
        if len(chosen) >= AT_ONCE:
            break
    return chosen[:AT_ONCE], first_kept


def ledgers_to_release(
    ledgers: LedgerRows, config: OffloadConfig, now_ms: int, apart: Sequence[LedgerInfo] = ()
) -> list[int]:
    """Ids of the ledgers that bookies have kept beside a complete copy for long enough."""
    if config.deletion_lag_ms < 0:
        return []
    # A clock that went back makes a copy younger: it stays longer.
    before_ms = now_ms - config.deletion_lag_ms
    packed = (
        x.complete_until(before_ms)
        for x in ledgers.segments
        if x.oldest_complete_ms is not None and x.oldest_complete_ms <= before_ms
    )
    newest = (
        x.ledger_id
        for x in chain(ledgers.tail, apart)
        if x.offload is not None
        and x.offload.state is CopyState.COMPLETE
        and x.offload.completed_ms <= before_ms
    )
    return list(islice(chain(chain.from_iterable(packed), newest), AT_ONCE))


def _closed(ledgers: PackedRows | Iterator[LedgerInfo], end: int) -> Iterator[LedgerInfo]:
    """The ledgers below ``end`` that may have a copy."""
    for ledger in ledgers:
        if ledger.ledger_id >= end:
            return
        if ledger.closed_ms and ledger.entries:
            yield ledger
