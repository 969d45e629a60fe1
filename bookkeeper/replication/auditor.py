"""The elected auditor: shell of ``AuditorCore``. Reads, marks, switches; decides nothing.

Its tasks: one tells the core the news and performs its effects, one at a time and in order; one
runs the audits; the periodic checks have their own (``auditor_checks.py``). All end with ``close``,
or at once with the session. For a moment there may be two auditors, which is harmless: marks are
idempotent.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.errors import BookkeeperError, LedgerMetadataError
from magnetar.bookkeeper.replication.audit_pass import AuditPass
from magnetar.bookkeeper.replication.auditor_core import (
    AlertZone,
    AuditLedgers,
    AuditorConfig,
    AuditorCore,
    ClusterView,
    DelayCancelled,
    DelayStarted,
    DisableReplication,
    Effect,
    EnableReplication,
    SaveZones,
)
from magnetar.bookkeeper.replication.cluster_watch import ClusterWatch
from magnetar.bookkeeper.replication.metrics import AuditorMetrics
from magnetar.bookkeeper.replication.under_replication import (
    UnderReplicationStore,
)
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZonePhase
from magnetar.bookkeeper.service_info import UNDER_REPLICATION_ROOT
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.item_errors import ItemErrors
from magnetar.metadata.store import MetadataEvent, MetadataStore, SessionEvent

T = TypeVar("T")

_log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_UNREAD_S: Final = 10.0  # until single nodes that couldn't be read are tried again
_SWITCH, _DELAY, _BOOKIES, _ZONES = "switch", "delay", "bookies", "zones"


@dataclass(frozen=True, slots=True)
class AuditorDependencies:
    """What an auditor works on.

    Attributes:
        clock: wall clock in milliseconds since the epoch; for dates in stored values only.
    """

    store: MetadataStore
    ledgers: LedgerStore
    marks: UnderReplicationStore
    clock: Callable[[], int]
    root: str = UNDER_REPLICATION_ROOT


class Auditor:
    """From ``start`` to ``close``; made anew for each election that is won."""

    def __init__(
        self, ports: AuditorDependencies, config: AuditorConfig, metrics: AuditorMetrics
    ) -> None:
        self.ports, self.metrics = ports, metrics
        self.on_failed: Callable[[], None] | None = None
        """Called once, when a task ended by an error of ours: this auditor is of no more use."""
        self._config = config
        self._zone_store = ZoneStore(ports.store, ports.root)
        self._core: AuditorCore | None = None
        self._cluster = ClusterWatch(ports.store, lambda: self._on_news(_BOOKIES))
        self._places = ItemErrors("places of bookies", _log, (MetadataError,))
        self._read_again: asyncio.TimerHandle | None = None
        self._delay_path = f"{ports.root}/lostBookieRecoveryDelay"
        self._delay_writes = self._delay_writes_taken = 0
        self._watches = (
            ports.marks.watch_switch(lambda: self._on_news(_SWITCH)),
            self._zone_store.watch(lambda: self._on_news(_ZONES)),
            ports.store.watch(self._delay_path, self._on_delay_event),
            ports.store.on_session_event(self._on_session_event),
        )
        self._news = {_SWITCH, _DELAY, _BOOKIES}
        self._woken = asyncio.Event()
        self._effects: deque[Effect] = deque()
        self._audit: AuditLedgers | None = None
        self._audit_wanted = asyncio.Event()
        self._audits = ItemErrors("audit", _log, (MetadataError, BookkeeperError))
        self._may_check = asyncio.Event()
        self._turn = asyncio.Lock()  # the core gets its news one after the other, as they were read
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *others: Coroutine[None, None, None]) -> None:
        """Begin, with ``others`` (periodic checks) beside; returns at once."""
        for each in (self._decide(), self._run_audits(), *others):
            task = asyncio.get_running_loop().create_task(each)
            task.add_done_callback(self._on_task_done)
            self._tasks.append(task)

    def stop(self) -> None:
        """From now on nothing is marked or switched; what is under way is cut off."""
        self._cluster.close()
        if self._read_again is not None:
            self._read_again.cancel()
        for watch in self._watches:
            watch.close()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """``stop``, and wait for the end."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("a task of the auditor ended", exc_info=error)
        failed, self.on_failed = self.on_failed, None
        if failed is not None:
            failed()

    # What audits and checks ask

    @property
    def is_enabled(self) -> bool:
        """Automatic repair is on, as far as is known."""
        return self._core is not None and self._core.disabled_reason is None

    def may_mark(self, bookie: str) -> bool:
        """It is lost for good, and may be repaired now."""
        return self._core is not None and self._core.may_mark(bookie)

    def is_known(self, bookie: str) -> bool:
        return self._core is not None and self._core.is_known(bookie)

    async def refresh(self) -> None:
        """Read which bookies are registered now."""
        self._news |= {_SWITCH, _BOOKIES}
        await self._take_news()
        self._woken.set()

    @property
    def delay_s(self) -> float:
        """From a bookie's loss to its audit."""
        return (
            self._config.lost_bookie_delay_ms / 1000 if self._core is None else self._core.delay_s
        )

    @property
    def available(self) -> frozenset[str]:
        """Bookies that are registered, writable or read-only."""
        return frozenset() if self._core is None else self._core.available

    async def mark(
        self, ledger_id: int, bookies: Iterable[str], *, suspects: Iterable[str] = ()
    ) -> None:
        """Mark a ledger, unless automatic repair was switched off meanwhile.

        Args:
            suspects: see ``UnderreplicationMarker.suspects``.
        """
        if not self.is_enabled:
            return
        try:
            await self.ports.marks.mark(ledger_id, bookies, suspects=suspects)
        except LedgerMetadataError as error:  # its marker: one ledger mustn't stop the others
            _log.error("ledger %d can't be marked: %s", ledger_id, error)

    async def wait_enabled(self) -> None:
        """Until checks may run: automatic repair is on."""
        if not self._may_check.is_set():
            self.metrics.skipped_checks += 1
            await self._may_check.wait()

    def want_audit(self, reason: str) -> None:
        """An unconditional audit, soon."""
        if self._core is not None:
            self._core.on_audit_wanted(_now_ms(), reason)
            self._woken.set()

    # News and effects

    def _on_news(self, what: str) -> None:
        self._news.add(what)
        self._woken.set()

    def _on_delay_event(self, _event: MetadataEvent) -> None:
        self._delay_writes += 1
        self._on_news(_DELAY)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            for what in (_SWITCH, _DELAY, _BOOKIES, _ZONES):  # events may have been lost meanwhile
                self._on_news(what)

    async def _decide(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._take_news()
                while self._effects:
                    await self._perform(self._effects[0])
                    self._effects.popleft()  # what failed is performed again
                if not self._news:
                    await self._wait()
            except MetadataError as error:
                _log.warning("auditor: the metadata store failed, will retry: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def _wait(self) -> None:
        """For news, or the core's next deadline."""
        assert self._core is not None
        deadline = self._core.next_deadline_ms()
        delay_s = None if deadline is None else max(0.0, (deadline - _now_ms()) / 1000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._woken.wait()

    async def _take_news(self) -> None:
        async with self._turn:
            if self._core is None:
                self._core = await self._make_core()
            core, marks = self._core, self.ports.marks
            if _SWITCH in self._news:
                off = await self._read(_SWITCH, marks.disabled)
                core.on_switch(_now_ms(), None if off is None else off.reason)
            # Not before our own phases are stored: a release that is read must be of this outage.
            if _ZONES in self._news and not self._effects:
                phases = await self._read(_ZONES, self._stored_zones)
                released = [name for name, each in phases.items() if each is ZonePhase.RELEASED]
                core.on_released(_now_ms(), released)
            if _DELAY in self._news:
                writes = self._delay_writes
                delay_s = await self._read(_DELAY, self._ordered_delay_s)
                written, self._delay_writes_taken = writes > self._delay_writes_taken, writes
                if delay_s is None:  # what was written is an auditor's
                    written, delay_s = False, self._config.lost_bookie_delay_ms / 1000
                core.on_delay(_now_ms(), round(delay_s * 1000), written=written)
            if _BOOKIES in self._news:
                core.on_bookies(_now_ms(), await self._read(_BOOKIES, self._read_bookies))
            core.on_tick(_now_ms())
            self._effects += core.take_effects()
            self._show(core)

    async def _read(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """An event during the read makes it news again; so does a failure."""
        self._news.discard(what)
        try:
            return await read()
        except BaseException:  # also when cancelled
            self._news.add(what)
            raise

    async def _read_bookies(self) -> ClusterView:
        with self._places.round() as each:
            view = await self._cluster.read(each)
        if self._read_again is not None:
            self._read_again.cancel()
            self._read_again = None
        if each.failed:
            loop = asyncio.get_running_loop()
            self._read_again = loop.call_later(_UNREAD_S, self._on_news, _BOOKIES)
        return view

    async def _make_core(self) -> AuditorCore:
        stored = await self._stored_zones()
        off = await self.ports.marks.disabled()
        # Once only: two auditors of different settings must not answer each other's writes.
        await self.ports.marks.show_auditors_delay_s(self._config.lost_bookie_delay_ms / 1000)
        return AuditorCore(self._config, stored, None if off is None else off.reason)

    async def _stored_zones(self) -> dict[str, ZonePhase]:
        try:
            return await self._zone_store.read()
        except LedgerMetadataError as error:
            _log.warning("auditor: zones are judged anew: %s", error)
            return {}

    async def _ordered_delay_s(self) -> float | None:
        """The delay that an operator set; None: the settings' holds."""
        try:
            return await self.ports.marks.lost_bookie_delay_s(ordered_only=True)
        except LedgerMetadataError as error:
            _log.warning("auditor: the configured delay holds: %s", error)
            return None

    async def _perform(self, effect: Effect) -> None:
        metrics, marks = self.metrics, self.ports.marks
        match effect:
            case AuditLedgers():
                self._audit = effect
                self._audit_wanted.set()
            case DelayStarted(bookies, due_ms):
                metrics.audits_delayed += 1
                seconds = (due_ms - _now_ms()) / 1000
                _log.info("lost: %s; audit in %.1f s", " ".join(bookies), seconds)
            case DelayCancelled(bookies):
                metrics.audits_cancelled += 1
                _log.info("back in time, no audit: %s", " ".join(bookies))
            case AlertZone():
                _log_zone(effect)
            case SaveZones(phases):
                await self._zone_store.write(phases)
            case DisableReplication(reason):
                await marks.disable(reason)
                _log.warning("automatic repair is off: %s", reason)
                self._on_news(_SWITCH)
            case EnableReplication():
                if await marks.enable_after_zones():
                    _log.warning("automatic repair is on again, its zones are back")
                self._on_news(_SWITCH)
            case _:
                assert_never(effect)

    def _show(self, core: AuditorCore) -> None:
        """What metrics tell."""
        metrics = self.metrics
        metrics.zones = {
            zone.name: (zone.phase.value, zone.available, zone.total)
            for zone in core.zones.zones.values()
        }
        metrics.all_zones_down = core.zones.all_blocked
        metrics.lost_bookies = len(core.lost)
        metrics.disabled = core.disabled_reason is not None
        if metrics.disabled:
            self._may_check.clear()
        else:
            self._may_check.set()

    # Audits

    async def _run_audits(self) -> None:
        while True:
            await self._audit_wanted.wait()
            self._audit_wanted.clear()
            assert self._audit is not None
            assert self._core is not None
            began_ms = _now_ms()
            complete = await self._run_audit(self._audit.reason)
            if not complete:
                await asyncio.sleep(max(_RETRY_S, (_now_ms() - began_ms) / 1000))
            self._core.on_audit_done(_now_ms(), complete=complete)
            self._woken.set()

    async def _run_audit(self, reason: str) -> bool:
        """False: it couldn't go over everything."""
        began_ms, complete, metrics = _now_ms(), False, self.metrics
        with self._audits.round() as each:
            audit = AuditPass(self.ports.ledgers, self, each)
            try:
                await self.refresh()
                complete = await audit.run()
            except MetadataError as error:
                each.failed["all of it"] = error
            finally:
                metrics.audits.record(_now_ms() - began_ms)
                metrics.marked_ledgers.record(audit.marked)
                metrics.unreadable_ledgers = audit.walk.unreadable
        text = "audit (%s): %d of %d ledgers marked%s"
        again = "" if complete else "; it will be repeated"
        _log.info(text, reason, audit.marked, audit.walk.ledgers, again)
        return complete


def _log_zone(alert: AlertZone) -> None:
    change = alert.change
    text = f"zone {change.zone}: {change.phase.value}, {change.available} of {change.total} bookies"
    if change.phase.value == "up":
        _log.warning("%s", text)
    else:
        _log.error("%s%s", text, "; all zones are down" if alert.all_down else "")


def _now_ms() -> int:
    """Of the loop's clock, which never goes back."""
    return round(asyncio.get_running_loop().time() * 1000)
