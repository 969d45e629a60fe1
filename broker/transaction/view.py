"""What a consumer reads of a log with transactions: nothing open, and nothing aborted."""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.broker.protocol.entry_header import FLAG_MARKER
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.markers import MARKER_BODY
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position


@dataclass(slots=True, eq=False)
class TransactionView:
    """The log up to the first open transaction; see `EntrySource`.

    Entries of aborted transactions have the heads of markers, which dispatchers skip and
    acknowledge.
    """

    log: ManagedLedger
    buffer: TopicTransactionBuffer

    @property
    def last_confirmed(self) -> Position:
        return self.buffer.readable

    @property
    def offsets(self) -> LedgerOffsets:
        return self.log.offsets

    def read_nowait(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None:
        if position > self.buffer.readable:
            return None
        batch = self.log.read_nowait(position, entries_max, bytes_max)
        return None if batch is None else self._visible(batch)

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """See `EntrySource`.

        Raises:
            LedgerError, MetadataError, ManagedLedgerClosedError.
        """
        if position > self.buffer.readable:
            return None
        batch = await self.log.read(position, entries_max, bytes_max)
        return None if batch is None else self._visible(batch)

    def is_plain(self, position: Position) -> bool:
        """Whether no entry from there on can be an aborted one."""
        return self.buffer.is_plain(position)

    def stored_without_aborted(
        self, ledger_id: int, first: int, entries: Sequence[Buffer]
    ) -> Sequence[Buffer]:
        """Entries as they lie in the log, with a marker in the place of each aborted one."""
        if self.buffer.is_plain((ledger_id, first)):
            return entries
        heads, bodies = self.log.config.form.split(entries)
        aborted = self.buffer.aborted_in(EntryBatch(ledger_id, first, heads, bodies))
        shown = list(entries)
        for index in aborted:
            shown[index] = MARKER_BODY
        return shown

    def _visible(self, batch: EntryBatch) -> EntryBatch | None:
        end_ledger, end_entry = self.buffer.readable
        if batch.ledger_id > end_ledger:
            return None
        if batch.ledger_id == end_ledger and batch.last > end_entry:
            count = end_entry + 1 - batch.first
            if count <= 0:
                return None
            heads, bodies = batch.heads[:count], batch.bodies[:count]
            batch = EntryBatch(batch.ledger_id, batch.first, heads, bodies)
        if not self.buffer.is_plain((batch.ledger_id, batch.first)):
            for index in self.buffer.aborted_in(batch):
                head = batch.heads[index]
                batch.heads[index] = b"%b%c%b" % (head[:3], head[3] | FLAG_MARKER, head[4:])
        return batch
