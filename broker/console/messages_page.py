"""The tab of a topic's messages.

A search reads so many entries a step. One that goes on until something is found is a row of pages:
each leads to the next one by itself, which needs no script and ends when its reader leaves.
"""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.find_page import nearby
from magnetar.broker.console.formats import visible_lines
from magnetar.broker.console.highlight import Pieces, value_pieces
from magnetar.broker.console.message_view import (
    ALL,
    BODY_MAX,
    MessageRow,
    columns_of,
    messages_view,
    place_after,
    stored_id,
)
from magnetar.broker.console.source import Deliveries, IndexQuery
from magnetar.broker.console.subject import partition_count
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import delivery_rows
from magnetar.broker.console.views import Ask, Panel, PanelError, View, panel
from magnetar.broker.http.messaging.message_filter import FilterError, MessageFilter, parse_filter

MESSAGES: Final = 50
"""Of a page."""
_SEARCHED: Final = ("position", "subscription", "filter", "readCompacted", "before", "id")
"""Parameters of a page that say what is read."""
_SHOWN: Final = ("columns", "show", "all")
"""Those that say how it is shown."""
_LOOKS: Final = (("", "Value"), ("raw", "Raw"), ("hex", "Hex"))
_STEP: Final = ("go", "read", "readBytes")
"""Of a search in steps: ``on`` or ``stop``, and what the steps before have read."""
_DIGITS_MAX: Final = 15
_BUSY: Final = 12
"""Topics to begin with."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search that a page's parameters ask for."""

    topic: TopicPath
    query: Mapping[str, str]
    """Of ``Source.messages``; without a limit."""
    matches: MessageFilter = ALL
    """What is marked of what was found."""


async def wanted(ask: Ask, path: TopicPath, asked: Mapping[str, str], number: str | None) -> Wanted:
    """
    Args:
        asked: see ``asked_of``.
        number: of the partition, as it was typed; None: the topic has none.
    Raises:
        AdminError: it is no number, ``webConsoleMessages`` withholds what is asked for, or there
            is no message with that index.
    """
    if number is not None:
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise AdminError(400, f"{number} is no number of a partition")
        path = path.partition(int(number))
    matches = _filter_of(asked["filter"])
    # Whoever asks often enough learns from the answers what values are.
    if ask.contents != "full" and matches.reads_values:
        raise AdminError(403, "the filter reads values, which webConsoleMessages withholds")
    if hidden := matches.names & ask.source.masked:
        names = ", ".join(sorted(hidden))
        raise AdminError(403, f"the filter reads {names}, which webConsoleMaskedFields withholds")
    if ask.contents == "off":
        raise AdminError(403, "webConsoleMessages is off")
    query = {name: text for name, text in asked.items() if text and name != "id"}
    if (since_ms := _time_ms(asked["position"])) is not None:
        query |= {"timestamp": str(since_ms)}
        del query["position"]
    elif asked["position"].startswith("#"):
        query["position"] = await _place_of(ask, path, asked["position"].removeprefix("#"))
    if ask.contents != "full":
        query["payload"] = "none"
    return Wanted(path, query, matches)


async def _place_of(ask: Ask, path: TopicPath, index: str) -> str:
    """Of the message with an index, where the broker counts them. Raises AdminError."""
    if not (index.isascii() and index.isdecimal() and len(index) < 19):
        raise AdminError(400, f"#{index} is no index of a message: #1000")
    found = await get(ask.source.api, f"{path.rest}/getMessageIdByIndex", index=index)
    return f"{found['ledgerId']}:{found['entryId']}"


