"""A new index, made of what the entry logs hold; or the old one without the logs that are lost.

For an index that is damaged or gone. What it alone knew is lost: fences, passwords, which ledgers
were deleted. So everything found is in limbo, and the whole bookie is. But every entry is answered
that is there: it may be the last copy.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.storage import entry_log as entry_log
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.entry_log import DATA_OFFSET, encode_header, log_path
from magnetar.bookkeeper.bookie.storage.flush import overlapping_runs, replace_runs
from magnetar.bookkeeper.bookie.storage.index_format import LedgerRecord
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun, overlay
from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.packet import PACKET_HEADER, PACKET_HEADER_BYTES
from magnetar.bookkeeper.storage.file_system import File, FileSystem
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction, iterate

_log = logging.getLogger(__name__)

_WINDOW_BYTES = 4 << 20
_RUNS_PER_COMMIT = 1024
_PAGE_RUNS = 256


def begin_rebuild(index: OrderedStore) -> None:
    """Empty the index, and note that data is lost. Until the end of it no start succeeds."""
    note = index_format.encode_limbo(index_format.LIMBO_ENTERING, -1)
    index.commit(StoreTransaction(delete_ranges=[(b"", b"\xff")], puts=[note]), sync_point=None)


def rebuild_index(file_system: FileSystem, index: OrderedStore, config: StorageConfig) -> None:
    """Fill an empty index from the entry logs. Blocks, for as long as it takes to read them.

    REQUIRES: ``begin_rebuild``. Cut short, it is begun again.
    """
    begin_rebuild(index)
    newest = 0
    for name in file_system.list(entry_log.DIRECTORY):
        log_id = entry_log.log_id_of(name)
        if log_id is not None:
            newest = max(newest, log_id)
            _read_log(file_system, index, config, log_id)
    changes = StoreTransaction()
    changes.puts.append(index_format.encode_number(index_format.NEXT_LOG_KEY, newest + 1))
    changes.puts.append(index_format.encode_number(index_format.FORMAT_KEY, index_format.VERSION))
    index.commit(changes, sync_point=None)


@dataclass(slots=True)
class _Batch:
    """Runs of one log that aren't committed yet, free of overlaps."""

    runs: list[tuple[int, LocationRun]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)  # ledger -> end of its runs here


def _read_log(
    file_system: FileSystem, index: OrderedStore, config: StorageConfig, log_id: int
) -> None:
    file = file_system.open(log_path(log_id))
    batch = _Batch()
    try:
        size = file.size()
        if file.pread(DATA_OFFSET, 0) != encode_header(log_id):
            file.pwritev([encode_header(log_id)], 0)
            file.sync("entry-log.data")
        put = index_format.encode_log(log_id, max(size, DATA_OFFSET), 0)
        index.commit(StoreTransaction(puts=[put]), sync_point=None)
        for ledger_id, run in _find_runs(file, config, log_id, size):
            if run.first < batch.ends.get(ledger_id, 0) or len(batch.runs) >= _RUNS_PER_COMMIT:
                _commit(index, batch)
                batch = _Batch()
            batch.runs.append((ledger_id, run))
            batch.ends[ledger_id] = run.end
        _commit(index, batch)
    finally:
        file.close()


def _commit(index: OrderedStore, batch: _Batch) -> None:
    """Add runs; what lay there before, in an older log, is replaced."""
    changes = StoreTransaction()
    delta: dict[int, int] = {}
    for ledger_id, run in batch.runs:
        old = overlapping_runs(index, ledger_id, run.first, run.end)
        replace_runs(ledger_id, old, overlay(old, [run]), changes, delta)
    for ledger_id, end in batch.ends.items():
        key = index_format.ledger_key(ledger_id)
        value = index.get(key)
        last = -1 if value is None else index_format.decode_ledger(key, value)[1].last_entry
        record = LedgerRecord(b"", False, True, -1, max(last, end - 1))
        changes.puts.append(index_format.encode_ledger(ledger_id, record))
    for log_id, change in delta.items():
        key = index_format.log_key(log_id)
        _, end, live_bytes = index_format.decode_log(key, index.get(key) or b"")
        changes.puts.append(index_format.encode_log(log_id, end, live_bytes + change))
    index.commit(changes, sync_point=None)


