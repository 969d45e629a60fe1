"""What auto-recovery's workers count, for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.bookkeeper.metrics import Durations


@dataclass(slots=True)
class ReplicationMetrics:
    """Counters since the start of one worker.

    Attributes:
        ledgers_repaired: markers cleared after something had been copied or closed.
        ledgers_cleared: markers cleared in all.
        ledgers_recovered: open ledgers that were closed for the sake of a repair.
        members_replaced: slots of segments that got another bookie.
        members_filled: slots whose own bookie got what it missed.
        entries_resumed: entries that the target had already, from an earlier attempt.
        failures: repairs that could not go on and will be tried again.
        unreadable_entries: repairs that met an entry without any readable copy.
        ledgers_under_repair, ledgers_waiting: now.
    """

    ledgers_repaired: int = 0
    ledgers_cleared: int = 0
    ledgers_recovered: int = 0
    members_replaced: int = 0
    members_filled: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    entries_resumed: int = 0
    failures: int = 0
    unreadable_entries: int = 0
    ledgers_under_repair: int = 0
    ledgers_waiting: int = 0
    repair: Durations = field(default_factory=Durations)
