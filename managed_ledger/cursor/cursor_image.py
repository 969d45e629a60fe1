"""Holds the stored state of a cursor: complete (a snapshot) or in part (an increment)."""

from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap

from magnetar.managed_ledger.position import Position

ENTRY_END: Final = 1 << 32
"""Entry ids of acknowledged entries are below this: a bitmap holds 32-bit numbers. Rotation ends
a ledger long before; entries above are acknowledged by mark-delete only.
"""


@dataclass(slots=True)
class CursorImage:
    """A cursor's state, or what changed in it.

    Merging is idempotent and order-free but for ``batch_sets`` (the later one wins, and is a subset
    of the earlier), so an increment may repeat what the snapshot before it holds.
    """

    mark_delete: Position
    acked: dict[int, BitMap] = field(default_factory=dict)
    """Ledger id -> individually acknowledged entries; none is empty."""
    batch_sets: dict[int, dict[int, int]] = field(default_factory=dict)
    """Ledger id -> entry id -> bit mask of the batch indexes that are still unacknowledged."""
    properties: dict[str, int] | None = None
    """Properties of the mark-delete position; None in an increment: unchanged."""
    more_properties: dict[str, int] = field(default_factory=dict)
    """Of one chunk of a snapshot: a part of them, beside those of other chunks."""

    def merge(self, increment: "CursorImage") -> None:
        """Apply a later increment; it must not be used afterwards."""
        self.mark_delete = max(self.mark_delete, increment.mark_delete)
        for ledger_id, entries in increment.acked.items():
            known = self.acked.get(ledger_id)
            if known is None:
                self.acked[ledger_id] = entries
            else:
                known |= entries
        for ledger_id, sets in increment.batch_sets.items():
            self.batch_sets.setdefault(ledger_id, {}).update(sets)
        if increment.properties is not None:
            self.properties = increment.properties
        if increment.more_properties:
            self.properties = self.properties or {}
            self.properties.update(increment.more_properties)
