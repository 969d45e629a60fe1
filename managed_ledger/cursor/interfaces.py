"""What a cursor needs of BookKeeper: the parts of its client that are used, as Protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from magnetar.bookkeeper.errors import LedgerError


class CursorLedgerWriter(Protocol):
    """The used part of `magnetar.bookkeeper.client`'s AsyncLedgerWriter."""

    ledger_id: int
    on_confirmed: Callable[[int], None] | None
    on_failed: Callable[[LedgerError], None] | None

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        """First entry id; never blocks."""

    async def close(self) -> object:
        """Ends the ledger at its last confirmed entry."""
