"""The pages: each asks what it shows, and hands it to its template."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from magnetar.broker.console.about_page import about
from magnetar.broker.console.actions import SUBSCRIPTION_ACTIONS, TOPIC_ACTIONS
from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.bookie_view import bookie_page, bookie_rows
from magnetar.broker.console.brokers_page import BROKER_TABS, broker, brokers, few_brokers
from magnetar.broker.console.export import export
from magnetar.broker.console.find_page import Part, find, nearby
from magnetar.broker.console.finding_view import FindingRow, finding_rows, subscription_marks
from magnetar.broker.console.follow import follow
from magnetar.broker.console.form_fields import BODY_MAX, LONG_BODY_MAX
from magnetar.broker.console.formats import segment
from magnetar.broker.console.index_view import (
    COLUMNS_OF_VIEWS,
    RANGES,
    SCHEMA_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    SUBSCRIPTION_VIEWS,
    TOPIC_COLUMNS,
    TOPIC_VIEWS,
    Column,
    behind_rows,
    range_of,
    recent_of,
    recent_of_topic,
    schema_rows,
    schema_text,
    sums_of,
    topic_rows,
)
from magnetar.broker.console.kept_order import KeptOrder
from magnetar.broker.console.list_export import export_list
from magnetar.broker.console.lists import (
    ASKED,
    ShownPage,
    schema_query,
    shown_page,
    subscription_query,
    topic_query,
    topics_of,
)
from magnetar.broker.console.messages_page import messages_page, messages_tab
from magnetar.broker.console.namespace_page import namespace, namespaces, tenant
from magnetar.broker.console.policy_page import (
    change_policy,
    namespace_policies,
    policies_tab,
    policy,
)
from magnetar.broker.console.produce_page import produce, send
from magnetar.broker.console.resource_actions import SUBSCRIPTION_FORMS
from magnetar.broker.console.roles_page import role, roles
from magnetar.broker.console.schema_page import new_schema, schema_tab, upload_schema
from magnetar.broker.console.settings_page import settings
from magnetar.broker.console.source import IndexPage, IndexQuery, StatsLists
from magnetar.broker.console.starred import STARRED
from magnetar.broker.console.step_page import act, step
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import (
    HOLDERS_MAX,
    ROWS_MAX,
    ClientQuery,
    Clients,
    PublishingRow,
    partition_rows,
    publishing_row,
    run_of,
    stored_topics,
    tell_missing_partitions,
    topic_figures,
)
from magnetar.broker.console.transactions_page import (
    buffer_of,
    pending_acks_of,
    transaction,
    transactions,
)
from magnetar.broker.console.views import Ask, Panel, Streamed, View, panel, panel_in_turns
from magnetar.broker.http.streamed_answers import let_go
from magnetar.metadata.loop_turns import in_turns, next_turn, run_in_turns

T = TypeVar("T")
Page = Callable[[Ask], Awaitable[View]]
Act = Callable[[Ask, Mapping[str, str]], Awaitable[View | str]]

ROWS: Final = 50
POINTS: Final = 24
"""Of a line in a list."""
_BEHIND: Final = 8
_FINDINGS_FIRST: Final = 5
"""As many are read at a glance; the others unfold, so that figures stay in sight."""
_FIRST: Final = "magnetar consume persistent://public/default/hello -s mine"
"""What to type where there is nothing yet: it makes a topic with a subscription."""
_TABS: Final = (
    ("", "Overview"),
    ("subscriptions", "Subscriptions"),
    ("producers", "Producers"),
    ("partitions", "Partitions"),
    ("messages", "Messages"),
    ("schema", "Schema"),
    ("policies", "Policies"),
    ("storage", "Storage"),
    ("permissions", "Permissions"),
)


async def overview(ask: Ask) -> View:
    source, shown = ask.source, range_of(ask.query.get("range", ""))
    behind = IndexQuery(
        view="backlog", sort="msgBacklog", limit=_BEHIND, points=POINTS, partial=True
    )
    findings, sums, furthest, history = await asyncio.gather(
        panel("What needs attention", ask.findings(), _findings),
        panel_in_turns("Figures", source.namespaces(partial=True), sums_of),
        panel("Subscriptions", _with_marks(ask, source.subscriptions(behind)), _behind),
        panel("History", source.history(), lambda found: recent_of(found, shown)),
    )
    brokers, bookies, service = await asyncio.gather(
        panel("Brokers", few_brokers(ask), dict),
        panel("Bookies", source.bookie_states(), bookie_rows),
        panel("Addresses", source.addresses(), dict),
    )
    return View(
        "overview.html",
        "Overview",
        "overview",
        {
            "sums": sums,
            "behind": furthest,
            "brokers": brokers,
            "bookies": bookies,
            "findings": findings,
            "history": history,
            "ranges": RANGES,
            "findings_first": _FINDINGS_FIRST,
            "shown_range": shown,
            "address": ask.address,
            **(service.value or {"service_url": "?", "web_url": "?"}),
            "where": _option(service.value),
        },
    )


def _findings(found: list[dict[str, Any]] | None) -> list[FindingRow] | None:
    return None if found is None else finding_rows(found)


def _option(addresses: Mapping[str, str] | None) -> str:
    """What a command of this machine's user needs to find the cluster."""
    url = (addresses or {}).get("service_url", "?")
    is_default = url in ("?", "pulsar://localhost:6650", "pulsar://127.0.0.1:6650")
    return "" if is_default else f" --url {shlex.quote(url.partition(',')[0])}"


