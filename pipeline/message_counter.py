"""How many messages entries hold, from their heads: for the limits of a stream's batches.

Only heads travel, from bookies straight to the driver; a ledger that is nowhere but in a copy is
read as it is.
"""

import logging
from functools import partial
from typing import Final

from magnetar.bookkeeper.client.entry_prefix_reader import EntryPrefixReader
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.protocol.entry_header import HEAD_BYTES, message_counts
from magnetar.pipeline.admin import ClusterAccess
from magnetar.pipeline.offsets import Offset
from magnetar.pipeline.partition_reader import BookieConnections, PartitionReader
from magnetar.pipeline.read_plan import EntryIterator, EntryRange
from magnetar.pipeline.topic_snapshot import TopicSnapshot

_log = logging.getLogger(__name__)

_RUN_BYTES: Final = 4 * 1024 * 1024
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
                heads, sizes = await partition_reader.read_patiently(
                    *(piece.ledger.ledger_id, at, _PAUSES_S),
                    partial(self._heads, partition_reader, piece, at),
                )
                at += walk.take(message_counts(heads), sizes)
                if walk.is_full:
                    return Offset(piece.ledger.ledger_id, at)
        return None

    async def _heads(
        self, partition_reader: PartitionReader, piece: EntryRange, at: int
    ) -> tuple[list[bytes], list[int]]:
        reader = await partition_reader.reader(piece.ledger, piece.end - 1)
        if not isinstance(reader, LedgerReader):
            run = await reader.read(at, piece.end - 1, _RUN_BYTES, HEAD_BYTES)
            sizes = [HEAD_BYTES + len(body) for body in run.bodies]
            return run.heads, sizes
        bookies = self._bookies
        heads = EntryPrefixReader(
            *(reader.metadata, piece.end - 1, partition_reader, bookies.pool, bookies.config),
            bookies.replicas,
            head_bytes=HEAD_BYTES,
        )
        found = await heads.read(at, piece.end)
        return found.heads, found.sizes
