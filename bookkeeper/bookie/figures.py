"""What a bookie counts for metrics. Written on the loop, by group commit, read or job: pure sums.

Only what nobody else knows is here; sizes of caches, numbers of ledgers and the like are asked of
the storage when a page is made.
"""

from __future__ import annotations

from bookkeeper.figures import Durations

__all__ = ["BookieFigures"]


class BookieFigures:
    """Durations are in milliseconds."""

    __slots__ = (
        "added_bytes",
        "added_entries",
        "cached_reads",
        "compacted_logs_bytes",
        "compaction",
        "compactions",
        "deleted_ledgers",
        "deleted_logs_bytes",
        "failed_reads",
        "flush",
        "flush_bytes",
        "flushed_entries",
        "journal_add",
        "journal_bytes",
        "journal_sync",
        "read_bytes",
        "read_entries",
        "reads",
        "refused_adds",
        "stored_reads",
    )

    def __init__(self) -> None:
        # Adds: entries, and bytes of their records, that became durable; requests refused
        self.added_entries = 0
        self.added_bytes = 0
        self.refused_adds = 0
        # Journal, once a group
        self.journal_sync = Durations()
        """One write and sync."""
        self.journal_add = Durations()
        """From a group's first entry to its durability, counted for each of its entries."""
        self.journal_bytes = 0
        """Padding included."""
        # Reads, once a request
        self.reads = Durations()
        self.cached_reads = 0
        """Requests answered from the write cache; the others went to an entry log."""
        self.stored_reads = 0
        self.failed_reads = 0
        self.read_entries = 0
        self.read_bytes = 0
        # Checkpoints
        self.flush = Durations()
        self.flush_bytes = Durations()
        self.flushed_entries = 0
        # Garbage collection
        self.deleted_ledgers = 0
        self.deleted_logs_bytes = 0
        """Of logs without any live ledger."""
        self.compactions = 0
        self.compaction = Durations()
        self.compacted_logs_bytes = 0
