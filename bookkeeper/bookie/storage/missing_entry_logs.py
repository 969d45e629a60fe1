"""Entry logs that are gone, short or not themselves: forget what was in them, and say so.

The index knows what was there. So only the ledgers that lost something go into limbo, in the very
commit that forgets their entries: there is no moment at which one of them would be denied.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.entry_log import DATA_OFFSET, encode_header, log_path
from magnetar.bookkeeper.bookie.storage.flush import replace_runs
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction, iterate

_log = logging.getLogger(__name__)

_PAGE_RUNS = 256


def forget_lost_logs(file_system: FileSystem, index: OrderedStore) -> int:
    """Let the index name no bytes that aren't there; how many logs have lost some. Blocks.

    Raises:
        CorruptFileError: the index is damaged, too.
        OSError: the disk failed.
    """
    lost = 0
    for key, value in iterate(index, *index_format.LOGS):
        log_id, end, live = index_format.decode_log(key, value)
        size = _sound_bytes(file_system, log_id)
        if size < end:
            _log.error("%s: %d of %d bytes are there", log_path(log_id), size, end)
            _forget(index, log_id, size, live)
            lost += 1
    return lost


def _sound_bytes(file_system: FileSystem, log_id: int) -> int:
    """How long the log is; 0: it is gone. A damaged header is written again.

    The header only says which log it is. So does every record, of itself.
    """
    path = log_path(log_id)
    if not file_system.exists(path):
        return 0
    file = file_system.open(path)
    try:
        size = file.size()
        if size >= DATA_OFFSET and file.pread(DATA_OFFSET, 0) != encode_header(log_id):
            _log.error("%s: its header is damaged, and is written again", path)
            file.pwritev([encode_header(log_id)], 0)
            file.sync("entry-log.data")
        return size
    finally:
        file.close()


def _forget(index: OrderedStore, log_id: int, size: int, live: int) -> None:
    low, high = index_format.log_runs(log_id)
    while page := index.range(low, high, _PAGE_RUNS):
        low = page[-1][0] + b"\0"
        changes = StoreTransaction()
        live_delta: dict[int, int] = {}
        for key, _ in page:
            _forget_run(index, key, size, changes, live_delta)
        live += live_delta.get(log_id, 0)
        changes.puts.append(index_format.encode_log(log_id, max(size, DATA_OFFSET), live))
        value = index.get(index_format.LIMBO_KEY)
        if value is None:
            # No ledger of which nothing is known is concerned.
            changes.puts.append(index_format.encode_limbo(index_format.LIMBO_CHECKING, -1))
        index.commit(changes, sync_point=None)  # undone by a crash, it is done again
    if size < DATA_OFFSET:
        index.commit(StoreTransaction(deletes=[index_format.log_key(log_id)]), sync_point=None)


def _forget_run(
    index: OrderedStore,
    key: bytes,
    size: int,
    changes: StoreTransaction,
    live_delta: dict[int, int],
) -> None:
    log_id, ledger_id, first = index_format.decode_log_run(key)
    value = index.get(index_format.run_key(ledger_id, first))
    if value is None:
        changes.deletes.append(key)
        return
    _, run = index_format.decode_run(index_format.run_key(ledger_id, first), value)
    if run.log_id != log_id or run.offset + run.bytes <= size:
        return
    kept = run.part(first, first + _sound_ids(run, size))
    replace_runs(ledger_id, [run], [] if kept is None else [kept], changes, live_delta)
    _put_into_limbo(index, ledger_id, changes)


def _sound_ids(run: LocationRun, size: int) -> int:
    """How many ids of a run have all their bytes before ``size``."""
    offset = run.offset
    for count, packet_bytes in enumerate(run.sizes):
        offset += packet_bytes + RECORD_HEADER_BYTES if packet_bytes else 0
        if offset > size:
            return count
    return len(run.sizes)


def _put_into_limbo(index: OrderedStore, ledger_id: int, changes: StoreTransaction) -> None:
    key = index_format.ledger_key(ledger_id)
    value = index.get(key)
    if value is None:
        raise CorruptFileError("index", 0, f"ledger {ledger_id} has entries and no record")
    _, record = index_format.decode_ledger(key, value)
    changes.puts.append(index_format.encode_ledger(ledger_id, replace(record, limbo=True)))
