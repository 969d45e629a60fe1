"""The replication worker: finds marked ledgers and repairs them, some at a time.

It sleeps until something happens: a marker appears, a lock ends, a bookie registers, the switch is
turned, or a ledger that waited is due. Ledgers that can't be repaired now wait with a growing
pause, and their markers say why.
"""

import asyncio
import heapq
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, PlacementRandom
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.replication.cluster_watch import read_zones
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker
from magnetar.bookkeeper.replication.ledger_repair import (
    LedgerRepair,
    RepairProgress,
    RepairResult,
    RepairStatus,
)
from magnetar.bookkeeper.replication.metrics import ReplicationMetrics
from magnetar.bookkeeper.replication.registrations import read_registered, read_start
from magnetar.bookkeeper.replication.replicator import ReplicationThrottle, Replicator
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZonePhase
from magnetar.bookkeeper.service_info import AVAILABLE_PATH
from magnetar.metadata.errors import MetadataError, StoreClosedError
from magnetar.metadata.item_errors import ItemErrors
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, Watch

_STORE_RETRY_S: Final = 1.0
_BOOKIE_SETTLES_S: Final = 1.0  # from a registration until the pool of bookies knows of it
_REASONS_MAX: Final = 20  # told of one ledger: a text that is new each time would fill the log
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ledger:
    """A marked ledger that this worker has looked at."""

    began_s: float
    progress: RepairProgress = field(default_factory=RepairProgress)
    told: set[str] = field(default_factory=set)  # reasons why it waits, in the log by now
    due_s: float = 0.0
    needs_bookie: bool = False
    is_locked: bool = False  # by another worker
    lock_ended: bool = False  # another worker's, since the last attempt began