def _behind(found: tuple[IndexPage, Mapping[str, str]]) -> dict[str, Any]:
    return {"rows": behind_rows(*found), "total": found[0].total}


async def _with_marks(ask: Ask, call: Awaitable[T]) -> tuple[T, Mapping[str, str]]:
    """An answer, and the marks of subscriptions that need attention, as far as they are known."""

    async def marks() -> Mapping[str, str]:
        try:
            return subscription_marks(await ask.findings() or ())
        except AdminError:  # not for everybody; the overview says why
            return {}

    return await asyncio.gather(call, marks())


async def topics(ask: Ask) -> View:
    """All topics, a page at a time."""
    query = _of_page(topic_query(ask))
    stars = ask.choices.get(STARRED, frozenset())

    def read(found: ShownPage) -> tuple[ShownPage, list[Any]]:
        views = {STARRED: len(stars), **found.page.views}
        return replace(found, page=replace(found.page, views=views)), topic_rows(found.page)

    found = shown_page(ask, query, lambda query: topics_of(ask, query))
    rows = await panel("Topics", found, read)
    views = (*TOPIC_VIEWS, (STARRED, "Starred"))
    columns = (*TOPIC_COLUMNS, *COLUMNS_OF_VIEWS.get(query.view, ()))
    return _table(ask, query, rows, "Topics", "topics", columns, views, "There is no topic.")


async def schemas(ask: Ask) -> View:
    """Topics that have a schema."""
    query = _of_page(schema_query(ask))
    rows = await panel(
        "Schemas", ask.source.schemas(query), lambda page: (ShownPage(page), schema_rows(page))
    )
    nothing = "No topic has a schema."
    if not ask.source.lists_schemas:
        nothing = "No topic of this page has a schema."
    return _table(ask, query, rows, "Schemas", "schemas", SCHEMA_COLUMNS, (), nothing)


async def subscriptions(ask: Ask) -> View:
    """All subscriptions, the one that is furthest behind first."""
    query = _of_page(subscription_query(ask))
    found = _with_marks(ask, shown_page(ask, query, ask.source.subscriptions))
    rows = await panel(
        "Subscriptions", found, lambda found: (found[0], behind_rows(found[0].page, found[1]))
    )
    nothing = "No loaded topic has a subscription."
    return _table(
        ask,
        query,
        rows,
        "Subscriptions",
        "subscriptions",
        SUBSCRIPTION_COLUMNS,
        SUBSCRIPTION_VIEWS,
        nothing,
    )


def _of_page(query: IndexQuery) -> IndexQuery:
    return replace(query, limit=ROWS, points=POINTS, partial=True)


