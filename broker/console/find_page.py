"""What a text may mean: topics, subscriptions, namespaces, brokers and pages, a few of each.

It is the list below the field at the head of every page, and a page of its own without a script.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final
from urllib.parse import quote

from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.formats import segment
from magnetar.broker.console.source import IndexQuery, NamespaceSums
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, View
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.sorted_names import sort_in_turns

_EACH: Final = 6
"""Entries of a group."""
_AGAIN_S: Final = 2
"""Until a page fetches itself that has shown a part, while topics are still being read."""
_TEXT_MAX: Final = 400
_NAMES_MAX: Final = 1_000
"""That a name which isn't there is compared with."""
_LIKE: Final = 0.6
"""From 0 to 1, see difflib: ``order`` and ``orders`` are 0.9."""


@dataclass(frozen=True, slots=True)
class Found:
    """An entry: a link with a name, and where that is."""

    text: str
    url: str
    """From the root of the console."""
    place: str = ""
    is_step: bool = False
    """Whether it leads to what changes something."""


@dataclass(frozen=True, slots=True)
class Part:
    """A page about a topic, or a step."""

    title: str
    path: str
    """Below the topic's."""
    is_step: bool = False


async def find(ask: Ask, parts: Sequence[Part]) -> View:
    """Names with the text ``q`` in them; ``orders mess`` is also the messages of orders."""
    text = ask.query.get("q", "").strip()[:_TEXT_MAX]
    if not text:
        return _view(text, [])
    head, _, tail = text.rpartition(" ")
    wanted = [each for each in parts if each.title.lower().startswith(tail.lower())]
    spaces, *groups = await asyncio.gather(
        _spaces(ask),
        _topics(ask, head.strip(), wanted if head else ()),
        _topics(ask, text),
        _subscriptions(ask, text),
        _brokers(ask, text),
    )
    titles = ("Pages and steps", "Topics", "Subscriptions", "Brokers")
    found = dict(zip(titles, groups, strict=True)) | {"Namespaces": await _namespaces(spaces, text)}
    return _view(text, [each for each in found.items() if each[1]], spaces)


def _view(
    text: str, groups: list[tuple[str, list[Found]]], spaces: NamespaceSums | None = None
) -> View:
    is_complete = spaces is None or spaces.is_complete
    content = {"q": text, "groups": groups, "sums": spaces}
    return View("find.html", "Find", "", content, live=0 if is_complete else _AGAIN_S)


async def _some(found: Awaitable[list[Found]]) -> list[Found]:
    """What a visitor may not ask for, or a silent broker knows, isn't found."""
    try:
        return (await found)[:_EACH]
    except AdminError:
        return []


async def _topics(ask: Ask, text: str, parts: Sequence[Part] | None = None) -> list[Found]:
    """
    Args:
        parts: what of each topic is wanted; None: the topic itself.
    """

    async def found() -> list[Found]:
        if parts is not None and not parts:
            return []
        page = await ask.source.topics(IndexQuery(q=text, limit=_EACH, partial=True))
        topics = [TopicPath.parse(row["topic"]) for row in page.rows]
        if parts is None:
            return [Found(each.local, f"topic/{each.rest}", _place(each)) for each in topics]
        return [
            Found(
                f"{each.local}: {part.title}",
                f"topic/{each.rest}/{part.path}",
                _place(each),
                part.is_step,
            )
            for each in topics
            for part in parts
        ]

    return await _some(found())


async def nearby(ask: Ask, missing: TopicPath) -> list[TopicPath]:
    """Topics that may be meant by a name that is none: of its namespace, and of others."""
    space = IndexQuery(namespace=_place(missing), limit=_NAMES_MAX, partial=True)
    elsewhere = IndexQuery(q=missing.local[:_TEXT_MAX], limit=_EACH, partial=True)
    try:
        pages = await asyncio.gather(ask.source.topics(space), ask.source.topics(elsewhere))
    except AdminError:
        return []
    own, same = ([TopicPath.parse(row["topic"]) for row in page.rows] for page in pages)
    names = alike(missing.local, {t.local for t in own})
    close = [topic for name in names for topic in own if topic.local == name]
    return list(dict.fromkeys([*close, *same]))[:_EACH]


def alike(missing: str, names: Iterable[str]) -> list[str]:
    """A few of the names, that may be meant by one that is none; the closest first.

    Of very many names only the first are compared.
    """
    return difflib.get_close_matches(missing, list(islice(names, _NAMES_MAX)), _EACH, _LIKE)


def _place(topic: TopicPath) -> str:
    return f"{topic.tenant}/{topic.namespace}"


async def _subscriptions(ask: Ask, text: str) -> list[Found]:
    async def found() -> list[Found]:
        query = IndexQuery(q=text, sort="msgBacklog", limit=_EACH, partial=True)
        page = await ask.source.subscriptions(query)
        return [
            Found(
                row["subscription"],
                f"topic/{topic.rest}/subscriptions?open={quote(row['subscription'], safe='')}",
                topic.path,
            )
            for row in page.rows
            for topic in (TopicPath.parse(row["topic"]),)
        ]

    return await _some(found())


async def _spaces(ask: Ask) -> NamespaceSums | None:
    """What is known so far; it tells whether that is all. None: as for ``_some``."""
    try:
        return await ask.source.namespaces(partial=True)
    except AdminError:
        return None


async def _namespaces(spaces: NamespaceSums | None, text: str) -> list[Found]:
    names = () if spaces is None else tuple(spaces.rows)
    found = [name async for name in in_turns(names) if text.lower() in name.lower()]
    return [
        Found(name, f"topics?namespace={quote(name, safe='')}")
        for name in (await sort_in_turns(found))[:_EACH]
    ]


async def _brokers(ask: Ask, text: str) -> list[Found]:
    async def found() -> list[Found]:
        api = ask.source.api
        cluster = next(each for each in await get(api, "clusters") if each != "global")
        names = sorted(await get(api, f"brokers/{segment(cluster)}"))
        return [
            Found(name, f"brokers/{segment(name)}")
            for name in names
            if text.lower() in name.lower()
        ]

    return await _some(found())
