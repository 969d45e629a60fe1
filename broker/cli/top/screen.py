"""The screen of ``magnetar top``, on Textual: an optional extra, so only `top_command` loads it."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widgets import DataTable, Footer, Input, Static

from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.tables import cell_count, plain_text
from magnetar.broker.cli.top.dialogs import (
    ChoiceScreen,
    MessagesScreen,
    QuestionScreen,
    TextScreen,
)
from magnetar.broker.cli.top.figures import (
    VIEWS,
    Figures,
    Row,
    TopState,
    TopView,
    explain,
    newest_messages,
    read_figures,
)
from magnetar.broker.cli.top.filter_text import FilterTextError
from magnetar.broker.cli.top.lines import columns_of, counts_text, fitted, head_lines
from magnetar.broker.cli.top.texts import cut
from magnetar.broker.console.actions import (
    SUBSCRIPTION_ACTIONS,
    TOPIC_ACTIONS,
    Action,
    Subject,
    call_of,
)
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.kept_reads import FINDINGS_AGE, KeptReads
from magnetar.broker.console.schema_form import ActionError
from magnetar.broker.console.source import Source
from magnetar.broker.console.subject import read_subject
from magnetar.broker.console.topic_path import TopicPath

_SCROLLBAR: Final = 2
_FAILURES: Final = (
    *(AdminError, ClientAuthError),
    *(AttributeError, LookupError, TypeError, ValueError),
)
"""The last ones: what answers at the address is no broker."""
_STATE_ROUNDS: Final = 5
"""What changes slowly is read once in so many rounds."""


_KEYS: Final = (
    ("Enter", "Enter  why a subscription gets nothing now"),
    ("m", "m      the newest messages of a topic"),
    ("s", "s      sort by another figure"),
    ("/", "/      only names with a text, or what has backlog>0, consumers=0, trend>0, rate>0"),
    ("space", "space  pause"),
    ("a", "a      skip, reset, expire, delete ...: asks first"),
    ("q", "q      end"),
)


def _reason(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    if isinstance(error, AdminError | ClientAuthError | FilterTextError):
        return text
    return f"an answer that nobody understands: {type(error).__name__} {text}"


def _cell(text: str, side: Literal["left", "right"]) -> Text:
    return Text(text, justify=side)


class TopApp(App[None]):
    """Changes the cluster by the steps of the console alone, each after its question."""

    CSS = "#head, #bar { height: auto; } #filter { display: none; } DataTable { height: 1fr; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"view({number - 1})", view.name, show=False)
            for number, view in enumerate(VIEWS, 1)
        ),
        Binding("m", "messages", "messages"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("space", "pause", "pause"),
        Binding("a", "steps", "actions"),
        Binding("question_mark", "keys", "keys"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(
        self, source: Source, interval_s: float, text: str = "", *, read_only: bool = False
    ) -> None:
        super().__init__()
        self._read_only = read_only
        self._source, self._interval_s, self._text = source, interval_s, text
        self._view: TopView = VIEWS[0]
        self._sort = self._view.sorts[0]
        self._state = TopState()
        self._rounds = 0
        self._figures: Figures | None = None
        self._keys: list[str] = []  # of the rows that are shown
        self._failure = ""
        self._is_paused = False
        self._reading = 0  # rounds that wait for an answer
        self._lacks_findings = False
        self._findings = KeptReads[list[dict[str, Any]]](time.monotonic, FINDINGS_AGE)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="bar", markup=False)
        yield Input(placeholder="part of a name, or backlog>0", id="filter")
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
            is_due = self._rounds % _STATE_ROUNDS == 0 or not view.sorts or self._lacks_findings
            known = None if is_due else self._state
            figures = await read_figures(self._source, view, sort, text, known, self._read_findings)
        except (*_FAILURES, FilterTextError) as error:
            self._failure = _reason(error)
            self._show_bar()
            return
        finally:
            self._reading -= 1
        self._rounds += 1
        self._state = figures.state
        self._take(view, figures)

    async def _read_findings(self) -> list[dict[str, Any]] | None:
        """Those of before while they are read: of many topics that takes a second and more."""
        found = await self._findings.of("", self._source.findings)
        self._lacks_findings = found is None
        return found

    async def on_unmount(self) -> None:
        await self._findings.close()

    def _take(self, view: TopView, figures: Figures) -> None:
        if view is not self._view:
            return
        self._failure, self._figures = "", figures
        now_ms = time.time_ns() // 1_000_000
        lines = head_lines(figures, now_ms, self.size.width)
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
        cells = [[plain_text(each.text(row, now_ms)) for each in columns] for row in figures.rows]
        titles = [each.title for each in columns]
        wanted = [max(map(cell_count, column)) for column in zip(titles, *cells, strict=True)]
        room = self.size.width - 2 * len(columns) - _SCROLLBAR
        widths = fitted(wanted, columns, room)
        for title, side, width in zip(titles, sides, widths, strict=True):
            table.add_column(Text(title, justify=side), width=width)
        for line in cells:
            table.add_row(*map(_cell, map(cut, line, widths), sides))
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

    def on_key(self, event: Key) -> None:
        field = self.query_one("#filter", Input)
        if event.key == "escape" and field.has_focus:
            field.display = False
            self.query_one(DataTable).focus()

    def action_keys(self) -> None:
        lines = [f"{number}      {view.name}" for number, view in enumerate(VIEWS, 1)]
        lines += [text for key, text in _KEYS if key != "a" or not self._read_only]
        self.push_screen(TextScreen("\n".join(lines)))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (self._read_only and action == "steps")

    # --- about the row under the cursor

    def _row(self) -> Row | None:
        """None: it is about no topic."""
        figures, at = self._figures, self.query_one(DataTable).cursor_row
        if figures is None or at >= len(figures.rows) or "topic" not in figures.rows[at]:
            return None
        return figures.rows[at]

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if (row := self._row()) is not None:
            self.run_worker(self._explain(row))

    def action_messages(self) -> None:
        if (row := self._row()) is not None:
            self.run_worker(self._show_messages(row))

    async def _show_messages(self, row: Row) -> None:
        try:
            title, rows = await newest_messages(self._source, row)
        except _FAILURES as error:
            await self.push_screen(TextScreen(plain_text(_reason(error))))
            return
        await self.push_screen(MessagesScreen(title, rows))

    def action_steps(self) -> None:
        if (row := self._row()) is None:
            return
        actions = SUBSCRIPTION_ACTIONS if "subscription" in row else TOPIC_ACTIONS

        def on_choice(action: Action[Subject] | None) -> None:
            if action is not None:
                self.run_worker(self._ask(action, row))

        self.push_screen(
            ChoiceScreen("  ".join(self._view.key_of(row).split("\n")), actions), on_choice
        )

    async def _ask(self, action: Action[Subject], row: Row) -> None:
        topic = TopicPath.parse(row["topic"])
        try:
            subject = await read_subject(self._source.api, topic, row.get("subscription", ""))
        except _FAILURES as error:
            await self.push_screen(TextScreen(plain_text(_reason(error))))
            return

        async def do(fields: Mapping[str, str]) -> str:
            return await self._do(action, subject, fields)

        def on_answer(is_done: bool | None) -> None:
            if is_done:
                self._renew()

        await self.push_screen(QuestionScreen(action, subject, do), on_answer)

    async def _do(
        self, action: Action[Subject], subject: Subject, fields: Mapping[str, str]
    ) -> str:
        """Why it can't be done; "": it is."""
        try:
            call = call_of(action, subject, fields)
            await self._source.api.call(
                call.method, f"/admin/v2/{call.path}", call.query, call.body
            )
        except ActionError as error:
            return str(error)
        except _FAILURES as error:
            return _reason(error)
        return ""

    async def _explain(self, row: Row) -> None:
        try:
            text = await explain(self._source, row)
        except _FAILURES as error:
            text = _reason(error)
        await self.push_screen(TextScreen("\n".join(map(plain_text, text.splitlines()))))
