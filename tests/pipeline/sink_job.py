"""A Spark application of its own for tests that let its tasks fail or kill it.

    python -m tests.pipeline.sink_job '{"jobs": [...], "stream": {...}}'

``jobs``: batch jobs; a task of each fails once in the middle, after it has sent something. Then the
file ``done`` is there.
``stream``: lines of files to a topic, two files a batch, until all are written. While the file
``hold`` exists, tasks stop in the middle of the file that holds the line ``stop``; while
``hold_commit`` exists, a batch that is sent isn't committed.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.pipeline.sink import StreamWriter, make_stream_writer
from magnetar.pipeline.source import MagnetarDataSource
from tests.pipeline.conftest import SPARK_CONF
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

PADDING: Final = "." * 1000
"""Rows of this size don't stay in the buffers between Spark's processes."""
_PAUSE_S: Final = 0.05
_WAIT_S: Final = 300.0
_ROWS: Final = 3000


class _HeldWriter(StreamWriter):
    """Sends like its base; doesn't commit while a file exists."""

    hold_commit = ""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _wait_while_exists(self.hold_commit)
        super().commit(messages, batchId)


class HeldFormat(MagnetarDataSource):
    """The sink, with a commit that can be held up."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        made = make_stream_writer(self.options, schema, overwrite)
        held = _HeldWriter(made._plan)
        held.hold_commit = self.options["holdCommit"]
        return held


def _wait_while_exists(path: str) -> None:
    while Path(path).exists():
        time.sleep(_PAUSE_S)


def stored(stats_url: str) -> int:
    """How many messages a topic was sent since it is loaded, as its statistics say."""
    try:
        with urllib.request.urlopen(stats_url, timeout=60) as answer:
            return int(json.load(answer)["msgInCounter"])
    except urllib.error.HTTPError as error:
        if error.code == 404:  # nobody has used it yet
            return 0
        raise


def _fails_once(stats_url: str, failed: str) -> Callable[[int], str]:
    """Text of a number; the first attempt of task 0 raises when some of its own are stored: the
    other task waits for that.
    """

    def text(number: int) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if number == _ROWS // 3 and context.attemptNumber() == 0:
            wait_until(lambda: stored(stats_url) >= 100, "some are stored", _WAIT_S)
            Path(failed).touch()
            raise RuntimeError("this attempt was meant to fail")
        if number == _ROWS // 2:
            wait_until(Path(failed).exists, "the other task has failed", _WAIT_S)
        return f"{number:07}{PADDING}"

    return text


def _held(hold: str) -> Callable[[str], str]:
    """The line itself."""

    def same(line: str) -> str:
        if line.startswith("stop"):
            _wait_while_exists(hold)
        return line

    return same


def _retry(spark: SparkSession, arguments: Mapping[str, Any]) -> None:
    from pyspark.sql import functions as f

    for job in arguments["jobs"]:
        text = f.udf(_fails_once(job["stats"], job["failed"]), "string", useArrow=False)
        rows = spark.range(0, _ROWS, 1, 2).select(
            text("id").alias("value"), (f.col("id") % 7).cast("string").alias("key")
        )
        rows.write.format("magnetar").mode("append").options(**job["options"]).save()
    Path(arguments["done"]).touch()


def stream(spark: SparkSession, arguments: Mapping[str, Any]) -> None:
    """Until all lines are written."""
    from pyspark.sql import functions as f

    lines = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 2)
        .schema("value string")
        .load(arguments["files"])
    )
    same = f.udf(_held(arguments["hold"]), "string", useArrow=False)
    query = (
        lines.select(same("value").alias("value"), f.substring("value", -1, 1).alias("key"))
        .writeStream.format("magnetar")
        .options(**arguments["options"], holdCommit=arguments["hold_commit"])
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    from pyspark.sql import SparkSession

    arguments = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,3]")
    for name, value in SPARK_CONF.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "50").getOrCreate()
    try:
        spark.dataSource.register(HeldFormat)
        if "jobs" in arguments:
            _retry(spark, arguments)
        stream(spark, arguments["stream"])
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
