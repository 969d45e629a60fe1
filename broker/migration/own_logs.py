"""Reads logs as our brokers have left them; changes nothing."""

from collections.abc import Callable, Mapping
from typing import Final

from magnetar.broker.migration.conversion import SYSTEM_NAMESPACE
from magnetar.broker.migration.ledger_access import LedgerAccess
from magnetar.broker.migration.stored_log import StoredLog
from magnetar.broker.migration.transactions import COORDINATOR_LOG, with_committed
from magnetar.broker.resources.resources import MANAGED_LEDGERS
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.buffer_recovery import TRANSACTIONS_PROPERTY, recover_buffer
from magnetar.broker.transaction.coordinator import Coordinator
from magnetar.broker.transaction.pending_ack_log import PENDING_ACKS, pending_ack_log_name
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.managed_ledger.stored_info import StoredManagedLedger, read_stored
from magnetar.metadata.store import MetadataStore

COORDINATORS: Final = f"{SYSTEM_NAMESPACE}/persistent"
"""Where their logs are."""


class OwnLogs:
    """
    Args:
        ledgers: ends those that are open.
    """

    def __init__(
        self, store: MetadataStore, ledgers: LedgerAccess, now_ms: Callable[[], int]
    ) -> None:
        self._store, self._ledgers, self._now_ms = store, ledgers, now_ms

    async def ended(self, info: ManagedLedgerInfo) -> ManagedLedgerInfo:
        """The list with the ends of ledgers whose owner had no time to write them."""
        for row in info.ledgers.tail:
            if row.closed_ms:
                continue
            end = await self._ledgers.end(row.ledger_id)
            if end is None:
                info = info.forget([row.ledger_id])
            else:
                closed_ms = self._now_ms()
                info = info.with_closed(row.ledger_id, end.last_entry + 1, end.length, closed_ms)
        return info

    def log(self, name: str, info: ManagedLedgerInfo) -> StoredLog:
        """Its entries. REQUIRES: ``info`` is ``ended``."""
        counts = [(row.ledger_id, row.entries) for row in info.ledgers]
        return StoredLog(name, info.properties, counts, self._ledgers)

    async def _start(self, name: str, stored: StoredManagedLedger) -> Position:
        """What the cursors of a log need is behind it."""
        images = [
            await self._ledgers.image(f"{name}, cursor {cursor}", each.node)
            for cursor, each in stored.cursors.items()
        ]
        return min((each.mark_delete for each in images), default=EARLIEST)

    async def coordinators(self) -> dict[int, Coordinator]:
        """By number."""
        found = dict[int, Coordinator]()
        for encoded in await self._store.children(f"{MANAGED_LEDGERS}/{COORDINATORS}"):
            number, name = encoded.removeprefix(COORDINATOR_LOG), f"{COORDINATORS}/{encoded}"
            if number.isdecimal() and (stored := await read_stored(self._store, name)) is not None:
                log = self.log(name, await self.ended(stored.info))
                start = await self._start(name, stored)
                found[int(number)] = await log.coordinator(int(number), start)
        return found

    async def with_committed(
        self, topic_log: str, cursor: str, image: CursorImage, counts: Mapping[int, int]
    ) -> CursorImage:
        """A cursor's position with what transactions have acknowledged and committed.

        REQUIRES: it has the property `PENDING_ACKS`.
        """
        naming = (image.properties or {})[PENDING_ACKS]
        name = pending_ack_log_name(topic_log, cursor, naming)
        if (stored := await read_stored(self._store, name)) is None:
            return image
        log = self.log(name, await self.ended(stored.info))
        start = await self._start(name, stored)
        entries = [each async for _, each in log.entries_after(start)]
        return with_committed(image, counts.items(), entries, name)

    async def buffer(self, name: str, info: ManagedLedgerInfo) -> TopicTransactionBuffer:
        """Transactions of a topic. REQUIRES: ``info`` is ``ended``."""
        log, buffer = self.log(name, info), TopicTransactionBuffer(EARLIEST)
        if TRANSACTIONS_PROPERTY in info.properties:
            await recover_buffer(log, buffer)
            buffer.on_trimmed(log.offsets.first_position())
        return buffer

    async def ledgers_of(self, name: str) -> set[int]:
        """All that a log and its cursors name."""
        stored = await read_stored(self._store, name)
        if stored is None:
            return set()
        cursors = {each.node.ledger_id for each in stored.cursors.values()} - {NO_LEDGER}
        return {row.ledger_id for row in stored.info.ledgers} | {*stored.info.doomed} | cursors
