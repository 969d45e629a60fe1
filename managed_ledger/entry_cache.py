"""The entry cache: one byte budget for every managed ledger of the process.

Entries are held in chunks, a run of one ledger each, which are evicted whole and charged for the
memory they keep alive. There are two kinds:

- *tail* chunks collect entries as they are confirmed, so that consumers at the end of a log never
  reach storage. A log without readers keeps only a window of a few chunks.
- *read* chunks hold one run as it came from storage, for a reader that catches up. They have a
  share of the budget of their own, so that draining an old backlog evicts only other backlog.

Over budget, the oldest chunk that every active reader has passed goes first, then the oldest.
No clock: ages are counted in sweeps.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, islice

from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.position import Position

CHUNK_ENTRIES_MAX = 256
CHUNK_BYTES_MAX = 1 << 20
ENTRY_OVERHEAD_BYTES = 144
"""Two ``bytes`` objects and two list slots."""
TAIL_WINDOW_CHUNKS = 4
"""Tail chunks that a log without readers keeps: a consumer may connect a little later."""
READ_WINDOW_CHUNKS = 64
"""The same for a log with a reader whose cursor is too far behind to count: a consumer of a
shared subscription with one message that is never acknowledged."""
VICTIM_CANDIDATES = 16
"""How many of the oldest chunks are looked at for one that all readers have passed."""
IDLE_SWEEPS = 2
"""A passed or unread chunk goes after this many sweeps; a wanted one after ten times as many."""


class CacheChunk:
    """Entries ``first .. end - 1`` of one ledger."""

    __slots__ = ("bodies", "born", "end", "first", "heads", "is_ahead", "ledger_id", "log", "size")

    def __init__(self, log: "LedgerCache", ledger_id: int, first: int, born: int) -> None:
        self.log = log
        self.ledger_id = ledger_id
        self.first = self.end = first
        self.heads: list[bytes] = []
        self.bodies: list[Buffer] = []
        self.size = 0
        self.born = born
        self.is_ahead = False
        """True once the log has begun to read the run after this one."""

    def slice(self, entry_id: int, entries_max: int, bytes_max: int) -> EntryBatch:
        """Entries from ``entry_id`` on within both limits, one at least. REQUIRES: it is inside."""
        start = entry_id - self.first
        if self.size > bytes_max:  # many more than needed aren't looked at: 4 times the mean
            entries_max = min(entries_max, 4 * bytes_max * len(self.heads) // self.size + 1)
        heads = self.heads[start : start + entries_max]
        bodies = self.bodies[start : start + entries_max]
        if self.size > bytes_max:  # else no slice of it can be larger
            cut_to_bytes(heads, bodies, bytes_max)
        return EntryBatch(self.ledger_id, entry_id, heads, bodies)


def cut_to_bytes(heads: list[bytes], bodies: list[Buffer], bytes_max: int) -> None:
    """Shortens a run in place to ``bytes_max``, though never below one entry."""
    sizes = list(accumulate(map(len, bodies)))
    head_bytes = len(heads[0])
    if sizes[-1] + head_bytes * len(sizes) <= bytes_max:
        return
    keep = bisect_right(range(len(sizes)), bytes_max, key=lambda i: sizes[i] + (i + 1) * head_bytes)
    keep = max(1, keep)
    del heads[keep:], bodies[keep:]


def retained_bytes(heads: list[bytes], bodies: list[Buffer], entry_bytes: int) -> int:
    """Memory that a run of entries keeps alive, whole receive or read buffers included."""
    size = entry_bytes + len(heads) * ENTRY_OVERHEAD_BYTES
    if type(bodies[0]) is memoryview or type(bodies[-1]) is memoryview:
        views = (x for x in bodies if type(x) is memoryview)
        size = max(size, sum({id(x.obj): memoryview(x.obj).nbytes for x in views}.values()))
    return size


class LedgerCache:
    """Holds a managed ledger's cached chunks; made at the first entry, dropped when empty."""

    __slots__ = ("_cache", "chunks", "is_read", "keys", "slowest", "tail")

    def __init__(self, cache: "EntryCache", slowest: Callable[[], Position | None]) -> None:
        """Args:
        slowest: position before which no active reader will read; None: no active reader.
        """
        self._cache = cache
        self.slowest = slowest
        self.chunks: list[CacheChunk] = []  # sorted by key; runs never overlap
        self.keys: list[Position] = []  # (ledger id, first) of each chunk
        self.tail: CacheChunk | None = None
        self.is_read = False
        """Set by every hit, cleared by every new chunk."""

    def append(
        self, ledger_id: int, first: int, heads: list[bytes], bodies: list[Buffer], entry_bytes: int
    ) -> None:
        """Confirmed entries, in order. The lists are the cache's from now on."""
        count = len(heads)
        if count > CHUNK_ENTRIES_MAX:
            for start in range(0, count, CHUNK_ENTRIES_MAX):
                part = slice(start, start + CHUNK_ENTRIES_MAX)
                size = sum(map(len, heads[part])) + sum(map(len, bodies[part]))
                self.append(ledger_id, first + start, heads[part], bodies[part], size)
            return
        size = retained_bytes(heads, bodies, entry_bytes)
        self._cache.inserted_entries += count
        tail = self.tail
        if (
            tail is not None
            and tail.ledger_id == ledger_id
            and tail.end == first
            and len(tail.heads) + count <= CHUNK_ENTRIES_MAX
            and tail.size + size <= CHUNK_BYTES_MAX
        ):
            tail.heads += heads
            tail.bodies += bodies
            tail.end += count
            tail.size += size
            self._cache.charge_tail(size)
            return
        chunk = self._cache.new_chunk(self, ledger_id, first)
        chunk.heads, chunk.bodies = heads, bodies
        chunk.end, chunk.size = first + count, size
        # Read chunks never reach the tail, so the new one is the last.
        self.chunks.append(chunk)
        self.keys.append((ledger_id, first))
        self.tail = chunk
        self._cache.charge_tail(size)
        if len(self.chunks) > TAIL_WINDOW_CHUNKS and self.slowest() is None:
            window = READ_WINDOW_CHUNKS if self.is_read else TAIL_WINDOW_CHUNKS
            while len(self.chunks) > window:
                self._cache.drop(self.chunks[0])
        self.is_read = False

    def add_read(self, batch: EntryBatch) -> None:
        """A run as it was read from storage; ignored where it overlaps what is there."""
        key = (batch.ledger_id, batch.first)
        slot = bisect_right(self.keys, key)
        if slot and self._overlaps(self.chunks[slot - 1], batch):
            return
        if slot < len(self.chunks) and self._overlaps(self.chunks[slot], batch):
            return
        chunk = CacheChunk(self, batch.ledger_id, batch.first, self._cache.sweeps)
        chunk.heads, chunk.bodies = batch.heads, batch.bodies
        self._cache.inserted_entries += len(batch.heads)
        chunk.end = batch.first + len(batch.heads)
        entry_bytes = sum(map(len, batch.heads)) + sum(map(len, batch.bodies))
        chunk.size = retained_bytes(batch.heads, batch.bodies, entry_bytes)
        self.chunks.insert(slot, chunk)
        self.keys.insert(slot, key)
        self._cache.charge_read(chunk)

    @staticmethod
    def _overlaps(chunk: CacheChunk, batch: EntryBatch) -> bool:
        return (
            chunk.ledger_id == batch.ledger_id
            and chunk.first < batch.first + len(batch.heads)
            and batch.first < chunk.end
        )

    def find(self, ledger_id: int, entry_id: int) -> CacheChunk | None:
        """The chunk that holds the entry."""
        tail = self.tail
        if tail is None or tail.ledger_id != ledger_id or entry_id < tail.first:
            slot = bisect_right(self.keys, (ledger_id, entry_id)) - 1
            if slot < 0:
                return None
            tail = self.chunks[slot]
            if tail.ledger_id != ledger_id:
                return None
        return tail if entry_id < tail.end else None

    def room_after(self, ledger_id: int, entry_id: int) -> int | None:
        """First entry of the next chunk in the same ledger; None: there is no such chunk."""
        slot = bisect_right(self.keys, (ledger_id, entry_id))
        if slot < len(self.chunks) and self.chunks[slot].ledger_id == ledger_id:
            return self.chunks[slot].first
        return None

    def drop_ledgers(self, first_kept: int) -> None:
        """Ledgers below ``first_kept`` were trimmed."""
        while self.chunks and self.chunks[0].ledger_id < first_kept:
            self._cache.drop(self.chunks[0])

    def clear(self) -> None:
        """Drop all chunks: the log is closed."""
        while self.chunks:
            self._cache.drop(self.chunks[-1])

    def forget(self, chunk: CacheChunk) -> None:
        """Remove a chunk from the lists.

        REQUIRES: called by `EntryCache`, which has already subtracted the chunk from its sums.
        """
        slot = bisect_right(self.keys, (chunk.ledger_id, chunk.first)) - 1
        assert self.chunks[slot] is chunk
        del self.chunks[slot], self.keys[slot]
        if chunk is self.tail:
            self.tail = None


