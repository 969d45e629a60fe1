"""One Spark for all tests of a worker, as users start it on their own machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Workers import the tests' own helpers, too.
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


def spark_environment() -> dict[str, str]:
    """Of a process that starts Spark: its workers are this interpreter and find this tree."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores that knows the format. The JVM takes a while on a busy machine."""
    from pyspark.sql import SparkSession

    from magnetar.pipeline.source import register

    before = dict(os.environ)
    os.environ.update(spark_environment())
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("magnetar-tests")
    for name, value in SPARK_CONF.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    register(session)
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)
