"""The bookies a client can talk to: the registered ones, and one ``BookieClient`` for each."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.client.config import HealthConfig
from magnetar.bookkeeper.client.health import BookieHealth
from magnetar.bookkeeper.client.rack_mapping import BookieRackMapping
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.bookkeeper.service_info import (
    AVAILABLE_PATH,
    NO_HEALTH_CHECK_PATH,
    RACKS_PATH,
    READ_ONLY_NAME,
    READ_ONLY_PATH,
    ServiceInfo,
)
from magnetar.metadata.errors import MetadataError, StoreClosedError
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import MetadataEvent, MetadataStore, SessionEvent, Watch

_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)

Connect = Callable[[str], "BookieClient | None"]


class BookiePool:
    """Bookie id -> client, and the set of bookies that accept writes.

    Registered bookies come from the metadata store and are kept current by a watch; ``connect``
    makes the client of a bookie when it is first needed. A bookie without a connection gets a
    client that answers UNAVAILABLE, so that protocol code has no second error path.

    Args:
        store: None: only bookies added by ``add`` exist (tests, tools).
        connect: client for a bookie id; None as result: no way to reach it.
        health: None: failures are remembered by the loop's clock, no bookie is put in quarantine.

    Attributes:
        health: which bookies failed lately; told by writers, readers and recoveries.
        infos: what registrations say, of read-only bookies and of those gone since, too: where a
            bookie was matters for who replaces it.
        on_writable_changed: called when other bookies accept writes than before.
    """

    def __init__(
        self,
        store: MetadataStore | None = None,
        connect: Connect | None = None,
        health: BookieHealth | None = None,
    ) -> None:
        self.health = health or BookieHealth(HealthConfig(), _loop_ms, random.Random(0))
        self.health.on_quarantine = _log_quarantine
        self._store = store
        self._connect = connect
        self._clients: dict[str, BookieClient] = {}
        self._added: set[str] = set()
        self.infos: dict[str, ServiceInfo] = {}
        self.on_writable_changed: Callable[[], None] | None = None
        self._places = BookieRackMapping(self.infos)
        self._registered: frozenset[str] = frozenset()
        self._read_only: frozenset[str] = frozenset()
        self._stale: set[str] = set()  # names of nodes that changed since their info was read
        self._all_stale = False
        self._watches: list[Watch] = []
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_again = False

    @property
    def writable(self) -> frozenset[str]:
        """Ids of the bookies that may get new entries."""
        return self._registered | self._added

    def location(self, bookie_id: str) -> str | None:
        """Path of its place, as an operator or the bookie itself says; None: not known."""
        return self._places.locate(bookie_id)

    def groups_of(self, bookie_id: str) -> frozenset[str]:
        """Groups that an operator has put it into."""
        return self._places.groups_of(bookie_id)

    @property
    def registered(self) -> frozenset[str]:
        """Ids of those that may answer reads, too."""
        return self._registered | self._added | self._read_only

    def is_registered(self, bookie_id: str) -> bool:
        """It may answer reads: registered, read-only or not, or added by hand."""
        return (
            bookie_id in self._registered
            or bookie_id in self._added
            or bookie_id in self._read_only
        )

    def add(self, client: BookieClient) -> None:
        """A bookie that is reachable and writable whether it is registered or not."""
        self._clients[client.bookie_id] = client
        self._added.add(client.bookie_id)

    def use(self, client: BookieClient) -> None:
        """Reach this bookie through ``client``; whether it is writable is for the store to say."""
        self._clients[client.bookie_id] = client

    def remove(self, bookie_id: str) -> None:
        """Forget a client; the next request connects again, if anything can."""
        self._clients.pop(bookie_id, None)
        self._added.discard(bookie_id)

    def client(self, bookie_id: str) -> BookieClient:
        """The bookie's client; one that answers UNAVAILABLE when it can't be reached."""
        found = self._clients.get(bookie_id)
        if found is None:
            found = self._connect(bookie_id) if self._connect is not None else None
            if found is None:
                return UnreachableBookie(bookie_id)
            self._clients[bookie_id] = found
        return found

    async def start(self) -> None:
        """Read the registrations and follow the changes."""
        if self._store is None:
            return
        # Watch first: a bookie that registers in between is then seen twice, not never.
        self._watches.append(self._store.watch(AVAILABLE_PATH, self._on_event))
        for path in (RACKS_PATH, NO_HEALTH_CHECK_PATH):
            self._watches.append(self._store.watch(path, lambda _: self._refresh_soon()))
        self._watches.append(self._store.on_session_event(self._on_session_event))
        await self._read()

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches.clear()
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.gather(self._refresh, return_exceptions=True)
            self._refresh = None

    async def _read(self) -> None:
        # Before anything is read: what changes from here on is for the next time.
        stale, self._stale = self._stale, set()
        all_stale, self._all_stale = self._all_stale, False
        try:
            await self._read_changed(None if all_stale else stale)
        except BaseException:  # also when cancelled: it is stale still
            self._stale |= stale
            self._all_stale |= all_stale
            raise

    async def _read_changed(self, stale: set[str] | None) -> None:
        """Who is registered, and what those say that are new or ``stale``; None: all are."""
        assert self._store is not None
        names = [n for n in await self._store.children(AVAILABLE_PATH) if n != READ_ONLY_NAME]
        read_only = await self._store.children(READ_ONLY_PATH)
        paths = {name: f"{READ_ONLY_PATH}/{name}" for name in read_only}
        paths |= {name: f"{AVAILABLE_PATH}/{name}" for name in names}
        known = self.infos if stale is not None else ()
        await self._read_infos(
            {n: p for n, p in paths.items() if n in (stale or ()) or decode_name(n) not in known}
        )
        await self._places.read(self._store)
        self.health.switch(on=not await self._store.exists(NO_HEALTH_CHECK_PATH))
        self._read_only = frozenset(map(decode_name, read_only))
        before, self._registered = self._registered, frozenset(map(decode_name, names))
        if self._registered != before and self.on_writable_changed is not None:
            self.on_writable_changed()

    async def _read_infos(self, paths: dict[str, str]) -> None:
        """By name of the node."""
        assert self._store is not None
        found = await asyncio.gather(*map(self._store.get, paths.values()))
        for name, node in zip(paths, found, strict=True):
            if node is None:
                continue  # gone since: the event is on its way
            bookie_id = decode_name(name)
            try:
                info = decode_registration(bookie_id, node.value)
            except BookieUnavailableError as error:
                _log.warning("bookie %s: %s", bookie_id, error)
                continue
            before = self.infos.get(bookie_id, info)
            self.infos[bookie_id] = info
            if (info.address is None) != (before.address is None):
                self._clients.pop(bookie_id, None)  # a bookie of the other kind has its name
            if info.incarnation != before.incarnation:
                self.health.note_restarted(bookie_id)

    def _on_event(self, event: MetadataEvent) -> None:
        self._stale.add(event.path.rpartition("/")[2])
        self._refresh_soon()

    def _on_session_event(self, event: SessionEvent) -> None:
        # Watch events may have been lost meanwhile.
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            self._all_stale = True
            self._refresh_soon()

    def _refresh_soon(self) -> None:
        self._refresh_again = True
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.get_running_loop().create_task(self._run_refresh())

    async def _run_refresh(self) -> None:
        while self._refresh_again:
            self._refresh_again = False
            try:
                await self._read()
            except StoreClosedError:
                return
            except MetadataError as error:
                # Those known so far stay: an outage of the store is none of the bookies.
                _log.warning("the list of bookies can't be read, will retry: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._refresh_again = True


def _log_quarantine(bookie_id: str, for_ms: int) -> None:
    _log.warning(
        "bookie %s keeps failing: for %d s it gets new ledgers only if others don't suffice",
        bookie_id,
        for_ms // 1000,
    )


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class UnreachableBookie(BookieClient):
    """Client of a bookie that can't be reached: every answer is UNAVAILABLE, and proves nothing."""

    def __init__(self, bookie_id: str) -> None:
        self._bookie_id = bookie_id

    @property
    def bookie_id(self) -> str:
        return self._bookie_id
