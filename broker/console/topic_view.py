"""What pages show of a topic's statistics. Pure: JSON of the admin API in, rows out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from magnetar.broker.console.kept_order import KeptOrder
from magnetar.broker.console.views import row_id
from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.dispatch.worst_reason import (
    in_partition,
    mark_of,
    mark_of_publishing,
    worst_publishing,
)
from magnetar.broker.protocol.topic_name import PARTITION_MARK
from magnetar.metadata.loop_turns import Steps, keep_least, run_at_once

if TYPE_CHECKING:
    from magnetar.broker.console.source import Deliveries

Json = Mapping[str, Any]
T = TypeVar("T")

ROWS_MAX: Final = 100
"""Of producers, of a subscription's consumers, and of subscriptions on a page."""
_OPENED_MAX: Final = 10
"""Subscriptions that a page opens by itself."""
HOLDERS_MAX: Final = 20
"""Subscriptions that are named as those that keep ledgers."""
READER_PREFIX: Final = "console-"
"""Of the names of readers' subscriptions, by which a console reads messages."""
_NAMED_MAX: Final = 5
_MISSING: Final = "missingPartitions"


@dataclass(frozen=True, slots=True)
class ClientQuery:
    """Which consumers or producers a page shows."""

    opened: str = ""
    """Name of the subscription whose consumers are shown; empty: of those that stand still."""
    text: str = ""
    """A part of the name or the address, in any case."""
    first: int = 0
    """How many come before those of the page."""
    shown: KeptOrder | None = None
    """Of the subscriptions, as a browser shows them; None: it shows none yet."""


@dataclass(frozen=True, slots=True)
class Clients(Generic[T]):
    """Consumers, producers or partitions, at most ``ROWS_MAX`` of them."""

    rows: Sequence[T]
    first: int
    matching: int
    total: int

    @property
    def next(self) -> int:
        """``first`` of the page behind it; 0: none."""
        end = self.first + len(self.rows)
        return end if end < self.matching else 0


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    name: str
    address: str
    client: str
    connected: str
    permits: int
    unacked: int
    is_blocked: bool
    last_ack_ms: int
    is_active: bool
    """Of Failover: it gets everything, the others nothing."""


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    id: str
    name: str
    type: str
    kind: str
    """Of its mark: `o` well, `w` warning, `e` stands still, `n` unknown."""
    reason: str
    message: str
    next: str
    backlog: int
    unread: float | None
    """Of what the topic stores, in percent of bytes; None: not known."""
    oldest_ms: int | None
    rate_out: float
    unacked: int
    delayed: int
    last_ack_ms: int
    last_delivery_ms: int
    is_replicated: bool
    properties: Mapping[str, str]
    consumers: Clients[ConsumerRow]
    """Without rows while it isn't open."""
    is_open: bool


@dataclass(frozen=True, slots=True)
class ProducerRow:
    name: str
    address: str
    client: str
    connected: str
    rate_in: float
    bytes_in: float
    mean_size: float


@dataclass(frozen=True, slots=True)
class PartitionRow:
    number: int
    rate_in: float
    rate_out: float
    backlog: int
    stored: int
    owner: str


@dataclass(frozen=True, slots=True)
class Transactions:
    """Of a topic; those that ended since it was loaded."""

    open: int
    committed: int
    aborted: int

    def __bool__(self) -> bool:
        return bool(self.open or self.committed or self.aborted)


@dataclass(frozen=True, slots=True)
class TopicFigures:
    rate_in: float
    bytes_in: float
    rate_out: float
    bytes_out: float
    stored: int
    offloaded: int
    oldest_ms: int | None
    owner: str
    quota_bytes: int | None
    quota_percent: float | None
    compaction: Json
    """Of the last one, as ``stats`` has it."""
    transactions: Transactions
    producers: Clients[ProducerRow]
    consumers: int
    subscription_count: int
    subscriptions: Sequence[SubscriptionRow]
    """Of the page: those that are furthest behind, and the one that was opened."""
    behind: tuple[str, int] | None
    """Name and backlog of the one that is furthest behind, if one is."""
    order: str
    """Of the rows, see ``KeptOrder``."""
    is_sorted: bool
    """Whether they are in the order of backlogs still."""


