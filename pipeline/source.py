"""The format ``magnetar`` of Spark: register it, then ``spark.read.format("magnetar")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pipeline.admin import parse_access
from pipeline.columns import SCHEMA_DDL, check_schema
from pipeline.options import parse_read_options, parse_trigger_limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["MagnetarDataSource", "register"]


class MagnetarDataSource(DataSource):
    """Topics as tables and streams; docs/pipeline.md has columns and options."""

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> str:
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        from pipeline.batch_source import BatchReader

        return BatchReader(
            parse_access(self.options),
            _columns(schema),
            parse_read_options(self.options, streaming=False),
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pipeline.stream_source import StreamReader

        return StreamReader(
            parse_access(self.options),
            _columns(schema),
            parse_read_options(self.options, streaming=True),
            parse_trigger_limits(self.options),
        )


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Rows are filtered before they are read where they can
    be, which Spark doesn't do for sources in Python unless it is told to.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(MagnetarDataSource)


def _columns(schema: StructType) -> tuple[str, ...]:
    return check_schema((each.name, each.dataType.simpleString()) for each in schema.fields)
