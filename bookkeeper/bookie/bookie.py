"""A bookie: the shell around the storage core. Owns threads, loop callbacks, timers, registration.

Everything public is called on the loop. One journal thread, one maintenance thread, a small pool
for reads that touch the disk. Idle, nothing wakes up.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import heapq
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hmac import compare_digest
from time import perf_counter

from bookkeeper import codes
from bookkeeper.bookie.config import BookieConfig
from bookkeeper.bookie.figures import BookieFigures
from bookkeeper.bookie.flush import flush_steps
from bookkeeper.bookie.journal import JournalGroup
from bookkeeper.bookie.lac_watch import LacWatch
from bookkeeper.bookie.ledger_state import NO_ENTRY_ID, LedgerState
from bookkeeper.bookie.ledger_storage import FlushJob, LedgerStorage
from bookkeeper.bookie.registration import Registration
from bookkeeper.bookie.workers import StepWorker, Worker
from bookkeeper.errors import BookieClosedError, JournalFullError, StorageError, error_for_code
from bookkeeper.packet import decode_header
from bookkeeper.storage.file_system import DirectoryLock, FileSystem
from bookkeeper.storage.ordered_store import OrderedStore
from bookkeeper.transport import AddRequest, BookieInfo, LacReply, ReadReply
from metadata.store import MetadataStore

_log = logging.getLogger(__name__)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def _log_fatal(error: BaseException) -> None:
    _log.critical("the bookie ended: %s", error)


class Bookie:
    """A storage node. Open one with ``Bookie.open``.

    ``on_fatal`` is called once, on the loop, when a disk error ended the bookie: nothing that it
    had not acknowledged by then may be trusted. The process should end and start again; replay
    decides.
    """

    is_backlogged = False  # whoever calls it directly has a limit of his own

    def __init__(self, config: BookieConfig, storage: LedgerStorage, lock: DirectoryLock) -> None:
        self.on_fatal: Callable[[BaseException], None] = _log_fatal
        self.config = config
        self.storage = storage
        self.figures = BookieFigures()
        self.read_only = False
        self.error: BaseException | None = None
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._journal_worker = Worker(f"{config.bookie_id}-journal", self._loop)
        self.maintenance = StepWorker(f"{config.bookie_id}-maintenance", self._loop)
        self._readers = ThreadPoolExecutor(config.read_threads, f"{config.bookie_id}-read")
        self._registration: Registration | None = None
        self._closing = False
        self._dispatch_scheduled = False
        self._stalled: JournalGroup | None = None  # in flight, but there is no space for it
        self._job: FlushJob | None = None
        self._job_running = False
        self._job_began_s = 0.0
        self._flush_waiters: list[asyncio.Future[None]] = []
        self._drained: asyncio.Future[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._disk_timer: asyncio.TimerHandle | None = None
        self._fences: dict[int, asyncio.Future[int]] = {}
        self._lac_watch = LacWatch()

    @classmethod
    async def open(
        cls,
        config: BookieConfig,
        file_system: FileSystem,
        store: MetadataStore,
        *,
        index: OrderedStore | None = None,
        new_nonce: Callable[[], int] = lambda: secrets.randbits(32),
        before_register: Callable[[Bookie], Awaitable[None]] | None = None,
    ) -> Bookie:
        """Check the cookie, replay the journal, register. See ``open_bookie.open_bookie``."""
        from bookkeeper.bookie.open_bookie import open_bookie  # it builds this class

        return await open_bookie(
            config,
            file_system,
            store,
            index=index,
            new_nonce=new_nonce,
            before_register=before_register,
        )

    @property
    def bookie_id(self) -> str:
        return self.config.bookie_id

    @property
    def is_closed(self) -> bool:
        """It is closing, closed, or was ended by an error."""
        return self._unavailable()

    def takes_recovery(self) -> bool:
        """Adds of a recovery are accepted, though others may be refused for want of space."""
        return not self._unavailable() and (not self.read_only or self._has_reserve())

    async def register(self, registration: Registration) -> None:
        """Announce the bookie; the last step of a start."""
        self._check_disk()
        self._registration = registration
        await registration.register(read_only=self.read_only)

    # ---- writing

    def add_entries(self, request: AddRequest) -> None:
        """Store entries; ``request.done`` gets a code, never within this call."""
        code = self._refusal(request)
        if code == codes.OK:
            code = self.storage.add(request)
        if code != codes.OK:
            self.figures.refused_adds += 1
            self._loop.call_soon(request.done, request, code)
            return
        group = self.storage.journal.newest
        if not group.entries:
            group.opened_s = perf_counter()
        group.entries += len(request.entry_ids)
        self._dispatch_soon()
        if self.storage.needs_flush:
            self._begin_flush()
        elif self._flush_timer is None:
            self._arm_flush_timer()

    async def write_lac(self, ledger_id: int, lac: int, *, master_key: bytes) -> int:
        """Store an explicit last-add-confirmed durably; a result code."""
        if self._unavailable():
            return codes.UNAVAILABLE
        done: asyncio.Future[int] = self._loop.create_future()
        answer = functools.partial(_resolve, done)
        code = self.storage.write_lac(ledger_id, master_key, lac, answer)
        if code != codes.OK:
            return code
        self._after_meta_record()
        code = await done
        self._lac_watch.on_change(ledger_id)
        return code

    def _refusal(self, request: AddRequest) -> int:
        if self.error is not None:
            return codes.IO_ERROR
        if self._closing:
            return codes.UNAVAILABLE
        if self._stalled is not None:
            return codes.OK  # waits with those before it; the queue's limit bounds how many
        if self.read_only and not (request.recovery and self._has_reserve()):
            return codes.READ_ONLY
        return codes.OK

    def _unavailable(self) -> bool:
        return self._closing or self.error is not None

    async def _fence(self, ledger_id: int, master_key: bytes) -> int:
        """Fence durably; concurrent callers share one journal record."""
        pending = self._fences.get(ledger_id)
        if pending is not None:
            state = self.storage.ledgers.get(ledger_id)
            if state is not None and not compare_digest(state.master_key, master_key):
                return codes.UNAUTHORIZED  # the pending fence has set or checked the key
            return await asyncio.shield(pending)
        done: asyncio.Future[int] = self._loop.create_future()
        answer = functools.partial(self._on_fenced, ledger_id, done)
        code, state = self.storage.fence(ledger_id, master_key, answer)
        if code != codes.OK or state is None or state.fence_durable:
            return code
        self._fences[ledger_id] = done
        self._after_meta_record()
        return await asyncio.shield(done)

    def _on_fenced(self, ledger_id: int, done: asyncio.Future[int], code: int) -> None:
        self._fences.pop(ledger_id, None)
        state = self.storage.ledgers.get(ledger_id)
        if code == codes.OK and state is not None:
            state.fence_durable = True
        _resolve(done, code)

    def _after_meta_record(self) -> None:
        self._dispatch_soon()
        if self._flush_timer is None:
            self._arm_flush_timer()

    # ---- journal

    def _dispatch_soon(self) -> None:
        # At the end of the tick: requests of many ledgers that arrive together share a group.
        if not self._dispatch_scheduled and self.storage.journal.in_flight is None:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        storage = self.storage
        if self.error is not None or (self._job_running and storage.needs_flush):
            # Both halves of the cache are full: let acknowledgements wait for the flush, so that
            # writers slow down. Above journal_queue_bytes_max they are refused.
            return
        group = storage.journal.take_group()
        if group is not None:
            self._write_group(group)

    def _write_group(self, group: JournalGroup) -> None:
        write = functools.partial(self._write, group)
        self._journal_worker.submit(write, functools.partial(self._on_group_written, group))

    def _write(self, group: JournalGroup) -> None:
        """On the journal's thread."""
        began_s = perf_counter()
        self.storage.writer.write(group)
        group.write_s = perf_counter() - began_s

    def _count_group(self, group: JournalGroup) -> None:
        figures = self.figures
        figures.journal_sync.record(group.write_s * 1000)
        figures.journal_bytes += group.size
        if group.entries:
            figures.added_entries += group.entries
            figures.added_bytes += group.record_bytes
            # The one who waited longest stands for all: a time per request would cost each of them.
            figures.journal_add.record((perf_counter() - group.opened_s) * 1000, group.entries)

    def _on_group_written(self, group: JournalGroup, error: BaseException | None) -> None:
        if self.error is not None:
            return  # everything was answered already
        if isinstance(error, JournalFullError):
            self._on_journal_full(group, error)
            return
        if error is not None:
            self._fail(error)
            return
        self.storage.journal.on_durable(group)
        if self._stalled is not None:
            self._stalled = None
            self._check_disk()
        self._dispatch()  # first the disk, then the answers
        self._count_group(group)
        for waiting in group.waiting:
            self._answer(waiting, codes.OK)
        if self._lac_watch:
            self._lac_watch.on_durable(group.waiting)
        self._start_flush_if_ready()
        if self._drained is not None:
            self._check_drained()

    def _answer(self, waiting: object, code: int) -> None:
        try:
            if isinstance(waiting, AddRequest):  # the client sends its own subclass
                waiting.done(waiting, code)
            elif callable(waiting):
                waiting(code)
        except Exception:  # a caller's bug must not keep the others from their answers
            _log.exception("a caller's completion failed")

    def _fail(self, error: BaseException) -> None:
        """A disk failed: answer everything pending, then tell the owner. Never retried."""
        if self.error is not None:
            return
        self.error = error
        for timer in (self._flush_timer, self._disk_timer):
            if timer is not None:
                timer.cancel()
        for waiting in self.storage.journal.take_all_waiting():
            self._answer(waiting, codes.IO_ERROR)
        self._fail_flush_waiters(error)
        self._lac_watch.wake_all()
        self._check_drained()
        self.on_fatal(error)

    def _fail_flush_waiters(self, error: BaseException) -> None:
        waiters, self._flush_waiters = self._flush_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(BookieClosedError(f"the bookie ended: {error}"))

    # ---- flush

    async def flush(self) -> None:
        """Move everything that was acknowledged by now to the entry logs.

        Raises:
            BookieClosedError: a disk error ended the bookie.
        """
        if self._job is not None:  # it does not hold what arrived since
            await self._wait_for_flush()
        if self.storage.has_unflushed:
            self._begin_flush()
            await self._wait_for_flush()

    async def _wait_for_flush(self) -> None:
        if self.error is not None:
            raise BookieClosedError(f"the bookie ended: {self.error}")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._flush_waiters.append(waiter)
        await waiter

    def _begin_flush(self) -> None:
        if self._job is not None or self.error is not None:
            return
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._job = self.storage.begin_flush()
        self._dispatch_soon()
        self._start_flush_if_ready()

    def _start_flush_if_ready(self) -> None:
        job = self._job
        if job is not None and not self._job_running and self.storage.flush_is_ready(job):
            self._job_running = True
            self._job_began_s = perf_counter()
            steps = flush_steps(self.storage, job)
            self.maintenance.submit_steps(steps, self._on_flushed, urgent=True)

    def _on_flushed(self, error: BaseException | None) -> None:
        self._job_running = False
        if self.error is not None:
            return
        if error is not None:
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                self._on_disk_full(error)
            else:
                self._fail(error)
            return
        if (job := self._job) is not None:
            self._count_flush(job)
        self.storage.end_flush()
        self._job = None
        waiters, self._flush_waiters = self._flush_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._check_disk()
        self._dispatch()
        if self.storage.needs_flush:
            self._begin_flush()
        elif self.storage.has_unflushed:
            self._arm_flush_timer()

    def _count_flush(self, job: FlushJob) -> None:
        figures = self.figures
        figures.flush.record((perf_counter() - self._job_began_s) * 1000)
        figures.flush_bytes.record(job.half.bytes)
        figures.flushed_entries += job.half.entry_count

    async def run_maintenance(self, steps: Iterator[None]) -> None:
        """Run the steps of a long job on the maintenance thread; flushes go between them.

        Raises:
            BookieClosedError: the bookie is closed or ended.
            Exception: of a step. An OSError other than a full disk also ends the bookie.
        """
        if self._unavailable():
            raise BookieClosedError("the bookie is closed")
        done: asyncio.Future[None] = self._loop.create_future()

        def on_done(error: BaseException | None) -> None:
            if isinstance(error, OSError) and error.errno not in _NO_SPACE:
                self._fail(error)
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.maintenance.submit_steps(steps, on_done, urgent=False)
        await done

    def _arm_flush_timer(self) -> None:
        if self._flush_timer is None and not self._closing:
            delay = self.config.flush_interval_s
            self._flush_timer = self._loop.call_later(delay, self._on_flush_timer)

    def _on_flush_timer(self) -> None:
        self._flush_timer = None
        if self.storage.has_unflushed:
            self._begin_flush()

    # ---- disk space

    def _on_disk_full(self, error: OSError) -> None:
        """Entry log or index ran out of space: the journal still has everything; wait for space."""
        _log.error("no space to flush, read-only: %s: %s", self.config.data_dir, error)
        self._set_read_only(True)
        if self._closing:  # nobody will try again
            self._fail_flush_waiters(error)
        self._arm_disk_timer()
        self._dispatch_soon()  # what waits for this flush was let in: it needs only the journal

    def _on_journal_full(self, group: JournalGroup, error: JournalFullError) -> None:
        """Writers wait, readers go on; the same group is tried again until there is space."""
        if self._closing:  # nobody will try again, and nothing of it was acknowledged
            self._fail(error)
            return
        if self._stalled is None:
            _log.error("no space for the journal, writers wait: %s/%s", self.config.data_dir, error)
            self._stalled = group
            self._set_read_only(True)
        self._arm_disk_timer()

    def _has_reserve(self) -> bool:
        return self.storage.file_system.free_bytes() > self.config.disk_reserve_bytes // 2

    def _check_disk(self) -> None:
        """Turn read-only above the high threshold, and back below the low one."""
        file_system, config = self.storage.file_system, self.config
        free, total = file_system.free_bytes(), max(1, file_system.total_bytes())
        used = 1 - free / total
        limit = config.writable_below if self.read_only else config.disk_usage_max
        full = used > limit or free < config.disk_reserve_bytes or self._stalled is not None
        if full != self.read_only:
            _log.warning(
                "%s: disk usage %.1f %%, %d MiB free: the bookie %s",
                *(config.data_dir, used * 100, free >> 20),
                "is read-only" if full else "takes writes again",
            )
            self._set_read_only(full)
        if full:
            self._arm_disk_timer()

    def _set_read_only(self, read_only: bool) -> None:
        self.read_only = read_only
        if self._registration is not None:
            self._registration.set_read_only(read_only)

    def _arm_disk_timer(self) -> None:
        if self._disk_timer is None and not self._closing:
            delay = self.config.disk_check_interval_s
            self._disk_timer = self._loop.call_later(delay, self._on_disk_timer)

    def _on_disk_timer(self) -> None:
        self._disk_timer = None
        self._check_disk()
        if self._stalled is not None:
            self._write_group(self._stalled)
        if self._job is not None:
            self._start_flush_if_ready()

    # ---- reading

    async def read_entries(
        self,
        ledger_id: int,
        first: int,
        count_max: int,
        bytes_max: int,
        *,
        fence: bool = False,
        master_key: bytes = b"",
    ) -> ReadReply:
        """Contiguous packets from ``first`` on; see ``BookieClient.read_entries``."""
        if self._unavailable():
            return ReadReply(codes.UNAVAILABLE, first, [])
        if fence and (code := await self._fence(ledger_id, master_key)) != codes.OK:
            return ReadReply(code, first, [])
        if first < 0 or count_max < 1:
            return ReadReply(codes.BAD_REQUEST, first, [])
        state = self.storage.ledgers.get(ledger_id)
        if state is None:
            return ReadReply(codes.NO_LEDGER, first, [])
        began_s = perf_counter()
        code, packets = await self._read(state, first, count_max, bytes_max)
        figures = self.figures
        figures.reads.record((perf_counter() - began_s) * 1000)
        figures.read_entries += len(packets)
        figures.read_bytes += sum(map(len, packets))
        return ReadReply(code, first, packets)

    async def _read(
        self, state: LedgerState, first: int, count_max: int, bytes_max: int
    ) -> tuple[int, list[bytes | memoryview]]:
        storage, ledger_id = self.storage, state.ledger_id
        packets = storage.read_cached(ledger_id, first, count_max, bytes_max)
        if packets:
            self.figures.cached_reads += 1
            return codes.OK, packets
        if first <= state.last_entry:
            self.figures.stored_reads += 1
            read = functools.partial(storage.read_stored, ledger_id, first, count_max, bytes_max)
            try:
                packets = await self._loop.run_in_executor(self._readers, read)
            except (StorageError, OSError) as error:
                self.figures.failed_reads += 1
                _log.error("read of ledger %d, entry %d failed: %s", ledger_id, first, error)
                return codes.IO_ERROR, []
            if packets:
                return codes.OK, packets
        if ledger_id not in storage.ledgers:  # deleted meanwhile
            return codes.NO_LEDGER, []
        return (codes.UNKNOWN_LEDGER_STATE if state.limbo else codes.NO_ENTRY), []

    async def read_lac(self, ledger_id: int, *, fence: bool, master_key: bytes = b"") -> LacReply:
        """Last packet and explicit LAC; see ``BookieClient.read_lac``."""
        if self._unavailable():
            return LacReply(codes.UNAVAILABLE, None, -1)
        if fence and (code := await self._fence(ledger_id, master_key)) != codes.OK:
            return LacReply(code, None, -1)
        state = self.storage.ledgers.get(ledger_id)
        if state is None:
            return LacReply(codes.NO_LEDGER, None, -1)
        if state.limbo:  # entries may be lost, so the last one it has proves nothing
            return LacReply(codes.UNKNOWN_LEDGER_STATE, None, -1)
        explicit_lac, last = state.explicit_lac, state.last_entry
        if last == NO_ENTRY_ID:
            return LacReply(codes.OK, None, explicit_lac)
        code, packets = await self._read(state, last, 1, 1)
        if code == codes.OK:
            return LacReply(codes.OK, packets[0], explicit_lac)
        # The index says that there is a last entry: not finding it is damage, not an answer.
        return LacReply(codes.NO_LEDGER if code == codes.NO_LEDGER else codes.IO_ERROR, None, -1)

    async def wait_lac(self, ledger_id: int, above: int, wait_s: float) -> LacReply:
        """A long poll; see ``BookieClient.wait_lac``."""
        deadline = self._loop.time() + wait_s
        while True:
            changed = self._lac_watch.begin(ledger_id)  # before the look: no change is missed
            try:
                reply = await self.read_lac(ledger_id, fence=False)
                if reply.code not in (codes.OK, codes.NO_LEDGER) or _told_lac(reply) > above:
                    return reply
                async with asyncio.timeout_at(deadline):
                    await changed
            except TimeoutError:
                return reply
            finally:
                self._lac_watch.end(ledger_id, changed)

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        """Ids of the ledgers it holds, ascending; see ``BookieClient.list_ledgers``."""
        if self._unavailable():
            raise error_for_code(codes.UNAVAILABLE, "list ledgers")
        return heapq.nsmallest(count_max, (id_ for id_ in self.storage.ledgers if id_ >= first))

    async def list_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """Entry ids this bookie holds as ascending runs ``(first, end)``.

        Raises:
            LedgerError: limbo, an I/O error, closed. An unknown ledger has no entries.
        """
        what = f"list entries of ledger {ledger_id}"
        if self._unavailable():
            raise error_for_code(codes.UNAVAILABLE, what)
        storage = self.storage
        state = storage.ledgers.get(ledger_id)
        if state is None:
            return []
        if state.limbo:
            raise error_for_code(codes.UNKNOWN_LEDGER_STATE, what)
        # Memory first: what moves to the index meanwhile is then found twice, not never.
        ids: set[int] = set()
        for half in (storage.active, storage.flushing):
            if half is not None and (entries := half.ledgers.get(ledger_id)) is not None:
                ids.update(entries.entry_ids())
        read = functools.partial(storage.stored_runs, ledger_id)
        try:
            runs = await self._loop.run_in_executor(self._readers, read)
        except (StorageError, OSError) as error:
            raise error_for_code(codes.IO_ERROR, f"{what}: {error}") from error
        for run in runs:
            ids.update(id_ for id_, size in enumerate(run.sizes, run.first) if size)
        return _to_ranges(ids)

    async def info(self) -> BookieInfo:
        file_system = self.storage.file_system
        return BookieInfo(
            self.bookie_id, self.read_only, file_system.free_bytes(), file_system.total_bytes()
        )

    # ---- end

    def give_up_waiting(self) -> None:
        """End the bookie, with ``on_fatal``, if its journal waits for space: nobody can write.

        Call it before an orderly end, in which all writers would wait for the disk.
        """
        if self._stalled is not None:
            self._fail(BookieClosedError("stopped while there was no space for the journal"))

    async def close(self) -> None:
        """Answer what was accepted, flush, unregister, release the directory."""
        if self._closing:
            return
        self._closing = True
        self.give_up_waiting()
        self._lac_watch.wake_all()
        if self._registration is not None:
            await self._registration.close()
        if self.error is None:
            await self._drain()
        if self.error is None and not self.read_only:
            try:
                await self.flush()
            except BookieClosedError as error:
                _log.error("%s", error)  # the journal has it
        for timer in (self._flush_timer, self._disk_timer):
            if timer is not None:
                timer.cancel()
        self._journal_worker.stop()
        self.maintenance.stop()
        await self._loop.run_in_executor(None, self._join)
        self.storage.writer.close()
        self.storage.logs.close()
        self.storage.index.close()
        self._lock.release()

    def _join(self) -> None:
        self._journal_worker.join()
        self.maintenance.join()
        self._readers.shutdown()

    async def _drain(self) -> None:
        """Wait until the journal has nothing left to write."""
        self._drained = self._loop.create_future()
        self._dispatch_soon()
        self._check_drained()
        await self._drained

    def _check_drained(self) -> None:
        drained, journal = self._drained, self.storage.journal
        idle = journal.in_flight is None and journal.queued_bytes == 0
        if drained is not None and not drained.done() and (idle or self.error is not None):
            drained.set_result(None)


def _resolve(future: asyncio.Future[int], code: int) -> None:
    if not future.done():
        future.set_result(code)


def _told_lac(reply: LacReply) -> int:
    """The highest confirmed entry that an answer proves."""
    packet = reply.last_packet
    return max(reply.explicit_lac, -1 if packet is None else decode_header(packet).lac)


def _to_ranges(ids: set[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    first = end = -1
    for entry_id in sorted(ids):
        if entry_id != end:
            if end >= 0:
                ranges.append((first, end))
            first = entry_id
        end = entry_id + 1
    if end >= 0:
        ranges.append((first, end))
    return ranges
