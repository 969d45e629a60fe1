"""The backlog of subscriptions: entries, bytes, and the age of the oldest message.

All of it comes from brokers' statistics of topics over HTTP; nothing is read and Spark isn't
needed. Brokers count the backlog in entries: a batch of messages is one entry.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.pipeline.admin import Admin, ClusterAccess, NoSuchTopicError
from magnetar.pipeline.errors import OptionsError, PipelineError
from magnetar.pipeline.jobs.tables import ReportTable
from magnetar.pipeline.options import TopicChoice
from magnetar.pipeline.topics import find_partitions

_CALLS_AT_ONCE: Final = 8
_STATISTICS: Final = (
    "stats?getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true"
)

BACKLOG_COLUMNS: Final = {
    "topic": "string",
    "partition": "int32",
    "subscription": "string",
    "type": "string",
    "entries": "int64",
    "bytes": "int64",
    "oldestSeconds": "float64",
    "consumers": "int32",
    "unacked": "int64",
    "delayed": "int64",
    "rateOut": "float64",
    "drainSeconds": "float64",
}
"""``oldestSeconds``: age of the oldest message that isn't acknowledged; ``rateOut``: messages a
second to consumers, over the last minute; ``drainSeconds``: how long the entries take at the rate
of entries that belongs to it, if nothing is published meanwhile. Null: no backlog, or no rate."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """
    Attributes:
        failures: topic -> why its statistics are missing.
    """

    table: ReportTable
    failures: Mapping[str, str] = field(default_factory=dict)


def backlog(cluster: ClusterAccess, places: Sequence[str]) -> Backlog:
    """A row for each subscription of each partition.

    Args:
        places: namespaces (``tenant/namespace``) and topics (full names, ``tenant/namespace/name``
            or a name in public/default); ``tenant/namespace/.*`` and the like are patterns.
    Raises:
        OptionsError: of the places.
        NoSuchTopicError: a topic or namespace that was named doesn't exist.
        SegmentsUnavailableError: no broker answers.
    """
    now_ms = int(time.time() * 1000)
    with Admin(cluster) as admin:
        found: dict[str, None] = {}
        for choice in choices_of(places):
            found.update(dict.fromkeys(find_partitions(admin, choice)))
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
        answers = pool.map(lambda name: _stats(cluster, name), found)
        for name, answer in zip(found, answers, strict=True):
            if isinstance(answer, str):
                failures[name] = answer
            elif answer is not None:
                rows += rows_of(name, answer, now_ms)
    return Backlog(ReportTable("backlog", BACKLOG_COLUMNS, rows), failures)


def choices_of(places: Sequence[str]) -> list[TopicChoice]:
    """
    Raises:
        OptionsError: neither a namespace nor a topic.
    """
    choices, names = [], []
    for place in places:
        parts = place.removeprefix("persistent://").split("/")
        if len(parts) == 2 and all(parts):
            choices.append(TopicChoice(pattern=".*", namespaces=(place,)))
        elif len(parts) == 3 and any(sign in parts[2] for sign in "*+?[("):
            namespace = f"{parts[0]}/{parts[1]}"
            choices.append(TopicChoice(pattern=place, namespaces=(namespace,)))
        else:
            try:
                name = TopicName.parse(place)
            except InvalidTopicNameError as error:
                raise OptionsError(f"{place}: {error}") from error
            if not name.is_persistent:
                raise OptionsError(f"{name}: only persistent topics have a backlog")
            names.append(str(name))
    return [*choices, TopicChoice(names=tuple(names))] if names else choices


def rows_of(partition: str, stats: Mapping[str, Any], now_ms: int) -> list[dict[str, Any]]:
    """The rows of one topic's statistics."""
    name = TopicName.parse(partition)
    rows = []
    for subscription, each in sorted(stats.get("subscriptions", {}).items()):
        entries = int(each.get("msgBacklog", 0))
        oldest_ms = int(each.get("earliestMsgPublishTimeInBacklog", 0))
        rate = _entry_rate(each)
        rows.append(
            {
                "topic": str(name.base),
                "partition": name.partition_index,
                "subscription": subscription,
                "type": each.get("type") or "-",  # no consumer has ever connected
                "entries": entries,
                # -1: the broker was not asked, or can't tell
                "bytes": max(0, int(each.get("backlogSize", 0))),
                "oldestSeconds": (
                    max(0.0, (now_ms - oldest_ms) / 1000) if entries and oldest_ms > 0 else None
                ),
                "consumers": len(each.get("consumers", ())),
                "unacked": int(each.get("unackedMessages", 0)),
                "delayed": int(each.get("msgDelayed", 0)),
                "rateOut": float(each.get("msgRateOut", 0.0)),
                "drainSeconds": entries / rate if entries and rate > 0 else None,
            }
        )
    return rows


def _entry_rate(subscription: Mapping[str, Any]) -> float:
    """Return the entries a second that consumers get: brokers measure messages a second."""
    return sum(
        float(each.get("msgRateOut", 0.0)) / max(1, int(each.get("avgMessagesPerEntry", 0)))
        for each in subscription.get("consumers", ())
    )


def _stats(cluster: ClusterAccess, partition: str) -> Any:
    """Statistics; None: there is no such partition (any more); a text: why there are none."""
    with Admin(cluster) as admin:
        try:
            return admin.statistics(partition, _STATISTICS)
        except NoSuchTopicError:
            return None
        except PipelineError as error:
            return str(error)
