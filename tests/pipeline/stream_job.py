"""A Spark application of its own that carries one topic to another.

python -m tests.pipeline.stream_job '{"source": {...}, "sink": {...}, "checkpoint": "..."}'
"""

from __future__ import annotations

import json
import sys

from tests.pipeline.conftest import SPARK_CONF


def main() -> None:
    from pyspark.sql import SparkSession

    from magnetar.pipeline.source import register

    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").appName("carry")
    for name, value in SPARK_CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    rows = (
        spark.readStream.format("magnetar")
        .options(**wanted["source"])
        .load()
        .select("key", "value", "properties")
    )
    query = (
        rows.writeStream.format("magnetar")
        .options(**wanted["sink"])
        .option("checkpointLocation", wanted["checkpoint"])
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
