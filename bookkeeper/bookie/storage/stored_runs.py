"""Entries that another process of this machine reads from entry logs by itself.

The bookie says where they lie; who reads checks every record, as the bookie would. So what was
compacted away meanwhile is missed, and never taken for something else.
"""

import asyncio
import functools
from concurrent.futures import Executor

from magnetar.bookkeeper.bookie.storage.entry_log import log_path
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie_client import EntryFiles
from magnetar.bookkeeper.errors import StorageError
from magnetar.bookkeeper.transport import StoredRun


class StoredRuns(EntryFiles):
    """Where entries lie; loop only."""

    def __init__(self, storage: LedgerStorage, readers: Executor) -> None:
        self._storage, self._readers = storage, readers

    async def locate(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, creator: int = 0
    ) -> list[StoredRun]:
        storage = self._storage
        state = storage.ledgers.get(ledger_id)
        if state is None or not state.is_of(creator):
            return []
        if storage.read_cached(ledger_id, first, 1, 1):  # perhaps only there
            return []
        look = functools.partial(locate, storage, ledger_id, first, last, bytes_max)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, look)
        except (StorageError, OSError, RuntimeError):  # a read tells; RuntimeError: it is closing
            return []


def locate(
    storage: LedgerStorage, ledger_id: int, first: int, last: int, bytes_max: int
) -> list[StoredRun]:
    """Where the index says that entries lie (any thread)."""
    found: list[StoredRun] = []
    path, log_id = None, -1
    while first <= last and (run := storage.find_run(ledger_id, first)) is not None:
        if run.log_id != log_id:
            path, log_id = storage.file_system.absolute(log_path(run.log_id)), run.log_id
        end = min(last + 1, run.end)
        if 0 in (wanted := run.sizes[first - run.first : end - run.first]):
            end = first + list(wanted).index(0)
        part = run.part(first, end)
        if path is None or part is None or (found and part.bytes > bytes_max):
            break
        bytes_max -= part.bytes
        is_cached = storage.logs.is_cached(part.log_id, part.offset)
        found.append(StoredRun(ledger_id, first, path, part.offset, list(part.sizes), is_cached))
        first = end
    return found
