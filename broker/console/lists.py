"""What the lists of topics, subscriptions and schemas are asked for, by their pages and files."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.console.source import IndexPage, IndexQuery
from magnetar.broker.console.starred import STARRED, starred

if TYPE_CHECKING:
    from magnetar.broker.console.views import Ask

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


def topics_of(ask: Ask, query: IndexQuery) -> Awaitable[IndexPage]:
    """Raises AdminError."""
    if query.view == STARRED:
        return starred(ask.source, query, ask.choices.get(STARRED, frozenset()))
    return ask.source.topics(query)
