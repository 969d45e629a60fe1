"""A compacted ledger, read by positions of the topic."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.transport import StoredRun
from magnetar.broker.compaction.compacted_entry import (
    batches_of,
    decode_compacted,
    first_not_before,
)
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.entry_form import EntryForm
from magnetar.managed_ledger.ledger_rows import LedgerInfo
from magnetar.managed_ledger.offload.context import OffloadContext
from magnetar.managed_ledger.offload.interfaces import EntryReader
from magnetar.managed_ledger.offload.offload_path import OffloadPath
from magnetar.managed_ledger.position import EARLIEST, Position

_POSITIONS_MAX: Final = 100
"""Positions of entries that a search remembers: every search begins with the same ones."""


@dataclass(slots=True)
class CompactedRun:
    """Entries of a compacted ledger, one after the other.

    Attributes:
        batches: they, by runs of positions; empty: there is none from there on.
        following: the next entry of the compacted ledger.
    """

    batches: list[EntryBatch]
    following: int


@dataclass(frozen=True, slots=True)
class OpenedLedger:
    """A reader of the bookies' ledger, or of its copy, and how much that is."""

    reader: EntryReader
    row: LedgerInfo


@dataclass(slots=True, eq=False)
class CompactedLedger:
    """What compaction left of a topic up to its horizon; never changed.

    Attributes:
        copies: of the log's ledgers; they may have one of this.
        ledger_id: the ledger's.
        horizon: the last position that compaction has seen.
    """

    client: "BookKeeperClient"
    copies: OffloadPath
    ledger_id: int
    horizon: Position
    form: EntryForm
    _opening: "asyncio.Task[OpenedLedger] | None" = field(default=None, init=False)
    _opened_copy: OffloadContext | None = field(default=None, init=False)
    _positions: OrderedDict[int, Position] = field(default_factory=OrderedDict, init=False)

    @property
    def copy(self) -> OffloadContext | None:
        """Its complete copy."""
        return self.copies.context(self.ledger_id)

    async def opened(self) -> OpenedLedger:
        """Opened when it is asked for first, and once it has a copy, or nothing but that.

        Raises:
            LedgerError, MetadataError: it can't be opened now.
        """
        copy = self.copy
        if self._opening is None or copy is not self._opened_copy:
            self._opened_copy = copy
            self._opening = asyncio.get_running_loop().create_task(self._open())
        task = self._opening
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._opening is task:
                self._opening = None  # the next one tries again
            raise

    async def _open(self) -> OpenedLedger:
        reader, row = self.copies.reader(self.ledger_id), self.copies.apart_row(self.ledger_id)
        if reader is not None and row is not None:
            return OpenedLedger(reader, row)
        found = await self.client.open_ledger(self.ledger_id, recover=True)
        metadata = found.metadata
        written_ms = max(1, metadata.created_ms)
        row = LedgerInfo(self.ledger_id, metadata.last_entry + 1, metadata.length, written_ms)
        return OpenedLedger(found, row)

    @property
    def figures(self) -> tuple[int, int, int]:
        """Its id, entries and bytes; -1: not known before it was read."""
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return self.ledger_id, -1, -1
        row = opening.result().row
        return self.ledger_id, row.entries, row.size

    async def find(self, position: Position) -> int:
        """Number of the first entry at or after a position of the topic; the count: there is none.

        Raises:
            LedgerError, MetadataError.
        """
        if position <= EARLIEST:
            return 0

        async def is_before(entry: int) -> bool:
            return await self._position(entry) < position

        return await first_not_before((await self.opened()).row.entries, is_before)

    async def _position(self, entry: int) -> Position:
        found = self._positions.get(entry)
        if found is None:
            found = (await self.read_raw(entry, 1))[0][0]
            while len(self._positions) >= _POSITIONS_MAX:
                self._positions.popitem(last=False)
            self._positions[entry] = found
        return found

    async def read_encoded(self, entry: int, count: int, bytes_max: int) -> list[Buffer]:
        """At most so many entries from one on, as they lie in the ledger, at least one; empty:
        there is none.

        Raises:
            LedgerError, MetadataError.
        """
        opened = await self.opened()
        last = min(entry + count, opened.row.entries) - 1
        if entry > last:
            return []
        try:
            return (await opened.reader.read(entry, last, bytes_max)).bodies
        except LedgerError:
            if self.copy is self._opened_copy:
                raise
            # Meanwhile bookies were told to forget it: it is read elsewhere now.
            return (await (await self.opened()).reader.read(entry, last, bytes_max)).bodies

    async def locate(self, entry: int, last: int, bytes_max: int) -> list[StoredRun]:
        """See `ReadPath.locate`.

        Raises:
            LedgerError, MetadataError.
        """
        reader = (await self.opened()).reader
        if not isinstance(reader, LedgerReader):
            return []
        return await reader.locate(entry, last, bytes_max)

    async def read_raw(self, entry: int, bytes_max: int) -> list[tuple[Position, Buffer]]:
        """Positions and stored forms of entries from one on, at least one; empty: there is none.

        Raises:
            LedgerError, MetadataError.
        """
        count = (await self.opened()).row.entries
        return [decode_compacted(each) for each in await self.read_encoded(entry, count, bytes_max)]

    async def read(self, entry: int, bytes_max: int) -> CompactedRun:
        """As `read_raw`, in the form of the topic's log.

        Raises:
            LedgerError, MetadataError.
        """
        found = await self.read_raw(entry, bytes_max)
        return CompactedRun(batches_of(found, self.form), entry + len(found))

    async def last(self) -> EntryBatch | None:
        """The last entry; None: everything was removed.

        Raises:
            LedgerError, MetadataError.
        """
        count = (await self.opened()).row.entries
        return (await self.read(count - 1, 1)).batches[0] if count else None

    async def delete(self) -> None:
        """The ledger goes, and its copy; reads under way may fail.

        Raises:
            MetadataError, ManagedLedgerError.
        """
        if not await self.copies.drop_apart(self.ledger_id):
            await self.client.delete_ledger(self.ledger_id)