def _find_runs(
    file: File, config: StorageConfig, log_id: int, size: int
) -> Iterator[tuple[int, LocationRun]]:
    """Runs of consecutive intact entries, as they lie there."""
    ledger_id, sizes, run_bytes = -1, list[int](), 0
    first = start = end = 0
    for offset, found_ledger, entry_id, packet_bytes in _find_entries(file, size):
        record_bytes = packet_bytes + RECORD_HEADER_BYTES
        continues = (
            found_ledger == ledger_id
            and entry_id == first + len(sizes)
            and offset == end
            and len(sizes) < config.run_entries_max
            and run_bytes + record_bytes <= config.run_bytes_max
        )
        if not continues:
            if sizes:
                yield ledger_id, LocationRun(first, log_id, start, sizes)
            ledger_id, first, start, sizes, run_bytes = found_ledger, entry_id, offset, [], 0
        sizes.append(packet_bytes)
        run_bytes += record_bytes
        end = offset + record_bytes
    if sizes:
        yield ledger_id, LocationRun(first, log_id, start, sizes)


def _find_entries(file: File, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Offset, ledger, entry and packet size of each intact record."""
    window, window_at = b"", 0
    tags: dict[bytes, None] = {}
    offset = DATA_OFFSET
    while offset + RECORD_HEADER_BYTES + PACKET_HEADER_BYTES <= size:
        if not window_at <= offset or offset + _WINDOW_BYTES // 2 > window_at + len(window):
            window, window_at = file.pread(_WINDOW_BYTES, offset), offset
        packet = _packet_at(file, window, window_at, offset)
        if packet is None:
            offset = _resync(file, tags, offset + 1, size)
            window = b""
            continue
        tags[_tag_at(window, offset - window_at)] = None
        ledger_id, entry_id = PACKET_HEADER.unpack_from(packet)[:2]
        yield offset, ledger_id, entry_id, len(packet)
        offset += RECORD_HEADER_BYTES + len(packet)


def _tag_at(data: bytes, at: int) -> bytes:
    return data[at + 8 : at + RECORD_HEADER_BYTES]


def _packet_at(file: File, window: bytes, window_at: int, offset: int) -> bytes | None:
    """The packet of the record at ``offset``; None: there is no intact one."""
    at = offset - window_at
    record = record_format.check_record(window[at : at + 64], 0)
    if record is None or record[0] != record_format.ENTRY or record[1] < PACKET_HEADER_BYTES:
        return None
    begin = at + RECORD_HEADER_BYTES
    packet = window[begin : begin + record[1]]
    if len(packet) < record[1]:  # larger than the window
        packet = file.pread(record[1], offset + RECORD_HEADER_BYTES)
    digest = PACKET_HEADER.unpack_from(packet)[4]
    covered = PACKET_HEADER_BYTES - 4
    sound = crc32c(memoryview(packet)[PACKET_HEADER_BYTES:], crc32c(packet[:covered])) == digest
    return packet if sound and len(packet) == record[1] else None


def _resync(file: File, tags: dict[bytes, None], offset: int, size: int) -> int:
    """Where the next record begins: it carries a tag that was seen in this log.

    Going by its shape would take bytes for a record that a client sent as a payload.
    """
    _log.error("an entry log is unreadable at %d", offset - 1)
    while offset < size:
        window = file.pread(_WINDOW_BYTES, offset)
        places = [at - 8 for tag in tags if (at := window.find(tag, 8)) >= 0]
        if places:
            return offset + min(places)
        offset += max(1, len(window) - RECORD_HEADER_BYTES)
    return size


def forget_lost_logs(file_system: FileSystem, index: OrderedStore) -> int:
    """Let the index name no bytes that aren't there; how many logs have lost some. Blocks.

    The index knows what was there. So only the ledgers that lost something go into limbo, in the
    very commit that forgets their entries: there is no moment at which one of them would be denied.

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
