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
from time import perf_counter
from typing import cast

from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import LedgerDescriptor
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.bookie.storage.write_cache import HOLES_MAX, JOINED, WriteCacheChunk
from magnetar.bookkeeper.errors import CorruptFileError

_AHEAD_BYTES = 1 << 20  # at least: what is fetched before it is asked for
_FAST_AHEAD_BYTES = 4 << 20  # for one who has read in order for a while
_FAST_REQUESTS = 4
_WRITING_S = 0.25
_JOINED_RUNS_MAX = 16  # read at once
_STREAMS_MAX = 4096  # ledgers whose last reader is remembered
# Of one ledger: some behind, for readers that follow closely, and what is ahead.
_CHUNKS_MAX = 8
_LEDGER_BYTES = 2 * _FAST_AHEAD_BYTES
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
        self._joined_max = min(bytes_max // 4, _FAST_AHEAD_BYTES)
        self._fetches = 0
        storage.logs.is_disk_shared = self._is_writing
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
            self._storage.logs.file_system.release_memory()
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
            wanted = (count_max, bytes_max)
            if (fast_bytes := self._fast_bytes(stream)) > bytes_max:
                wanted = (1 << 30, fast_bytes)
            read = functools.partial(
                read_chunks, storage, ledger_id, first, *wanted, joined_max=self._joined_max
            )
            chunks = await self._loop.run_in_executor(self._readers, read)
            self._add(ledger_id, stream, chunks)
            return _take(chunks, first, count_max, bytes_max, at_least_one=at_least_one), True
        exactly = functools.partial(storage.read_stored, ledger_id, first, count_max, bytes_max)
        return await self._loop.run_in_executor(self._readers, exactly), True

    def _is_writing(self) -> bool:
        """Entries came a moment ago (any thread). A write would wait behind large reads."""
        newest_s = max(journal.newest.opened_s for journal in self._storage.journals)
        return perf_counter() - newest_s < _WRITING_S

    def _fast_bytes(self, stream: _Stream) -> int:
        """What is read at once for one who reads on and on; 0: that isn't so, or too much now."""
        if stream.in_order < _FAST_REQUESTS or self._is_writing():
            return 0
        return min((self._bytes_max - self.bytes) // 4, _FAST_AHEAD_BYTES)

    def _fetch_ahead(self, state: LedgerDescriptor, stream: _Stream, asked_bytes: int) -> None:
        """Begin to read what comes next, unless it is there."""
        first = stream.next_entry
        ahead = 0
        for chunk in stream.chunks:
            if chunk.end > first and chunk.first <= first:
                left = chunk.end - first
                ahead += chunk.bytes * left // len(chunk.sizes)
                first = chunk.end
        wanted = max(_AHEAD_BYTES, asked_bytes, self._fast_bytes(stream))
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
            read_chunks,
            *(self._storage, ledger_id, first, 1 << 30, wanted, HOLES_MAX),
            joined_max=self._joined_max,
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
        if self.bytes > self._bytes_max // 2:
            self._keep_ahead(stream)
        while (len(stream.chunks) > _CHUNKS_MAX or stream.bytes > _LEDGER_BYTES) and stream.chunks[
            0
        ].end <= stream.next_entry:
            self._drop_first(stream)
        while self.bytes > self._bytes_max:
            other_id, other = next(iter(self._streams.items()))
            if other is not stream:
                self.forget(other_id)
            elif len(stream.chunks) > 1:
                self._drop_first(stream)
            else:
                return  # one run is more than all: it goes with the next

    def _keep_ahead(self, stream: _Stream) -> None:
        """Drop what its last reader won't come to without a jump."""
        kept: list[WriteCacheChunk] = []
        end = stream.next_entry
        for chunk in stream.chunks:
            if chunk.end > end and chunk.first <= end + HOLES_MAX:
                kept.append(chunk)
                end = chunk.end
        kept_bytes = sum(chunk.bytes for chunk in kept)
        self.bytes += kept_bytes - stream.bytes
        stream.chunks, stream.bytes = kept, kept_bytes

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
    *,
    joined_max: int = 0,
) -> list[WriteCacheChunk]:
    """Whole runs from entry ``first`` on, checked, until they hold what was asked for.

    Runs that lie together are read at once, up to ``joined_max`` bytes.

    Empty: neither ``first`` nor one of the ``gap_max`` entries behind it is in the index.

    Raises:
        CorruptFileError: entry ``first`` is damaged.
        OSError: the disk failed.
    """
    chunks: list[WriteCacheChunk] = []
    while count_max > 0 and (bytes_max > 0 or not chunks):
        try:
            chunk = _read_chunk(storage, ledger_id, first, gap_max, min(bytes_max, joined_max))
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
    storage: LedgerStorage, ledger_id: int, first: int, gap_max: int, joined_max: int
) -> WriteCacheChunk | None:
    for attempt in range(_ATTEMPTS):
        run = storage.find_run(ledger_id, first)
        if run is None and gap_max:
            run = _run_behind(storage, ledger_id, first, gap_max)
        part = None if run is None else run.part(first, run.end)
        if part is None:
            return None
        joined = _joined(storage, ledger_id, part, joined_max)
        try:
            data, intact = storage.logs.read_intact(ledger_id, joined)
        except FileNotFoundError:
            # Compaction moved the run after the look-up; the index knows where to.
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        except OSError:
            if joined is part:
                raise
            # What can't be read may be in the others.
            data, intact = storage.logs.read_intact(ledger_id, joined := part)
        return _chunk(data, joined, intact)
    return None


def _joined(
    storage: LedgerStorage, ledger_id: int, run: LocationRun, bytes_max: int
) -> LocationRun:
    """The run, and those that go on behind it in the log, as one."""
    size = run.bytes
    if size >= bytes_max:
        return run
    sizes = list(run.sizes)
    _, high = index_format.ledger_runs(ledger_id)
    low = index_format.run_key(ledger_id, run.end)
    for item in storage.index.range(low, high, _JOINED_RUNS_MAX):
        _, after = index_format.decode_run(*item)
        gap = after.first - run.first - len(sizes)
        goes_on = after.log_id == run.log_id and after.offset == run.offset + size
        if gap > HOLES_MAX or not goes_on or size + after.bytes > bytes_max:
            break
        sizes += [0] * gap
        sizes += after.sizes
        size += after.bytes
    return LocationRun(run.first, run.log_id, run.offset, sizes)


def _run_behind(
    storage: LedgerStorage, ledger_id: int, first: int, gap_max: int
) -> LocationRun | None:
    """The run that begins a little behind ``first``."""
    low = index_format.run_key(ledger_id, first)
    items = storage.index.range(low, index_format.run_key(ledger_id, first + gap_max + 1), 1)
    return index_format.decode_run(*items[0])[1] if items else None


def _chunk(data: bytes | memoryview, run: LocationRun, intact: int) -> WriteCacheChunk:
    """The first ``intact`` ids of a run."""
    good = run if intact == len(run.sizes) else run.part(run.first, run.first + intact)
    assert good is not None, "the first entry is intact"
    sizes = list(good.sizes)
    size = good.bytes
    joined = cast("bytes", data[:size])  # a view does as well: it is sliced and nothing else
    return WriteCacheChunk(good.first, sizes, [joined], size, len(sizes) - sizes.count(0), JOINED)
