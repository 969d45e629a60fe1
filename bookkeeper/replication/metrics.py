"""What an auditor counts for metrics. Written on the loop: pure sums."""

from dataclasses import dataclass, field

from magnetar.bookkeeper.metrics import Durations


class AuditorMetrics:
    """Durations are in milliseconds. What isn't a sum is of the last look."""

    def __init__(self) -> None:
        self.election_attempts = 0
        self.is_auditor = False
        # Zones: name -> (phase, available, registered) of the elected auditor's view
        self.zones: dict[str, tuple[str, int, int]] = {}
        self.all_zones_down = False
        self.disabled = False
        """Automatic repair is off, for whatever reason."""
        # Lost bookies
        self.audits_delayed = 0
        self.audits_cancelled = 0
        """All bookies were back before their delay ended."""
        self.audits = Durations()
        self.marked_ledgers = Durations()
        """Ledgers that one audit or check marked."""
        self.unreadable_ledgers = 0
        """Whose metadata can't be read, in the last audit."""
        self.lost_bookies = 0
        # Markers
        self.marked_now = 0
        self.marked_over_grace = 0
        """Marked for longer than the grace period."""
        # Periodic checks
        self.check_all_ledgers = Durations()
        self.checked_ledgers = 0
        self.fragments_per_ledger = Durations()
        self.bookies_per_ledger = Durations()
        self.skipped_checks = 0
        """Checks that had to wait since automatic repair was off."""
        self.placement_check = Durations()
        self.not_adhering = 0
        self.softly_adhering = 0
        self.replicas_check = Durations()
        self.no_replica = 0
        self.under_ack_quorum = 0
        self.under_write_quorum = 0
        self.replicas_unknown = 0
        """Ledgers that couldn't be counted: a bookie didn't answer."""


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
