"""What a cursor may ask of the managed ledger it belongs to, and tell it.

A cursor sees its ledger through this Protocol only, so its tests need no ledger. All methods are
synchronous and cheap (O(log n) in the number of ledgers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.bookkeeper.client.client import BookKeeperClient
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
    def last_confirmed(self) -> Position:
        """Last durable entry. ``(ledger, -1)`` when the log's listed ledgers are empty, EARLIEST
        when it never had one.
        """

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

    def ledger_entries(self, ledger_id: int) -> int | None:
        """Confirmed entries of a listed ledger; None when it isn't listed (any more)."""

    def is_valid(self, position: Position) -> bool:
        """Whether a confirmed entry exists at that position now."""

    def first_position(self) -> Position:
        """First existing entry; the next to be written when there is none."""

    def next_position(self, position: Position) -> Position:
        """First existing entry after ``position``; ``(ledger, entry + 1)`` of last_confirmed when
        there is none yet.
        """

    def previous_position(self, position: Position) -> Position:
        """Last existing entry before ``position``; ``(first ledger, -1)`` when there is none."""

    def position_after(self, position: Position, entries: int) -> Position:
        """The position ``entries`` existing entries after ``position``; not beyond `next_position`
        of last_confirmed.
        """

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many existing entries lie in ``(after, upto]``; 0 when upto <= after."""

    def on_mark_delete(self, previous: Position, current: Position) -> None:
        """A durable cursor's mark-delete moved: the log may trim. Called after the move, at most
        once per write.
        """

    def on_cursor_fenced(self, error: BaseException) -> None:
        """A cursor lost a compare-and-set or was fenced by another owner: the log stops as well."""
