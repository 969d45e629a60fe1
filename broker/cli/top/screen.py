"""The screen of ``magnetar top``, on Textual: an optional extra, so only `top_command` loads it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, ClassVar, Final, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.tables import plain_text
from magnetar.broker.cli.top.figures import (
    VIEWS,
    Figures,
    Row,
    TopState,
    TopView,
    explain,
    read_figures,
    read_state,
)
from magnetar.broker.cli.top.lines import columns_of, counts_text, head_lines
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.source import Source

_RATES_MAX: Final = 12
_STATE_ROUNDS: Final = 5
"""What changes slowly is read once in so many rounds."""


def _cell(text: str, side: Literal["left", "right"]) -> Text:
    return Text(text, justify=side)


class TextScreen(ModalScreen[None]):
    """A text over the list, until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back")]
    CSS = "TextScreen { align: center middle; } #text { width: 80%; padding: 1 2; border: round; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(self._text, id="text", markup=False)


class TopApp(App[None]):
    """Nothing here changes anything in the cluster."""

    CSS = "#head, #bar { height: auto; } #filter { display: none; } DataTable { height: 1fr; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"view({number - 1})", view.name, show=False)
            for number, view in enumerate(VIEWS, 1)
        ),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("space", "pause", "pause"),
        Binding("question_mark", "keys", "keys"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, source: Source, interval_s: float, text: str = "") -> None:
        super().__init__()
        self._source, self._interval_s, self._text = source, interval_s, text
        self._view: TopView = VIEWS[0]
        self._sort = self._view.sorts[0]
        self._state = TopState()
        self._rounds = 0
        self._rates: tuple[deque[float], deque[float]] = (
            deque(maxlen=_RATES_MAX),
            deque(maxlen=_RATES_MAX),
        )
        self._figures: Figures | None = None
        self._keys: list[str] = []  # of the rows that are shown
        self._failure = ""
        self._is_paused = False
        self._reading = 0  # rounds that wait for an answer

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="bar", markup=False)
        yield Input(placeholder="part of a name", id="filter")
        table: DataTable[str] = DataTable(cursor_type="row", zebra_stripes=True)
        yield table
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self._renew()
        self.set_interval(self._interval_s, self._tick)

    def _tick(self) -> None:
        if not self._is_paused and not self._reading:
            self._renew()

    def _renew(self) -> None:
        view, sort, text = self._view, self._sort, self._text
        self._reading += 1
        self.run_worker(self._read(view, sort, text))

    async def _read(self, view: TopView, sort: str, text: str) -> None:
        try:
            if self._rounds % _STATE_ROUNDS == 0 or not view.sorts:
                self._state = await read_state(self._source)
            figures = await read_figures(self._source, view, sort, text, self._state)
        except (AdminError, ClientAuthError) as error:
            self._failure = str(error).partition("\n")[0]
            self._show_bar()
            return
        finally:
            self._reading -= 1
        self._rounds += 1
        self._take(view, figures)

    def _take(self, view: TopView, figures: Figures) -> None:
        if view is not self._view:
            return
        self._failure, self._figures = "", figures
        self._rates[0].append(figures.sums.msg_rate_in)
        self._rates[1].append(figures.sums.msg_rate_out)
        now_ms = time.time_ns() // 1_000_000
        lines = head_lines(figures, now_ms, *self._rates)
        self.query_one("#head", Static).update("\n".join(map(plain_text, lines)))
        self._show_bar()
        self._show_rows(figures, now_ms)

    def _show_bar(self) -> None:
        names = (
            f"[{number} {view.name}]" if view is self._view else f"{number} {view.name}"
            for number, view in enumerate(VIEWS, 1)
        )
        parts = ["  ".join(names)]
        if self._sort:
            parts.append(f"by {self._sort}")
        if self._text:
            parts.append(f"filter: {plain_text(self._text)}")
        if self._figures is not None:
            parts.append(counts_text(self._figures))
        parts.append("paused" if self._is_paused else f"every {self._interval_s:g} s")
        if self._failure:
            parts.append(f"◆ {plain_text(self._failure)}")
        self.query_one("#bar", Static).update("   ".join(parts))

    def _show_rows(self, figures: Figures, now_ms: int) -> None:
        table: DataTable[Any] = self.query_one(DataTable)
        keys = [self._view.key_of(row) for row in figures.rows]
        at, top = self._place_of(keys), table.scroll_y
        table.clear(columns=True)
        columns = columns_of(self._view, self.size.width)
        sides: list[Literal["left", "right"]] = [
            "right" if each.is_number else "left" for each in columns
        ]
        for column, side in zip(columns, sides, strict=True):
            table.add_column(Text(column.title, justify=side))
        for row in figures.rows:
            cells = (plain_text(each.text(row, now_ms)) for each in columns)
            table.add_row(*map(_cell, cells, sides))
        table.move_cursor(row=at, scroll=False)
        table.scroll_to(y=top, animate=False)
        self._keys = keys

    def _place_of(self, keys: list[str]) -> int:
        """Where the row under the cursor is now."""
        at: int = self.query_one(DataTable).cursor_row
        if at < len(self._keys) and self._keys[at] in keys:
            return keys.index(self._keys[at])
        return min(at, max(0, len(keys) - 1))

    def action_view(self, number: int) -> None:
        self._view = VIEWS[number]
        self._sort = self._view.sorts[0] if self._view.sorts else ""
        self._figures = None
        self.query_one(DataTable).clear(columns=True)
        self._show_bar()
        self._renew()

    def action_sort(self) -> None:
        """The next figure that the view can be sorted by."""
        sorts = self._view.sorts
        if sorts:
            self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
            self._renew()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._show_bar()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.value = self._text
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.input.display = False
        self._text = event.value
        self.query_one(DataTable).focus()
        self._renew()

    def action_keys(self) -> None:
        lines = [f"{number}      {view.name}" for number, view in enumerate(VIEWS, 1)]
        lines += ["Enter  why a subscription gets nothing now", "s      sort by another figure"]
        lines += ["/      only names with a text", "space  pause", "q      end"]
        self.push_screen(TextScreen("\n".join(lines)))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        figures = self._figures
        if figures is None or event.cursor_row >= len(figures.rows):
            return
        row = figures.rows[event.cursor_row]
        if "topic" in row:
            self.run_worker(self._explain(row))

    async def _explain(self, row: Row) -> None:
        try:
            text = await explain(self._source, row)
        except (AdminError, ClientAuthError) as error:
            text = str(error)
        await self.push_screen(TextScreen("\n".join(map(plain_text, text.splitlines()))))
