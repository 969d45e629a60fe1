"""Opening the storage core: check what is on disk, replay the journal, begin a new segment."""

from collections.abc import Callable, Sequence

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.duplicate_adds import DuplicateCheck
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal import JournalWriter, retire_segments
from magnetar.bookkeeper.bookie.journal.journal_format import Mark, SegmentHeader
from magnetar.bookkeeper.bookie.journal.journal_reader import (
    JournalRecord,
    list_segments,
    read_journal,
    salvage_journal,
)
from magnetar.bookkeeper.bookie.metadata_commit_check import keep_mark, load_mark
from magnetar.bookkeeper.bookie.storage import entry_log as entry_log
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs, EntryLogState
from magnetar.bookkeeper.bookie.storage.flush import flush_steps
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import LedgerDescriptor
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.write_cache import JOINED, WriteCacheChunk
from magnetar.bookkeeper.errors import BookieClosedError, CorruptFileError, MissingFileError
from magnetar.bookkeeper.packet import PACKET_HEADER
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction, iterate
from magnetar.bookkeeper.transport import AddRequest


def open_storage(
    file_system: FileSystem,
    index: OrderedStore,
    config: StorageConfig,
    new_nonce: Callable[[], int],
    *,
    damaged: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> LedgerStorage:
    """Bring the storage to the state of the last acknowledged record. Blocks.

    Args:
        is_stopped: asked between steps; True: end now. Nothing is lost, the next start does it all.
        damaged: take what can be read. It is noted durably before, and every ledger that this
            bookie may have written to must be put into limbo before it answers anything.

    Raises:
        CorruptFileError, MissingFileError: acknowledged bytes are damaged or gone.
        BookieClosedError: stopped.
        OSError: a disk failed.
    """
    for number in range(config.journals):
        file_system.make_directory(journal_format.journal_directory(number))
    file_system.make_directory(entry_log.DIRECTORY)
    if index.get(index_format.FORMAT_KEY) is None:
        _format(file_system, index, config)
    if damaged:
        _note_loss(index)
    storage = _load(file_system, index, config)
    marks = [_read_mark(index, number) for number in range(config.journals)]
    if index.get(index_format.mark_key(config.journals)) is not None:
        raise MissingFileError(f"there are more than {config.journals} journals")
    replay = _Replay(storage, damaged=damaged)
    read = salvage_journal if damaged else read_journal
    for writer, mark in zip(storage.writers, marks, strict=True):
        _find_spares(file_system, writer, config)
        for record in read(file_system, mark, writer.directory):
            _check(is_stopped)
            replay.apply(record)
        replay.finish()
    _flush_all(storage, is_stopped)
    _begin_journals(storage, marks, new_nonce)
    return storage


def _read_mark(index: OrderedStore, number: int) -> Mark | None:
    value = index.get(index_format.mark_key(number))
    return None if value is None else index_format.decode_mark(value, number)


def _note_loss(index: OrderedStore) -> None:
    """From now on no start succeeds as if nothing had happened."""
    value = index.get(index_format.LIMBO_KEY)
    last = index_format.decode_limbo(value)[1] if value is not None else -1
    put = index_format.encode_limbo(index_format.LIMBO_ENTERING, last)
    # Nothing is given up before the commit of the new marks, which makes this one durable, too.
    index.commit(StoreTransaction(puts=[put]), sync_point=None)


def _format(file_system: FileSystem, index: OrderedStore, config: StorageConfig) -> None:
    """First start in an empty directory.

    Raises:
        MissingFileError: the directory is not empty: an index was here and is gone.
    """
    directories = [journal_format.journal_directory(each) for each in range(config.journals)]
    has_segments = any(list_segments(file_system, directory) for directory in directories)
    if has_segments or file_system.list(entry_log.DIRECTORY):
        raise MissingFileError("index: journal or entry logs are there, but the index is empty")
    changes = StoreTransaction()
    changes.puts.append(index_format.encode_number(index_format.FORMAT_KEY, index_format.VERSION))
    index.commit(changes, "index.format")


def _load(file_system: FileSystem, index: OrderedStore, config: StorageConfig) -> LedgerStorage:
    """Everything the index knows, checked against the entry logs."""
    value = index.get(index_format.FORMAT_KEY)
    version = index_format.decode_number(index_format.FORMAT_KEY, value or b"")
    if version != index_format.VERSION:
        raise CorruptFileError("index", 0, f"version {version}, this is {index_format.VERSION}")
    logs: dict[int, EntryLogState] = {}
    for key, value in iterate(index, *index_format.LOGS):
        log_id, end, live = index_format.decode_log(key, value)
        logs[log_id] = EntryLogState(end, live)
    value = index.get(index_format.NEXT_LOG_KEY)
    next_id = 1 if value is None else index_format.decode_number(index_format.NEXT_LOG_KEY, value)
    entry_logs = EntryLogs(file_system, config, next_id, logs)
    entry_logs.check()
    writers = [
        JournalWriter(file_system, config, journal_format.journal_directory(number))
        for number in range(config.journals)
    ]
    storage = LedgerStorage(file_system, index, config, entry_logs, writers)
    value = index.get(index_format.LIMBO_KEY)
    if value is not None:
        storage.limbo_phase, storage.limbo_last = index_format.decode_limbo(value)
    load_mark(storage, index)
    value = index.get(index_format.LOST_KEY)
    if value is not None:
        storage.lost_below = index_format.decode_number(index_format.LOST_KEY, value)
    for key, value in iterate(index, *index_format.LEDGERS):
        ledger_id, record = index_format.decode_ledger(key, value)
        storage.ledgers[ledger_id] = LedgerDescriptor.from_record(ledger_id, record)
    for key, value in iterate(index, *index_format.DELETED):
        ledger_id, deleted_at_s = index_format.decode_deleted(key, value)
        storage.deleted[ledger_id] = deleted_at_s
    for key, value in iterate(index, *index_format.CREATORS):
        ledger_id, creator, disputed = index_format.decode_creator(key, value)
        if (state := storage.ledgers.get(ledger_id)) is not None:
            state.creator, state.creator_stored = creator, disputed
            if disputed:
                storage.set_disputed(state)
        elif ledger_id in storage.deleted:
            storage.deleted_creators[ledger_id] = creator
    return storage


def _find_spares(file_system: FileSystem, writer: JournalWriter, config: StorageConfig) -> None:
    for name in file_system.list(writer.directory):
        if name.endswith(".spare"):
            path = f"{writer.directory}/{name}"
            if len(writer.spares) < config.journal_spares_max:
                writer.spares.append(path)
            else:
                file_system.remove(path)


class _Replay:
    """Applies journal records to a storage; consecutive entries become one chunk."""

    def __init__(self, storage: LedgerStorage, *, damaged: bool) -> None:
        self._storage = storage
        self._damaged = damaged  # the record that created a ledger may be among what is lost
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
            ledger_id, lac, digest = journal_format.decode_explicit_lac(body)
            if (state := self._state(ledger_id)) is not None:
                state.raise_lac(lac, digest)
        elif record.kind == record_format.METADATA_MARK:
            keep_mark(self._storage, body)
        elif record.kind == record_format.LEDGER_CREATOR:
            ledger_id, creator, flags = journal_format.CREATOR_BODY.unpack(body)
            if (state := self._state(ledger_id)) is not None:
                state.creator = state.creator or creator
                if flags & journal_format.CREATOR_DISPUTED:
                    self._storage.set_disputed(state)

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
        chunk = WriteCacheChunk(self._first, sizes, [data], len(data), len(sizes), JOINED)
        chunks = [chunk] if self._first > state.last_entry else self._unrefused(chunk)
        for each in chunks:
            self._storage.active.add(self._ledger_id, each)
            state.last_entry = max(state.last_entry, each.end - 1)

    def _unrefused(self, chunk: WriteCacheChunk) -> list[WriteCacheChunk]:
        """What may stand beside the entries that are here: see ``re_adds.py``.

        A journal of a program from before that rule may hold two versions of an entry.
        """
        kept: list[WriteCacheChunk] = []
        for entry_id in range(chunk.first, chunk.end):
            single = chunk.single(entry_id)
            (packet,) = single.packets(entry_id, 1, 1, at_least_one=True)
            request = AddRequest(
                *(self._ledger_id, b"", [entry_id], [bytes(packet)], [b""], len(packet)),
                *(True, lambda _request, _code: None),
            )
            if DuplicateCheck(self._storage, request).run() != codes.ENTRY_DIFFERS:
                kept.append(single)
        return kept

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

    def _state(self, ledger_id: int, master_key: bytes | None = None) -> LedgerDescriptor | None:
        """The ledger's state, changed by replay; None: it was deleted meanwhile."""
        storage = self._storage
        if ledger_id in storage.deleted:
            return None
        state = storage.ledgers.get(ledger_id)
        if state is None:
            if master_key is None and not self._damaged:
                # A ledger's key is journaled before its first entry, and is in the index once the
                # mark has passed it: this ledger was being dropped.
                return None
            state = storage.ledgers[ledger_id] = LedgerDescriptor(ledger_id, master_key or b"")
            state.limbo = self._damaged or storage.is_unknown(
                ledger_id
            )  # rather too often, see _create there
            state.fence_unknown = ledger_id < storage.lost_below
        storage.mark_dirty(state)
        return state


def _check(is_stopped: Callable[[], bool]) -> None:
    if is_stopped():
        raise BookieClosedError("stopped while its journal was replayed")


def _flush_all(storage: LedgerStorage, is_stopped: Callable[[], bool]) -> None:
    """Flush what was replayed; the mark stays, because its new segment does not exist yet."""
    if storage.has_unflushed:
        job = storage.begin_flush()
        for _ in flush_steps(storage, job):
            _check(is_stopped)
        storage.end_flush()


def _begin_journals(
    storage: LedgerStorage, marks: Sequence[Mark | None], new_nonce: Callable[[], int]
) -> None:
    """Create the segments for new records, then let the marks point to them.

    In this order, so that a marked segment always exists: if it is missing, it was lost.
    """
    headers: list[SegmentHeader] = []
    changes = StoreTransaction()
    for number, (writer, mark) in enumerate(zip(storage.writers, marks, strict=True)):
        header = _begin_segment(storage, writer, mark, new_nonce)
        headers.append(header)
        new_mark = header.segment_id, header.alignment
        changes.puts.append(index_format.encode_mark(new_mark, number))
    if body := storage.metadata_mark():
        changes.puts.append(index_format.seal(index_format.METADATA_KEY, body))
    storage.index.commit(changes, "index.mark")
    spares_max = storage.config.journal_spares_max
    for writer, header in zip(storage.writers, headers, strict=True):
        mark = header.segment_id, header.alignment
        retire_segments(storage.file_system, mark, writer.spares, spares_max, writer.directory)
    storage.start_journals(headers, new_nonce)


def _begin_segment(
    storage: LedgerStorage, writer: JournalWriter, mark: Mark | None, new_nonce: Callable[[], int]
) -> SegmentHeader:
    known = list_segments(storage.file_system, writer.directory)
    segment_id = 1 + max(*known, 0, mark[0] if mark is not None else 0)
    tag = record_format.make_tag(segment_id, new_nonce())
    header = SegmentHeader(segment_id, tag, storage.config.journal_alignment_bytes, 0)
    writer.create_segment(header)
    return header
