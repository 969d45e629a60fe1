"""Garbage collection: which ledgers are gone, and freeing their bytes.

The steps run on the maintenance thread, one after the other with flushes, so nothing else changes
index or logs meanwhile. Order: what the index points to is durable before the index says so, and a
log is unlinked only after no commit refers to it.
"""

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.entry_log import DATA_OFFSET, EntryLogAppender
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.storage.ordered_store import StoreTransaction, iterate

_LEDGERS_PER_COMMIT = 64
_PAGE_ITEMS = 512


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

    async def ids_end(self) -> int | None:
        """Ids from here on were never given; None: not known."""
        ...


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
    missing, is_empty = set(local), True
    async for found in registry.ranges():  # the cluster may have far more ledgers than this bookie
        missing.difference_update(found.ledger_ids)
        is_empty = is_empty and not found.ledger_ids
    if is_empty:
        return []  # an empty tree is more likely a wrong or reset store than an unused cluster
    return [ledger_id for ledger_id in sorted(missing) if not await registry.exists(ledger_id)]


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
        part = ledger_ids[start : start + _LEDGERS_PER_COMMIT]
        records = [index_format.encode_deleted(ledger_id, deleted_at_s) for ledger_id in part]
        records += [
            index_format.encode_creator(ledger_id, creator, disputed=False)
            for ledger_id in part
            if (creator := storage.deleted_creators.get(ledger_id))
        ]
        states = [index_format.ledger_key(ledger_id) for ledger_id in part]
        remove_runs(storage, part, records, states, sync_point="index.drop")
        yield
    removed, freed = yield from remove_unreferenced_logs(storage)
    report.append(GarbageReport(len(ledger_ids), removed, freed))


def remove_runs(
    storage: LedgerStorage,
    ledger_ids: Sequence[int],
    puts: Sequence[tuple[bytes, bytes]],
    deletes: Sequence[bytes] = (),
    *,
    sync_point: str | None,
) -> None:
    """One commit: these ledgers have no entries any more, and what else it shall change."""
    changes = StoreTransaction(list(puts), list(deletes))
    live_delta: dict[int, int] = {}
    for ledger_id in ledger_ids:
        low, high = index_format.ledger_runs(ledger_id)
        for key, value in iterate(storage.index, low, high, _PAGE_ITEMS):
            _, run = index_format.decode_run(key, value)
            changes.deletes.append(index_format.encode_log_run(run.log_id, ledger_id, run.first)[0])
            live_delta[run.log_id] = live_delta.get(run.log_id, 0) - run.bytes
        changes.delete_ranges.append((low, high))
    appender = EntryLogAppender(storage.logs)
    appender.changes(changes, live_delta)
    storage.index.commit(changes, sync_point)
    appender.committed(live_delta)


def remove_unreferenced_logs(storage: LedgerStorage) -> Generator[None, None, tuple[int, int]]:
    """Unlink logs without any live bytes; how many, and their bytes."""
    removable = [
        log_id
        for log_id, state in storage.logs.logs.items()
        if state.live == 0 and state.end > DATA_OFFSET
    ]
    removed = freed = 0
    for log_id in removable:
        state = storage.logs.logs.get(log_id)
        if state is None or state.live > 0:
            continue  # a flush at the yield appended to it
        freed += state.end
        removed += 1
        remove_log(storage, log_id)
        yield
    return removed, freed


def remove_log(storage: LedgerStorage, log_id: int) -> None:
    """Forget, durably, then unlink: the other order could leave the index with a missing log.

    The check at a start removes a file that only the crash kept.
    """
    changes = StoreTransaction(deletes=[index_format.log_key(log_id)])
    number = index_format.encode_number(index_format.NEXT_LOG_KEY, storage.logs.next_id)
    changes.puts.append(number)
    storage.index.commit(changes, "index.drop-log")
    storage.logs.unlink(log_id)
    storage.damaged_logs.pop(log_id, None)


def expire_deleted_steps(storage: LedgerStorage, before_s: int) -> Iterator[None]:
    """Forget deletions older than ``before_s``: their writers are long gone."""
    expired = [ledger_id for ledger_id, at_s in list(storage.deleted.items()) if at_s < before_s]
    if expired:
        deletes = [index_format.deleted_key(ledger_id) for ledger_id in expired]
        deletes += [index_format.creator_key(ledger_id) for ledger_id in expired]
        # Lost by a crash, it is repeated by the next round.
        storage.index.commit(StoreTransaction(deletes=deletes), sync_point=None)
        for ledger_id in expired:
            storage.deleted.pop(ledger_id, None)
            storage.deleted_creators.pop(ledger_id, None)
    yield
