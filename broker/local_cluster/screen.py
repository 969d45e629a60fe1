"""The user's view of a cluster: a table that lives on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.local_cluster.member_process import MemberState
from magnetar.broker.local_cluster.status_table import COLUMNS, ProcessRow, summary, text_table

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_COLOURS: Final = {
    MemberState.WAITING: "dim",
    MemberState.STARTING: "yellow",
    MemberState.READY: "green",
    MemberState.RESTARTING: "red",
    MemberState.STOPPING: "yellow",
    MemberState.STOPPED: "dim",
}
_RIGHT: Final = {"pid", "memory", "CPU", "restarts"}
_LINES_SHOWN: Final = 6


class Screen:
    """News as lines; the table is shown once, again and again it would fill a log."""

    def say(self, line: str) -> None:
        """News."""
        with contextlib.suppress(OSError):  # nobody reads any more; the cluster goes on
            print(line, flush=True)

    def show(self, rows: Sequence[ProcessRow]) -> None:
        """How it is now; called about once a second."""

    def started(self, rows: Sequence[ProcessRow], addresses: Sequence[str]) -> None:
        """All of them are ready, and may be found there."""
        for line in (*text_table(rows), *addresses):
            self.say(line)

    def close(self) -> None:
        """Nothing is shown any more."""


class LiveScreen(Screen):
    """The table, the addresses, the latest news; it stays on the terminal at the end."""

    def __init__(self) -> None:
        # Imported here: a plain output does without.
        from rich.console import Console
        from rich.live import Live

        self._news: deque[str] = deque(maxlen=_LINES_SHOWN)
        self._rows: Sequence[ProcessRow] = ()
        self._addresses: Sequence[str] = ()  # stay, however many news there are
        self._live: Live = Live(
            console=Console(), auto_refresh=False, redirect_stderr=False, redirect_stdout=False
        )
        self._live.start()

    def say(self, line: str) -> None:
        self._news.append(line)
        self._draw()

    def show(self, rows: Sequence[ProcessRow]) -> None:
        self._rows = rows
        self._draw()

    def started(self, rows: Sequence[ProcessRow], addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self.show(rows)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        lines = [Text(line, overflow="fold") for line in (*self._addresses, *self._news)]
        self._live.update(Group(table_of(self._rows), *lines), refresh=True)


def table_of(rows: Sequence[ProcessRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"magnetar cluster: {summary(rows)}", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=True)
    for each in rows:
        state = COLUMNS.index("state")
        cells = [Text(cell) for cell in each.cells]
        cells[state].stylize(_COLOURS[each.state])
        table.add_row(*cells)
    return table


def open_screen() -> Screen:
    return LiveScreen() if sys.stdout.isatty() else Screen()
