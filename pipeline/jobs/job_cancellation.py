"""A failed job: no Spark tasks left that go on writing, and its reason in one line."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import magnetar.pipeline.errors
from magnetar.pipeline.errors import JobError, PipelineError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)

_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.05
_GROUP: Final = "spark.jobGroup.id"


@contextmanager
def cancelled_on_error(spark: SparkSession, group: str) -> Iterator[None]:
    """Spark jobs that the block starts are cancelled, and have ended, when it raises."""
    context = spark.sparkContext
    context.setJobGroup(group, group)
    try:
        yield
    except BaseException:
        apart(lambda: _cancel(context, group))
        raise
    context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]  # as Spark's own code does


def apart(work: Callable[[], object]) -> None:
    """Call Spark from a thread of its own; what it raises is logged.

    A thread that was interrupted while it waited for the JVM must not call it again: it would take
    the answer that it didn't wait for as that of its next call.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # as the JVM may be gone, too
            _log.warning("not cleaned up: %s", error)

    thread = threading.Thread(target=run, name="clean-up", daemon=True)
    thread.start()
    thread.join(2 * _WAIT_S)


def _cancel(context: SparkContext, group: str) -> None:
    context.cancelJobGroup(group)
    tracker = context.statusTracker()
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        if not any(info is not None and info.status == "RUNNING" for info in infos):
            return
        time.sleep(_PAUSE_S)
    _log.warning("tasks of Spark go on: %s", group)


_OURS: Final = re.compile(r"\bmagnetar\.pipeline\.errors\.(\w+): (.+)")
_CAUSED: Final = re.compile(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_TEXT_MAX: Final = 600


def reason_of(text: str) -> PipelineError:
    """The error of ours that a task or the driver's planner raised, if it was one; else Spark's
    first line and last cause.
    """
    found = _OURS.findall(text)
    for name, said in reversed(found):
        kind = getattr(magnetar.pipeline.errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PipelineError):
            return kind(said.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "no reason given"
    first = first.removesuffix("Traceback (most recent call last):").rstrip(" :")
    causes = _CAUSED.findall(text)
    if causes and causes[-1].strip() not in first:
        first = f"{first}: {causes[-1].strip()}"
    return JobError(f"Spark failed: {first[:_TEXT_MAX]}")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raises PipelineError in place of what Spark raises."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise reason_of(str(error)) from error
    except ConnectionError as error:
        raise JobError(f"Spark's JVM has ended: {error}") from error
