"""Compaction: moves what still lives in sparse entry logs to the newest one, so that they can go.

Steps for the maintenance thread, as in ``flush.py``: a flush, a deletion or a power cut may come at
each ``yield``. In every step: copies durable -> index names them instead of the old ones; the old
log goes last, after a durable commit that forgets it. So a crash leaves duplicates at worst, and
the index decides which copy counts. A deleted ledger can't come back: its runs are looked up in the
step that moves them, in one turn with the commit.

Space: a step needs what it writes, and a log is freed only as a whole. ``entry_log_bytes_fitting``
keeps logs small beside what a bookie leaves free when it turns read-only, so there is always room
for the live part of the emptiest log, and each one that goes makes room for the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.bookkeeper.bookie.gc.garbage_scan import remove_log
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.entry_log import DATA_OFFSET, EntryLogAppender
from magnetar.bookkeeper.bookie.storage.flush import replace_runs
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.storage.ordered_store import StoreTransaction

_STEP_RUNS_MAX = 256
_STEP_BYTES = 8 << 20  # read, written and synced in one step: a flush waits that long
_LOG_BYTES_MIN = 16 << 20


@dataclass(slots=True)
class Compaction:
    """What one pass is doing and did; written by its steps, read by pages at any time.

    Attributes:
        kind: "minor", "major" or "forced".
        live_ratio: logs with a smaller share of live bytes are rewritten.
        logs_left, bytes_left: to be looked at, and their live bytes, as of the beginning.
        log_id: the one at work; -1: none.
        skipped_for_space: logs whose live bytes didn't fit on the disk.
    """

    kind: str
    live_ratio: float
    logs_left: int = 0
    bytes_left: int = 0
    log_id: int = -1
    logs_removed: int = 0
    bytes_moved: int = 0
    bytes_freed: int = 0
    skipped_for_space: int = 0
    logs_damaged: int = 0
    began_at_s: float = 0.0  # wall clock
    done: bool = False

    def as_dict(self) -> dict[str, object]:
        """For a page."""
        return {
            "kind": self.kind,
            "liveRatio": self.live_ratio,
            "running": not self.done,
            "beganAt": int(self.began_at_s * 1000),
            "log": "" if self.log_id < 0 else f"{self.log_id:016x}",
            "logsLeft": self.logs_left,
            "bytesLeft": self.bytes_left,
            "logsRemoved": self.logs_removed,
            "bytesMoved": self.bytes_moved,
            "bytesFreed": self.bytes_freed,
            "logsSkippedForSpace": self.skipped_for_space,
            "logsDamaged": self.logs_damaged,
        }


def entry_log_bytes_fitting(log_bytes: int, kept_free_bytes: int) -> int:
    """How large an entry log may become where ``kept_free_bytes`` are free at the worst.

    Half of that: the live part of a log must fit beside what flushes and the index still need.
    """
    return min(log_bytes, max(_LOG_BYTES_MIN, kept_free_bytes // 2))


def compact_steps(storage: LedgerStorage, compaction: Compaction) -> Iterator[None]:
    """One pass over all logs that are sparse now, the emptiest first.

    A log with a damaged record stays as it is: nothing of it is deleted (a replica repairs it).

    Raises:
        OSError: ENOSPC: what was moved before is consistent, and a later pass goes on.
    """
    _end_active_log(storage, compaction.live_ratio)
    sparse = _sparse_logs(storage, compaction.live_ratio)
    compaction.logs_left = len(sparse)
    compaction.bytes_left = sum(storage.logs.logs[log_id].live for log_id in sparse)
    for log_id in sparse:
        if (state := storage.logs.logs.get(log_id)) is not None:  # else dropped meanwhile
            left = compaction.bytes_left - state.live
            compaction.log_id = log_id
            if storage.file_system.free_bytes() < state.live + _margin(storage):
                compaction.skipped_for_space += 1
            else:
                yield from _compact_log(storage, log_id, compaction)
            compaction.bytes_left = max(0, left)
        compaction.logs_left -= 1
    compaction.log_id, compaction.bytes_left, compaction.done = -1, 0, True


def _margin(storage: LedgerStorage) -> int:
    """Beside the copies: the index grows a little, and a flush may run between two steps."""
    return 2 * storage.config.entry_log_write_bytes


def _end_active_log(storage: LedgerStorage, live_ratio: float) -> None:
    """Begin another log if much of the one at work is dead: else it would stay for ever where
    little is written any more."""
    logs = storage.logs
    if logs.active_id is not None:
        state = logs.logs[logs.active_id]
        garbage = state.end - DATA_OFFSET - state.live
        if garbage > logs.config.entry_log_bytes // 8 and state.live < live_ratio * state.end:
            logs.active_id = None


def _sparse_logs(storage: LedgerStorage, live_ratio: float) -> list[int]:
    sparse = [
        (state.live / state.end, log_id)
        for log_id, state in storage.logs.logs.items()
        if log_id != storage.logs.active_id
        and log_id not in storage.damaged_logs
        and state.end > DATA_OFFSET
        and (state.live == 0 or state.live < live_ratio * (state.end - DATA_OFFSET))
    ]
    return [log_id for _, log_id in sorted(sparse)]


def _compact_log(storage: LedgerStorage, log_id: int, compaction: Compaction) -> Iterator[None]:
    before, moved = storage.logs.logs[log_id].end, compaction.bytes_moved
    try:
        yield from _move_runs(storage, log_id, compaction)
    except CorruptFileError as error:
        storage.damaged_logs[log_id] = str(error)
        compaction.logs_damaged += 1
        return
    state = storage.logs.logs.get(log_id)
    if state is not None and state.live == 0:
        remove_log(storage, log_id)
        compaction.logs_removed += 1
        compaction.bytes_freed += before - (compaction.bytes_moved - moved)
    yield


def _move_runs(storage: LedgerStorage, log_id: int, compaction: Compaction) -> Iterator[None]:
    """Copy every live run of a log. Whole runs as they are, checked record by record."""
    low, high = index_format.log_runs(log_id)
    # The index is read again in every round: flushes and deletions may have run at the yield.
    while page := storage.index.range(low, high, _STEP_RUNS_MAX):
        appender = EntryLogAppender(storage.logs)
        changes = StoreTransaction()
        live_delta: dict[int, int] = {}
        moved = 0
        try:
            for key, _ in page:
                _, ledger_id, first = index_format.decode_log_run(key)
                moved += _move_run(storage, ledger_id, first, appender, changes, live_delta)
                if moved >= _STEP_BYTES:
                    break
            appender.finish()
        except BaseException:
            appender.abandon()  # a log that it began has no durable name and isn't used
            raise
        appender.changes(changes, live_delta)
        # The copies are synced. Which of both the index names after a crash is all the same as long
        # as both exist: the commit that drops the old log is behind this one, and synced.
        storage.index.commit(changes, sync_point=None)
        appender.committed(live_delta)
        compaction.bytes_moved += moved
        compaction.bytes_left = max(0, compaction.bytes_left - moved)
        yield


def _move_run(
    storage: LedgerStorage,
    ledger_id: int,
    first: int,
    appender: EntryLogAppender,
    changes: StoreTransaction,
    live_delta: dict[int, int],
) -> int:
    """Queue one run's copy; its bytes."""
    key = index_format.run_key(ledger_id, first)
    value = storage.index.get(key)
    if value is None:
        raise CorruptFileError("index", 0, f"run {key.hex()} of an entry log is missing")
    _, run = index_format.decode_run(key, value)
    data = storage.logs.read_records(ledger_id, run)
    new_log, offset = appender.append([data], len(data))
    moved = LocationRun(first, new_log, offset, run.sizes)
    replace_runs(ledger_id, [run], [moved], changes, live_delta)
    # The key of the run stays: a put wins over the delete of the same key in one transaction.
    if appender.is_full:
        appender.write_pending()
    return len(data)
