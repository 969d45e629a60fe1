"""Reads topics as a table: the driver plans, each task reads one slice from bookies."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from magnetar.broker.protocol.topic_name import TopicName
from magnetar.pipeline.admin import Admin, ClusterAccess
from magnetar.pipeline.chunks import Chunk, ChunkLookback, MissingChunk
from magnetar.pipeline.decode import EntryDecoder
from magnetar.pipeline.errors import DataLossError
from magnetar.pipeline.filters import RowFilters, wanted_by
from magnetar.pipeline.offsets import Offset
from magnetar.pipeline.options import ReadOptions
from magnetar.pipeline.plan_reader import PlanReader
from magnetar.pipeline.read_plan import (
    EntryRange,
    InputSplit,
    cut_by_size,
    lost_before,
    narrow_by_id,
    narrow_by_time,
)
from magnetar.pipeline.split_reader import SplitReader
from magnetar.pipeline.topic_snapshot import TopicSnapshot
from magnetar.pipeline.topics import find_partitions, resolve_bound, snapshot_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """A task needs these besides its slice."""

    cluster: ClusterAccess
    columns: tuple[str, ...]
    options: ReadOptions
    publish_ms: tuple[int | None, int | None] = (None, None)
    whole_chunks: bool = False
    """In a stream, a chunked message whose beginning was trimmed is a loss, unless the stream has
    just begun where the topic begins, which then never had it as a whole. In a compacted view it is
    none: Pulsar's compaction leaves single chunks.
    """


class BatchReader(DataSourceReader):
    """``spark.read.format("magnetar")``; see docs/guides/spark.md."""

    def __init__(
        self, cluster: ClusterAccess, columns: tuple[str, ...], options: ReadOptions
    ) -> None:
        self._cluster, self._columns, self._options = cluster, columns, options
        self._wanted = RowFilters()

    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self._wanted
        ranges: list[tuple[TopicSnapshot, list[EntryRange]]] = []
        compacted = options.read_compacted
        reader = PlanReader(self._cluster, compacted=compacted)
        with Admin(self._cluster) as admin, closing(reader):
            for name in find_partitions(admin, options.topics):
                if not _is_wanted(name, wanted):
                    continue
                snapshot = snapshot_of(admin, name, compacted=compacted)
                if snapshot is not None:
                    ranges.append((snapshot, self._pieces(admin, snapshot, reader)))
        slices = cut_by_size(
            [(snapshot, pieces) for snapshot, pieces in ranges if pieces],
            options.partition_bytes,
            options.partitions_min,
        )
        return [InputPartition(part) for part in slices]

    def _pieces(
        self, admin: Admin, snapshot: TopicSnapshot, reader: PlanReader
    ) -> list[EntryRange]:
        options, wanted = self._options, self._wanted
        start = resolve_bound(admin, options.starting, snapshot, reader)
        end = resolve_bound(admin, options.ending, snapshot, reader)
        check_loss(snapshot, start, options.fail_on_data_loss)
        pieces = reader.ranges(snapshot, start, end)
        first_ms, last_ms = wanted.publish_ms
        if options.clock_skew_ms >= 0 and (first_ms is not None or last_ms is not None):
            last_ms = 2**63 - 1 if last_ms is None else last_ms
            pieces = narrow_by_time(pieces, first_ms or 0, last_ms, options.clock_skew_ms)
        return narrow_by_id(pieces, wanted.ledger_ids, wanted.entry_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's stand-in where there is nothing
            return iter(())
        settings = TaskSettings(
            self._cluster, self._columns, self._options, self._wanted.publish_ms
        )
        return read_slice(partition.value, settings)


class FilteringBatchReader(BatchReader):
    """Obeys filters. Spark refuses a reader that could where its setting forbids it, hence two."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = wanted_by(filters)
        return filters


def check_loss(snapshot: TopicSnapshot, start: Offset, fail: bool) -> None:
    """Raises DataLossError where messages from ``start`` on are gone; or only warns."""
    loss = lost_before(snapshot, start)
    if not loss:
        return
    if fail:
        raise DataLossError(
            f"{loss}. They were trimmed, or the topic was deleted and made again. Set the option "
            "failOnDataLoss to false to go on with what is there"
        )
    _log.warning("left out: %s", loss)


def _is_wanted(partition: str, wanted: RowFilters) -> bool:
    name = TopicName.parse(partition)
    if wanted.partitions is not None and name.partition_index not in wanted.partitions:
        return False
    return wanted.topics is None or str(name.base) in wanted.topics


def read_slice(part: InputSplit, settings: TaskSettings) -> Iterator[pa.RecordBatch]:
    """The rows of one slice; runs in a Spark task.

    Raises:
        DataLossError, SegmentsUnavailableError, UndecodableError.
    """
    name = TopicName.parse(part.topic)
    decoder = EntryDecoder(
        settings.columns,
        str(name.base),
        name.partition_index,
        start=part.pieces[0].start_point,
        end=part.pieces[-1].end_point,
        publish_time_ms=settings.publish_ms,
        encrypted=settings.options.encrypted,
    )
    fail = settings.options.fail_on_data_loss
    with SplitReader(part, settings.cluster, fail_on_data_loss=fail) as reader:
        for run in reader.runs():
            decoder.add(run.ledger_id, run.first, run.heads, run.bodies)
            while (batch := decoder.take()) is not None or decoder.missing is not None:
                if batch is not None:
                    yield batch
                elif (missing := decoder.missing) is not None:
                    chunks, first = _look_back(reader, missing)
                    if chunks is None and fail and settings.whole_chunks and first != part.begin:
                        raise DataLossError(
                            f"{part.topic}: the message in chunks that ends at "
                            f"{missing.ledger_id}:{missing.entry_id} is not stored any more as a "
                            "whole. Set the option failOnDataLoss to false to go on without it"
                        )
                    decoder.resolve(chunks)
        if (batch := decoder.finish()) is not None:
            yield batch
    if decoder.encrypted_skipped or decoder.incomplete_chunked:
        _log.warning(
            "%s: %d encrypted entries left out, %d chunked messages without a beginning",
            *(part.topic, decoder.encrypted_skipped, decoder.incomplete_chunked),
        )


def _look_back(reader: SplitReader, missing: MissingChunk) -> tuple[list[Chunk] | None, Offset]:
    """The beginning of a chunked message, from entries before the slice; and how far back that is
    or, where it isn't found, where the topic begins now.
    """
    lookback = ChunkLookback(missing)
    first = Offset(missing.ledger_id, missing.entry_id)
    windows = reader.windows_before(missing.ledger_id, missing.entry_id)
    with suppress(DataLossError):  # trimmed while we look: not found is what it means
        while not lookback.done and (window := next(windows, None)) is not None:
            lookback.add(window.heads, window.bodies)
            first = Offset(window.ledger_id, window.first)
    return lookback.chunks(), first
