"""Topics to Parquet: exactly the recorded range of message ids, resumable, run after run.

A run reads a fixed range of each partition, writes its files into a folder of its own, reads them
back to count and check, and then writes its manifest, at once and durably: before that the run
doesn't exist, and whatever it left is removed by the next one. A large export is several runs, so
that a kill costs one of them. Nothing is renamed but manifests, which suits object stores.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from magnetar.broker.protocol.topic_name import TopicName
from magnetar.pipeline.admin import Admin, parse_access
from magnetar.pipeline.errors import (
    BrokenExportError,
    DataLossError,
    JobError,
    OptionsError,
    PipelineError,
)
from magnetar.pipeline.jobs.files import Files
from magnetar.pipeline.jobs.job_cancellation import apart, cancelled_on_error, spark_errors
from magnetar.pipeline.jobs.manifest import (
    MANIFESTS,
    DataFile,
    ExportedRange,
    Manifest,
    check_chain,
    ends_of,
    file_name,
    number_of,
    run_folder,
)
from magnetar.pipeline.jobs.progress import Progress, size_text
from magnetar.pipeline.offsets import BEGINNING, Offset, Offsets, stream_offsets_to_json
from magnetar.pipeline.options import Bound, ReadOptions, parse_read_options
from magnetar.pipeline.read_plan import EntryRange, cut_step, entry_ranges_between, lost_before
from magnetar.pipeline.topic_snapshot import TopicSnapshot
from magnetar.pipeline.topics import find_partitions, resolve_bound, snapshot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_NEEDED: Final = ("topic", "partition", "ledgerId", "entryId", "batchIndex", "publishTime")
"""Columns that say which message a row is, and where its file is."""
_BOUNDS: Final = frozenset(
    (
        *("subscribe", "subscribepattern", "assign"),
        *("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"),
        *("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"),
    )
)
"""Options of the source that a run sets itself, in lower case."""
_DAY: Final = (
    "date_add(DATE'1970-01-01', CAST(floor(unix_micros(publishTime) / 86400000000) AS INT))"
)
"""In UTC, whatever the session's time zone is."""
_LOCK: Final = f"{MANIFESTS}/.lock"


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings of an export.

    Attributes:
        incremental: go on where the last run ended; False: the folder must not hold an export yet.
        columns: of the source; (): all. Those that say which message a row is are always there.
        compression: of Parquet, as Spark spells it.
        run_bytes: stored bytes that one run takes, about: what a kill can cost.
        cursor: subscription that follows the export, so that brokers keep what isn't exported yet;
            "": none. It stays one entry behind: as long as that one's ledger is there, the next run
            can tell that nothing was lost.
    """

    incremental: bool = True
    columns: tuple[str, ...] = ()
    compression: str = "zstd"
    run_bytes: int = 8 * 1024**3
    cursor: str = ""


@dataclass(slots=True)
class _Part:
    """The messages of one partition that the export takes.

    Attributes:
        lost_from: see `ExportedRange`; of the next run only.
        is_new: no run has it yet, so that its beginning isn't recorded.
    """

    snapshot: TopicSnapshot
    start: Offset
    end: Offset
    lost_from: Offset | None
    is_new: bool


def export(
    spark: SparkSession,
    folder: str,
    options: Mapping[str, str],
    settings: ExportSettings | None = None,
    progress: Progress | None = None,
) -> list[Manifest]:
    """Export what topics hold now, or since the last run.

    Args:
        folder: local, or any URL that Spark can write to.
        options: those of ``spark.read.format("magnetar")``: ``adminUrl``, ``subscribe``, ...
            Starting offsets and times are for partitions that no run has yet.
    Returns:
        The new runs; []: there was nothing new.
    Raises:
        OptionsError: of the options.
        DataLossError: messages behind the last run are gone; ``failOnDataLoss`` false goes on.
        ExportBusyError: another export to the same folder.
        BrokenExportError: the folder holds something else.
        SegmentsUnavailableError, NoSuchTopicError: of the brokers.
        JobError: Spark failed; its text has the reason.
    """
    settings = settings or ExportSettings()
    job = _Export(spark, Files(spark, folder), options, settings, progress or Progress())
    with job.files.lock(_LOCK):
        return job.run()


def read_export(
    spark: SparkSession, folder: str, runs: Sequence[Manifest] | None = None
) -> DataFrame:
    """The rows of an export: of files that manifests list, and no others.

    Args:
        runs: of `read_manifests`; None: all.
    Returns:
        The columns of the source that were exported, and ``date``, the day of publishing in UTC.
    """
    files = Files(spark, folder)
    chosen = read_manifests(files) if runs is None else runs
    if not chosen:
        raise BrokenExportError(f"{files.root}: there is no export (no {MANIFESTS})")
    schema = chosen[-1].schema
    paths = exported_files(files, chosen)
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(f"{schema}, run STRING").option("basePath", files.root)
    # In the order of the schema: Spark puts columns that are in paths last.
    return reader.parquet(*paths).select(*(each.split(" ")[0] for each in schema.split(", ")))


def exported_files(files: Files, runs: Sequence[Manifest]) -> list[str]:
    """URLs of the files of these runs."""
    return [files.url(each.path) for run in runs for each in run.files]


def read_manifests(files: Files) -> list[Manifest]:
    """All runs of an export, ascending; []: there is none.

    Raises:
        BrokenExportError: the manifests don't make up one export.
    """
    numbers = sorted(
        number for name in files.names(MANIFESTS) if (number := number_of(name)) is not None
    )
    runs = []
    for number in numbers:
        path = f"{MANIFESTS}/{file_name(number)}"
        runs.append(Manifest.from_json(files.read(path), files.url(path)))
    check_chain(runs)
    return runs


@dataclass(frozen=True, slots=True)
class _FileOf:
    """Messages of one partition in one file: from ``first`` to ``last``, both included."""

    path: str
    partition: str
    rows: int
    first: Offset
    last: Offset


@dataclass
class _Export:
    """One call of `export`; holds the folder's lock."""

    _spark: SparkSession
    files: Files
    _options: Mapping[str, str]
    _settings: ExportSettings
    _progress: Progress

    def __post_init__(self) -> None:
        self._wanted: ReadOptions = parse_read_options(self._options, streaming=False)
        if self._wanted.read_compacted:  # a later run would take up where there is nothing to add
            raise OptionsError("option readCompacted: an export has every message")
        self._runs: list[Manifest] = []
        self._id = uuid.uuid4().hex
        self._columns = _ddl(self._settings.columns)

    def run(self) -> list[Manifest]:
        self._runs = read_manifests(self.files)
        if self._runs and not self._settings.incremental:
            raise JobError(
                f"{self.files.root} holds an export already: choose another folder, or leave "
                "--no-incremental out to add what is new"
            )
        self._remove_rests()
        if self._runs:
            self._id = self._runs[0].export
        parts = self._plan()
        new: list[Manifest] = []
        while (step := self._next_step(parts)) is not None:
            ends, size = step
            manifest = self._export_run(parts, ends, size)
            self._runs.append(manifest)
            new.append(manifest)
        return new

    def _remove_rests(self) -> None:
        """Delete the folders of runs that have no manifest."""
        known = {each.run for each in self._runs}
        for name in self.files.names(""):
            if name.startswith("run=") and name not in known:
                self._progress.say(f"removing {name}, which an earlier export didn't finish")
                self.files.delete(name)

    # ---- what

    def _plan(self) -> dict[str, _Part]:
        """Ranges by partition; the ends stay what they are, however long the export takes."""
        before = ends_of(self._runs)
        parts: dict[str, _Part] = {}
        with Admin(parse_access(self._options)) as admin:
            for name in find_partitions(admin, self._wanted.topics):
                snapshot = snapshot_of(admin, name)
                if snapshot is None:
                    if name in before and self._wanted.fail_on_data_loss:
                        raise DataLossError(
                            f"{name}: exported up to {before[name]}, but it doesn't exist any more"
                        )
                    continue
                self._check_cluster(snapshot)
                parts[name] = self._part(admin, snapshot, before.get(name))
        return parts

    def _part(self, admin: Admin, snapshot: TopicSnapshot, before: Offset | None) -> _Part:
        end = resolve_bound(admin, self._wanted.ending, snapshot)
        start = before
        if start is None:
            start = resolve_bound(admin, self._wanted.starting, snapshot)
        lost_from = None
        if loss := lost_before(snapshot, start):
            if self._wanted.fail_on_data_loss:
                raise DataLossError(
                    f"{loss}. They were trimmed before they were exported, or the topic was "
                    "deleted and made again. Set failOnDataLoss to false to go on with what is "
                    "there; the manifest will tell the gap"
                )
            lost_from, start = start, snapshot.first
            self._progress.say(f"left out: {loss}")
        end = max(start, min(end, snapshot.end))
        pieces = entry_ranges_between(snapshot, start, end)
        if pieces and end.entry_id == 0 and not end.batch_index:
            # Behind the last entry rather than before a ledger without any, which may vanish.
            end = Offset(pieces[-1].ledger.ledger_id, pieces[-1].end)
        return _Part(snapshot, start, end, lost_from, before is None)

    def _check_cluster(self, snapshot: TopicSnapshot) -> None:
        known = next((each.instance_id for each in self._runs if each.instance_id), "")
        if known and snapshot.instance_id and known != snapshot.instance_id:
            raise JobError(
                f"{self.files.root} holds an export of another cluster ({known}, not "
                f"{snapshot.instance_id}): ids of messages of both don't go together"
            )

    def _next_step(self, parts: Mapping[str, _Part]) -> tuple[Offsets, int] | None:
        """Ends of the next run, and its size; None: all is done."""
        waiting: dict[str, tuple[Sequence[EntryRange], Offset]] = {}
        for name, part in parts.items():
            pieces = entry_ranges_between(part.snapshot, part.start, part.end)
            if pieces:
                waiting[name] = pieces, part.end
        ends, size = cut_step(waiting, self._settings.run_bytes) if waiting else ({}, 0)
        for name, part in parts.items():
            # An empty range is recorded, too, where it says where to begin the next time, or that
            # something was lost.
            is_chosen = part.is_new and self._wanted.starting != Bound(BEGINNING)
            if name not in ends and (is_chosen or part.lost_from is not None):
                ends[name] = part.start
        return (ends, size) if ends else None

    # ---- how

    def _export_run(self, parts: Mapping[str, _Part], ends: Offsets, size: int) -> Manifest:
        number = len(self._runs) + 1
        folder = run_folder(number, uuid.uuid4().hex[:8])
        ranges = {name: (parts[name].start, end) for name, end in ends.items()}
        full = {name: each for name, each in ranges.items() if each[0] < each[1]}
        self._progress.say(
            f"export run {number}: {len(full)} partitions of topics, about {size_text(size)}"
        )
        is_written = False
        try:
            found = self._write(folder, number, full)
            rows: Counter[str] = Counter()
            for each in found:
                rows[each.partition] += each.rows
            spans = {
                name: ExportedRange(start, end, rows[name], parts[name].lost_from)
                for name, (start, end) in ranges.items()
            }
            manifest = self._manifest(parts, folder, spans, found)
            self.files.write(f"{MANIFESTS}/{file_name(number)}", manifest.to_json())
            is_written = True
        finally:
            if not is_written:  # cancelled or failed; a kill leaves it to the next run
                apart(lambda: self.files.delete(folder))
        self._move_cursors(ends)
        for name, end in ends.items():
            parts[name].start, parts[name].lost_from, parts[name].is_new = end, None, False
        self._progress.say(
            f"export run {number}: {manifest.rows:,} rows in {len(manifest.files)} files, "
            f"{size_text(manifest.size)}"
        )
        return manifest

    def _move_cursors(self, ends: Offsets) -> None:
        """A cursor that a broker can't move now moves after the next run."""
        if not self._settings.cursor:
            return
        with Admin(parse_access(self._options)) as admin:
            for name, end in ends.items():
                if end == BEGINNING:
                    continue
                kept = end._replace(entry_id=max(0, end.entry_id - 1), batch_index=0)
                try:
                    admin.move_cursor(name, self._settings.cursor, kept)
                except PipelineError as error:
                    _log.warning("cursor not moved: %s", error)

    def _write(
        self, folder: str, number: int, ranges: Mapping[str, tuple[Offset, Offset]]
    ) -> list[_FileOf]:
        """Write a run's files, read them back, and say what is in them."""
        if not ranges:
            return []
        writer = self._source(ranges).write.partitionBy("topic", "date").mode("errorifexists")
        writer = writer.option("compression", self._settings.compression)
        watching, spark = self._progress.watching, self._spark
        with spark_errors(), cancelled_on_error(spark, folder):
            with watching(spark, f"export run {number}"):
                writer.parquet(self.files.url(folder))
            with watching(spark, f"check of run {number}"):
                found = self._read_back(folder)
        _check_rows(found, ranges)
        return found

    def _source(self, ranges: Mapping[str, tuple[Offset, Offset]]) -> DataFrame:
        from pyspark.sql import functions as sql

        from magnetar.pipeline.source import read_topics

        options = {
            name: text for name, text in self._options.items() if name.lower() not in _BOUNDS
        }
        starts = stream_offsets_to_json({name: start for name, (start, _) in ranges.items()})
        ends = stream_offsets_to_json({name: end for name, (_, end) in ranges.items()})
        options["assign"] = json.dumps(_assigned(ranges))
        options["startingOffsets"], options["endingOffsets"] = json.dumps(starts), json.dumps(ends)
        table = read_topics(self._spark, self._columns, **options)
        return table.withColumn("date", sql.expr(_DAY))

    def _read_back(self, folder: str) -> list[_FileOf]:
        from pyspark.sql import functions as sql

        if not any(path.endswith(".parquet") for path in self.files.sizes(folder)):
            return []  # nothing but entries without messages
        ids = sql.struct("ledgerId", "entryId", sql.greatest("batchIndex", sql.lit(0)))
        reader = self._spark.read.schema(f"{self._columns}, date date")
        grouped = reader.parquet(self.files.url(folder)).groupBy(
            sql.col("_metadata.file_path").alias("file"), "topic", "partition"
        )
        rows = grouped.agg(
            sql.count("*").alias("rows"), sql.min(ids).alias("first"), sql.max(ids).alias("last")
        ).collect()
        return [
            _FileOf(
                self.files.relative(row.file),
                _partition_name(row.topic, row.partition),
                row.rows,
                Offset(*row.first),
                Offset(*row.last),
            )
            for row in rows
        ]

    def _manifest(
        self,
        parts: Mapping[str, _Part],
        folder: str,
        spans: Mapping[str, ExportedRange],
        found: Sequence[_FileOf],
    ) -> Manifest:
        sizes = self.files.sizes(folder) if found else {}
        rows: Counter[str] = Counter()
        for each in found:
            rows[each.path] += each.rows
        paths = sorted(rows)
        # A manifest lists no file without rows, so no reader opens one.
        self.files.sync(paths)
        sums = self.files.sha256(paths)
        return Manifest(
            export=self._id,
            number=len(self._runs) + 1,
            run=folder,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            magnetar=_product_version(),
            spark=self._spark.version,
            instance_id=next(
                (each.snapshot.instance_id for each in parts.values() if each.snapshot.instance_id),
                "",
            ),
            schema=f"{self._columns}, date date",
            spans=spans,
            files=tuple(
                DataFile(path, sizes[path], rows[path], digest)
                for path, digest in zip(paths, sums, strict=True)
            ),
        )


