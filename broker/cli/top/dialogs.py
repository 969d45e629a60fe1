"""What `magnetar top` lays over its list: texts, the choice of a step, its question, messages."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Input, OptionList, Static

from magnetar.broker.cli.tables import plain_text
from magnetar.broker.console.actions import Action, Subject
from magnetar.broker.console.formats import moment
from magnetar.broker.console.message_view import MessageRow
from magnetar.broker.console.schema_form import ActionError, fields_of

_BOX: Final = "width: 80%; max-width: 100; height: auto; padding: 0 2; border: round;"


class TextScreen(ModalScreen[None]):
    """A text over the list, until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back")]
    CSS = f"TextScreen {{ align: center middle; }} #text {{ {_BOX} max-height: 90%; }}"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(self._text, id="text", markup=False)


class ChoiceScreen(ModalScreen[Action[Subject] | None]):
    """The steps that there are for a row."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]
    CSS = f"ChoiceScreen {{ align: center middle; }} #choice {{ {_BOX} }}"

    def __init__(self, name: str, actions: Sequence[Action[Subject]]) -> None:
        super().__init__()
        self._name, self._actions = name, actions

    def compose(self) -> ComposeResult:
        with Vertical(id="choice"):
            yield Static(plain_text(self._name), markup=False)
            yield OptionList(*(action.title for action in self._actions))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._actions[event.option_index])


class QuestionScreen(ModalScreen[bool]):
    """A step with what it loses; asks for what it needs, and for the name where that is gone for
    good. Answers whether it is done.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "back")]
    CSS = f"""
        QuestionScreen {{ align: center middle; }} #question {{ {_BOX} }}
        #question Static {{ margin: 0 0 1 0; }} #failure {{ display: none; }}
    """

    def __init__(
        self,
        action: Action[Subject],
        subject: Subject,
        do: Callable[[Mapping[str, str]], Awaitable[str]],
    ) -> None:
        """``do`` gets the fields; why it can't be done, or "": it is done."""
        super().__init__()
        self._action, self._subject, self._do = action, subject, do
        schema = action.schema(subject)
        self._form = () if schema is None else fields_of(schema, None)
        self._is_busy = False

    def compose(self) -> ComposeResult:
        action, subject = self._action, self._subject
        with Vertical(id="question"):
            yield Static(f"{action.title}: {_target(subject)}", markup=False)
            yield Static(plain_text(action.loses(subject)), id="loses", markup=False)
            for field in self._form:
                yield Static(f"{field.label}, as {field.example}", markup=False)
                yield Input(field.example, id=field.name)
            if action.is_typed:
                yield Static(f"Type the name to confirm: {plain_text(subject.name)}", markup=False)
                yield Input(id="name")
            yield Static(id="command", markup=False)
            yield Static(id="failure", markup=False)
            yield Button("Cancel", id="cancel", compact=True)
            yield Button(action.title, id="do", compact=True)

    def on_mount(self) -> None:
        self._show_command()
        fields = self.query(Input)
        (fields.first() if fields else self.query_one("#cancel")).focus()

    def _fields(self) -> dict[str, str]:
        return {str(each.id): each.value for each in self.query(Input)}

    def _show_command(self) -> None:
        try:
            command = self._action.call_for(self._subject, self._fields()).command
        except ActionError as error:
            command = str(error)
        self.query_one("#command", Static).update(plain_text(command))

    def on_input_changed(self, _: Input.Changed) -> None:
        self._show_command()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self.focus_next()

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "cancel":
            self.dismiss(False)
        elif not self._is_busy:
            self._is_busy = True
            self.run_worker(self._try())

    async def _try(self) -> None:
        failure = await self._do(self._fields())
        self._is_busy = False
        if not failure:
            self.dismiss(True)
            return
        shown = self.query_one("#failure", Static)
        shown.display = True
        shown.update(f"◆ {plain_text(failure)}")


class MessagesScreen(ModalScreen[None]):
    """Stored messages of a topic; Enter shows one as a whole."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "back")]
    CSS = "MessagesScreen { align: center middle; } #messages { width: 95%; height: 90%; "
    CSS += "border: round; }"

    def __init__(self, title: str, rows: Sequence[MessageRow]) -> None:
        super().__init__()
        self._title, self._rows = title, rows

    def compose(self) -> ComposeResult:
        with Vertical(id="messages"):
            yield Static(plain_text(self._title), markup=False)
            table: DataTable[Any] = DataTable(cursor_type="row")
            for name in ("ID", "PUBLISHED", "KEY", "VALUE"):
                table.add_column(name)
            for row in self._rows:
                value = row.error or row.value
                cells = (row.id, moment(row.publish_ms), row.key, value)
                table.add_row(*(Text(plain_text(cell)) for cell in cells))
            yield table

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        row = self._rows[event.cursor_row]
        details = [f"{name}: {text}" for name, text in row.details]
        lines = [*(row.error or row.body).splitlines(), "", *details]
        self.app.push_screen(TextScreen("\n".join(map(plain_text, lines))))


def _target(subject: Subject) -> str:
    where = f"{subject.subscription} of " if subject.subscription else ""
    return plain_text(f"{where}{subject.topic}")
