"""Messages that a search finds, as a file: a step of the search at a time, so of any length.

A spreadsheet takes a cell that begins with ``=`` for a formula, which may send what is beside it
elsewhere; so such texts get an apostrophe.
"""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from magnetar.broker.console.formats import moment
from magnetar.broker.console.message_view import stored_id
from magnetar.broker.console.messages_page import MESSAGES, asked_of, is_backwards, wanted
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, Streamed

MESSAGES_MAX: Final = 10_000
_STEPS_MAX: Final = 20
"""Searches of one file, each bound as a page's is."""
_STEP: Final = 100
_ON: Final = {"subscription": "", "timestamp": "0"}
"""What the place where a step ended stands for."""
_COLUMNS: Final = (
    *("messageId", "publishTime", "key", "keyEncoding", "value", "encoding", "size", "properties"),
    *("eventTime", "producerName", "sequenceId", "schemaVersion", "error"),
)
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")

Messages = Sequence[Mapping[str, Any]]


async def export(ask: Ask) -> Streamed:
    """Raises AdminError: nothing is found, as it is refused."""
    path = TopicPath.of(ask.names)
    asked = asked_of(ask.query)
    search = await wanted(ask, path, asked, ask.query.get("partition"))
    is_page = is_backwards(asked)  # the last ones: those of the page
    limit = MESSAGES if is_page else _STEP

    async def step(more: Mapping[str, str], most: int) -> dict[str, Any]:
        query = {"payload": "whole", **search.query, **more, "limit": str(min(limit, most))}
        return await ask.source.messages(search.topic, query)

    kind = ask.names["kind"]
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", search.topic.local)[:100]
    headers = {"Content-Disposition": f'attachment; filename="{stem}.{kind}"'}
    found = await step({}, limit)
    if is_page:
        found["next"] = None
    pieces = _pieces(found, step, _WRITERS[kind])
    return Streamed(pieces, headers=headers)


async def _pieces(
    found: dict[str, Any],
    step: Callable[[Mapping[str, str], int], Awaitable[dict[str, Any]]],
    write: Callable[[Messages, bool, str], bytes],
) -> AsyncIterator[bytes]:
    """Of the file; ``found``: the first step of the search."""
    left = MESSAGES_MAX
    for number in range(_STEPS_MAX):
        messages = found["messages"]
        left -= len(messages)
        is_cut = number + 1 == _STEPS_MAX or left <= 0
        rest = (found["next"] or "") if is_cut else ""
        # In a thread: a step may be 8 MiB.
        yield await asyncio.to_thread(write, messages, number == 0, rest)
        if is_cut or not found["next"]:
            return
        found = await step({**_ON, "position": found["next"]}, left)


def _as_ndjson(messages: Messages, is_first: bool, rest: str) -> bytes:
    lines = [orjson.dumps(each) for each in messages]
    return b"".join(line + b"\n" for line in (lines + [orjson.dumps({"next": rest})] * bool(rest)))


def _as_csv(messages: Messages, is_first: bool, rest: str) -> bytes:
    rows = [list(_COLUMNS)] if is_first else []
    rows += map(_row, messages)
    if rest:
        rows.append([f"there is more, from {rest}"])
    return csv_lines(rows)


def csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    """Of a file. A text that a spreadsheet would take for a formula gets an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _row(message: Mapping[str, Any]) -> list[Any]:
    shown = {
        **message,
        "messageId": stored_id(message),
        "publishTime": moment(message.get("publishTime")),
        "eventTime": moment(message.get("eventTime")),
        "value": message.get("payload", ""),
        "properties": message.get("properties") or "",
    }
    return [shown.get(name, "") for name in _COLUMNS]


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULAS) else text


_WRITERS: Final[Mapping[str, Callable[[Messages, bool, str], bytes]]] = {
    "ndjson": _as_ndjson,
    "csv": _as_csv,
}
