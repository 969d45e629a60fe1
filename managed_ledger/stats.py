"""What a managed ledger tells about itself; names and units are Pulsar's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.ledger_rows import LedgerRows
    from magnetar.managed_ledger.managed_ledger import ManagedLedger


@dataclass(slots=True)
class ManagedLedgerStats:
    """A snapshot; see the field of the same name in PersistentTopicInternalStats."""

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_ms: int
    last_ledger_creation_failure_ms: int
    """0: never."""
    pending_append_entries: int
    pending_append_bytes: int
    last_confirmed: Position
    state: str
    ledgers: LedgerRows
    """An open one shows zeros, as Pulsar's does. There may be a million: `LedgerRows.pieces`."""
    terminated: Position | None
    properties: dict[str, str]
    cached_bytes: int
    offloaded_size: int = 0
    """Bytes of the entries that have a complete copy elsewhere."""
    last_offload_ledger: int = 0
    """0, as for the next two: none since the log was opened."""
    last_offload_success_ms: int = 0
    last_offload_failure_ms: int = 0


def stats_of(log: ManagedLedger) -> ManagedLedgerStats:
    """See `ManagedLedger.stats`."""
    appends = log.appends
    core = None if appends is None else appends.core
    return ManagedLedgerStats(
        entries_added_counter=log.entries_added,
        number_of_entries=log.entry_count,
        total_size=log.total_bytes,
        current_ledger_entries=0 if core is None or core.current < 0 else core.next_entry,
        current_ledger_size=0 if core is None or core.current < 0 else core.current_bytes,
        last_ledger_created_ms=0 if appends is None else appends.created_ms,
        last_ledger_creation_failure_ms=0 if appends is None else appends.create_failure_ms,
        pending_append_entries=0 if core is None else core.pending_entries,
        pending_append_bytes=log.pending_bytes,
        last_confirmed=log.last_confirmed,
        state=log.state,
        ledgers=log.lists.info.ledgers,
        terminated=log.terminated,
        properties=log.properties,
        cached_bytes=0 if log.log_cache is None else sum(x.size for x in log.log_cache.chunks),
        offloaded_size=log.offloads.copied_bytes,
        last_offload_ledger=log.offloads.last_ledger_id,
        last_offload_success_ms=log.offloads.last_success_ms,
        last_offload_failure_ms=log.offloads.last_failure_ms,
    )
