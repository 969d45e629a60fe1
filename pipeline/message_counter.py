"""How many messages entries hold, from their first bytes: for the limits of a stream's batches.

Only these travel, from bookies straight to the driver. An entry whose metadata are longer is read
as it is, and so is a ledger that is nowhere but in a copy.
"""

import logging
from functools import partial
from typing import Final

from magnetar.bookkeeper.client.entry_prefix_reader import EntryPrefixReader
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.protocol.entry_header import message_counts
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES, leading_counts
from magnetar.pipeline.admin import ClusterAccess
from magnetar.pipeline.offsets import Offset
from magnetar.pipeline.partition_reader import BookieConnections, PartitionReader
from magnetar.pipeline.read_plan import EntryIterator, EntryRange
from magnetar.pipeline.topic_snapshot import TopicSnapshot

_log = logging.getLogger(__name__)

_RUN_BYTES: Final = 4 * 1024 * 1024
_PREFIX_BYTES: Final = 256
"""Metadata of a batch take some 60 bytes, without properties."""
_PAUSES_S: Final = (0.2, 1.0, 3.0, 5.0)


class MessageCounter:
    """Walks along partitions; used by one thread, until ``close``."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._thread: LoopThread | None = None  # only streams with limits need one
        self._bookies: BookieConnections
        self._partition_readers: dict[str, PartitionReader] = {}

    def close(self) -> None:
        if self._thread is not None:
            try:
                self._thread.call(self._bookies.close())
            finally:
                self._thread.close()
                self._thread = None

    def walk(
        self, snapshot: TopicSnapshot, pieces: list[EntryRange], walk: EntryIterator
    ) -> Offset | None:
        """Take what ``walk`` allows; the point after it, None: everything was taken.

        Raises:
            DataLossError: a ledger is gone.
            SegmentsUnavailableError: heads can't be read now.
        """
        if self._thread is None:
            thread = LoopThread("message-counter")
            try:
                thread.call(self._open())
            except BaseException:
                thread.close()
                raise
            self._thread = thread
        return self._thread.call(self._walk(snapshot, pieces, walk))

    async def _open(self) -> None:
        self._bookies, self._partition_readers = BookieConnections(self._cluster), {}

    async def _walk(
        self, snapshot: TopicSnapshot, pieces: list[EntryRange], walk: EntryIterator
    ) -> Offset | None:
        partition_reader = self._partition_readers.get(snapshot.topic)
        if partition_reader is None:
            partition_reader = PartitionReader(snapshot.topic, self._cluster, self._bookies)
            self._partition_readers[snapshot.topic] = partition_reader
        self._bookies.note_places(snapshot.bookies, snapshot.instance_id, snapshot.bookie_protocol)
        self._bookies.note_token(snapshot.bookie_token)  # of this topic: walks never overlap
        if pieces:
            partition_reader.begin(pieces[0].ledger.ledger_id)
        for piece in pieces:
            at = piece.first
            while at < piece.end:
                counts, sizes = await partition_reader.read_patiently(
                    *(piece.ledger.ledger_id, at, _PAUSES_S),
                    partial(self._counts, partition_reader, piece, at),
                )
                at += walk.take(counts, sizes)
                if walk.is_full:
                    return Offset(piece.ledger.ledger_id, at)
        return None

    async def _counts(
        self, partition_reader: PartitionReader, piece: EntryRange, at: int
    ) -> tuple[list[int], list[int]]:
        """Messages and bytes of entries from ``at`` on, of one at least."""
        reader = await partition_reader.reader(piece.ledger, piece.end - 1)
        last = piece.end - 1
        if isinstance(reader, LedgerReader):
            bookies = self._bookies
            prefixes = EntryPrefixReader(
                *(reader.metadata, last, partition_reader, bookies.pool, bookies.config),
                bookies.replicas,
                head_bytes=_PREFIX_BYTES,
            )
            found = await prefixes.read(at, piece.end)
            if counts := leading_counts(found.heads, found.sizes):
                return counts, found.sizes[: len(counts)]
            last = at  # only this one is read as a whole
        run = await reader.read(at, last, _RUN_BYTES, 0)
        heads, _ = PULSAR_ENTRIES.split(run.bodies)
        return message_counts(heads), list(map(len, run.bodies))
