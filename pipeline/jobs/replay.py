"""Parquet back to a topic, in the order it was published in, each message once.

Every message of a source partition goes through one Spark task, sorted by its message id, so that
order is kept and a second attempt meets the same rows in the same order. The tasks produce under
names that follow from the replay's own name, and brokers drop what they have stored already
(docs/reference/policies.md, deduplication). An export is replayed run by run; a small file beside
its manifests says which run is done, so that a later replay goes on with what was exported since.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.pipeline.admin import Admin, NoSuchTopicError, parse_access
from magnetar.pipeline.errors import BrokenExportError, OptionsError
from magnetar.pipeline.jobs.export import read_export, read_manifests
from magnetar.pipeline.jobs.files import Files
from magnetar.pipeline.jobs.job_cancellation import cancelled_on_error, spark_errors
from magnetar.pipeline.jobs.manifest import MANIFESTS, REPLAYS, Manifest
from magnetar.pipeline.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_IDS: Final = ("ledgerId", "entryId", "batchIndex")
_SENT: Final = ("key", "value", "properties", "eventTime", "deliverAt", "orderingKey")
"""Columns that become parts of a message, if they are there; ``value`` must be."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STEP_S: Final = 0.25
"""Rows that are paced leave in steps of about so long."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of a replay.

    Attributes:
        source_topic: of an export of several topics: full or short name of the one to replay.
        name: of this replay: a second one of the same name goes on where the first one ended, one
            of another name sends everything again. "": follows from the export and the topic.
        rows_per_s: of all tasks together; 0: as fast as brokers take them.
        keep_partitions: send a row to the partition it came from, if the topic has that many.
        keep_delays: rows whose ``deliverAt`` is still to come are delivered then; else at once.
        order_by: columns that tell the order within a partition; (): message ids.
    """

    source_topic: str = ""
    name: str = ""
    rows_per_s: float = 0.0
    keep_partitions: bool = True
    keep_delays: bool = False
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a call of `replay`.

    Attributes:
        name: of the replay.
        runs: numbers of the export's runs that it sent; []: none was left.
        rows: of them. Those that an earlier, killed call had stored already are among them.
    """

    name: str
    runs: list[int] = field(default_factory=list)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _State:
    """How far a replay of an export has come.

    Attributes:
        done: number of the last run that was sent completely.
    """

    topic: str
    source_topic: str
    done: int

    def to_json(self) -> str:
        return json.dumps(
            {"topic": self.topic, "sourceTopic": self.source_topic, "done": self.done}
        )

    @classmethod
    def from_json(cls, text: str, where: str) -> _State:
        try:
            value = json.loads(text)
            return cls(str(value["topic"]), str(value["sourceTopic"]), int(value["done"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenExportError(f"{where}: not the state of a replay: {error!r}") from error


def replay(
    spark: SparkSession,
    source: str,
    topic: str,
    options: Mapping[str, str],
    settings: ReplaySettings | None = None,
    progress: Progress | None = None,
) -> ReplayResult:
    """Send the messages of an export, or of other Parquet files with the sink's columns.

    Args:
        source: folder of an export, or anything that ``spark.read.parquet`` takes.
        topic: where to; brokers must de-duplicate it, see docs/guides/spark.md.
        options: of the sink: ``serviceUrl``, ``adminUrl``, credentials, ``compression``, ...
    Raises:
        OptionsError: of options and settings.
        ExportBusyError: another replay of this name, from the same folder.
        BrokenExportError: the folder isn't what its manifests say.
        WriteError, SegmentsUnavailableError: of the brokers.
        JobError: Spark failed; its text has the reason.
    """
    settings = settings or ReplaySettings()
    if settings.name and _NAME.fullmatch(settings.name) is None:
        raise OptionsError(f"name {settings.name!r}: letters, digits, dots, dashes, up to 100")
    if settings.rows_per_s < 0:
        raise OptionsError("the rate must be above 0")
    try:
        target = str(TopicName.parse(topic))
    except InvalidTopicNameError as error:
        raise OptionsError(f"{topic}: {error}") from error
    files = Files(spark, source)
    job = _Replay(spark, target, options, settings, progress or Progress())
    if files.exists(MANIFESTS):
        return job.run_export(files)
    return job.run_parquet(files)


def default_name(*facts: str) -> str:
    """The name of a replay: the same facts give the same name."""
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    return f"replay-{digest[:16]}"


@dataclass
class _Replay:
    """One call of `replay`."""

    _spark: SparkSession
    _topic: str
    _options: Mapping[str, str]
    _settings: ReplaySettings
    _progress: Progress

    def __post_init__(self) -> None:
        self._partitions = self._find_partitions()

    def run_export(self, files: Files) -> ReplayResult:
        """All runs that this replay hasn't sent yet, one after the other."""
        runs = read_manifests(files)
        if not runs:
            raise BrokenExportError(f"{files.root}: there is no export (no {MANIFESTS})")
        source = self._source_topic(runs)
        name = self._settings.name or default_name(runs[0].export, source, self._topic)
        path = f"{REPLAYS}/{name}.json"
        sent: list[int] = []
        total = 0
        with files.lock(f"{REPLAYS}/.{name}.lock"):
            state = self._state(files, path, source)
            for run in runs[state.done :]:
                rows = _rows_of(run, source)
                if rows:
                    self._progress.say(f"replay of run {run.number}: {rows:,} rows")
                    self._send_run(files, run, source, name)
                    sent.append(run.number)
                    total += rows
                done = _State(self._topic, source, run.number)
                files.write(path, done.to_json(), replace=True)
        return ReplayResult(name, sent, total)

    def run_parquet(self, files: Files) -> ReplayResult:
        """Files without manifests: all at once."""
        with spark_errors():
            frame = self._spark.read.parquet(files.root)
        if self._settings.source_topic:
            frame = frame.where(frame["topic"] == _full(self._settings.source_topic))
        listed = [f"{path} {size}" for path, size in files.sizes("").items()]
        name = self._settings.name or default_name(files.root, self._topic, *listed)
        with spark_errors():
            tasks = self._tasks_of(frame)
            rows = frame.count()
        self._progress.say(f"replay of {files.root}: {rows:,} rows")
        self._send(frame, tasks, name, 0)
        return ReplayResult(name, [], rows)

    def _find_partitions(self) -> int:
        """Partitions of the target; 0: it has none, or doesn't exist yet."""
        if not any(name.lower() == "adminurl" for name in self._options):
            return 0
        with Admin(parse_access(self._options)) as admin:
            try:
                return admin.partitions(self._topic)
            except NoSuchTopicError:
                return 0

    def _source_topic(self, runs: Sequence[Manifest]) -> str:
        """Full name of the one topic of the export that is replayed."""
        topics = sorted({str(TopicName.parse(name).base) for run in runs for name in run.spans})
        wanted = self._settings.source_topic
        if wanted:
            name = _full(wanted)
            if name not in topics:
                raise OptionsError(f"{name} isn't in the export; there are: {', '.join(topics)}")
            return name
        if len(topics) != 1:
            raise OptionsError(f"the export has several topics, choose one: {', '.join(topics)}")
        return topics[0]

    def _state(self, files: Files, path: str, source: str) -> _State:
        if not files.exists(path):
            return _State(self._topic, source, 0)
        state = _State.from_json(files.read(path), files.url(path))
        if (state.topic, state.source_topic) != (self._topic, source):
            raise OptionsError(
                f"the replay of this name goes from {state.source_topic} to {state.topic}: "
                "choose another name"
            )
        return state

    # ---- sending

    def _send_run(self, files: Files, run: Manifest, source: str, name: str) -> None:
        missing = [each.path for each in run.files if not files.exists(each.path)]
        if missing:
            raise BrokenExportError(f"{files.root}: {missing[0]} is missing")
        frame = read_export(self._spark, files.root, [run]).where(f"topic = '{_quoted(source)}'")
        numbers = [TopicName.parse(each).partition_index for each in run.spans]
        self._send(frame, max(1, max(numbers) + 1), name, run.number)

    def _tasks_of(self, frame: DataFrame) -> int:
        """So that each source partition has a task; without that column, each target's."""
        from pyspark.sql import functions as sql

        if "partition" not in frame.columns:
            return max(1, self._partitions)
        highest = frame.agg(sql.max("partition")).collect()[0][0]
        return max(1, (-1 if highest is None else int(highest)) + 1)

    def _send(self, frame: DataFrame, tasks: int, name: str, batch: int) -> None:
        ordered = self._ordered(frame, tasks)
        if self._settings.rows_per_s:
            cores = max(1, self._spark.sparkContext.defaultParallelism)
            share = self._settings.rows_per_s / min(tasks, cores)
            ordered = ordered.where(_paced(share))
        writer = ordered.write.format("magnetar").mode("append").options(**self._options)
        writer = writer.option("topic", self._topic)
        writer = writer.option("producerName", name).option("batchId", str(batch))
        spark = self._spark
        with (
            spark_errors(),
            cancelled_on_error(spark, f"{name}-{batch}"),
            self._progress.watching(spark, "replay"),
        ):
            writer.save()

    def _ordered(self, frame: DataFrame, tasks: int) -> DataFrame:
        """The sink's columns; each source partition in one task, in order.

        Raises:
            OptionsError: a column is missing.
        """
        from pyspark.sql import functions as sql

        columns = set(frame.columns)
        if "value" not in columns:
            raise OptionsError(f"no column value; there are: {', '.join(frame.columns)}")
        order = self._settings.order_by or _IDS
        if missing := [name for name in order if name not in columns]:
            raise OptionsError(
                f"no column {', '.join(missing)} to sort by: name others that tell the order"
            )
        has_partition = "partition" in columns
        task: Column = sql.lit(0)
        if has_partition:
            task = sql.greatest(sql.coalesce("partition", sql.lit(0)), sql.lit(0))
        elif "key" in columns:
            task = sql.pmod(sql.hash("key"), sql.lit(tasks))
        # By number of task: every attempt has the same, however many cores there are.
        spread = frame.repartitionById(tasks, task.cast("int"))
        ordered = spread.sortWithinPartitions(*order, *self._tie_breakers(columns, order))
        chosen = [sql.col(name) for name in _SENT if name in columns and name != "deliverAt"]
        if self._settings.keep_delays and "deliverAt" in columns:
            chosen.append(sql.col("deliverAt"))
        if has_partition and self._keeps_partitions(tasks):
            kept = sql.when(sql.col("partition") >= 0, sql.col("partition")).cast("int")
            chosen.append(kept.alias("partition"))
        return ordered.select(*chosen)

    def _keeps_partitions(self, tasks: int) -> bool:
        if not self._settings.keep_partitions or self._partitions == 0:
            return False
        if tasks > self._partitions:
            self._progress.say(
                f"{self._topic} has {self._partitions} partitions, the source {tasks}: messages "
                "go where their keys belong"
            )
            return False
        return True

    def _tie_breakers(self, columns: set[str], order: Sequence[str]) -> list[Any]:
        """Rows that are still equal after these are the same message."""
        from pyspark.sql import functions as sql

        if tuple(order) == _IDS:
            return []
        chosen = [sql.col(name) for name in _SENT if name in columns and name != "properties"]
        if "properties" in columns:
            chosen.append(sql.sort_array(sql.map_entries("properties")))
        return chosen


