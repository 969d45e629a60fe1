"""All topics and subscriptions of a cluster that has no index: rows as of Magnetar's. Pure.

The figures are those of ``broker-stats/topics`` of each broker, the names those of the namespaces.
"""

import heapq
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.bookkeeper.metrics import Durations
from magnetar.broker.console.kept_order import name_of, only_those
from magnetar.broker.console.source import IndexPage, IndexQuery
from magnetar.broker.console.topic_view import (
    listed_subscriptions,
    type_of,
)
from magnetar.broker.dispatch.explanation import (
    Explanation,
    Reason,
    caught_up,
    consumers_stall,
    counted,
    delivering,
    is_stall,
    no_consumer,
)
from magnetar.broker.dispatch.interfaces import ConsumerState
from magnetar.broker.dispatch.worst_reason import worst_of_subscriptions
from magnetar.broker.doctor.topic_checks import INTERNAL_SUBSCRIPTIONS, receivers_of
from magnetar.broker.index.backlog_trend import trend
from magnetar.broker.index.figure_recorder import FigureRecorder
from magnetar.broker.index.page_answer import with_parts
from magnetar.broker.index.topic_figures import TOPIC_TOTALS
from magnetar.broker.protocol.topic_name import (
    PARTITION_MARK,
    InvalidTopicNameError,
    is_system_topic,
)
from magnetar.metadata.loop_turns import Steps, run_at_once

Row = dict[str, Any]

