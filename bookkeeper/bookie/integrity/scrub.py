"""Looking for bit rot: every record that the index points to is read and checked.

Steps for the maintenance thread, between which flushes and all else go on. Nothing is repaired here
(``repair.py``). A pass goes through the entry logs by id, and in each through the runs that the
index has in it; what is written meanwhile lies in newer logs and is the next pass's.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs, log_path
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.bookie.storage.record_format import (
    RECORD_HEADER_BYTES,
    count_intact_entries,
)
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.storage.file_system import File
from magnetar.bookkeeper.storage.ordered_store import StoreTransaction, iterate

_PAGE_RUNS = 16
_CHECKED_PER_STEP = 1000


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Entries ``first <= id < end`` of a ledger, of which nothing sound is on this disk.

    Attributes:
        offset: of the first one's record in ``path``.
    """

    ledger_id: int
    first: int
    end: int
    path: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path} at offset {self.offset}: ledger {self.ledger_id}, "
            f"entries {self.first}..{self.end - 1}: {self.reason}"
        )


@dataclass(slots=True)
class ScrubStep:
    """A piece of a pass: where it begins, and what it found.

    Attributes:
        log_id: the log to go on in; beyond ``last_log`` the pass is over.
        key: the index key to go on from; b"": the beginning of the log.
        last_log: the last log of this pass.
    """

    log_id: int
    key: bytes
    last_log: int
    bytes: int = 0
    entries: int = 0
    damages: list[DamagedRange] = field(default_factory=list)


def scrub_steps(storage: LedgerStorage, found: ScrubStep, bytes_max: int) -> Iterator[None]:
    """Check runs worth ``bytes_max`` from where ``found`` stands; it moves on."""
    while found.bytes < bytes_max and found.log_id <= found.last_log:
        low, high = index_format.log_runs(found.log_id)
        page = storage.index.range(found.key or low, high, _PAGE_RUNS)
        for key, value in page:
            _scrub_run(storage, found, key, value)
            found.key = key + b"\0"
            yield
            if found.bytes >= bytes_max:
                return
        if len(page) < _PAGE_RUNS:
            _next_log(storage, found)
            yield


def _next_log(storage: LedgerStorage, found: ScrubStep) -> None:
    newer = [id_ for id_ in list(storage.logs.logs) if id_ > found.log_id]
    found.log_id, found.key = min(newer, default=found.last_log + 1), b""


def _scrub_run(storage: LedgerStorage, found: ScrubStep, key: bytes, mark: bytes) -> None:
    _, ledger_id, first = index_format.decode_log_run(key)
    value = storage.index.get(index_format.run_key(ledger_id, first))
    run: LocationRun | None = None
    if value is not None:
        try:
            _, run = index_format.decode_run(index_format.run_key(ledger_id, first), value)
        except CorruptFileError as error:
            end = _end_of_unreadable(storage, ledger_id, first)
            damage = DamagedRange(ledger_id, first, end, error.path, error.offset, error.reason)
            found.damages.append(damage)
            return
    if run is None or run.log_id != found.log_id:
        _drop_stale(storage, key, mark)
        return
    found.bytes += run.bytes
    found.entries += len(run.sizes) - list(run.sizes).count(0)
    found.damages += find_damage(storage.logs, ledger_id, run)


def _drop_stale(storage: LedgerStorage, key: bytes, value: bytes) -> None:
    """Remove what a run left whose value couldn't be read, and that was written again elsewhere.

    Compaction would take it for a run of this log. What the run counts for among the log's live
    bytes are unknown, so the log is never freed: too few bytes would cost entries.
    """
    with contextlib.suppress(CorruptFileError):  # a damaged key: what it stood for is still there
        index_format.unseal(key, value)
        storage.index.commit(StoreTransaction(deletes=[key]), sync_point=None)


def _end_of_unreadable(storage: LedgerStorage, ledger_id: int, first: int) -> int:
    """End of a run whose value can't be read: where the next one begins, or the ledger ends."""
    _, high = index_format.ledger_runs(ledger_id)
    following = storage.index.range(index_format.run_key(ledger_id, first + 1), high, 1)
    if following:
        return index_format.first_of_run_key(following[0][0])
    state = storage.ledgers.get(ledger_id)
    return first + 1 if state is None else max(first, state.flushed_last) + 1


def find_damage(logs: EntryLogs, ledger_id: int, run: LocationRun) -> list[DamagedRange]:
    """What is damaged of a run, as ranges; empty: nothing."""
    try:
        data = _read_from_disk(logs.file(run.log_id), run.bytes, run.offset)
    except CorruptFileError as error:  # not this log at all
        return [DamagedRange(ledger_id, run.first, run.end, error.path, error.offset, error.reason)]
    except OSError as error:
        return _join(run, ledger_id, _unreadable(logs, run), error.strerror or str(error))
    if count_intact_entries(data, run.sizes, ledger_id, run.first) == len(run.sizes):
        return []
    return _join(run, ledger_id, _damaged(data, ledger_id, run), "no intact record")


