"""Read-ahead for ledgers that are read in order: what comes next is in memory when it is asked for.

The unit is the index's run (up to 256 entries or 1 MiB that lie together in one log), so a reader
that asks for single entries costs one trip to the disk per run instead of one per entry, and for
one that asks for a megabyte at a time the disk works while the answer before is on its way.

Entries never change, so nothing here can be wrong, only useless: it is asked behind the write
cache, holds what was found intact, and never says that an entry is missing. Loop only, but for
``read_chunks``.
"""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import LedgerDescriptor
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.bookie.storage.write_cache import HOLES_MAX, JOINED, WriteCacheChunk
from magnetar.bookkeeper.errors import CorruptFileError

_AHEAD_BYTES = 1 << 20  # at least: what is fetched before it is asked for
_STREAMS_MAX = 4096  # ledgers whose last reader is remembered
_CHUNKS_MAX = 8  # of one ledger: some behind, for readers that follow closely, and what is ahead
_ATTEMPTS = 4  # a log can be compacted away between the index look-up and the read

Packets = list["bytes | memoryview"]


class _Stream:
    """One ledger, as it was read last.

    Attributes:
        next_entry: where a reader in order goes on.
        in_order: how many requests did so, one after the other.
        chunks: ascending; those that were read and those that are ahead.
        fetch: the one under way; it begins at ``fetch_first``.
    """

    __slots__ = ("bytes", "chunks", "fetch", "fetch_first", "in_order", "next_entry")

    def __init__(self) -> None:
        self.next_entry = -1
        self.in_order = 0
        self.chunks: list[WriteCacheChunk] = []
        self.bytes = 0
        self.fetch: asyncio.Future[None] | None = None
        self.fetch_first = -1

    def is_next(self, first: int) -> bool:
        """A reader in order asks for this one; entries between may be on other bookies."""
        return 0 <= first - self.next_entry <= HOLES_MAX