def asked_of(query: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a search, with what is meant where nothing is said."""
    asked = {name: query.get(name, "") for name in _SEARCHED}
    if asked["id"] and not (asked["position"] or asked["subscription"] or asked["before"]):
        asked["position"] = asked["id"]  # a link to a message stays one
    is_search = asked["filter"] or asked["readCompacted"]
    asked["position"] = asked["position"] or ("earliest" if is_search else "latest")
    return asked


def is_backwards(asked: Mapping[str, str]) -> bool:
    """Whether the last messages before an end are asked for: the page begins with the newest."""
    is_latest = asked["position"] == "latest" and not asked["subscription"]
    return bool(asked["before"]) or is_latest


async def messages_page(ask: Ask) -> View:
    """Messages of the topic that a parameter names; without one, topics to choose from."""
    text = ask.query.get("topic", "").strip()
    content: dict[str, Any] = {"named": text, "topic": None, "address": ask.address}
    if not text:
        busiest = ask.source.topics(IndexQuery(sort="msgRateIn", limit=_BUSY))
        topics = await panel("Topics", busiest, lambda page: [x["topic"] for x in page.rows])
        paths = Panel([TopicPath.parse(each) for each in topics.value or ()], topics.error)
        content |= {"topics": paths, "partitions": 0} | _form_of(ask)
        return View("messages.html", "Messages", "messages", content, live=0)
    path = TopicPath.typed(text)
    found = await panel("Topic", partition_count(ask.source.api, path), lambda count: count)
    if found.value is None:
        near = await nearby(ask, path)
        content |= {"topics": Panel(near, found.error), "partitions": 0} | _form_of(ask)
        return View("messages.html", "Messages", "messages", content, live=0)
    content |= {"topic": path, "partitions": found.value}
    content |= await messages_tab(ask, path, found.value)
    return View("messages.html", "Messages", "messages", content, live=0)


def _form_of(ask: Ask) -> dict[str, Any]:
    """What the form of a search shows."""
    shown = {name: ask.query.get(name, "") for name in _SHOWN}
    return {"asked": asked_of(ask.query) | shown | {"partition": ask.query.get("partition", "0")}}


async def messages_tab(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    """Of one partition; a page is one search, so it isn't fetched again by itself."""
    number = ask.query.get("partition", "0")
    asked = asked_of(ask.query)
    position, part = {"position": asked["position"]}, number if partitions else ""
    go = ask.query.get("go", "")
    try:
        search = await wanted(ask, path, asked, number if partitions else None)
    except AdminError as error:
        found: Panel[Any] = Panel(error=PanelError("Messages", error.status, str(error)))
    else:
        query = {**search.query, "limit": str(MESSAGES)}
        columns = columns_of(ask.query.get("columns", ""))
        if go == "stop" or path.is_volatile:
            found = Panel(messages_view({**_UNREAD, "next": asked["position"] if go else None}))
        else:
            found = await panel("Messages", _found(ask, search, query, columns), dict)
    rows = (found.value or {"rows": []})["rows"]
    before = asked["before"]
    if is_backwards(asked):
        before = before or (place_after(rows[-1].id) if rows else "")
        rows.reverse()
    at = next((n for n, each in enumerate(rows) if each.id == asked["id"]), None)
    return {
        **_form_of(ask),
        "messages": found,
        "progress": await _progress(ask, path, number, partitions, found.value),
        "before": before,
        "columns": ["." + ".".join(path) for path in columns_of(ask.query.get("columns", ""))],
        "address": ask.address,
        "can_follow": ask.contents != "off" and not path.is_volatile,
        "follow_query": ask.address(id="", position="", subscription="", before="", partition=part),
        "file_query": ask.address(id="", partition=part, **position),
        "values": ask.contents == "full",
        "opened": None if at is None else await _opened(ask, search, rows, at),
    }


async def _found(
    ask: Ask, search: Wanted, query: Mapping[str, str], columns: Sequence[tuple[str, ...]]
) -> dict[str, Any]:
    """Rows made in a thread: their columns are read from values of 64 KiB each."""
    page = await ask.source.messages(search.topic, query)
    return await asyncio.to_thread(messages_view, page, columns, search.matches)


_UNREAD: Final[Mapping[str, Any]] = {"messages": (), "entriesRead": 0, "bytesRead": 0}


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """Of a search that has found nothing up to now."""

    entries: int
    """Read in all its steps."""
    bytes: int
    part: float | None
    """Of the topic's entries, those before its place: 0 to 1. None: nobody can say."""
    does_go_on: bool
    """By itself, with the next step."""
    next: str
    """Address of the next step."""
    stop: str
    """Address of the page that ends it."""


async def _progress(
    ask: Ask, path: TopicPath, number: str, partitions: int, found: Mapping[str, Any] | None
) -> SearchProgress | None:
    """None: something was found, or there is nothing more to read from there on."""
    if found is None or found["rows"] or not found["next"]:
        return None
    if path.is_volatile or is_backwards(asked_of(ask.query)):
        return None
    read = [_count(ask.query.get(name, "")) for name in _STEP[1:]]
    entries, size = read[0] + found["entries"], read[1] + found["bytes"]
    step = {"position": found["next"], "read": str(entries), "readBytes": str(size)}
    step |= dict.fromkeys(("subscription", "before", "id"), "")
    topic = path.partition(int(number)) if partitions else path
    return SearchProgress(
        entries,
        size,
        await _part_before(ask, topic, found["next"]),
        does_go_on=ask.query.get("go") == "on",
        next=ask.address(**step, go="on"),
        stop=ask.address(**step, go="stop"),
    )


def _count(text: str) -> int:
    is_count = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_count else 0


async def _part_before(ask: Ask, path: TopicPath, place: str) -> float | None:
    """Of a topic's entries, those before a place in it."""
    try:
        found = await get(ask.source.api, f"{path.rest}/internalStats")
    except AdminError:
        return None
    ledger_id, _, entry_id = place.partition(":")
    before = sum(x["entries"] for x in found["ledgers"] if x["ledgerId"] < _count(ledger_id))
    before += _count(entry_id.partition(":")[0])
    return min(1.0, before / found["numberOfEntries"]) if found["numberOfEntries"] else None


@dataclass(frozen=True, slots=True)
class Opened:
    """A message of which all is shown."""

    row: MessageRow
    body: Panel[Pieces]
    """Its value, with marks for what can't be seen."""
    looks: Sequence[tuple[str, str]]
    """Of its value: key and title."""
    look: str
    is_whole: bool
    """More of a value that was cut can't be shown."""
    delivered: Panel[Any]
    number: int
    """Of the page's messages, from 1 on."""
    count: int
    """Of the page's messages."""
    previous: str
    """Id of the message before it on the page; "": none."""
    next: str
    command: str
    """Shows it on a command line."""


async def _opened(ask: Ask, search: Wanted, rows: Sequence[MessageRow], at: int) -> Opened:
    row = rows[at]
    look = ask.query.get("show", "")
    looks = _LOOKS if ask.contents == "full" and not row.error else ()
    is_whole = bool(ask.query.get("all"))
    body, delivered = await asyncio.gather(
        panel("Value", _body(ask, search, row, look, is_whole), lambda text: text),
        panel("Delivered to", _deliveries(ask, search, row), delivery_rows),
    )
    ids = ["", *(each.id for each in rows), ""]
    ledger_id, entry_id = row.id.split(":")[:2]
    words = ("get-message-by-id", str(search.topic), "-l", ledger_id, "-e", entry_id)
    return Opened(
        row,
        body,
        looks,
        look,
        is_whole,
        delivered,
        number=at + 1,
        count=len(rows),
        previous=ids[at],
        next=ids[at + 2],
        command=shlex.join(("magnetar", "topics", *words)),
    )


async def _body(ask: Ask, search: Wanted, row: MessageRow, look: str, is_whole: bool) -> Pieces:
    """Raises AdminError: it can't be read again."""
    if ask.contents == "full" and (is_whole or look in ("raw", "hex")):
        again = {"position": row.id, "limit": "1", "payload": "long" if is_whole else "cut"}
        again |= {name: search.query[name] for name in ("readCompacted",) if name in search.query}
        if look in ("raw", "hex"):
            again["raw"] = "true"
        found = await ask.source.messages(search.topic, again)
        if not found["messages"] or stored_id(found["messages"][0]) != row.id:
            raise AdminError(404, f"There is no message {row.id} any more")
        (row,) = messages_view(found)["rows"]
    # In a thread: it may be long.
    return await asyncio.to_thread(_body_pieces, row, look, search.matches)


def _body_pieces(row: MessageRow, look: str, matches: MessageFilter) -> Pieces:
    is_raw = look in ("raw", "hex") and not row.is_masked
    text = getattr(row, look) if is_raw else row.body
    cut = text[:BODY_MAX]
    pieces = value_pieces(cut, ALL if look == "hex" else matches)
    shown = [(visible_lines(piece), is_found) for piece, is_found in pieces]
    return [*shown, ("\n…", False)] if len(text) > len(cut) else shown


async def _deliveries(ask: Ask, search: Wanted, row: MessageRow) -> Deliveries:
    if search.topic.is_volatile or row.error:
        return Deliveries({}, 0)
    return await ask.source.deliveries(search.topic, row.id)


def _filter_of(text: str) -> MessageFilter:
    """`ALL` if it is none: the search says what is wrong."""
    try:
        return parse_filter(text)
    except FilterError:
        return ALL


def _time_ms(position: str) -> int | None:
    """Of a position that is a time, in UTC if it names no zone; None: it is none."""
    if "-" not in position:
        return None
    try:
        moment = datetime.fromisoformat(position)
        return max(0, int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None
