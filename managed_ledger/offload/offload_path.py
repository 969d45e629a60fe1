"""asyncio shell of offloading: copies closed ledgers of one log, and lets bookies forget them.

Order (docs/spec/storage.md, "Offload"): a copy is named in the list before its first byte is
written; it is called complete there after it was read back; the list says that bookies' copy is no
more before it is deleted. So a crash leaves at most a copy that the list names, which the next
owner deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from magnetar.bookkeeper.client.ledger_reader import EntryRun
from magnetar.bookkeeper.errors import (
    BookieTooManyRequestsError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from magnetar.managed_ledger.empty_containers import NOTHING
from magnetar.managed_ledger.errors import (
    InvalidPositionError,
    ManagedLedgerError,
    ManagedLedgerFencedError,
)
from magnetar.managed_ledger.ledger_info_chunks import read_list
from magnetar.managed_ledger.ledger_rows import LedgerInfo, PackedRows
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.offload.errors import (
    NoOffloaderError,
    OffloadBusyError,
    OffloadedReadError,
    OffloadError,
)
from magnetar.managed_ledger.offload.interfaces import CopyJob, EntryReader, LedgerOffloader
from magnetar.managed_ledger.offload.policy import (
    is_apart_due,
    is_offloaded,
    ledgers_before,
    ledgers_to_copy,
    ledgers_to_release,
)
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

T = TypeVar("T")

_TAKE_BACK_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Between attempts to delete a copy that only this process knows: closing the log waits for it."""
_DELETED_AT_ONCE: Final = 16
"""Copies of a log that is trimmed far: a distant store takes its time for each."""
_ERRORS: Final = (LedgerError, MetadataError, ManagedLedgerError)


@dataclass(frozen=True, slots=True)
class Offloading:
    """Holds the parts of offloading that all logs of a process share."""

    offloaders: Mapping[str, LedgerOffloader]
    """By driver."""
    new_uuid: Callable[[], str]


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """How the offload that was asked for last is going."""

    state: str = "NOT_RUN"
    """NOT_RUN, RUNNING, SUCCESS, ERROR."""
    error: str = ""
    first_kept: Position = EARLIEST
    """Of SUCCESS: where that begins which is in bookies only."""


_NOT_RUN: Final = OffloadStatus()


