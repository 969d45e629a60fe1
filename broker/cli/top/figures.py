"""What ``magnetar top`` shows, read over REST: one page of a view, sums, and what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from magnetar.broker.cli.top.filter_text import parse_filter_text
from magnetar.broker.cli.top.texts import bars_text, trend_text
from magnetar.broker.console.admin_api import AdminError, get
from magnetar.broker.console.formats import milliseconds, number, plural, segment, size, span
from magnetar.broker.console.index_view import caught_up
from magnetar.broker.console.message_view import MessageRow, messages_view
from magnetar.broker.console.source import IndexPage, IndexQuery, NamespaceSums, Source
from magnetar.broker.console.subject import partition_count
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.index.backlog_trend import keeps_up

T = TypeVar("T")
Row = Mapping[str, Any]
ROWS_MAX: Final = 100
MESSAGES_MAX: Final = 50
_AT_ONCE: Final = 8
"""Partitions that are asked for messages at the same time."""
_PARTITIONS_MAX: Final = 64
_LINE_MAX: Final = 8
"""Points of a line."""
_P50, _P99 = "publishLatencyP50Ms", "publishLatencyP99Ms"


@dataclass(frozen=True, slots=True)
class TopColumn:
    title: str
    text: Callable[[Row, int], str]
    """Of a row, at a time in ms."""
    wide: bool = False
    """Only where there is room for it."""
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class TopView:
    """A list of things of a kind, which its name tells."""

    name: str
    columns: tuple[TopColumn, ...]
    sorts: tuple[str, ...] = ()
    """Figures to sort by, the greatest first; those the path takes."""
    key: tuple[str, ...] = ()
    """Fields that name a row."""

    def key_of(self, row: Row) -> str:
        return "\n".join(str(row[name]) for name in self.key)


@dataclass(frozen=True, slots=True)
class TopSums:
    """Of all topics."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bytes_in: float = 0.0  # a second
    bytes_out: float = 0.0  # a second
    backlog: int = 0
    backlog_trend: float = 0.0  # messages a second
    stored_bytes: int = 0
    oldest_ms: int | None = None  # when it was published
    not_loaded: int = 0  # topics that no broker has loaded: nobody knows their figures