def _read_from_disk(file: File, size: int, offset: int) -> bytes:
    """What lies there, not what the page cache still has of it; and leave nothing in the cache."""
    file.drop_cached(offset, size)
    data = file.pread(size, offset)
    file.drop_cached(offset, size)
    return data


def _damaged(data: bytes, ledger_id: int, run: LocationRun) -> list[int]:
    """Ids of a run whose records aren't intact."""
    damaged: list[int] = []
    sizes, start, offset = run.sizes, 0, 0
    while True:
        rest = sizes[start:]
        intact = count_intact_entries(data[offset:], rest, ledger_id, run.first + start)
        if intact == len(rest):
            return damaged
        damaged.append(run.first + start + intact)
        for size in rest[: intact + 1]:
            offset += size + RECORD_HEADER_BYTES if size else 0
        start += intact + 1


def _unreadable(logs: EntryLogs, run: LocationRun) -> list[int]:
    """Ids of a run whose bytes the disk doesn't give."""
    unreadable: list[int] = []
    for entry_id, size in enumerate(run.sizes, run.first):
        if size:
            try:
                file, offset = logs.file(run.log_id), run.offset_of(entry_id)
                _read_from_disk(file, size + RECORD_HEADER_BYTES, offset)
            except (OSError, CorruptFileError):
                unreadable.append(entry_id)
    return unreadable


def _join(run: LocationRun, ledger_id: int, ids: Sequence[int], reason: str) -> list[DamagedRange]:
    """Ranges of damaged ids, which may reach over holes."""
    damages: list[DamagedRange] = []
    first = end = -1
    for entry_id in (*ids, None):
        gap = (
            () if entry_id is None or end < 0 else run.sizes[end - run.first : entry_id - run.first]
        )
        if end >= 0 and (entry_id is None or any(gap)):
            offset = run.offset_of(first)
            damages.append(
                DamagedRange(ledger_id, first, end, log_path(run.log_id), offset, reason)
            )
            end = -1
        if entry_id is not None:
            first = entry_id if end < 0 else first
            end = entry_id + 1
    return damages


def check_entries_steps(
    storage: LedgerStorage, ledger_id: int, entry_ids: Sequence[int], found: list[DamagedRange]
) -> Iterator[None]:
    """Look at the runs that hold these entries (ascending); ``found`` gets what is damaged there.

    An entry without a run isn't damaged: nothing of it is here.
    """
    checked_to = -1
    for entry_id in entry_ids:
        if entry_id < checked_to:
            continue
        try:
            run = storage.find_run(ledger_id, entry_id)
        except CorruptFileError as error:
            first = storage.first_of_run(ledger_id, entry_id)
            checked_to = _end_of_unreadable(storage, ledger_id, first)
            damage = DamagedRange(
                ledger_id, first, checked_to, error.path, error.offset, error.reason
            )
            found.append(damage)
        else:
            if run is None:
                continue
            checked_to = run.end
            found += find_damage(storage.logs, ledger_id, run)
        yield


def note_progress_steps(storage: LedgerStorage, next_log: int, began_s: int) -> Iterator[None]:
    """Remember how far a pass is, so that a restart goes on with it; lost, it begins again."""
    put = index_format.encode_scrub(next_log, began_s)
    storage.index.commit(StoreTransaction(puts=[put]), sync_point=None)
    yield


def check_index_steps(storage: LedgerStorage, damaged_ledgers: list[int]) -> Iterator[None]:
    """Check what a start needs of the index, and write damaged records of logs again.

    What they say is in memory, too. So are ledgers, but those are the loop's: ``damaged_ledgers``
    are to be marked as dirty, and the next flush writes them.
    """
    for count, (key, value) in enumerate(iterate(storage.index, *index_format.LEDGERS)):
        if not _fits(key, value):
            damaged_ledgers.append(index_format.id_of_key(key))
        if count % _CHECKED_PER_STEP == 0:
            yield
    for key, value in iterate(storage.index, *index_format.LOGS):
        state = storage.logs.logs.get(index_format.id_of_key(key))
        if state is not None and not _fits(key, value):
            log_id = index_format.id_of_key(key)
            put = index_format.encode_log(log_id, state.end, state.live)
            storage.index.commit(StoreTransaction(puts=[put]), sync_point=None)
    yield


def _fits(key: bytes, value: bytes) -> bool:
    try:
        index_format.unseal(key, value)
    except CorruptFileError:
        return False
    return True
