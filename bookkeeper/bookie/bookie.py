"""A bookie: the shell around the storage core. Owns threads, loop callbacks, timers, registration.

Everything public is called on the loop. A thread for each journal, one for maintenance, a small
pool for reads that touch the disk. Idle, it looks at its disk every ten seconds, nothing else.
"""

import asyncio
import errno
import functools
import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import ceil, isnan
from time import monotonic, perf_counter

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.deferred_sync import DeferredAdds
from magnetar.bookkeeper.bookie.duplicate_adds import DuplicateAdds
from magnetar.bookkeeper.bookie.integrity.integrity_listener import DataIntegrityListener
from magnetar.bookkeeper.bookie.journal.journal import JournalGroup
from magnetar.bookkeeper.bookie.journal.journal_thread import JournalThread
from magnetar.bookkeeper.bookie.lac_watch import LacWatch, told_lac
from magnetar.bookkeeper.bookie.metrics import BookieMetrics
from magnetar.bookkeeper.bookie.registration import Registration
from magnetar.bookkeeper.bookie.storage.disk_space import DiskSpace
from magnetar.bookkeeper.bookie.storage.flush import flush_steps
from magnetar.bookkeeper.bookie.storage.ledger_descriptor import NO_ENTRY_ID, LedgerDescriptor
from magnetar.bookkeeper.bookie.storage.ledger_storage import FlushJob, LedgerStorage
from magnetar.bookkeeper.bookie.storage.location_runs import to_ranges
from magnetar.bookkeeper.bookie.storage.read_ahead import ReadAhead
from magnetar.bookkeeper.bookie.storage.stored_runs import StoredRuns
from magnetar.bookkeeper.bookie.storage.stripe_rows import read_rows
from magnetar.bookkeeper.bookie.workers import CooperativeWorker
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import (
    BookieClosedError,
    JournalFullError,
    StorageError,
    error_for_code,
)
from magnetar.bookkeeper.ledger_metadata import same_master_key
from magnetar.bookkeeper.storage.file_system import DirectoryLock
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    LacReply,
    ReadReply,
    ReadRequest,
)

_log = logging.getLogger(__name__)

