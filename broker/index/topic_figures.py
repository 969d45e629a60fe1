"""The figures of a loaded topic and of its subscriptions, as REST's statistics have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import TYPE_CHECKING, Final, Literal, get_args

from magnetar.broker.index.backlog_trend import catch_up_s
from magnetar.broker.index.figure_table import UNKNOWN, FigureTable, SlotFilter

if TYPE_CHECKING:
    from magnetar.broker.subscription.subscription import Subscription
    from magnetar.broker.topic.topic import Topic

TopicField = Literal[
    "msgRateIn",
    "msgRateOut",
    "msgThroughputIn",
    "msgThroughputOut",
    "msgBacklog",
    "maxMsgBacklog",
    "earliestMsgPublishTimeInBacklogs",
    "storageSize",
    "producerCount",
    "consumerCount",
    "subscriptionCount",
    "msgBacklogTrend",
    "idleSince",
    "backlogQuotaUsage",
]
SubscriptionField = Literal[
    "msgRateOut",
    "msgThroughputOut",
    "msgBacklog",
    "msgBacklogTrend",
    "earliestMsgPublishTimeInBacklog",
    "unackedMessages",
    "consumerCount",
]
TOPIC_FIELDS: Final[tuple[str, ...]] = tuple(get_args(TopicField))
SUBSCRIPTION_FIELDS: Final[tuple[str, ...]] = tuple(get_args(SubscriptionField))
TOPIC_OLDEST: Final = "earliestMsgPublishTimeInBacklogs"
SUBSCRIPTION_OLDEST: Final = "earliestMsgPublishTimeInBacklog"
"""Of these columns the time is kept below zero: the greatest figure is the oldest message."""
GREATEST: Final = frozenset(("maxMsgBacklog", TOPIC_OLDEST, "idleSince", "backlogQuotaUsage"))
"""Of a namespace the greatest one is told, not the sum."""
GREATEST_OF_PARTITIONS: Final = GREATEST | {"producerCount", "consumerCount", "subscriptionCount"}
"""Of a partitioned topic: its clients connect to every partition, which has all subscriptions."""
TOPIC_TOTALS: Final = (
    *("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"),
    *("msgBacklog", "storageSize"),
)
"""Of a broker's history the figures that are sums of its topics'."""
_FRACTIONS: Final = frozenset(
    (
        *("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"),
        *("msgBacklogTrend", "backlogQuotaUsage"),
    )
)
"""Figures that aren't whole numbers."""
_IDLE_MS: Final = 7 * 24 * 3600 * 1000
_QUOTA_USED: Final = 0.8


def shown(field: str, figure: float) -> float | None:
    """A figure as answers have it. None: unknown; of an oldest message also: there is none."""
    if figure == UNKNOWN:
        return None
    if field in _FRACTIONS:
        return figure
    return round(-figure if field in (TOPIC_OLDEST, SUBSCRIPTION_OLDEST) else figure)


def kept(field: str, value: float | None) -> float:
    """The inverse."""
    if value is None:
        return UNKNOWN
    return -float(value) if field in (TOPIC_OLDEST, SUBSCRIPTION_OLDEST) else float(value)


def catch_up_seconds(row: Mapping[str, float | None]) -> float | None:
    """Of a row as it is answered: until its backlog is gone; None: never, or not known."""
    backlog, growth = row.get("msgBacklog"), row.get("msgBacklogTrend")
    if backlog is None or growth is None:
        return None
    seconds = catch_up_s(backlog, growth)
    return None if seconds == inf else round(seconds)


def topic_figures(
    topic: Topic,
    backlogs: Collection[int],
    consumer_count: int,
    out: tuple[float, float],
    oldest: float,
    growth: float,
    quota_used: float,
) -> tuple[float, ...]:
    """In the order of ``TOPIC_FIELDS``. Of its subscriptions: ``backlogs``, ``growth``, the sum of
    the trends, ``out``, of their messages and bytes a second, and ``oldest``, the greatest figure.
    """
    _, rate_in, bytes_in, _ = topic.rates.rates
    rate_out, bytes_out = out
    return (
        rate_in,
        rate_out,
        bytes_in,
        bytes_out,
        sum(backlogs),
        max(backlogs, default=0),
        oldest,
        topic.stored_bytes,
        len(topic.producers),
        consumer_count,
        len(backlogs),
        growth,
        topic.last_publish_ms or topic.created_ms,
        quota_used,
    )


def subscription_figures(
    subscription: Subscription, backlog: int, growth: float, oldest: float
) -> tuple[float, ...]:
    """In the order of ``SUBSCRIPTION_FIELDS``."""
    rate_out, bytes_out, *_ = subscription.rates.rates
    return (
        rate_out,
        bytes_out,
        backlog,
        growth,
        oldest,
        subscription.unacked,
        len(subscription.consumers),
    )


def _with_backlog(table: FigureTable, slots: list[int]) -> list[int]:
    backlog = table.columns["msgBacklog"]
    return [slot for slot in slots if backlog[slot] > 0]


def _without_consumers(table: FigureTable, slots: list[int]) -> list[int]:
    consumers = table.columns["consumerCount"]
    return [slot for slot in _with_backlog(table, slots) if consumers[slot] == 0]


def _without_subscriptions(table: FigureTable, slots: list[int]) -> list[int]:
    subscriptions = table.columns["subscriptionCount"]
    return [slot for slot in slots if subscriptions[slot] == 0]


def _active(table: FigureTable, slots: list[int]) -> list[int]:
    rate_in, rate_out = table.columns["msgRateIn"], table.columns["msgRateOut"]
    return [slot for slot in slots if rate_in[slot] > 0 or rate_out[slot] > 0]


def _not_loaded(table: FigureTable, slots: list[int]) -> list[int]:
    subscriptions = table.columns["subscriptionCount"]
    return [slot for slot in slots if subscriptions[slot] == UNKNOWN]


def _growing(table: FigureTable, slots: list[int]) -> list[int]:
    growth = table.columns["msgBacklogTrend"]
    return [slot for slot in slots if growth[slot] > 0]


def _idle(table: FigureTable, slots: list[int]) -> list[int]:
    since, last_ms = table.columns["idleSince"], table.as_of_ms - _IDLE_MS
    return [slot for slot in slots if UNKNOWN < since[slot] <= last_ms]


def _near_quota(table: FigureTable, slots: list[int]) -> list[int]:
    used = table.columns["backlogQuotaUsage"]
    return [slot for slot in slots if used[slot] >= _QUOTA_USED]


TOPIC_VIEWS: Final[Mapping[str, SlotFilter]] = {
    "backlog": _with_backlog,
    "unconsumed": _without_consumers,
    "active": _active,
    "noSubscription": _without_subscriptions,
    "notLoaded": _not_loaded,
    "idle": _idle,
    "nearQuota": _near_quota,
}
SUBSCRIPTION_VIEWS: Final[Mapping[str, SlotFilter]] = {
    "backlog": _with_backlog,
    "unconsumed": _without_consumers,
    "growing": _growing,
}