def _table(
    ask: Ask,
    query: IndexQuery,
    rows: Panel[tuple[ShownPage, list[Any]]],
    title: str,
    menu: str,
    columns: tuple[Column, ...],
    views: tuple[tuple[str, str], ...],
    nothing: str,
) -> View:
    shown: dict[str, Any] | None = None
    if rows.value is not None:
        found, read = rows.value
        page = found.page
        if not query.grouped and any("-partition-" in row["topic"] for row in page.rows):
            page = replace(page, note=f"{page.note} Here each partition is a row.".lstrip())
        names = ("total", "matching", "next", "views", "silent", "note", "is_complete", "read")
        shown = {"rows": read, **{name: getattr(page, name) for name in names}}
        shown |= {"order": found.order, "is_sorted": found.is_sorted}
    descending = query.order == "desc" if query.order else query.sort != "topic"
    return View(
        "table.html",
        title,
        menu,
        {
            "rows": Panel(shown, rows.error),
            "columns": columns,
            "hidden": ask.choices.get(f"columns-{menu}", frozenset()),
            "views": views,
            "sort": {"by": query.sort, "descending": descending},
            "asked": {name: ask.query.get(name, "") for name in ASKED},
            "address": ask.address,
            "limit": ROWS,
            "nothing": nothing,
            "command": _FIRST,
            "row_template": _ROWS[menu],
            "lists_all": menu != "schemas" or ask.source.lists_schemas,
        },
    )


_ROWS: Final = {
    "topics": "topic_row.html",
    "subscriptions": "subscription_row.html",
    "schemas": "schema_row.html",
}


async def bookies(ask: Ask) -> View:
    found = await panel("Bookies", ask.source.bookie_states(), bookie_page)
    content = {"found": found, "note": ask.source.bookies_note}
    return View("bookies.html", "Bookies", "bookies", content)


async def audit(ask: Ask) -> View:
    """The last changes of all brokers."""
    found = await panel("Audit", ask.source.audit(), lambda changes: changes)
    rows = Panel(None if found.value is None else found.value.rows, found.error)
    content = {"rows": rows, "found": found.value, "nothing": ask.source.audit_note}
    return View("audit.html", "Audit", "audit", content)


async def keys(ask: Ask) -> View:
    return View("keys.html", "Keys and choices", "", live=0)


_PARTS: Final = (
    *(Part(title, key) for key, title in _TABS if key),
    *(Part(each.title, f"do/{each.key}", is_step=True) for each in TOPIC_ACTIONS),
)


async def search(ask: Ask) -> View:
    """Everything that has a text in its name."""
    return await find(ask, _PARTS)


async def topic(ask: Ask) -> View:
    """One topic, by tabs."""
    names = ask.names
    path = TopicPath.of(names)
    tab = names.get("tab", "")
    clients = _clients_of(ask)
    lists = StatsLists(
        ROWS_MAX if tab in ("", "subscriptions") else 1,
        producers=tab == "producers",
        partitions=tab in ("", "subscriptions", "producers", "partitions"),
    )
    call = ask.source.topic_stats(path, clients, lists)
    stats = await panel("Statistics", call, lambda found: found)
    content: dict[str, Any] = {"topic": path, "tab": tab, "tabs": _TABS, "counts": {}}
    content["is_starred"] = str(path) in ask.choices.get(STARRED, ())
    if stats.value is None:
        is_missing = stats.error is not None and stats.error.status == 404
        near = await nearby(ask, path) if is_missing else []
        content |= {"stats": stats, "partitions": 0, "nearby": near}
        return View("topic.html", path.local, "topics", content, 404 if is_missing else 200)
    partitions, found = stats.value
    (explained, publishing), schema = await asyncio.gather(
        _reasons(ask, path, found, clients),
        panel("Schema", ask.source.schema(path, None), lambda found: found),
    )
    figures = await run_in_turns(topic_figures(found, explained.value or {}, clients))
    await next_turn()  # the figures may end with half a millisecond of this one
    rows = [row async for row in in_turns(partition_rows(found, partitions))]
    await next_turn()
    await run_in_turns(let_go(found))
    end = clients.first + ROWS_MAX
    partitioned = Clients(rows[clients.first : end], clients.first, len(rows), len(rows))
    content |= {
        "stats": Panel(figures),
        "explanations": explained,
        "publishing": publishing,
        "schema_text": schema_text(schema.value and asdict(schema.value)),
        "asked_client": ask.query.get("client", ""),
        "address": ask.address,
        "rows_max": ROWS_MAX,
        "partitions": partitions,
        "partition_rows": partitioned,
        "largest": max((row.backlog for row in partitioned.rows), default=0),
        "counts": {
            "subscriptions": figures.subscription_count,
            "producers": figures.producers.total,
            **({"partitions": partitions} if partitions else {}),
            **({"schema": f"v{schema.value.version}"} if schema.value else {}),
        },
        "subscription_actions": (*SUBSCRIPTION_ACTIONS, *SUBSCRIPTION_FORMS),
        "topic_actions": TOPIC_ACTIONS,
    }
    content["pending_acks"] = None  # each partition has its own
    if not partitions and not path.is_volatile and (opened := ask.query.get("open", "")):
        content["pending_acks"] = await pending_acks_of(ask.source.api, path, opened)
    if (more := _OF_TABS.get(tab)) is not None:
        content |= await more(ask, path, partitions)
    return View("topic.html", path.local, "topics", content, live=0 if tab == "messages" else 5)


