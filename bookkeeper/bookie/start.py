"""Opening the storage core: check what is on disk, replay the journal, begin a new segment."""

from __future__ import annotations

from collections.abc import Callable

from bookkeeper.bookie import entry_log, index_format, journal_format, record_format
from bookkeeper.bookie.config import StorageConfig
from bookkeeper.bookie.entry_log import EntryLogs, LogState
from bookkeeper.bookie.flush import flush_steps
from bookkeeper.bookie.journal import JournalWriter, retire_segments
from bookkeeper.bookie.journal_format import Mark, SegmentHeader
from bookkeeper.bookie.journal_reader import JournalRecord, list_segments, read_journal
from bookkeeper.bookie.ledger_state import LedgerState
from bookkeeper.bookie.ledger_storage import LedgerStorage
from bookkeeper.bookie.write_cache import JOINED, Chunk
from bookkeeper.errors import CorruptFileError, MissingFileError
from bookkeeper.packet import PACKET_HEADER
from bookkeeper.storage.file_system import FileSystem
from bookkeeper.storage.ordered_store import Changes, OrderedStore, iterate


def open_storage(
    file_system: FileSystem,
    index: OrderedStore,
    config: StorageConfig,
    new_nonce: Callable[[], int],
) -> LedgerStorage:
    """Bring the storage to the state of the last acknowledged record. Blocks.

    Raises:
        CorruptFileError, MissingFileError: acknowledged bytes are damaged or gone; see
            ``forget_journal`` for starting all the same.
        OSError: a disk failed.
    """
    file_system.make_directory(journal_format.DIRECTORY)
    file_system.make_directory(entry_log.DIRECTORY)
    if index.get(index_format.FORMAT_KEY) is None:
        _format(file_system, index)
    storage = _load(file_system, index, config)
    mark_value = index.get(index_format.MARK_KEY)
    mark = index_format.decode_mark(mark_value) if mark_value is not None else None
    _find_spares(file_system, storage, config)
    replay = _Replay(storage)
    for record in read_journal(file_system, mark):
        replay.apply(record)
    replay.finish()
    _flush_all(storage)
    _begin_journal(storage, config, mark, new_nonce)
    return storage


def forget_journal(file_system: FileSystem, index: OrderedStore) -> None:
    """Give up what the journal may still hold, so that ``open_storage`` succeeds.

    Every ledger that this bookie may have written to must be put into limbo afterwards, before the
    bookie answers anything.
    """
    newest = max(list_segments(file_system), default=0)
    mark_value = index.get(index_format.MARK_KEY)
    if mark_value is not None:
        newest = max(newest, index_format.decode_mark(mark_value)[0])
    mark = newest + 1, 0
    header = SegmentHeader(mark[0], record_format.make_tag(mark[0], 0), 4096, 0)
    for segment_id in list_segments(file_system):
        file_system.remove(journal_format.segment_path(segment_id))
    writer = JournalWriter(file_system, StorageConfig())
    writer.create_segment(header)
    writer.close()
    mark = mark[0], header.alignment
    index.commit(Changes(puts=[index_format.encode_mark(mark)]), "index.mark")


def _format(file_system: FileSystem, index: OrderedStore) -> None:
    """First start in an empty directory.

    Raises:
        MissingFileError: the directory is not empty: an index was here and is gone.
    """
    if list_segments(file_system) or file_system.list(entry_log.DIRECTORY):
        raise MissingFileError("index: journal or entry logs are there, but the index is empty")
    changes = Changes()
    changes.puts.append(index_format.encode_number(index_format.FORMAT_KEY, index_format.VERSION))
    index.commit(changes, "index.format")


def _load(file_system: FileSystem, index: OrderedStore, config: StorageConfig) -> LedgerStorage:
    """Everything the index knows, checked against the entry logs."""
    value = index.get(index_format.FORMAT_KEY)
    version = index_format.decode_number(index_format.FORMAT_KEY, value or b"")
    if version != index_format.VERSION:
        raise CorruptFileError("index", 0, f"version {version}, this is {index_format.VERSION}")
    logs: dict[int, LogState] = {}
    for key, value in iterate(index, *index_format.LOGS):
        log_id, end, live = index_format.decode_log(key, value)
        logs[log_id] = LogState(end, live)
    value = index.get(index_format.NEXT_LOG_KEY)
    next_id = 1 if value is None else index_format.decode_number(index_format.NEXT_LOG_KEY, value)
    entry_logs = EntryLogs(file_system, config, next_id, logs)
    entry_logs.check()
    storage = LedgerStorage(
        file_system, index, config, entry_logs, JournalWriter(file_system, config)
    )
    for key, value in iterate(index, *index_format.LEDGERS):
        ledger_id, record = index_format.decode_ledger(key, value)
        storage.ledgers[ledger_id] = LedgerState.from_record(ledger_id, record)
    for key, value in iterate(index, *index_format.DELETED):
        ledger_id, deleted_at_s = index_format.decode_deleted(key, value)
        storage.deleted[ledger_id] = deleted_at_s
    return storage


