"""The progress of a running Spark job, on standard error."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TTY_S: Final = 0.5
_LINES_S: Final = 5.0
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Figures of the stages that run now."""

    tasks_done: int = 0
    tasks: int = 0
    rows: int = 0
    byte_count: int = 0


def size_text(size: float) -> str:
    """``1.5 GiB``."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def line_of(what: str, shown: StageProgress) -> str:
    """``export run 2: 3 of 8 partitions, 1,204,000 rows, 1.1 GiB``."""
    parts = [f"{shown.tasks_done} of {shown.tasks} partitions"]
    if shown.rows:
        parts.append(f"{shown.rows:,} rows")
    if shown.byte_count:
        parts.append(size_text(shown.byte_count))
    return f"{what}: {', '.join(parts)}"


class Progress:
    """Jobs report here what they do. A terminal shows one line that changes; elsewhere, if wanted,
    a line is added every few seconds.
    """

    def __init__(self, wanted: bool | None = None, stream: TextIO | None = None) -> None:
        """
        Args:
            wanted: None: only on a terminal.
        """
        self._stream = stream or sys.stderr
        self._is_tty = self._stream.isatty()
        self._is_on = self._is_tty if wanted is None else wanted

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._is_on:
            self._stream.write(f"{self._wipe()}{text}\n")
            self._stream.flush()

    @contextmanager
    def watching(self, spark: SparkSession, what: str) -> Iterator[None]:
        """Show the session's stages until the block ends."""
        if not self._is_on:
            yield
            return
        ended = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(spark, what, ended), name="progress", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            self._stream.write(self._wipe())
            self._stream.flush()

    def _watch(self, spark: SparkSession, what: str, ended: threading.Event) -> None:
        while not ended.wait(_TTY_S if self._is_tty else _LINES_S):
            shown = _look(spark)
            if shown is None or not shown.tasks:
                continue
            line = line_of(what, shown)
            self._stream.write(f"{self._wipe()}{line}" if self._is_tty else f"{line}\n")
            self._stream.flush()

    def _wipe(self) -> str:
        return "\r\x1b[K" if self._is_tty else ""


def _look(spark: SparkSession) -> StageProgress | None:
    """None: Spark can't tell now, as at the end of the session."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        rows, byte_count = _written(spark)
    except Exception:  # watching must never end what is watched
        return None
    known = [each for each in stages if each is not None]
    return StageProgress(
        sum(each.numCompletedTasks for each in known),
        sum(each.numTasks for each in known),
        rows,
        byte_count,
    )


def _written(spark: SparkSession) -> tuple[int, int]:
    """Rows and bytes that running stages have written, or else read."""
    context: Any = spark.sparkContext
    stages = context._jsc.sc().statusStore().activeStages()
    rows = byte_count = 0
    for index in range(stages.size()):
        stage = stages.apply(index)
        rows += stage.outputRecords() or stage.shuffleWriteRecords() or stage.inputRecords()
        byte_count += stage.outputBytes() or stage.shuffleWriteBytes() or stage.inputBytes()
    return rows, byte_count
