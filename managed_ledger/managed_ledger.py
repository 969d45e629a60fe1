"""A managed ledger: one log without end over a list of ledgers, with its cursors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bookkeeper.errors import LedgerError
from managed_ledger.append_core import AppendDone, AppendState
from managed_ledger.append_path import AppendPath
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor.cursor import (
    Cursor,
    create_non_durable_cursor,
    delete_cursor,
    load_or_create_cursor,
)
from managed_ledger.entry_batch import Buffer, EntryBatch
from managed_ledger.entry_cache import EntryCache, LogCache, cut_to_bytes
from managed_ledger.errors import (
    CursorClosedError,
    ManagedLedgerClosedError,
    ManagedLedgerError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from managed_ledger.figures import LedgerFigures
from managed_ledger.ledger_list import LedgerList, ManagedLedgerInfo
from managed_ledger.list_store import ListStore
from managed_ledger.logger import logger
from managed_ledger.offload.choosing import is_offloaded
from managed_ledger.offload.offload_path import Offloading, OffloadPath
from managed_ledger.position import EARLIEST, LATEST, InitialPosition, Position
from managed_ledger.reading import ReadPath
from managed_ledger.sizes import LedgerSize, bytes_after, position_before_bytes
from managed_ledger.stats import LedgerStats, ManagedLedgerStats
from managed_ledger.trim_path import Trimmer
from metadata.errors import MetadataError, NotFoundError
from metadata.paths import decode_name
from metadata.store import MetadataStore

if TYPE_CHECKING:
    from bookkeeper.client.client import BookKeeperClient
    from bookkeeper.client.ledger_reader import LedgerReader

DRAIN_TIMEOUT_S = 10.0
"""How long close, terminate and truncate wait for appends that are under way."""
ACTIVE_BACKLOG_MAX = 50_000
"""A cursor with more unacknowledged entries than this has no claim on the cache."""

_STATE_NAMES = {
    AppendState.NO_LEDGER: "ClosedLedger",
    AppendState.CREATING: "CreatingLedger",
    AppendState.OPEN: "LedgerOpened",
    AppendState.SWITCHING: "ClosingLedger",
    AppendState.ENDING: "ClosingLedger",
    AppendState.UNDECIDED: "WriteFailed",
    AppendState.STOPPED: "Closed",
}


class ManagedLedger:
    """One open log; made by `ManagedLedgerFactory.open`, and the only one of its name.

    Attributes:
        on_appended: called once per tick in which ``last_confirmed`` moved.
        on_fenced: called once when another owner has taken over: unload. Nothing more is written.
        cursors: durable and non-durable ones by name; read only.
        entries_added: entries confirmed since the open.
        figures: what metrics show of its writes and reads.
    """

    __slots__ = (
        "_appends",
        "_closing",
        "_failure",
        "_is_fenced",
        "_on_closed",
        "_opening",
        "_reads",
        "cache",
        "client",
        "config",
        "cursors",
        "entries_added",
        "figures",
        "ledgers",
        "lists",
        "log_cache",
        "name",
        "now_ms",
        "offloads",
        "on_appended",
        "on_fenced",
        "path",
        "store",
        "trimmer",
    )

    def __init__(
        self,
        name: str,
        path: str,
        client: BookKeeperClient,
        store: MetadataStore,
        cache: EntryCache,
        config: ManagedLedgerConfig,
        now_ms: Callable[[], int],
        lists: ListStore,
        on_closed: Callable[[ManagedLedger], None],
        offloading: Offloading,
    ) -> None:
        self.name = name
        self.path = path
        self.client = client
        self.store = store
        self.cache = cache
        self.config = config
        self.now_ms = now_ms
        self.lists = lists
        self.ledgers = LedgerList((x.ledger_id, x.entries) for x in lists.info.ledgers)
        self.cursors: dict[str, Cursor] = {}
        self.on_appended: Callable[[], None] | None = None
        self.on_fenced: Callable[[BaseException], None] | None = None
        self.entries_added = 0
        self.figures = LedgerFigures()
        self.log_cache: LogCache | None = None
        self._appends: AppendPath | None = None
        self._reads: ReadPath | None = None
        self._failure: ManagedLedgerError | None = None  # closed or fenced
        # Cursors being made hold back the trim as well.
        self._opening: dict[str, tuple[Position, asyncio.Task[Cursor]]] = {}
        self._is_fenced = False
        self._closing: asyncio.Task[None] | None = None
        self.trimmer = Trimmer(self)
        self.offloads = OffloadPath(self, offloading)
        self._on_closed = on_closed

    # State

    @property
    def state(self) -> str:
        """Name of the state as in Pulsar's statistics."""
        if self._is_fenced:
            return "Fenced"
        if self._failure is not None:
            return "Closed"
        if self.terminated is not None:
            return "Terminated"
        if self._appends is None:
            return "LedgerOpened"  # the next append makes a ledger; operators needn't know
        return _STATE_NAMES[self._appends.core.state]

    @property
    def is_owner(self) -> bool:
        """False once another owner was seen."""
        return not self._is_fenced

    @property
    def is_open(self) -> bool:
        """Neither fenced nor closed nor closing."""
        return self._failure is None and self._closing is None

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry; see `LedgerList.last_confirmed`."""
        return self.ledgers.last_confirmed

    @property
    def entry_count(self) -> int:
        """Existing entries."""
        return self.ledgers.entry_count

    @property
    def total_bytes(self) -> int:
        """Bytes of all existing entries, heads included, and of appends under way."""
        size = self.lists.info.size
        if self._appends is not None and self._appends.core.current >= 0:
            size += self._appends.core.current_bytes
        return size

    @property
    def pending_bytes(self) -> int:
        """Bytes of appends that aren't confirmed: what back-pressure goes by."""
        return 0 if self._appends is None else self._appends.core.pending_bytes

    @property
    def missing_bookies(self) -> int:
        """How many more must accept writes before an append can succeed; 0: a ledger is open."""
        if self._appends is not None and self._appends.core.current >= 0:
            return 0
        return max(0, self.config.ensemble_size - len(self.client.bookies.writable))

    @property
    def terminated(self) -> Position | None:
        """The last position of a sealed log; None: it isn't sealed."""
        return self.lists.info.terminated

    @property
    def properties(self) -> dict[str, str]:
        """A copy of the stored properties."""
        return dict(self.lists.info.properties)

    # Appending

    def append(self, heads: list[bytes], bodies: list[Buffer], on_done: AppendDone) -> None:
        """Adds entries; never blocks. The lists are the log's afterwards.

        Args:
            heads, bodies: parallel lists; every head has ``config.head_bytes`` bytes.
            on_done: called with (ledger id, first entry id, count, error), in order, as often as
                it takes for the counts to sum up. Without an error the entries are durable and
                readable. With one, ids are -1 and this owner will never confirm them.
        """
        appends = self._appends
        if appends is None:
            appends = self._appends = AppendPath(self)
            if self._failure is not None:
                appends.core.refuse(self._failure)
            elif self.terminated is not None:
                appends.core.refuse(ManagedLedgerTerminatedError(self.name))
        appends.append(heads, bodies, on_done)

    def confirmed(
        self, ledger_id: int, first: int, heads: list[bytes], bodies: list[Buffer], size: int
    ) -> None:
        """For the append path: entries are durable. The lists go to the cache."""
        count = len(heads)
        self.ledgers.confirm(ledger_id, first + count - 1)
        self.entries_added += count
        if self.cache.bytes_max:
            self.cache_of_log().append(ledger_id, first, heads, bodies, size)

    def appended(self) -> None:
        """For the append path: once per batch of reports."""
        if self.on_appended is not None:
            self.on_appended()

    def fence(self, error: BaseException) -> None:
        """Gives the log up for good. Pending appends fail; ``on_fenced`` hears of it once."""
        if self._failure is not None:
            return
        logger.warning("%s: fenced: %s", self.name, error)
        if not isinstance(error, ManagedLedgerFencedError):
            cause, error = error, ManagedLedgerFencedError(f"{self.name}: {error}")
            error.__cause__ = cause
        self._failure = error
        self._is_fenced = self.lists.is_lost = True
        if self._appends is not None:
            self._appends.core.stop(error)
            self._appends.run()
        if self.on_fenced is not None:
            self.on_fenced(error)

    # Reading

    def read_nowait(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Entries from the cache: the first existing one at or after ``position``, and more.

        Returns:
            None when the cache doesn't have it, or when there is nothing yet.
        """
        log_cache, ledgers = self.log_cache, self.ledgers
        if log_cache is None or position > ledgers.last_confirmed:
            return None
        chunk = log_cache.find(position[0], position[1])
        if chunk is None:
            existing = ledgers.first_at_or_after(position)
            if existing is None or existing == position:
                return None
            position = existing
            chunk = log_cache.find(position[0], position[1])
            if chunk is None:
                return None
        self.cache.hits += 1
        log_cache.is_read = True
        batch = chunk.slice(position[1], entries_max, bytes_max)
        if chunk is not log_cache.tail and not chunk.is_ahead:
            chunk.is_ahead = True
            self._read_ahead(chunk.ledger_id, chunk.end)
        return batch

    def cached_head(self, position: Position) -> bytes | None:
        """The head of an entry if the cache has it; the cache doesn't take it for a read."""
        chunk = None if self.log_cache is None else self.log_cache.find(*position)
        return None if chunk is None else chunk.slice(position[1], 1, 1).heads[0]

    def _read_ahead(self, ledger_id: int, entry_id: int) -> None:
        """A reader works off a chunk from storage: have the next one ready."""
        following = self.ledgers.first_at_or_after((ledger_id, entry_id))
        if following is None or self._reads is None or self._failure is not None:
            return
        if self.log_cache is not None and self.log_cache.find(*following) is None:
            self._reads.read_ahead(following)

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """The first existing entry at or after ``position`` and more of its ledger.

        Args:
            bytes_max: bound of the answer's heads and bodies; one entry may exceed it.

        Returns:
            None: there is nothing yet.

        Raises:
            LedgerError: no replica gave the entry; may pass.
            ManagedLedgerClosedError: the log was closed.
        """
        while True:
            if isinstance(self._failure, ManagedLedgerClosedError):
                raise self._failure
            existing = self.ledgers.first_at_or_after(position)
            if existing is None:
                return None
            batch = self.read_nowait(existing, entries_max, bytes_max)
            if batch is not None:
                return batch
            if self._reads is None:
                self._reads = ReadPath(self)
            try:
                run = await self._reads.read_run(existing, bytes_max)
            except LedgerError:
                if self.ledgers.is_valid(existing):
                    raise
                continue  # trimmed while it was read: go on behind the gap
            heads, bodies = run.heads[:entries_max], run.bodies[:entries_max]
            cut_to_bytes(heads, bodies, bytes_max)
            return EntryBatch(run.ledger_id, run.first, heads, bodies)

    async def find_newest(
        self,
        predicate: Callable[[bytes, Buffer], bool],
        *,
        after: Position = EARLIEST,
        upto: Position = LATEST,
    ) -> Position | None:
        """The last entry in ``(after, upto]`` whose head and body satisfy a monotone predicate.

        Args:
            predicate: true for all entries up to some point and false from there on.

        Raises:
            LedgerError: an entry couldn't be read.
        """
        found: Position | None = None
        upto = min(upto, self.last_confirmed)
        count = self.ledgers.entries_between(after, upto)
        while count > 0:
            half = (count + 1) // 2
            position = self.ledgers.position_after(after, half)
            if position > upto:
                break
            if await self._test(position, predicate):
                found = after = position
            elif half == 1:
                break
            else:
                upto = self.ledgers.previous_position(position)
            count = self.ledgers.entries_between(after, upto)
        return found

    async def _test(self, position: Position, predicate: Callable[[bytes, Buffer], bool]) -> bool:
        chunk = None if self.log_cache is None else self.log_cache.find(*position)
        if chunk is not None:
            batch = chunk.slice(position[1], 1, 1)
        else:
            if self._reads is None:
                self._reads = ReadPath(self)
            try:
                batch = await self._reads.read_entry(position)
            except LedgerError:
                if self.ledgers.is_valid(position):
                    raise
                return True  # trimmed meanwhile: what follows is later
        return predicate(batch.heads[0], batch.bodies[0])

    def cache_of_log(self) -> LogCache:
        """This log's part of the cache, made when needed."""
        if self.log_cache is None:
            self.log_cache = LogCache(self.cache, self._slowest_active)
        return self.log_cache

    def writer_reader(self, ledger_id: int) -> LedgerReader | None:
        """For the read path: reads a ledger that this log writes; None when it doesn't."""
        writer = None if self._appends is None else self._appends.writers.get(ledger_id)
        return None if writer is None else writer.reader()

    def _slowest_active(self) -> Position | None:
        last = self.ledgers.last_confirmed
        active = [
            x.mark_delete
            for x in self.cursors.values()
            if self.ledgers.entries_between(x.mark_delete, last) <= ACTIVE_BACKLOG_MAX
        ]
        return min(active, default=None)

    # Positions

    def ledger_counts(self) -> Sequence[tuple[int, int]]:
        """(ledger id, confirmed entries) of every listed ledger."""
        return self.ledgers.counts()

    def ledger_entries(self, ledger_id: int) -> int | None:
        """Confirmed entries of a listed ledger; None when it isn't listed."""
        return self.ledgers.entries(ledger_id)

    def is_valid(self, position: Position) -> bool:
        """Whether a confirmed entry exists there."""
        return self.ledgers.is_valid(position)

    def first_position(self) -> Position:
        """First existing entry, or the next to be written."""
        return self.ledgers.first_position()

    def next_position(self, position: Position) -> Position:
        """First existing entry after the position, or the next to be written."""
        return self.ledgers.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """Last existing entry before the position, or just before the first ledger."""
        return self.ledgers.previous_position(position)

    def position_after(self, position: Position, entries: int) -> Position:
        """``entries`` steps of `next_position`."""
        return self.ledgers.position_after(position, entries)

    def entries_between(self, after: Position, upto: Position) -> int:
        """Existing entries in ``(after, upto]``."""
        return self.ledgers.entries_between(after, upto)

    def bytes_after(self, position: Position) -> int:
        """Bytes of the entries behind a position, by the mean entry within one ledger."""
        return bytes_after(self._ledger_sizes(), position)

    def position_before_bytes(self, bytes_max: int) -> Position | None:
        """The lowest position behind which there are at most so many bytes; None: all fit."""
        return position_before_bytes(self._ledger_sizes(), bytes_max)

    def _ledger_sizes(self) -> list[LedgerSize]:
        """Of every listed ledger, appends under way included."""
        sizes: list[LedgerSize] = []
        writers = {} if self._appends is None else self._appends.writers
        for listed in self.lists.info.ledgers:
            writer = None if listed.closed_ms else writers.get(listed.ledger_id)
            if writer is None:
                sizes.append((listed.ledger_id, listed.entries, listed.size))
            else:
                sizes.append((listed.ledger_id, writer.next_entry, writer.length))
        return sizes

    # Cursors

    async def open_cursor(
        self,
        name: str,
        initial: InitialPosition = LATEST,
        properties: Mapping[str, str] | None = None,
    ) -> Cursor:
        """The durable cursor of that name: the open one, else it is created.

        Args:
            initial: the first position that a new cursor delivers.
            properties: stored with a new cursor.
        """
        self._require_open()
        if (cursor := self.cursors.get(name)) is not None:
            return cursor
        if (opening := self._opening.get(name)) is None:
            mark_delete = self._before(initial)
            task = asyncio.get_running_loop().create_task(
                load_or_create_cursor(self, name, mark_delete, properties or {})
            )
            task.add_done_callback(partial(self._on_cursor_opened, name))
            opening = self._opening[name] = (mark_delete, task)
        # Two loads of one cursor would fence each other: everybody waits for the first.
        return await asyncio.shield(opening[1])

    def _on_cursor_opened(self, name: str, task: asyncio.Task[Cursor]) -> None:
        del self._opening[name]
        if not task.cancelled() and task.exception() is None:
            self.cursors[name] = task.result()

    def new_non_durable_cursor(self, start: Position, name: str) -> Cursor:
        """A cursor in memory only; the log doesn't keep entries for it."""
        self._require_open()
        if name in self.cursors:
            raise ValueError(f"{self.name}: there is a cursor {name!r} already")
        cursor = create_non_durable_cursor(self, name, self._before(start))
        self.cursors[name] = cursor
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Removes a cursor and its storage; a missing one is success."""
        self._require_open()
        await self._delete_cursor(name)
        self.trimmer.trim_soon()

    async def _delete_cursor(self, name: str) -> None:
        if (opening := self._opening.get(name)) is not None:
            await asyncio.wait([opening[1]])
        if (cursor := self.cursors.get(name)) is None:
            await delete_cursor(self, name)
            return
        await cursor.delete()
        self.cursors.pop(name, None)

    async def load_cursors(self) -> None:
        """For the factory: loads every stored cursor, which takes each over from its last owner."""
        names = [decode_name(x) for x in await self.store.children(self.path)]
        if names:
            loads = (load_or_create_cursor(self, x, self.last_confirmed, {}) for x in names)
            results = await asyncio.gather(*loads, return_exceptions=True)
            for name, result in zip(names, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                self.cursors[name] = result
        self.trimmer.on_list_changed(self.lists.info)
        self.offloads.on_list_changed(self.lists.info)
        self.trimmer.trim_if_consumed()

    def on_mark_delete(self, previous: Position, current: Position) -> None:
        """From a cursor: its mark-delete moved, so its first ledger may be free."""
        ledgers = self.lists.info.ledgers
        if len(ledgers) > 1 and ledgers[0].closed_ms:
            end = (ledgers[0].ledger_id, ledgers[0].entries - 1)
            # The others are asked only when this cursor itself sets the ledger free.
            if current >= end:
                slowest, _ = self.retained_from()
                if slowest is not None and slowest >= end and not self.config.retention_ms:
                    self.trimmer.trim_soon()

    def on_cursor_fenced(self, error: BaseException) -> None:
        """From a cursor: another owner took it."""
        self.fence(error)

    def _before(self, position: Position) -> Position:
        """The mark-delete position of a cursor that delivers ``position`` first."""
        if position > self.last_confirmed:
            return self.last_confirmed
        return self.ledgers.previous_position(max(position, self.ledgers.first_position()))

    # Trimming and the list

    async def trim(self) -> None:
        """Deletes the ledgers that no durable cursor and no retention needs.

        Raises:
            MetadataError: the list couldn't be changed; nothing was deleted.
        """
        self._require_open()
        await self.trimmer.trim(ignore_retention=False)

    def on_list_changed(self, info: ManagedLedgerInfo) -> None:
        """The stored list was shortened, perhaps: let go of what isn't listed any more."""
        listed = {x.ledger_id for x in info.ledgers}
        gone = [x for x in self.ledgers.ledger_ids if x not in listed]
        if gone:
            self.ledgers.remove(gone)
            if self.log_cache is not None and info.ledgers:
                self.log_cache.drop_ledgers(info.ledgers[0].ledger_id)
            for ledger_id in gone:
                self.on_ledger_ended(ledger_id)
            first = self.ledgers.previous_position(self.ledgers.first_position())
            for cursor in self.cursors.values():
                if not cursor.durable and cursor.mark_delete < first:
                    cursor.advance_to(first)
        self.trimmer.on_list_changed(info)
        self.offloads.on_list_changed(info)

    def on_ledger_ended(self, ledger_id: int) -> None:
        """A ledger is closed or gone: reads go on through a fresh reader."""
        if self._reads is not None:
            self._reads.forget(ledger_id)

    def retained_from(self) -> tuple[Position | None, int]:
        """What trimming must spare: from the first position on, and from the ledger id on.

        The position is the lowest durable mark-delete, of cursors in the making too; None without
        durable cursors. The ledger is the one that is written.
        """
        positions = [x.durable_mark_delete for x in self.cursors.values() if x.durable]
        positions += [x for x, _ in self._opening.values()]
        core = None if self._appends is None else self._appends.core
        written = 2**63 if core is None or core.current < 0 else core.current
        return min(positions, default=None), written

    def sweep(self, now_ms: int) -> None:
        """From the factory, now and then: what depends on time."""
        if self._failure is not None:
            return
        if self._appends is not None:
            self._appends.sweep(now_ms)
        if len(self.lists.info.ledgers) > 1:
            self.trimmer.trim_soon()
            self.offloads.on_list_changed(self.lists.info)

    # Administration

    def configure(self, config: ManagedLedgerConfig) -> None:
        """Goes on with other settings: new ledgers take the new quorums, trimming the new
        retention. The length of heads and the password are those of the open.
        """
        before, self.config = (
            self.config,
            replace(config, head_bytes=self.config.head_bytes, password=self.config.password),
        )
        if self._appends is not None:
            self._appends.configure()
        retention = (config.retention_ms, config.retention_bytes)
        if (
            retention != (before.retention_ms, before.retention_bytes)
            and len(self.ledgers.ledger_ids) > 1
        ):
            self.trimmer.trim_soon()
        if config.offload != before.offload:
            self.offloads.on_list_changed(self.lists.info)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replaces the stored properties; durable when this returns."""
        wanted = dict(properties)
        await self.update_properties(lambda _: wanted)

    async def update_properties(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Applies a pure change to the stored properties, so that concurrent ones don't get lost.

        What ``change`` raises goes to the caller; nothing is stored then.
        """
        self._require_open()
        await self._update(lambda x: x.with_properties(change(x.properties)))

    async def terminate(self) -> Position:
        """Seals the log: appends fail from now on, readers reach an end.

        Returns:
            The last position it will ever have.
        """
        self._require_open()
        if self.terminated is not None:
            return self.terminated
        error = ManagedLedgerTerminatedError(self.name)
        if self._appends is None:
            self._appends = AppendPath(self)
        self._appends.core.refuse(error)
        await self._appends.drain(DRAIN_TIMEOUT_S)
        self._appends.core.stop(error)
        self._appends.run()
        await self._appends.finish_tasks()
        await self._appends.close_writers()
        last = self.last_confirmed
        await self._update(lambda x: x.with_terminated(last))
        return last

    async def truncate(self) -> None:
        """Acknowledges everything for every cursor and deletes all but an empty ledger."""
        self._require_open()
        if self.ledgers.entry_count and self.terminated is None:
            if self._appends is None:
                self._appends = AppendPath(self)
            appends = self._appends
            written = self.last_confirmed[0]
            appends.core.rotate(self.now_ms())
            appends.run()
            while appends.core.current <= written and appends.core.refusal is None:
                if not await appends.wait_change(DRAIN_TIMEOUT_S):
                    break
            await appends.finish_tasks()
        for cursor in list(self.cursors.values()):
            try:
                await cursor.reset(self.ledgers.next_position(self.last_confirmed))
            except CursorClosedError:
                self._require_open()  # else this cursor is being deleted: it holds nothing back
        await self.trimmer.trim(ignore_retention=True)

    async def close(self) -> None:
        """Ends the ledgers in use and stores the cursors, unless the log is fenced.

        What can't be stored is logged: the next open recovers it.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if isinstance(self._failure, ManagedLedgerClosedError):
            await self._finish()  # deleted, perhaps in part
            return
        await self.offloads.stop()
        closed = ManagedLedgerClosedError(f"{self.name} is closed")
        appends = self._appends
        if appends is not None:
            appends.core.refuse(closed)
            if self._failure is None:
                await appends.drain(DRAIN_TIMEOUT_S)
            appends.core.stop(closed)
            appends.run()
        for cursor in list(self.cursors.values()):
            try:
                await cursor.close()
            except (LedgerError, MetadataError, ManagedLedgerError) as error:
                logger.warning("%s: cursor %s: %s", self.name, cursor.name, error)
        if appends is not None:
            if self._is_fenced:
                appends.abandon_tasks()
            await appends.finish_tasks()
            if not self._is_fenced:
                await appends.close_writers()
        self._failure = closed
        await self._finish()

    async def delete(self) -> None:
        """Deletes the log with its cursors and ledgers.

        Raises:
            MetadataError, LedgerError: it is partly deleted; call the factory's delete again.
        """
        self._require_open()
        error = ManagedLedgerClosedError(f"{self.name} is deleted")
        appends = self._appends
        if appends is not None:
            appends.core.stop(error)
            appends.run()
            await appends.finish_tasks()
        await self.offloads.stop()
        info = await self._update(lambda x: x.without({y.ledger_id for y in x.ledgers}))
        self._failure = error
        stored = map(decode_name, await self.store.children(self.path))
        for name in {*self.cursors, *self._opening, *stored}:
            await self._delete_cursor(name)
        for ledger_id in info.doomed:
            await self.client.delete_ledger(ledger_id)
        await self.offloads.delete_copies()
        await self._finish()
        with contextlib.suppress(NotFoundError):
            await self.store.delete(self.path, self.lists.version)

    def stats(self) -> ManagedLedgerStats:
        """A snapshot for the admin API; O(ledgers)."""
        appends = self._appends
        core = None if appends is None else appends.core
        return ManagedLedgerStats(
            entries_added_counter=self.entries_added,
            number_of_entries=self.entry_count,
            total_size=self.total_bytes,
            current_ledger_entries=0 if core is None or core.current < 0 else core.next_entry,
            current_ledger_size=0 if core is None or core.current < 0 else core.current_bytes,
            last_ledger_created_ms=0 if appends is None else appends.created_ms,
            last_ledger_creation_failure_ms=0 if appends is None else appends.create_failure_ms,
            pending_append_entries=0 if core is None else core.pending_entries,
            pending_append_bytes=self.pending_bytes,
            last_confirmed=self.last_confirmed,
            state=self.state,
            ledgers=[
                LedgerStats(x.ledger_id, x.entries, x.size, x.closed_ms, is_offloaded(x))
                for x in self.lists.info.ledgers
            ],
            terminated=self.terminated,
            properties=self.properties,
            cached_bytes=0
            if self.log_cache is None
            else sum(x.size for x in self.log_cache.chunks),
            offloaded_size=self.offloads.copied_bytes,
            last_offload_ledger=self.offloads.last_ledger_id,
            last_offload_success_ms=self.offloads.last_success_ms,
            last_offload_failure_ms=self.offloads.last_failure_ms,
        )

    # Helpers

    async def _update(
        self, change: Callable[[ManagedLedgerInfo], ManagedLedgerInfo]
    ) -> ManagedLedgerInfo:
        try:
            return await self.lists.update(change)
        except ManagedLedgerFencedError as error:
            self.fence(error)
            raise

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _finish(self) -> None:
        """Nothing of this log stays in memory or under way."""
        if self._reads is not None:
            await self._reads.close()
        await self.trimmer.finish()
        if self.log_cache is not None:
            self.log_cache.clear()
            self.log_cache = None
        self._on_closed(self)
