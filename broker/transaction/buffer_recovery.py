"""Brings a topic's `TopicTransactionBuffer` to the end of the topic's log."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from magnetar.broker.errors import PersistenceError
from magnetar.broker.transaction.buffer import SEALED_COUNT, TopicTransactionBuffer
from magnetar.broker.transaction.markers import SNAPSHOT, snapshot_in
from magnetar.broker.transaction.stored_ends import stored_ends
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position, format_position

TRANSACTIONS_PROPERTY: Final = "pulsar.topic.transactions.from"
"""Of the managed ledger: the last position in front of every entry of a transaction."""
LOOK_ENTRIES: Final = 500
LOOK_BYTES: Final = 1 << 20


class RecoveredLog(Protocol):
    """The part of `ManagedLedger` that is needed here."""

    @property
    def name(self) -> str: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def offsets(self) -> LedgerOffsets: ...
    @property
    def last_confirmed(self) -> Position: ...
    async def read(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None: ...


async def recover_buffer(log: RecoveredLog, buffer: TopicTransactionBuffer) -> None:
    """Learn what is in the log, from its newest snapshot on, and what is stored beside it.

    REQUIRES: the log has `TRANSACTIONS_PROPERTY`.

    Raises:
        LedgerError, ManagedLedgerError, MetadataError.
    """
    ledger_text, _, entry_text = log.properties[TRANSACTIONS_PROPERTY].partition(":")
    buffer.noted = int(ledger_text), int(entry_text)
    if (found := await _newest_snapshot(log, buffer.noted)) is not None:
        for position in zip(found.sealedLedger, found.sealedEntry, strict=True):
            if log.offsets.is_valid(position):
                for part in _parts(await _sealed(log, position)):
                    buffer.restore_sealed(position, part)
                    await asyncio.sleep(0)
        buffer.restore(found)
    await look_to_end(log, buffer)
    for transaction, commit in stored_ends(log.properties):
        buffer.on_stored_end(transaction, commit=commit)


async def look_to_end(log: RecoveredLog, buffer: TopicTransactionBuffer) -> None:
    """Look at all entries that the buffer hasn't seen, as far as they can be read now.

    Raises:
        LedgerError, ManagedLedgerError, MetadataError.
    """
    while (position := next_unseen(log, buffer)) is not None:
        batch = await log.read(position, LOOK_ENTRIES, LOOK_BYTES)
        if batch is None:
            break
        buffer.on_entries(batch)
        await asyncio.sleep(0)


def next_unseen(log: RecoveredLog, buffer: TopicTransactionBuffer) -> Position | None:
    """The first entry that the buffer hasn't seen."""
    ledger_id, entry_id = buffer.noted
    return log.offsets.first_at_or_after((ledger_id, entry_id + 1))


async def _newest_snapshot(log: RecoveredLog, after: Position) -> TransactionSnapshot | None:
    """Looks back from the log's end, not in front of ``after``."""
    offsets, upto = log.offsets, log.last_confirmed
    while (left := offsets.entries_between(after, upto)) > 0:
        first = offsets.position_after(after, max(1, left - LOOK_ENTRIES + 1))
        newest, position = None, first
        while position <= upto:
            batch = await log.read(position, LOOK_ENTRIES, LOOK_BYTES)
            if batch is None:
                break
            for found in map(snapshot_in, batch.bodies):
                if found is not None and found[0] == SNAPSHOT:
                    newest = found[1]
            position = offsets.next_position((batch.ledger_id, batch.last))
        if newest is not None:
            return newest
        upto = offsets.previous_position(first)
    return None


def _parts(marker: TransactionSnapshot) -> Iterator[TransactionSnapshot]:
    """Earlier releases sealed 10,000 at once: to restore them takes 5 to 9 ms."""
    for start in range(0, len(marker.abortedLedger), SEALED_COUNT):
        part = slice(start, start + SEALED_COUNT)
        yield TransactionSnapshot(
            abortedMost=marker.abortedMost[part],
            abortedLeast=marker.abortedLeast[part],
            abortedLedger=marker.abortedLedger[part],
        )


async def _sealed(log: RecoveredLog, position: Position) -> TransactionSnapshot:
    batch = await log.read(position, 1, 1)
    found = None if batch is None else snapshot_in(batch.bodies[0])
    if found is None:
        raise PersistenceError(
            f"{log.name}: entry {format_position(position)} holds no aborted transactions"
        )
    return found[1]
