"""A Spark application of its own that carries one topic to another.

python -m tests.pipeline.stream_job '{"source": {...}, "sink": {...}, "checkpoint": "..."}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.pipeline.conftest import SPARK_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def carry(spark: SparkSession, wanted: Mapping[str, Any]) -> StreamingQuery:
    """The query, which runs until it is stopped."""
    rows = (
        spark.readStream.format("magnetar")
        .options(**wanted["source"])
        .load()
        .select("key", "value", "properties")
    )
    return (
        rows.writeStream.format("magnetar")
        .options(**wanted["sink"])
        .option("checkpointLocation", wanted["checkpoint"])
        .start()
    )


def main() -> None:
    from pyspark.sql import SparkSession

    from magnetar.pipeline.source import register

    builder = SparkSession.builder.master("local[2]").appName("carry")
    for name, value in SPARK_CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    carry(spark, json.loads(sys.argv[1])).awaitTermination()


if __name__ == "__main__":
    main()