async def _reasons(
    ask: Ask, path: TopicPath, stats: Mapping[str, Any], clients: ClientQuery
) -> tuple[Panel[dict[str, Any]], Panel[PublishingRow | None]]:
    """Why nothing is delivered and published. Who may only look up learns the latter.

    Tabs that show subscriptions tell the former; consumers are added to their statistics.
    """
    explained: Panel[dict[str, Any]] = Panel({})
    if ask.names.get("tab", "") in ("", "subscriptions"):

        async def told() -> tuple[dict[str, Any], dict[str, Any]]:
            found, of_producers = await ask.source.reasons(path, stats)
            await run_in_turns(tell_missing_partitions(found, stats))
            await ask.source.add_consumers(path, stats, found, clients)
            return found, of_producers

        both = await panel("Explanation", told(), lambda found: found)
        if both.value is not None:
            found, of_producers = both.value
            return Panel(found), Panel(await run_in_turns(publishing_row(of_producers)))
        explained = Panel(error=both.error)
    publishing = ask.source.publishing(path, stats)
    return explained, await panel_in_turns("Producers", publishing, publishing_row)


def _clients_of(ask: Ask) -> ClientQuery:
    first = ask.query.get("first", "")
    is_number = first.isascii() and first.isdecimal() and len(first) < 10
    text = ask.query.get("client", "").strip()
    shown = KeptOrder.parse(ask.shown)
    return ClientQuery(ask.query.get("open", ""), text, int(first) if is_number else 0, shown)