def _find_spares(file_system: FileSystem, storage: LedgerStorage, config: StorageConfig) -> None:
    for name in file_system.list(journal_format.DIRECTORY):
        if name.endswith(".spare"):
            path = f"{journal_format.DIRECTORY}/{name}"
            if len(storage.writer.spares) < config.journal_spares_max:
                storage.writer.spares.append(path)
            else:
                file_system.remove(path)


class _Replay:
    """Applies journal records to a storage; consecutive entries become one chunk."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._data = b""  # the group that the pending chunk lies in
        self._start = self._end = 0
        self._ledger_id = self._first = -1
        self._sizes: list[int] = []

    def apply(self, record: JournalRecord) -> None:
        if record.kind == record_format.ENTRY:
            self._apply_entry(record)
            return
        self.finish()
        body = record.body
        if record.kind == record_format.LEDGER_KEY:
            (ledger_id,) = journal_format.LEDGER_ID.unpack_from(body)
            self._state(ledger_id, body[journal_format.LEDGER_ID.size :])
        elif record.kind == record_format.FENCE:
            (ledger_id,) = journal_format.LEDGER_ID.unpack(body)
            if (state := self._state(ledger_id)) is not None:
                state.fenced = state.fence_durable = True
        elif record.kind == record_format.EXPLICIT_LAC:
            ledger_id, lac = journal_format.EXPLICIT_LAC_BODY.unpack(body)
            if (state := self._state(ledger_id)) is not None:
                state.explicit_lac = max(state.explicit_lac, lac)

    def finish(self) -> None:
        """Put the pending chunk into the cache."""
        sizes = self._sizes
        if not sizes:
            return
        self._sizes = []
        state = self._state(self._ledger_id)
        if state is None:
            return
        data = self._data[self._start : self._end]
        chunk = Chunk(self._first, sizes, [data], len(data), len(sizes), JOINED)
        self._storage.active.add(self._ledger_id, chunk)
        state.last_entry = max(state.last_entry, chunk.end - 1)

    def _apply_entry(self, record: JournalRecord) -> None:
        body = record.start + record_format.RECORD_HEADER_BYTES
        header = PACKET_HEADER.unpack_from(record.data, body)
        ledger_id, entry_id = header[0], header[1]
        continues = (
            self._sizes
            and record.data is self._data
            and record.start == self._end
            and ledger_id == self._ledger_id
            and entry_id == self._first + len(self._sizes)
            and len(self._sizes) < self._storage.config.run_entries_max
            and record.end - self._start <= self._storage.config.run_bytes_max
        )
        if not continues:
            self.finish()
            self._data, self._start = record.data, record.start
            self._ledger_id, self._first = ledger_id, entry_id
        self._sizes.append(record.end - body)
        self._end = record.end

    def _state(self, ledger_id: int, master_key: bytes | None = None) -> LedgerState | None:
        """The ledger's state, changed by replay; None: it was deleted meanwhile."""
        storage = self._storage
        if ledger_id in storage.deleted:
            return None
        state = storage.ledgers.get(ledger_id)
        if state is None:
            if master_key is None:
                # A ledger's key is journaled before its first entry, and is in the index once the
                # mark has passed it: this ledger was being dropped.
                return None
            state = storage.ledgers[ledger_id] = LedgerState(ledger_id, master_key)
        storage.mark_dirty(state)
        return state


def _flush_all(storage: LedgerStorage) -> None:
    """Flush what was replayed; the mark stays, because its new segment does not exist yet."""
    if storage.has_unflushed:
        job = storage.begin_flush()
        for _ in flush_steps(storage, job):
            pass
        storage.end_flush()


def _begin_journal(
    storage: LedgerStorage, config: StorageConfig, mark: Mark | None, new_nonce: Callable[[], int]
) -> None:
    """Create the segment for new records, then let the mark point to it.

    In this order, so that a marked segment always exists: if it is missing, it was lost.
    """
    file_system = storage.file_system
    segment_id = 1 + max(list_segments(file_system), default=mark[0] if mark is not None else 0)
    tag = record_format.make_tag(segment_id, new_nonce())
    header = SegmentHeader(segment_id, tag, config.journal_alignment_bytes, 0)
    storage.writer.create_segment(header)
    new_mark = segment_id, header.alignment
    storage.index.commit(Changes(puts=[index_format.encode_mark(new_mark)]), "index.mark")
    retire_segments(file_system, new_mark, storage.writer.spares, config.journal_spares_max)
    storage.start_journal(header, new_nonce)
