"""asyncio shell of `AppendCore`: creates, closes and ends ledgers, writes and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, assert_never, cast
from zlib import crc32

from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import (
    EntryDiffersError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    OtherCreatorError,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.managed_ledger.append_core import (
    ENTRY_OVERHEAD_BYTES,
    AppendCore,
    AppendDone,
    AppendsDone,
    AppendState,
    CloseLedger,
    CreateLedger,
    EndLedger,
    GoOn,
    PendingBatch,
    RotationLimits,
    WriteBatch,
)
from magnetar.managed_ledger.empty_containers import NOTHING
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.errors import AppendFailedError, ManagedLedgerFencedError
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.orphan_ledgers import custom_metadata
from magnetar.metadata.errors import MetadataError, ValueTooLargeError

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

DRAIN_TIMEOUT_S = 10.0
"""How long close, terminate and truncate wait for appends that are under way."""
END_ATTEMPTS = 8
END_RETRY_S = 0.1
"""First pause between attempts to end a failed ledger; it doubles: about 13 s in all."""


class _WriterCallbacks:
    """Tells the path of which ledger the news are; half of what two partials weigh."""

    __slots__ = ("_ledger_id", "_path")

    def __init__(self, path: AppendPath, ledger_id: int) -> None:
        self._path = path
        self._ledger_id = ledger_id

    def on_confirmed(self, entry_id: int) -> None:
        self._path.on_confirmed(self._ledger_id, entry_id)

    def on_failed(self, error: LedgerError) -> None:
        self._path.on_failed(self._ledger_id, error)


@dataclass(slots=True, eq=False, repr=False)
class AppendPath:
    """The writing side of one log; made at its first append, so that idle logs stay small.

    Owns the core, the writers, and the tasks that create, close and end ledgers.
    """

    _log: ManagedLedger
    core: AppendCore = field(init=False)
    # Not closed yet, oldest first.
    writers: dict[int, AsyncLedgerWriter] = field(default_factory=dict, init=False)
    created_ms: int = field(default=0, init=False)
    """When the last ledger was created, and when that last failed; 0: never."""
    create_failure_ms: int = field(default=0, init=False)
    _tasks: frozenset[asyncio.Task[None]] = field(default=NOTHING, init=False)
    _reporting: list[AppendsDone] | None = field(default=None, init=False)
    _has_moved: bool = field(default=False, init=False)
    # Bytes that the process's budget counts for pending appends of this log.
    _charged: int = field(default=0, init=False)
    _waiters: list[asyncio.Future[None]] = field(default_factory=list, init=False)
    # Ledgers whose close or its record in the list failed, with the end if it is known: the
    # sweep tries again.
    _unclosed: dict[int, LedgerMetadata | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.core = AppendCore(rotation_limits(self._log))

    def append(self, heads: list[bytes], bodies: list[Buffer], on_done: AppendDone) -> None:
        """See `ManagedLedger.append`."""
        core = self.core
        batch = core.append(heads, bodies, on_done, self._log.now_ms())
        self._charge()
        if batch is not None:
            self._write(core.current, batch)
        elif core.refusal is not None:
            # Never from within append: its caller isn't ready for the answer yet.
            asyncio.get_running_loop().call_soon(self.run)
            return
        if core.has_effects:
            self.run()

    def configure(self) -> None:
        """The log's settings changed: new ledgers follow them, the limits of rotation at once."""
        self.core.limits = rotation_limits(self._log)

    def run(self) -> None:
        """Performs what the core decided: all effects, then the reports."""
        core = self.core
        while core.has_effects:
            for effect in core.take_effects():
                match effect:
                    case WriteBatch():
                        self._write(effect.ledger_id, effect.batch)
                    case CreateLedger(after_ms):
                        self._start(self._create(after_ms))
                    case CloseLedger():
                        self._start(self._close(effect.ledger_id))
                    case EndLedger():
                        self._start(self._end(effect.ledger_id))
                    case GoOn():
                        asyncio.get_running_loop().call_soon(self._go_on)
                    case _:
                        assert_never(effect)
            if done := core.take_done():
                self._report(done)
        self._charge()
        self._wake()

    def _go_on(self) -> None:
        self.core.go_on(self._log.now_ms())
        self.run()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _charge(self) -> None:
        core = self.core
        charge = core.pending_bytes + ENTRY_OVERHEAD_BYTES * core.pending_entries
        if charge != self._charged:
            change, self._charged = charge - self._charged, charge
            self._log.budget.change(change)

    async def wait_change(self, timeout_s: float) -> bool:
        """Waits until the core may have changed; False when nothing did in time."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        done, _ = await asyncio.wait([waiter], timeout=timeout_s)
        return bool(done)

    async def find_end(self) -> None:
        """See `ManagedLedger.find_end`."""
        core = self.core
        core.seek_end()
        self.run()
        while core.state is AppendState.ENDING:
            await self.wait_change(DRAIN_TIMEOUT_S)
        if core.state is AppendState.UNDECIDED:
            raise AppendFailedError(f"ledger {core.current} has no end yet")
        if core.state is AppendState.STOPPED:
            assert core.refusal is not None  # for mypy: set with STOPPED
            raise core.refusal

    async def drain(self, timeout_s: float) -> None:
        """Waits until nothing is pending, or the time is over."""
        self._wake()  # whoever pauses, as nothing is accepted any more
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.core.is_idle and (left := deadline - loop.time()) > 0:
            await self.wait_change(left)

    async def finish_tasks(self) -> None:
        """Waits for ledgers that are being created, closed or ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def abandon_tasks(self) -> None:
        """Cancels them instead: the log is fenced, nothing may be written any more."""
        for task in self._tasks:
            task.cancel()

    async def close_writers(self) -> None:
        """Closes every ledger. REQUIRES: the core refuses appends and has nothing pending."""
        for ledger_id in list(self.writers):
            await self._close(ledger_id)

    def sweep(self, now_ms: int) -> None:
        """Closes idle old ledgers, and those whose close failed before."""
        self.core.close_if_idle(now_ms)
        unclosed, self._unclosed = self._unclosed, {}
        for ledger_id, metadata in unclosed.items():
            if metadata is None:
                self._start(self._close(ledger_id))
            else:
                self._start(self._record_end(ledger_id, metadata))
        self.run()

    # Effects

    def _write(self, ledger_id: int, batch: PendingBatch) -> None:
        writer = self.writers[ledger_id]
        batch.sent_s = perf_counter()
        try:
            # The lists become the writer's; ours are needed until their end is definite.
            prefixes = self._log.config.form.prefixes(batch.heads)
            first = writer.append(prefixes, cast("list[bytes]", list(batch.bodies)))
        except LedgerError as error:
            self.on_failed(ledger_id, error)
        else:
            assert first == batch.first, f"ledger {ledger_id}: entry {first}, not {batch.first}"

    async def _pause(self, seconds: float) -> None:
        """Less while appends are refused: a close doesn't wait for it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.core.refusal is None and (left := deadline - loop.time()) > 0:
            await self.wait_change(left)

    async def _create(self, after_ms: int) -> None:
        await self._pause(after_ms / 1000)
        log, core = self._log, self.core
        config = log.config
        listed = log.lists.info.ledgers
        writer, began_s = None, perf_counter()
        try:
            writer = await log.client.create_ledger(
                LedgerConfig(
                    config.ensemble_size,
                    config.write_quorum,
                    config.ack_quorum,
                    config.password,
                    digest_type=config.digest_type,
                ),
                {**custom_metadata(log.name), **await config.placement_metadata.read()},
                above=listed[-1].ledger_id if listed else -1,
            )
            ledger_id = writer.ledger_id
            info = await log.lists.update(
                lambda x: log.trimmer.tidy(log.with_own_properties(x.with_ledger(ledger_id)))
            )
        except ManagedLedgerFencedError as error:
            log.fence(error)
            # Otherwise an attempt whose answer was lost may have handed it to the next owner.
            if writer is not None and log.lists.is_unlisted(writer.ledger_id):
                await self._discard(writer)
            return
        except (LedgerError, MetadataError, ValueError) as error:
            logger.warning("%s: no new ledger: %s", log.name, error)
            if writer is not None:
                is_refused = isinstance(error, ValueTooLargeError)
                if isinstance(error, MetadataError) and not is_refused:
                    # It may be listed: close it, keep it.
                    self.writers[writer.ledger_id] = writer
                    self._unclosed[writer.ledger_id] = None
                else:
                    await self._discard(writer)
            self.create_failure_ms = log.now_ms()
            core.on_create_failed(error, self.create_failure_ms)
            self.run()
            return
        self.writers[ledger_id] = writer
        news = _WriterCallbacks(self, ledger_id)
        writer.on_confirmed, writer.on_failed = news.on_confirmed, news.on_failed
        self.created_ms = log.now_ms()
        log.metrics.switched((perf_counter() - began_s) * 1000)
        log.offsets.add(ledger_id)
        log.on_list_changed(info)
        core.on_ledger_ready(ledger_id, self.created_ms)
        self.run()
        log.trimmer.trim_if_consumed()  # the ledger that was the last may go now

    async def _discard(self, writer: AsyncLedgerWriter) -> None:
        """Deletes a ledger that is certainly not listed."""
        try:
            await self._log.client.delete_ledger(writer.ledger_id)
        except (LedgerError, MetadataError) as error:
            logger.warning("ledger %d is leaked for now: %s", writer.ledger_id, error)

    async def _close(self, ledger_id: int) -> None:
        """Closes a ledger whose every entry is confirmed, and records its end in the list."""
        writer = self.writers.get(ledger_id)
        if writer is None:
            return
        try:
            metadata = await self._definite_end(writer, is_retry=False)
        except (LedgerError, MetadataError) as error:
            logger.warning("%s: ledger %d stays open: %s", self._log.name, ledger_id, error)
            self._unclosed[ledger_id] = None
            return
        if self.writers.get(ledger_id) is writer:  # else a second close, which a terminate or an
            self._forget_writer(ledger_id)  # unload asked for meanwhile, was faster
        await self._record_end(ledger_id, metadata)

    async def _end(self, ledger_id: int) -> None:
        """Finds where a failed ledger ends, however long that takes within reason."""
        log, core = self._log, self.core
        writer = self.writers[ledger_id]
        delay_s, attempt = END_RETRY_S, 0
        while True:
            try:
                metadata = await self._definite_end(writer, is_retry=attempt > 0)
                break
            except (LedgerError, MetadataError) as error:
                attempt += 1
                if attempt == 1:  # how it ends is said as well
                    logger.warning("%s: ledger %d has no end yet: %s", log.name, ledger_id, error)
                if attempt == END_ATTEMPTS:
                    failure = AppendFailedError(f"ledger {ledger_id} can't be ended: {error}")
                    failure.__cause__ = error
                    core.on_end_failed(failure)
                    self.run()
                    return
            await log.client.ledgers.wait_for_session(delay_s)
            delay_s *= 2
        self._forget_writer(ledger_id)
        was_stopped = core.state is AppendState.STOPPED  # by a close or terminate meanwhile
        core.on_ledger_ended(ledger_id, metadata.last_entry, log.now_ms())
        if core.state is AppendState.STOPPED and not was_stopped:
            self.run()
            assert core.refusal is not None
            log.fence(core.refusal)
            return
        self._confirm_upto(ledger_id, metadata)
        self.run()
        self._tell_moved()  # though there was nothing to report
        await self._record_end(ledger_id, metadata)

    def _forget_writer(self, ledger_id: int) -> None:
        """Its end may be above what the writer knows: reads go by the metadata from now on."""
        del self.writers[ledger_id]
        self._log.on_ledger_ended(ledger_id)

    def _confirm_upto(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Entries that were failed may be below the definite end: then they exist after all."""
        entries = self._log.offsets.entries(ledger_id)
        if entries is not None and metadata.last_entry >= entries:
            self._log.offsets.confirm(ledger_id, metadata.last_entry)
            self._has_moved = True

    async def _definite_end(self, writer: AsyncLedgerWriter, *, is_retry: bool) -> LedgerMetadata:
        """The closed ledger's metadata: closed by us, else recovered."""
        if not is_retry:
            try:
                return await writer.close()
            except (LedgerError, MetadataError) as error:
                logger.warning("ledger %d: close failed: %s", writer.ledger_id, error)
        # Another client may have recovered it to a higher end than ours: that end is the truth.
        password = self._log.config.password
        reader = await self._log.client.open_ledger(writer.ledger_id, password, recover=True)
        return reader.metadata

    async def _record_end(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        log = self._log
        closed_ms = max(1, log.now_ms())
        entries, size = metadata.last_entry + 1, metadata.length
        self._confirm_upto(ledger_id, metadata)
        try:
            info = await log.lists.update(
                lambda x: log.trimmer.tidy(
                    log.with_own_properties(x.with_closed(ledger_id, entries, size, closed_ms))
                )
            )
        except ManagedLedgerFencedError as error:
            log.fence(error)
            return
        except MetadataError as error:
            logger.warning("%s: end of ledger %d not listed: %s", log.name, ledger_id, error)
            self._unclosed[ledger_id] = metadata
            return
        log.on_list_changed(info)
        if len(info.ledgers) > 1:
            log.trimmer.trim_soon()

    # News from writers

    def on_confirmed(self, ledger_id: int, entry_id: int) -> None:
        """The ledger's entries up to this one are durable."""
        self.core.on_confirmed(ledger_id, entry_id)
        self.run()

    def on_failed(self, ledger_id: int, error: LedgerError) -> None:
        """The ledger's writer has stopped."""
        if isinstance(error, LedgerFencedError | LedgerClosedError):
            # Another process closed our ledger: a new owner, or a repair that took us for dead.
            self._log.fence(ManagedLedgerFencedError(f"ledger {ledger_id}: {error}"))
            return
        logger.warning("%s: ledger %d failed: %s", self._log.name, ledger_id, error)
        is_id_in_use = isinstance(error, OtherCreatorError | EntryDiffersError)
        self.core.on_ledger_failed(ledger_id, is_id_in_use=is_id_in_use)
        self.run()

    # Reports

    def _report(self, reports: list[AppendsDone]) -> None:
        self._admit(reports)
        self._count(reports)
        if self._reporting is not None:
            self._reporting.extend(reports)
            return  # a callback appended: the loop below goes on with these
        self._reporting = reports
        # Readers first: their turn then comes before the receipts are written, so that a client
        # that publishes and consumes over one connection gets both with one write.
        self._tell_moved()
        try:
            for done in reports:
                try:
                    done.on_done(done.ledger_id, done.first, done.count, done.error)
                except Exception:
                    logger.exception("%s: a callback of an append failed", self._log.name)
        finally:
            self._reporting = None
        self._tell_moved()  # by what callbacks appended

    def _tell_moved(self) -> None:
        if self._has_moved:
            self._has_moved = False
            try:
                self._log.appended()
            except Exception:  # a reader's bug must not keep anybody from their receipt
                logger.exception("%s: a reader failed to hear of entries", self._log.name)

    def _count(self, reports: list[AppendsDone]) -> None:
        metrics, now_s = self._log.metrics, perf_counter()
        for done in reports:
            if done.error is None:
                metrics.written((now_s - done.sent_s) * 1000, done.count)
            else:
                metrics.add_failed(done.count)

    def _admit(self, reports: list[AppendsDone]) -> None:
        """Confirmed entries become readable, and enter the cache, before anybody hears of them."""
        start, count = 0, len(reports)
        while start < count and reports[start].error is None:
            first = reports[start]
            end = start + 1
            while end < count and reports[end].error is None:
                if reports[end].ledger_id != first.ledger_id:
                    break
                end += 1
            heads, bodies, size = first.heads, first.bodies, first.entry_bytes
            for done in reports[start + 1 : end]:
                heads += done.heads
                bodies += done.bodies
                size += done.entry_bytes
            last = reports[end - 1]
            self._has_moved = True
            self._log.confirmed(first.ledger_id, first.first, heads, bodies, size)
            assert last.first + last.count == first.first + len(heads)
            start = end

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks |= {task}
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks = (self._tasks - {task}) or NOTHING
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: the append path failed", self._log.name, exc_info=error)
            self._log.fence(error)


def rotation_limits(log: ManagedLedger) -> RotationLimits:
    """The config's limits; ages differ by up to 5 % so that logs don't all rotate at once."""
    config = log.config
    jitter = (crc32(log.name.encode()) % 1000 - 500) / 10_000
    return RotationLimits(
        config.ledger_entries_max,
        config.ledger_bytes_max,
        config.ledger_age_min_ms,
        int(config.ledger_age_max_ms * (1 + jitter)),
        config.form.unstored_bytes(),
    )
