"""Entry logs: append-only files of records, sorted by (ledger, entry) within each flush.

Only the maintenance thread appends, through a ``EntryLogAppender`` per transaction; what it wrote
counts from the index commit on, which also records where each log ends. Bytes behind that end are
garbage of a flush that did not come through and are overwritten. Any thread may read.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from threading import Lock
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.bookie.storage.write_cache import slice_packets
from magnetar.bookkeeper.errors import CorruptFileError, MissingFileError
from magnetar.bookkeeper.storage.file_system import Buffer, File, FileSystem
from magnetar.bookkeeper.storage.ordered_store import StoreTransaction

DIRECTORY: Final = "entry-log"
VERSION: Final = 1
_MAGIC: Final = b"MAGNELOG"
_HEADER: Final = Struct(">8sIQI")  # magic, version, log id, crc of all before
DATA_OFFSET: Final = 64  # where the first record begins


def log_path(log_id: int) -> str:
    return f"{DIRECTORY}/{log_id:016x}.log"


def log_id_of(name: str) -> int | None:
    stem, dot, suffix = name.partition(".")
    if dot and suffix == "log" and len(stem) == 16:
        with contextlib.suppress(ValueError):
            return int(stem, 16)
    return None


def encode_header(log_id: int) -> bytes:
    raw = _HEADER.pack(_MAGIC, VERSION, log_id, 0)[:-4]
    header = raw + crc32c(raw).to_bytes(4, "big")
    return header + bytes(DATA_OFFSET - len(header))


@dataclass(slots=True)
class EntryLogState:
    """A log as of the last commit: where it ends, and how many bytes of it the index points to."""

    end: int
    live: int


class EntryLogs:
    """All logs of a bookie."""

    def __init__(
        self,
        file_system: FileSystem,
        config: StorageConfig,
        next_id: int,
        logs: dict[int, EntryLogState],
    ) -> None:
        self.logs = logs
        self.next_id = next_id
        self.active_id: int | None = None  # where the next append goes; None: a new log
        self.config = config
        self.file_system = file_system
        self._files: dict[int, File] = {}
        self.is_disk_shared: Callable[[], bool] = lambda: False
        """Others wait for the disk: reads take turns, so that a write is behind one at most."""
        self._turn = Lock()
        self._cached: deque[tuple[int, int, int]] = deque()  # written last: log, first, end
        self._cached_bytes = 0
        self._cached_from: dict[int, int] = {}  # of a log: the first byte that ``_cached`` has
        if logs and logs[newest := max(logs)].end < config.entry_log_bytes // 2:
            self.active_id = newest  # else frequent restarts would leave many small logs

    def check(self) -> None:
        """Compare with the directory: remove what no commit knows, miss nothing.

        Raises:
            MissingFileError, CorruptFileError: a log is gone, or shorter than it was.
        """
        unknown = [
            name
            for name in self.file_system.list(DIRECTORY)
            if (log_id := log_id_of(name)) is not None and log_id not in self.logs
        ]
        for name in unknown:
            self.file_system.remove(f"{DIRECTORY}/{name}")
        if unknown:
            # Their ids are given out again, perhaps on another disk: a name that came back there
            # after a power cut would be a second log of that id.
            self.file_system.sync_dir(DIRECTORY, "entry-log.removal")
        for log_id, state in self.logs.items():
            path = log_path(log_id)
            if not self.file_system.exists(path):
                raise MissingFileError(f"{path}: an entry log is missing")
            if (size := self.file(log_id).size()) < state.end:
                raise CorruptFileError(path, size, f"entry log ends before {state.end}")

    def file(self, log_id: int) -> File:
        """The open file of a log.

        Raises:
            FileNotFoundError: compacted or dropped since the caller looked into the index.
            CorruptFileError: it is not this log.
        """
        file = self._files.get(log_id)
        if file is None:
            file = self.file_system.open(log_path(log_id))
            if file.pread(DATA_OFFSET, 0) != encode_header(log_id):
                raise CorruptFileError(log_path(log_id), 0, "not the header of this entry log")
            file = self._files.setdefault(log_id, file)
            if log_id not in self.logs:  # unlinked meanwhile: a kept file would keep its space
                self._files.pop(log_id, None)
        return file

    def create(self) -> int:
        """Begin a new log; its name is not durable yet."""
        log_id = self.next_id
        self.next_id += 1
        file = self.file_system.create(log_path(log_id))
        file.pwritev([encode_header(log_id)], 0)
        self._files[log_id] = file
        self.logs[log_id] = EntryLogState(DATA_OFFSET, 0)
        self.active_id = log_id
        return log_id

    def unlink(self, log_id: int) -> None:
        """Remove a log that no commit refers to any more.

        Its file is closed, and its space freed step by step, by its last user.
        """
        path = log_path(log_id)
        file = self._files.get(log_id) or self.file_system.open(path)
        self.logs.pop(log_id, None)  # first: see file()
        if self.active_id == log_id:
            self.active_id = None
        self.file_system.remove(path)
        self._files.pop(log_id, None)
        self._cached_from.pop(log_id, None)
        del file  # here, unless it is being read: on the maintenance thread

    def written(self, log_id: int, first: int, end: int) -> None:
        """Bytes of a log became durable, and are in the page cache: it forgets the oldest ones
        instead. Maintenance thread."""
        self._cached_from.setdefault(log_id, first)
        self._cached.append((log_id, first, end))
        self._cached_bytes += end - first
        while self._cached_bytes > self.config.entry_log_cached_bytes:
            log_id, first, end = self._cached.popleft()
            self._cached_bytes -= end - first
            if (file := self._files.get(log_id)) is not None:
                self._cached_from[log_id] = end
                file.drop_cached(first, end - first)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # ---- reading

    def read_records(self, ledger_id: int, run: LocationRun) -> bytes | memoryview:
        """All records of a run as they lie there, every one checked.

        Raises:
            CorruptFileError: one of them is damaged.
        """
        data = self._read(run.log_id, run.bytes, run.offset)
        intact = record_format.count_intact_entries(data, run.sizes, ledger_id, run.first)
        if intact < len(run.sizes):
            raise _damaged(run, ledger_id, run.first + intact)
        return data

    def read_intact(self, ledger_id: int, run: LocationRun) -> tuple[bytes | memoryview, int]:
        """Records of a run, and how many of its ids are intact from the first on.

        Raises:
            CorruptFileError: not even the first one is.
            FileNotFoundError: see ``file``.
        """
        data = self._read(run.log_id, run.bytes, run.offset)
        intact = record_format.count_intact_entries(data, run.sizes, ledger_id, run.first)
        if intact == 0:
            raise _damaged(run, ledger_id, run.first)
        return data, intact

    def _read(self, log_id: int, size: int, offset: int) -> bytes | memoryview:
        file = self.file(log_id)
        if self.is_cached(log_id, offset):
            return file.pread(size, offset)
        return file.pread_direct(size, offset, self._turn if self.is_disk_shared() else None)

    def is_cached(self, log_id: int, offset: int) -> bool:
        """These bytes are in the page cache, and shall stay there."""
        cached_from = self._cached_from.get(log_id)
        return cached_from is not None and offset >= cached_from

    def read(
        self, ledger_id: int, run: LocationRun, first: int, end: int
    ) -> list[bytes | memoryview]:
        """Checked packets of the entries ``first <= id < end`` of a run; no holes among them.

        Raises:
            CorruptFileError: the first record is not the entry it should be. (A bad one further
                on ends the list.)
            FileNotFoundError: see ``file``.
        """
        sizes = run.sizes[first - run.first : end - run.first]
        offset = run.offset_of(first)
        wanted = sum(sizes) + RECORD_HEADER_BYTES * len(sizes)
        data = self._read(run.log_id, wanted, offset)
        intact = record_format.count_intact_entries(data, sizes, ledger_id, first)
        if intact == 0:
            raise _damaged(run, ledger_id, first)
        return slice_packets(data, 0, sizes[:intact])


def _damaged(run: LocationRun, ledger_id: int, entry_id: int) -> CorruptFileError:
    reason = f"no intact record of ledger {ledger_id}, entry {entry_id}"
    return CorruptFileError(log_path(run.log_id), run.offset_of(entry_id), reason)


class EntryLogAppender:
    """Appends of one transaction. Writes in large calls; ``finish`` makes all of it durable."""

    def __init__(self, logs: EntryLogs) -> None:
        self.ends: dict[int, int] = {}  # new end of every log that was appended to
        self._logs = logs
        self._config = logs.config
        self._created: list[int] = []
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._pending_offset = 0
        self._log_id = -1
        self._end = 0
        self._unsynced_bytes = 0

    def append(self, buffers: Sequence[Buffer], size: int) -> tuple[int, int]:
        """Queue records that belong together; log id and offset where they will lie."""
        if self._log_id < 0 or self._end + size > self._config.entry_log_bytes:
            self._switch(size)
        offset = self._end
        self._pending += buffers
        self._pending_bytes += size
        self._end += size
        return self._log_id, offset

    @property
    def is_full(self) -> bool:
        """Time for ``write_pending``."""
        return self._pending_bytes >= self._config.entry_log_write_bytes

    def write_pending(self) -> None:
        if self._pending_bytes == 0:
            return
        file = self._logs.file(self._log_id)
        file.pwritev(self._pending, self._pending_offset)
        self._pending_offset += self._pending_bytes
        self._unsynced_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        self.ends[self._log_id] = self._pending_offset
        if self._unsynced_bytes >= self._config.entry_log_sync_bytes:
            # Many small syncs instead of one long: the journal shares the disk.
            self._sync(self._log_id, "entry-log.data")

    def finish(self) -> None:
        """Make everything appended durable, names included."""
        self.write_pending()
        if self._unsynced_bytes:
            self._sync(self._log_id, "entry-log.data")
        if self._created:
            self._logs.file_system.sync_dir(DIRECTORY, "entry-log.name")

    def changes(self, changes: StoreTransaction, live_delta: dict[int, int]) -> None:
        """Add what the index must know of the logs: ends, live bytes, next id."""
        for log_id in self.ends.keys() | live_delta.keys():
            state = self._logs.logs[log_id]
            end = self.ends.get(log_id, state.end)
            live = state.live + live_delta.get(log_id, 0)
            changes.puts.append(index_format.encode_log(log_id, end, live))
        number = index_format.encode_number(index_format.NEXT_LOG_KEY, self._logs.next_id)
        changes.puts.append(number)

    def committed(self, live_delta: dict[int, int]) -> None:
        """The index commit is durable."""
        for log_id in self.ends.keys() | live_delta.keys():
            state = self._logs.logs[log_id]
            state.end = self.ends.get(log_id, state.end)
            state.live += live_delta.get(log_id, 0)

    def abandon(self) -> None:
        """The transaction failed for lack of space: give back what it took."""
        for log_id in self._created:
            with contextlib.suppress(OSError):
                self._logs.unlink(log_id)

    def _switch(self, size: int) -> None:
        """Choose the log for the next append."""
        if self._log_id >= 0:
            self.write_pending()
            if self._unsynced_bytes:
                self._sync(self._log_id, "entry-log.data")
        logs = self._logs
        active = logs.active_id
        fits = active is not None and active != self._log_id
        if active is not None and fits:
            end = logs.logs[active].end
            fits = end == DATA_OFFSET or end + size <= self._config.entry_log_bytes
        if active is None or not fits:
            active = logs.create()
            self._created.append(active)
        self._log_id = active
        self._end = self._pending_offset = logs.logs[active].end

    def _sync(self, log_id: int, sync_point: str) -> None:
        self._logs.file(log_id).sync(sync_point)
        end = self._pending_offset
        self._logs.written(log_id, end - self._unsynced_bytes, end)
        self._unsynced_bytes = 0
