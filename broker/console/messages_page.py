"""The tab of a topic's messages, and what was found as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.message_view import messages_view
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, Panel, PanelError, panel
from magnetar.broker.http.messaging.message_filter import FilterError, parse_filter

MESSAGES: Final = 50
"""Of a page."""
_SEARCHED: Final = ("position", "subscription", "filter", "id")
"""Parameters of a page."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search that a page's parameters ask for."""

    topic: TopicPath
    query: Mapping[str, str]
    """Of ``Source.messages``; without a limit."""


def wanted(ask: Ask, path: TopicPath, asked: Mapping[str, str], number: str | None) -> Wanted:
    """
    Args:
        asked: see ``asked_of``.
        number: of the partition, as it was typed; None: the topic has none.
    Raises:
        AdminError: it is no number, or ``webConsoleMessages`` withholds what is asked for.
    """
    if number is not None:
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise AdminError(400, f"{number} is no number of a partition")
        path = path.partition(int(number))
    if ask.contents != "full" and _reads_values(asked["filter"]):
        raise AdminError(403, "the filter reads values, which webConsoleMessages withholds")
    if hidden := _names_in(asked["filter"]) & ask.source.masked:
        names = ", ".join(sorted(hidden))
        raise AdminError(403, f"the filter reads {names}, which webConsoleMaskedFields withholds")
    if ask.contents == "off":
        raise AdminError(403, "webConsoleMessages is off")
    query = {name: text for name, text in asked.items() if text and name != "id"}
    if (since_ms := _time_ms(asked["position"])) is not None:
        query |= {"timestamp": str(since_ms)}
        del query["position"]
    return Wanted(path, query if ask.contents == "full" else query | {"payload": "none"})


def asked_of(query: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a search, with what is meant where nothing is said."""
    asked = {name: query.get(name, "") for name in _SEARCHED}
    if asked["id"] and not (asked["position"] or asked["subscription"]):
        asked["position"] = asked["id"]  # a link to a message stays one
    asked["position"] = asked["position"] or ("earliest" if asked["filter"] else "latest")
    return asked


async def messages_tab(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    """Of one partition; a page is one search, so it isn't fetched again by itself."""
    number = ask.query.get("partition", "0")
    asked = asked_of(ask.query)
    position, at = {"position": asked["position"]}, number if partitions else ""
    try:
        search = wanted(ask, path, asked, number if partitions else None)
    except AdminError as error:
        found: Panel[Any] = Panel(error=PanelError("Messages", error.status, str(error)))
    else:
        query = {**search.query, "limit": str(MESSAGES)}
        found = await panel("Messages", ask.source.messages(search.topic, query), messages_view)
    opened = [each for each in (found.value or {"rows": []})["rows"] if each.id == asked["id"]]
    return {
        "messages": found,
        "asked": asked | {"partition": number},
        "address": ask.address,
        "can_follow": ask.contents != "off" and not path.is_volatile,
        "follow_query": ask.address(id="", position="", subscription="", partition=at),
        "file_query": ask.address(id="", partition=at, **position),
        "values": ask.contents == "full",
        "opened": opened[0] if opened else None,
    }


def _names_in(text: str) -> set[str]:
    """Of fields and properties that a filter looks at."""
    try:
        return parse_filter(text).names
    except FilterError:
        return set()


def _time_ms(position: str) -> int | None:
    """Of a position that is a time, in UTC if it names no zone; None: it is none."""
    if "-" not in position:
        return None
    try:
        moment = datetime.fromisoformat(position)
        return max(0, int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None


def _reads_values(text: str) -> bool:
    """Else whoever asks often enough learns from its answers what values are."""
    try:
        return parse_filter(text).reads_values
    except FilterError:
        return False
