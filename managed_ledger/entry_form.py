"""How entries lie in the ledgers of a log: the one place that knows what is stored of a head.

In memory an entry is a head and a body (docs/decisions/0001). The body is stored as it is. What is
stored of the head, and how the head is made again, is the form's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.managed_ledger.entry_batch import Buffer


class EntryForm(Protocol):
    """Two that are equal store alike."""

    def prefixes(self, heads: Sequence[bytes]) -> list[bytes]:
        """Return what lies before each body in a ledger, a new list parallel to ``heads``."""

    def unstored_bytes(self) -> int:
        """Return how many bytes of each head don't lie in a ledger."""

    def split(self, entries: Sequence[Buffer]) -> tuple[list[bytes], list[Buffer]]:
        """Heads and bodies of entries as they lie in ledgers.

        Raises:
            LedgerError: entries that this log can't have.
        """


@dataclass(frozen=True, slots=True)
class HeadsInFront:
    """Heads are stored as they are; all have the same length."""

    head_bytes: int

    def prefixes(self, heads: Sequence[bytes]) -> list[bytes]:
        return list(heads)

    def unstored_bytes(self) -> int:
        return 0

    def split(self, entries: Sequence[Buffer]) -> tuple[list[bytes], list[Buffer]]:
        at = self.head_bytes
        return [bytes(entry[:at]) for entry in entries], [entry[at:] for entry in entries]


HEADS_IN_FRONT: Final = HeadsInFront(32)