def listed_subscriptions(stats: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Of a topic's statistics, without the readers of consoles."""
    found: dict[str, Mapping[str, Any]] = stats.get("subscriptions", {})
    names = [name for name in found if name.startswith(READER_PREFIX)]
    readers = {name for name in names if not found[name].get("isDurable", True)}
    if not readers:  # there are ten thousand, perhaps
        return found
    return {name: each for name, each in found.items() if name not in readers}


def type_of(subscription: Mapping[str, Any]) -> str:
    """ "": no consumer was there since it was loaded, for which Pulsar writes ``None``."""
    found = subscription.get("type") or ""
    return "" if found == "None" else str(found)


def is_part(stats: Json) -> bool:
    """Whether they are of some subscriptions only, and lack lists of clients."""
    return "subscriptionCount" in stats


def opened_names(
    stats: Json, explanations: Mapping[str, Json], query: ClientQuery
) -> Sequence[str]:
    """Of the subscriptions whose consumers a page shows.

    Args:
        stats: of the subscriptions that it shows.
    """
    found: Mapping[str, Json] = stats["subscriptions"]
    if query.opened:
        return [query.opened] if query.opened in found else []
    rows = _rows_of(found, run_at_once(_furthest(found)), query)
    return [
        name
        for name in rows.shown[:_OPENED_MAX]
        if _kind(explanations.get(name, {}), found[name].get("msgBacklog", 0)) == "e"
    ]


def _furthest(found: Mapping[str, Json]) -> Steps[list[str]]:
    """Names of those with the largest backlogs, these first."""
    behind = list[tuple[int, str]]()
    for name, each in found.items():
        keep_least(behind, (-each.get("msgBacklog", 0), name), ROWS_MAX)
        yield
    return [name for _, name in sorted(behind)[:ROWS_MAX]]


@dataclass(frozen=True, slots=True)
class _Rows:
    shown: Sequence[str]
    """Names of subscriptions in the order of a page."""
    order: str
    is_sorted: bool


def _rows_of(found: Mapping[str, Json], fresh: Sequence[str], query: ClientQuery) -> _Rows:
    kept = KeptOrder.of([(name,) for name in fresh]) if query.shown is None else query.shown
    names = [each[0] for each in kept.names if each[0] in found]
    if not kept.names:  # they are too long: those that are among the first still
        names = kept.arranged({row_id(name): name for name in fresh})
    return _Rows(names, kept.text, names == fresh)


def topic_figures(
    stats: Json, explanations: Mapping[str, Json], query: ClientQuery
) -> Steps[TopicFigures]:
    """Of ``stats`` or ``partitioned-stats``.

    Args:
        explanations: by subscription; without one it has no reason.
    """
    found: Mapping[str, Json] = stats.get("subscriptions", {})
    fresh = yield from _furthest(found)
    times_ms, consumers = list[int](), 0
    for each in found.values():
        if (oldest_ms := _oldest_ms(each)) is not None:
            times_ms.append(oldest_ms)
        consumers += len(each.get("consumers", ()))
        yield
    shown, stored = _rows_of(found, fresh, query), stats.get("storageSize", 0)
    places = {name: at for at, name in enumerate(shown.shown)}
    if query.opened in found:
        places.setdefault(query.opened, ROWS_MAX)
    rows = dict[str, SubscriptionRow]()
    for name, at in places.items():
        told = explanations.get(name, {})
        rows[name] = yield from _subscription(name, found[name], told, query, stored, at)
    behind = fresh[0] if fresh and found[fresh[0]].get("msgBacklog") else None
    producers = yield from _producers(stats, query)
    quota = stats.get("backlogQuotaLimitSize") or -1
    used = stats.get("backlogSize") or 0
    return TopicFigures(
        rate_in=stats.get("msgRateIn", 0.0),
        bytes_in=stats.get("msgThroughputIn", 0.0),
        rate_out=stats.get("msgRateOut", 0.0),
        bytes_out=stats.get("msgThroughputOut", 0.0),
        stored=stats.get("storageSize", 0),
        offloaded=stats.get("offloadedStorageSize", 0),
        oldest_ms=min(times_ms, default=None),
        owner=stats.get("ownerBroker") or "",
        quota_bytes=quota if quota > 0 else None,
        quota_percent=100 * used / quota if quota > 0 else None,
        compaction=stats.get("compaction") or {},
        transactions=Transactions(
            stats.get("ongoingTxnCount", 0),
            stats.get("committedTxnCount", 0),
            stats.get("abortedTxnCount", 0),
        ),
        producers=producers,
        consumers=stats.get("consumerCount", consumers),
        subscription_count=stats.get("subscriptionCount", len(found)),
        subscriptions=[*rows.values()],
        behind=None if behind is None else (behind, found[behind]["msgBacklog"]),
        order=shown.order,
        is_sorted=shown.is_sorted,
    )


def _oldest_ms(subscription: Json) -> int | None:
    oldest_ms: int = subscription.get("earliestMsgPublishTimeInBacklog") or 0
    return oldest_ms if oldest_ms > 0 and subscription.get("msgBacklog") else None


def _subscription(
    name: str, stats: Json, explained: Json, query: ClientQuery, stored: int, at: int
) -> Steps[SubscriptionRow]:
    """
    Args:
        at: its place: one of the first is open by itself if it stands still.
    """
    backlog = stats.get("msgBacklog", 0)
    kind = _kind(explained, backlog)
    is_open = name == query.opened or (at < _OPENED_MAX and not query.opened and kind == "e")
    consumers = yield from _consumers(stats, query, is_open=is_open)
    return SubscriptionRow(
        id=row_id(name),
        name=name,
        type=type_of(stats),
        kind=kind,
        reason=explained.get("reason", ""),
        message=explained.get("message", ""),
        next=explained.get("next", ""),
        backlog=backlog,
        unread=_unread(stats, stored),
        oldest_ms=_oldest_ms(stats),
        rate_out=stats.get("msgRateOut", 0.0),
        unacked=stats.get("unackedMessages", 0),
        delayed=stats.get("msgDelayed", 0),
        last_ack_ms=stats.get("lastAckedTimestamp", 0),
        last_delivery_ms=stats.get("lastConsumedTimestamp", 0),
        is_replicated=bool(stats.get("replicated", stats.get("isReplicated"))),
        properties=stats.get("subscriptionProperties") or {},
        consumers=consumers,
        is_open=is_open,
    )


def _unread(stats: Json, stored: int) -> float | None:
    """Where a subscription stands on the log: how much of it is in front of it, in percent."""
    if not stats.get("msgBacklog"):
        return 0.0
    waiting = stats.get("backlogSize", -1)  # -1: Pulsar wasn't asked for it
    return None if waiting < 0 or stored <= 0 else min(100.0, 100 * waiting / stored)


def _kind(explained: Json, backlog: int) -> str:
    kind = _kind_of_reason(explained, backlog)
    return "w" if kind in "on" and explained.get(_MISSING) else kind


def _kind_of_reason(explained: Json, backlog: int) -> str:
    """Without a reason nobody can say more than that there is a backlog."""
    if not explained:
        return "n" if backlog else "o"
    if not backlog and explained["reason"] == Reason.NO_CONSUMER:
        return "n"
    return mark_of(explained) if backlog else "o"


def tell_missing_partitions(explained: Mapping[str, dict[str, Any]], stats: Json) -> Steps[None]:
    """Adds to each reason which partitions the subscription isn't on: it has none of what is
    published there. Consumers of one partition make it so; readers mean it.
    """
    parts = sorted(partition_stats(stats).items())
    for name, each in explained.items() if parts else ():
        subscription = stats["subscriptions"].get(name, {})
        missing = [number for number, part in parts if name not in part.get("subscriptions", {})]
        if missing and subscription.get("isDurable", True):
            numbers = ", ".join(map(str, missing[:_NAMED_MAX]))
            more = f" and {len(missing) - _NAMED_MAX:,} more" if missing[_NAMED_MAX:] else ""
            each["message"] += (
                f" The subscription isn't on partition{'s'[: len(missing) > 1]} {numbers}{more}:"
                " it gets nothing of what is published there. Let its consumers subscribe to the"
                " topic, not to a partition."
            )
            each[_MISSING] = missing
        yield


@dataclass(frozen=True, slots=True)
class PublishingRow:
    """Why nothing is published."""

    kind: str
    """Of its mark: `e` stands still, `w` warning, `n` it may be meant."""
    reason: str
    message: str
    next: str


def publishing_row(found: Mapping[str, Json]) -> Steps[PublishingRow | None]:
    """The worst of the partitions; None: nothing keeps producers from publishing.

    Args:
        found: as ``Source.publishing``.
    """
    if not found:
        return None
    partition, worst = yield from worst_publishing(found)
    if (mark := mark_of_publishing(worst)) is None:
        return None
    return PublishingRow(mark, worst["reason"], in_partition(partition, worst), worst["next"])


def _consumers(stats: Json, query: ClientQuery, *, is_open: bool) -> Steps[Clients[ConsumerRow]]:
    """The active one, and those that hold as many messages as they may, come first."""
    found: Sequence[Json] = stats.get("consumers", ())
    active = stats.get("activeConsumerName") if type_of(stats) == "Failover" else None
    if not is_open:
        total = stats.get("consumerCount", len(found))
        return Clients((), 0, total, total)
    shown, matching = yield from _matching(found, query, "consumerName", active)
    rows = [_consumer(each, active) for each in shown]
    return Clients(rows, query.first, matching, len(found))


def _producers(stats: Json, query: ClientQuery) -> Steps[Clients[ProducerRow]]:
    found: Sequence[Json] = stats.get("publishers", ())
    shown, matching = yield from _matching(found, query, "producerName")
    total = stats.get("producerCount", len(found))
    return Clients([_producer(each) for each in shown], query.first, matching, total)


def _matching(
    found: Sequence[Json], query: ClientQuery, name: str, active: str | None = None
) -> Steps[tuple[list[Json], int]]:
    """Those of the page, and how many match.

    The active consumer first, then those that hold as many messages as they may; else by name, so
    that the same ones stay on a page while others come and go.
    """
    key, matching = query.text.casefold(), 0
    end, some = query.first + ROWS_MAX, list[tuple[bool, bool, str, str, int]]()
    for at, each in enumerate(found):
        names = each.get(name) or "", each.get("address") or ""
        if not key or key in names[0].casefold() or key in names[1].casefold():
            matching += 1
            ranks = not _is_active(each, active), not each.get("blockedConsumerOnUnackedMsgs")
            keep_least(some, (*ranks, *names, at), end)
        yield
    return [found[at] for *_, at in sorted(some)[query.first : end]], matching


def _is_active(stats: Json, active: str | None) -> bool:
    return active is not None and stats.get("consumerName") == active


def _consumer(stats: Json, active: str | None) -> ConsumerRow:
    return ConsumerRow(
        name=stats.get("consumerName") or "",
        address=(stats.get("address") or "").lstrip("/"),  # as Java writes it
        client=stats.get("clientVersion") or "",
        connected=stats.get("connectedSince") or "",
        permits=stats.get("availablePermits", 0),
        unacked=stats.get("unackedMessages", 0),
        is_blocked=bool(stats.get("blockedConsumerOnUnackedMsgs")),
        last_ack_ms=stats.get("lastAckedTimestamp", 0),
        is_active=_is_active(stats, active),
    )


def _producer(stats: Json) -> ProducerRow:
    return ProducerRow(
        name=stats.get("producerName") or "",
        address=(stats.get("address") or "").lstrip("/"),  # as Java writes it
        client=stats.get("clientVersion") or "",
        connected=stats.get("connectedSince") or "",
        rate_in=stats.get("msgRateIn", 0.0),
        bytes_in=stats.get("msgThroughputIn", 0.0),
        mean_size=stats.get("averageMsgSize", 0.0),
    )


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """What became of a message in a subscription."""

    name: str
    kind: str
    """Of its mark: `w` and `e` something stands still, `n` nothing does."""
    message: str


@dataclass(frozen=True, slots=True)
class DeliveryRows:
    acknowledged: Sequence[str]
    """Names of subscriptions."""
    others: Sequence[DeliveryRow]
    left_out: int
    """Subscriptions that weren't asked."""


def delivery_rows(found: Deliveries) -> DeliveryRows:
    acknowledged = [
        name for name, each in found.explained.items() if each["reason"] == Reason.ACKNOWLEDGED
    ]
    others = [
        DeliveryRow(name, mark_of(each).replace("o", "n"), each["message"])
        for name, each in found.explained.items()
        if name not in acknowledged
    ]
    return DeliveryRows(acknowledged, others, found.left_out)


def partition_stats(stats: Json) -> dict[int, Json]:
    """Of ``partitioned-stats?perPartition=true``: those of the partitions that were used."""
    found: Mapping[str, Json] = stats.get("partitions") or {}
    # Without the mark it is the topic: none was used yet.
    return {
        int(name.rpartition(PARTITION_MARK)[2]): each
        for name, each in found.items()
        if PARTITION_MARK in name
    }


def partition_rows(stats: Json, count: int) -> Iterator[PartitionRow]:
    """All ``count`` of them, also those that no client has used."""
    found = partition_stats(stats)
    for number in range(count):
        each = found.get(number, {})
        backlogs = (sub.get("msgBacklog", 0) for sub in each.get("subscriptions", {}).values())
        yield PartitionRow(
            number=number,
            rate_in=each.get("msgRateIn", 0.0),
            rate_out=each.get("msgRateOut", 0.0),
            backlog=max(backlogs, default=0),
            stored=each.get("storageSize", 0),
            owner=each.get("ownerBroker") or "",
        )


@dataclass(frozen=True, slots=True)
class LedgerRow:
    id: int
    entries: int
    size: int
    offloaded: bool
    from_ms: int | None
    """When its first entry was written, at the earliest; None: not known."""
    until_ms: int | None
    """When it was closed; None: it is open, or not known."""
    held_by: Sequence[str]
    """Subscriptions whose mark-delete position is before its last entry, of those furthest back."""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    name: str
    entries: int
    last: str
    ledgers: Sequence[LedgerRow]


@dataclass(frozen=True, slots=True)
class Run:
    """Of a compaction or an offload: the last one since the topic was loaded."""

    kind: str
    """Of its mark: `o` well, `w` under way, `e` failed, `n` none was begun."""
    text: str


_RUNS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "NOT_RUN": ("n", "none since the topic was loaded"),
        "RUNNING": ("w", "under way"),
        "SUCCESS": ("o", "the last one succeeded"),
        "ERROR": ("e", "the last one failed"),
    }
)


