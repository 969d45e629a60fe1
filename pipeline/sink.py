"""The sink of Spark: what runs on the driver, and how a task sends its rows.

Without transactions abort undoes nothing: what brokers have stored stays, as with Spark's Kafka
sink. It does no harm either: the next attempt goes on behind it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from magnetar.pipeline.admin import parse_access
from magnetar.pipeline.commit_log import TaskTransaction, abort_batch, commit_batch
from magnetar.pipeline.errors import OptionsError, PipelineError, WriteError
from magnetar.pipeline.sink_commits import run_steps
from magnetar.pipeline.sink_options import (
    SinkOptions,
    commit_topic_of,
    find_columns,
    parse_sink_options,
)
from magnetar.pipeline.target_check import TargetCheck
from magnetar.pipeline.task_producers import TaskProducers, TaskRun, open_client
from magnetar.pipeline.task_transaction import TaskTransactionWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class TaskWritten(WriterCommitMessage):
    """The counts of one task, for the driver."""

    task: int
    attempt: int
    sent: int
    skipped: int
    name: str
    """Of the query or job."""
    transaction: TaskTransaction | None = None
    """None: no rows, or no transactions."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that a task needs to know; pickled to it.

    Attributes:
        check: asked about each topic before the first row goes there.
    """

    options: SinkOptions
    columns: Mapping[str, int]
    check: TargetCheck


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """A writer of one batch job.

    Raises:
        OptionsError: an option or a column is wrong, or the topic doesn't drop repeated messages or
            keeps nothing.
        PipelineError: that can't be found out.
    """
    if overwrite:
        raise OptionsError("mode overwrite: messages of a topic can't be replaced; use append")
    plan = _make_plan(options, schema)
    # Made here, so that all attempts of a task have it.
    name = plan.options.producer_name or f"spark-{uuid.uuid4()}"
    return BatchWriter(plan, name)


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamWriter:
    """A writer of one query.

    Args:
        overwrite: output mode "complete". The whole result is appended with each batch, as Spark's
            Kafka sink does.
    Raises:
        OptionsError, PipelineError: as of `make_writer`.
    """
    if "batchid" in {name.lower() for name in options}:
        raise OptionsError("option batchId: a stream counts its batches itself")
    return StreamWriter(_make_plan(options, schema))


def _make_plan(options: Mapping[str, str], schema: StructType) -> _Plan:
    parsed = parse_sink_options(options)
    fields = [(each.name, each.dataType.simpleString()) for each in schema.fields]
    columns = find_columns(fields, parsed.topic)
    has_url = any(name.lower() == "adminurl" and text for name, text in options.items())
    check = TargetCheck.of(parsed, parse_access(options) if has_url else None)
    if parsed.topic:
        check.ask(parsed.topic, may_be_absent=True)
    return _Plan(parsed, columns, check)


@dataclass
class BatchWriter(DataSourceArrowWriter):
    """The sink of ``df.write``."""

    _plan: _Plan
    _name: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task. Raises PipelineError: the task is tried again, then fails the job."""
        context = _context()
        run = TaskRun(self._name, context.partitionId(), self._plan.options.batch_id)
        return _write(self._plan, run, context.attemptNumber(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Raises WriteError: the job fails; with transactions nothing of it is written."""
        if self._plan.options.exactly_once:
            is_last = not self._plan.options.producer_name
            _commit(self._plan, self._plan.options.batch_id, messages, is_last=is_last)
        sent, skipped, first = _sums(messages)
        _log.info("%s: %d messages sent, %d were stored before", self._name, sent, skipped)
        if first:
            _log.warning(
                "%s: %d rows were taken for those of an earlier job with this producerName (and "
                "batchId) and were not sent again",
                self._name,
                first,
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._plan.options.exactly_once:
            _abort(self._plan, self._name, self._plan.options.batch_id, messages)
        else:
            _tell_abort(self._name, messages)


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of ``df.writeStream``."""

    _plan: _Plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task. Raises PipelineError: the task is tried again, then ends the query."""
        context = _context()
        query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query is None or batch is None:
            raise WriteError("Spark tells the task neither query nor batch: is it older than 4.2?")
        name = self._plan.options.producer_name or query
        run = TaskRun(name, context.partitionId(), int(batch))
        return _write(self._plan, run, context.attemptNumber(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Raises WriteError: the query ends."""
        if self._plan.options.exactly_once:
            _commit(self._plan, batchId, messages, is_last=False)
        sent, skipped, _ = _sums(messages)
        _log.info("batch %d: %d messages sent, %d were stored before", batchId, sent, skipped)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self._plan.options.exactly_once:
            _abort(self._plan, self._plan.options.producer_name, batchId, messages)
        else:
            _tell_abort(f"batch {batchId}", messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise WriteError("not in a task of Spark")
    return context


def _write(
    plan: _Plan, run: TaskRun, attempt: int, batches: Iterable[pa.RecordBatch]
) -> TaskWritten:
    from magnetar.pipeline.sink_rows import messages_of

    _refuse_speculation(plan.options)
    producers: TaskProducers | TaskTransactionWriter | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if producers is None:
                producers = _open(plan, run)
            for message in messages_of(batch, plan.columns):
                producers.send(message)
        if producers is None:
            return TaskWritten(run.task, attempt, 0, 0, run.name)
        written = producers.finish()
    except BaseException:
        if producers is not None:
            producers.abandon()
        raise
    return TaskWritten(
        run.task, attempt, written.sent, written.skipped, run.name, written.transaction
    )


def _open(plan: _Plan, run: TaskRun) -> TaskProducers | TaskTransactionWriter:
    if plan.options.exactly_once:
        return TaskTransactionWriter(plan.options, run, plan.check)
    return TaskProducers(open_client(plan.options), plan.options, run, plan.check)


def _refuse_speculation(options: SinkOptions) -> None:
    """Two attempts at once would wait for each other's producer name, one of them in vain."""
    if options.effectively_once and _context().getLocalProperty("spark.speculation") == "true":
        raise WriteError(
            "spark.speculation=true runs a task twice at the same time, which de-duplication can't "
            "tell apart: set deliveryGuarantee=exactly-once, or spark.speculation=false"
        )


# --- driver


def _commit(
    plan: _Plan, batch: int, messages: Iterable[WriterCommitMessage | None], *, is_last: bool
) -> None:
    told = [each for each in messages if isinstance(each, TaskWritten)]
    if not told:  # no tasks
        return
    topic = commit_topic_of(plan.options, told[0].name)
    written = tuple(each.transaction for each in told if each.transaction is not None)
    if not run_steps(plan.options, topic, commit_batch(batch, written), is_last=is_last):
        _log.warning(
            "batch %d was decided before, by an earlier run with this name: its rows are those of "
            "that run, and the rows of this one are dropped",
            batch,
        )


def _abort(
    plan: _Plan, name: str, batch: int, messages: Iterable[WriterCommitMessage | None]
) -> None:
    """Best effort: what stays open ends with the next batch, or by its time-out."""
    told = [each for each in messages if isinstance(each, TaskWritten)]
    name = told[0].name if told else name
    if not name:
        return
    ids = [each.transaction.id for each in told if each.transaction is not None]
    try:
        topic = commit_topic_of(plan.options, name)
        is_nothing = run_steps(plan.options, topic, abort_batch(batch, ids), is_last=False)
    except PipelineError as error:
        _log.warning("batch %d failed; its transactions are open still: %s", batch, error)
        return
    what = "nothing of it is written" if is_nothing else "it was decided before, and is written"
    _log.warning("batch %d failed: %s", batch, what)


def _sums(messages: Iterable[WriterCommitMessage | None]) -> tuple[int, int, int]:
    """Rows sent, rows skipped, and those skipped by first attempts."""
    told = [each for each in messages if isinstance(each, TaskWritten)]
    return (
        sum(each.sent for each in told),
        sum(each.skipped for each in told),
        sum(each.skipped for each in told if not each.attempt),
    )


def _tell_abort(what: str, messages: Iterable[WriterCommitMessage | None]) -> None:
    sent, skipped, _ = _sums(messages)
    _log.warning(
        "%s failed; at least %d of its messages are stored, and stay. With "
        "deliveryGuarantee=exactly-once none of them would count",
        what,
        sent + skipped,
    )
