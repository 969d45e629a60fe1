"""A Spark session for the jobs, after a look at what it needs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.pipeline.errors import PipelineError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_MIN: Final = 17
_PACKAGES: Final = ("pyspark", "pyarrow")
_HINT: Final = "pip install '.[pipeline]' in a checkout of Magnetar"
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_ATTEMPTS: Final = 3
_JAVA_TIMEOUT_S: Final = 60


def check_packages(*names: str) -> None:
    """
    Raises:
        SetupError: one isn't installed; says how to get it.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(f"{' and '.join(missing)} not found: {_HINT}")


def java_major(said: str) -> int | None:
    """The major version in the output of ``java -version``; None: there is none."""
    found = _VERSION.search(said)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major  # 1.8 is 8


def check_setup(environment: Mapping[str, str] | None = None) -> None:
    """Packages and Java are there, and new enough.

    Raises:
        SetupError: says which, and what is needed.
    """
    check_packages(*_PACKAGES)
    environment = os.environ if environment is None else environment
    java = _find_java(environment)
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{java} can't be run: {error}") from error
    said = (done.stderr + done.stdout).strip()
    major = java_major(said)
    if major is None:
        first = said.splitlines()[0] if said else f"exit code {done.returncode}"
        raise SetupError(f"{java} doesn't tell its version: {first}")
    if major < JAVA_MIN:
        raise SetupError(
            f"{java} is Java {major}: Spark needs Java {JAVA_MIN} or newer (JAVA_HOME says which)"
        )


def _find_java(environment: Mapping[str, str]) -> str:
    """The Java that Spark finds."""
    home = environment.get("JAVA_HOME", "")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise SetupError(
                f"java not found: JAVA_HOME is {home}, but there is no {java}; "
                f"Spark needs Java {JAVA_MIN} or newer"
            )
        return str(java)
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise SetupError(
            f"java not found: Spark needs Java {JAVA_MIN} or newer, in PATH or JAVA_HOME"
        )
    return found


def open_session(
    cores: int | None = None,
    app_name: str = "magnetar",
    *,
    master: str = "",
    log_level: str = "OFF",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the format ``magnetar``; the caller stops it.

    Args:
        cores: of this machine; None: all.
        master: of a Spark cluster, in place of ``cores``.
        log_level: of Spark. What fails is raised, so that its log is for a closer look only.
        conf: Spark's own settings; they win over ours.
    Raises:
        SetupError: Java or a package is missing.
    """
    check_setup()
    from pyspark.sql import SparkSession

    from magnetar.pipeline.source import register

    # Workers must be this Python with these packages, whatever is first in PATH.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # What Spark says before it has read its own level.
        "spark.driver.extraJavaOptions": f'-Dlog4j2.configurationFile="{_LOG_SETTINGS}"',
    }
    if not master:
        # Other machines needn't reach it, and this machine's name may resolve to any address.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Spark's 200 are for clusters: of a small job here they are most of the time.
        settings["spark.sql.shuffle.partitions"] = str(max(8, 4 * (cores or os.cpu_count() or 1)))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings |= conf or {}
    # A task that fails is tried again, which Spark doesn't do on one machine unless told to.
    local = f"local[{cores or '*'},{_ATTEMPTS}]"
    builder = SparkSession.builder.appName(app_name).master(master or local)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    register(spark)
    return spark


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors of this package that leave the block show Spark's users their text alone.

    Spark adds the traceback unless its worker's environment says not to. A worker that has told an
    error ends, so no other query sees it. Bugs keep their traceback.
    """
    try:
        yield
    except PipelineError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith("pyspark."):  # one of Spark's workers
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
