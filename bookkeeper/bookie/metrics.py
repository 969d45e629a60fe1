"""What a bookie counts for metrics. Written on the loop, by group commit, read or job: pure sums.

Only what nobody else knows is here; sizes of caches, numbers of ledgers and the like are asked of
the storage when a page is made.
"""

from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.gc.compaction import Compaction
from magnetar.bookkeeper.bookie.journal.journal import JournalGroup
from magnetar.bookkeeper.bookie.storage.ledger_storage import FlushJob
from magnetar.bookkeeper.loop_stalls import LoopStalls
from magnetar.bookkeeper.metrics import Durations

_KINDS = ("minor", "major", "forced")  # of compaction


@dataclass(slots=True, eq=False)
class BookieMetrics:
    """Durations are in milliseconds."""

    loop_stalls: LoopStalls | None = None
    """Long turns of this process's loop, if they are looked at."""
    # Adds: entries, and bytes of their records, that became durable; requests refused
    added_entries: int = 0
    added_bytes: int = 0
    refused_adds: int = 0
    # Journal, once a group
    journal_sync: Durations = field(default_factory=Durations)
    """One write and sync."""
    journal_add: Durations = field(default_factory=Durations)
    """From a group's first entry to its durability, counted for each of its entries."""
    journal_bytes: int = 0
    """Padding included."""
    # Reads, once a request
    reads: Durations = field(default_factory=Durations)
    cached_reads: int = 0
    """Requests answered from the write cache; the others went to an entry log."""
    stored_reads: int = 0
    failed_reads: int = 0
    read_entries: int = 0
    read_bytes: int = 0
    # Checkpoints
    flush: Durations = field(default_factory=Durations)
    flush_bytes: Durations = field(default_factory=Durations)
    # Garbage collection
    deleted_ledgers: int = 0
    deleted_logs_bytes: int = 0
    """Of logs without any live ledger."""
    emptied_ledgers: int = 0
    """Closed ones that others hold by now."""
    collections: int = 0
    """Rounds that came to their end."""
    compactions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    compaction: Durations = field(default_factory=Durations)
    last_compaction: Compaction | None = None
    """The pass that runs, or ran last."""
    last_compaction_at_s: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(_KINDS, 0.0)
    )
    """By kind; wall clock of its beginning, 0: never."""
    compacted_logs_bytes: int = 0

    def count_group(self, group: JournalGroup, took_ms: float) -> None:
        """A group is durable, so long after its first entry came."""
        self.journal_sync.record(group.write_s * 1000)
        self.journal_bytes += group.size
        if group.entries:
            self.added_entries += group.entries
            self.added_bytes += group.record_bytes
            # The longest wait stands for all: a time per request would cost each of them.
            self.journal_add.record(took_ms, group.entries)

    def count_flush(self, job: FlushJob, took_ms: float) -> None:
        """A checkpoint ended."""
        self.flush.record(took_ms)
        self.flush_bytes.record(job.half.bytes)

    def count_compaction(self, compaction: Compaction, took_ms: float) -> None:
        """A pass ended, complete or not."""
        self.compaction.record(took_ms)
        self.compactions[compaction.kind] += 1
        self.last_compaction_at_s[compaction.kind] = compaction.began_at_s
        self.compacted_logs_bytes += compaction.bytes_freed
