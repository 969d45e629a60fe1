"""Settings of a bookie; validated once, all sizes in bytes."""

from dataclasses import dataclass
from pathlib import Path

from magnetar.bookkeeper.layout.cookie_format import Directories


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """What the storage core needs; no paths, no names."""

    # Journal
    journals: int = 1  # a ledger's records go to the one with number "id modulo this"
    journal_segment_bytes: int = 256 << 20  # a segment is closed before it would grow above this
    journal_group_bytes_max: int = 8 << 20  # one durable write; a larger single request is allowed
    journal_alignment_bytes: int = 4096  # groups begin at multiples: no synced page is rewritten
    journal_extend_bytes: int = 1 << 20  # steps in which a new segment is filled with zeros
    journal_spares_max: int = 2  # old segments kept for re-use
    journal_queue_bytes_max: int = 256 << 20  # above: TOO_MANY_REQUESTS
    # Write cache (two halves of this size at most, plus what the journal queue holds)
    flush_bytes: int = 64 << 20
    flush_entries: int = 200_000  # bounds the time a replay takes
    # Entry log
    entry_log_bytes: int = 1 << 30
    entry_log_write_bytes: int = 2 << 20  # one write call; keeps the journal's syncs short
    entry_log_sync_bytes: int = 2 << 20  # dirty bytes before an early sync
    # Newest bytes of entry logs that stay in the page cache; older ones are read from the disk.
    # Pages given back are the ones the next writes get: far cheaper than ever more new ones.
    entry_log_cached_bytes: int = 256 << 20
    run_entries_max: int = 256
    run_bytes_max: int = 1 << 20
    entry_bytes_max: int = 64 << 20
    deleted_ledger_memory_s: int = 7 * 86400  # how long late adds to deleted ledgers are refused

    def __post_init__(self) -> None:
        alignment = self.journal_alignment_bytes
        if alignment < 512 or alignment & (alignment - 1):
            raise ValueError("journal_alignment_bytes must be a power of two, at least 512")
        if self.journals < 1:
            raise ValueError("journals must be at least 1")
        if self.journal_segment_bytes < 4 * alignment:
            raise ValueError("journal_segment_bytes must be at least four times the alignment")
        if not 0 < self.entry_bytes_max < 1 << 28:
            raise ValueError("entry_bytes_max must be below 256 MiB")


@dataclass(frozen=True, slots=True)
class GarbageCollectionConfig:
    """When garbage is collected, and how hard. Shares are live bytes by bytes of an entry log."""

    minor_ratio: float = 0.2  # logs with a smaller share are rewritten ...
    minor_interval_s: float = 3600.0  # ... this often; 0: never
    minor_s_max: float = 0.0  # a pass ends after so long, the next goes on; 0: no limit
    major_ratio: float = 0.5
    major_interval_s: float = 86_400.0
    major_s_max: float = 0.0
    compaction_bytes_per_s: int = 64 << 20  # moved by one pass; 0: as fast as it goes
    # While the disk is nearly full: at once, without that limit, and for smaller gains.
    forced_ratio: float = 0.8
    forced_pause_s: float = 60.0  # between two of them; doubled while they free nothing
    # How often closed ledgers are looked for that name other bookies by now; 0: never.
    over_replicated_interval_s: float = 86_400.0

    def __post_init__(self) -> None:
        if not 0 <= self.minor_ratio <= self.major_ratio < 1:
            raise ValueError("need 0 <= minor_ratio <= major_ratio < 1")


@dataclass(frozen=True, slots=True)
class BookieConfig:
    """Settings of one bookie process or embedded bookie."""

    bookie_id: str
    data_dir: Path
    storage: StorageConfig = StorageConfig()
    network_location: str = "/default-zone/default-upgrade-domain"
    # Host and port where clients reach it, for the registration; None: only in this process.
    advertised: tuple[str, int] | None = None
    rpc_advertised: tuple[str, int] | None = None  # of BookKeeper's protocol; None: not spoken
    web_advertised: tuple[str, int] | None = None  # of its HTTP server
    directories: Directories | None = None  # as its cookie names them
    flush_interval_s: float = 30.0  # longest time an entry waits for its flush; armed on demand
    read_threads: int = 2
    read_ahead_bytes: int = 32 << 20  # for ledgers read in order, given back when none is
    # Disk usage (share of the total) at which the bookie turns read-only, and writable again.
    disk_usage_max: float = 0.95
    disk_usage_low: float | None = None  # None: 0.03 below disk_usage_max
    disk_reserve_bytes: int = 256 << 20  # read-only below this much free space, whatever the share
    disk_usage_warn: float = 0.90  # garbage is collected at once above this
    disk_check_interval_s: float = 2.0  # while writers wait for space
    disk_idle_check_interval_s: float = 10.0  # at other times; 0: only after flushes
    collection: GarbageCollectionConfig = GarbageCollectionConfig()
    # Start although journal or index bytes are lost: every ledger that may be affected answers
    # "unknown" until it was repaired (limbo), instead of refusing to start.
    accept_data_loss: bool = False

    def __post_init__(self) -> None:
        if not self.bookie_id or "/" in self.bookie_id:
            raise ValueError("bookie_id must be a name without slashes")
        if not 0 < self.writable_below <= self.disk_usage_max <= 1:
            raise ValueError("need 0 < disk_usage_low <= disk_usage_max <= 1")

    @property
    def writable_below(self) -> float:
        """Disk usage below which a read-only bookie becomes writable again."""
        if self.disk_usage_low is not None:
            return self.disk_usage_low
        return max(self.disk_usage_max - 0.03, self.disk_usage_max / 2)
