"""What pages show of the index: rows of topics and subscriptions, sums of namespaces. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.console.charts import Chart, chart, sparkline
from magnetar.broker.console.finding_view import subscription_label
from magnetar.broker.console.formats import number, span
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import row_id
from magnetar.broker.index.backlog_trend import catch_up_s, is_steady, keeps_up
from magnetar.broker.index.history import SAME_START_MS

if TYPE_CHECKING:
    from magnetar.broker.console.source import IndexPage, NamespaceSums
    from magnetar.metadata.loop_turns import Steps

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    field: str | None
    """That the index can be sorted by; None: it can't."""
    css: str = ""


TOPIC_COLUMNS: Final = (
    Column("Topic", "topic"),
    Column("In /s", "msgRateIn", "r hide3"),
    Column("Out /s", "msgRateOut", "r hide3"),
    Column("Backlog", "msgBacklog", "r"),
    Column("Trend", "msgBacklogTrend", "r hide3"),
    Column("Caught up in", None, "r hide1"),
    Column("Oldest", "earliestMsgPublishTimeInBacklogs", "r"),
    Column("Subs", "subscriptionCount", "r hide3"),
    Column("Prod / cons", "producerCount", "r hide3"),
    Column("Stored", "storageSize", "r hide3"),
    Column("Schema", None, "hide2 hide3"),
)
SCHEMA_COLUMNS: Final = (
    Column("Topic", None),
    Column("Type", None),
    Column("Version", None, "r"),
    Column("Stored", None, "hide3"),
    Column("Compatibility", None, "hide3"),
)
SUBSCRIPTION_COLUMNS: Final = (
    Column("Subscription", None),
    Column("Topic", "topic", "hide3"),
    Column("Backlog", "msgBacklog", "r"),
    Column("Oldest", "earliestMsgPublishTimeInBacklog", "r"),
    Column("Trend", "msgBacklogTrend", "r hide3"),
    Column("Caught up in", None, "r hide3"),
    Column("Out /s", "msgRateOut", "r hide3"),
    Column("Unacknowledged", "unackedMessages", "r hide3"),
    Column("Consumers", "consumerCount", "r hide3"),
)
TOPIC_VIEWS: Final = (
    ("backlog", "With backlog"),
    ("unconsumed", "Backlog, no consumer"),
    ("active", "In use"),
    ("noSubscription", "No subscription"),
    ("notLoaded", "Not loaded"),
    ("idle", "Idle for a week"),
    ("nearQuota", "Quota above 80 %"),
    ("system", "System topics"),
)
COLUMNS_OF_VIEWS: Final = {
    "idle": (Column("Idle since", "idleSince", "r"),),
    "nearQuota": (Column("Quota used", "backlogQuotaUsage", "r"),),
}
"""Behind the others."""
SUBSCRIPTION_VIEWS: Final = (
    ("backlog", "With backlog"),
    ("unconsumed", "Backlog, no consumer"),
    ("growing", "Growing"),
)


@dataclass(frozen=True, slots=True)
class TopicRow:
    id: str
    topic: TopicPath
    broker: str
    """That told of it; empty: unknown."""
    known: bool
    """Whether a broker has loaded it; if not, it has no figures."""
    rate_in: float | None
    rate_out: float | None
    backlog: int | None
    oldest_ms: int | None
    stored: int | None
    schema: str
    """Type and newest version; "": none, or not known."""
    producers: int | None
    consumers: int | None
    subscriptions: int | None
    partitions: int
    """That the figures are of; 0: it has none, or is one."""
    trend: str
    is_shrinking: bool
    """Whether the backlog is."""
    caught_up: str
    idle_ms: int | None
    """Since when nothing was published, at the latest."""
    quota_used: float | None
    """Percent of a backlog quota; None: there is none."""
    line_in: str
    """Messages in of the last hour, a path; "": there is none."""
    line: str
    """The same of the backlog."""


def topic_rows(page: IndexPage) -> list[TopicRow]:
    return [
        TopicRow(
            id=row_id(each["topic"]),
            topic=TopicPath.parse(each["topic"]),
            broker=each.get("broker") or "",
            known=each.get("msgRateIn") is not None,
            rate_in=each.get("msgRateIn"),
            rate_out=each.get("msgRateOut"),
            backlog=each.get("msgBacklog"),
            oldest_ms=each.get("earliestMsgPublishTimeInBacklogs"),
            stored=each.get("storageSize"),
            schema=schema_text(each.get("schema")),
            producers=each.get("producerCount"),
            consumers=each.get("consumerCount"),
            subscriptions=each.get("subscriptionCount"),
            partitions=each.get("partitions") or 0,
            trend=trend(each.get("msgBacklogTrend")),
            is_shrinking=_is_shrinking(each.get("msgBacklogTrend")),
            caught_up=caught_up(
                each.get("msgBacklog"), each.get("msgBacklogTrend"), each.get("msgRateOut")
            ),
            idle_ms=each.get("idleSince"),
            quota_used=_percent(each.get("backlogQuotaUsage")),
            line_in=_line(each, "msgRateIn"),
            line=_line(each, "msgBacklog"),
        )
        for each in page.rows
    ]