class ReadAhead:
    """Reads stored entries, and some more.

    Args:
        bytes_max: what it may hold of all ledgers; 0: it reads what it is asked for.
        fetches_max: how many reads ahead may be under way.
    """

    def __init__(
        self, storage: LedgerStorage, readers: Executor, bytes_max: int, fetches_max: int
    ) -> None:
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._storage = storage
        self._readers = readers
        self._bytes_max = bytes_max
        self._fetches_max = fetches_max
        self._fetches = 0
        self._loop = asyncio.get_running_loop()
        self._streams: OrderedDict[int, _Stream] = OrderedDict()  # the one read last at the end
        self._touched = False

    async def read(
        self, state: LedgerDescriptor, first: int, count_max: int, bytes_max: int
    ) -> Packets:
        """As ``LedgerStorage.read_stored``.

        Raises:
            CorruptFileError: entry ``first`` is damaged.
            OSError: the disk failed.
        """
        stream = self._stream(state.ledger_id)
        packets = _take(stream.chunks, first, count_max, bytes_max, at_least_one=True)
        if packets:
            self.hits += 1
        bytes_max -= sum(map(len, packets))
        while len(packets) < count_max and (bytes_max > 0 or not packets):
            goes_on = first + len(packets)
            if packets and (goes_on > state.last_entry or _covers(stream.chunks, goes_on)):
                break  # what is in memory ends with the ledger, a hole or the limit of bytes
            try:
                more, is_all = await self._read_on(
                    stream,
                    state.ledger_id,
                    goes_on,
                    count_max - len(packets),
                    bytes_max,
                    at_least_one=not packets,
                )
            except (CorruptFileError, OSError):
                if packets:
                    break  # a read of that one gets the error
                raise
            packets += more
            bytes_max -= sum(map(len, more))
            if is_all:
                break
        stream.in_order = stream.in_order + 1 if stream.is_next(first) else 0
        stream.next_entry = first + len(packets)
        if packets and stream.in_order:
            self._fetch_ahead(state, stream, sum(map(len, packets)))
        return packets

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted or emptied."""
        stream = self._streams.pop(ledger_id, None)
        if stream is not None:
            self.bytes -= stream.bytes

    def release_unused(self) -> None:
        """Called now and then: what wasn't read since the last call goes."""
        if not self._touched:
            for ledger_id in list(self._streams):
                self.forget(ledger_id)
        self._touched = False

    @property
    def chunk_count(self) -> int:
        return sum(len(stream.chunks) for stream in self._streams.values())

    def _stream(self, ledger_id: int) -> _Stream:
        self._touched = True
        stream = self._streams.get(ledger_id)
        if stream is None:
            stream = self._streams[ledger_id] = _Stream()
            if len(self._streams) > _STREAMS_MAX:
                self.forget(next(iter(self._streams)))
        else:
            self._streams.move_to_end(ledger_id)
        return stream

    async def _read_on(
        self,
        stream: _Stream,
        ledger_id: int,
        first: int,
        count_max: int,
        bytes_max: int,
        *,
        at_least_one: bool,
    ) -> tuple[Packets, bool]:
        """Packets from ``first`` on, which isn't in memory; True: there are no more to be had."""
        if stream.fetch is not None and first >= stream.fetch_first:
            await asyncio.shield(stream.fetch)  # most likely it brings this one
            if packets := _take(
                stream.chunks, first, count_max, bytes_max, at_least_one=at_least_one
            ):
                return packets, False
            if not at_least_one and _covers(stream.chunks, first):
                return [], True
        self.misses += 1
        storage = self._storage
        if self._bytes_max and (not at_least_one or stream.is_next(first)):
            read = functools.partial(read_chunks, storage, ledger_id, first, count_max, bytes_max)
            chunks = await self._loop.run_in_executor(self._readers, read)
            self._add(ledger_id, stream, chunks)
            return _take(chunks, first, count_max, bytes_max, at_least_one=at_least_one), True
        exactly = functools.partial(storage.read_stored, ledger_id, first, count_max, bytes_max)
        return await self._loop.run_in_executor(self._readers, exactly), True

    def _fetch_ahead(self, state: LedgerDescriptor, stream: _Stream, asked_bytes: int) -> None:
        """Begin to read what comes next, unless it is there."""
        first = stream.next_entry
        ahead = 0
        for chunk in stream.chunks:
            if chunk.end > first and chunk.first <= first:
                left = chunk.end - first
                ahead += chunk.bytes * left // len(chunk.sizes)
                first = chunk.end
        wanted = max(_AHEAD_BYTES, asked_bytes)
        if (
            stream.fetch is not None
            or ahead >= wanted // 2
            or first > state.flushed_last
            or self._fetches >= self._fetches_max
            or wanted > self._bytes_max
        ):
            return
        ledger_id = state.ledger_id
        read = functools.partial(
            read_chunks, self._storage, ledger_id, first, 1 << 30, wanted, HOLES_MAX
        )
        stream.fetch_first = first
        stream.fetch = self._loop.create_future()
        self._fetches += 1
        try:
            reading = self._loop.run_in_executor(self._readers, read)
        except RuntimeError:  # the bookie is closing
            self._end_fetch(stream)
            return
        reading.add_done_callback(functools.partial(self._on_fetched, ledger_id, stream))

    def _on_fetched(
        self, ledger_id: int, stream: _Stream, reading: asyncio.Future[list[WriteCacheChunk]]
    ) -> None:
        # What can't be read is an error of a request for it, not of a read ahead.
        if not reading.cancelled() and reading.exception() is None:
            self._add(ledger_id, stream, reading.result())
        self._end_fetch(stream)

    def _end_fetch(self, stream: _Stream) -> None:
        self._fetches -= 1
        fetch, stream.fetch = stream.fetch, None
        if fetch is not None and not fetch.done():
            fetch.set_result(None)

    def _add(self, ledger_id: int, stream: _Stream, chunks: list[WriteCacheChunk]) -> None:
        if self._streams.get(ledger_id) is not stream:
            return  # forgotten meanwhile
        for chunk in chunks:
            if _holds(stream.chunks, chunk.first):
                continue
            stream.chunks.append(chunk)
            stream.bytes += chunk.bytes
            self.bytes += chunk.bytes
        stream.chunks.sort(key=_first)
        while len(stream.chunks) > _CHUNKS_MAX and stream.chunks[0].end <= stream.next_entry:
            self._drop_first(stream)
        while self.bytes > self._bytes_max:
            other_id, other = next(iter(self._streams.items()))
            if other is not stream:
                self.forget(other_id)
            elif len(stream.chunks) > 1:
                self._drop_first(stream)
            else:
                return  # one run is more than all: it goes with the next

    def _drop_first(self, stream: _Stream) -> None:
        dropped = stream.chunks.pop(0)
        stream.bytes -= dropped.bytes
        self.bytes -= dropped.bytes