@dataclass(frozen=True, slots=True)
class TopState:
    """What changes slowly. Empty where the caller may not see it."""

    cluster: str = ""
    brokers: tuple[str, ...] = ()
    bookies: tuple[Row, ...] = ()
    findings: tuple[Row, ...] = ()
    history: Mapping[str, Any] = field(default_factory=dict)
    """As the route ``history`` answers it."""

    def recent(self, name: str) -> list[float]:
        """The last points of a figure of the whole cluster."""
        values = self.history.get("series", {}).get(name, ())
        return [value for value in values[-_LINE_MAX:] if value is not None]

    def latency_ms(self, name: str) -> float | None:
        """Of the slowest broker; None: nothing was published, or it isn't known."""
        found = [each.get(name) for each in self.history.get("brokers", {}).values()]
        return max((value for value in found if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class Figures:
    sums: TopSums
    state: TopState
    rows: tuple[Row, ...] = ()
    matching: int = 0
    total: int = 0
    is_complete: bool = True
    """Whether all topics were read; else how many of the loaded ones, and how many these are."""
    read: tuple[int, int] = (0, 0)

    def as_json(self, view: TopView) -> dict[str, Any]:
        sums, state = self.sums, self.state
        return {
            "cluster": state.cluster,
            "brokers": list(state.brokers),
            "bookies": list(state.bookies),
            "findings": list(state.findings),
            "msgRateIn": sums.msg_rate_in,
            "msgRateOut": sums.msg_rate_out,
            "msgThroughputIn": sums.bytes_in,
            "msgThroughputOut": sums.bytes_out,
            "msgBacklog": sums.backlog,
            "msgBacklogTrend": sums.backlog_trend,
            _P50: state.latency_ms(_P50),
            _P99: state.latency_ms(_P99),
            "history": dict(state.history),
            "storageSize": sums.stored_bytes,
            "earliestMsgPublishTimeInBacklogs": sums.oldest_ms,
            "topicsNotLoaded": sums.not_loaded,
            "total": self.total,
            "matching": self.matching,
            view.name: list(self.rows),
        }


def _name_text(value: Any) -> str:
    return number(None) if value is None else str(value)


def _field(name: str, text: Callable[[Any], str] = _name_text) -> Callable[[Row, int], str]:
    return lambda row, _: text(row.get(name))


def _age(name: str) -> Callable[[Row, int], str]:
    def text(row: Row, now_ms: int) -> str:
        since_ms = row.get(name)
        return span((now_ms - since_ms) / 1000 if since_ms else None)

    return text


def _topic(row: Row, _: int) -> str:
    return str(row["topic"]).removeprefix("persistent://")


def _mark(row: Row, _: int) -> str:
    """◆: there is a backlog and nothing is delivered; ▲: the backlog grows."""
    backlog, trend = row.get("msgBacklog") or 0, row.get("msgBacklogTrend") or 0
    if backlog and not row.get("msgRateOut"):
        return "◆"
    if keeps_up(backlog, row.get("msgRateOut") or 0):
        return ""
    return "▲" if backlog and trend > 0 else ""


def _line(row: Row, _: int) -> str:
    """The backlog in the last hour; behind it by how much it grows."""
    line = bars_text(row.get("history", {}).get("msgBacklog", ()))
    return f"{line} {trend_text(row.get('msgBacklogTrend')):>9}"


def _caught_up(row: Row, _: int) -> str:
    return caught_up(row.get("msgBacklog"), row.get("msgBacklogTrend"), row.get("msgRateOut"))


def _used(row: Row, _: int) -> str:
    total, free = row.get("totalBytes"), row.get("freeBytes")
    return f"{100 * (total - free) / total:.0f} %" if total and free is not None else number(None)


def _p99(row: Row, _: int) -> str:
    latency = row.get("addLatencyMs")
    return f"{latency['p99']:.1f} ms" if latency else number(None)


VIEWS: Final = (
    TopView(
        "subscriptions",
        (
            TopColumn("", _mark, is_number=False),
            TopColumn("SUBSCRIPTION", _field("subscription"), is_number=False),
            TopColumn("TOPIC", _topic, is_number=False),
            TopColumn("BACKLOG", _field("msgBacklog", number)),
            TopColumn("OLDEST", _age("earliestMsgPublishTimeInBacklog")),
            TopColumn("TREND", _line, wide=True),
            TopColumn("OUT/s", _field("msgRateOut", number), wide=True),
            TopColumn("CONS", _field("consumerCount", number)),
            TopColumn("UNACK", _field("unackedMessages", number), wide=True),
            TopColumn("CAUGHT UP", _caught_up),
        ),
        ("msgBacklog", "msgBacklogTrend", "msgRateOut", "unackedMessages"),
        ("topic", "subscription"),
    ),
    TopView(
        "topics",
        (
            TopColumn("TOPIC", _topic, is_number=False),
            TopColumn("IN/s", _field("msgRateIn", number)),
            TopColumn("OUT/s", _field("msgRateOut", number)),
            TopColumn("BACKLOG", _field("msgBacklog", number)),
            TopColumn("OLDEST", _age("earliestMsgPublishTimeInBacklogs"), wide=True),
            TopColumn("TREND", _line, wide=True),
            TopColumn("CAUGHT UP", _caught_up),
            TopColumn("STORED", _field("storageSize", size), wide=True),
            TopColumn("PROD", _field("producerCount", number)),
            TopColumn("CONS", _field("consumerCount", number)),
            TopColumn("BROKER", _field("broker"), wide=True, is_number=False),
        ),
        ("msgRateIn", "msgRateOut", "msgBacklog", "storageSize"),
        ("topic",),
    ),
    TopView(
        "brokers",
        (
            TopColumn("BROKER", _field("broker"), is_number=False),
            TopColumn("IN/s", _field("msgRateIn", number)),
            TopColumn("OUT/s", _field("msgRateOut", number)),
            TopColumn("BACKLOG", _field("msgBacklog", number)),
            TopColumn("STORED", _field("storageSize", size), wide=True),
            TopColumn("p50", _field(_P50, milliseconds), wide=True),
            TopColumn("p99", _field(_P99, milliseconds)),
            TopColumn("COUNTS FOR", _age("since"), wide=True),
            TopColumn("ERROR", lambda row, _: row.get("error") or "", is_number=False),
        ),
        key=("broker",),
    ),
    TopView(
        "bookies",
        (
            TopColumn("BOOKIE", _field("bookieId"), is_number=False),
            TopColumn("STATE", _field("state"), is_number=False),
            TopColumn("LOCATION", _field("location"), wide=True, is_number=False),
            TopColumn("FREE", _field("freeBytes", size)),
            TopColumn("USED", _used),
            TopColumn("ADD p99", _p99),
            TopColumn("ERROR", lambda row, _: row.get("error") or "", is_number=False),
        ),
        key=("bookieId",),
    ),
    TopView(
        "connections",
        (
            TopColumn("ADDRESS", _field("address"), is_number=False),
            TopColumn("SINCE", _age("since")),
            TopColumn("ROLE", _field("role"), is_number=False),
            TopColumn("CLIENT", _field("clientVersion"), is_number=False),
            TopColumn("PROD", _field("producers", number)),
            TopColumn("CONS", _field("consumers", number)),
            TopColumn("IN", _field("bytesIn", size), wide=True),
            TopColumn("OUT", _field("bytesOut", size), wide=True),
        ),
        key=("address", "since"),
    ),
)


Findings = Callable[[], Awaitable[list[dict[str, Any]] | None]]
"""Asks what needs attention; None: that isn't known yet. Raises AdminError."""


async def _read_state(source: Source, findings_of: Findings) -> TopState:
    """Raises AdminError: no answer."""

    async def of_cluster() -> tuple[str, Sequence[str]]:
        clusters = await _allowed(get(source.api, "clusters")) or ()
        name = next((each for each in clusters if each != "global"), "")
        return name, await _allowed(get(source.api, f"brokers/{segment(name)}")) or ()

    (name, brokers), bookies, history, findings = await asyncio.gather(
        of_cluster(),
        _allowed(get(source.api, "bookies/state")),
        _allowed(source.history()),
        _allowed(findings_of()),
    )
    return TopState(
        name,
        tuple(brokers),
        tuple((bookies or {}).get("bookies", ())),
        tuple(each for each in findings or () if each["severity"] != "note"),
        history or {},
    )


async def read_figures(
    source: Source,
    view: TopView,
    sort: str,
    text: str,
    known: TopState | None = None,
    findings: Findings | None = None,
) -> Figures:
    """All that is shown, asked for at the same time; of many topics what is read of them so far.

    Args:
        sort: one of the view's; "": as it comes.
        text: only rows that have it in their names; conditions on figures, see `filter_text`.
        known: what changes slowly; None: it is asked for, too.
        findings: None: they are waited for.
    Raises:
        AdminError: no answer, or the caller may not see the view.
        FilterTextError: an unknown condition.
    """
    kept = parse_filter_text(text, view.name)

    async def page() -> IndexPage | None:
        if not view.sorts:
            return None
        query = IndexQuery(
            q=kept.name,
            view=kept.view,
            sort=sort,
            order="desc",
            limit=ROWS_MAX,
            points=_LINE_MAX,
            partial=True,
        )
        return await (source.topics if view.name == "topics" else source.subscriptions)(query)

    async def state_of() -> TopState:
        if known is not None:
            return known
        return await _read_state(source, source.findings if findings is None else findings)

    state, found, namespaces = await asyncio.gather(
        state_of(), page(), source.namespaces(partial=True)
    )
    sums, is_complete, read = _sums(namespaces), namespaces.is_complete, namespaces.read
    if found is not None:
        is_complete = is_complete and found.is_complete
        of_page = tuple(found.rows)
        return Figures(sums, state, of_page, found.matching, found.total, is_complete, read)
    rows: Sequence[Row]
    match view.name:
        case "brokers":
            rows = [_broker(each, state.history) for each in state.brokers]
        case "bookies":
            rows = state.bookies
        case _:
            answer = await get(source.api, "broker-stats/connections", limit=ROWS_MAX)
            rows = answer["connections"]
    shown = tuple(row for row in rows if kept.name.lower() in view.key_of(row).lower())
    return Figures(sums, state, shown, len(shown), len(rows), is_complete, read)


async def newest_messages(source: Source, row: Row) -> tuple[str, list[MessageRow]]:
    """What is shown, and the messages: of a subscription from its first unacknowledged one on, of
    a topic the last ones; of a topic with partitions those of all, by the time of their
    publishing. Raises AdminError.
    """
    topic = TopicPath.parse(row["topic"])
    query, subscription = {"limit": str(MESSAGES_MAX)}, row.get("subscription")
    if subscription:
        title = f"{subscription} of {topic}: from its first unacknowledged message on"
        query["subscription"] = subscription
    else:
        title = f"{topic}: the newest messages"
        query["position"] = "latest"
    if not (count := await partition_count(source.api, topic)):
        return title, messages_view(await source.messages(topic, query))["rows"]
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> list[MessageRow]:
        async with limit:
            found = messages_view(await source.messages(topic.partition(number), query))["rows"]
        return [replace(each, id=f"{each.id} p{number}") for each in found]

    asked = min(count, _PARTITIONS_MAX)
    parts = await asyncio.gather(*map(one, range(asked)))
    rows = sorted((each for part in parts for each in part), key=lambda each: each.publish_ms)
    of = plural(count, "partition")
    title += f" ({of})" if asked == count else f" (of the first {asked} of {of})"
    return title, rows[:MESSAGES_MAX] if subscription else rows[-MESSAGES_MAX:]


async def explain(source: Source, row: Row) -> str:
    """Why the subscriptions of a row get nothing now. Raises AdminError."""
    topic = TopicPath.parse(row["topic"])
    stats: Row = {}
    if source.product != Source.product:  # others tell it by their statistics
        stats = await get(source.api, f"{topic.rest}/stats")
    only = row.get("subscription")
    parts = [
        f"{name}: {each['message']}\n{each.get('next') or ''}".rstrip()
        for name, each in (await source.explanations(topic, stats)).items()
        if only is None or name == only
    ]
    return "\n\n".join(parts) or "Nothing is known of it."


def _broker(name: str, history: Row) -> Row:
    """With its latest figures, if it has told them."""
    error = history.get("silentBrokers", {}).get(name)
    return {"broker": name, **history.get("brokers", {}).get(name, {}), "error": error}


def _sums(namespaces: NamespaceSums) -> TopSums:
    rows = namespaces.rows.values()

    def total(name: str) -> float:
        return sum(each.get(name) or 0 for each in rows)

    oldest = [each.get("earliestMsgPublishTimeInBacklogs") for each in rows]
    return TopSums(
        total("msgRateIn"),
        total("msgRateOut"),
        total("msgThroughputIn"),
        total("msgThroughputOut"),
        int(total("msgBacklog")),
        total("msgBacklogTrend"),
        int(total("storageSize")),
        min((each for each in oldest if each), default=None),
        sum(map(namespaces.not_loaded, namespaces.rows)),
    )


async def _allowed(answer: Awaitable[T]) -> T | None:
    """None: not for this caller, or not a route of this server."""
    try:
        return await answer
    except AdminError as error:
        if error.status >= 500:
            raise
        return None