def schema_text(schema: Json | None) -> str:
    """``JSON v7``."""
    return "" if schema is None else f"{schema['type']} v{schema['version']}"


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """A topic among those that have a schema."""

    id: str
    topic: TopicPath
    type: str
    """Empty: the schema was deleted."""
    version: int | None
    stored_ms: int | None
    compatibility: str


def schema_rows(page: IndexPage) -> list[SchemaRow]:
    return [
        SchemaRow(
            id=row_id(each["topic"]),
            topic=TopicPath.parse(each["topic"]),
            type=each["type"] or "",
            version=each["version"],
            stored_ms=each["timestamp"],
            compatibility=each["compatibility"],
        )
        for each in page.rows
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


@dataclass(frozen=True, slots=True)
class BehindRow:
    """A subscription among those of all topics."""

    id: str
    topic: TopicPath
    broker: str
    """That told of it; empty: unknown."""
    name: str
    type: str
    kind: str
    """Of its mark: `o` well, `w` grows or is not delivered, `n` nobody reads it."""
    backlog: int | None
    oldest_ms: int | None
    trend: str
    is_shrinking: bool
    """Whether the backlog is."""
    caught_up: str
    line: str
    """Its backlog in the last hour, a path; "": there is none."""
    rate_out: float | None
    unacked: int | None
    consumers: int | None


def behind_rows(page: IndexPage, marks: Mapping[str, str]) -> list[BehindRow]:
    """
    Args:
        marks: of findings, see ``subscription_marks``: they know why nothing is delivered.
    """
    return [_behind(each, marks) for each in page.rows]


def _behind(row: Json, marks: Mapping[str, str]) -> BehindRow:
    backlog, growth = row.get("msgBacklog"), row.get("msgBacklogTrend")
    rate_out, consumers = row.get("msgRateOut"), row.get("consumerCount")
    return BehindRow(
        id=row_id(row["topic"], row["subscription"]),
        topic=TopicPath.parse(row["topic"]),
        broker=row.get("broker") or "",
        name=row["subscription"],
        type=row.get("type") or "not read yet",
        kind=(marks.get(subscription_label(row["topic"], row["subscription"])) if backlog else None)
        or _kind(backlog or 0, growth or 0.0, rate_out or 0.0, consumers or 0),
        backlog=backlog,
        oldest_ms=row.get("earliestMsgPublishTimeInBacklog"),
        trend=trend(growth),
        is_shrinking=_is_shrinking(growth),
        caught_up=caught_up(backlog, growth, rate_out),
        line=_line(row, "msgBacklog"),
        rate_out=rate_out,
        unacked=row.get("unackedMessages"),
        consumers=consumers,
    )


def _kind(backlog: int, growth: float, rate_out: float, consumers: int) -> str:
    if not backlog or keeps_up(backlog, rate_out):
        return "o"
    if not consumers:
        return "n"
    return "o" if rate_out and (growth < 0 or is_steady(growth)) else "w"


def _line(row: Json, field: str) -> str:
    return sparkline(row.get("history", {}).get(field, ()))


def trend(growth: float | None) -> str:
    """Messages a minute, with the sign."""
    if growth is None:
        return "–"
    if is_steady(growth):
        return "steady"
    return f"{'+' if growth > 0 else '−'}{number(round(abs(growth) * 60))} /min"


def _is_shrinking(growth: float | None) -> bool:
    return growth is not None and growth < 0 and not is_steady(growth)


def caught_up(backlog: int | None, growth: float | None, rate_out: float | None) -> str:
    """When the backlog is gone if it goes on like this."""
    if not backlog or growth is None:
        return "–"
    if keeps_up(backlog, rate_out or 0.0):
        return "now"
    seconds = catch_up_s(backlog, growth)
    return "never" if seconds == inf else span(seconds)


@dataclass(frozen=True, slots=True)
class Sums:
    """Of all namespaces that the visitor may see."""

    namespaces: int
    topics: int
    rate_in: float
    rate_out: float
    bytes_in: float
    bytes_out: float
    backlog: int
    stored: int
    oldest_ms: int | None
    trend: str
    is_complete: bool
    """Whether all topics were read."""
    read: tuple[int, int]
    """Loaded topics that were read, and all that are loaded."""
    silent: Mapping[str, str]
    """Brokers that gave no answer, and why."""
    not_loaded: int
    """Topics that no broker has loaded: nobody knows their figures."""


_SUMMED: Final = {
    "topicCount": "topics",
    "msgRateIn": "rate_in",
    "msgRateOut": "rate_out",
    "msgThroughputIn": "bytes_in",
    "msgThroughputOut": "bytes_out",
    "msgBacklog": "backlog",
    "storageSize": "stored",
    "msgBacklogTrend": "growth",
}
"""Of ``Sums``, by fields of a namespace."""


def sums_of(found: NamespaceSums) -> Steps[Sums]:
    """A step for each namespace."""
    sums, oldest_ms = dict[str, Any].fromkeys((*_SUMMED.values(), "not_loaded"), 0), inf
    for namespace, row in found.rows.items():
        sums["not_loaded"] += found.not_loaded(namespace)
        for key, name in _SUMMED.items():
            sums[name] += row.get(key) or 0
        oldest_ms = min(oldest_ms, row.get("earliestMsgPublishTimeInBacklogs") or inf)
        yield
    return Sums(
        namespaces=len(found.rows),
        trend=trend(sums.pop("growth")),
        **sums,
        oldest_ms=None if oldest_ms == inf else int(oldest_ms),
        is_complete=found.is_complete,
        read=found.read,
        silent=found.silent,
    )


@dataclass(frozen=True, slots=True)
class Recent:
    """Of a history."""

    since_ms: int | None
    charts: Sequence[Chart]
    """None of them before there are two points."""
    has_latency: bool = False
    p50_ms: float | None = None
    p99_ms: float | None = None
    late: Mapping[str, int] = field(default_factory=dict)
    """Brokers that count for a shorter time, and since when."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Brokers that gave no answer, and why."""


@dataclass(frozen=True, slots=True)
class Range:
    """What of a history charts show: the last ``ms`` of it."""

    key: str
    title: str
    ms: int


RANGES: Final = (
    Range("15m", "15 min", 900_000),
    Range("", "1 h", 3_600_000),
    Range("5h", "5 h", 18_000_000),  # brokers keep no more
)


def range_of(key: str) -> Range:
    """An hour, if there is no such range."""
    named = {each.key: each for each in RANGES}
    return named.get(key, named[""])


def recent_of(history: Json, shown: Range) -> Recent:
    """Of the cluster."""
    since_ms, brokers = history["since"], history.get("brokers", {})

    def latest(name: str) -> float | None:
        values = [each.get(name) for each in brokers.values()]
        return max((value for value in values if value is not None), default=None)

    return Recent(
        since_ms,
        _charts(_within(history, shown), _OF_CLUSTER),
        "publishLatencyP99Ms" in history["series"],
        latest("publishLatencyP50Ms"),
        latest("publishLatencyP99Ms"),
        {
            name: each["since"]
            for name, each in brokers.items()
            if each["since"] and since_ms and each["since"] > since_ms + SAME_START_MS
        },
        history.get("silentBrokers", {}),
    )


def recent_of_topic(history: Json) -> Recent:
    return Recent(history["since"], _charts(history, _OF_TOPIC))


def _within(history: Json, shown: Range) -> Json:
    """Times and series of a history that end as it does."""
    times_ms: Sequence[int] = history["times"]
    first = bisect_left(times_ms, times_ms[-1] - shown.ms) if times_ms else 0
    series = {name: values[first:] for name, values in history["series"].items()}
    return {"times": times_ms[first:], "series": series}


def _charts(history: Json, charts: Sequence[tuple[str, str, _Lines]]) -> list[Chart]:
    series = history["series"]
    found = [
        chart(title, history["times"], [(label, series[name]) for label, name in lines], unit)
        for title, unit, lines in charts
    ]
    return [each for each in found if each is not None]


_Lines = Sequence[tuple[str, str]]
_RATES: Final = ("Messages per second", "", (("In", "msgRateIn"), ("Out", "msgRateOut")))
_OF_CLUSTER: Final = (
    _RATES,
    ("Backlog, messages", "", (("All subscriptions", "msgBacklog"),)),
)
_OF_TOPIC: Final = (
    _RATES,
    ("Backlog, messages", "", (("All subscriptions", "msgBacklog"),)),
    ("Stored", "B", (("Of all existing messages", "storageSize"),)),
)