_AFTER = re.compile("[0-9]{1,9}")
_COUNTS = ("topicCount", "loadedTopicCount")
_SUMS = (
    *("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "msgBacklog"),
    *("storageSize", "msgBacklogTrend", "subscriptionCount"),
)


class SnapshotHistory:
    """What snapshots told, and by how much backlogs have changed between them."""

    def __init__(self) -> None:
        self.recorder = FigureRecorder(Durations())  # it tells of no latency
        self._before: dict[tuple[str, str], tuple[float, float]] = {}  # backlog and its trend
        self._at_ms = 0

    def add(self, now_ms: int, topics: Sequence[Row], subscriptions: Iterable[Row]) -> None:
        """A snapshot, whose rows get their trends."""
        backlogs: dict[str, dict[str, float]] = {}
        growths: dict[str, float] = {}
        before, self._before = self._before, {}
        elapsed_s = (now_ms - self._at_ms) / 1000
        for row in subscriptions:
            key, backlog = (row["topic"], row["subscription"]), row["msgBacklog"]
            if (known := before.get(key)) is not None:
                row["msgBacklogTrend"] = trend(known[0], known[1], backlog, elapsed_s)
            growth = row["msgBacklogTrend"] or 0.0
            self._before[key] = backlog, growth
            growths[key[0]] = growths.get(key[0], 0.0) + growth
            backlogs.setdefault(key[0], {})[key[1]] = backlog
        recording = self.recorder.begin(now_ms)
        for row in topics:
            if row.get("msgRateIn") is None:
                continue  # no broker has loaded it
            name = row["topic"]
            row["msgBacklogTrend"] = growths.get(name, 0.0)
            if recording is not None:
                figures = [row.get(field) or 0.0 for field in TOPIC_TOTALS]
                run_at_once(recording.add(name, backlogs.get(name, {}), figures))
        if recording is not None:
            run_at_once(recording.end())
        self._at_ms = now_ms


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one time."""

    topics: Sequence[Row]
    system_topics: Sequence[Row]
    """They are nowhere else, nor are their subscriptions."""
    subscriptions: Sequence[Row]
    as_of_s: float
    """Of the monotonic clock."""
    took_s: float = 0.0
    silent: Mapping[str, str] = field(default_factory=dict)
    """Brokers without figures, and why."""
    connections: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Of each broker, the oldest first."""


def rows_of(
    names: Iterable[str], by_broker: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> tuple[list[Row], list[Row], list[Row], dict[str, list[Row]]]:
    """Topics, system topics, subscriptions, and the connections of each broker.

    Args:
        names: of all topics.
        by_broker: statistics of the topics that each serves, by name.
    """
    topics: list[Row] = []
    system_topics: list[Row] = []
    subscriptions: list[Row] = []
    stats = {name: each for served in by_broker.values() for name, each in served.items()}
    for name in sorted({*names, *stats}):
        is_system = _is_system(name)
        rows = system_topics if is_system else topics
        found = stats.get(name)
        if found is None:
            rows.append({"topic": name})
            continue
        listed = listed_subscriptions(found)
        rows.append(topic_row(name, found, listed.values()))
        if not is_system:
            subscriptions += [_subscription(name, *each) for each in listed.items()]
    connections = {broker: connections_of(served) for broker, served in by_broker.items()}
    return topics, system_topics, subscriptions, connections


def _is_system(name: str) -> bool:
    try:
        return is_system_topic(name)
    except InvalidTopicNameError:  # Pulsar may have what we don't
        return False


def connections_of(stats: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Those that producers and consumers name, with how many of them each has."""
    found: dict[str, Row] = {}

    def count(clients: Iterable[Mapping[str, Any]], kind: str) -> None:
        for each in clients:
            address = (each.get("address") or "").lstrip("/")  # as Java writes it
            row = found.setdefault(address, {"address": address, "producers": 0, "consumers": 0})
            row[kind] += 1
            row["clientVersion"] = each.get("clientVersion") or ""
            # All begin with the time, which Pulsar writes as ISO 8601.
            since = each.get("connectedSince") or ""
            row["connectedSince"] = min(row.get("connectedSince") or since, since)

    for topic in stats.values():
        count(topic.get("publishers", ()), "producers")
        for subscription in topic.get("subscriptions", {}).values():
            count(subscription.get("consumers", ()), "consumers")
    return sorted(found.values(), key=lambda row: (row["connectedSince"], row["address"]))


def topic_row(name: str, stats: Mapping[str, Any], subscriptions: Collection[Any]) -> Row:
    """Of a topic's statistics, or of those of all its partitions."""
    backlogs = [each.get("msgBacklog", 0) for each in subscriptions]
    return {
        "topic": name,
        "msgRateIn": stats.get("msgRateIn", 0.0),
        "msgRateOut": stats.get("msgRateOut", 0.0),
        "msgThroughputIn": stats.get("msgThroughputIn", 0.0),
        "msgThroughputOut": stats.get("msgThroughputOut", 0.0),
        "msgBacklog": sum(backlogs),
        "maxMsgBacklog": max(backlogs, default=0),
        "earliestMsgPublishTimeInBacklogs": None,
        "storageSize": stats.get("storageSize", 0),
        "producerCount": len(stats.get("publishers", ())),
        "consumerCount": sum(len(each.get("consumers", ())) for each in subscriptions),
        "subscriptionCount": len(backlogs),
        "msgBacklogTrend": None,
    }


def _subscription(topic: str, name: str, stats: Mapping[str, Any]) -> Row:
    consumers = stats.get("consumers", ())
    return {
        "topic": topic,
        "subscription": name,
        "type": type_of(stats),
        "msgRateOut": stats.get("msgRateOut", 0.0),
        "msgBacklog": stats.get("msgBacklog", 0),
        "msgBacklogTrend": None,
        "earliestMsgPublishTimeInBacklog": None,
        "unackedMessages": sum(each.get("unackedMessages", 0) for each in consumers),
        "consumerCount": len(consumers),
    }


@dataclass(frozen=True, slots=True)
class Suspects:
    """Subscriptions of a snapshot that need attention, as far as it can be told."""

    busy: Sequence[Row]
    """With consumers: those with the largest backlogs."""
    idle: Row | None
    """Without: the one with the largest backlog."""
    idle_count: int


def suspects_of(subscriptions: Iterable[Row], busy_max: int) -> Suspects:
    waiting = [
        row
        for row in subscriptions
        if row["msgBacklog"] and not row["subscription"].startswith(INTERNAL_SUBSCRIPTIONS)
    ]
    busy = [row for row in waiting if row["consumerCount"]]
    idle = (row for row in waiting if not row["consumerCount"])
    return Suspects(
        heapq.nlargest(busy_max, busy, _backlog),
        max(idle, key=_backlog, default=None),
        len(waiting) - len(busy),
    )


def _backlog(row: Row) -> int:
    return int(row["msgBacklog"])


def _views(row: Row) -> tuple[str, ...]:
    """Those that a row is in; the names are the index's."""
    if row.get("msgRateIn") is None and "subscription" not in row:
        return ("notLoaded",)
    found = []
    if row["msgBacklog"]:
        found.append("backlog")
        if not row["consumerCount"]:
            found.append("unconsumed")
    if row.get("producerCount") or row["consumerCount"]:
        found.append("active")
    if row.get("subscriptionCount") == 0:
        found.append("noSubscription")
    return tuple(found)


def grouped(rows: Iterable[Row]) -> list[Row]:
    """In the order of names; partitions are one row, with sums as the index makes them."""
    found: dict[str, Row] = {}
    for row in rows:
        name, mark, number = row["topic"].rpartition(PARTITION_MARK)
        if not (mark and number.isdecimal()):
            found[row["topic"]] = row
            continue
        part = {**row, "topic": name, "broker": None, "partitions": 1}
        known = found.get(name)
        found[name] = part if known is None else with_parts(known, part)
    return [found[name] for name in sorted(found)]


_NO_VIEWS: Final = frozenset({"idle", "nearQuota"})
"""That Magnetar has; for Apache Pulsar each topic would have to be asked one by one."""


SYSTEM: Final = "system"
"""Key of the view of system topics, which Magnetar doesn't list."""


def page_of(
    rows: Sequence[Row], query: IndexQuery, note: str, system_topics: Sequence[Row] = ()
) -> IndexPage:
    """Filtered, sorted and cut as Magnetar's index does it; ``after`` is how many went before."""
    shown_rows = grouped(rows) if query.grouped else rows
    text = query.q.lower()
    prefix = f"://{query.namespace}/"

    def matching(some: Iterable[Row]) -> list[Row]:
        return [
            row
            for row in some
            if (not text or text in f"{row['topic']} {row.get('subscription', '')}".lower())
            and (not query.namespace or prefix in row["topic"])
        ]

    if query.view in _NO_VIEWS:
        note += " Its statistics of all topics have no times of messages and no quotas: this view"
        note += " isn't there."
    found = matching(shown_rows)
    if query.only:
        names = only_those(query.only)
        found = [row for row in (*found, *system_topics) if name_of(row) in names]
    counts: dict[str, int] = {}
    for row in matching(rows) if query.grouped else found:
        for view in _views(row):
            counts[view] = counts.get(view, 0) + 1
    system = matching(system_topics)
    if system_topics:
        counts[SYSTEM] = len(system)
    if query.view == SYSTEM:
        found = system
    elif query.view:
        found = [row for row in found if query.view in _views(row)]
    start = int(query.after) if _AFTER.fullmatch(query.after) else 0
    end = start + query.limit
    shown = _sorted(found, query, end)[start:end]
    more = str(end) if end < len(found) else ""
    return IndexPage(shown, len(shown_rows), len(found), more, counts, note=note)


def _sorted(rows: list[Row], query: IndexQuery, count: int) -> list[Row]:
    """The first ones in order; what isn't known comes last."""
    if query.sort == "topic":
        return rows if query.order != "desc" else rows[::-1]
    sign = 1 if query.order == "asc" else -1
    if query.sort.startswith("earliest"):
        sign = -sign  # the oldest message is the greatest figure, as in the index

    def key(row: Row) -> tuple[bool, float, str]:
        value = row.get(query.sort)
        return value is None, sign * (value or 0), row["topic"]

    return heapq.nsmallest(count, rows, key)


def sums_by_namespace(topics: Iterable[Row]) -> dict[str, Row]:
    sums: dict[str, Row] = {}
    for row in topics:
        namespace = row["topic"].partition("://")[2].rpartition("/")[0]
        found = sums.setdefault(namespace, dict.fromkeys((*_COUNTS, *_SUMS), 0))
        found["topicCount"] += 1
        found["loadedTopicCount"] += row.get("msgRateIn") is not None
        for name in _SUMS:
            found[name] += row.get(name) or 0
    return sums


def explanation_of(stats: Mapping[str, Any]) -> Explanation | None:
    """As far as statistics of a subscription tell it; they don't have the limits."""
    consumers = receivers_of(stats)
    if not stats.get("msgBacklog"):
        return caught_up(0)
    if not consumers:
        found = no_consumer(0)
        more = "Apache Pulsar does not tell before then whether messages are delayed."
        return replace(found, next=f"{found.next} {more}")
    if stats.get("blockedSubscriptionOnUnackedMsgs"):
        return Explanation(
            Reason.SUBSCRIPTION_UNACKED_LIMIT,
            "The subscription's consumers have as many unacknowledged messages as they may.",
            "Delivery goes on when they acknowledge.",
        )
    free = [each for each in consumers if not each.get("blockedConsumerOnUnackedMsgs")]
    if not free:
        return Explanation(
            Reason.CONSUMER_UNACKED_LIMIT,
            "Every consumer has as many unacknowledged messages as it may.",
            "Delivery goes on when one of them acknowledges.",
        )
    states = [
        ConsumerState(
            each.get("consumerName", ""),
            permits=each.get("availablePermits", 0),
            last_consumed_ms=each.get("lastConsumedTimestamp", 0),
        )
        for each in free
    ]
    if (stall := consumers_stall(states, 0)) is not None:
        return _with_blocked(stall, len(consumers) - len(free))
    waits = _waits_for_clients(stats)
    is_all_sent = waits is not None and waits.reason in (Reason.DELAYED, Reason.PENDING)
    if stats.get("msgRateOut") and not (is_all_sent and _counts_unacked(stats)):
        return _delivered()
    return waits


def _counts_unacked(stats: Mapping[str, Any]) -> bool:
    """Whether statistics tell that everything was sent, also while messages are delivered."""
    return stats.get("type") not in ("Exclusive", "Failover")


def _delivered() -> Explanation:
    text = "Messages were delivered within the last minute, and nothing is known to hold back more:"
    return replace(delivering(None), message=f"{text} Apache Pulsar counts by the minute.")


def _with_blocked(stall: Explanation, count: int) -> Explanation:
    """With how many other consumers have as many unacknowledged messages as they may."""
    if not count:
        return stall
    others = f"{counted(count, 'other consumer')} {'has' if count == 1 else 'have'}"
    more = f" {others} as many unacknowledged messages as they may."
    return replace(stall, message=stall.message + more)


def explanations_of_partitions(
    names: Iterable[str], parts: Iterable[tuple[str, Mapping[str, Any]]]
) -> Steps[dict[str, dict[str, Any]]]:
    """Of each subscription the reason of the partition that is worst off.

    One that statistics don't tell of a partition might be worse than those that are known: then
    only a stall is told.

    Args:
        names: of the subscriptions.
        parts: names of partitions and their statistics.
    """
    found, unknown, names = dict[str, dict[str, dict[str, Any]]](), set[str](), [*names]
    for partition, stats in parts:
        found[partition] = {}
        for name in names:
            if (each := stats.get("subscriptions", {}).get(name)) is not None:
                if (told := explanation_of(each)) is None:
                    unknown.add(name)
                else:
                    found[partition][name] = told.as_json()
                yield
    worst = yield from worst_of_subscriptions(found)
    return {
        name: each
        for name, each in worst.items()
        if name not in unknown or is_stall(each["reason"], each)
    }


def _waits_for_clients(stats: Mapping[str, Any]) -> Explanation | None:
    """Of consumers that ask for messages and get none; None: statistics don't tell it."""
    backlog, delayed = stats["msgBacklog"], stats.get("msgDelayed", 0)
    unacked, hashes = stats.get("unackedMessages", 0), stats.get("drainingHashesCount", 0)
    if backlog <= delayed:
        return Explanation(
            Reason.DELAYED,
            f"{counted(backlog, 'message')} {'waits' if backlog == 1 else 'wait'}, all there are: "
            "producers asked for a later delivery.",
            "They are delivered when they are due.",
        )
    if hashes:
        return Explanation(
            Reason.DRAINING_HASH,
            f"Messages of keys that moved to another consumer wait: their former consumers have "
            f"{counted(stats.get('drainingHashesUnackedMessages', 0), 'unacknowledged message')}.",
            "They are delivered when the former consumers have acknowledged those, or disconnect.",
        )
    if unacked >= backlog - delayed:
        return Explanation(
            Reason.PENDING,
            f"Everything was sent: consumers have {counted(unacked, 'unacknowledged message')}.",
            "Look at what their applications wait for.",
        )
    if stats.get("type") in ("Exclusive", "Failover"):
        return Explanation(
            Reason.PENDING,
            "The consumer asks for messages and gets none: most likely it has all of them and has "
            "not acknowledged them, which Pulsar does not count here.",
            "Look at what its application waits for.",
        )
    return None
