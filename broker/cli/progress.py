"""A progress bar on a terminal, for work that takes a while; nothing where nobody looks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOWN_AFTER_S: Final = 2.0

_is_part: Final = ContextVar("_is_part", default=False)
"""Whether this is part of other work: there is one bar, that of the whole."""


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Gives ``advance(steps)``; drawn on standard error after two seconds, wiped at the end.

    Inside of other work with a bar this shows nothing.

    Args:
        total: steps of all the work; None: nobody knows.
    """
    if not sys.stderr.isatty() or _is_part.get():
        yield lambda _: None
        return
    bar = _Bar(what, total)
    with no_progress():
        try:
            bar.begin()
            yield bar.advance
        finally:
            bar.end()


@contextmanager
def no_progress() -> Iterator[None]:
    """No bars of what is done meanwhile."""
    token = _is_part.set(True)
    try:
        yield
    finally:
        _is_part.reset(token)


class _Bar:
    """Drawn by a thread, as the work may be one long wait."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._done = 0
        self._ended = False
        self._drawing = threading.Lock()  # held while the bar comes or goes
        self._shown: Progress | None = None
        self._timer = threading.Timer(_SHOWN_AFTER_S, self._show)
        self._timer.daemon = True

    def begin(self) -> None:
        self._timer.start()

    def advance(self, steps: int) -> None:
        self._done += steps
        if self._shown is not None:
            self._shown.update(self._shown.task_ids[0], completed=self._done)

    def end(self) -> None:
        self._timer.cancel()
        with self._drawing:
            self._ended = True
            if self._shown is not None:
                self._shown.stop()

    def _show(self) -> None:
        bar = _drawn(self._total)
        with self._drawing:
            if self._ended:
                return
            bar.add_task(self._what, total=self._total, completed=self._done)
            bar.start()
            self._shown = bar


def _drawn(total: int | None) -> Progress:
    # Imported here: it takes longer than a call over HTTP.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    known = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    unknown = (SpinnerColumn(), text, TextColumn("{task.completed:,}"), TimeElapsedColumn())
    return Progress(
        *(unknown if total is None else known),
        console=Console(stderr=True),
        transient=True,
        # It would move to standard error also what goes into a file.
        redirect_stdout=sys.stdout.isatty(),
    )
