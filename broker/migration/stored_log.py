"""A log that nobody writes, read without opening it."""

from collections.abc import AsyncIterator, Iterable, Mapping

from magnetar.broker.migration.ledger_access import LedgerAccess
from magnetar.broker.migration.transactions import replayed
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES
from magnetar.broker.transaction.async_coordinator import MAX_SEQUENCE_PROPERTY
from magnetar.broker.transaction.coordinator import Coordinator
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position


class StoredLog:
    """The `RecoveredLog` of a log of either kind of broker.

    Args:
        counts: entries of each listed ledger.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        counts: Iterable[tuple[int, int]],
        ledgers: LedgerAccess,
    ) -> None:
        self.name, self.properties = name, properties
        self.offsets = LedgerOffsets(counts)
        self._ledgers = ledgers

    @property
    def last_confirmed(self) -> Position:
        return self.offsets.last_confirmed

    async def entries_after(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        """What is behind a position; also of a ledger that isn't closed, whose count is unknown."""
        for ledger_id in self.offsets.ledger_ids:
            if ledger_id >= position[0]:
                entry_id = position[1] + 1 if ledger_id == position[0] else 0
                async for each in self._ledgers.entries(ledger_id, entry_id):
                    yield (ledger_id, entry_id), each
                    entry_id += 1

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """See `ManagedLedger.read`; of a topic.

        Raises:
            MigrationError: it can't be read.
        """
        if (first := self.offsets.first_at_or_after(position)) is None:
            return None
        entries, size = list[bytes](), 0
        async for each in self._ledgers.entries(*first):
            entries.append(each)
            size += len(each)
            if len(entries) == entries_max or size >= bytes_max:
                break
        return EntryBatch(*first, *PULSAR_ENTRIES.split(entries)) if entries else None

    async def coordinator(self, number: int, start: Position) -> Coordinator:
        """Whose log it is.

        Args:
            start: the position of its cursor.

        Raises:
            MigrationError: it can't be read, or is of another form.
        """
        given_out = int(self.properties.get(MAX_SEQUENCE_PROPERTY, -1))
        if self.last_confirmed[1] >= 0:
            last = [each async for each in self._ledgers.entries(*self.last_confirmed)]
            given_out = max(given_out, replayed(number, last, self.name).last_sequence)
        entries = [each async for _, each in self.entries_after(start)]
        return replayed(number, entries, self.name, given_out)
