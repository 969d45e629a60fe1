"""Bytes of parts of a log: exact for whole ledgers, by the mean entry within one. Pure.

Counting entries within a ledger exactly would read its index; the mean is what statistics and
quotas can afford, and what Pulsar's figures are.
"""

from collections.abc import Sequence
from typing import TypeAlias

from magnetar.managed_ledger.ledger_rows import PackedRows
from magnetar.managed_ledger.position import Position

LedgerSize: TypeAlias = tuple[int, int, int]
"""(ledger id, entries, bytes); a list of them has ascending ids. Ledgers that are wholly behind or
wholly before what is asked for may be one of them together.
"""


def bytes_after(ledgers: Sequence[LedgerSize], position: Position) -> int:
    """Bytes of the entries behind a position; O(ledgers behind it)."""
    total = 0
    for ledger_id, entries, size in reversed(ledgers):
        if ledger_id < position[0]:
            break
        if ledger_id > position[0]:
            total += size
        elif entries:
            left = min(max(0, entries - 1 - position[1]), entries)
            total += size * left // entries
    return total


def position_before_bytes(ledgers: Sequence[LedgerSize], bytes_max: int) -> Position | None:
    """The lowest position behind which there are at most so many bytes; None: all fit."""
    left = bytes_max
    for ledger_id, entries, size in reversed(ledgers):
        if size > left:
            return (ledger_id, entries - 1 - entries * left // size)
        left -= size
    return None


def segment_sizes(segment: PackedRows) -> list[LedgerSize]:
    """Of each of its ledgers."""
    return list(zip(segment.ids, segment.entry_counts, segment.sizes, strict=True))
