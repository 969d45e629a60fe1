"""What users of Spark do wrong is told in one line."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from magnetar.pipeline.errors import SetupError
from magnetar.pipeline.source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABSENT = "persistent://public/default/nowhere: HTTP 404: Topic .*nowhere not found"


@pytest.fixture
def table(spark: SparkSession, admin_url: str) -> Iterator[str]:
    name = f"table_{uuid.uuid4().hex[:8]}"
    options = f"adminUrl '{admin_url}', subscribe 'nowhere'"
    spark.sql(f"CREATE TABLE {name} USING magnetar OPTIONS ({options})")
    yield name
    spark.sql(f"DROP TABLE {name}")


def _applied(error: pytest.ExceptionInfo[Exception]) -> str:
    """Without Spark's number of the kind of error."""
    return str(error.value).partition("SQLSTATE")[0].strip()


def test_a_table_tells_the_way_that_works(spark: SparkSession, table: str, admin_url: str) -> None:
    with pytest.raises(Exception, match="adminUrl is needed") as error:
        spark.table(table).collect()
    told = _applied(error)
    assert "CREATE TEMPORARY VIEW ... USING magnetar OPTIONS (...)" in told
    assert len(told.splitlines()) == 1
    # Which does.
    topic = f"persistent://public/default/{table}"
    path = f"{admin_url}/admin/v2/{topic.replace('://', '/')}"
    assert httpx.put(path, timeout=60).is_success
    options = f"adminUrl '{admin_url}', subscribe '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW {table}_view USING magnetar OPTIONS ({options})")
    assert spark.sql(f"SELECT count(*) FROM {table}_view").collect()[0][0] == 0
    spark.catalog.dropTempView(f"{table}_view")


def test_a_write_into_a_table_tells_the_way_that_works(spark: SparkSession, table: str) -> None:
    rows = spark.range(1).selectExpr(
        *(f"cast(null as {each.dataType.simpleString()}) {each.name}" for each in _fields(spark))
    )
    with pytest.raises(Exception, match=r"serviceUrl is needed: .*df\.write") as error:
        rows.write.insertInto(table)
    assert len(_applied(error).splitlines()) == 1


def _fields(spark: SparkSession) -> list[Any]:
    return spark.read.format("magnetar").load().schema.fields


def test_a_missing_topic_is_one_line(spark: SparkSession, admin_url: str, tmp_path: Path) -> None:
    options = {"adminUrl": admin_url, "subscribe": "nowhere"}
    with pytest.raises(Exception, match=ABSENT) as error:
        spark.read.format("magnetar").options(**options).load().collect()
    assert len(_applied(error).splitlines()) == 1
    stream = spark.readStream.format("magnetar").options(**options).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match=ABSENT) as error:
        query.trigger(availableNow=True).start().awaitTermination()
    assert len(_applied(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ("/nowhere/python3", r"/nowhere/python3, .*\(there is no such program\)"),
        (os.path.realpath(sys.executable), r"\(ModuleNotFoundError: No module named"),
    ],
)
def test_a_python_without_the_package_is_one_line(
    spark: SparkSession, python: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    with pytest.raises(
        SetupError, match=f"{told}.*export PYSPARK_PYTHON={sys.executable}"
    ) as error:
        register(spark)
    assert len(str(error.value).splitlines()) == 1