class ReplicationWorker:
    """One of a cluster's workers. ``start`` it, ``close`` it; in between it works alone.

    Args:
        store: the session that locks live in; must be the one behind ``ledgers``.
        bookies: started by the caller.
        clock: wall clock in milliseconds since the epoch.
        location: ``/zone/upgrade-domain`` of this process.

    Attributes:
        metrics: counters for metrics.
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        bookies: BookiePool,
        placement: EnsemblePlacementPolicy,
        *,
        clock: Callable[[], int],
        rng: PlacementRandom,
        config: ReplicationConfig | None = None,
        client_config: ClientConfig | None = None,
        location: str = "",
    ) -> None:
        self.metrics = ReplicationMetrics()
        self._config = config or ReplicationConfig()
        self._store, self._rng = store, rng
        self._markers = UnderReplicationStore(store, clock, ledgers.layout)
        replicator = Replicator(
            ledgers,
            bookies,
            placement,
            ReplicationThrottle(self._config.bytes_per_s),
            self._config,
            self.metrics,
            partial(read_start, store, layout=ledgers.layout),
            location,
        )
        self._repair = LedgerRepair(
            self._markers,
            ledgers,
            bookies,
            placement,
            LedgerChecker(bookies, rng, self._config),
            replicator,
            rng=rng,
            config=self._config,
            client_config=client_config or ClientConfig(),
            metrics=self.metrics,
            registered=partial(read_registered, store),
            held=partial(read_suspended_bookies, store),
            is_stopped=self._is_stopped,
        )
        # Looked at, and marked then. Each has a time when it is due, and is forgotten then if
        # others have repaired it.
        self._known: dict[int, _Ledger] = {}
        self._due: list[tuple[float, int]] = []  # heap; entries that don't fit _known are old
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(self._config.concurrent_ledgers)
        self._wake = asyncio.Event()
        self._rescan = True
        self._rescan_s = 0.0
        self._pages = ItemErrors("search for marked ledgers", _log, (MetadataError,))
        self._paused = True  # until the switch was read
        self._switch_task: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._watches: list[Watch] = []

    def _is_stopped(self) -> bool:
        return self._paused

    def start(self) -> None:
        """Begin to work. Once only."""
        assert self._task is None, "started twice"
        markers = self._markers
        self._watches = [
            markers.watch(self._on_markers),
            markers.watch_switch(self._on_switch),
            markers.watch_locks(self._on_lock_free),
            self._store.watch(AVAILABLE_PATH, self._on_bookie),
            ZoneStore(self._store).watch(self._on_zones),
        ]
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Leave what is under repair; another worker finds its copies again."""
        self._paused = True
        for watch in self._watches:
            watch.close()
        tasks = [t for t in (self._task, self._switch_task, *self._busy.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Events

    def _on_markers(self) -> None:
        self._rescan = True
        self._wake.set()

    def _on_lock_free(self, ledger_id: int) -> None:
        ledger = self._known.get(ledger_id)
        if ledger is None:
            return
        ledger.lock_ended = True
        if ledger.is_locked:
            self._wait_until(ledger_id, ledger, self._now())

    def _on_bookie(self, event: MetadataEvent) -> None:
        if event.type is not EventType.CREATED:
            return
        due_s = self._now() + _BOOKIE_SETTLES_S
        for ledger_id, ledger in self._known.items():
            if ledger.needs_bookie and ledger.due_s > due_s:
                self._wait_until(ledger_id, ledger, due_s)

    def _on_zones(self) -> None:
        """An operator has released a zone, or it is back: ledgers that waited for it are due."""
        now = self._now()
        for ledger_id, ledger in self._known.items():
            if not ledger.is_locked and ledger.due_s > now:
                self._wait_until(ledger_id, ledger, now)

    def _on_switch(self) -> None:
        # At once, not in the next pass: repairs under way must hear of it.
        if self._switch_task is None or self._switch_task.done():
            self._switch_task = asyncio.get_running_loop().create_task(self._follow_switch())

    async def _follow_switch(self) -> None:
        try:
            await self._read_switch()
        except MetadataError as error:
            _log.warning("the switch of auto-recovery can't be read: %s", error)
        self._wake.set()  # the next pass reads it again

    async def _read_switch(self) -> None:
        paused = not await self._markers.is_enabled()
        if paused != self._paused:
            _log.info("auto-recovery is switched %s", "off" if paused else "on")
            self._paused = paused
            self._rescan = True

    # The loop

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._pass()
            except StoreClosedError:
                return
            except MetadataError as error:
                _log.warning("markers can't be read, will retry: %s", error)
                self._rescan = True
                await asyncio.sleep(_STORE_RETRY_S)
                continue
            await self._sleep()

    async def _pass(self) -> None:
        """Start whatever can be started."""
        await self._read_switch()
        if self._now() >= self._rescan_s:
            self._rescan = True
        if self._paused:
            return
        async with aclosing(self._candidates()) as candidates:
            async for ledger_id in candidates:
                await self._slots.acquire()
                if self._is_stopped():
                    self._slots.release()
                    if (ledger := self._known.get(ledger_id)) is not None:
                        self._wait_until(ledger_id, ledger, self._now())
                    return
                self._start(ledger_id)

    async def _candidates(self) -> AsyncGenerator[int, None]:
        for ledger_id in self._due_ids():
            yield ledger_id
        if not self._rescan:
            return
        self._rescan = False
        self._rescan_s = self._now() + self._config.rescan_s
        with self._pages.round() as each:
            async for ids in self._markers.ledger_ids(each.item):
                # Anywhere: workers that begin at the same place meet at every lock.
                start = int(self._rng.random() * len(ids))
                for index in range(len(ids)):
                    for ledger_id in self._due_ids():
                        yield ledger_id
                    ledger_id = ids[(start + index) % len(ids)]
                    if ledger_id not in self._known and ledger_id not in self._busy:
                        yield ledger_id
        if each.failed:
            self._rescan_s = self._now() + _STORE_RETRY_S

    def _due_ids(self) -> Iterator[int]:
        while self._due and self._due[0][0] <= self._now():
            due_s, ledger_id = heapq.heappop(self._due)
            ledger = self._known.get(ledger_id)
            if ledger is not None and ledger.due_s == due_s and ledger_id not in self._busy:
                yield ledger_id

    async def _sleep(self) -> None:
        if self._paused:
            until_s = self._now() + self._config.rescan_s  # the switch wakes us
        else:
            until_s = min(self._rescan_s, self._due[0][0] if self._due else self._rescan_s)
        try:
            async with asyncio.timeout_at(until_s):
                await self._wake.wait()
        except TimeoutError:
            return

    # One ledger

    def _start(self, ledger_id: int) -> None:
        self.metrics.ledgers_under_repair += 1
        task = asyncio.get_running_loop().create_task(self._work(ledger_id))
        self._busy[ledger_id] = task
        task.add_done_callback(partial(self._on_done, ledger_id))

    def _on_done(self, ledger_id: int, _: asyncio.Task[None]) -> None:
        del self._busy[ledger_id]
        self._slots.release()
        self.metrics.ledgers_under_repair -= 1
        self.metrics.ledgers_waiting = len(self._known) - len(self._busy)
        self._wake.set()

    async def _work(self, ledger_id: int) -> None:
        began_s = self._now()
        ledger = self._known.setdefault(ledger_id, _Ledger(began_s))
        ledger.is_locked = ledger.lock_ended = False
        try:
            outcome = await self._repair.run(ledger_id, ledger.progress)
        except MetadataError as error:
            outcome = RepairResult(RepairStatus.WAITING, f"the metadata store: {error}")
        except Exception:  # a bug of ours must not end the repair of all others
            _log.exception("the repair of ledger %d failed", ledger_id)
            outcome = RepairResult(RepairStatus.WAITING, "an internal error, see the worker's log")
        self._settle(ledger_id, ledger, outcome, began_s)

    def _settle(
        self, ledger_id: int, ledger: _Ledger, outcome: RepairResult, began_s: float
    ) -> None:
        now, config = self._now(), self._config
        ledger.is_locked = outcome.verdict is RepairStatus.BUSY
        ledger.needs_bookie = outcome.needs_bookie
        match outcome.verdict:
            case RepairStatus.CLEARED:
                self._known.pop(ledger_id, None)
                self.metrics.repair.record((now - began_s) * 1000)
                report = ledger.progress.report
                if report.steps:
                    _log.info("%s", report.text(ledger_id, now - ledger.began_s))
            case RepairStatus.BUSY:
                # Until the lock ends; which it may have done already.
                pause_s = 0 if ledger.lock_ended else config.backoff_max_s
                self._wait_until(ledger_id, ledger, now + pause_s)
            case RepairStatus.STOPPED:
                self._wait_until(ledger_id, ledger, now + config.backoff_min_s)
            case RepairStatus.WAITING:
                self.metrics.failures += outcome.until_s is None
                if outcome.reason not in ledger.told and len(ledger.told) < _REASONS_MAX:
                    ledger.told.add(outcome.reason)
                    _log.info("ledger %d waits: %s", ledger_id, outcome.reason)
                if outcome.until_s is not None:
                    self._wait_until(ledger_id, ledger, outcome.until_s)
                    return
                pause_s = config.backoff_min_s * 2 ** min(ledger.progress.attempts, 30)
                ledger.progress.attempts += 1
                self._wait_until(ledger_id, ledger, now + min(pause_s, config.backoff_max_s))

    def _wait_until(self, ledger_id: int, ledger: _Ledger, due_s: float) -> None:
        ledger.due_s = due_s
        heapq.heappush(self._due, (due_s, ledger_id))
        self._wake.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


_HELD = (ZonePhase.DOWN, ZonePhase.HELD)


async def read_suspended_bookies(store: MetadataStore) -> frozenset[str]:
    """Of all zones that are held, as an auditor stored it; one small read while there is none.
    Those whose zone can't be read may be in one.

    Raises:
        MetadataError: the store can't tell.
    """
    try:
        phases = await ZoneStore(store).read()
    except LedgerMetadataError:  # its next writer mends it
        return frozenset()
    held = {name for name, phase in phases.items() if phase in _HELD}
    if not held:
        return frozenset()
    zones = await read_zones(store)
    return frozenset(bookie for bookie, zone in zones.items() if zone in held or not zone)