class _Waiting:
    """Called with each row by a Spark task, which has a copy of its own; slows it down."""

    def __init__(self, rows_per_s: float) -> None:
        self._pace = RowRateLimiter(rows_per_s)
        self._step = max(1, int(rows_per_s * _STEP_S))
        self._rows = 0

    def __call__(self) -> bool:
        self._rows += 1
        if self._rows == self._step:
            time.sleep(self._pace.wait_s(time.monotonic(), self._rows))
            self._rows = 0
        return True


def _paced(rows_per_s: float) -> Column:
    """A condition that always holds, after a while.

    Not ``mapInArrow``, which wants pandas, and would take every row to Python and back.
    """
    from pyspark.sql import functions as sql

    waiting = _Waiting(rows_per_s)
    # Nondeterministic: else Spark may ask before it sorts, or once for all rows.
    return sql.udf(lambda: waiting(), "boolean", useArrow=False).asNondeterministic()()


def _rows_of(run: Manifest, topic: str) -> int:
    return sum(
        span.rows for name, span in run.spans.items() if str(TopicName.parse(name).base) == topic
    )


def _full(topic: str) -> str:
    try:
        return str(TopicName.parse(topic).base)
    except InvalidTopicNameError as error:
        raise OptionsError(f"{topic}: {error}") from error


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


class RowRateLimiter:
    """Spreads rows evenly over time; a late start isn't made up for by a burst.

    Args:
        rows_per_s: above 0.
    """

    def __init__(self, rows_per_s: float) -> None:
        self._interval_s = 1 / rows_per_s
        self._free_at_s: float | None = None  # when the next row may leave

    def wait_s(self, now_s: float, rows: int) -> float:
        """Seconds until these rows may leave; they count as gone then."""
        at_s = now_s if self._free_at_s is None else max(now_s, self._free_at_s)
        self._free_at_s = at_s + rows * self._interval_s
        return at_s - now_s
