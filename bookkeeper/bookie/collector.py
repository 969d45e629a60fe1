"""Runs garbage collection for one bookie: full rounds on a long timer, hints at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from bookkeeper.bookie.bookie import Bookie
from bookkeeper.bookie.garbage import (
    GarbageReport,
    LedgerRegistry,
    compact_steps,
    drop_steps,
    expire_deleted_steps,
    find_deleted_ledgers,
)

_log = logging.getLogger(__name__)
_HINTS_MAX = 100_000  # more are left to the next full round


class GarbageCollector:
    """Frees the space of deleted ledgers.

    Args:
        registry: which ledgers exist; anything it raises means that nothing is deleted.
        now_s: wall clock in seconds; only dates the memory of deleted ledgers.
    """

    def __init__(
        self,
        bookie: Bookie,
        registry: LedgerRegistry,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._bookie = bookie
        self._registry = registry
        self._now_s = now_s
        self._hints: dict[int, None] = {}
        self._hinted: asyncio.Task[None] | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    def start(self, interval_s: float) -> None:
        """Collect every ``interval_s`` from now on."""
        self._rounds = asyncio.get_running_loop().create_task(self._run_rounds(interval_s))

    async def close(self) -> None:
        tasks = [task for task in (self._rounds, self._hinted) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self) -> GarbageReport:
        """One full round: find, drop, compact.

        Raises:
            Whatever the registry raises; nothing was deleted then.
            OSError, CorruptFileError: the disk failed.
        """
        async with self._busy:
            local = set(self._bookie.storage.ledgers)  # before the listing, see garbage.py
            gone = await find_deleted_ledgers(local, self._registry)
            dropped = await self._drop(gone)
            report: list[GarbageReport] = []
            storage = self._bookie.storage
            began_s = time.perf_counter()
            await self._run(compact_steps(storage, report))
            before_s = int(self._now_s()) - storage.config.deleted_ledger_memory_s
            await self._run(expire_deleted_steps(storage, before_s))
            compacted = report[0]
            figures = self._bookie.figures
            figures.compaction.record((time.perf_counter() - began_s) * 1000)
            figures.compactions += compacted.logs_removed > 0
            figures.compacted_logs_bytes += compacted.bytes_freed
        return GarbageReport(
            dropped.ledgers_dropped,
            dropped.logs_removed + compacted.logs_removed,
            dropped.bytes_freed + compacted.bytes_freed,
        )

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
            async with self._busy:
                hints, self._hints = list(self._hints), {}
                try:
                    gone = [id_ for id_ in hints if not await self._registry.exists(id_)]
                    await self._drop(gone)
                except Exception as error:  # the next full round finds them
                    _log.warning("collecting hinted ledgers failed: %s", error)

    async def _run_rounds(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if not self._bookie.storage.ledgers:
                continue
            try:
                report = await self.collect()
            except Exception as error:
                _log.warning("garbage collection failed, nothing was deleted: %s", error)
                continue
            if report.ledgers_dropped or report.logs_removed:
                _log.info("garbage collection: %s", report)

    async def _drop(self, ledger_ids: Iterable[int]) -> GarbageReport:
        now_s = int(self._now_s())
        storage = self._bookie.storage
        ids = [ledger_id for ledger_id in ledger_ids if ledger_id in storage.ledgers]
        for ledger_id in ids:
            storage.forget(ledger_id, now_s)
        report: list[GarbageReport] = []
        if ids:
            await self._run(drop_steps(storage, ids, now_s, report))
        if not report:
            return GarbageReport()
        figures = self._bookie.figures
        figures.deleted_ledgers += report[0].ledgers_dropped
        figures.deleted_logs_bytes += report[0].bytes_freed
        return report[0]

    async def _run(self, steps: Iterator[None]) -> None:
        await self._bookie.run_maintenance(steps)
