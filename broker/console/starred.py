"""Topics that somebody has starred in this browser, with figures of now: a page of them."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Final

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.snapshot import Row, page_of, topic_row
from magnetar.broker.console.source import IndexPage, IndexQuery, Source
from magnetar.broker.console.subject import topic_stats
from magnetar.broker.console.topic_path import TopicPath

STARRED: Final = "starred"
"""Key of the view."""
_TOPICS_MAX: Final = 50
"""A cookie has room for about as many names."""
_AT_ONCE: Final = 8


async def starred(source: Source, query: IndexQuery, names: Iterable[str]) -> IndexPage:
    """As a page of the index, whose counts it has; the statistics of each topic are asked for.

    Raises:
        AdminError: the index can't be asked. A topic that can't be has no figures.
    """
    shown, limit = sorted(names)[:_TOPICS_MAX], asyncio.Semaphore(_AT_ONCE)

    async def row(name: str) -> Row:
        path = TopicPath.parse(name)
        try:
            async with limit:
                partitions, stats = await topic_stats(source.api, path, per_partition=False)
                schema = await source.schema(path, None)
        except AdminError:  # it may be gone, or of another cluster
            return {"topic": name}
        found = topic_row(name, stats, stats["subscriptions"].values())
        oldest_ms = stats.get("earliestMsgPublishTimeInBacklogs") or None
        more = {"partitions": partitions, "schema": schema and asdict(schema)}
        return found | more | {"earliestMsgPublishTimeInBacklogs": oldest_ms}

    index = await source.topics(
        IndexQuery(q=query.q, namespace=query.namespace, limit=1, partial=query.partial)
    )
    rows = await asyncio.gather(*map(row, shown))
    page = page_of(rows, replace(query, view=""), "" if shown else _NONE)
    views = {**index.views, STARRED: page.matching}
    return replace(
        page,
        total=index.total,
        views=views,
        silent=index.silent,
        is_complete=index.is_complete,
        read=index.read,
    )


_NONE: Final = "No topic is starred yet: the head of a topic's page has the box."
