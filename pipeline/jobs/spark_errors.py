"""What a failed Spark job died of, without the stacks of two languages around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import magnetar.pipeline.errors
from magnetar.pipeline.errors import PipelineError
from magnetar.pipeline.jobs.errors import JobError

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