_first: Callable[[WriteCacheChunk], int] = lambda chunk: chunk.first  # noqa: E731


def _holds(chunks: list[WriteCacheChunk], entry_id: int) -> bool:
    return any(chunk.holds(entry_id) for chunk in chunks)


def _covers(chunks: list[WriteCacheChunk], entry_id: int) -> bool:
    """A chunk says what is with this id, though it may be a hole."""
    return any(chunk.first <= entry_id < chunk.end for chunk in chunks)


def _take(
    chunks: list[WriteCacheChunk], first: int, count_max: int, bytes_max: int, *, at_least_one: bool
) -> Packets:
    """Contiguous packets from ``first`` on; empty: it isn't there, or more than ``bytes_max``."""
    packets: Packets = []
    for chunk in chunks:
        if len(packets) >= count_max:
            break
        if chunk.holds(first):
            found = chunk.packets(
                first,
                count_max - len(packets),
                bytes_max,
                at_least_one=at_least_one and not packets,
            )
            if not found:
                break
            packets += found
            bytes_max -= sum(map(len, found))
            first += len(found)
    return packets


# ---- any thread


def read_chunks(
    storage: LedgerStorage,
    ledger_id: int,
    first: int,
    count_max: int,
    bytes_max: int,
    gap_max: int = 0,
) -> list[WriteCacheChunk]:
    """Whole runs from entry ``first`` on, checked, until they hold what was asked for.

    Empty: neither ``first`` nor one of the ``gap_max`` entries behind it is in the index.

    Raises:
        CorruptFileError: entry ``first`` is damaged.
        OSError: the disk failed.
    """
    chunks: list[WriteCacheChunk] = []
    while count_max > 0 and (bytes_max > 0 or not chunks):
        try:
            chunk = _read_chunk(storage, ledger_id, first, gap_max)
        except (CorruptFileError, OSError):
            if chunks:
                break  # what is good comes first; a read of the bad one gets the error
            raise
        if chunk is None:
            break
        chunks.append(chunk)
        count_max -= chunk.entry_count
        bytes_max -= chunk.bytes
        first = chunk.end
    return chunks


def _read_chunk(
    storage: LedgerStorage, ledger_id: int, first: int, gap_max: int
) -> WriteCacheChunk | None:
    for attempt in range(_ATTEMPTS):
        run = storage.find_run(ledger_id, first)
        if run is None and gap_max:
            run = _run_behind(storage, ledger_id, first, gap_max)
        part = None if run is None else run.part(first, run.end)
        if part is None:
            return None
        try:
            data, intact = storage.logs.read_intact(ledger_id, part)
        except FileNotFoundError:
            # Compaction moved the run after the look-up; the index knows where to.
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        return _chunk(data, part, intact)
    return None


def _run_behind(
    storage: LedgerStorage, ledger_id: int, first: int, gap_max: int
) -> LocationRun | None:
    """The run that begins a little behind ``first``."""
    low = index_format.run_key(ledger_id, first)
    items = storage.index.range(low, index_format.run_key(ledger_id, first + gap_max + 1), 1)
    return index_format.decode_run(*items[0])[1] if items else None


def _chunk(data: bytes, run: LocationRun, intact: int) -> WriteCacheChunk:
    """The first ``intact`` ids of a run."""
    good = run if intact == len(run.sizes) else run.part(run.first, run.first + intact)
    assert good is not None, "the first entry is intact"
    sizes = list(good.sizes)
    size = good.bytes
    return WriteCacheChunk(
        good.first, sizes, [data[:size]], size, len(sizes) - sizes.count(0), JOINED
    )