def run_of(status: Json) -> Run:
    """Of the answer of ``GET .../compaction`` or ``.../offload``."""
    kind, text = _RUNS.get(status["status"], ("n", status["status"]))
    error = status.get("lastError") or ""
    return Run(kind, f"{text}: {error}" if error else text)


def stored_topics(
    topic: str, first: int, internal: Json, info: Json
) -> Steps[Clients[StoredTopic]]:
    """A topic, or some of its partitions.

    Args:
        first: how many partitions come before those of the page. Of Magnetar only those of the
            page are there.
        internal: ``internalStats`` or ``partitioned-internalStats``.
        info: ``internal-info``, which has the times; empty: it isn't known.
    """
    parts = internal.get("partitions")
    if parts is None:
        return Clients([(yield from _stored(topic, internal, info))], 0, 1, 1)
    infos, found = info.get("partitions") or {}, list[StoredTopic]()
    total = internal.get("existingPartitions")
    skipped = first if total is None else 0
    for name in islice(parts, skipped, skipped + ROWS_MAX):
        found.append((yield from _stored(name, parts[name], infos.get(name) or {})))
    total = len(parts) if total is None else total
    return Clients(found, first, total, total)


def _stored(name: str, internal: Json, info: Json) -> Steps[StoredTopic]:
    furthest = list[tuple[tuple[int, int], str]]()
    for cursor, each in internal.get("cursors", {}).items():
        at = _position(each.get("markDeletePosition", ""))
        keep_least(furthest, (at, cursor), HOLDERS_MAX)
        yield
    furthest = sorted(furthest)[:HOLDERS_MAX]
    rows = [
        (each["ledgerId"], each.get("entries", 0), each.get("size", 0), bool(each.get("offloaded")))
        for each in internal.get("ledgers", [])
    ]
    if rows and not rows[-1][1]:  # the list tells nothing of the ledger that is written
        written = internal.get("currentLedgerEntries", 0), internal.get("currentLedgerSize", 0)
        rows[-1] = (rows[-1][0], *written, rows[-1][3])
    spans = _spans(info, _time_ms(internal.get("lastLedgerCreatedTimestamp", "")))
    ledgers = [
        LedgerRow(
            *row,
            *spans.get(row[0], (None, None)),
            [cursor for at, cursor in furthest if at < (row[0], row[1] - 1)],
        )
        for row in rows
    ]
    last = internal.get("lastConfirmedEntry", "")
    return StoredTopic(name, internal.get("numberOfEntries", 0), last, ledgers)


def _spans(info: Json, last_ms: int | None) -> dict[int, tuple[int | None, int | None]]:
    """From when until when each ledger was written: a ledger follows the one that was closed.

    Args:
        last_ms: when the last one was created.
    """
    spans: dict[int, tuple[int | None, int | None]] = {}
    ledgers, before = info.get("ledgers", ()), None
    for each in ledgers:
        # Pulsar gives the ledger that is written a time, too: when it was created.
        closed = each.get("timestamp") if "entries" in each else None
        spans[each["ledgerId"]] = before, closed
        before = closed
    if ledgers and last_ms:
        last = ledgers[-1]["ledgerId"]
        spans[last] = last_ms, spans[last][1]
    return spans


def _time_ms(text: str) -> int | None:
    """Of a time in ISO 8601; None: it is none."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _position(text: str) -> tuple[int, int]:
    """Of ``ledger:entry``; before everything, if it is none."""
    ledger, _, entry = text.partition(":")
    return (int(ledger), int(entry)) if ledger.isdecimal() and entry.isdecimal() else (-1, -1)
