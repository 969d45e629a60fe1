"""Checkpoint: move one half of the write cache to entry logs and index, then free the journal.

Generators of steps, run by the maintenance thread to their end; every ``yield`` is a place where
the simulation may do something else (or cut the power). Order: entry logs durable -> index commit
(runs, ledgers, logs and the mark in one transaction) -> old journal segments removed.
"""

import contextlib
from collections.abc import Iterator

from magnetar.bookkeeper.bookie.journal.journal import retire_segments
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogAppender
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import LedgerDescriptor
from magnetar.bookkeeper.bookie.storage.ledger_storage import FlushJob, LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun, group_chunks, overlay
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction


def flush_steps(storage: LedgerStorage, job: FlushJob) -> Iterator[None]:
    """Run one flush.

    Raises:
        OSError: ENOSPC may be retried with the same job later; anything else is final.
    """
    appender = EntryLogAppender(storage.logs)
    changes = StoreTransaction()
    live_delta: dict[int, int] = {}
    flushed_last: dict[LedgerDescriptor, int] = {}
    creators: dict[LedgerDescriptor, bool] = {}
    try:
        for ledger_id in sorted(job.half.ledgers):
            state = job.ledgers.get(ledger_id)
            if state is None or ledger_id in storage.deleted:
                continue  # the ledger was dropped; writing it would bring it back
            yield from _write_ledger(storage, job, state, appender, changes, live_delta)
            flushed_last[state] = max(state.flushed_last, _last_entry(job, ledger_id))
        appender.finish()
    except OSError:
        appender.abandon()
        raise
    yield
    for state in job.ledgers.values():
        if state.ledger_id in storage.deleted and state not in flushed_last:
            continue  # dropped; had runs of it been written, its record would belong to them
        record = state.to_record(flushed_last.get(state, state.flushed_last))
        changes.puts.append(index_format.encode_ledger(state.ledger_id, record))
        disputed = state.disputed
        if (state.creator or disputed) and state.creator_stored is not disputed:
            creators[state] = disputed
            changes.puts.append(
                index_format.encode_creator(state.ledger_id, state.creator, disputed=disputed)
            )
    appender.changes(changes, live_delta)
    for number, mark in enumerate(job.marks):
        changes.puts.append(index_format.encode_mark(mark, number))
    if job.metadata_mark:
        changes.puts.append(index_format.seal(index_format.METADATA_KEY, job.metadata_mark))
    storage.index.commit(changes, "index.flush")
    appender.committed(live_delta)
    for state, last in flushed_last.items():
        state.flushed_last = last
    for state, disputed in creators.items():
        state.creator_stored = disputed
    yield
    spares_max = storage.config.journal_spares_max
    for writer, mark in zip(storage.writers, job.marks, strict=False):
        retire_segments(storage.file_system, mark, writer.spares, spares_max, writer.directory)


def _last_entry(job: FlushJob, ledger_id: int) -> int:
    entries = job.half.ledgers[ledger_id]
    return max(chunk.end for chunk in (*entries.chunks, *entries.late)) - 1


def _write_ledger(
    storage: LedgerStorage,
    job: FlushJob,
    state: LedgerDescriptor,
    appender: EntryLogAppender,
    changes: StoreTransaction,
    live_delta: dict[int, int],
) -> Iterator[None]:
    """Append a ledger's chunks and collect the index changes."""
    config = storage.config
    chunks = job.half.ledgers[state.ledger_id].ordered()
    runs: list[LocationRun] = []
    for first, sizes, group in group_chunks(chunks, config.run_entries_max, config.run_bytes_max):
        size = sum(chunk.bytes for chunk in group)
        buffers = [buffer for chunk in group for buffer in chunk.buffers]
        log_id, offset = appender.append(buffers, size)
        runs.append(LocationRun(first, log_id, offset, sizes))
        if appender.is_full:
            appender.write_pending()
            yield
    old: list[LocationRun] = []
    if chunks[0].first <= state.flushed_last:
        # Entries that are in the index already (re-sent, or rewritten by a recovery): the new copy
        # wins, and old runs must not hide behind it.
        old = overlapping_runs(storage.index, state.ledger_id, chunks[0].first, chunks[-1].end)
    replace_runs(state.ledger_id, old, overlay(old, runs) if old else runs, changes, live_delta)


def overlapping_runs(
    index: OrderedStore, ledger_id: int, first: int, end: int
) -> list[LocationRun]:
    """Runs in the index that share ids with ``first <= id < end``."""
    low, _ = index_format.ledger_runs(ledger_id)
    key = index_format.run_key(ledger_id, first)
    before = index.floor(key)
    if before is not None and before[0] >= low:
        key = before[0]
    items = index.range(key, index_format.run_key(ledger_id, end))
    runs = []
    for item in items:
        with contextlib.suppress(CorruptFileError):  # stays as it is: reads of it say so
            runs.append(index_format.decode_run(*item)[1])
    return [run for run in runs if run.end > first]


def replace_runs(
    ledger_id: int,
    old: list[LocationRun],
    new: list[LocationRun],
    changes: StoreTransaction,
    live_delta: dict[int, int],
) -> None:
    """Index changes that turn ``old`` runs into ``new`` ones, and what that does to live bytes."""
    for run in old:
        if run in new:
            continue
        changes.deletes.append(index_format.run_key(ledger_id, run.first))
        log_key, _ = index_format.encode_log_run(run.log_id, ledger_id, run.first)
        changes.deletes.append(log_key)
        live_delta[run.log_id] = live_delta.get(run.log_id, 0) - run.bytes
    for run in new:
        if run in old:
            continue
        changes.puts.append(index_format.encode_run(ledger_id, run))
        changes.puts.append(index_format.encode_log_run(run.log_id, ledger_id, run.first))
        live_delta[run.log_id] = live_delta.get(run.log_id, 0) + run.bytes
