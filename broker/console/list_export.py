"""A list as a CSV file: with the filter and the order of its page, a part of it at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.export import csv_lines
from magnetar.broker.console.formats import moment
from magnetar.broker.console.index_view import schema_text
from magnetar.broker.console.lists import (
    schema_query,
    subscription_query,
    topic_query,
    topics_of,
)
from magnetar.broker.console.source import IndexPage, IndexQuery
from magnetar.broker.console.views import Ask, Streamed

ROWS_MAX: Final = 10_000
_STEP: Final = 500
_TIMES: Final = frozenset(
    (
        *("earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog", "idleSince"),
        "timestamp",
    )
)
_RATES: Final = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "topics": (
        *("topic", "partitions", "broker", *_RATES, "msgBacklog", "msgBacklogTrend"),
        *("earliestMsgPublishTimeInBacklogs", "subscriptionCount", "producerCount"),
        *("consumerCount", "storageSize", "idleSince", "backlogQuotaUsage", "schema"),
    ),
    "subscriptions": (
        *("topic", "subscription", "type", "broker", "msgRateOut", "msgBacklog"),
        *("msgBacklogTrend", "earliestMsgPublishTimeInBacklog", "unackedMessages"),
        "consumerCount",
    ),
    "schemas": ("topic", "type", "version", "timestamp", "compatibility"),
}
Find = Callable[[IndexQuery], Awaitable[IndexPage]]


async def export_list(ask: Ask) -> Streamed:
    """Raises AdminError: the first rows can't be read, or only a page's can."""
    name, source = ask.names["list"], ask.source
    columns = [each for each in _COLUMNS[name] if each != "schema" or source.lists_schemas]
    query, find = _asked(ask, name)
    query = replace(query, limit=_STEP, after="", schemas=query.schemas and source.lists_schemas)
    pieces = _pieces(await find(query), query, find, columns)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Streamed(pieces, headers=headers)


def _asked(ask: Ask, name: str) -> tuple[IndexQuery, Find]:
    if name == "topics":
        return topic_query(ask), lambda query: topics_of(ask, query)
    if name == "subscriptions":
        return subscription_query(ask), ask.source.subscriptions
    if not ask.source.lists_schemas:
        raise AdminError(501, f"{ask.source.product} doesn't list schemas")
    return schema_query(ask), ask.source.schemas


async def _pieces(
    page: IndexPage, query: IndexQuery, find: Find, columns: Sequence[str]
) -> AsyncIterator[bytes]:
    """Of the file; ``page``: the first rows."""
    yield csv_lines([columns])
    left, silent = ROWS_MAX, dict(page.silent)
    while True:
        rows = page.rows[:left]
        left -= len(rows)
        yield await asyncio.to_thread(_lines, rows, columns)
        if not page.next or not left:
            break
        page = await find(replace(query, after=page.next))
        silent |= page.silent
    if page.next:
        yield csv_lines([[f"there is more: {page.matching:,} in all"]])
    yield csv_lines([f"{broker} has not answered: {why}"] for broker, why in silent.items())


def _lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    return csv_lines([_value(name, row.get(name)) for name in columns] for row in rows)


def _value(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if name == "schema":
        return schema_text(value)
    return moment(value) if name in _TIMES else value
