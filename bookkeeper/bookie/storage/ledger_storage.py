"""The storage core of a bookie: journal, write cache, entry logs and index as one thing.

Synchronous, without threads, clock or loop. The shell (``bookie.py``) calls it in this way, and the
power-loss simulation does the same step by step:

- loop: ``add``, ``fence``, ... change memory and queue records; ``journal.take_group`` hands out
  the next group; once it is durable ``journal.on_durable`` is called and the waiting are told;
- journal thread: ``writer.write(group)``;
- loop: ``begin_flush`` swaps the halves of the write cache; once ``flush_is_ready`` the maintenance
  thread runs ``flush.flush_steps(job)``; then ``end_flush(job)``;
- any thread: ``read_stored``.

Why a look-up never misses an entry that exists: halves are swapped and dropped on the loop only, a
half is dropped only after its entries are committed to the index, and a look-up asks active half,
flushing half, index in this order, the first two in one go on the loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.journal.journal import Journal, JournalWriter
from magnetar.bookkeeper.bookie.journal.journal_format import Mark
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import NO_ENTRY_ID, LedgerDescriptor
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.bookie.storage.write_cache import (
    HOLES_MAX,
    JOINED,
    WriteCache,
    WriteCacheChunk,
)
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.ledger_metadata import same_master_key
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.ordered_store import OrderedStore
from magnetar.bookkeeper.transport import AddRequest

_LEDGER_ID_MAX = (1 << 63) - 1
MASTER_KEY_BYTES_MAX = 28  # what the CRC of a LEDGER_KEY record covers beside the ledger id
_READ_ATTEMPTS = 4  # a log can be compacted away between the index look-up and the read


@dataclass(slots=True)
class FlushJob:
    """One half of the write cache on its way to the entry logs.

    Attributes:
        marks: of each journal: everything before is in ``half`` or was flushed earlier. None while
            the storage is being opened.
        metadata_mark: of the journals before ``marks``.
    """

    marks: list[Mark]
    half: WriteCache
    ledgers: dict[int, LedgerDescriptor] = field(default_factory=dict)
    metadata_mark: bytes = b""


class LedgerStorage:
    """See the module's text; built by ``storage_startup.open_storage``.

    One object, since a ledger's state, its records in the journal and its entries in the cache
    change together, in one go on the loop.
    """

    LOOK_FIRST: Final = -1  # no code of the wire: see ``add``

    def __init__(
        self,
        file_system: FileSystem,
        index: OrderedStore,
        config: StorageConfig,
        logs: EntryLogs,
        writers: Sequence[JournalWriter],
    ) -> None:
        self.file_system = file_system
        self.index = index
        self.config = config
        self.logs = logs
        self.writers = writers  # of each journal
        self.journals: list[Journal] = []
        self.ledgers: dict[int, LedgerDescriptor] = {}
        self.disputed: set[int] = set()  # of these, the ids that two ledgers share
        self.deleted: dict[int, int] = {}  # ledger id -> when it was dropped, seconds
        self.deleted_creators: dict[int, int] = {}  # of these, where it is known
        # Data was lost: what the index says of it, and the highest ledger id that may have lived
        # here before: no "no such ledger" up to there. 0 and -1: nothing was lost.
        self.limbo_phase = 0
        self.limbo_last = -1
        # Of an unknown ledger below this id a fence may have been lost: its writer is refused, also
        # when limbo is over. A recovery may have ended the ledger without us.
        self.lost_below = 0
        # The newest state of embedded metadata that something here may rest on; empty: of none.
        self.metadata_mark: Callable[[], bytes] = bytes
        self.damaged_logs: dict[int, str] = {}  # log id -> what compaction found in it
        self.active = WriteCache()
        self.flushing: WriteCache | None = None
        self._dirty: dict[int, LedgerDescriptor] = {}  # states that the index does not have
        self._only_journal: Journal | None = None  # spares a division in the usual case
        self._queue_bytes_max = config.journal_queue_bytes_max // len(writers)

    @property
    def journal(self) -> Journal:
        """The first one."""
        return self.journals[0]

    @property
    def queued_bytes(self) -> int:
        """Accepted and not yet durable."""
        return sum(journal.queued_bytes for journal in self.journals)

    @property
    def writer(self) -> JournalWriter:
        """Of the first journal."""
        return self.writers[0]

    def journal_of(self, ledger_id: int) -> Journal:
        """Where all records of a ledger go: they are totally ordered."""
        return self._only_journal or self.journals[ledger_id % len(self.journals)]

    def start_journals(
        self, headers: Sequence[journal_format.SegmentHeader], new_nonce: Callable[[], int]
    ) -> None:
        self.journals = [Journal(self.config, header, new_nonce) for header in headers]
        self.note_metadata(self.metadata_mark)
        self._only_journal = self.journals[0] if len(headers) == 1 else None

    def note_metadata(self, metadata_mark: Callable[[], bytes]) -> None:
        """From now on journals and index keep what this returns, see ``Journal.metadata_mark``."""
        self.metadata_mark = metadata_mark
        for journal in self.journals:
            journal.metadata_mark = metadata_mark

    # ---- writing (loop)

    def add(self, request: AddRequest, *, looked: bool = False) -> int:
        """Accept entries: readable at once, ``request`` waits in the journal's group.

        Args:
            looked: they were compared with what is stored (``re_adds.py``), and the ledger has got
                no other add since.
        Returns:
            OK, or why nothing was accepted. LOOK_FIRST: some may be here already.
        """
        ids, heads, bodies = request.entry_ids, request.heads, request.bodies
        sizes = [len(head) + len(body) for head, body in zip(heads, bodies, strict=False)]
        if not self._is_well_formed(request, sizes):
            return codes.BAD_REQUEST
        ledger_id = request.ledger_id
        journal = self.journal_of(ledger_id)
        state = self.ledgers.get(ledger_id)
        if state is not None:
            if not _accepts(state, request.master_key):
                return codes.UNAUTHORIZED
            if request.creator != state.creator and not state.is_of(request.creator):
                return self.denial(ledger_id)
            if (state.fenced or state.limbo or state.fence_unknown) and not request.recovery:
                # It may have forgotten a fence: it must not say that there is none.
                return codes.FENCED if state.fenced else codes.UNKNOWN_LEDGER_STATE
            if state.draining:
                return codes.TOO_MANY_REQUESTS
        elif ledger_id in self.deleted:
            # A late writer; its entries would never be collected again.
            known = self.deleted_creators.get(ledger_id, 0)
            is_other = known and request.creator and known != request.creator
            return codes.OTHER_CREATOR if is_other else codes.FENCED
        elif ledger_id < self.lost_below and not request.recovery:
            return codes.UNKNOWN_LEDGER_STATE
        elif len(request.master_key) > MASTER_KEY_BYTES_MAX:
            return codes.BAD_REQUEST
        if journal.queued_bytes > self._queue_bytes_max:
            return codes.TOO_MANY_REQUESTS
        if state is None:
            complete = not request.recovery
            state = self._create(ledger_id, request.master_key, request.creator, complete=complete)
        elif ids[0] <= state.last_entry and not looked:
            return self.LOOK_FIRST
        count = len(ids)
        if count == 1 and sizes[0] <= record_format.SMALL_ENTRY_BYTES:
            # Flattened, as the busiest case of many topics: half the cost of the general path.
            size = sizes[0] + RECORD_HEADER_BYTES
            journal.reserve(size)
            record = record_format.encode_entry(journal.tag, journal.seed, heads[0], bodies[0])
            journal.append([record], size, request)
            entry_id = ids[0]
            self.active.add_record(ledger_id, entry_id, sizes[0], record)
            if entry_id > state.last_entry:
                state.last_entry = entry_id
        elif (step := self._chunk_entries(count, request.body_bytes)) >= count:
            self._add_chunk(state, ids, heads, bodies, sizes, request)
        else:
            for first in range(0, count, step):
                end = first + step
                waiting = request if end >= count else None
                self._add_chunk(
                    state,
                    ids[first:end],
                    heads[first:end],
                    bodies[first:end],
                    sizes[first:end],
                    waiting,
                )
        self._dirty[ledger_id] = state
        return codes.OK

    def fence(
        self, ledger_id: int, master_key: bytes, waiting: object, creator: int = 0
    ) -> tuple[int, LedgerDescriptor | None]:
        """Fence a ledger in memory at once; ``waiting`` is told when it is durable.

        Returns:
            OK and the state. ``fence_durable`` set: ``waiting`` will not be told, nothing to wait
            for. Otherwise an error code.
        """
        state = self.ledgers.get(ledger_id)
        if state is None:
            if ledger_id in self.deleted or not _may_create(ledger_id, master_key):
                return codes.NO_LEDGER, None
            state = self._create(ledger_id, master_key, creator, complete=False)
        elif not _accepts(state, master_key):
            return codes.UNAUTHORIZED, None
        elif not state.is_of(creator):
            return self.denial(ledger_id), None
        if not state.fence_durable:
            state.fenced = True
            self._dirty[ledger_id] = state
            body = journal_format.LEDGER_ID.pack(ledger_id)
            self.journal_of(ledger_id).append_meta(record_format.FENCE, body, waiting)
        return codes.OK, state

    def write_lac(
        self,
        ledger_id: int,
        master_key: bytes,
        lac: int,
        waiting: object,
        creator: int = 0,
        digest: bytes | None = None,
    ) -> int:
        """Store an explicit last-add-confirmed; see ``LedgerDescriptor.raise_lac``."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            if ledger_id in self.deleted or not _may_create(ledger_id, master_key):
                return codes.NO_LEDGER
            if ledger_id < self.lost_below:
                return codes.UNKNOWN_LEDGER_STATE
            state = self._create(ledger_id, master_key, creator, complete=True)
        elif not _accepts(state, master_key):
            return codes.UNAUTHORIZED
        elif not state.is_of(creator):
            return self.denial(ledger_id)
        state.raise_lac(lac, digest)
        self._dirty[ledger_id] = state
        body = journal_format.encode_explicit_lac(ledger_id, lac, digest)
        self.journal_of(ledger_id).append_meta(record_format.EXPLICIT_LAC, body, waiting)
        return codes.OK

    def _is_well_formed(self, request: AddRequest, sizes: list[int]) -> bool:
        ids = request.entry_ids
        count = len(ids)
        if count == 1:
            return (
                len(request.heads) == len(request.bodies) == 1
                and ids[0] >= 0
                and 0 <= request.ledger_id <= _LEDGER_ID_MAX
                and len(request.heads[0]) >= PACKET_HEADER_BYTES
                and sizes[0] <= self.config.entry_bytes_max
            )
        if count == 0 or not len(request.heads) == len(request.bodies) == count:
            return False
        if not (ids[0] >= 0 and 0 <= request.ledger_id <= _LEDGER_ID_MAX):
            return False
        if min(map(len, request.heads)) < PACKET_HEADER_BYTES:
            return False
        if type(ids) is not range and any(ids[at] >= ids[at + 1] for at in range(count - 1)):
            return False
        return max(sizes) <= self.config.entry_bytes_max

    def _create(
        self, ledger_id: int, master_key: bytes, creator: int, *, complete: bool
    ) -> LedgerDescriptor:
        """A ledger that is new here.

        Args:
            complete: its own writer asks, so nothing of it can have been here before.
        """
        state = self.ledgers[ledger_id] = LedgerDescriptor(ledger_id, master_key, creator)
        state.limbo = not complete and ledger_id <= self.limbo_last
        state.fence_unknown = ledger_id < self.lost_below  # so its writer doesn't ask
        body = journal_format.LEDGER_ID.pack(ledger_id) + master_key
        self.journal_of(ledger_id).append_meta(record_format.LEDGER_KEY, body)
        if creator:
            self._journal_creator(state)
        self._dirty[ledger_id] = state
        return state

    def _journal_creator(self, state: LedgerDescriptor, waiting: object = None) -> None:
        flags = journal_format.CREATOR_DISPUTED if state.disputed else 0
        body = journal_format.CREATOR_BODY.pack(state.ledger_id, state.creator, flags)
        self.journal_of(state.ledger_id).append_meta(record_format.LEDGER_CREATOR, body, waiting)

    # ---- two ledgers with one id

    def is_other(self, ledger_id: int, creator: int) -> bool:
        """The id is another creator's here."""
        state = self.ledgers.get(ledger_id)
        return state is not None and not state.is_of(creator)

    def denial(self, ledger_id: int) -> int:
        """What the creator of the other ledger with this id is told.

        It is a definite "no" (nothing of that ledger was ever taken, or will be) unless this bookie
        has lost data: then it may have held that ledger before.
        """
        state = self.ledgers.get(ledger_id)
        uncertain = (
            state is None or state.limbo or state.fence_unknown or self.is_unknown(ledger_id)
        )
        return codes.UNKNOWN_LEDGER_STATE if uncertain else codes.OTHER_CREATOR

    def note_dispute(self, ledger_id: int, waiting: object = None) -> bool:
        """Remember that two ledgers share the id.

        Args:
            waiting: told once that is durable, and with it that the ledger is held here.
        Returns:
            False: the ledger is gone, and ``waiting`` won't be told.
        """
        state = self.ledgers.get(ledger_id)
        if state is None:
            return False
        self.set_disputed(state)
        self._dirty[ledger_id] = state
        self._journal_creator(state, waiting)
        return True

    def set_disputed(self, state: LedgerDescriptor) -> None:
        """Not durable by itself."""
        state.disputed = True
        self.disputed.add(state.ledger_id)

    def _chunk_entries(self, count: int, total_bytes: int) -> int:
        """Entries per chunk, so that a chunk never exceeds what a run may hold."""
        config = self.config
        if total_bytes <= config.run_bytes_max:
            return min(count, config.run_entries_max)
        per_run = count * config.run_bytes_max // total_bytes
        return max(1, min(per_run, config.run_entries_max))

    def _add_chunk(
        self,
        state: LedgerDescriptor,
        ids: Sequence[int],
        heads: list[bytes],
        bodies: list[bytes],
        sizes: list[int],
        waiting: object,
    ) -> None:
        """Encode, cache and journal entries; ``waiting`` belongs to the last piece."""
        count = len(sizes)
        span = ids[-1] - ids[0] + 1
        if span > count and (span > count + HOLES_MAX or span > self.config.run_entries_max):
            middle = count // 2  # far apart: halve until each piece is dense
            self._add_chunk(
                state, ids[:middle], heads[:middle], bodies[:middle], sizes[:middle], None
            )
            self._add_chunk(
                state, ids[middle:], heads[middle:], bodies[middle:], sizes[middle:], waiting
            )
            return
        journal = self.journal_of(state.ledger_id)
        size = sum(sizes) + RECORD_HEADER_BYTES * count
        journal.reserve(size)
        buffers = record_format.encode_entries(journal.tag, journal.seed, heads, bodies, sizes)
        journal.append(buffers, size, waiting)
        if span > count:
            spread = [0] * span
            for entry_id, entry_size in zip(ids, sizes, strict=True):
                spread[entry_id - ids[0]] = entry_size
            sizes = spread
        parts = JOINED if len(buffers) == 1 else 3
        self.active.add(
            state.ledger_id, WriteCacheChunk(ids[0], sizes, buffers, size, count, parts)
        )
        if ids[-1] > state.last_entry:
            state.last_entry = ids[-1]

    def mark_dirty(self, state: LedgerDescriptor) -> None:
        """The index does not have this state."""
        self._dirty[state.ledger_id] = state

    # ---- flushing (loop)

    @property
    def needs_flush(self) -> bool:
        active, config = self.active, self.config
        return active.bytes >= config.flush_bytes or active.entry_count >= config.flush_entries

    @property
    def has_unflushed(self) -> bool:
        return bool(self.active.ledgers or self._dirty)

    def begin_flush(self) -> FlushJob:
        """Swap the halves; REQUIRES: no other flush is under way."""
        assert self.flushing is None, "one flush at a time"
        marks = [journal.barrier() for journal in self.journals]
        job = FlushJob(marks, self.active, self._dirty, self.metadata_mark())
        self.flushing, self.active, self._dirty = self.active, WriteCache(), {}
        return job

    def flush_is_ready(self, job: FlushJob) -> bool:
        """True once the journals before the marks are durable, so that these may be persisted."""
        pairs = zip(self.journals, job.marks, strict=False)
        return all(journal.durable_to(mark) for journal, mark in pairs)

    def end_flush(self) -> None:
        """The job's commit is durable: its half is now served from the entry logs."""
        self.flushing = None

    def forget(self, ledger_id: int, deleted_at_s: int) -> None:
        """Stop serving a deleted ledger; the maintenance thread removes its bytes later."""
        self.deleted[ledger_id] = deleted_at_s
        if (state := self.ledgers.pop(ledger_id, None)) is not None and state.creator:
            self.deleted_creators[ledger_id] = state.creator
        self.disputed.discard(ledger_id)
        self._dirty.pop(ledger_id, None)
        self.active.drop(ledger_id)
        # The flushing half is being walked by the maintenance thread, which drops the ledger from
        # the index after that flush.

    def empty(self, ledger_id: int) -> bool:
        """Stop serving the entries of a ledger that others hold; ``over_replicated.empty_steps``
        and ``end_draining`` follow. Its key stays, and a fence: a writer that was fenced stays
        fenced.

        Returns:
            False: it was written to since the last flush, so nothing was done.
        """
        halves = (self.active,) if self.flushing is None else (self.active, self.flushing)
        if any(ledger_id in half.ledgers for half in halves):
            return False
        state = self.ledgers[ledger_id]
        state.fenced = state.draining = True
        state.last_entry = NO_ENTRY_ID
        self._dirty[ledger_id] = state
        return True

    def end_draining(self, ledger_id: int) -> None:
        """The steps ended, well or not: what the index has left is served."""
        state = self.ledgers.get(ledger_id)
        if state is not None:
            state.draining = False
            state.last_entry = state.flushed_last

    def set_limbo(self, ledger_id: int, master_key: bytes = b"", creator: int = 0) -> None:
        """This ledger may have lost entries or a fence: answer no negative, accept no writer."""
        state = self.ledgers.get(ledger_id)
        if state is None:
            state = self.ledgers[ledger_id] = LedgerDescriptor(ledger_id, master_key, creator)
        elif not state.master_key:  # lost
            state.master_key = master_key
        state.limbo = True
        self._dirty[ledger_id] = state

    def clear_limbo(self, ledger_id: int, *, fenced: bool) -> None:
        """Everything this bookie should hold of the ledger was restored.

        Args:
            fenced: the ledger's writer has ended; the fence may be the one that was forgotten.
        """
        state = self.ledgers.get(ledger_id)
        if state is not None and state.limbo:
            state.limbo = state.fence_unknown = False
            state.fenced = state.fenced or fenced
            self._dirty[ledger_id] = state

    def is_unknown(self, ledger_id: int) -> bool:
        """A ledger without a state may have lived here before data was lost."""
        return ledger_id <= self.limbo_last

    def limbo_ledgers(self) -> list[int]:
        return [ledger_id for ledger_id, state in list(self.ledgers.items()) if state.limbo]

    # ---- reading

    def read_cached(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> list[bytes | memoryview]:
        """Contiguous packets from ``first`` that are in memory (loop); empty: it is not."""
        packets: list[bytes | memoryview] = []
        halves = (self.active,) if self.flushing is None else (self.active, self.flushing)
        while len(packets) < count_max:
            for half in halves:
                if (chunk := half.find(ledger_id, first)) is not None:
                    break
            else:
                break
            found = chunk.packets(
                first, count_max - len(packets), bytes_max, at_least_one=not packets
            )
            if not found:
                break
            packets += found
            bytes_max -= sum(map(len, found))
            first += len(found)
        return packets

    def cached_ids(self, ledger_id: int) -> set[int]:
        """Entries that are in memory (loop)."""
        ids: set[int] = set()
        for half in (self.active, self.flushing):
            if half is not None and (entries := half.ledgers.get(ledger_id)) is not None:
                ids.update(entries.entry_ids())
        return ids

    def read_stored(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> list[bytes | memoryview]:
        """Contiguous checked packets from ``first`` out of the entry logs (any thread).

        Raises:
            CorruptFileError: entry ``first`` is damaged.
            OSError: the disk failed.
        """
        packets: list[bytes | memoryview] = []
        while len(packets) < count_max and (bytes_max > 0 or not packets):
            try:
                found = self._read_run(
                    ledger_id, first, count_max - len(packets), bytes_max, at_least_one=not packets
                )
            except (CorruptFileError, OSError):
                if packets:
                    break  # what is good comes first; a read of the bad one gets the error
                raise
            if not found:
                break
            packets += found
            bytes_max -= sum(map(len, found))
            first += len(found)
        return packets

    def find_run(self, ledger_id: int, entry_id: int) -> LocationRun | None:
        """The index's run that holds an entry (any thread)."""
        item = self.index.floor(index_format.run_key(ledger_id, entry_id))
        low, _ = index_format.ledger_runs(ledger_id)
        if item is None or item[0] < low:
            return None
        _, run = index_format.decode_run(*item)
        if entry_id >= run.end or run.sizes[entry_id - run.first] == 0:
            return None
        return run

    def first_of_run(self, ledger_id: int, entry_id: int) -> int:
        """Where the run begins that ``find_run`` finds damaged."""
        item = self.index.floor(index_format.run_key(ledger_id, entry_id))
        return entry_id if item is None else index_format.first_of_run_key(item[0])

    def stored_runs(self, ledger_id: int) -> list[LocationRun]:
        """All runs of a ledger (any thread)."""
        items = self.index.range(*index_format.ledger_runs(ledger_id))
        return [index_format.decode_run(key, value)[1] for key, value in items]

    def _read_run(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int, *, at_least_one: bool
    ) -> list[bytes | memoryview]:
        for attempt in range(_READ_ATTEMPTS):
            run = self.find_run(ledger_id, first)
            if run is None:
                return []
            end = _readable_end(run, first, count_max, bytes_max, at_least_one)
            if end == first:
                return []
            try:
                return self.logs.read(ledger_id, run, first, end)
            except FileNotFoundError:
                # Compaction moved the run after the look-up; the index knows where to.
                if attempt == _READ_ATTEMPTS - 1:
                    raise
        return []


def _may_create(ledger_id: int, master_key: bytes) -> bool:
    return 0 <= ledger_id <= _LEDGER_ID_MAX and len(master_key) <= MASTER_KEY_BYTES_MAX


def _accepts(state: LedgerDescriptor, master_key: bytes) -> bool:
    """Check a request's key; a ledger whose key was lost with its disk takes the first one given.

    That is as good as a new ledger, which is created with whatever key comes first.
    """
    if state.limbo and not state.master_key:
        state.master_key = master_key
    return same_master_key(state.master_key, master_key)


def _readable_end(
    run: LocationRun, first: int, count_max: int, bytes_max: int, at_least_one: bool
) -> int:
    """End of the entries from ``first`` on that fit the limits and have no hole among them."""
    end = first
    for size in run.sizes[first - run.first :]:
        if size == 0 or end - first >= count_max:
            break
        if size > bytes_max and not (at_least_one and end == first):
            break
        bytes_max -= size
        end += 1
    return end
