"""Lists the live brokers: each has an ephemeral node that holds its load report.

A broker that isn't in this list is no candidate for any bundle. The list may trail the store by the
delay of its events, so a candidate can have gone; a client redirected to it looks up again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import orjson

from magnetar.loadbalance.documents import broker_load_document, broker_load_of, parse
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.model import BrokerLoad, Weights
from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.errors import LockBusyError, MetadataError, StoreClosedError
from magnetar.metadata.recipes import CachedValues
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

BROKERS_ROOT: Final = "/loadbalance/brokers"
_AGAIN_S: Final = 1.0


class StoredReport(NamedTuple):
    load: BrokerLoad
    modified_ms: int  # by the store's clock


class BrokerRegistry:
    """This broker's node among the live ones, and all of them.

    The node survives lost sessions: it is created again with the last report. One with the same
    URLs is this broker's own, left by its former session or process, and is replaced; but not that
    of a later process, which was started in place of this one.
    """

    def __init__(self, store: MetadataStore, weights: Weights) -> None:
        self._store, self._weights = store, weights
        self._loads: CachedValues[BrokerLoad | None] = CachedValues(store, BROKERS_ROOT, _decode)
        self._names: list[str] | None = None  # None: to be read
        self._reports: dict[str, StoredReport] | None = None  # None: something has changed
        self._live: dict[str, BrokerLoad] = {}  # of ``_reports``
        self._changes = 0
        self._names_changed = asyncio.Event()
        self._lock: ResourceLock | None = None
        self._load: BrokerLoad | None = None
        self._again: asyncio.Task[None] | None = None
        self._closed = False
        self._watches = (
            store.watch(BROKERS_ROOT, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    async def register(self, load: BrokerLoad, wait_s: float = 0.0) -> None:
        """Appear among the live brokers, until ``close``.

        Args:
            wait_s: for another broker's node of this name to go; a broker that was killed holds
                its name until its session is over.
        Raises:
            LockBusyError: a broker with other URLs has this name.
            MetadataError: the store can't tell.
        """
        self._load = load
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            try:
                self._lock = await self._acquire(load)
                return
            except LockBusyError:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
            await asyncio.sleep(min(_AGAIN_S, wait_s / 10))

    async def publish(self, load: BrokerLoad) -> bool:
        """Write a new report.

        Returns:
            False: this broker isn't registered just now; the report goes with the next node.
        Raises:
            ValueTooLargeError: too many bundles in it for one node.
            MetadataError: the store can't tell.
        """
        value = self._encode(load)
        if self._lock is None:
            self._load = load
            return False
        written = await self._lock.change(value)
        self._load = load
        # Callers of ``reports`` see it from now on, before its event has come.
        self._loads.invalidate(self._lock.path)
        self._forget()
        return written

    async def live(self) -> Mapping[str, BrokerLoad]:
        """The last report of each live broker, by broker id.

        Raises:
            MetadataError: the store can't tell.
        """
        reports = await self.reports()
        if reports is self._reports:
            return self._live
        return {name: report.load for name, report in reports.items()}

    async def reports(self) -> Mapping[str, StoredReport]:
        """The same, with the time when they were stored; the same object until one changes.

        Raises:
            MetadataError: the store can't tell.
        """
        if self._reports is not None:
            return self._reports
        changes = self._changes
        reports = await self._read()
        if changes == self._changes:
            self._reports = reports
            self._live = {name: report.load for name, report in reports.items()}
        return reports

    async def follow_property(self, name: str, on_look: Callable[[bool], None]) -> None:
        """Say whether every registered broker has it: now and when one came or went, until this is
        cancelled. While the store can't tell they don't.
        """
        while True:
            self._names_changed.clear()
            again_s = None
            try:
                on_look(await self._all_have(name))
            except MetadataError as error:
                logger.debug("%s: brokers aren't known: %s", name, error)
                on_look(False)
                again_s = _AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._names_changed.wait()

    async def _all_have(self, name: str) -> bool:
        reports = await self.reports()
        # A broker whose report can't be parsed is registered, too.
        return bool(self._names) and all(
            each in reports and reports[each].load.properties.get(name) == "true"
            for each in self._names or ()
        )

    async def _read(self) -> dict[str, StoredReport]:
        names = self._names
        if names is None:
            changes = self._changes
            names = await self._store.children(BROKERS_ROOT)
            if changes == self._changes:  # else one came or went meanwhile
                self._names = names
        found = {name: await self._loads.get(f"{BROKERS_ROOT}/{name}") for name in names}
        return {
            name: StoredReport(each.value, each.stat.modified_ms)
            for name, each in found.items()
            if each is not None and each.value is not None
        }

    async def close(self) -> None:
        """Be no candidate any more."""
        self._closed = True
        for watch in self._watches:
            watch.close()
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait((self._again,))
        if self._lock is not None:
            await self._lock.release()
        self._loads.close()

    def _encode(self, load: BrokerLoad) -> bytes:
        return orjson.dumps(broker_load_document(load, load.usage(self._weights)))

    async def _acquire(self, load: BrokerLoad) -> ResourceLock:
        path = f"{BROKERS_ROOT}/{load.broker_id}"

        def is_own(value: bytes) -> bool:
            stored = _decode(path, value)
            return (
                stored is not None
                and stored.identity == load.identity
                and stored.incarnation <= load.incarnation
            )

        return await ResourceLock.acquire(
            self._store, path, self._encode(load), self._on_lost, is_own
        )

    def _on_lost(self, lock: ResourceLock) -> None:
        logger.error("another broker is registered as %s", lock.path.rpartition("/")[2])
        self._lock = None
        if not self._closed:
            self._again = asyncio.get_running_loop().create_task(self._register_again())

    async def _register_again(self) -> None:
        while self._lock is None:
            await asyncio.sleep(_AGAIN_S)
            assert self._load is not None
            try:
                self._lock = await self._acquire(self._load)
            except StoreClosedError:
                return
            except MetadataError as error:  # busy, too: two brokers were given one address
                logger.debug("not registered: %s", error)

    def _on_event(self, event: MetadataEvent) -> None:
        self._forget()
        if event.type is not EventType.MODIFIED:
            self._on_names_changed()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._forget()  # events were lost meanwhile
            self._on_names_changed()

    def _on_names_changed(self) -> None:
        self._names = None
        self._names_changed.set()

    def _forget(self) -> None:
        self._reports = None
        self._changes += 1


def _decode(path: str, value: bytes) -> BrokerLoad | None:
    """Parse a broker's load report; None: it can't be parsed, and the broker is no candidate."""
    try:
        return broker_load_of(path.rpartition("/")[2], parse(path, value))
    except InvalidDocumentError as error:
        logger.warning("%s: %s", path, error)
        return None
