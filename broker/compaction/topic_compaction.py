"""Compaction of one topic: what was done, and the next run.

A run reads the last compacted ledger and the log behind its horizon, twice, and writes a new
compacted ledger; a process of its own says what is kept. The cursor ``__compaction`` then names
the new ledger, in one write with the new horizon, and only then is the old one deleted: whatever
crashes, readers see the old view or the new one. The cursor keeps what was not compacted from being
trimmed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final, TypeAlias

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.ledger_handles import WriteHandle
from magnetar.bookkeeper.transport import StoredRun
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.compaction_figures import CompactionFigures
from magnetar.broker.compaction.compaction_places import CompactionPlaces
from magnetar.broker.compaction.process_link import CompactionProcess, Given
from magnetar.broker.compaction.work_frames import COMPACTED, LocatedEntries
from magnetar.broker.errors import (
    STORAGE_ERRORS,
    CompactionBusyError,
    CompactionProcessError,
    PersistenceError,
)
from magnetar.broker.transaction.view import TransactionView
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.orphan_ledgers import (
    COMPACTED_LEDGER,
    COMPACTION_CURSOR,
    compacted_metadata,
)
from magnetar.managed_ledger.position import EARLIEST, Position, format_position

logger = logging.getLogger(__name__)

_READ_MAX: Final = (128, 128 * 1024)
"""Entries and bytes that are read, or written, together: what holds the loop is done for each."""
_WRITE_BYTES: Final = 64 * 1024
"""Entries of the new ledger that are written together."""
Give: TypeAlias = Callable[[int, int, Given], Awaitable[int]]
"""Ledger, first entry, entries; answers how many of them were there."""


@dataclass(slots=True, eq=False)
class TopicCompaction:
    """What a topic has once it was compacted, or is about to be.

    Attributes:
        on_cursor: told of the cursor when a run begins.
        view: what may be read of a log with transactions; None: it has none.
        start_process: one of this partition, which retains messages without a key or doesn't.
        places: a run waits for one of them, and has a process then; they say how fast it reads.
        current: what the last run left; None: there was none.
        status: ``NOT_RUN``, ``RUNNING``, ``SUCCESS``, ``ERROR`` since the topic was loaded.
        last_error: why it is ``ERROR``.
    """

    name: str
    partition: int
    log: ManagedLedger
    now_ms: Callable[[], int]
    on_cursor: Callable[[Cursor], None]
    places: CompactionPlaces
    retains_keyless: bool = False
    view: Callable[[], TransactionView | None] = lambda: None
    start_process: Callable[[int, bool], CompactionProcess] = CompactionProcess
    current: CompactedLedger | None = None
    status: str = "NOT_RUN"
    last_error: str = ""
    figures: CompactionFigures = field(default_factory=CompactionFigures)
    _run: asyncio.Task[None] | None = field(default=None, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        cursor = self.log.cursors.get(COMPACTION_CURSOR)
        ledger_id = None if cursor is None else cursor.state.properties.get(COMPACTED_LEDGER)
        if cursor is not None and ledger_id is not None:
            self.current = self._compacted(ledger_id, cursor.mark_delete)
        for row in self.log.lists.info.apart:  # of a run after which an earlier owner has crashed
            if row.ledger_id != ledger_id:
                self._delete_later(self._compacted(row.ledger_id, EARLIEST))
        self.sweep()

    def _compacted(self, ledger_id: int, horizon: Position) -> CompactedLedger:
        log = self.log
        return CompactedLedger(log.client, log.offloads, ledger_id, horizon, log.config.form)

    def metrics(self, now_s: float, period_s: float) -> tuple[float, ...]:
        """Those of `CompactionFigures`; entries and bytes of what the last run left, 0: not known
        before somebody reads it.
        """
        _, entries, size = (0, 0, 0) if self.current is None else self.current.figures
        return (*self.figures.metrics(now_s, period_s), max(entries, 0), max(size, 0))

    @property
    def is_running(self) -> bool:
        return self._run is not None and not self._run.done()

    def begin(self) -> None:
        """Begin a run.

        Raises:
            CompactionBusyError: one is under way.
        """
        if self.is_running:
            raise CompactionBusyError("Compaction already in progress")
        self.status, self.last_error = "RUNNING", ""
        self._run = asyncio.get_running_loop().create_task(self._compact())

    async def _compact(self) -> None:
        began_s = perf_counter()
        try:
            async with self.places.place(await self._bytes_to_read()):
                began_s = perf_counter()
                removed = await self._run_once()
        except asyncio.CancelledError:
            self.status, self.last_error = "ERROR", "the topic was unloaded"
            raise
        except Exception as error:
            if not isinstance(error, (*STORAGE_ERRORS, CompactionProcessError)):
                logger.exception("%s: compaction failed", self.name)
            else:
                logger.warning("%s: compaction failed: %s", self.name, error)
            self.status, self.last_error = "ERROR", str(error) or type(error).__name__
            self.figures.ended(self.now_ms(), perf_counter() - began_s, None)
            return
        self.status = "SUCCESS"
        if removed is not None:
            self.figures.ended(self.now_ms(), perf_counter() - began_s, removed)

    async def _bytes_to_read(self) -> int:
        """By each pass."""
        if self.current is None:
            return self.log.bytes_after(EARLIEST)
        return (await self.current.opened()).row.size + self.log.bytes_after(self.current.horizon)

    async def _run_once(self) -> int | None:
        """Compact up to the end of the log; answers removed messages, None: nothing is new."""
        log = self.log
        cursor = await log.open_cursor(COMPACTION_CURSOR, EARLIEST)
        self.on_cursor(cursor)
        view = self.view()
        old, upto = self.current, log.last_confirmed if view is None else view.last_confirmed
        after = EARLIEST if old is None else old.horizon
        if not log.offsets.entries_between(after, upto):
            return None
        process = self.start_process(self.partition, self.retains_keyless)
        try:
            await self._give_all(process.note, old, after, upto)
            removed = await process.choose()
            new = await self._write(process, old, after, upto)
        finally:
            process.kill()
        row = (await new.opened()).row  # what can't be read must not be named
        await self._publish(cursor, new)
        log.offloads.keep_apart(row)
        if old is not None:
            self._delete_later(old)
        try:  # for the search of leaked ledgers, which an older one doesn't mislead
            await cursor.set_cursor_properties({COMPACTED_LEDGER: str(new.ledger_id)})
        except STORAGE_ERRORS as error:
            logger.info("%s: properties of %s: %s", self.name, COMPACTION_CURSOR, error)
        logger.info(
            "%s: compacted up to %s into ledger %d, %d messages removed",
            self.name,
            format_position(upto),
            new.ledger_id,
            removed,
        )
        return removed

    async def _give_all(
        self, give: Give, old: CompactedLedger | None, after: Position, upto: Position
    ) -> None:
        """One pass over what is compacted, at the pace of the broker's compactions."""
        entry, offsets = 0, self.log.offsets
        count = 0 if old is None else (await old.opened()).row.entries
        while old is not None and entry < count:
            entry += await self._give_compacted(give, old, entry, count - 1)
        position = offsets.next_position(after)
        while position <= upto:
            ledger_id, first = position
            last = upto[1] if ledger_id == upto[0] else (offsets.entries(ledger_id) or 0) - 1
            given = await self._give_run(give, position, last)
            position = offsets.next_position((ledger_id, first + given - 1))

    async def _give_compacted(self, give: Give, old: CompactedLedger, entry: int, last: int) -> int:
        runs = await old.locate(entry, last, self.places.located_bytes)
        if given := await self._give_located(give, COMPACTED, runs):
            return given
        found = await old.read_encoded(entry, *_READ_MAX)
        await self._has_read(sum(map(len, found)))
        return await give(COMPACTED, entry, found)

    async def _give_run(self, give: Give, position: Position, last: int) -> int:
        """Entries of one ledger; answers how many."""
        (ledger_id, first), path, view = position, self.log.read_path(), self.view()
        if view is None or view.is_plain(position):
            runs = await path.locate(position, last, self.places.located_bytes)
            if given := await self._give_located(give, ledger_id, runs):
                return given
        last = min(last, first + _READ_MAX[0] - 1)
        entries: Sequence[Buffer] = (await path.read_stored(position, last, _READ_MAX[1])).bodies
        await self._has_read(sum(map(len, entries)))
        if (view := self.view()) is not None:
            entries = view.stored_without_aborted(ledger_id, first, entries)
        return await give(ledger_id, first, entries)

    async def _give_located(self, give: Give, ledger_id: int, runs: list[StoredRun]) -> int:
        """0: they aren't there any more, and the first entry has to be read."""
        if not runs:
            return 0
        entries = LocatedEntries(runs, self.places.bytes_per_s())
        await self._has_read(entries.bytes, held_loop=False)
        return await give(ledger_id, entries.first, entries)

    async def _has_read(self, size: int, *, held_loop: bool = True) -> None:
        self.figures.read(size)
        await self.places.pace(size, held_loop=held_loop)

    async def _write(
        self,
        process: CompactionProcess,
        old: CompactedLedger | None,
        after: Position,
        upto: Position,
    ) -> CompactedLedger:
        """The second pass; the ledger is closed and durable."""
        log, config = self.log, self.log.config
        writer = await log.client.create_ledger(
            LedgerConfig(config.ensemble_size, config.write_quorum, config.ack_quorum, b""),
            {
                **compacted_metadata(log.name, self.name, format_position(upto)),
                **await config.placement_metadata.read(),
            },
            above=-1 if old is None else old.ledger_id,
        )
        handle, waiting, size = WriteHandle(writer, _WRITE_BYTES), list[Buffer](), 0

        async def keep(entries: Sequence[Buffer]) -> None:
            nonlocal waiting, size
            waiting += entries
            size += sum(map(len, entries))
            if size >= _WRITE_BYTES or len(waiting) >= _READ_MAX[0]:
                some, bytes_, waiting, size = waiting, size, [], 0
                await self._append(handle, some, bytes_)

        try:
            await self._give_all(partial(process.take, keep=keep), old, after, upto)
            if waiting:
                await self._append(handle, waiting, size)
            await handle.close()
        except BaseException:
            self._delete_later(self._compacted(writer.ledger_id, upto))
            raise
        return self._compacted(writer.ledger_id, upto)

    async def _append(self, handle: WriteHandle, entries: list[Buffer], size: int) -> None:
        began_s = perf_counter()
        await handle.append_all(entries)
        self.figures.wrote(len(entries), size, perf_counter() - began_s)

    async def _publish(self, cursor: Cursor, new: CompactedLedger) -> None:
        """The cursor names the new ledger: durable when this returns."""
        cursor.ack_cumulative(new.horizon, {COMPACTED_LEDGER: new.ledger_id})
        await cursor.flush()  # an error leaves the new ledger alone: perhaps the cursor names it
        self.current = new

    def sweep(self) -> None:
        """At first, and now and then, because reading its row may fail: what an earlier owner has
        compacted may be offloaded, too.
        """
        log, current = self.log, self.current
        if current is None or not log.config.offload.driver or self.is_running:
            return
        if log.offloads.apart is None and not self._tasks:
            self._start(self._keep(current))

    async def _keep(self, current: CompactedLedger) -> None:
        try:
            row = (await current.opened()).row
        except STORAGE_ERRORS as error:  # the next sweep tries again
            logger.info("%s: ledger %d: %s", self.name, current.ledger_id, error)
            return
        if current is self.current:
            self.log.offloads.keep_apart(row)

    def _delete_later(self, compacted: CompactedLedger) -> None:
        self._start(self._delete(compacted))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, compacted: CompactedLedger) -> None:
        try:
            await compacted.delete()
        except STORAGE_ERRORS as error:  # the search for leaked ledgers finds it
            logger.info("%s: ledger %d not deleted: %s", self.name, compacted.ledger_id, error)

    async def remove(self) -> None:
        """Forget what was compacted: cursor and ledger go.

        Raises:
            CompactionBusyError: a run is under way.
            PersistenceError: the cursor is there still, perhaps.
        """
        if self.is_running:
            raise CompactionBusyError("Compaction already in progress")
        old, self.current = self.current, None
        try:
            await self.log.delete_cursor(COMPACTION_CURSOR)
        except STORAGE_ERRORS as error:
            self.current = old
            raise PersistenceError(f"cursor {COMPACTION_CURSOR}: {error}") from error
        self.status = "NOT_RUN"
        if old is not None:
            await self._delete(old)

    async def delete_ledger(self) -> None:
        """The log is deleted: what was compacted goes with it."""
        if self.current is not None:
            try:
                await self.log.client.delete_ledger(self.current.ledger_id)
            except STORAGE_ERRORS as error:  # the search for leaked ledgers finds it
                logger.info("%s: ledger %d: %s", self.name, self.current.ledger_id, error)

    async def stop(self) -> None:
        """The topic is closed: a run ends without result."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])
        if self._tasks:
            await asyncio.wait(self._tasks)
