"""Internal statistics of a topic in Pulsar's shapes."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import orjson

from magnetar.bookkeeper.ledger_metadata import FORMAT_VERSION, LedgerMetadata, LedgerState
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.broker.errors import STORAGE_ERRORS
from magnetar.broker.http.routing.scatter_gather import each
from magnetar.broker.http.streamed_answers import let_go, long_array
from magnetar.broker.http.topics.topic_access import stored
from magnetar.broker.http.topics.topic_segments import position_fields
from magnetar.broker.rate_limits.rate_sampler import iso_time
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic import Topic
from magnetar.managed_ledger.cursor.ack_state import runs_of
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.offload.policy import is_offloaded
from magnetar.managed_ledger.position import Position, format_position
from magnetar.managed_ledger.stored_info import StoredCursor, StoredManagedLedger
from magnetar.metadata.loop_turns import in_turns, keep_least, run_in_turns
from magnetar.metadata.store import Stat

_READING_METADATA: Final = "Reading ledger metadata"
_RANGES_MAX: Final = 1000
"""Runs of acknowledged entries shown; a cursor may have millions."""


def volatile_internal_stats(topic: Topic, cursors_max: int | None = None) -> dict[str, Any]:
    """PersistentTopicInternalStats of a topic that stores nothing: what was published, and which
    subscriptions it has. The zeros are true: no ledger, no cursor, nothing read.
    """
    cursor = {
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": 0,
        "cursorLedger": 0,
        "cursorLedgerLastEntry": 0,
        "active": False,
        "numberOfEntriesSinceFirstNotAckedMessage": 0,
        "totalNonContiguousDeletedMessagesRange": 0,
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
    }
    return {
        "entriesAddedCounter": topic.entries_in,
        "numberOfEntries": 0,
        "totalSize": 0,
        "currentLedgerEntries": 0,
        "currentLedgerSize": 0,
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
        "cursors": {
            name: {**cursor, "active": bool(subscription.consumers)}
            for name, subscription in islice(topic.subscriptions.items(), cursors_max)
        },
    }


async def internal_stats(
    topic: PersistentTopic, *, metadata: bool = False, cursors_max: int | None = None
) -> AsyncIterator[bytes]:
    """PersistentTopicInternalStats as of now.

    Args:
        metadata: also what the metadata store says of each ledger, when its turn comes. Only
            reading that raises a BrokerError.
        cursors_max: only so many cursors, those that have acknowledged least; None: all.
    """
    compacted = await _compacted_ledger(topic, metadata=metadata)
    more = {"schemaLedgers": [], "compactedLedger": compacted}
    of, log = topic.subscriptions, topic.ledger
    async for piece in log_stats(log, of, more, metadata=metadata, cursors_max=cursors_max):
        yield piece


async def log_stats(
    ledger: ManagedLedger,
    subscriptions: Mapping[str, Subscription] = MappingProxyType({}),
    more: Mapping[str, Any] = MappingProxyType({}),
    *,
    metadata: bool = False,
    cursors_max: int | None = None,
) -> AsyncIterator[bytes]:
    """ManagedLedgerInternalStats; see `internal_stats`.

    Args:
        more: fields of its owner.
    """
    appends = ledger.appends
    core = None if appends is None else appends.core
    rows = ledger.lists.info.ledgers  # the open one shows zeros, as Pulsar's does
    cursors: dict[str, dict[str, Any]] = {}
    waiting, listed = 0, list[tuple[Position, str]]()
    async for name in in_turns([*ledger.cursors]):  # pairs of 10,000 are 2 ms to make and to free
        if (cursor := ledger.cursors.get(name)) is None:
            continue  # deleted meanwhile
        subscription = subscriptions.get(name)
        waiting += isinstance(subscription, PersistentSubscription) and subscription.is_waiting
        if cursors_max is None:
            cursors[name] = _cursor(ledger, cursor, subscription)
        else:
            keep_least(listed, (cursor.mark_delete, name), cursors_max)
    for _, name in sorted(listed)[:cursors_max]:
        if (found := ledger.cursors.get(name)) is not None:  # else deleted meanwhile
            cursors[name] = _cursor(ledger, found, subscriptions.get(name))
    answer: dict[str, Any] = {
        "entriesAddedCounter": ledger.entries_added,
        "numberOfEntries": ledger.offsets.entry_count,
        "totalSize": ledger.total_bytes,
        "currentLedgerEntries": 0 if core is None or core.current < 0 else core.next_entry,
        "currentLedgerSize": ledger.written_bytes,
        "lastLedgerCreatedTimestamp": iso_time(0 if appends is None else appends.created_ms),
        "waitingCursorsCount": waiting,
        "pendingAddEntriesCount": 0 if core is None else core.pending_entries,
        "lastConfirmedEntry": format_position(ledger.last_confirmed),
        "state": ledger.state,
        "cursors": cursors,
        "properties": ledger.properties,
        **more,
    }
    if appends is not None and appends.create_failure_ms:
        answer["lastLedgerCreationFailureTimestamp"] = iso_time(appends.create_failure_ms)
    of = ledger if metadata else None
    async for piece in long_array(answer, "ledgers", _pieces(rows, _ledger_row, of)):
        yield piece
    await run_in_turns(let_go(answer))


async def _compacted_ledger(topic: PersistentTopic, *, metadata: bool) -> dict[str, Any]:
    known, compacted = (-1, -1, -1), topic.compacted
    if compacted is not None:
        with suppress(*STORAGE_ERRORS):  # its figures aren't known now
            await compacted.opened()
        known = compacted.figures
    row = {
        **dict(zip(("ledgerId", "entries", "size"), known, strict=True)),
        "offloaded": compacted is not None and compacted.copy is not None,
        "underReplicated": False,
    }
    if compacted is not None and metadata:
        await stored(_add_metadata(topic.ledger, [row]), _READING_METADATA)
    return row


def _cursor(
    ledger: ManagedLedger, cursor: Cursor, subscription: Subscription | None
) -> dict[str, Any]:
    backlog, position = cursor.state.backlog, cursor.state.first_unacked()
    waiting, reading = False, None
    if isinstance(subscription, PersistentSubscription):
        position = subscription.read_position
        waiting, reading = subscription.is_waiting, subscription.reading
    cursor_ledger, last_entry = cursor.ledger_position
    connected = subscription is not None and bool(subscription.consumers)
    replaying = reading is not None and reading.replay
    return {
        "markDeletePosition": format_position(cursor.mark_delete),
        "readPosition": format_position(position),
        "waitingReadOp": waiting,
        "pendingReadOps": int(reading is not None),  # of storage; the cache answers at once
        # Entries this owner saw, without those that wait: negative at the start, as in Pulsar.
        "messagesConsumedCounter": ledger.entries_added - backlog,
        "cursorLedger": cursor_ledger,
        "cursorLedgerLastEntry": last_entry,
        "individuallyDeletedMessages": format_ranges(
            cursor.state.ranges(_RANGES_MAX), cursor.state.range_count
        ),
        "lastLedgerSwitchTimestamp": iso_time(cursor.ledger_since_ms),
        "state": _state(cursor),
        "active": connected,
        "numberOfEntriesSinceFirstNotAckedMessage": _entries_upto(
            ledger, cursor.mark_delete, position
        ),
        "totalNonContiguousDeletedMessagesRange": cursor.state.range_count,
        "subscriptionHavePendingRead": waiting or (reading is not None and not replaying),
        "subscriptionHavePendingReplayRead": replaying,
        "properties": dict(cursor.state.properties),
    }


def _state(cursor: Cursor) -> str:
    if cursor.is_closed:
        return "Closed"
    # Of two that have no ledger only the one that could have one says so.
    return "NoLedger" if cursor.durable and cursor.ledger_position[0] < 0 else "Open"


def _entries_upto(ledger: ManagedLedger, mark_delete: Position, read: Position) -> int:
    """Entries above mark-delete, and as in Pulsar the one that is read next, there or not."""
    if read <= mark_delete:
        return 0
    return ledger.offsets.entries_between(mark_delete, (read[0], read[1] - 1)) + 1


def format_ranges(ranges: list[tuple[Position, Position]], count: int) -> str:
    """``[(3:4..3:6],(3:8..3:9]]``: open below, closed above; says how many more there are."""
    texts = [f"({format_position(low)}..{format_position(high)}]" for low, high in ranges]
    if count > len(ranges):
        texts.append(f"and {count - len(ranges)} more")
    return f"[{','.join(texts)}]"


def _ledger_row(ledger: LedgerInfo) -> dict[str, Any]:
    return {
        "ledgerId": ledger.ledger_id,
        "entries": ledger.entries,
        "size": ledger.size,
        "offloaded": is_offloaded(ledger),
        "underReplicated": False,
    }


async def _add_metadata(ledger: ManagedLedger, rows: list[dict[str, Any]]) -> None:
    """Also whether auto-recovery has marked it."""
    markers = UnderReplicationStore(ledger.store, ledger.now_ms)

    async def add(row: dict[str, Any]) -> None:
        found = await ledger.client.read_ledger_metadata(row["ledgerId"])
        if found is not None:  # else trimmed meanwhile
            row["underReplicated"] = await markers.read(row["ledgerId"]) is not None
            row["metadata"] = _metadata_text(found)

    await each(rows, add)


def _metadata_text(found: LedgerMetadata) -> str:
    """As BookKeeper's LedgerMetadataImpl.toString has it: people's tools read it."""
    segments = ", ".join(f"{x.first_entry}=[{', '.join(x.bookies)}]" for x in found.segments)
    custom = ", ".join(
        f"{name}=base64:{b64encode(value).decode()}"
        for name, value in found.custom_metadata.items()
    )
    ending = ""
    if found.state is LedgerState.CLOSED:
        ending = f"length={found.length}, lastEntryId={found.last_entry}, "
    return (
        f"LedgerMetadata{{formatVersion={FORMAT_VERSION}, ensembleSize={found.ensemble_size}, "
        f"writeQuorumSize={found.write_quorum}, ackQuorumSize={found.ack_quorum}, "
        f"state={found.state.value}, {ending}digestType={found.digest_type}, "
        f"password=OMITTED, ensembles={{{segments}}}, customMetadata={{{custom}}}}}"
    )


async def ledger_info(found: StoredManagedLedger) -> AsyncIterator[bytes]:
    """ManagedLedgerInfo; uses up what was found."""
    info = found.info
    cursors: dict[str, dict[str, Any]] = {}
    async for name, cursor in in_turns(found.cursors.items()):
        cursors[name] = _stored_cursor(cursor)
    answer: dict[str, Any] = {**_dates(found.stat), "cursors": cursors}
    if info.terminated is not None:
        answer["terminatedPosition"] = position_fields(info.terminated)
    if info.properties:
        answer["properties"] = dict(info.properties)
    async for piece in long_array(answer, "ledgers", _pieces(info.ledgers, _stored_row)):
        yield piece
    for long in (answer, {"cursors": found.cursors}):
        await run_in_turns(let_go(long))


def _stored_row(ledger: LedgerInfo) -> dict[str, Any]:
    row: dict[str, Any] = {"ledgerId": ledger.ledger_id, "isOffloaded": is_offloaded(ledger)}
    if ledger.offload is not None:
        row["offloadedContextUuid"] = ledger.offload.copy.uuid
    if ledger.closed_ms:
        row |= {"entries": ledger.entries, "size": ledger.size, "timestamp": ledger.closed_ms}
    return row


async def _pieces(
    ledgers: LedgerRows,
    row: Callable[[LedgerInfo], dict[str, Any]],
    of: ManagedLedger | None = None,
) -> AsyncIterator[bytes]:
    """Args:
    of: their log, if what the metadata store says of each is to be told, too.
    """
    for piece in ledgers.pieces():
        rows = [row(ledger) for ledger in piece]
        if of is not None:
            await stored(_add_metadata(of, rows), _READING_METADATA)
        yield orjson.dumps(rows)


def _stored_cursor(cursor: StoredCursor) -> dict[str, Any]:
    node = cursor.node
    answer: dict[str, Any] = {
        **_dates(cursor.stat),
        "cursorsLedgerId": node.ledger_id,
        "markDelete": position_fields(node.mark_delete),
    }
    if node.properties:
        answer["properties"] = dict(node.properties)
    if node.state:  # else there are none, or the cursor ledger has them
        ranges = runs_of(node.image("node").acked, _RANGES_MAX)
        answer["individualDeletedMessages"] = [
            {"from": position_fields(low), "to": position_fields(high)} for low, high in ranges
        ]
    return answer


def _dates(stat: Stat) -> dict[str, Any]:
    return {
        "version": stat.version,
        "creationDate": iso_time(stat.created_ms),
        "modificationDate": iso_time(stat.modified_ms),
    }


async def offline_stats(topic: PersistentTopic, now_ms: int) -> AsyncIterator[bytes]:
    """PersistentOfflineTopicStats, of a topic that is loaded all the same: so it is exact."""
    ledger, name, backlog = topic.ledger, topic.name, 0
    cursors = dict[str, dict[str, int]]()
    async for cursor in in_turns(list(ledger.cursors.values())):
        if cursor.durable:
            of_cursor, cursor_ledger = cursor.state.backlog, cursor.ledger_position[0]
            cursors[cursor.name] = {"cursorBacklog": of_cursor, "cursorLedgerId": cursor_ledger}
            backlog += of_cursor
    answer = {
        "storageSize": ledger.total_bytes,
        "totalMessages": ledger.offsets.entry_count,
        "messageBacklog": backlog,
        "brokerName": topic.service.config.advertised_host,
        "topicName": f"{name.namespace}/{name.domain}/{name.local}",
        "cursorDetails": cursors,
        "statGeneratedAt": now_ms,
    }
    details = _pieces(ledger.lists.info.ledgers, _detail)
    async for piece in long_array(answer, "dataLedgerDetails", details):
        yield piece


def _detail(ledger: LedgerInfo) -> dict[str, Any]:
    return {
        "ledgerId": ledger.ledger_id,
        "entries": ledger.entries,
        "size": ledger.size,
        "timestamp": ledger.closed_ms,
    }