@dataclass(slots=True, eq=False, repr=False)
class EntryCache:
    """Keeps the budget of all logs, and the order in which chunks are evicted."""

    bytes_max: int
    """Budget for all entries, overheads included; 0 keeps nothing."""
    tail_bytes: int = field(default=0, init=False)
    read_bytes: int = field(default=0, init=False)
    sweeps: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)
    """Reads answered from memory, and reads that went to storage: for metrics."""
    misses: int = field(default=0, init=False)
    inserted_entries: int = field(default=0, init=False)
    evicted_entries: int = field(default=0, init=False)
    """Dropped for whatever reason; the difference is what the cache holds."""
    # Oldest first.
    _tail: OrderedDict[CacheChunk, None] = field(default_factory=OrderedDict, init=False)
    _read: OrderedDict[CacheChunk, None] = field(default_factory=OrderedDict, init=False)

    @property
    def size(self) -> int:
        """Bytes charged."""
        return self.tail_bytes + self.read_bytes

    @property
    def is_empty(self) -> bool:
        """Nothing to sweep."""
        return not self._tail and not self._read

    def new_chunk(self, log: LedgerCache, ledger_id: int, first: int) -> CacheChunk:
        """A tail chunk in the eviction order; its size is charged by `charge_tail`."""
        chunk = CacheChunk(log, ledger_id, first, self.sweeps)
        self._tail[chunk] = None
        return chunk

    def charge_tail(self, size: int) -> None:
        """A tail chunk grew."""
        self.tail_bytes += size
        if self.tail_bytes + self.read_bytes > self.bytes_max:
            self._evict()

    def charge_read(self, chunk: CacheChunk) -> None:
        """A read chunk was added: it may push out other read chunks beyond a quarter of all."""
        self._read[chunk] = None
        self.read_bytes += chunk.size
        while self.read_bytes > self.bytes_max // 4 and len(self._read) > 1:
            self.drop(self._victim(self._read))
        if self.tail_bytes + self.read_bytes > self.bytes_max:
            self._evict()

    def drop(self, chunk: CacheChunk) -> None:
        """Evicts one chunk."""
        if chunk in self._tail:
            del self._tail[chunk]
            self.tail_bytes -= chunk.size
        else:
            del self._read[chunk]
            self.read_bytes -= chunk.size
        self.evicted_entries += len(chunk.heads)
        chunk.log.forget(chunk)

    def sweep(self) -> None:
        """Lets go of what has been idle; called every few seconds while the cache isn't empty."""
        self.sweeps += 1
        slowest: dict[LedgerCache, Position | None] = {}  # asked once per log
        for order in (self._tail, self._read):
            idle: list[CacheChunk] = []
            for chunk in order:
                age = self.sweeps - chunk.born
                if age < IDLE_SWEEPS:
                    continue
                log = chunk.log
                if log not in slowest:
                    slowest[log] = log.slowest()
                if age >= 10 * IDLE_SWEEPS or _is_passed(chunk, slowest[log]):
                    idle.append(chunk)
            for chunk in idle:
                self.drop(chunk)

    def _victim(self, order: OrderedDict[CacheChunk, None]) -> CacheChunk:
        for chunk in islice(order, VICTIM_CANDIDATES):
            if _is_passed(chunk, chunk.log.slowest()):
                return chunk
        return next(iter(order))

    def _evict(self) -> None:
        while self.tail_bytes + self.read_bytes > self.bytes_max:
            # Backlog that is read gives way first down to a sixteenth, then the tails.
            if self._read and (self.read_bytes > self.bytes_max // 16 or not self._tail):
                self.drop(self._victim(self._read))
            else:
                self.drop(self._victim(self._tail))


def _is_passed(chunk: CacheChunk, slowest: Position | None) -> bool:
    """Tells whether no active reader will read the chunk; ``slowest`` is None without any."""
    return slowest is None or slowest >= (chunk.ledger_id, chunk.end - 1)
