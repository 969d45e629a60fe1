"""Whether a bookie's disks have room: for all writers, for repairs and compaction only, or hardly.

Three lines, from above: *low* (garbage is collected at once), *read-only* (writers are refused,
back below another line), and the *reserve*, which belongs to compaction: writes of recoveries, too,
end there. A log is never larger than half of what is free at the read-only line, so a bookie that
is refusing writers can always rewrite its emptiest log.
"""

from dataclasses import dataclass, replace

from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.gc.compaction import entry_log_bytes_fitting
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs
from magnetar.bookkeeper.storage.file_system import FileSystem


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """One look at the disk."""

    used: float  # share of the total
    free_bytes: int
    full: bool  # writers must be refused
    low: bool  # garbage should go


class DiskSpace:
    """Compares what is free with the lines of ``config``."""

    def __init__(self, config: BookieConfig, file_system: FileSystem, logs: EntryLogs) -> None:
        self._config = config
        self._file_system = file_system
        self._logs = logs
        self._reserve_bytes = 0

    def look(self, *, read_only: bool) -> DiskUsage:
        """Ask the system; ``read_only``: the lower line counts, so that it doesn't flap."""
        file_system, config = self._file_system, self._config
        free, total = file_system.free_bytes(), max(1, file_system.total_bytes())
        used = 1 - free / total
        limit = config.writable_below if read_only else config.disk_usage_max
        logs = list(self._logs.logs.items())
        # What compaction may have to copy at once: no log has more live bytes than bytes.
        largest = max((log.end for id_, log in logs if id_ != self._logs.active_id), default=0)
        self._reserve_bytes = max(config.disk_reserve_bytes // 2, largest)
        full = used > limit or free < config.disk_reserve_bytes
        low = full or used > config.disk_usage_warn or free < 2 * config.disk_reserve_bytes
        return DiskUsage(used, free, full, low)

    def has_reserve(self) -> bool:
        """There is more than compaction needs."""
        return self._file_system.free_bytes() > self._reserve_bytes


def storage_fitting(config: BookieConfig, file_system: FileSystem) -> StorageConfig:
    """The storage's settings, with entry logs small enough for these disks."""
    storage = config.storage
    by_share = int(file_system.total_bytes() * (1 - config.disk_usage_max))
    kept_free = max(by_share, config.disk_reserve_bytes)
    log_bytes = entry_log_bytes_fitting(storage.entry_log_bytes, kept_free)
    return replace(storage, entry_log_bytes=log_bytes)
