"""Where the ledgers of a broker are: bookies, and the metadata store that knows of them."""

from collections.abc import Callable
from dataclasses import dataclass

from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class BookieCluster:
    """
    Attributes:
        store: another one than that of topics, if the ledgers are on Apache BookKeeper.
        layout: of the ledgers' metadata; None: our own, in JSON.
        on_ledger_deleted: told of each deletion; None: bookies find out by themselves.
        has_auto_recovery: ours or Apache BookKeeper's repairs them; a standalone has none.
    """

    pool: BookiePool
    store: MetadataStore
    layout: Layout | None = None
    on_ledger_deleted: Callable[[int], None] | None = None
    has_auto_recovery: bool = False

    def ledgers(self) -> LedgerStore:
        """The ledgers' metadata."""
        return LedgerStore(self.store, self.layout)
