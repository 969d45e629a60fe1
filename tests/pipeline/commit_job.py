"""A Spark application whose driver stops in front of a step of its commit, until it is killed.

    python -m tests.pipeline.commit_job '{"options": {...}, "files": ..., "checkpoint": ...,
        "topics": [...], "batch": 1, "step": 3, "held": ...}'

One file a batch; its lines go to the topics in turn. Each row ends with a word of its attempt, so
the rows of two attempts differ, and a shuffle puts them into any order. In front of that step of
that batch's commit the driver makes the file ``held`` and waits for ever.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from magnetar.pipeline import sink
from magnetar.pipeline.commit_log import Step, Steps, commit_batch
from magnetar.pipeline.sink import StreamWriter, make_stream_writer
from magnetar.pipeline.source import MagnetarDataSource
from tests.pipeline.conftest import SPARK_CONF

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


def _held(steps: Steps, at: int, path: str) -> Generator[Step, Any, bool]:
    answer: Any = None
    count = 0
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return bool(end.value)
        if count == at:
            Path(path).touch()
            threading.Event().wait()
        count += 1
        answer = yield step


class _StoppingWriter(StreamWriter):
    where: tuple[int, int, str]

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        batch, step, path = self.where
        if batchId == batch:
            # This process commits one batch only.
            patch.object(
                sink, "commit_batch", lambda *given: _held(commit_batch(*given), step, path)
            ).start()
        super().commit(messages, batchId)


class StoppingFormat(MagnetarDataSource):
    """The sink, with a commit that stops."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        where = json.loads(self.options["where"])
        options = {name: text for name, text in self.options.items() if name != "where"}
        made = _StoppingWriter(make_stream_writer(options, schema, overwrite)._plan)
        made.where = tuple(where)
        return made


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    arguments = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,3]")
    for name, value in SPARK_CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(StoppingFormat)
    first, second = arguments["topics"]
    word = uuid.uuid4().hex
    lines = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .schema("value string")
        .load(arguments["files"])
        .repartition(2)
        .select(
            f.concat("value", f.lit(f" {word}")).alias("value"),
            f.expr(f"if(value % 2 = 0, '{first}', '{second}')").alias("topic"),
        )
    )
    where = json.dumps([arguments["batch"], arguments["step"], arguments["held"]])
    query = (
        lines.writeStream.format("magnetar")
        .options(**arguments["options"], where=where)
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
