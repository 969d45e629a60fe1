"""Runs the scrub: slowly, pass after pass, on the maintenance thread, between everything else."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.integrity.integrity_listener import IntegrityMetrics
from magnetar.bookkeeper.bookie.integrity.scrub import (
    ScrubStep,
    check_index_steps,
    note_progress_steps,
    scrub_steps,
)
from magnetar.bookkeeper.bookie.integrity.scrub_repairer import ScrubRepairer
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.errors import BookkeeperError

_log = logging.getLogger(__name__)

_SLICE_BYTES: Final = 1 << 20
_BUSY_SHARE: Final = 0.02  # of one core and one disk at most, whatever the rate says
_RETRY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ScrubConfig:
    """How often and how fast.

    Attributes:
        interval_s: from the beginning of a pass to that of the next one; 0: none but on demand.
        bytes_per_s: 0: as fast as it goes, up to 2 % of the time.
        first_s: no pass begins, or goes on, sooner after a start.
    """

    interval_s: float = 86_400.0
    bytes_per_s: int = 4 << 20
    first_s: float = 60.0

    def __post_init__(self) -> None:
        if self.interval_s < 0 or self.bytes_per_s < 0:
            raise ValueError("scrubInterval and scrubBytesPerSecond must not be negative")


@dataclass(eq=False, repr=False)
class Scrubber:
    """``start()``, ``request()`` for a pass at once, ``close()``."""

    _bookie: Bookie
    _repairer: ScrubRepairer
    _metrics: IntegrityMetrics
    _config: ScrubConfig
    _now_s: Callable[[], float] = field(default=time.time, init=False)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _hurry: bool = field(default=False, init=False)
    _slice: ScrubStep | None = field(default=None, init=False)  # of the pass that runs
    _began_s: int = field(default=0, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _suspect_logs: set[int] = field(default_factory=set, init=False)
    _checking: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self, *, by_itself: bool = True) -> None:
        """Go on with the pass that was under way; ``by_itself`` False: only when asked."""
        run = self._run() if by_itself and self._config.interval_s else self._run_on_demand()
        self._task = asyncio.get_running_loop().create_task(run)

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def request(self) -> None:
        """A whole pass from the first log on, now, and at full speed."""
        self._hurry = True
        self._wanted.set()

    def check_logs(self, log_ids: Iterable[int]) -> None:
        """Look at these logs soon: a read met damage in them."""
        self._suspect_logs.update(log_ids)
        if self._suspect_logs and (self._checking is None or self._checking.done()):
            self._checking = asyncio.get_running_loop().create_task(self._check_uncertain())

    async def _check_uncertain(self) -> None:
        try:
            while self._suspect_logs:
                log_id = self._suspect_logs.pop()
                found = ScrubStep(log_id, b"", log_id)
                while found.log_id <= found.last_log:
                    await self._check_slice(found)
        except (BookkeeperError, OSError) as error:
            _log.error("damaged entry logs could not be looked at: %s", error)

    def status(self) -> dict[str, object]:
        found = self._slice
        logs = self._bookie.storage.logs.logs
        return {
            "running": found is not None,
            "beganAtSeconds": self._began_s,
            "passes": self._metrics.scrub_passes,
            "bytes": self._metrics.scrubbed_bytes,
            "logsLeft": 0 if found is None else sum(id_ >= found.log_id for id_ in list(logs)),
            "logs": len(logs),
        }

    async def run_pass(self, *, first_log: int = 0) -> None:
        """Check everything from ``first_log`` on; damage goes to the repairer.

        Raises:
            BookieClosedError, OSError: it ends here.
        """
        logs = self._bookie.storage.logs.logs
        ids = [log_id for log_id in list(logs) if log_id >= first_log]
        if not ids:
            return
        found = self._slice = ScrubStep(min(ids), b"", max(ids))
        try:
            while found.log_id <= found.last_log:
                log_id = found.log_id
                await self._check_slice(found)
                if found.log_id != log_id:
                    await self._note(found.log_id if found.log_id <= found.last_log else 0)
        finally:
            self._slice = None
        await self._check_index()
        self._metrics.scrub_passes += 1

    async def _check_index(self) -> None:
        storage, damaged = self._bookie.storage, list[int]()
        await self._bookie.run_maintenance(check_index_steps(storage, damaged))
        for ledger_id in damaged:
            if (state := storage.ledgers.get(ledger_id)) is not None:
                _log.error("the index's record of ledger %d is damaged: written again", ledger_id)
                storage.mark_dirty(state)
        if damaged:
            await self._bookie.flush()

    async def _check_slice(self, found: ScrubStep) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found.bytes = found.entries = 0
        await self._bookie.run_maintenance(scrub_steps(self._bookie.storage, found, _SLICE_BYTES))
        took_s = loop.time() - began_s
        self._metrics.scrubbed_bytes += found.bytes
        damages, found.damages = found.damages, []
        self._repairer.add(damages)
        if not self._hurry:
            rate = self._config.bytes_per_s
            await asyncio.sleep(max(found.bytes / rate if rate else 0.0, took_s / _BUSY_SHARE))

    async def _note(self, next_log: int) -> None:
        steps = note_progress_steps(self._bookie.storage, next_log, self._began_s)
        await self._bookie.run_maintenance(steps)

    async def _run(self) -> None:
        next_log, self._began_s = self._read_progress()
        await self._wait(self._config.first_s)
        while True:
            if not next_log:
                await self._wait(self._began_s + self._config.interval_s - self._now_s())
            await self._run_one(next_log)
            next_log = 0

    async def _run_on_demand(self) -> None:
        while True:
            await self._wanted.wait()
            await self._run_one(0)

    async def _run_one(self, next_log: int) -> None:
        if self._wanted.is_set():
            self._wanted.clear()
            next_log = 0
        if not next_log:
            self._began_s = int(self._now_s())
        try:
            await self.run_pass(first_log=next_log)
        except (BookkeeperError, OSError) as error:
            if self._bookie.is_closed:
                return
            _log.error("a scrub ended early: %s", error)
            await asyncio.sleep(_RETRY_S)
        if not self._wanted.is_set():
            self._hurry = False

    async def _wait(self, seconds: float) -> None:
        """Until then, or until a pass is requested."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wanted.wait()

    def _read_progress(self) -> tuple[int, int]:
        value = self._bookie.storage.index.get(index_format.SCRUB_KEY)
        try:
            return (0, 0) if value is None else index_format.decode_scrub(value)
        except BookkeeperError as error:
            _log.error("the scrub begins again: %s", error)
            return 0, 0
