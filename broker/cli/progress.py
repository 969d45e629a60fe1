"""A progress bar on a terminal, for work of many steps; nothing where nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STEPS_MIN = 3
"""Less is done before anybody could read a bar."""


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Gives ``advance(steps)``; drawn on standard error, wiped at the end.

    Args:
        total: steps of all the work; None: nobody knows.
    """
    if not sys.stderr.isatty() or (total is not None and total < _STEPS_MIN):
        yield lambda _: None
        return
    # Imported here: it takes longer than a call over HTTP.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)
