"""What an auditor counts for metrics. Written on the loop: pure sums."""

from __future__ import annotations

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
