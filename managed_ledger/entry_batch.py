"""The unit in which entries are read: a run of one ledger, as two parallel lists."""

from dataclasses import dataclass
from typing import TypeAlias

Buffer: TypeAlias = bytes | memoryview
"""Immutable bytes of a head or a body."""


@dataclass(slots=True)
class EntryBatch:
    """Contiguous entries ``first .. first + len(heads) - 1`` of one ledger; never empty when it is
    an answer.

    The lists belong to the receiver; the buffers in them are shared and never written to.
    """

    ledger_id: int
    first: int
    heads: list[bytes]
    bodies: list[Buffer]

    @property
    def last(self) -> int:
        """Entry id of the last entry of the batch."""
        return self.first + len(self.heads) - 1

    def from_entry(self, entry_id: int) -> "EntryBatch":
        """Return the batch from ``entry_id`` on. REQUIRES: the batch holds this entry."""
        skipped = entry_id - self.first
        if not skipped:
            return self
        return EntryBatch(self.ledger_id, entry_id, self.heads[skipped:], self.bodies[skipped:])

    def __len__(self) -> int:
        return len(self.heads)
