"""Reads that miss the cache: open ledgers, runs with read-ahead, overlapping reads joined.

Subscriptions that catch up at once are seldom at the same entry, but in the same few hundred. So a
read waits for one under way that is to bring its entry, and a new one ends where another begins:
an entry is asked of the bookies once, however many readers want it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from magnetar.bookkeeper.client.ledger_reader import EntryRun, LedgerReader
from magnetar.bookkeeper.errors import BookieTooManyRequestsError, LedgerError
from magnetar.bookkeeper.transport import StoredRun
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.offload.interfaces import EntryReader
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

READERS_MAX = 8
"""Open ledgers kept per log; the oldest is dropped, opening again costs one metadata read."""
READ_AHEAD_BYTES_MIN = 256 << 10
READ_AHEAD_BYTES_MAX = 4 << 20
READ_AHEAD_ENTRIES_MAX = 512
"""A run is cut here, so that splitting it never holds the loop for long."""


@dataclass(slots=True)
class _Reading:
    """A read under way."""

    ledger_id: int
    first: int
    last: int
    """Last entry asked for; the answer may be shorter, for its bytes, but never empty."""
    task: asyncio.Task[EntryBatch]


class ReadPath:
    """The storage side of one log's reads; made at its first cache miss."""

    __slots__ = ("_ahead_bytes", "_in_flight", "_log", "_readers", "_sequential")

    def __init__(self, log: ManagedLedger) -> None:
        self._log = log
        self._readers: dict[int, EntryReader] = {}
        self._in_flight: dict[Position, _Reading] = {}  # by their first entry; a few
        self._sequential: Position | None = None  # where the last run ended
        self._ahead_bytes = READ_AHEAD_BYTES_MIN

    async def read_run(self, position: Position, bytes_max: int) -> EntryBatch:
        """A run that starts at an existing entry; it is in the cache as well, or a part of what is.

        Raises:
            LedgerError: no replica gave the entry; the next read tries again.
        """
        entry_id = position[1]
        while True:
            reading = self._covering(position) or self._start(position, bytes_max)
            try:
                # A reader that goes away must not take the others' read with it.
                batch = await asyncio.shield(reading.task)
            except LedgerError:
                if reading.first == entry_id:
                    raise
                continue  # perhaps only an entry before ours can't be read
            if entry_id <= batch.last:
                return batch.from_entry(entry_id)

    def read_ahead(self, position: Position) -> None:
        """Starts reading a run that will be asked for, unless it is under way."""
        if self._covering(position) is None:
            self._start(position, 0)

    async def read_entry(self, position: Position) -> EntryBatch:
        """One entry, past the cache: for searches that jump about."""
        return await self.read_past_cache(position, position[1], 1)

    async def read_past_cache(self, position: Position, last: int, bytes_max: int) -> EntryBatch:
        """Entries of one ledger up to ``last``, at least one: for those that read all of a log.

        Raises:
            LedgerError: no replica gave the entry; may pass.
        """
        return self._split(await self.read_stored(position, last, bytes_max))

    async def read_stored(self, position: Position, last: int, bytes_max: int) -> EntryRun:
        """As `read_past_cache`; the bodies are whole entries, as they lie in the ledger.

        Raises:
            LedgerError: no replica gave the entry; may pass.
        """
        try:
            return await self._run_from(*position, last, bytes_max)
        except LedgerError as error:
            self._on_error(position[0], error)
            raise

    async def locate(self, position: Position, last: int, bytes_max: int) -> list[StoredRun]:
        """Where entries of one ledger up to ``last`` lie in files of this machine; empty: only
        `read_stored` tells. See ``EntryFiles``.

        Raises:
            LedgerError: the ledger can't be opened; may pass.
        """
        reader = await self._reader(position[0])
        if not isinstance(reader, LedgerReader):
            return []
        return await reader.locate(position[1], last, bytes_max)

    def forget(self, ledger_id: int) -> None:
        """The ledger was closed (its reader's bound changed) or trimmed."""
        self._readers.pop(ledger_id, None)

    async def close(self) -> None:
        """Waits for reads under way; their callers get their answers."""
        if self._in_flight:
            await asyncio.wait([x.task for x in self._in_flight.values()])
        self._readers.clear()

    def _covering(self, position: Position) -> _Reading | None:
        """A read under way that is to bring the entry."""
        if (reading := self._in_flight.get(position)) is not None:
            return reading
        ledger_id, entry_id = position
        for reading in self._in_flight.values():
            if reading.ledger_id == ledger_id and reading.first <= entry_id <= reading.last:
                return reading
        return None

    def _start(self, position: Position, bytes_max: int) -> _Reading:
        if position == self._sequential:
            self._ahead_bytes = min(self._ahead_bytes * 2, READ_AHEAD_BYTES_MAX)
        else:
            self._ahead_bytes = READ_AHEAD_BYTES_MIN
        bytes_max = max(bytes_max, min(self._ahead_bytes, self._log.cache.bytes_max // 16))
        last = self._last_to_read(position)
        task = asyncio.get_running_loop().create_task(self._read(position, last, bytes_max))
        task.add_done_callback(_retrieve)
        reading = self._in_flight[position] = _Reading(*position, last, task)
        return reading

    def _last_to_read(self, position: Position) -> int:
        """As far as it makes sense: up to what is in the cache, or is being read."""
        log = self._log
        ledger_id, first = position
        confirmed = log.offsets.entries(ledger_id) or 0
        last = min(confirmed, first + READ_AHEAD_ENTRIES_MAX) - 1
        if log.log_cache is not None:
            room = log.log_cache.room_after(ledger_id, first)
            if room is not None:
                last = min(last, room - 1)
        for other in self._in_flight.values():
            if other.ledger_id == ledger_id and first < other.first <= last:
                last = other.first - 1
        return max(first, last)

    async def _read(self, position: Position, last: int, bytes_max: int) -> EntryBatch:
        log = self._log
        ledger_id, first = position
        try:
            log.cache.misses += 1
            log.metrics.read_missed()
            batch = self._split(await self._run_from(ledger_id, first, last, bytes_max))
        except LedgerError as error:
            self._on_error(ledger_id, error)
            raise
        finally:
            del self._in_flight[position]
        self._sequential = (ledger_id, batch.last + 1)
        if log.offsets.entries(ledger_id) is not None:  # else trimmed meanwhile
            log.cache_of_log().add_read(batch)
        return batch

    async def _run_from(self, ledger_id: int, first: int, last: int, bytes_max: int) -> EntryRun:
        reader = await self._reader(ledger_id)
        try:
            return await reader.read(first, last, bytes_max)
        except LedgerError:
            if self._readers.get(ledger_id) is reader:
                raise
            # Meanwhile it was closed, or bookies were told to forget it: it is read elsewhere now.
            reader = await self._reader(ledger_id)
            return await reader.read(first, last, bytes_max)

    def _split(self, run: EntryRun) -> EntryBatch:
        return EntryBatch(run.ledger_id, run.first, *self._log.config.form.split(run.bodies))

    async def _reader(self, ledger_id: int) -> EntryReader:
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = self._log.writer_reader(ledger_id) or self._log.offloads.reader(ledger_id)
            if reader is None:
                reader = await self._log.client.open_ledger(
                    ledger_id, self._log.config.password, recover=False
                )
            while len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[ledger_id] = reader
        return reader

    def _on_error(self, ledger_id: int, error: LedgerError) -> None:
        self._log.metrics.read_failed()
        if not isinstance(error, BookieTooManyRequestsError):  # says nothing about the ledger
            self._readers.pop(ledger_id, None)


def _retrieve(task: asyncio.Task[EntryBatch]) -> None:
    """A run read ahead may fail without a waiting reader: the next one reads it again."""
    if not task.cancelled():
        task.exception()


Predicate: TypeAlias = Callable[[bytes, Buffer], bool]
"""Of an entry's head and body."""


async def find_newest(
    log: ManagedLedger, predicate: Predicate, after: Position, upto: Position
) -> Position | None:
    """See `ManagedLedger.find_newest`."""
    ledgers = log.offsets
    found: Position | None = None
    upto = min(upto, ledgers.last_confirmed)
    count = ledgers.entries_between(after, upto)
    while count > 0:
        half = (count + 1) // 2
        position = ledgers.position_after(after, half)
        if position > upto:
            break
        if await _test(log, position, predicate):
            found = after = position
        elif half == 1:
            break
        else:
            upto = ledgers.previous_position(position)
        count = ledgers.entries_between(after, upto)
    return found


async def _test(log: ManagedLedger, position: Position, predicate: Predicate) -> bool:
    chunk = None if log.log_cache is None else log.log_cache.find(*position)
    if chunk is not None:
        batch = chunk.slice(position[1], 1, 1)
    else:
        try:
            batch = await log.read_path().read_entry(position)
        except LedgerError:
            if log.offsets.is_valid(position):
                raise
            return True  # trimmed meanwhile: what follows is later
    return predicate(batch.heads[0], batch.bodies[0])