async def _recent(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    return {"history": await panel("History", ask.source.history_of(path), recent_of_topic)}


async def _storage(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    if path.is_volatile:
        return {"storage": Panel(Clients((), 0, 0, 0)), "runs": (), "buffer": None}
    first = _clients_of(ask).first
    found = _ledgers(ask, path, partitions, first)
    ledgers = panel_in_turns("Ledgers", found, lambda both: stored_topics(str(path), first, *both))
    if partitions:  # each has states of its own
        return {"storage": await ledgers, "runs": (), "buffer": None}
    compaction, offload = (
        panel(title, get(ask.source.api, f"{path.rest}/{key}"), run_of)
        for title, key in (("Compaction", "compaction"), ("Offload", "offload"))
    )
    buffer = buffer_of(ask.source.api, path)
    stored, found_buffer, *runs = await asyncio.gather(ledgers, buffer, compaction, offload)
    titled = tuple(zip(("Compaction", "Offload"), runs, strict=True))
    return {"storage": stored, "runs": titled, "buffer": found_buffer}


async def _ledgers(ask: Ask, path: TopicPath, partitions: int, first: int) -> tuple[Any, Any]:
    """``internalStats`` and ``internal-info``, of a page of partitions. Raises AdminError.

    Args:
        first: so many partitions come before.
    """
    if not partitions:
        call = get(ask.source.api, f"{path.rest}/internalStats", cursorsMax=HOLDERS_MAX)
        return await asyncio.gather(call, _ledger_infos(ask, path))
    page = {"firstPartition": first, "partitionsMax": ROWS_MAX}  # Pulsar answers with all
    call = get(
        ask.source.api,
        f"{path.rest}/partitioned-internalStats",
        cursorsMax=HOLDERS_MAX,
        **page,
    )
    if "partitions" not in (internal := await call):
        # None was used yet. PersistentTopicsBase answers 200 with an exception then, and 500 to
        # `internal-info`.
        return {"partitions": {}}, {}
    used = internal.get("existingPartitions", len(internal["partitions"]))
    return internal, await _ledger_infos(ask, path, are_all_used=used == partitions, **page)


async def _ledger_infos(
    ask: Ask, path: TopicPath, *, are_all_used: bool = True, **page: int
) -> Any:
    """``internal-info``; empty for those who may not see it. Raises AdminError.

    Args:
        are_all_used: all partitions were; else Pulsar answers 500 for the others, too.
        page: which partitions, as ``internal-info`` takes them.
    """
    try:
        call = get(ask.source.api, f"{path.rest}/internal-info", excludeCursors=True, **page)
        return await call
    except AdminError as error:
        if error.status >= 500 and are_all_used:
            raise
        return {}


async def _permissions(ask: Ask, path: TopicPath, partitions: int) -> dict[str, Any]:
    """Of the topic and of its namespace; the call for a topic has both as one."""
    space = f"namespaces/{segment(path.tenant)}/{segment(path.namespace)}"
    found, above = await asyncio.gather(
        panel("Permissions", get(ask.source.api, f"{path.rest}/permissions"), dict),
        panel("Permissions of the namespace", get(ask.source.api, f"{space}/permissions"), dict),
    )
    return {"permissions": found, "of_namespace": above.value or {}}


_OF_TABS: Final[dict[str, Callable[[Ask, TopicPath, int], Awaitable[dict[str, Any]]]]] = {
    "": _recent,
    "messages": messages_tab,
    "storage": _storage,
    "policies": policies_tab,
    "schema": schema_tab,
    "permissions": _permissions,
}
_TOPIC: Final = "topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
_NAMESPACE: Final = "ns/{tenant}/{namespace}"
PAGES: Final[dict[str, Page]] = {
    "": overview,
    "topics": topics,
    "subscriptions": subscriptions,
    "messages": messages_page,
    "schemas": schemas,
    "namespaces": namespaces,
    "brokers": brokers,
    "brokers/{broker}": broker,
    **{f"brokers/{{broker}}/{{tab:{key}}}": broker for key, _ in BROKER_TABS if key},
    "bookies": bookies,
    "transactions": transactions,
    "transactions/{most}/{least}": transaction,
    "transactions/{most}/{least}/do/{action}": step,
    "roles": roles,
    "roles/{role}": role,
    "settings": settings,
    "audit": audit,
    "keys": keys,
    "about": about,
    "find": search,
    _TOPIC: topic,
    f"{_TOPIC}/do/{{action}}": step,
    f"{_TOPIC}/produce": produce,
    f"{_TOPIC}/schema/new": new_schema,
    f"{_TOPIC}/policies/{{policy}}": policy,
    "do/{action}": step,
    "{list:topics}/do/{action}": step,
    "tenant/{tenant}": tenant,
    "tenant/{tenant}/do/{action}": step,
    _NAMESPACE: namespace,
    f"{_NAMESPACE}/do/{{action}}": step,
    "settings/{setting}/do/{action}": step,
    f"{_NAMESPACE}/policies": namespace_policies,
    f"{_NAMESPACE}/policies/{{policy}}": policy,
    **{f"{_TOPIC}/{{tab:{key}}}": topic for key, _ in _TABS if key},
}
"""By path below ``/console/``; ``{name:text}`` is only that text."""
STREAMS: Final[dict[str, Callable[[Ask], Awaitable[Streamed]]]] = {
    f"{_TOPIC}/messages.{{kind:ndjson|csv}}": export,
    f"{_TOPIC}/messages/follow": follow,
    "{list:topics|subscriptions|schemas}.csv": export_list,
}
"""What isn't a page, by path as these."""
FORMS: Final[dict[Page, tuple[Act, int]]] = {
    step: (act, BODY_MAX),
    produce: (send, LONG_BODY_MAX),
    new_schema: (upload_schema, LONG_BODY_MAX),
    policy: (change_policy, BODY_MAX),
}
"""What is done with the form of a page, and how many bytes the form may have."""
