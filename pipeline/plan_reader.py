"""What the driver reads of entries, to plan.

How many messages they hold, for the limits of a stream's batches: only their first bytes travel,
from bookies straight to the driver. An entry whose metadata are longer is read as it is, and so is
a ledger that is nowhere but in a copy. And where a point of the topic is in a compacted ledger.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from magnetar.bookkeeper.client.entry_prefix_reader import EntryPrefixReader
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.compaction.compacted_entry import decode_compacted_head
from magnetar.broker.protocol.entry_header import message_counts, parse_header
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES, Buffer, leading_counts
from magnetar.managed_ledger.position import Position
from magnetar.pipeline.admin import ClusterAccess
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.partition_reader import BookieConnections, PartitionReader
from magnetar.pipeline.read_plan import (
    EntryIterator,
    EntryRange,
    compacted_ranges_between,
    entry_ranges_between,
)
from magnetar.pipeline.topic_snapshot import TopicSnapshot

T = TypeVar("T")

_log = logging.getLogger(__name__)

_RUN_BYTES: Final = 4 * 1024 * 1024
_PREFIX_BYTES: Final = 256
"""Metadata of a batch take some 60 bytes, without properties."""
_PAUSES_S: Final = (0.2, 1.0, 3.0, 5.0)


class PlanReader:
    """Reads of partitions; used by one thread, until ``close``."""

    def __init__(self, cluster: ClusterAccess, *, compacted: bool) -> None:
        self._cluster, self._compacted = cluster, compacted
        self._thread: LoopThread | None = None  # not everybody needs one
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
        return self._call(partial(self._walk, snapshot, pieces, walk))

    def ranges(self, snapshot: TopicSnapshot, start: Offset, end: Offset) -> list[EntryRange]:
        """What is stored between two points; of what was compacted that which is left.

        REQUIRES: locations are in the snapshot, if it has a compacted part.

        Raises:
            DataLossError: the compacted ledger is gone, or what `entry_ranges_between` says.
            SegmentsUnavailableError: it can't be read now.
        """
        compacted = snapshot.compacted
        if compacted is None:
            return entry_ranges_between(snapshot, start, end)
        first, last = 0, compacted.ledger.entries
        if start != BEGINNING and start < compacted.horizon:
            first = self._call(partial(self._find, snapshot, start))
        elif start >= compacted.horizon:
            first = last
        if end < compacted.horizon:
            # An end within a batch: its entry belongs to the range.
            last = self._call(partial(self._find, snapshot, end, behind=end.batch_index > 0))
        return compacted_ranges_between(snapshot, start, end, (first, last))

    def published_at(self, snapshot: TopicSnapshot, time_ms: int) -> Offset:
        """Before the first entry of the compacted ledger that was published at that time or later;
        `END`: there is none.

        Raises:
            DataLossError, SegmentsUnavailableError.
        """
        return self._call(partial(self._find_time, snapshot, time_ms))

    async def _find(self, snapshot: TopicSnapshot, point: Offset, *, behind: bool = False) -> int:
        """The first entry of the compacted ledger at a point, or behind that point's entry."""
        place = point[:2] if not behind else (point.ledger_id, point.entry_id + 1)
        assert snapshot.compacted is not None
        reader = self._reader_of(snapshot)
        entry, _ = await reader.find_compacted(
            snapshot.compacted.ledger, lambda position, _: position < place
        )
        return entry

    async def _find_time(self, snapshot: TopicSnapshot, time_ms: int) -> Offset:
        assert snapshot.compacted is not None
        ledger = snapshot.compacted.ledger

        def is_before(_: Position, stored: Buffer) -> bool:
            heads, _bodies = PULSAR_ENTRIES.split([stored])
            return parse_header(heads[0]).publish_time_ms < time_ms

        entry, position = await self._reader_of(snapshot).find_compacted(ledger, is_before)
        return END if entry == ledger.entries else Offset(*position)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._thread is None:
            thread = LoopThread("plan-reader")
            try:
                thread.call(self._open())
            except BaseException:
                thread.close()
                raise
            self._thread = thread
        return self._thread.call(work())

    async def _open(self) -> None:
        self._bookies, self._partition_readers = BookieConnections(self._cluster), {}

    async def _walk(
        self, snapshot: TopicSnapshot, pieces: list[EntryRange], walk: EntryIterator
    ) -> Offset | None:
        partition_reader = self._reader_of(snapshot)
        if pieces:
            partition_reader.begin(pieces[0].ledger.ledger_id)
        for piece in pieces:
            at, point = piece.first, piece.start_point
            while at < piece.end:
                counts, sizes, positions = await partition_reader.read_patiently(
                    *(piece.ledger.ledger_id, at, _PAUSES_S),
                    partial(self._counts, partition_reader, piece, at),
                )
                taken = walk.take(counts, sizes)
                at += taken
                if taken:
                    point = Offset(*positions[taken - 1]).after_entry
                if walk.is_full:
                    return point
        return None

    def _reader_of(self, snapshot: TopicSnapshot) -> PartitionReader:
        found = self._partition_readers.get(snapshot.topic)
        if found is None:
            found = self._partition_readers[snapshot.topic] = PartitionReader(
                *(snapshot.topic, self._cluster, self._bookies),
                compacted=self._compacted,
            )
        self._bookies.note_places(snapshot.bookies, snapshot.instance_id, snapshot.bookie_protocol)
        self._bookies.note_token(snapshot.bookie_token)  # of this topic: calls never overlap
        return found

    async def _counts(
        self, partition_reader: PartitionReader, piece: EntryRange, at: int
    ) -> tuple[list[int], list[int], list[Position]]:
        """Messages, bytes and positions of entries from ``at`` on, of one at least."""
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
            positions, stored, sizes = _stored(piece, at, found.heads, found.sizes)
            if counts := leading_counts(stored, sizes):
                return counts, sizes[: len(counts)], positions[: len(counts)]
            last = at  # only this one is read as a whole
        run = await reader.read(at, last, _RUN_BYTES)
        positions, stored, sizes = _stored(piece, at, run.bodies, list(map(len, run.bodies)))
        heads, _ = PULSAR_ENTRIES.split(stored)
        return message_counts(heads), sizes, positions


def _stored(
    piece: EntryRange, at: int, found: Sequence[Buffer], sizes: list[int]
) -> tuple[list[Position], Sequence[Buffer], list[int]]:
    """Positions in the topic, beginnings and sizes of entries, which are read from ``at`` on.

    Args:
        found, sizes: of what lies in the ledger.

    Raises:
        CompactedEntryError.
    """
    if piece.points is None:
        ledger_id = piece.ledger.ledger_id
        return [(ledger_id, at + index) for index in range(len(found))], found, sizes
    heads = list(map(decode_compacted_head, found))
    stored = [entry[first:] for entry, (_, first, _) in zip(found, heads, strict=True)]
    return [head[0] for head in heads], stored, [end - first for _, first, end in heads]
