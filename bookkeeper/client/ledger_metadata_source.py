"""Where a reader learns of a ledger's metadata: the metadata store, or somebody who asks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from magnetar.bookkeeper.client.ledger_store import VersionedLedger
from magnetar.metadata.store import Watch


class LedgerMetadataSource(Protocol):
    """What readers want of a ``LedgerStore``; a process without a session implements it, too."""

    async def require(self, ledger_id: int) -> VersionedLedger:
        """The ledger's metadata as it is now.

        Raises:
            NoSuchLedgerError: there is no such ledger. MetadataError: the store failed.
        """

    def watch(self, ledger_id: int, on_change: Callable[[], None]) -> Watch:
        """Calls ``on_change`` when the metadata changes; needed by ``wait`` only."""
