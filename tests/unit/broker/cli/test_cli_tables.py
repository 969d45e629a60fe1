"""Objects on a terminal: tables that show everything, and JSON everywhere else."""

import argparse
import contextlib
import io
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.cli.message_output import MessageOutput
from magnetar.broker.cli.output import print_value
from magnetar.broker.cli.tables import plain_text, render

STATS = {
    "msgRateIn": 12.3456789,
    "publishers": [
        {"producerName": "p-1", "producerId": 7, "metadata": {}},
        {"producerName": "p-22", "producerId": 12, "metadata": {}},
    ],
    "subscriptions": {
        "billing": {"msgBacklog": 5, "consumers": [{"name": "c1", "permits": 5}]},
        "audit": {"msgBacklog": 0, "consumers": []},
    },
    "replication": {},
}
TEXT = """\
msgRateIn    12.346
replication  {}

publishers
producerName  producerId  metadata
p-1                    7  {}
p-22                  12  {}

subscriptions / billing
msgBacklog  5

subscriptions / billing / consumers
name  permits
c1          5

subscriptions / audit
msgBacklog  0
consumers   []
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def printed(value: Any, to: io.StringIO, *, as_json: bool = False) -> str:
    with contextlib.redirect_stdout(to):
        print_value(value, as_json=as_json)
    return to.getvalue()


def test_a_terminal_shows_tables_in_colours() -> None:
    shown = printed(STATS, Terminal())
    assert "\x1b[1mpublishers\x1b[0m" in shown
    assert re.sub(r"\x1b\[\d+m", "", shown) == TEXT


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_they_are_not_wanted(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert printed(STATS, Terminal()) == TEXT


def test_json_stays_json() -> None:
    assert json.loads(printed(STATS, Terminal(), as_json=True)) == STATS
    assert json.loads(printed(STATS, io.StringIO())) == STATS


@pytest.mark.parametrize(("value", "text"), [({}, "{}\n"), ([], ""), (None, "null\n"), (7, "7\n")])
def test_what_is_no_table_is_as_elsewhere(value: Any, text: str) -> None:
    assert printed(value, Terminal()) == printed(value, io.StringIO()) == text


def test_names_of_others_give_a_terminal_no_orders() -> None:
    names = ["\x1b]0;owned\x07\x1b[2J", "\u202egnp", "\x9b2J", "你好 é", "two\nlines"]
    assert printed(names, io.StringIO()) == "\n".join((*names, ""))
    shown = printed(names, Terminal())
    wanted = [r"\x1b]0;owned\x07\x1b[2J", r"\u202egnp", r"\x9b2J", "你好 é", "two\nlines"]
    assert shown == "\n".join((*wanted, ""))
    assert printed("\x1b[2J", Terminal()) == "\\x1b[2J\n"


async def test_messages_of_others_give_a_terminal_no_orders() -> None:
    options = argparse.Namespace(num_messages=1, rate=0, hide_content=False, hex=False)
    for to, text in ((Terminal(), "a\tb\\x1b[2J\n"), (io.StringIO(), "a\tb\x1b[2J\n")):
        with contextlib.redirect_stdout(to):
            await MessageOutput(options, lambda _: None).show(lambda: "a\tb\x1b[2J")
        assert to.getvalue().endswith(text)


def test_similar_objects_are_rows() -> None:
    value = {"a": {"n": 1, "b": True}, "bb": {"n": 22, "b": None, "c": 0.5}}
    assert list(render(value, 80, colours=False)) == [
        "     n  b     c",
        "a    1  true",
        "bb  22  null  0.5",
    ]
    other = {"a": {"n": 1}, "b": {"m": 2}}
    assert list(render(other, 80, colours=False)) == ["a", "n  1", "", "b", "m  2"]


def test_rows_that_are_too_wide_stand_below_each_other() -> None:
    rows = [{"a": "x" * 30, "b": "y" * 30}, {"a": "z", "b": ""}]
    assert list(render(rows, 50, colours=False)) == [
        "0",
        f"a  {'x' * 30}",
        f"b  {'y' * 30}",
        "",
        "1",
        "a  z",
        "b  ",
    ]


def test_many_pairs_stand_side_by_side() -> None:
    value = {f"name{number:02}": number for number in range(20)} | {"long": "x" * 60}
    lines = list(render(value, 60, colours=False))
    assert lines[0] == "name00  0     name05  5     name10  10    name15  15"
    assert len(lines) == 6
    assert lines[-1] == f"long    {'x' * 60}"


def test_wide_characters_keep_the_columns() -> None:
    rows = {"日本": {"n": 1}, "a": {"n": 2}}
    assert list(render(rows, 80, colours=False))[1:] == ["日本  1", "a     2"]


def test_a_terminal_gets_no_control_characters() -> None:
    assert plain_text("a\x1b[2J\n") == "a\\u001b[2J\\n"
    assert "\x1b" not in "".join(render({"\x1b]0;x": {"\x1b[31m": "\x9b1m"}}, 80, colours=False))


SCALARS = st.integers() | st.booleans() | st.none() | st.text("abcdefgh", min_size=3)
NAMES = st.text("mnopqrst", min_size=3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=20
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(NAMES, VALUES), st.integers(20, 120))
def test_nothing_is_left_out(value: dict[str, Any], width: int) -> None:
    shown = " ".join(render(value, width, colours=False))
    for leaf in _leaves(value) if value else ():
        assert plain_text(leaf) in shown


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict) and value:
        return [*value, *(leaf for each in value.values() for leaf in _leaves(each))]
    if isinstance(value, list) and value:
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]
