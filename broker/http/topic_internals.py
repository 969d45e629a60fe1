"""Internal statistics of a managed ledger in Pulsar's shape (http-api 3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.service.rates import iso_time
from managed_ledger.position import format_position

if TYPE_CHECKING:
    from managed_ledger.cursor.cursor import Cursor
    from managed_ledger.managed_ledger import ManagedLedger

__all__ = ["internal_stats"]


def internal_stats(ledger: ManagedLedger) -> dict[str, Any]:
    """PersistentTopicInternalStats."""
    stats = ledger.stats()
    answer: dict[str, Any] = {
        "entriesAddedCounter": stats.entries_added_counter,
        "numberOfEntries": stats.number_of_entries,
        "totalSize": stats.total_size,
        "currentLedgerEntries": stats.current_ledger_entries,
        "currentLedgerSize": stats.current_ledger_size,
        "lastLedgerCreatedTimestamp": iso_time(stats.last_ledger_created_ms),
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": stats.pending_append_entries,
        "lastConfirmedEntry": format_position(stats.last_confirmed),
        "state": stats.state,
        "ledgers": [
            {
                "ledgerId": each.ledger_id,
                "entries": each.entries,
                "size": each.size,
                "offloaded": False,
                "underReplicated": False,
            }
            for each in stats.ledgers
        ],
        "cursors": {name: _cursor(cursor) for name, cursor in ledger.cursors.items()},
        "properties": dict(stats.properties),
        "schemaLedgers": [],
        "compactedLedger": {
            "ledgerId": -1,
            "entries": -1,
            "size": -1,
            "offloaded": False,
            "underReplicated": False,
        },
    }
    if stats.last_ledger_creation_failure_ms:
        answer["lastLedgerCreationFailureTimestamp"] = iso_time(
            stats.last_ledger_creation_failure_ms
        )
    return answer


def _cursor(cursor: Cursor) -> dict[str, Any]:
    holes = cursor.acked_above
    return {
        "markDeletePosition": format_position(cursor.mark_delete),
        "readPosition": format_position(cursor.first_unacked()),
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": 0,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{holes} entries]" if holes else "[]",
        "lastLedgerSwitchTimestamp": iso_time(cursor.last_active_ms),
        "state": "Closed" if cursor.is_closed else "Open",
        "active": not cursor.is_closed,
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog,
        "totalNonContiguousDeletedMessagesRange": holes,
        "subscriptionHavePendingRead": False,
        "subscriptionHavePendingReplayRead": False,
        "properties": dict(cursor.properties),
    }
