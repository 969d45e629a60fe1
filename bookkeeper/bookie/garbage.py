"""Garbage collection: which ledgers are gone, freeing their bytes, compacting sparse entry logs.

The steps run on the maintenance thread, one after the other with flushes, so nothing else changes
index or logs meanwhile. Order: what the index points to is durable before the index says so, and a
log is unlinked only after no commit refers to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookkeeper.bookie import index_format
from bookkeeper.bookie.entry_log import DATA_OFFSET, LogAppender
from bookkeeper.bookie.flush import replace_runs
from bookkeeper.bookie.ledger_storage import LedgerStorage
from bookkeeper.bookie.runs import Run
from bookkeeper.errors import CorruptFileError
from bookkeeper.storage.ordered_store import Changes, iterate

_LEDGERS_PER_COMMIT = 64
_PAGE_ITEMS = 512
_RUNS_PER_COMMIT = 16


class LedgerRangeLike(Protocol):
    """Ledger ids listed in one piece of the metadata tree, which covers [first, end)."""

    @property
    def first(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def ledger_ids(self) -> Sequence[int]: ...


class LedgerRegistry(Protocol):
    """The metadata store's view of which ledgers exist (``client.ledger_store.LedgerStore``)."""

    def ranges(self) -> AsyncIterator[LedgerRangeLike]: ...

    async def exists(self, ledger_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What one collection did."""

    ledgers_dropped: int = 0
    logs_removed: int = 0
    bytes_freed: int = 0


async def find_deleted_ledgers(local: set[int], registry: LedgerRegistry) -> list[int]:
    """Ledgers of ``local`` that are certainly gone from the metadata store.

    REQUIRES: ``local`` was taken before this call. Metadata exists before any data, so a ledger in
    it that the later listing and a point read both miss was deleted, not just created.

    Raises:
        Whatever the registry raises: then nothing may be deleted.
    """
    listed: set[int] = set()
    async for found in registry.ranges():
        listed.update(found.ledger_ids)
    if not listed:
        return []  # an empty tree is more likely a wrong or reset store than an unused cluster
    candidates = sorted(local - listed)
    return [ledger_id for ledger_id in candidates if not await registry.exists(ledger_id)]


def drop_steps(
    storage: LedgerStorage,
    ledger_ids: Sequence[int],
    deleted_at_s: int,
    report: list[GarbageReport],
) -> Iterator[None]:
    """Remove ledgers from the index; unlink logs that hold nothing else.

    REQUIRES: ``storage.forget`` was called for each, on the loop.

    Args:
        deleted_at_s: kept with the ids, so that late writers are refused.
        report: gets one item when done.
    """
    for start in range(0, len(ledger_ids), _LEDGERS_PER_COMMIT):
        changes = Changes()
        live_delta: dict[int, int] = {}
        for ledger_id in ledger_ids[start : start + _LEDGERS_PER_COMMIT]:
            low, high = index_format.ledger_runs(ledger_id)
            for key, value in iterate(storage.index, low, high, _PAGE_ITEMS):
                _, run = index_format.decode_run(key, value)
                changes.deletes.append(
                    index_format.encode_log_run(run.log_id, ledger_id, run.first)[0]
                )
                live_delta[run.log_id] = live_delta.get(run.log_id, 0) - run.bytes
            changes.delete_ranges.append((low, high))
            changes.deletes.append(index_format.ledger_key(ledger_id))
            changes.puts.append(index_format.encode_deleted(ledger_id, deleted_at_s))
        appender = LogAppender(storage.logs)
        appender.changes(changes, live_delta)
        storage.index.commit(changes, "index.drop")
        appender.committed(live_delta)
        yield
    freed, removed = 0, 0
    for log_id in _dead_logs(storage):
        freed += storage.logs.logs[log_id].end
        removed += 1
        _remove_log(storage, log_id)
        yield
    report.append(GarbageReport(len(ledger_ids), removed, freed))


def _dead_logs(storage: LedgerStorage) -> list[int]:
    return [
        log_id
        for log_id, state in storage.logs.logs.items()
        if state.live == 0 and state.end > DATA_OFFSET
    ]


def _remove_log(storage: LedgerStorage, log_id: int) -> None:
    """Forget, durably, then unlink: the other order could leave the index with a missing log.

    The check at a start removes a file that only the crash kept.
    """
    changes = Changes(deletes=[index_format.log_key(log_id)])
    number = index_format.encode_number(index_format.NEXT_LOG_KEY, storage.logs.next_id)
    changes.puts.append(number)
    storage.index.commit(changes, "index.drop-log")
    storage.logs.unlink(log_id)


def expire_deleted_steps(storage: LedgerStorage, before_s: int) -> Iterator[None]:
    """Forget deletions older than ``before_s``: their writers are long gone."""
    expired = [ledger_id for ledger_id, at_s in list(storage.deleted.items()) if at_s < before_s]
    if expired:
        deletes = [index_format.deleted_key(ledger_id) for ledger_id in expired]
        # Lost by a crash, it is repeated by the next round.
        storage.index.commit(Changes(deletes=deletes), sync_point=None)
        for ledger_id in expired:
            storage.deleted.pop(ledger_id, None)
    yield


def compact_steps(storage: LedgerStorage, report: list[GarbageReport]) -> Iterator[None]:
    """Rewrite the live runs of sparse logs, the emptiest first, and unlink the old logs.

    A log with a damaged record stays as it is: nothing of it is deleted (a replica repairs it).
    """
    freed, removed = 0, 0
    for log_id in _sparse_logs(storage):
        state = storage.logs.logs[log_id]
        # Reserve: the copy exists beside the original for a while, so compaction must never be
        # what fills the disk.
        if storage.file_system.free_bytes() < 2 * state.live:
            continue
        before = state.end
        try:
            written = yield from _move_runs(storage, log_id)
        except CorruptFileError as error:
            storage.damaged_logs[log_id] = str(error)
            continue
        if storage.logs.logs[log_id].live == 0:
            _remove_log(storage, log_id)
            removed += 1
            freed += before - written
        yield
    report.append(GarbageReport(0, removed, freed))


def _sparse_logs(storage: LedgerStorage) -> list[int]:
    ratio = storage.config.compaction_live_ratio
    sparse = [
        (state.live / state.end, log_id)
        for log_id, state in storage.logs.logs.items()
        if log_id != storage.logs.active_id
        and log_id not in storage.damaged_logs
        and state.end > DATA_OFFSET
        and state.live < ratio * (state.end - DATA_OFFSET)
    ]
    return [log_id for _, log_id in sorted(sparse)]


def _move_runs(storage: LedgerStorage, log_id: int) -> Generator[None, None, int]:
    """Copy every live run of a log; the result: bytes written.

    Whole runs are copied as they are, checked record by record before the old log may go.
    """
    written = 0
    low, high = index_format.log_runs(log_id)
    while True:
        # The index is read again in every round: flushes and deletions may have run at the yield.
        page = storage.index.range(low, high, _RUNS_PER_COMMIT)
        if not page:
            return written
        appender = LogAppender(storage.logs)
        changes = Changes()
        live_delta: dict[int, int] = {}
        try:
            for key, _ in page:
                _, ledger_id, first = index_format.decode_log_run(key)
                written += _move_run(storage, ledger_id, first, appender, changes, live_delta)
            appender.finish()
        except OSError:
            appender.abandon()
            raise
        appender.changes(changes, live_delta)
        # The copies are synced. Which of both the index names after a crash is all the same as long
        # as both exist: the commit that drops the old log is behind this one, and synced.
        storage.index.commit(changes, sync_point=None)
        appender.committed(live_delta)
        yield


def _move_run(
    storage: LedgerStorage,
    ledger_id: int,
    first: int,
    appender: LogAppender,
    changes: Changes,
    live_delta: dict[int, int],
) -> int:
    key = index_format.run_key(ledger_id, first)
    value = storage.index.get(key)
    if value is None:
        raise CorruptFileError("index", 0, f"run {key.hex()} of an entry log is missing")
    _, run = index_format.decode_run(key, value)
    data = storage.logs.read_records(ledger_id, run)
    new_log, offset = appender.append([data], len(data))
    moved = Run(first, new_log, offset, run.sizes)
    replace_runs(ledger_id, [run], [moved], changes, live_delta)
    # The key of the run stays: a put wins over the delete of the same key in one transaction.
    if appender.is_full:
        appender.write_pending()
    return len(data)
