"""What users did wrong is told by Spark in one line, without our stack."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.pipeline.errors import PipelineError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors of this package that leave the block show Spark's users their text alone.

    Spark adds the traceback unless its worker's environment says not to. A worker that has told an
    error ends, so this concerns nobody else. Bugs keep their traceback.
    """
    try:
        yield
    except PipelineError:
        spec = sys.modules["__main__"].__spec__
        if spec is not None and spec.name.startswith("pyspark."):  # one of Spark's workers
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
