"""What the lists of topics, subscriptions and schemas are asked for, by their pages and files."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.broker.console.kept_order import KeptOrder, name_of
from magnetar.broker.console.source import IndexPage, IndexQuery
from magnetar.broker.console.starred import STARRED, starred
from magnetar.broker.console.views import Ask, row_id
from magnetar.metadata.loop_turns import next_turn

ASKED: Final = ("q", "namespace", "view", "sort", "order", "after")
"""Parameters of these pages."""


def topic_query(ask: Ask) -> IndexQuery:
    query = replace(_query(ask, "topic"), schemas=True)
    if query.view == STARRED:
        return replace(query, grouped=True)
    return replace(query, grouped=query.sort == "topic" and not query.view)


def subscription_query(ask: Ask) -> IndexQuery:
    """The one that is furthest behind comes first."""
    return _query(ask, "msgBacklog")


def schema_query(ask: Ask) -> IndexQuery:
    return replace(_query(ask, "topic"), view="", sort="topic", order="", grouped=True)


def _query(ask: Ask, sort: str) -> IndexQuery:
    asked: dict[str, Any] = {name: ask.query.get(name, "") for name in ASKED}
    asked["sort"] = asked["sort"] or sort
    return IndexQuery(**asked)


@dataclass(frozen=True, slots=True)
class ShownPage:
    """A page with its rows in the order in which a browser shows them."""

    page: IndexPage
    order: str = ""
    """For the next fetch, see ``KeptOrder``; empty: the order of names needs none."""
    is_sorted: bool = True
    """Whether a fresh page would have the same rows in the same order."""


async def shown_page(
    ask: Ask, query: IndexQuery, call: Callable[[IndexQuery], Awaitable[IndexPage]]
) -> ShownPage:
    """A page sorted by a figure keeps its rows: new ones wait until somebody sorts again.

    Raises:
        AdminError.
    """
    page = await call(query)
    if query.sort == "topic":
        return ShownPage(page)
    await next_turn()
    if (kept := KeptOrder.parse(ask.shown)) is None:
        if not page.rows or not page.is_complete:
            return ShownPage(page)
        return ShownPage(page, KeptOrder.of([name_of(row) for row in page.rows]).text)
    rows = {row_id(*name_of(row)): row for row in page.rows}
    fresh = list(rows)
    whole = replace(query, q="", namespace="", view="", after="", grouped=False)
    for names in kept.missing(rows):
        more = await call(replace(whole, only=names))
        rows |= {row_id(*name_of(row)): row for row in more.rows}
    shown = replace(page, rows=kept.arranged(rows))
    return ShownPage(shown, kept.text, [row for row in kept.ids if row in rows] == fresh)


def topics_of(ask: Ask, query: IndexQuery) -> Awaitable[IndexPage]:
    """Raises AdminError."""
    if query.view == STARRED:
        return starred(ask.source, query, ask.choices.get(STARRED, frozenset()))
    return ask.source.topics(query)