@dataclass(slots=True, eq=False, repr=False)
class OffloadPath:
    """The copies of one log's ledgers."""

    _log: ManagedLedger
    _offloading: Offloading
    _lock: asyncio.Lock | None = field(default=None, init=False)
    _tasks: frozenset[asyncio.Task[Any]] = field(default=NOTHING, init=False)
    _last_tasks: frozenset[asyncio.Task[Any]] = field(default=NOTHING, init=False)
    _is_passing: bool = field(default=False, init=False)
    _is_stopped: bool = field(default=False, init=False)
    _copying: str = field(default="", init=False)  # UUID
    # Doomed copies that don't exist any more.
    _deleted: frozenset[str] = field(default=NOTHING, init=False)
    # Ledgers that bookies don't have any more.
    _gone: frozenset[int] = field(default=NOTHING, init=False)
    status: OffloadStatus = field(default=_NOT_RUN, init=False)
    apart: LedgerInfo | None = field(default=None, init=False)
    """Of the log's owner: what a compaction left, which is copied as if it were the log's."""
    last_ledger_id: int = field(default=0, init=False)
    last_success_ms: int = field(default=0, init=False)
    last_failure_ms: int = field(default=0, init=False)
    """0: never."""

    @property
    def copied_bytes(self) -> int:
        """Of all entries that have a complete copy."""
        rows = self._log.lists.info.ledgers
        newest = sum(x.size for x in rows.tail if is_offloaded(x))
        return newest + sum(x.copied_size for x in rows.segments)

    # For the log

    def tidy(self, info: ManagedLedgerInfo) -> ManagedLedgerInfo:
        """For every change of the list: what is known to be gone."""
        if self._deleted:
            info = info.forget_copies(self._deleted)
        return info.with_copy_state(self._gone, CopyState.SETTLED) if self._gone else info

    def on_list_changed(self, info: ManagedLedgerInfo) -> None:
        """Does in the background what is due, if anything is."""
        if self._deleted:
            self._deleted &= {x.uuid for x in info.doomed_copies}
        if self._gone:
            self._gone = self._gone.intersection(_only(info)) or NOTHING
        if self._is_passing or self._is_stopped or not self._log.is_open:
            return
        if self._is_due(info):
            self._is_passing = True
            self._start(self._run())

    def reader(self, ledger_id: int) -> EntryReader | None:
        """Of a ledger that has a complete copy, from where the settings say; else None."""
        ledger = self._log.lists.info.find(ledger_id)
        if ledger is None or ledger.offload is None or not ledger.offload.is_complete:
            return None
        context = ledger.offload
        elsewhere = partial(self._open_copy, context.copy)
        if context.is_only:
            return TieredReader(ledger_id, [elsewhere])
        here = partial(self._open_here, ledger_id)
        first = self._log.config.offload.bookies_first
        return TieredReader(ledger_id, [here, elsewhere] if first else [elsewhere, here])

    def context(self, ledger_id: int) -> OffloadContext | None:
        """Of a ledger apart that has a complete copy."""
        ledger = self.apart_row(ledger_id)
        return ledger.offload if ledger is not None and is_offloaded(ledger) else None

    def apart_row(self, ledger_id: int) -> LedgerInfo | None:
        """Of a ledger apart that the list names."""
        return self._log.lists.info.find_apart(ledger_id)

    def keep_apart(self, ledger: LedgerInfo) -> None:
        """A ledger of the log's owner, closed and without password, may be copied from now on."""
        self.apart = ledger
        self.on_list_changed(self._log.lists.info)

    async def drop_apart(self, ledger_id: int) -> bool:
        """Its owner needs it no more: if it is named, it is deleted as a trimmed one is, with its
        copy. Answers whether that is so.

        Raises:
            MetadataError, ManagedLedgerError: it may be named still; repeat it.
        """
        if self.apart is not None and self.apart.ledger_id == ledger_id:
            self.apart = None
        is_named = False

        def drop(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
            nonlocal is_named
            is_named = info.find_apart(ledger_id) is not None or ledger_id in info.doomed
            return info.without([ledger_id]) if is_named else info

        await self._update(drop)
        return is_named

    async def stop(self) -> None:
        """Ends what is under way, for good; the next owner finds what is left of it."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        while tasks := self._tasks | self._last_tasks:
            await asyncio.wait(tasks)

    async def delete_copies(self) -> None:
        """Deletes every doomed copy, for a log that is deleted itself.

        Raises:
            OffloadError: some are left; the list has them.
        """
        self._deleted &= {x.uuid for x in self._log.lists.info.doomed_copies}
        await self._delete_copies(self._log.lists.info.doomed_copies)

    async def clear(self) -> None:
        """Deletes every doomed copy now.

        Raises:
            OffloadError, MetadataError, ManagedLedgerError: some are left; the list has them.
        """
        if any(x.uuid not in self._deleted for x in self._log.lists.info.doomed_copies):
            async with self._exclusive():
                await self._clear()

    # By hand

    def offload_before(self, position: Position) -> None:
        """Begins to copy all ledgers before that of the position; ``status`` tells the outcome.

        Raises:
            OffloadBusyError: that is being done already.
            OffloadError: the log is being closed.
        """
        if self._is_stopped or not self._log.is_open:
            raise OffloadError(f"{self._log.name} is being closed")
        if self.status.state == "RUNNING":
            raise OffloadBusyError(f"{self._log.name}: an offload is running")
        self.status = OffloadStatus("RUNNING")
        self._start(self._offload_before(position))

    async def _offload_before(self, position: Position) -> None:
        status = OffloadStatus("ERROR", "the topic was unloaded")
        try:
            async with self._exclusive():
                first_kept = await self._copy_before(position)
            status = OffloadStatus("SUCCESS", "", (first_kept, 0))
        except _ERRORS as error:
            logger.warning("%s: offload: %s", self._log.name, error)
            status = OffloadStatus("ERROR", str(error))
        finally:
            self.status = status
        self.on_list_changed(self._log.lists.info)

    async def _copy_before(self, position: Position) -> int:
        log = self._log
        self._offloader(log.config.offload.driver)
        ledgers = log.lists.info.ledgers
        at_end = bool(ledgers) and position == (ledgers[-1].ledger_id, 0)
        if not log.offsets.is_valid(position) and not at_end:
            raise InvalidPositionError("Invalid position for offload")
        while True:
            written = log.retained_from()[1]
            chosen, first_kept = ledgers_before(log.lists.info.ledgers, written, position)
            if not chosen and self.apart is not None and not self.context(self.apart.ledger_id):
                chosen = [self.apart.ledger_id]
            if not chosen:
                return first_kept
            for ledger_id in chosen:
                await self._copy(ledger_id)

    # By itself

    def _is_due(self, info: ManagedLedgerInfo) -> bool:
        log = self._log
        if any(x.uuid not in self._deleted for x in info.doomed_copies):
            return True
        if any(x.offload is None or not self._is_copying(x.offload) for x in _started(info)):
            return True
        if not self._gone.issuperset(_only(info)):
            return True
        config, now_ms = log.config.offload, log.now_ms()
        if ledgers_to_release(info.ledgers, config, now_ms, info.apart):
            return True
        return bool(self._to_copy(info))

    def _to_copy(self, info: ManagedLedgerInfo) -> list[int]:
        log, apart = self._log, self.apart
        config, now_ms = log.config.offload, log.now_ms()
        chosen = ledgers_to_copy(info.ledgers, log.retained_from()[1], config, now_ms)
        if apart is not None:
            listed = info.find_apart(apart.ledger_id) or apart
            chosen += [listed.ledger_id] if is_apart_due(listed, config, now_ms) else []
        return chosen

    async def _run(self) -> None:
        """One pass after another while there is something to do and it succeeds."""
        log = self._log
        try:
            while log.is_open and not self._is_stopped and self._is_due(log.lists.info):
                async with self._exclusive():
                    await self._pass()
        except _ERRORS as error:
            logger.warning("%s: offload: %s", log.name, error)  # the sweep tries again
        finally:
            self._is_passing = False

    async def _pass(self) -> None:
        log = self._log
        await self._clear()
        for ledger_id in self._to_copy(log.lists.info):
            await self._copy(ledger_id)
        await self._forget_in_bookies()  # while that fails, no more is released
        info, config = log.lists.info, log.config.offload
        for ledger_id in ledgers_to_release(info.ledgers, config, log.now_ms(), info.apart):
            await self._release(ledger_id)
        await self._forget_in_bookies()

    async def _clear(self) -> None:
        """Deletes copies that no reader needs, and those that an earlier owner left unfinished."""

        def doom(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
            for ledger in _started(info):
                info = info.without_copy_started(ledger.ledger_id)
            return info

        info = await self._update(doom)
        await self._delete_copies(info.doomed_copies)

    async def _delete_copies(self, copies: Iterable[LedgerCopy]) -> None:
        """Those that are there still; tries all before it raises OffloadError."""
        failures: list[OffloadError] = []

        async def delete(copy: LedgerCopy) -> None:
            try:
                await self._offloader(copy.driver).delete(copy)
            except OffloadError as error:
                logger.warning("%s: copy %s not deleted: %s", self._log.name, copy.name, error)
                failures.append(error)
            else:
                self._deleted |= {copy.uuid}

        left = [x for x in copies if x.uuid not in self._deleted]
        for start in range(0, len(left), _DELETED_AT_ONCE):
            await asyncio.gather(*map(delete, left[start : start + _DELETED_AT_ONCE]))
        if failures:
            raise failures[0]

    async def _copy(self, ledger_id: int) -> None:
        """Copies one ledger. REQUIRES: exclusive."""
        log = self._log
        config = log.config.offload
        offloader = self._offloader(config.driver)
        uuid = self._offloading.new_uuid()
        copy = LedgerCopy(ledger_id, uuid, config.driver, dict(config.location))
        self._copying = uuid
        try:
            info = await self._update(partial(self._with_started, copy))
            ledger = info.find(ledger_id)
            if ledger is None or ledger.offload is None or ledger.offload.copy != copy:
                return  # trimmed meanwhile
            source = await self._open_here(ledger_id)
            job = CopyJob(copy, log.name, ledger.entries, ledger.size, config.block_bytes)
            size = await offloader.offload(job, source)
            completed_ms = max(1, log.now_ms())
            await self._update(lambda x: x.with_copy_complete(copy, completed_ms, size))
        except BaseException as error:  # cancelled by the end of the log, too
            if isinstance(error, _ERRORS):
                self.last_failure_ms = log.now_ms()
            try:
                await asyncio.shield(self._start(self._take_back(copy), is_last=True))
            except _ERRORS as failure:  # the caller gets the copy's error, not this
                logger.warning("%s: copy %s may be left: %s", log.name, copy.name, failure)
            raise
        finally:
            self._copying = ""
        self.last_ledger_id, self.last_success_ms = ledger_id, completed_ms
        log.on_ledger_ended(ledger_id)

    def _with_started(self, copy: LedgerCopy, info: ManagedLedgerInfo) -> ManagedLedgerInfo:
        if self.apart is not None and self.apart.ledger_id == copy.ledger_id:
            info = info.with_apart(self.apart)
        return info.with_copy_started(copy)

    async def _take_back(self, copy: LedgerCopy) -> None:
        """If another owner has the list: deletes our copy, if that certainly doesn't know it.

        Its list may name the copy as complete, when our last write got through and only its answer
        was lost; or as unfinished: then that owner deletes it, later than this. What it has doomed
        it may have deleted before the copy was there.
        """
        log = self._log
        if await log.owns_list():
            return  # it names the copy
        stored = await read_list(log.store, log.path)
        if stored is not None:
            ledger = stored.info.find(copy.ledger_id)
            if ledger is not None and ledger.offload is not None and ledger.offload.copy == copy:
                return
        for pause_s in _TAKE_BACK_PAUSES_S:
            try:
                await self._offloader(copy.driver).delete(copy)
                return
            except OffloadError as error:
                logger.warning("%s: copy %s is left for now: %s", log.name, copy.name, error)
            await asyncio.sleep(pause_s)
        await self._offloader(copy.driver).delete(copy)

    async def _release(self, ledger_id: int) -> None:
        """From now on the copy is the only one; bookies are told by `_forget_in_bookies`."""
        log = self._log
        ledger = log.lists.info.find(ledger_id)
        if ledger is None or ledger.offload is None:
            return
        # Not without seeing that it is still there, and reachable with today's settings.
        reader = await self._open_copy(ledger.offload.copy)
        await reader.read(ledger.entries - 1, ledger.entries - 1, 1)
        await self._update(lambda x: x.with_copy_state([ledger_id], CopyState.ONLY))
        log.on_ledger_ended(ledger_id)

    async def _forget_in_bookies(self) -> None:
        log = self._log
        for ledger_id in _only(log.lists.info):
            if ledger_id not in self._gone:
                await log.client.delete_ledger(ledger_id)
                self._gone |= {ledger_id}
        if self._gone or self._deleted:
            await self._update(lambda x: x)

    # Helpers

    async def _open_here(self, ledger_id: int) -> EntryReader:
        log = self._log
        is_apart = log.lists.info.find_apart(ledger_id) is not None
        password = b"" if is_apart else log.config.password
        return await log.client.open_ledger(ledger_id, password, recover=False)

    async def _open_copy(self, copy: LedgerCopy) -> EntryReader:
        try:
            offloader = self._offloader(copy.driver)
        except NoOffloaderError as error:
            raise OffloadedReadError(f"copy of ledger {copy.name}: {error}") from error
        return await offloader.open(copy)

    def _offloader(self, driver: str) -> LedgerOffloader:
        found = self._offloading.offloaders.get(driver)
        if found is None:
            if not driver:
                raise NoOffloaderError("no offload driver is set: managedLedgerOffloadDriver")
            raise NoOffloaderError(f"there is no offload driver {driver!r} in this process")
        return found

    def _is_copying(self, context: OffloadContext | None) -> bool:
        return context is not None and context.copy.uuid == self._copying

    def _exclusive(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def _update(
        self, change: Callable[[ManagedLedgerInfo], ManagedLedgerInfo]
    ) -> ManagedLedgerInfo:
        log = self._log
        work = log.lists.update(lambda x: log.trimmer.tidy(change(x)))
        try:
            # A cancelled write would leave the log's view of its list behind what is stored.
            info = await asyncio.shield(self._start(work, is_last=True))
        except ManagedLedgerFencedError as error:
            log.fence(error)
            raise
        log.on_list_changed(info)
        return info

    def _start(self, work: Coroutine[Any, Any, T], *, is_last: bool = False) -> asyncio.Task[T]:
        """``is_last``: the end of the log waits for it instead of cancelling it."""
        task = asyncio.get_running_loop().create_task(work)
        if is_last:
            self._last_tasks |= {task}
        else:
            self._tasks |= {task}
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        is_last = task in self._last_tasks
        self._tasks = (self._tasks - {task}) or NOTHING
        self._last_tasks = (self._last_tasks - {task}) or NOTHING
        if not task.cancelled() and (error := task.exception()) is not None and not is_last:
            logger.error("%s: offloading failed", self._log.name, exc_info=error)


def _started(info: ManagedLedgerInfo) -> list[LedgerInfo]:
    return list(_in_state(info, CopyState.STARTED, lambda block: block.started))


def _only(info: ManagedLedgerInfo) -> list[int]:
    return [x.ledger_id for x in _in_state(info, CopyState.ONLY, lambda block: block.only)]


def _in_state(
    info: ManagedLedgerInfo, state: CopyState, count: Callable[[PackedRows], int]
) -> Iterator[LedgerInfo]:
    packed = chain.from_iterable(x for x in info.ledgers.segments if count(x))
    for ledger in chain(packed, info.ledgers.tail, info.apart):
        if ledger.offload is not None and ledger.offload.state is state:
            yield ledger


_DENIALS = (NoSuchEntryError, NoSuchLedgerError)


class TieredReader:
    """See ``EntryReader``; opens a copy when it is first needed."""

    def __init__(
        self, ledger_id: int, openers: Sequence[Callable[[], Awaitable[EntryReader]]]
    ) -> None:
        """Args:
        openers: of the copies, the preferred one first.
        """
        self._ledger_id = ledger_id
        self._openers = openers
        self._readers: list[EntryReader | None] = [None] * len(openers)

    async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
        """See ``EntryReader``. Raises the preferred copy's error if none has it; but never
        "no such entry" where the other one couldn't be asked.
        """
        failure: LedgerError | MetadataError | None = None
        for place, opener in enumerate(self._openers):
            try:
                reader = self._readers[place]
                if reader is None:
                    reader = self._readers[place] = await opener()
                return await reader.read(first, last, bytes_max)
            except BookieTooManyRequestsError:
                raise  # says nothing about the copy
            except (LedgerError, MetadataError) as error:
                logger.warning("ledger %d: entry %d: %s", self._ledger_id, first, error)
                self._readers[place] = None
                if failure is None or isinstance(failure, _DENIALS):
                    failure = error
        assert failure is not None, "there is at least one copy"
        raise failure