_LATENCY_PERIOD_S = 60.0
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Bookie(BookieClient):
    """A storage node, and the ``BookieClient`` for callers in the same process: buffers are
    shared then, and digests aren't checked again. Open one with ``open_bookie``.

    ``on_fatal`` is called once, on the loop, when a disk error ended the bookie: nothing that it
    had not acknowledged by then may be trusted. The process should end and start again; replay
    decides.

    One object, because adds, flushes and the disk's space decide about each other: what is accepted
    follows from all three. What is done with it is in the parts that it owns.
    """

    def __init__(self, config: BookieConfig, storage: LedgerStorage, lock: DirectoryLock) -> None:
        self.on_fatal: Callable[[BaseException], None] = functools.partial(
            _log.critical, "the bookie ended: %s"
        )
        self.on_low_space: Callable[[], None] | None = None  # told again at each look at the disk
        self.config = config
        self.storage = storage
        self.metrics = BookieMetrics()
        self.integrity: DataIntegrityListener | None = None
        self.read_only = self._ordered_read_only = self._is_flush_stalled = False
        self.error: BaseException | None = None
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._threads = [
            JournalThread(journal, each, self, f"{config.bookie_id}-{each.directory}", self._loop)
            for journal, each in zip(storage.journals, storage.writers, strict=True)
        ]
        self.maintenance = CooperativeWorker(f"{config.bookie_id}-maintenance", self._loop)
        self._refused_adds = 0  # at the last look at the disk
        self._space = DiskSpace(config, storage.file_system, storage.logs)
        self._readers = ThreadPoolExecutor(config.read_threads, f"{config.bookie_id}-read")
        ahead = (config.read_ahead_bytes, config.read_threads)
        self.read_ahead = ReadAhead(storage, self._readers, *ahead)
        self.files = StoredRuns(storage, self._readers)
        self._registration: Registration | None = None
        self._closing = False
        self._job: FlushJob | None = None
        self._job_running = False
        self._job_began_s = 0.0
        self._flush_waiters: list[asyncio.Future[None]] = []
        self._drained: asyncio.Future[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._disk_timer: asyncio.TimerHandle | None = None
        self._fences: dict[int, asyncio.Future[int]] = {}
        self._lac_watch = LacWatch()
        self._deferred = DeferredAdds(self._loop)
        self._duplicates = DuplicateAdds(
            self._readers, self._loop, storage, self._add, self._on_not_added
        )

    @property
    def bookie_id(self) -> str:
        return self.config.bookie_id

    @property
    def is_closed(self) -> bool:
        """It is closing, closed, or was ended by an error."""
        return self._closing or self.error is not None

    @property
    def is_registered(self) -> bool:
        """Its node is in the metadata store, and says what it should, as far as is known."""
        return self._registration is not None and self._registration.is_current

    @property
    def is_idle(self) -> bool:
        """Every add that was accepted is answered."""
        return all(thread.is_idle for thread in self._threads)

    def takes_recovery(self) -> bool:
        """Adds of a recovery are accepted, though others may be refused for want of space."""
        return not self.is_closed and (not self.read_only or self._space.has_reserve())

    async def register(self, registration: Registration) -> None:
        """Announce the bookie; the last step of a start."""
        self._check_disk()
        self._registration = registration
        await registration.register(read_only=self.read_only)

    # ---- writing

    def add_entries(self, request: AddRequest) -> None:
        """Store entries; ``request.done`` gets a code, never within this call."""
        if not (self._duplicates.lines and self._duplicates.takes(request)):
            self._add(request, looked=False)

    def _add(self, request: AddRequest, looked: bool) -> None:
        code = self._refusal(request)
        if code == codes.OK:
            added = self._deferred.stand_in(request) if request.deferred_sync else request
            code = self.storage.add(added, looked=looked)
        if code != codes.OK:
            self._on_not_added(request, code)
            return
        if added is not request:
            queued_bytes_max = self.config.storage.journal_queue_bytes_max // 2
            early = self.storage.queued_bytes <= queued_bytes_max
            self._deferred.on_accepted(added, early=early)
        thread = self._thread_of(request.ledger_id)
        group = thread.journal.newest
        if not group.entries:
            group.opened_s = perf_counter()
        group.entries += len(request.entry_ids)
        thread.dispatch_soon()
        if self.storage.needs_flush:
            self._begin_flush()
        elif self._flush_timer is None:
            self._arm_flush_timer()

    def _on_not_added(self, request: AddRequest, code: int) -> None:
        if code == LedgerStorage.LOOK_FIRST:
            return self._duplicates.begin(request)
        self.metrics.refused_adds += 1
        if code in (codes.OTHER_CREATOR, codes.ENTRY_DIFFERS):
            _log.error("an add is refused: %s", error_for_code(code, f"ledger {request.ledger_id}"))

            # Told when it is durable: until then the ledger could be collected after a crash.
            answer: Callable[[int], None] = lambda _: request.done(request, code)  # noqa: E731
            if self.storage.note_dispute(request.ledger_id, answer):
                return self._after_meta_record()
        self._loop.call_soon(request.done, request, code)
        return None

    async def write_lac(
        self,
        ledger_id: int,
        lac: int,
        *,
        master_key: bytes,
        creator: int = 0,
        digest: bytes | None = None,
    ) -> int:
        """Store an explicit LAC durably, see ``LedgerDescriptor.raise_lac``; a result code."""
        if self.is_closed:
            return codes.UNAVAILABLE
        done: asyncio.Future[int] = self._loop.create_future()
        answer = functools.partial(_resolve, done)
        code = self.storage.write_lac(ledger_id, master_key, lac, answer, creator, digest)
        if code != codes.OK:
            return code
        self._after_meta_record()
        code = await done
        self._lac_watch.on_change(ledger_id)
        return code

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        """Make deferred adds durable; see ``BookieClient.force``."""
        if self.is_closed:
            return codes.UNAVAILABLE
        state = self.storage.ledgers.get(ledger_id)
        if state is None:
            return codes.NO_LEDGER
        if not same_master_key(state.master_key, master_key):
            return codes.UNAUTHORIZED
        return await self._deferred.force(ledger_id, first)

    async def sync(self, ledger_id: int) -> int:
        """Make durable what it acknowledged early of a ledger; a code.

        Unlike ``force`` it vouches for nothing that was acknowledged before this process started.
        """
        return codes.UNAVAILABLE if self.is_closed else await self._deferred.sync(ledger_id)

    def on_ledgers_dropped(self, ledger_ids: Iterable[int]) -> None:
        """These were deleted: waits for more of them end."""
        for ledger_id in ledger_ids:
            self._deferred.forget(ledger_id)
            self._lac_watch.on_end(ledger_id)
            self.read_ahead.forget(ledger_id)

    def on_ledger_emptied(self, ledger_id: int) -> None:
        """Others hold this one now."""
        self._deferred.forget(ledger_id)
        self.read_ahead.forget(ledger_id)

    def _refusal(self, request: AddRequest) -> int:
        if self.error is not None:
            return codes.IO_ERROR
        if self._closing:
            return codes.UNAVAILABLE
        if self.is_stalled:
            return codes.OK  # waits with those before it; the queue's limit bounds how many
        if self.read_only and not (request.has_priority and self._space.has_reserve()):
            return codes.READ_ONLY
        return codes.OK

    async def _fence(self, ledger_id: int, master_key: bytes, creator: int) -> int:
        """Fence durably; concurrent callers share one journal record."""
        if self.storage.is_other(ledger_id, creator):
            return await self._deny(ledger_id, master_key)
        pending = self._fences.get(ledger_id)
        if pending is not None:
            state = self.storage.ledgers.get(ledger_id)
            if state is not None and not same_master_key(state.master_key, master_key):
                return codes.UNAUTHORIZED  # the pending fence has set or checked the key
            return await asyncio.shield(pending)
        done: asyncio.Future[int] = self._loop.create_future()
        answer = functools.partial(self._on_fenced, ledger_id, done)
        code, state = self.storage.fence(ledger_id, master_key, answer, creator)
        if code != codes.OK or state is None or state.fence_durable:
            return code
        self._fences[ledger_id] = done
        self._after_meta_record()
        return await asyncio.shield(done)

    async def _deny(self, ledger_id: int, master_key: bytes) -> int:
        """A recovery may count on the answer, so it must hold after a crash, too."""
        if not same_master_key(self.storage.ledgers[ledger_id].master_key, master_key):
            return codes.UNAUTHORIZED
        done: asyncio.Future[int] = self._loop.create_future()
        if not self.storage.note_dispute(ledger_id, functools.partial(_resolve, done)):
            return codes.UNKNOWN_LEDGER_STATE
        self._after_meta_record()
        code = await done
        return code if code != codes.OK else self.storage.denial(ledger_id)

    def _on_fenced(self, ledger_id: int, done: asyncio.Future[int], code: int) -> None:
        self._fences.pop(ledger_id, None)
        state = self.storage.ledgers.get(ledger_id)
        if code == codes.OK and state is not None:
            state.fence_durable = True
            self._lac_watch.on_end(ledger_id)
        _resolve(done, code)

    def _after_meta_record(self) -> None:
        self._dispatch_soon()
        if self._flush_timer is None:
            self._arm_flush_timer()

    # ---- journals

    def _thread_of(self, ledger_id: int) -> JournalThread:
        threads = self._threads
        return threads[0] if len(threads) == 1 else threads[ledger_id % len(threads)]

    @property
    def is_stalled(self) -> bool:
        """A journal waits for space."""
        return any(thread.stalled is not None for thread in self._threads)

    def _dispatch_soon(self) -> None:
        for thread in self._threads:
            thread.dispatch_soon()

    def may_write(self) -> bool:
        """See ``JournalListener``."""
        # Both halves of the cache are full: let acknowledgements wait for the flush, so that
        # writers slow down. Above journal_queue_bytes_max they are refused.
        return self.error is None and not (self._job_running and self.storage.needs_flush)

    def on_group_durable(self, group: JournalGroup, *, was_stalled: bool) -> None:
        """See ``JournalListener``."""
        if self.error is not None:
            return  # everything was answered already
        if was_stalled:
            self._check_disk()
        self.metrics.count_group(group, (perf_counter() - group.opened_s) * 1000)
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

    def give_up(self, error: BaseException) -> None:
        """End the bookie, with ``on_fatal``: a disk failed, or it must not answer any more.

        Everything pending is answered before. Never retried.
        """
        if self.error is not None:
            return
        self.error = error
        for timer in (self._flush_timer, self._disk_timer):
            if timer is not None:
                timer.cancel()
        for thread in self._threads:
            for waiting in thread.journal.take_all_waiting():
                self._answer(waiting, codes.IO_ERROR)
        self._fail_flush_waiters(error)
        self._lac_watch.wake_all()
        self._check_drained()
        self.on_fatal(error)

    def _fail_flush_waiters(self, error: BaseException) -> None:
        while self._flush_waiters:
            if not (waiter := self._flush_waiters.pop()).done():
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
                self.give_up(error)
            return
        if (job := self._job) is not None:
            self.metrics.count_flush(job, (perf_counter() - self._job_began_s) * 1000)
        self.storage.end_flush()
        self._job, self._is_flush_stalled = None, False
        waiters, self._flush_waiters = self._flush_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._check_disk()
        for thread in self._threads:
            thread.dispatch()
        if self.storage.needs_flush:
            self._begin_flush()
        elif self.storage.has_unflushed:
            self._arm_flush_timer()

    async def run_maintenance(self, steps: Iterator[None]) -> None:
        """Run the steps of a long job on the maintenance thread; flushes go between them.

        Raises:
            BookieClosedError: the bookie is closed or ended.
            Exception: of a step. An OSError other than a full disk also ends the bookie.
        """
        if self.is_closed:
            raise BookieClosedError("the bookie is closed")
        done: asyncio.Future[None] = self._loop.create_future()

        def on_done(error: BaseException | None) -> None:
            if isinstance(error, OSError) and error.errno not in _NO_SPACE:
                self.give_up(error)
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
        """Entry log or index has no room, maybe on a disk that has: the journal has everything."""
        if not self._is_flush_stalled:  # said once, tried again and again
            _log.error("no space to flush, read-only: %s: %s", self.config.data_dir, error)
        self._is_flush_stalled = True
        self._set_read_only(True)
        if self._closing:  # it won't be tried again
            self._fail_flush_waiters(error)
        self._arm_disk_timer()
        self._dispatch_soon()  # what waits for this flush was let in: it needs only the journal

    def on_journal_full(self, error: JournalFullError, *, again: bool) -> None:
        """Writers wait, readers go on; the same group is tried again until there is space."""
        if self.error is not None:
            return
        if self._closing:  # it won't be tried again, and nothing of it was acknowledged
            self.give_up(error)
            return
        if not again:
            _log.error("no space for the journal, writers wait: %s/%s", self.config.data_dir, error)
            self._set_read_only(True)
        self._arm_disk_timer()

    def _check_disk(self) -> None:
        """Turn read-only above the high threshold, and back below the low one."""
        look = self._space.look(read_only=self.read_only)
        full = look.full or self.is_stalled or self._is_flush_stalled or self._ordered_read_only
        if full != self.read_only:
            _log.warning(
                "%s: disk usage %.1f %%, %d MiB free: the bookie %s",
                *(self.config.data_dir, look.used * 100, look.free_bytes >> 20),
                "is read-only" if full else "takes writes again",
            )
            self._set_read_only(full)
        if look.low and self.on_low_space is not None:
            self.on_low_space()
        self._arm_disk_timer()

    def set_ordered_read_only(self, read_only: bool) -> None:
        """Refuse writers whatever the disk says (see drain.py), or go by the disk again."""
        self._ordered_read_only = read_only
        if not read_only:
            self._check_disk()
        self._set_read_only(read_only or self.read_only)

    def _set_read_only(self, read_only: bool) -> None:
        self.read_only = read_only
        self.announce_read_only(read_only)

    def announce_read_only(self, read_only: bool = True) -> None:
        """Register so; whether writers are refused stays as it is."""
        if self._registration is not None:
            self._registration.set_read_only(read_only)

    def _arm_disk_timer(self) -> None:
        """The next look: soon while writers wait for space, else now and then."""
        config = self.config
        is_soon = self.is_stalled or (self._job is not None and not self._job_running)
        refused, self._refused_adds = self._refused_adds, self.metrics.refused_adds
        if self.read_only and (config.advertised is None or refused < self._refused_adds):
            is_soon = True  # refused writers have no other bookie, or ask again
        delay = config.disk_check_interval_s if is_soon else config.disk_idle_check_interval_s
        if self._disk_timer is not None:
            if self._disk_timer.when() <= self._loop.time() + delay:
                return
            self._disk_timer.cancel()
            self._disk_timer = None
        if delay > 0 and not self._closing and self.error is None:
            self._disk_timer = self._loop.call_later(delay, self._on_disk_timer)

    def _on_disk_timer(self) -> None:
        self._disk_timer = None
        self.read_ahead.release_unused()
        self._check_disk()
        for thread in self._threads:
            thread.write_again()
        if self._job is not None:
            self._start_flush_if_ready()

    # ---- reading

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        """Packets from ``first`` on; see ``BookieClient.read_entries``."""
        ledger_id, first, creator = request.ledger_id, request.first, request.creator
        if self.is_closed:
            return ReadReply(codes.UNAVAILABLE, first, [])
        if request.fence:
            code = await self._fence(ledger_id, request.master_key, creator)
            if code != codes.OK:
                return ReadReply(code, first, [])
        if not request.is_legal:
            return ReadReply(codes.BAD_REQUEST, first, [])
        state = self.storage.ledgers.get(ledger_id)
        if state is None:
            return ReadReply(self._no_ledger(ledger_id), first, [])
        if not state.is_of(creator):
            return ReadReply(self.storage.denial(ledger_id), first, [])
        began_s = perf_counter()
        stripe, count_max, bytes_max = request.stripe, request.count_max, request.bytes_max
        if stripe.width == stripe.cycle:
            code, packets = await self._read(state, first, count_max, bytes_max)
        else:
            read_row = functools.partial(self._read, state)
            code, packets = await read_rows(read_row, first, count_max, bytes_max, stripe)
        metrics = self.metrics
        metrics.reads.record((perf_counter() - began_s) * 1000)
        metrics.read_entries += len(packets)
        metrics.read_bytes += sum(map(len, packets))
        return ReadReply(code, first, packets)

    async def _read(
        self, state: LedgerDescriptor, first: int, count_max: int, bytes_max: int
    ) -> tuple[int, list[bytes | memoryview]]:
        storage, ledger_id = self.storage, state.ledger_id
        packets = storage.read_cached(ledger_id, first, count_max, bytes_max)
        if packets:
            self.metrics.cached_reads += 1
            return codes.OK, packets
        if first <= state.last_entry:
            self.metrics.stored_reads += 1
            try:
                packets = await self.read_ahead.read(state, first, count_max, bytes_max)
            except (StorageError, OSError) as error:
                self.metrics.failed_reads += 1
                _log.error("read of ledger %d, entry %d failed: %s", ledger_id, first, error)
                if self.integrity is not None:
                    self.integrity.on_damaged(ledger_id, first)
                return codes.IO_ERROR, []
            if packets:
                return codes.OK, packets
        if ledger_id not in storage.ledgers:  # deleted meanwhile
            return self._no_ledger(ledger_id), []
        return (codes.UNKNOWN_LEDGER_STATE if state.limbo else codes.NO_ENTRY), []

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        """Last packet and explicit LAC; see ``BookieClient.read_lac``."""
        if self.is_closed:
            return LacReply(codes.UNAVAILABLE, None, -1)
        if fence and (code := await self._fence(ledger_id, master_key, creator)) != codes.OK:
            return LacReply(code, None, -1)
        state = self.storage.ledgers.get(ledger_id)
        if state is None:
            return LacReply(self._no_ledger(ledger_id), None, -1)
        if not state.is_of(creator):
            return LacReply(self.storage.denial(ledger_id), None, -1)
        if state.limbo:  # entries may be lost, so the last one it has proves nothing
            return LacReply(codes.UNKNOWN_LEDGER_STATE, None, -1)
        lac, digest, last = state.explicit_lac, state.lac_digest, state.last_entry
        if last == NO_ENTRY_ID:
            return LacReply(codes.OK, None, lac, lac_digest=digest)
        code, packets = await self._read(state, last, 1, 1)
        if code == codes.OK:
            return LacReply(codes.OK, packets[0], lac, lac_digest=digest)
        # The index says that there is a last entry: not finding it is damage, not an answer.
        gone = ledger_id not in self.storage.ledgers
        return LacReply(code if gone else codes.IO_ERROR, None, -1)

    def known_lac(self, ledger_id: int) -> int:
        """The highest last-add-confirmed that is in memory; -1: none. A reader may use it, but not
        rely on it."""
        state = self.storage.ledgers.get(ledger_id)
        if state is None:
            return -1
        packets = self.storage.read_cached(ledger_id, state.last_entry, 1, 1)
        return told_lac(LacReply(codes.OK, packets[0] if packets else None, state.explicit_lac))

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        """A long poll; see ``BookieClient.wait_lac``."""
        deadline = self._loop.time() + wait_s
        while True:
            changed = self._lac_watch.begin(ledger_id)  # before the look: no change is missed
            try:
                reply = await self._lac_with_entry(ledger_id, above, creator)
                if reply.code not in (codes.OK, codes.NO_LEDGER) or told_lac(reply) > above:
                    return reply
                async with asyncio.timeout_at(deadline):
                    if await changed:  # fenced or deleted: the caller should look at the metadata
                        return await self._lac_with_entry(ledger_id, above, creator)
            except TimeoutError:
                return reply
            finally:
                self._lac_watch.end(ledger_id, changed)

    async def _lac_with_entry(self, ledger_id: int, above: int, creator: int) -> LacReply:
        """The LAC, and entry ``above`` + 1 if it is at hand."""
        reply = await self.read_lac(ledger_id, fence=False, creator=creator)
        if reply.code == codes.OK:
            packets = self.storage.read_cached(ledger_id, above + 1, 1, 1)
            reply.next_packet = packets[0] if packets else None
        return reply

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        """Ids of the ledgers it holds, ascending; see ``BookieClient.list_ledgers``."""
        if self.is_closed:
            raise error_for_code(codes.UNAVAILABLE, "list ledgers")
        return heapq.nsmallest(count_max, (id_ for id_ in self.storage.ledgers if id_ >= first))

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        """Entry ids this bookie holds as ascending runs ``(first, end)``.

        Raises:
            LedgerError: limbo, an I/O error, closed. An unknown ledger has no entries.
        """
        what = f"list entries of ledger {ledger_id}"
        if self.is_closed:
            raise error_for_code(codes.UNAVAILABLE, what)
        storage = self.storage
        state = storage.ledgers.get(ledger_id)
        limbo = storage.is_unknown(ledger_id) if state is None else state.limbo
        if limbo:
            raise error_for_code(codes.UNKNOWN_LEDGER_STATE, what)
        if storage.is_other(ledger_id, creator):
            raise error_for_code(storage.denial(ledger_id), what)
        return await self.held_entries(ledger_id)

    def _no_ledger(self, ledger_id: int) -> int:
        """The answer about a ledger that has no state here."""
        unknown = self.storage.is_unknown(ledger_id)
        return codes.UNKNOWN_LEDGER_STATE if unknown else codes.NO_LEDGER

    async def held_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        """As ``list_entries``, whether there should be more or not.

        Raises:
            LedgerError: an I/O error.
        """
        what = f"list entries of ledger {ledger_id}"
        storage = self.storage
        state = storage.ledgers.get(ledger_id)
        if state is not None:
            if state.draining:
                raise error_for_code(codes.TOO_MANY_REQUESTS, what)
            state.listed_s = self._loop.time()
        # Memory first: what moves to the index meanwhile is then found twice, not never.
        ids = storage.cached_ids(ledger_id)
        if ids and state is not None:
            # A repair leaves out what is here, so it must survive a crash. The journal keeps
            # the order: once this record is durable, so is every entry before it.
            lac, key = state.explicit_lac, state.master_key
            if (code := await self.write_lac(ledger_id, lac, master_key=key)) != codes.OK:
                raise error_for_code(code, what)
        read = functools.partial(storage.stored_runs, ledger_id)
        try:
            runs = await self._loop.run_in_executor(self._readers, read)
        except (StorageError, OSError) as error:
            raise error_for_code(codes.IO_ERROR, f"{what}: {error}") from error
        return to_ranges(ids.union(*(run.entry_ids() for run in runs)))

    async def info(self) -> BookieStatus:
        file_system = self.storage.file_system
        took_ms = self.metrics.journal_add.quantiles((0.5, 0.99), monotonic(), _LATENCY_PERIOD_S)
        add_p50_us, add_p99_us = (0 if isnan(each) else ceil(each * 1000) for each in took_ms)
        return BookieStatus(
            *(self.bookie_id, self.read_only, file_system.free_bytes(), file_system.total_bytes()),
            add_p50_us=add_p50_us,
            add_p99_us=add_p99_us,
        )

    # ---- the state of the data

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        """See ``BookieClient.report_corrupt``."""
        if self.is_closed:
            return codes.UNAVAILABLE
        if ledger_id < 0 or entry_id < 0:
            return codes.BAD_REQUEST
        taken = self.integrity is not None and self.integrity.on_report(ledger_id, entry_id)
        return codes.OK if taken else codes.TOO_MANY_REQUESTS

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        """See ``BookieClient.check_data``."""
        if self.is_closed or self.integrity is None:
            raise error_for_code(codes.UNAVAILABLE, "check data")
        return self.integrity.check(scrub=scrub, integrity=integrity)

    # ---- end

    def give_up_waiting(self) -> None:
        """End the bookie, with ``on_fatal``, if its journal waits for space: no writer can go on.

        Call it before an orderly end, in which all writers would wait for the disk.
        """
        if self.is_stalled:
            self.give_up(BookieClosedError("stopped while there was no space for the journal"))

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
        if self.error is None and (self._ordered_read_only or not self.read_only):
            try:
                await self.flush()
            except BookieClosedError as error:
                _log.error("%s", error)  # the journal has it
        self._fail_flush_waiters(BookieClosedError("closed before there was space to flush"))
        for timer in (self._flush_timer, self._disk_timer):
            if timer is not None:
                timer.cancel()
        for thread in self._threads:
            thread.stop()
        self.maintenance.stop()
        await self._loop.run_in_executor(None, self._join)
        for writer in self.storage.writers:
            writer.close()
        self.storage.logs.close()
        self.storage.index.close()
        self._lock.release()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self.maintenance.join()
        self._readers.shutdown()

    async def _drain(self) -> None:
        """Wait until the journal has nothing left to write."""
        self._drained = self._loop.create_future()
        self._dispatch_soon()
        self._check_drained()
        await self._drained

    def _check_drained(self) -> None:
        drained = self._drained
        if drained is not None and not drained.done() and (self.is_idle or self.error is not None):
            drained.set_result(None)


def _resolve(future: asyncio.Future[int], code: int) -> None:
    if not future.done():
        future.set_result(code)
