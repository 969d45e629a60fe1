"""The format ``magnetar`` of Spark: register it, then ``spark.read.format("magnetar")``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from magnetar.pipeline.admin import parse_access
from magnetar.pipeline.errors import OptionsError, SetupError
from magnetar.pipeline.filters import ALWAYS
from magnetar.pipeline.options import parse_read_options, parse_trigger_limits
from magnetar.pipeline.row_columns import SCHEMA_DDL, check_schema
from magnetar.pipeline.session import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from magnetar.pipeline.sink import BatchWriter, StreamWriter

__all__ = ["MagnetarDataSource", "read_topics", "register"]

_FILTERS = "obeyFilters"  # an option of ``read_topics`` alone
_PYTHON_TIMEOUT_S: Final = 60
_LOST: Final = (
    "A table of CREATE TABLE ... USING magnetar has none of its options, as Spark doesn't give "
    "them to sources in Python"
)


class MagnetarDataSource(DataSource):
    """Topics as tables and streams; docs/guides/spark.md has columns and options."""

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> str:
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        from magnetar.pipeline.batch_source import BatchReader, FilteringBatchReader

        reader = FilteringBatchReader if self.options.get(_FILTERS) else BatchReader
        with plain_errors():
            self._need(
                "adminUrl",
                "a broker's http://host:8080",
                "CREATE TEMPORARY VIEW ... USING magnetar OPTIONS (...) has them",
            )
            return reader(
                parse_access(self.options),
                _columns(schema),
                parse_read_options(self.options, streaming=False),
            )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from magnetar.pipeline.stream_source import StreamReader

        with plain_errors():
            return StreamReader(
                parse_access(self.options),
                _columns(schema),
                parse_read_options(self.options, streaming=True),
                parse_trigger_limits(self.options),
            )

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from magnetar.pipeline.sink import make_writer

        with plain_errors():
            self._need(
                "serviceUrl",
                "pulsar://broker:6650",
                'df.write.format("magnetar").options(...) has them',
            )
            return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from magnetar.pipeline.sink import make_stream_writer

        with plain_errors():
            return make_stream_writer(self.options, schema, overwrite)

    def _need(self, option: str, what: str, way: str) -> None:
        """Raises OptionsError: not given; a table never has it, so the text names what does."""
        if not any(name.lower() == option.lower() for name in self.options):
            raise OptionsError(f"option {option} is needed: {what}. {_LOST}: {way}")


def register(spark: SparkSession) -> None:
    """Make the format known to a session.

    Raises:
        SetupError: Spark would run it with a Python that doesn't have this package.
    """
    _check_python(spark)
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
        options: of the format; docs/guides/spark.md.
    """
    register(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read.format(MagnetarDataSource.name()).option(_FILTERS, "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    table = (reader if schema is None else reader.schema(schema)).load()
    return table.where(f"ledgerId > {ALWAYS}")


def _check_python(spark: SparkSession) -> None:
    """Spark plans queries, and runs tasks, with ``PYSPARK_PYTHON``, else with python3 of PATH."""
    context = getattr(spark, "_sc", None)  # of Spark Connect there is none: the server's Python
    if context is None:
        return
    python: str = context.pythonExec
    found = shutil.which(python)
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    reason = "there is no such program"
    if found is not None:
        command = [found, "-c", f"import {__name__}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PYTHON_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        else:
            if done.returncode == 0:
                return
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise SetupError(
        f"Spark runs {found or python}, which can't load this package ({reason}): before the "
        f"session is made, export PYSPARK_PYTHON={sys.executable}"
    )


def _columns(schema: StructType) -> tuple[str, ...]:
    for each in schema.fields:
        if not each.nullable:  # Spark's own refusal comes from a worker that dies of it
            raise OptionsError(f"column {each.name} can't be NOT NULL: no message has to have one")
    return check_schema((each.name, each.dataType.simpleString()) for each in schema.fields)
