"""A compacted ledger, read by positions of the topic."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magnetar.broker.compaction.compacted_entry import (
    batches_of,
    decode_compacted,
    first_not_before,
)
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.entry_form import EntryForm
from magnetar.managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.bookkeeper.client.client import BookKeeperClient
    from magnetar.bookkeeper.client.ledger_reader import LedgerReader

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


@dataclass(slots=True, eq=False)
class CompactedLedger:
    """What compaction left of a topic up to its horizon; never changed.

    Attributes:
        ledger_id: the ledger's.
        horizon: the last position that compaction has seen.
    """

    client: "BookKeeperClient"
    ledger_id: int
    horizon: Position
    form: EntryForm
    _opening: "asyncio.Task[LedgerReader] | None" = field(default=None, init=False)
    _positions: OrderedDict[int, Position] = field(default_factory=OrderedDict, init=False)

    async def reader(self) -> "LedgerReader":
        """The ledger's; opened when it is asked for first.

        Raises:
            LedgerError, MetadataError: it can't be opened now.
        """
        if self._opening is None:
            opening = self.client.open_ledger(self.ledger_id, recover=True)
            self._opening = asyncio.get_running_loop().create_task(opening)
        task = self._opening
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._opening is task:
                self._opening = None  # the next one tries again
            raise

    @property
    def figures(self) -> tuple[int, int, int]:
        """Its id, entries and bytes; -1: not known before it was read."""
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return self.ledger_id, -1, -1
        metadata = opening.result().metadata
        return self.ledger_id, metadata.last_entry + 1, metadata.length

    async def find(self, position: Position) -> int:
        """Number of the first entry at or after a position of the topic; the count: there is none.

        Raises:
            LedgerError, MetadataError.
        """
        if position <= EARLIEST:
            return 0

        async def is_before(entry: int) -> bool:
            return await self._position(entry) < position

        return await first_not_before((await self.reader()).last_confirmed + 1, is_before)

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
        reader = await self.reader()
        last = min(entry + count - 1, reader.last_confirmed)
        return (await reader.read(entry, last, bytes_max, 0)).bodies if entry <= last else []

    async def read_raw(self, entry: int, bytes_max: int) -> list[tuple[Position, Buffer]]:
        """Positions and stored forms of entries from one on, at least one; empty: there is none.

        Raises:
            LedgerError, MetadataError.
        """
        count = (await self.reader()).last_confirmed + 1
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
        count = (await self.reader()).last_confirmed + 1
        return (await self.read(count - 1, 1)).batches[0] if count else None

    async def delete(self) -> None:
        """The ledger goes; reads under way may fail.

        Raises:
            MetadataError.
        """
        await self.client.delete_ledger(self.ledger_id)
