"""Which ledgers may go: a pure decision over the list, the slowest cursor and the retention.

Rules: docs/spec/storage.md, "Trimming". The answer is always a prefix of the list and never holds
its last ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from magnetar.managed_ledger.ledger_rows import LedgerRows
from magnetar.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed ledgers stay; -1: without limit, 0 and 0: they go at once."""

    time_ms: int = 0
    size: int = 0


def ledgers_to_trim(
    ledgers: LedgerRows,
    slowest: Position | None,
    keep_from: int,
    retention: Retention,
    now_ms: int,
    written_bytes: int = 0,
    count_max: int = 1000,
) -> list[int]:
    """Ids of the ledgers to delete, oldest first, and not more than ``count_max``.

    Args:
        ledgers: the stored list; an unclosed ledger ends the search.
        slowest: lowest mark-delete position of the durable cursors; None when there are none,
            which frees everything that retention doesn't keep.
        keep_from: the ledger that is written, or will be read next by it; it and later ones stay.
        retention: limits of the log.
        now_ms: wall clock; a close time in its future means "just closed".
        written_bytes: of the log, beside those of ``ledgers``: what is written has no size yet.
    """
    trimmed: list[int] = []
    size = ledgers.size + written_bytes
    for ledger in islice(ledgers, min(count_max, max(0, len(ledgers) - 1))):
        if ledger.ledger_id >= keep_from or not ledger.closed_ms:
            break
        if slowest is not None and (ledger.ledger_id, ledger.entries - 1) > slowest:
            break
        age_ms = max(0, now_ms - ledger.closed_ms)
        too_old = 0 <= retention.time_ms <= age_ms
        too_much = 0 <= retention.size <= size
        if not (too_old or too_much):
            break
        size -= ledger.size
        trimmed.append(ledger.ledger_id)
    return trimmed
