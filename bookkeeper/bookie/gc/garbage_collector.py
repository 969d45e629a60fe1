"""Runs garbage collection for one bookie: rounds on a long timer, hints and low space at once.

A round frees deleted ledgers, then, when their time has come, compacts sparse logs and empties
ledgers that others hold. One round at a time; hints go between the steps of a compaction.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.cookie import INSTANCE_ID_PATH
from magnetar.bookkeeper.bookie.gc.compaction import Compaction, compact_steps
from magnetar.bookkeeper.bookie.gc.garbage_scan import (
    GarbageReport,
    LedgerRegistry,
    drop_steps,
    expire_deleted_steps,
    find_deleted_ledgers,
)
from magnetar.bookkeeper.bookie.gc.over_replicated import (
    LISTED_S_MIN,
    OverReplicatedLedgers,
    empty_steps,
)
from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.metadata.paths import encode_name
from magnetar.metadata.store import MetadataStore

_log = logging.getLogger(__name__)
_FIRST_LONG_S = 3600.0
_HINTS_MAX = 100_000  # more are left to the next full round

Clock = Callable[[], float]


class GarbageCollector:
    """Frees the space of deleted ledgers.

    Args:
        registry: which ledgers exist; anything it raises means that nothing is deleted.
        before_listing: awaited before each listing; what it raises ends the round. See
            ``current_metadata.MetadataFreshnessCheck``.
        over_replicated: None: ledgers that others hold stay.
        now_s: wall clock in seconds; only dates the memory of deleted ledgers.
    """

    def __init__(
        self,
        bookie: Bookie,
        registry: LedgerRegistry,
        *,
        before_listing: Callable[[], Awaitable[None]] | None = None,
        over_replicated: OverReplicatedLedgers | None = None,
        now_s: Clock = time.time,
    ) -> None:
        self._bookie = bookie
        self._registry = registry
        self._before_listing = before_listing
        self._over_replicated = over_replicated
        self._now_s = now_s
        self._config = bookie.config.collection
        self._hints: dict[int, None] = {}
        self._hinted: asyncio.Task[None] | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._round = asyncio.Lock()
        self._dropping = asyncio.Lock()
        self._wanted = asyncio.Event()  # a round before its time
        self._forced = False
        self._forced_pause_s = self._config.forced_pause_s
        self._last_s: dict[str, float] = {}  # kind of work -> loop time of its last beginning

    def start(self, interval_s: float) -> None:
        """Collect every ``interval_s`` from now on, and when the bookie is short of space."""
        loop = asyncio.get_running_loop()
        self._last_s = dict.fromkeys(("minor", "major", "over-replicated"), loop.time())
        # The long ones for the first time after an hour: else never, where starts are frequent.
        for kind, long_s in (
            ("major", self._config.major_interval_s),
            ("over-replicated", self._config.over_replicated_interval_s),
        ):
            self._last_s[kind] -= max(0.0, long_s - _FIRST_LONG_S)
        self._rounds = loop.create_task(self._run_rounds(interval_s))
        self._bookie.on_low_space = self._on_low_space

    async def close(self) -> None:
        tasks = [task for task in (self._rounds, self._hinted) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self, *, compaction: str = "major") -> GarbageReport:
        """One full round: find, drop, compact.

        Args:
            compaction: "minor", "major", "forced" or "" for none.

        Raises:
            Whatever the registry raises; nothing was deleted then.
            OSError, CorruptFileError: the disk failed.
        """
        async with self._round:
            local = set(self._bookie.storage.ledgers)  # before the listing, see garbage_scan.py
            if self._before_listing is not None:
                await self._before_listing()
            gone = await find_deleted_ledgers(await self._given_out(local), self._registry)
            report = await self._drop(gone)
            if compaction:
                report = _sum(report, await self._compact(compaction))
            memory_s = self._bookie.storage.config.deleted_ledger_memory_s
            before_s = int(self._now_s()) - memory_s
            await self._run(expire_deleted_steps(self._bookie.storage, before_s))
            self._bookie.metrics.collections += 1
        return report

    async def _given_out(self, local: set[int]) -> set[int]:
        """Without ids that the store has never given: those ledgers were not deleted, the store
        went back to an older state, and may yet come to the right one.
        """
        end = await self._registry.ids_end()
        later = set() if end is None else {ledger_id for ledger_id in local if ledger_id >= end}
        if later:
            _log.error(
                "%d ledgers from %d on are kept: the metadata store has given no id above %d to "
                "anybody; was it restored?",
                *(len(later), min(later), (end or 0) - 1),
            )
        return local - later

    async def empty_over_replicated(self) -> GarbageReport:
        """Free what closed ledgers have here although their metadata names others only.

        Raises:
            LedgerError, MetadataError: the metadata can't be read; what was emptied stays so.
            OSError, CorruptFileError: the disk failed.
        """
        known = self._over_replicated
        if known is None:
            return GarbageReport()
        storage, total = self._bookie.storage, GarbageReport()
        async with self._round:
            local = [each for each in storage.ledgers.values() if each.last_entry >= 0]
            if self._before_listing is not None:
                await self._before_listing()
            await self._bookie.flush()  # what waits in memory would come back
            for state in local:
                if not state.disputed and await known.names_others(state.ledger_id, state.creator):
                    total = _sum(total, await self._empty(known, state.ledger_id, state.creator))
        return total

    async def _empty(
        self, known: OverReplicatedLedgers, ledger_id: int, creator: int
    ) -> GarbageReport:
        """One ledger, under its lock."""
        lock = await known.lock(ledger_id)
        if lock is None:
            return GarbageReport()  # it is being repaired
        storage, report = self._bookie.storage, list[GarbageReport]()
        listed_before_s = asyncio.get_running_loop().time() - LISTED_S_MIN
        try:
            async with self._dropping:
                others = await known.names_others(ledger_id, creator)
                state = storage.ledgers.get(ledger_id)
                if not others or not lock.held or state is None:
                    return GarbageReport()
                if state.listed_s > listed_before_s or not storage.empty(ledger_id):
                    return GarbageReport()
                self._bookie.on_ledger_emptied(ledger_id)
                try:
                    await self._run(empty_steps(storage, [ledger_id], report))
                finally:
                    storage.end_draining(ledger_id)
        finally:
            await lock.release()
        metrics = self._bookie.metrics
        metrics.emptied_ledgers += report[0].ledgers_dropped
        metrics.deleted_logs_bytes += report[0].bytes_freed
        return report[0]

    def ledger_deleted_hint(self, ledger_id: int) -> None:
        """A ledger was just deleted by this process's client: look at it soon.

        Only a hint: the metadata store has the last word.
        """
        if len(self._hints) < _HINTS_MAX and ledger_id in self._bookie.storage.ledgers:
            self._hints[ledger_id] = None
            if self._hinted is None or self._hinted.done():
                self._hinted = asyncio.get_running_loop().create_task(self._run_hints())

    async def _run_hints(self) -> None:
        while self._hints:
            hints, self._hints = list(self._hints), {}
            try:
                gone = [id_ for id_ in hints if not await self._registry.exists(id_)]
                await self._drop(gone)
            except Exception as error:  # the next full round finds them
                _log.warning("collecting hinted ledgers failed: %s", error)

    # ---- rounds

    def collect_soon(self) -> bool:
        """Ask for a round that compacts as much as it can, at once.

        Returns:
            False: there was, or is, such a round, and another isn't needed so soon.
        """
        now_s = asyncio.get_running_loop().time()
        last_s = self._last_s.get("forced", -self._config.forced_pause_s)
        if self._rounds is None or self._forced or now_s - last_s < self._config.forced_pause_s:
            return False
        self._forced = True
        self._wanted.set()
        return True

    @property
    def is_forced(self) -> bool:
        """A round that was asked for has not ended yet."""
        return self._forced

    def _on_low_space(self) -> None:
        """The disk is nearly full. While rounds free nothing they come less and less often."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._last_s.get("forced", -self._forced_pause_s) >= self._forced_pause_s:
            self.collect_soon()

    async def _run_rounds(self, interval_s: float) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wanted.wait()
            self._wanted.clear()
            # Asked for during a round, that one goes on at full speed, and another follows.
            forced = self._forced
            try:
                if self._bookie.storage.ledgers or self._bookie.storage.logs.logs:
                    await self._run_round(interval_s, forced=forced)
            except Exception as error:  # the next round tries again
                _log.warning("garbage collection failed: %s", error)
            finally:
                if forced:
                    self._forced = False

    async def _run_round(self, interval_s: float, *, forced: bool) -> None:
        kind = "forced" if forced else self._due_compaction()
        if kind:
            self._last_s[kind] = asyncio.get_running_loop().time()
        report = await self.collect(compaction=kind)
        if forced:
            pause_s = self._config.forced_pause_s
            if not report.bytes_freed:
                pause_s = min(2 * self._forced_pause_s, max(interval_s, pause_s))
            self._forced_pause_s = pause_s
        elif self._is_due("over-replicated", self._config.over_replicated_interval_s):
            self._last_s["over-replicated"] = asyncio.get_running_loop().time()
            report = _sum(report, await self.empty_over_replicated())
        if report.ledgers_dropped or report.logs_removed:
            _log.info("garbage collection: %s", report)

    def _due_compaction(self) -> str:
        if self._is_due("major", self._config.major_interval_s):
            return "major"
        return "minor" if self._is_due("minor", self._config.minor_interval_s) else ""

    def _is_due(self, kind: str, interval_s: float) -> bool:
        now_s = asyncio.get_running_loop().time()
        return interval_s > 0 and now_s - self._last_s.get(kind, 0.0) >= interval_s

    # ---- work on the disk

    async def _compact(self, kind: str) -> GarbageReport:
        config, metrics = self._config, self._bookie.metrics
        ratio, seconds_max = {
            "minor": (config.minor_ratio, config.minor_s_max),
            "major": (config.major_ratio, config.major_s_max),
            "forced": (max(config.forced_ratio, config.major_ratio), 0.0),
        }[kind]
        rate = 0 if kind == "forced" else config.compaction_bytes_per_s
        compaction = metrics.last_compaction = Compaction(kind, ratio, began_at_s=self._now_s())
        clock = asyncio.get_running_loop().time  # not the process's: simulations have their own
        began_s = clock()
        steps = compact_steps(self._bookie.storage, compaction)
        try:
            while not compaction.done:
                await self._run(_first(steps))
                took_s = clock() - began_s
                if seconds_max and took_s > seconds_max:
                    break
                if rate and (ahead_s := compaction.bytes_moved / rate - took_s) > 0:
                    await self._sleep_unless_forced(ahead_s)
        finally:
            compaction.done = True
            if (integrity := self._bookie.integrity) is not None:
                integrity.on_damaged_logs(list(self._bookie.storage.damaged_logs))
            metrics.count_compaction(compaction, (clock() - began_s) * 1000)
        return GarbageReport(0, compaction.logs_removed, compaction.bytes_freed)

    async def _sleep_unless_forced(self, seconds: float) -> None:
        if not self._forced:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()

    async def _drop(self, ledger_ids: Iterable[int]) -> GarbageReport:
        now_s = int(self._now_s())
        storage = self._bookie.storage
        report: list[GarbageReport] = []
        async with self._dropping:
            # Of an id that two ledgers share the store may know the other one, or none any more.
            found = [storage.ledgers.get(ledger_id) for ledger_id in ledger_ids]
            ids = [state.ledger_id for state in found if state and not state.disputed]
            for ledger_id in ids:
                storage.forget(ledger_id, now_s)
            if ids:
                self._bookie.on_ledgers_dropped(ids)
                await self._run(drop_steps(storage, ids, now_s, report))
        if not report:
            return GarbageReport()
        metrics = self._bookie.metrics
        metrics.deleted_ledgers += report[0].ledgers_dropped
        metrics.deleted_logs_bytes += report[0].bytes_freed
        return report[0]

    async def _run(self, steps: Iterator[None]) -> None:
        await self._bookie.run_maintenance(steps)


