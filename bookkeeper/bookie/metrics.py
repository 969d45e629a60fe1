"""What a bookie counts for metrics. Written on the loop, by group commit, read or job: pure sums.

Only what nobody else knows is here; sizes of caches, numbers of ledgers and the like are asked of
the storage when a page is made.
"""

from magnetar.bookkeeper.bookie.gc.compaction import Compaction
from magnetar.bookkeeper.bookie.journal.journal import JournalGroup
from magnetar.bookkeeper.bookie.storage.ledger_storage import FlushJob
from magnetar.bookkeeper.loop_stalls import LoopStalls
from magnetar.bookkeeper.metrics import Durations


class BookieMetrics:
    """Durations are in milliseconds."""

    __slots__ = (
        "added_bytes",
        "added_entries",
        "cached_reads",
        "collections",
        "compacted_logs_bytes",
        "compaction",
        "compactions",
        "deleted_ledgers",
        "deleted_logs_bytes",
        "emptied_ledgers",
        "failed_reads",
        "flush",
        "flush_bytes",
        "flushed_entries",
        "journal_add",
        "journal_bytes",
        "journal_sync",
        "last_compaction",
        "last_compaction_at_s",
        "loop_stalls",
        "read_bytes",
        "read_entries",
        "reads",
        "refused_adds",
        "stored_reads",
    )

    def __init__(self) -> None:
        self.loop_stalls: LoopStalls | None = None
        """Long turns of this process's loop, if they are looked at."""
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
        self.emptied_ledgers = 0
        """Closed ones that others hold by now."""
        self.collections = 0
        """Rounds that came to their end."""
        self.compactions = dict.fromkeys(("minor", "major", "forced"), 0)
        self.compaction = Durations()
        self.last_compaction: Compaction | None = None
        """The pass that runs, or ran last."""
        self.last_compaction_at_s = dict.fromkeys(self.compactions, 0.0)
        """By kind; wall clock of its beginning, 0: never."""
        self.compacted_logs_bytes = 0

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
        self.flushed_entries += job.half.entry_count

    def count_compaction(self, compaction: Compaction, took_ms: float) -> None:
        """A pass ended, complete or not."""
        self.compaction.record(took_ms)
        self.compactions[compaction.kind] += 1
        self.last_compaction_at_s[compaction.kind] = compaction.began_at_s
        self.compacted_logs_bytes += compaction.bytes_freed
