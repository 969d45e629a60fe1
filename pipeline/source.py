"""The format ``magnetar`` of Spark: register it, then ``spark.read.format("magnetar")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pipeline.admin import parse_access
from pipeline.columns import SCHEMA_DDL, check_schema
from pipeline.errors import OptionsError
from pipeline.filters import ALWAYS
from pipeline.options import parse_read_options, parse_trigger_limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from pipeline.sink import BatchWriter, StreamWriter

__all__ = ["MagnetarDataSource", "read_topics", "register"]

_FILTERS = "obeyFilters"  # an option of ``read_topics`` alone


class MagnetarDataSource(DataSource):
    """Topics as tables and streams; docs/pipeline.md has columns and options."""

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> str:
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        from pipeline.batch_source import BatchReader, FilteringBatchReader

        reader = FilteringBatchReader if self.options.get(_FILTERS) else BatchReader
        return reader(
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

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from pipeline.sink import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from pipeline.sink import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(MagnetarDataSource)


def read_topics(spark: SparkSession, schema: str | None = None, **options: object) -> DataFrame:
    """Topics as a table whose filters on time and message id spare entries and ledgers.

    ``spark.read.format("magnetar")`` gives the same rows, but reads all of them. Spark hands
    filters to sources in Python only where ``spark.sql.python.filterPushdown.enabled`` is set (this
    function sets it for the session), and uses what a filtered query has planned once more when
    the same table is read without a filter afterwards (seen in 4.3). So filters are obeyed only in
    tables from here: they bring one that is always there, `ALWAYS`.

    Args:
        schema: columns that are wanted, as DDL; None: all.
        options: of the format; docs/pipeline.md.
    """
    register(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read.format(MagnetarDataSource.name()).option(_FILTERS, "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    table = (reader if schema is None else reader.schema(schema)).load()
    return table.where(f"ledgerId > {ALWAYS}")


def _columns(schema: StructType) -> tuple[str, ...]:
    for each in schema.fields:
        if not each.nullable:  # Spark's own refusal comes from a worker that dies of it
            raise OptionsError(f"column {each.name} can't be NOT NULL: no message has to have one")
    return check_schema((each.name, each.dataType.simpleString()) for each in schema.fields)