def _first(steps: Iterator[None]) -> Iterator[None]:
    """One step of a job, so that others may come in between."""
    for _ in steps:
        yield
        return


def _sum(one: GarbageReport, other: GarbageReport) -> GarbageReport:
    return GarbageReport(
        one.ledgers_dropped + other.ledgers_dropped,
        one.logs_removed + other.logs_removed,
        one.bytes_freed + other.bytes_freed,
    )


COLLECTORS_PATH: Final = "/ledgers/collectors"


class MetadataFreshnessCheck:
    """``await check()`` before a listing of ledgers.

    A read may trail the writes of others, so a ledger that was just created could look deleted.
    Never this session's own: after a write of our own we read at least everything that was written
    before it, and that includes the metadata of every ledger that has entries here.
    """

    def __init__(self, store: MetadataStore, bookie_id: str, instance_id: str) -> None:
        self._store = store
        self._path = f"{COLLECTORS_PATH}/{encode_name(bookie_id)}"
        self._instance_id = instance_id

    async def check(self) -> None:
        """Returns when reads are recent enough.

        Raises:
            CookieMismatchError: the store is another cluster's by now, or was emptied.
            MetadataError: it doesn't answer.
        """
        found = await self._store.get(INSTANCE_ID_PATH)
        name = None if found is None else found.value.decode(errors="replace")
        if name != self._instance_id:
            raise CookieMismatchError(f"cluster {name}, this bookie is of {self._instance_id}")
        await self._store.put(self._path, b"")
