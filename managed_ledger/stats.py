"""What a managed ledger tells about itself; names and units follow http-api.md 3.5."""

from __future__ import annotations

from dataclasses import dataclass

from managed_ledger.position import Position


@dataclass(slots=True)
class LedgerStats:
    """One listed ledger; an open one shows zeros, as Pulsar's does."""

    ledger_id: int
    entries: int
    size: int
    closed_ms: int
    is_offloaded: bool = False
    """Whether there is a complete copy elsewhere."""


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
    ledgers: list[LedgerStats]
    terminated: Position | None
    properties: dict[str, str]
    cached_bytes: int
    offloaded_size: int = 0
    """Bytes of the entries that have a complete copy elsewhere."""
    last_offload_ledger: int = 0
    """0, as for the next two: none since the log was opened."""
    last_offload_success_ms: int = 0
    last_offload_failure_ms: int = 0
