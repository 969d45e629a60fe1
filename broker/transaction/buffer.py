"""What the log of one topic says of transactions: where it may be read to, and what is left out.

It learns by looking at the log's entries, each once and in their order. So the same code serves for
entries that were just stored, for those of a topic that is loaded, and for those whose append was
in doubt. Pure: no clock, socket or task.

Invariant: ``readable`` is in front of the first entry of every open transaction, and of every
entry that wasn't looked at.
"""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Final

from magnetar.broker.protocol.entry_header import FLAG_MARKER, FLAG_TRANSACTION
from magnetar.broker.transaction.markers import (
    ABORT,
    COMMIT,
    SEALED,
    SNAPSHOT,
    snapshot_in,
    transaction_in,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import EARLIEST, Position

_LOOKED_FOR: Final = FLAG_TRANSACTION | FLAG_MARKER
SEALED_COUNT: Final = 2_000
"""Aborted transactions that become a marker of their own: made and read in about a millisecond."""
SNAPSHOT_ENTRIES: Final = 5_000
"""Entries behind a snapshot, before there is another one: what a load looks at."""
_LEAST: Final = (1 << 64) - 1
_ENDED_MAX: Final = 10_000
"""Ends that are remembered, to refuse what comes late; the oldest are forgotten."""


class TopicTransactionBuffer:
    """Transactions of one topic.

    Attributes:
        noted: everything up to it was looked at.
        open: transactions with entries and without an end, by their first entries; with the
            position in front of that.
        committed_count, aborted_count: ends seen since the topic was loaded.
        finished: by coordinator: transactions up to this sequence are ended everywhere.
    """

    def __init__(self, noted: Position) -> None:
        self.noted = noted
        self.open: dict[TransactionId, Position] = {}
        self.committed_count = self.aborted_count = 0
        self._began_ms: dict[TransactionId, int] = {}  # of open ones; not of restored ones
        # By key, the ledger of the marker; in the log's order.
        self._aborted: dict[int, int] = {}
        self._aborted_upto = EARLIEST  # the last of these markers
        self._sealed: list[Position] = []
        self._sealed_count = 0  # of the first in ``_aborted``, how many are in sealed markers
        self._committed: dict[TransactionId, None] = {}
        self.finished: dict[int, int] = {}
        self._looked_at = self._snapshot_at = 0  # counts of entries: all, and to the last snapshot

    @property
    def readable(self) -> Position:
        """The last position that may be delivered, acknowledged or compacted."""
        first = next(iter(self.open.values()), None)
        return self.noted if first is None else first

    @property
    def aborted_total(self) -> int:
        """Aborted transactions whose entries may still be in the log."""
        return len(self._aborted)

    @property
    def aborted(self) -> dict[TransactionId, int]:
        """Those, each with the ledger of its marker; in the log's order. Made anew."""
        return {TransactionId(x >> 64, x & _LEAST): ledger for x, ledger in self._aborted.items()}

    def is_aborted(self, transaction: TransactionId) -> bool:
        """Whether its entries, which may still be in the log, are left out."""
        return _key(*transaction) in self._aborted

    def state_of(self, transaction: TransactionId) -> str:
        """Of one that has messages in the log: ``OPEN``, ``ABORTED`` or ``COMMITTED``."""
        if transaction in self.open:
            return "OPEN"
        return "ABORTED" if self.is_aborted(transaction) else "COMMITTED"

    def since_ms(self, transaction: TransactionId) -> int | None:
        """When the first message of an open one was published; None: an earlier load saw it."""
        return self._began_ms.get(transaction)

    def has_ended(self, transaction: TransactionId) -> bool:
        """Whether it is known to have ended here: another entry of it comes too late."""
        return (
            self.is_aborted(transaction)
            or transaction in self._committed
            or self._is_finished(transaction)
        )

    # --- entries

    def on_entries(self, batch: EntryBatch) -> None:
        """Look at the log's next entries."""
        ledger_id, entry_id = batch.ledger_id, batch.first
        for head, body in zip(batch.heads, batch.bodies, strict=True):
            self._looked_at += 1
            if head[3] & _LOOKED_FOR:
                self._on_entry((ledger_id, entry_id), body)
            self.noted = (ledger_id, entry_id)
            entry_id += 1

    def _on_entry(self, at: Position, body: bytes | memoryview) -> None:
        if (found := transaction_in(body)) is None:
            return
        kind, transaction, publish_time = found
        if kind == 0:
            if transaction not in self.open and not self.is_aborted(transaction):
                self.open[transaction] = self.noted
                self._began_ms[transaction] = publish_time
        elif kind in (COMMIT, ABORT):
            self._on_end(transaction, at, commit=kind == COMMIT)
        elif kind == SEALED:
            self._on_sealed(at, body)
        elif kind == SNAPSHOT:
            self._snapshot_at = self._looked_at

    def on_stored_end(self, transaction: TransactionId, *, commit: bool) -> None:
        """Its end is stored beside the log, which takes no more entries."""
        if transaction in self.open:
            self._on_end(transaction, self.noted, commit=commit)

    def _on_end(self, transaction: TransactionId, at: Position, *, commit: bool) -> None:
        self.open.pop(transaction, None)
        self._began_ms.pop(transaction, None)
        if commit:
            self.committed_count += 1
            self._committed[transaction] = None
            if len(self._committed) > _ENDED_MAX:
                del self._committed[next(iter(self._committed))]
        elif not self.is_aborted(transaction):
            self.aborted_count += 1
            self._aborted[_key(*transaction)] = at[0]
            self._aborted_upto = at

    def _on_sealed(self, at: Position, body: bytes | memoryview) -> None:
        found = snapshot_in(body)
        if found is None:
            return
        self._sealed.append(at)
        keys = map(_key, found[1].abortedMost, found[1].abortedLeast)
        self._sealed_count += sum(key in self._aborted for key in keys)

    def on_trimmed(self, first: Position) -> None:
        """The log begins at ``first`` now: entries of what ended before it are gone."""
        oldest = next(iter(self._aborted.values()), None)
        if oldest is None or oldest >= first[0]:
            return
        gone = sum(1 for _ in takewhile(lambda x: x < first[0], self._aborted.values()))
        # A dict of its own: each look at the oldest would pass the places of those that are gone.
        self._aborted = dict(islice(self._aborted.items(), gone, None))
        self._sealed_count = max(0, self._sealed_count - gone)
        self._sealed = [at for at in self._sealed if at[0] >= first[0]]

    # --- what is left out

    def is_plain(self, first: Position) -> bool:
        """Whether no entry from there on can be of an aborted transaction."""
        return not self._aborted or first > self._aborted_upto

    def aborted_in(self, batch: EntryBatch) -> Sequence[int]:
        """Indexes of the entries that belong to aborted transactions."""
        return [
            index
            for index, head in enumerate(batch.heads)
            if head[3] & _LOOKED_FOR == FLAG_TRANSACTION
            and (found := transaction_in(batch.bodies[index])) is not None
            and self.is_aborted(found[1])
        ]

    # --- ends

    def on_finished(self, most: int, least: int) -> TransactionId | None:
        """A coordinator says that all its transactions up to ``least`` have ended.

        Returns:
            The first open one if it has ended all the same; its entries came late: abort it.
        """
        self.finished[most] = max(least, self.finished.get(most, -1))
        while (first := next(iter(self._committed), None)) is not None and self._is_finished(first):
            del self._committed[first]
        first = next(iter(self.open), None)
        return first if first is not None and self._is_finished(first) else None

    def _is_finished(self, transaction: TransactionId) -> bool:
        return transaction.least <= self.finished.get(transaction.most, -1)

    # --- snapshots

    def due(self) -> TransactionSnapshot | None:
        """What is to be stored in the log now; ask again once it is there."""
        unsealed = len(self._aborted) - self._sealed_count
        if unsealed >= SEALED_COUNT:
            return self._with_aborted(TransactionSnapshot(), self._sealed_count, SEALED_COUNT)
        if self._looked_at - self._snapshot_at < max(
            SNAPSHOT_ENTRIES, 4 * (len(self.open) + unsealed)
        ):
            return None
        return self.snapshot()

    @property
    def has_news(self) -> bool:
        """Whether entries were looked at behind the last snapshot."""
        return self._looked_at != self._snapshot_at

    def snapshot(self) -> TransactionSnapshot:
        """What is known now."""
        found = TransactionSnapshot(uptoLedger=self.noted[0], uptoEntry=self.noted[1])
        for transaction, before in self.open.items():
            found.openMost.append(transaction.most)
            found.openLeast.append(transaction.least)
            found.openLedger.append(before[0])
            found.openEntry.append(before[1])
        for at in self._sealed:
            found.sealedLedger.append(at[0])
            found.sealedEntry.append(at[1])
        return self._with_aborted(found, self._sealed_count, None)

    def _with_aborted(
        self, found: TransactionSnapshot, start: int, count: int | None
    ) -> TransactionSnapshot:
        stop = None if count is None else start + count
        for key, ledger_id in islice(self._aborted.items(), start, stop):
            found.abortedMost.append(key >> 64)
            found.abortedLeast.append(key & _LEAST)
            found.abortedLedger.append(ledger_id)
        return found

    def restore_sealed(self, position: Position, marker: TransactionSnapshot) -> None:
        """Of the markers that a snapshot names one after the other, but those that were trimmed.

        Args:
            marker: or a part of it; the other parts come next.
        """
        if self._sealed[-1:] != [position]:
            self._sealed.append(position)
        self._take_aborted(marker)

    def restore(self, snapshot: TransactionSnapshot) -> None:
        """Begin with what a snapshot knew; ``restore_sealed`` comes first."""
        self.noted = (snapshot.uptoLedger, snapshot.uptoEntry)
        self._sealed_count = len(self._aborted)
        self._take_aborted(snapshot)
        columns = (snapshot.openMost, snapshot.openLeast, snapshot.openLedger, snapshot.openEntry)
        for most, least, ledger_id, entry_id in zip(*columns, strict=True):
            self.open[TransactionId(most, least)] = (ledger_id, entry_id)

    def _take_aborted(self, snapshot: TransactionSnapshot) -> None:
        if not snapshot.abortedLedger:
            return
        ledgers = {x: x for x in snapshot.abortedLedger}  # one number in memory for each
        columns = (snapshot.abortedMost, snapshot.abortedLeast, snapshot.abortedLedger)
        self._aborted.update(
            (_key(most, least), ledgers[ledger_id])
            for most, least, ledger_id in zip(*columns, strict=True)
        )
        # Entries of its ledger may lie behind the marker: to look at them does no harm.
        self._aborted_upto = max(self._aborted_upto, (max(ledgers), 2**62))


def _key(most: int, least: int) -> int:
    """One number: it takes half the memory of a tuple."""
    return most << 64 | least
