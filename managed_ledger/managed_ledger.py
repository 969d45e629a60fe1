"""A managed ledger: one log without end over a list of ledgers, with its cursors."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from time import perf_counter
from types import MappingProxyType

import orjson

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger import closing
from magnetar.managed_ledger.append_core import AppendBudget, AppendDone, AppendState
from magnetar.managed_ledger.append_path import AppendPath
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.cursor_set import CursorSet
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.entry_cache import EntryCache, LedgerCache, cut_to_bytes
from magnetar.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from magnetar.managed_ledger.ledger_info_store import LedgerInfoStore
from magnetar.managed_ledger.ledger_rows import LedgerRows, ids_gone
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets, ManagedLedgerInfo
from magnetar.managed_ledger.metrics import LedgerMetrics
from magnetar.managed_ledger.offload.offload_path import Offloading, OffloadPath
from magnetar.managed_ledger.position import EARLIEST, LATEST, InitialPosition, Position
from magnetar.managed_ledger.read_path import Predicate, ReadPath, find_newest
from magnetar.managed_ledger.sizes import (
    LedgerSize,
    bytes_after,
    position_before_bytes,
    segment_sizes,
)
from magnetar.managed_ledger.trim_path import Trimmer
from magnetar.metadata.errors import ValueTooLargeError
from magnetar.metadata.store import MetadataStore

PROPERTIES_BYTES_MAX = 128 << 10
"""As JSON: they are in the list's node, whose other growth needs the room. Requests of users may
bring half of it (`docs/internals/stored-values.md`).
"""
_STATE_NAMES = {
    AppendState.NO_LEDGER: "ClosedLedger",
    AppendState.CREATING: "CreatingLedger",
    AppendState.OPEN: "LedgerOpened",
    AppendState.SWITCHING: "ClosingLedger",
    AppendState.ENDING: "ClosingLedger",
    AppendState.UNDECIDED: "WriteFailed",
    AppendState.STOPPED: "Closed",
}


@dataclass(slots=True, eq=False, repr=False)
class ManagedLedger:
    """One open log; made by `ManagedLedgerFactory.open`, and the only one of its name.

    One object, because it is what Pulsar's interface of this name is: the parts that append, read,
    trim and offload are objects of their own, and meet here only.

    Attributes:
        on_appended: called once per tick in which ``last_confirmed`` moved.
        on_fenced: called once when another owner has taken over: unload. Nothing more is written.
        own_properties: properties that are stored whenever a ledger begins or ends.
        cursors: durable and non-durable ones by name; read only.
        offsets: which positions exist; read only.
        entries_added: entries confirmed since the open.
        metrics: what metrics show of its writes and reads.

    For the other modules of the package:

    Attributes:
        appends: the writing side, once there was an append.
        failure: why nothing can be done any more: closed, deleted or fenced.
    """

    name: str
    path: str
    client: BookKeeperClient
    store: MetadataStore
    cache: EntryCache
    budget: AppendBudget
    config: ManagedLedgerConfig
    now_ms: Callable[[], int]
    lists: LedgerInfoStore
    offsets: LedgerOffsets
    _on_closed: "Callable[[ManagedLedger], None]"
    offloading: InitVar[Offloading]
    cursor_set: CursorSet = field(init=False)
    cursors: dict[str, Cursor] = field(init=False)
    trimmer: Trimmer = field(init=False)
    offloads: OffloadPath = field(init=False)
    _listed: LedgerRows = field(init=False)
    on_appended: Callable[[], None] | None = field(default=None, init=False)
    on_fenced: Callable[[BaseException], None] | None = field(default=None, init=False)
    own_properties: Callable[[], Mapping[str, str]] | None = field(default=None, init=False)
    entries_added: int = field(default=0, init=False)
    metrics: LedgerMetrics = field(default_factory=LedgerMetrics, init=False)
    log_cache: LedgerCache | None = field(default=None, init=False)
    appends: AppendPath | None = field(default=None, init=False)
    _reads: ReadPath | None = field(default=None, init=False)
    failure: ManagedLedgerError | None = field(default=None, init=False)
    _is_fenced: bool = field(default=False, init=False)
    _closing: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self, offloading: Offloading) -> None:
        self._listed = self.lists.info.ledgers
        self.cursor_set = CursorSet(self)
        self.cursors = self.cursor_set.loaded
        self.trimmer = Trimmer(self)
        self.offloads = OffloadPath(self, offloading)

    # State

    @property
    def state(self) -> str:
        """Name of the state as in Pulsar's statistics."""
        if self._is_fenced:
            return "Fenced"
        if self.failure is not None:
            return "Closed"
        if self.terminated is not None:
            return "Terminated"
        if self.appends is None:
            return "LedgerOpened"  # the next append makes a ledger; operators needn't know
        return _STATE_NAMES[self.appends.core.state]

    @property
    def is_owner(self) -> bool:
        """False once another owner was seen."""
        return not self._is_fenced

    async def owns_list(self) -> bool:
        """See `ManagedLedgerView`."""
        return await self.lists.is_ours()

    @property
    def is_open(self) -> bool:
        """Neither fenced nor closed nor closing."""
        return self.failure is None and self._closing is None

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry; see `LedgerOffsets.last_confirmed`."""
        return self.offsets.last_confirmed

    @property
    def total_bytes(self) -> int:
        """Bytes of all existing entries, heads included, and of appends under way."""
        return self.lists.info.size + self.written_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of the ledger that is written, appends under way included."""
        core = None if self.appends is None else self.appends.core
        return 0 if core is None or core.current < 0 else core.current_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of appends that aren't confirmed: what back-pressure goes by."""
        return 0 if self.appends is None else self.appends.core.pending_bytes

    @property
    def pending_ms(self) -> int:
        """For how long the oldest of them has been written; 0: none is, as without a ledger."""
        written_s = 0.0 if self.appends is None else self.appends.core.oldest_sent_s
        return max(1, round((perf_counter() - written_s) * 1000)) if written_s else 0

    @property
    def missing_bookies(self) -> tuple[int, str]:
        """How many more must accept writes before an append can succeed; 0: a ledger is open.

        And which bookies may be taken, "": all.
        """
        if self.appends is not None and self.appends.core.current >= 0:
            return 0, ""
        config = self.config
        return self.client.missing_bookies(
            config.ensemble_size, config.write_quorum, config.placement_metadata.known()
        )

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
            heads, bodies: parallel lists; see ``config.form``.
            on_done: called with (ledger id, first entry id, count, error), in order, as often as
                it takes for the counts to sum up. Without an error the entries are durable and
                readable. With one, ids are -1 and this owner will never confirm them; while
                ``is_undecided`` they may yet turn up in the log.
        """
        appends = self.appends
        if appends is None:
            appends = self.append_path()
            if self.failure is not None:
                appends.core.refuse(self.failure)
            elif self.terminated is not None:
                appends.core.refuse(ManagedLedgerTerminatedError(self.name))
        appends.append(heads, bodies, on_done)

    @property
    def is_undecided(self) -> bool:
        """Appends were failed, and whether they are stored isn't known: see ``find_end``."""
        return self.appends is not None and self.appends.core.state is AppendState.UNDECIDED

    async def find_end(self) -> None:
        """Finds out which failed appends are stored: ``last_confirmed`` then counts them.

        Raises:
            AppendFailedError: not yet; ask again.
            ManagedLedgerError: the log is closed, fenced or terminated.
        """
        if self.appends is not None:
            await self.appends.find_end()

    def append_path(self) -> AppendPath:
        """The writing side, made when needed."""
        if self.appends is None:
            self.appends = AppendPath(self)
        return self.appends

    def confirmed(
        self, ledger_id: int, first: int, heads: list[bytes], bodies: list[Buffer], size: int
    ) -> None:
        """For the append path: entries are durable. The lists go to the cache."""
        count = len(heads)
        self.offsets.confirm(ledger_id, first + count - 1)
        self.entries_added += count
        if self.cache.bytes_max:
            self.cache_of_log().append(ledger_id, first, heads, bodies, size)

    def appended(self) -> None:
        """For the append path: once per batch of reports."""
        if self.on_appended is not None:
            self.on_appended()

    def fence(self, error: BaseException) -> None:
        """Gives the log up for good. Pending appends fail; ``on_fenced`` hears of it once."""
        if self.failure is not None:
            return
        logger.warning("%s: fenced: %s", self.name, error)
        if not isinstance(error, ManagedLedgerFencedError):
            cause, error = error, ManagedLedgerFencedError(f"{self.name}: {error}")
            error.__cause__ = cause
        self.failure = error
        self._is_fenced = self.lists.is_lost = True
        if self.appends is not None:
            self.appends.core.stop(error)
            self.appends.run()
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
        log_cache, offsets = self.log_cache, self.offsets
        if log_cache is None or position > offsets.last_confirmed:
            return None
        chunk = log_cache.find(position[0], position[1])
        if chunk is None:
            existing = offsets.first_at_or_after(position)
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
        following = self.offsets.first_at_or_after((ledger_id, entry_id))
        if following is None or self._reads is None or self.failure is not None:
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
            if isinstance(self.failure, ManagedLedgerClosedError):
                raise self.failure
            existing = self.offsets.first_at_or_after(position)
            if existing is None:
                return None
            batch = self.read_nowait(existing, entries_max, bytes_max)
            if batch is not None:
                return batch
            try:
                run = await self.read_path().read_run(existing, bytes_max)
            except LedgerError:
                if self.offsets.is_valid(existing):
                    raise
                continue  # trimmed while it was read: go on behind the gap
            heads, bodies = run.heads[:entries_max], run.bodies[:entries_max]
            cut_to_bytes(heads, bodies, bytes_max)
            return EntryBatch(run.ledger_id, run.first, heads, bodies)

    async def find_newest(
        self, predicate: Predicate, *, after: Position = EARLIEST, upto: Position = LATEST
    ) -> Position | None:
        """The last entry in ``(after, upto]`` whose head and body satisfy a monotone predicate.

        Args:
            predicate: true for all entries up to some point and false from there on.

        Raises:
            LedgerError: an entry couldn't be read.
        """
        return await find_newest(self, predicate, after, upto)

    def read_path(self) -> ReadPath:
        """The reading side beyond the cache, made when needed."""
        if self._reads is None:
            self._reads = ReadPath(self)
        return self._reads

    def cache_of_log(self) -> LedgerCache:
        """This log's part of the cache, made when needed."""
        if self.log_cache is None:
            self.log_cache = LedgerCache(self.cache, self.cursor_set.slowest_active)
        return self.log_cache

    def writer_reader(self, ledger_id: int) -> LedgerReader | None:
        """For the read path: reads a ledger that this log writes; None when it doesn't."""
        writer = None if self.appends is None else self.appends.writers.get(ledger_id)
        return None if writer is None else writer.reader()

    # Positions

    def bytes_after(self, position: Position) -> int:
        """Bytes of the entries behind a position, by the mean entry within one ledger."""
        sizes: list[LedgerSize] = []
        for segment in self.lists.info.ledgers.segments:
            if segment.first_id <= position[0] <= segment.last_id:
                sizes += segment_sizes(segment)
            else:
                sizes.append((segment.last_id, segment.entries, segment.size))
        return bytes_after(sizes + self._tail_sizes(), position)

    def position_before_bytes(self, bytes_max: int) -> Position | None:
        """The lowest position behind which there are at most so many bytes; None: all fit."""
        sizes = self._tail_sizes()
        left = bytes_max - sum(size for _, _, size in sizes)
        for segment in reversed(self.lists.info.ledgers.segments):
            if left < 0:
                break
            left -= segment.size
            if left < 0:
                sizes = segment_sizes(segment) + sizes
            else:
                sizes.insert(0, (segment.last_id, segment.entries, segment.size))
        return position_before_bytes(sizes, bytes_max)

    def _tail_sizes(self) -> list[LedgerSize]:
        """Of the newest ledgers, appends under way included."""
        sizes: list[LedgerSize] = []
        writers = {} if self.appends is None else self.appends.writers
        for listed in self.lists.info.ledgers.tail:
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
        self.require_open()
        return await self.cursor_set.open(name, initial, properties)

    def new_non_durable_cursor(self, start: Position, name: str) -> Cursor:
        """A cursor in memory only; the log doesn't keep entries for it."""
        self.require_open()
        return self.cursor_set.new_non_durable(start, name)

    async def delete_cursor(self, name: str) -> None:
        """Removes a cursor and its storage; a missing one is success."""
        self.require_open()
        await self.cursor_set.delete(name)
        self.trimmer.trim_soon()

    async def load_cursors(self) -> None:
        """For the factory: loads every stored cursor, which takes each over from its last owner."""
        await self.cursor_set.load_all()
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

    # Trimming and the list

    async def trim(self) -> None:
        """Deletes the ledgers that no durable cursor and no retention needs.

        Raises:
            MetadataError: the list couldn't be changed; nothing was deleted.
        """
        self.require_open()
        await self.trimmer.trim(ignore_retention=False)

    def on_list_changed(self, info: ManagedLedgerInfo) -> None:
        """The stored list was shortened, perhaps: let go of what isn't listed any more."""
        gone = ids_gone(self._listed, info.ledgers)
        self._listed = info.ledgers
        if gone:
            self.offsets.remove(gone)
            if self.log_cache is not None and info.ledgers:
                self.log_cache.drop_ledgers(info.ledgers[0].ledger_id)
            for ledger_id in gone:
                self.on_ledger_ended(ledger_id)
            self.cursor_set.on_trimmed()
        self.trimmer.on_list_changed(info)
        self.offloads.on_list_changed(info)

    def on_ledger_ended(self, ledger_id: int) -> None:
        """A ledger is closed or gone: reads go on through a fresh reader."""
        if self._reads is not None:
            self._reads.forget(ledger_id)

    def retained_from(self) -> tuple[Position | None, int]:
        """Returns the limits of trimming: it spares that position and that ledger id, and later.

        The position is the lowest durable mark-delete, of cursors in the making too; None without
        durable cursors. The ledger is the one that is written.
        """
        core = None if self.appends is None else self.appends.core
        written = 2**63 if core is None or core.current < 0 else core.current
        return self.cursor_set.slowest_durable(), written

    def sweep(self, now_ms: int) -> None:
        """From the factory, now and then: what depends on time."""
        if self.failure is not None:
            return
        if self.appends is not None:
            self.appends.sweep(now_ms)
        if len(self.lists.info.ledgers) > 1:
            self.trimmer.trim_soon()
        if len(self.lists.info.ledgers) > 1 or self.offloads.apart is not None:
            self.offloads.on_list_changed(self.lists.info)

    def replace_last(self, now_ms: int) -> bool:
        """Begin a new ledger where the last one is kept for no other reason than that; trimming
        follows. Returns whether it does so.
        """
        if self.failure is not None or self.terminated is not None:
            return False
        state = AppendState.NO_LEDGER if self.appends is None else self.appends.core.state
        if state is not AppendState.NO_LEDGER or not self.trimmer.last_is_due(now_ms):
            return False
        appends = self.append_path()
        appends.core.rotate(now_ms)
        appends.run()
        return True

    # Administration

    def configure(self, config: ManagedLedgerConfig) -> None:
        """Goes on with other settings: new ledgers take the new quorums, trimming the new
        retention. The form of entries and the password are those of the open.
        """
        before, self.config = (
            self.config,
            replace(config, form=self.config.form, password=self.config.password),
        )
        if self.appends is not None:
            self.appends.configure()
        retention = (config.retention_ms, config.retention_bytes)
        if retention != (before.retention_ms, before.retention_bytes) and len(self.offsets) > 1:
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

        Raises:
            ValueTooLargeError: they need more than `PROPERTIES_BYTES_MAX`.
        """
        self.require_open()

        def changed(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
            properties = change(info.properties)
            size = len(orjson.dumps(dict(properties)))
            if size > PROPERTIES_BYTES_MAX:
                raise ValueTooLargeError(self.path, size, PROPERTIES_BYTES_MAX)
            return info.with_properties(properties)

        await self.update_list(changed)

    async def terminate(self) -> Position:
        """Seals the log: appends fail from now on, readers reach an end.

        Returns:
            The last position it will ever have.
        """
        return await closing.terminate(self)

    async def truncate(self) -> None:
        """Acknowledges everything for every cursor and deletes all but an empty ledger."""
        await closing.truncate(self)

    async def close(self) -> None:
        """Ends the ledgers in use and stores the cursors, unless the log is fenced.

        What can't be stored is logged: the next open recovers it.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(closing.close(self))
        await asyncio.shield(self._closing)

    async def delete(
        self, others: Mapping[str, Callable[[], Awaitable[None]]] = MappingProxyType({})
    ) -> None:
        """Deletes the log with its cursors and ledgers. It is closed afterwards in any case.

        Args:
            others: logs that go with it, by name, and what deletes each.

        Raises:
            MetadataError, LedgerError: nothing is deleted, or the next open finishes what is left.
        """
        await closing.delete(self, others)

    # For the package

    def with_own_properties(self, info: ManagedLedgerInfo) -> ManagedLedgerInfo:
        """The list with `own_properties`."""
        if self.own_properties is None:
            return info
        return info.with_properties({**info.properties, **self.own_properties()})

    async def update_list(
        self, change: Callable[[ManagedLedgerInfo], ManagedLedgerInfo]
    ) -> ManagedLedgerInfo:
        """See `LedgerInfoStore.update`; a list of another owner fences the log."""
        try:
            return await self.lists.update(change)
        except ManagedLedgerFencedError as error:
            self.fence(error)
            raise

    def require_open(self) -> None:
        """Raises why nothing can be done any more."""
        if self.failure is not None:
            raise self.failure

    async def finish(self) -> None:
        """Nothing of this log stays in memory or under way."""
        if self._reads is not None:
            await self._reads.close()
        await self.trimmer.finish()
        if self.log_cache is not None:
            self.log_cache.clear()
            self.log_cache = None
        self._on_closed(self)
