"""Reads topics as a stream: offsets are points of partitions, kept in Spark's checkpoint.

The driver decides how far a batch reaches, from what owners of topics say is confirmed and, where
there are limits, from heads of entries; tasks read as those of the batch source do. How a batch is
cut into tasks depends on its ends alone (``plan.py``), so that a batch which is repeated after a
crash is the same in every row and in its order.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from magnetar.pipeline.admin import Admin, ClusterAccess, NoSuchTopicError
from magnetar.pipeline.batch_source import TaskSettings, check_loss, read_slice
from magnetar.pipeline.errors import DataLossError, PipelineError
from magnetar.pipeline.offsets import (
    BEGINNING,
    Offset,
    Offsets,
    compacted_from_json,
    stream_offsets_from_json,
    stream_offsets_to_json,
)
from magnetar.pipeline.options import ReadOptions, TriggerLimits
from magnetar.pipeline.plan_reader import PlanReader
from magnetar.pipeline.read_plan import (
    BatchQuota,
    EntryIterator,
    EntryRange,
    cut_by_count,
    entries_of,
    entry_ranges_between,
    shares_of,
)
from magnetar.pipeline.topic_snapshot import TopicSnapshot
from magnetar.pipeline.topics import find_partitions, is_part_of, resolve_bound, snapshot_of

_log = logging.getLogger(__name__)

_DISCOVERY_S: Final = 5.0
"""Between two looks for new topics and partitions."""
_IDLE_S: Final = 0.1
"""Between two looks at topics that had nothing new. Without a trigger interval Spark asks a hundred
times a second, and each time every owner would be asked.
"""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The messages of one partition that wait for the next batch."""

    snapshot: TopicSnapshot
    pieces: list[EntryRange]
    end: Offset


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream.format("magnetar")``; lives in a process of its own beside the driver."""

    def __init__(
        self,
        cluster: ClusterAccess,
        columns: tuple[str, ...],
        options: ReadOptions,
        limits: TriggerLimits,
    ) -> None:
        self._cluster, self._columns = cluster, columns
        self._options, self._limits = options, limits
        self._admin = Admin(cluster)
        self._reader = PlanReader(cluster, compacted=options.read_compacted)
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._newest: Offsets = {}
        self._batch_since_s = time.monotonic()
        self._moved_to: Offsets = {}  # where the cursor is
        self._known: list[str] = []
        self._discovered_s = -_DISCOVERY_S
        self._gone: set[str] = set()  # partitions that were read and don't exist now
        self._idle_since_s = 0.0  # when a look found nothing; 0: the last one found something

    # ---- how far

    def initialOffset(self) -> dict[str, Any]:
        offsets: Offsets = {}
        for name in find_partitions(self._admin, self._options.topics):
            snapshot = snapshot_of(self._admin, name, compacted=self._options.read_compacted)
            if snapshot is not None:
                offsets[name] = resolve_bound(
                    self._admin, self._options.starting, snapshot, self._reader
                )
        self._move_cursor(offsets)  # nothing of it may be trimmed from now on
        return stream_offsets_to_json(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands this to ``latestOffset``, unless a trigger overrides it; of several
        limits it can name one only, so the others are looked up there.
        """
        limits = self._limits
        if limits.messages_max:
            return ReadMaxRows(limits.messages_max)
        if limits.bytes_max:
            return ReadMaxBytes(limits.bytes_max)
        if limits.messages_min:
            return ReadMinRows(limits.messages_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {}
        lenient = not self._options.fail_on_data_loss
        for name in find_partitions(self._admin, self._options.topics, lambda _: lenient):
            snapshot = snapshot_of(self._admin, name)
            if snapshot is not None:
                self._target[name] = snapshot.end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return stream_offsets_to_json(self._newest) if self._newest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = stream_offsets_from_json(start)
        # Spark calls ``commit`` with the batch that follows, which may not come for long.
        self._move_cursor(begin)
        if self._target is None:
            self._pace()
        limited = not isinstance(limit, ReadAllAvailable)
        waiting = self._look(begin, with_places=limited)
        end, compacted = dict(begin), compacted_from_json(start)
        if limited:
            end.update(self._admit(waiting))
        else:
            end.update((name, each.end) for name, each in waiting.items())
        for name, point in end.items():
            if point == begin.get(name):
                continue
            compacted.pop(name, None)
            if (part := waiting[name].snapshot.compacted) is not None:
                compacted[name] = part.ledger.ledger_id
        now_s = time.monotonic()
        self._idle_since_s = now_s
        if end != begin:
            self._batch_since_s, self._idle_since_s = now_s, 0.0
        return stream_offsets_to_json(end, compacted)

    def _look(self, begin: Offsets, *, with_places: bool) -> dict[str, _Waiting]:
        """Partitions with something to read."""
        waiting: dict[str, _Waiting] = {}
        for name in self._partitions(begin):
            start = begin.get(name, BEGINNING)
            try:
                snapshot = self._admin.segments(
                    *(name, start.ledger_id),
                    locations=with_places,
                    compacted=self._options.read_compacted,
                )
            except NoSuchTopicError as error:
                self._lost(name, start, str(error))
                continue
            self._gone.discard(name)
            self._newest[name] = snapshot.end
            end = snapshot.end
            if self._target is not None:
                end = min(end, self._target.get(name, start))
            check_loss(snapshot, start, self._options.fail_on_data_loss)
            if snapshot.compacted is not None:
                if start >= snapshot.compacted.horizon:
                    snapshot = replace(snapshot, compacted=None)
                elif start < end:  # without limits nobody asks what there is
                    pieces = self._reader.ranges(snapshot, start, end) if with_places else []
                    waiting[name] = _Waiting(snapshot, pieces, end)
                    continue
            if start == BEGINNING:
                # It has to be in the checkpoint where reading begins, before anything is read: a
                # batch that is repeated must not begin elsewhere because something was trimmed.
                first = min(snapshot.first, end)
                if first > BEGINNING:  # else no client has used it, and the others don't wait
                    waiting[name] = _Waiting(snapshot, [], first)
                continue
            pieces = entry_ranges_between(snapshot, start, end)
            if pieces:
                waiting[name] = _Waiting(snapshot, pieces, end)
        return waiting

    def _partitions(self, begin: Offsets) -> list[str]:
        """Those that are read already, and new ones."""
        if self._target is not None:
            return sorted({*begin, *self._target})
        now_s = time.monotonic()
        if now_s - self._discovered_s >= _DISCOVERY_S:
            # What was read and is gone is a loss, or none; what never was is a mistake.
            self._known = find_partitions(
                self._admin,
                self._options.topics,
                lambda name: any(is_part_of(each, name) for each in begin),
            )
            self._discovered_s = now_s
        return sorted({*begin, *self._known})

    def _pace(self) -> None:
        """Wait a little where the last look, a moment ago, found nothing."""
        left_s = self._idle_since_s + _IDLE_S - time.monotonic()
        if self._idle_since_s and left_s > 0:
            time.sleep(left_s)

    def _lost(self, name: str, start: Offset, reason: str) -> None:
        if start == BEGINNING:
            return  # no client has used this partition yet
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{reason}: it was read up to {start}")
        if name not in self._gone:
            _log.warning("%s: it was read up to %s; left out", reason, start)
        self._gone.add(name)

    def _admit(self, waiting: dict[str, _Waiting]) -> Offsets:
        """Ends of the next batch within the limits; {}: it is too early for one."""
        limits = self._limits
        if beginnings := {name: each.end for name, each in waiting.items() if not each.pieces}:
            return beginnings
        if limits.messages_min and self._is_too_early(waiting):
            return {}
        if not limits.messages_max and not limits.bytes_max:
            return {name: each.end for name, each in waiting.items()}
        available = {
            name: (entries_of(each.pieces), int(sum(piece.size for piece in each.pieces)))
            for name, each in waiting.items()
        }
        ends: Offsets = {}
        for name, share in shares_of(available, limits.messages_max, limits.bytes_max).items():
            each = waiting[name]
            point = self._reader.walk(each.snapshot, each.pieces, EntryIterator(share))
            ends[name] = each.end if point is None else point
        return ends

    def _is_too_early(self, waiting: dict[str, _Waiting]) -> bool:
        """Fewer messages wait than a batch shall have, and there is time left."""
        limits = self._limits
        if self._target is not None:  # else the query would wait for ever
            return False
        if (time.monotonic() - self._batch_since_s) * 1000 >= limits.delay_max_ms:
            return False
        missing = limits.messages_min
        for each in waiting.values():
            walk = EntryIterator(BatchQuota(messages=missing))
            self._reader.walk(each.snapshot, each.pieces, walk)
            missing -= walk.messages
            if missing <= 0 or walk.is_full:
                return False
        return True

    # ---- the batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = stream_offsets_from_json(start), stream_offsets_from_json(end)
        compacted = compacted_from_json(end)
        ranges = []
        for name, last in until.items():
            first = begin.get(name, BEGINNING)
            if first >= last:
                continue
            try:
                snapshot = self._admin.segments(
                    name, first.ledger_id, compacted=self._options.read_compacted
                )
            except NoSuchTopicError as error:
                self._lost(name, first, str(error))
                continue
            snapshot = self._as_planned(snapshot, first, compacted.get(name))
            check_loss(snapshot, first, self._options.fail_on_data_loss)
            if last > snapshot.end:
                raise DataLossError(
                    f"{name}: the checkpoint ends at {last}, the topic at {snapshot.end}: "
                    "is it another cluster, or was the topic made anew?"
                )
            ranges.append((snapshot, self._reader.ranges(snapshot, first, last)))
        ranges = [(snapshot, pieces) for snapshot, pieces in ranges if pieces]
        slices = cut_by_count(ranges, self._options.partitions_min)
        # Where the batch begins, not its first entry that is left: see ``read_slice``.
        return [
            InputPartition(replace(part, begin=begin.get(part.topic, BEGINNING))) for part in slices
        ]

    def _as_planned(
        self, snapshot: TopicSnapshot, start: Offset, planned: int | None
    ) -> TopicSnapshot:
        """With the compacted ledger that the batch's end names, or without any.

        Another one has other rows in the same range. A batch that is repeated would differ.
        """
        found = snapshot.compacted
        if planned is None:
            was_behind = found is None or start >= found.horizon
            return snapshot if was_behind else replace(snapshot, compacted=None)
        if found is None or found.ledger.ledger_id != planned:
            text = f"{snapshot.topic}: another compaction has replaced ledger {planned}"
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{text}: a batch that has to be repeated would have other rows. Set the "
                    "option failOnDataLoss to false to read what the new one left"
                )
            _log.warning("%s: read anew", text)
        return snapshot

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        settings = TaskSettings(
            *(self._cluster, self._columns, options), whole_chunks=not options.read_compacted
        )
        return read_slice(partition.value, settings)

    def commit(self, end: dict[str, Any]) -> None:
        self._move_cursor(stream_offsets_from_json(end))

    def _move_cursor(self, done: Offsets) -> None:
        """Everything below ``done`` was processed. A cursor that can't be moved now is moved the
        next time: it is for people who look at the backlog, and for retention.

        It stays one entry behind. The ledger that a batch ends with would be trimmed otherwise, and
        no broker could tell later whether there had been more behind that end.
        """
        if not self._options.cursor:
            return
        for name, point in done.items():
            if self._moved_to.get(name) == point:
                continue
            behind = Offset(point.ledger_id, max(0, point.entry_id - 1))
            try:
                self._admin.move_cursor(name, self._options.cursor, behind)
            except PipelineError as error:
                _log.warning("cursor not moved: %s", error)
            else:
                self._moved_to[name] = point

    def stop(self) -> None:
        self._reader.close()
        self._admin.close()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get what ``read`` needs; connections stay here."""
        state = dict(self.__dict__)
        state["_admin"] = Admin(self._cluster)
        state["_reader"] = PlanReader(self._cluster, compacted=self._options.read_compacted)
        return state
