"""Defines the calls that a cursor makes to its managed ledger.

A cursor sees its ledger through this Protocol only, so its tests need no ledger. All methods are
synchronous and cheap (O(log n) in the number of ledgers).
"""

from collections.abc import Callable
from typing import Protocol

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.ack_state import LedgerPositions
from magnetar.managed_ledger.position import Position
from magnetar.metadata.store import MetadataStore


class ManagedLedgerView(Protocol):
    """The face of a `ManagedLedger` towards its cursors."""

    @property
    def name(self) -> str:
        """Name of the log, ``tenant/ns/persistent/topic`` with encoded parts."""

    @property
    def path(self) -> str:
        """Metadata path of the log; cursors are its children, ``encode_name(cursor name)``."""

    @property
    def config(self) -> ManagedLedgerConfig:
        """Settings in force; may be replaced while the log is open."""

    @property
    def client(self) -> BookKeeperClient:
        """Where cursor ledgers are created."""

    @property
    def store(self) -> MetadataStore:
        """Where cursor nodes live."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """Wall clock in milliseconds."""

    @property
    def offsets(self) -> LedgerPositions:
        """Which entries exist."""

    @property
    def is_owner(self) -> bool:
        """False once the log is fenced: a cursor must not write its node or a new cursor ledger
        any more.
        """

    async def owns_list(self) -> bool:
        """Reads whose the stored list of ledgers is; False once another owner has taken it.

        Raises:
            MetadataError: it can't be read now.
        """

    def on_mark_delete(self, previous: Position, current: Position) -> None:
        """A durable cursor's mark-delete moved: the log may trim. Called after the move, at most
        once per write.
        """

    def on_cursor_fenced(self, error: BaseException) -> None:
        """A cursor lost a compare-and-set or was fenced by another owner: the log stops as well."""