def _check_rows(found: Sequence[_FileOf], ranges: Mapping[str, tuple[Offset, Offset]]) -> None:
    """Raises JobError: a file holds what wasn't asked for; it would be a bug of ours."""
    for each in found:
        start, end = ranges.get(each.partition, (each.last, each.first))
        if not start <= each.first <= each.last < end:
            raise JobError(
                f"{each.path} holds messages of {each.partition} from {each.first} to {each.last}, "
                f"but {start} to {end} was asked for: nothing was recorded"
            )


def _assigned(partitions: Iterable[str]) -> dict[str, list[int]]:
    """As the option ``assign`` wants them: [] for a topic without partitions."""
    assigned: dict[str, list[int]] = {}
    for each in partitions:
        name = TopicName.parse(each)
        numbers = assigned.setdefault(str(name.base), [])
        if name.is_partition:
            numbers.append(name.partition_index)
    return assigned


def _partition_name(topic: str, partition: int) -> str:
    """Full name of the partition that a row is of."""
    return topic if partition < 0 else str(TopicName.parse(topic).partition(partition))


def _ddl(columns: Sequence[str]) -> str:
    """Raises OptionsError: an unknown column."""
    from magnetar.pipeline.row_columns import COLUMNS, SPARK_TYPES

    wanted = set(columns or COLUMNS)
    if unknown := wanted.difference(COLUMNS):
        raise OptionsError(
            f"no such column: {', '.join(sorted(unknown))}; there are: {', '.join(COLUMNS)}"
        )
    chosen = [name for name in COLUMNS if name in wanted or name in _NEEDED]
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in chosen)


def _product_version() -> str:
    """ "": not installed, but run out of its sources."""
    try:
        return version("magnetar")
    except PackageNotFoundError:
        return ""
