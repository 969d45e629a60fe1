"""Which bookies there are and where, as the metadata store tells: cookies and registrations.

Where: what an operator said, if it has a zone and an upgrade domain, else the bookie's own word.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from magnetar.bookkeeper.client.placement.node_location import levels
from magnetar.bookkeeper.client.rack_mapping import parse_racks
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.cookie_format import location_of
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.bookkeeper.replication.auditor_core import ClusterView
from magnetar.bookkeeper.replication.zones import zone_of
from magnetar.bookkeeper.service_info import (
    AVAILABLE_PATH,
    COOKIES_PATH,
    RACKS_PATH,
    READ_ONLY_NAME,
    READ_ONLY_PATH,
)
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.item_errors import ItemPass
from magnetar.metadata.paths import decode_name, name_of
from magnetar.metadata.store import MetadataEvent, MetadataStore, SessionEvent, Versioned

_log = logging.getLogger(__name__)

_NO_ZONE: Final = "default-zone"  # of a bookie whose place can't be read
_READS: Final = 64  # at a time


class ClusterWatch:
    """Reads a ``ClusterView`` whenever it is asked for one, and says when to ask.

    Args:
        on_change: called on the loop when the view may have changed; events come in bursts.

    Attributes:
        unplaced: bookies whose zone was a guess in the last view: their nodes couldn't be read.
    """

    def __init__(self, store: MetadataStore, on_change: Callable[[], None]) -> None:
        self._store = store
        self._on_change = on_change
        self.unplaced: frozenset[str] = frozenset()
        self._zones: dict[str, str] = {}  # path of a node -> zone in its value
        self._last_zones: dict[str, str] = {}  # the same, also of values that have changed since
        self._told: dict[str, str] | None = None
        self._reading: set[str] = set()
        self._addresses: dict[str, str] = {}  # bookie -> host:port, also of those gone since
        self._watches = (
            store.watch(AVAILABLE_PATH, self._on_event),
            store.watch(COOKIES_PATH, self._on_event),
            store.watch(RACKS_PATH, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    def close(self) -> None:
        for watch in self._watches:
            watch.close()

    async def read(self, each: ItemPass | None = None) -> ClusterView:
        """Who there is now.

        Args:
            each: gets the nodes that couldn't be read. Such a bookie is where another node of its
                says, or where it was.
        Raises:
            MetadataError: the store can't tell, or not of most nodes.
        """
        each = each or ItemPass()
        cookies = await self._paths(COOKIES_PATH)
        # A bookie that turns read-only, or back, makes its new node before it deletes the old one:
        # read in this order, it is met at least once.
        writable = await self._paths(AVAILABLE_PATH)
        read_only = await self._paths(READ_ONLY_PATH)
        writable |= await self._paths(AVAILABLE_PATH)
        registered = read_only | writable
        zones = await self._read_zones([*cookies.values(), *registered.values()], each)
        told = await self._read_told(each)
        elsewhere = {
            bookie: zones[path]
            for paths in (cookies, registered)  # a registration's is fresher
            for bookie, path in paths.items()
            if path in zones
        }

        def said(bookie: str) -> str | None:
            return told.get(bookie) or told.get(self._addresses.get(bookie, ""))

        def place(paths: dict[str, str]) -> dict[str, str]:
            # One whose node was gone when it was read isn't there: the event is on its way.
            there = [(b, path) for b, path in paths.items() if path in zones or path in each.failed]
            return {
                bookie: said(bookie)
                or zones.get(path)
                or elsewhere.get(bookie)
                or self._last_zones.get(path, _NO_ZONE)
                for bookie, path in there
            }

        self.unplaced = frozenset(
            bookie
            for bookie, path in (*cookies.items(), *registered.items())
            if path in each.failed and not said(bookie) and bookie not in elsewhere
        )
        return ClusterView(place(cookies), place(registered))

    async def _read_told(self, each: ItemPass) -> dict[str, str]:
        """What operators said, by bookie or host:port; before, if it can't be read any more."""
        try:
            node = await self._store.get(RACKS_PATH)
        except MetadataError as error:
            if self._told is None:
                raise
            each.failed[RACKS_PATH] = error
            return self._told
        self._told = {} if node is None or not node.value else _told_zones(node.value)
        return self._told

    async def _paths(self, directory: str) -> dict[str, str]:
        names = await self._store.children(directory)
        return {decode_name(n): f"{directory}/{n}" for n in names if n != READ_ONLY_NAME}

    async def _read_zones(self, paths: Iterable[str], each: ItemPass) -> dict[str, str]:
        """Zone by path; only nodes that aren't known are read, and those gone are forgotten.

        Raises:
            MetadataError: most nodes can't be read, which is the store's failure and not theirs.
        """
        wanted = set(paths)
        zones = {path: zone for path, zone in self._zones.items() if path in wanted}
        self._zones = zones.copy()
        unknown = sorted(wanted - zones.keys())
        self._reading |= set(unknown)
        for start in range(0, len(unknown), _READS):
            part = unknown[start : start + _READS]
            found = await asyncio.gather(*(self._get(path, each) for path in part))
            for path, node in zip(part, found, strict=True):
                if node is None:
                    continue
                zones[path] = self._read_zone(path, node.value)
                if path in self._reading:  # no event has overtaken what was read
                    self._zones[path] = zones[path]
            failed = [error for path, error in each.failed.items() if path in wanted]
            if 2 * len(failed) > len(wanted):
                raise failed[0]
        self._reading -= set(unknown)
        last = self._last_zones | zones
        self._last_zones = {path: last[path] for path in wanted & last.keys()}
        return zones

    async def _get(self, path: str, each: ItemPass) -> Versioned | None:
        try:
            return await self._store.get(path)
        except MetadataError as error:
            each.failed[path] = error
            return None

    def _read_zone(self, path: str, value: bytes) -> str:
        try:
            if path.startswith(AVAILABLE_PATH):
                bookie_id = decode_name(name_of(path))
                info = decode_registration(bookie_id, value)
                if address := info.any_address:
                    self._addresses[bookie_id] = "{}:{}".format(*address)
                location = info.network_location
            else:
                location = location_of(value)
        except (BookieUnavailableError, ValueError):
            return _NO_ZONE
        return zone_of(location) or _NO_ZONE

    def _on_event(self, event: MetadataEvent) -> None:
        self._forget(event.path)
        self._on_change()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            for path in [*self._zones, *self._reading]:  # events may have been lost meanwhile
                self._forget(path)
            self._on_change()

    def _forget(self, path: str) -> None:
        self._zones.pop(path, None)
        self._reading.discard(path)


def _told_zones(value: bytes) -> dict[str, str]:
    """A rack alone is no zone."""
    try:
        racks = parse_racks(value)
    except ValueError as error:
        _log.warning("%s is ignored: %s", RACKS_PATH, error)
        return {}
    return {bookie: zone_of(path) for bookie, path in racks.items() if len(levels(path)) == 2}


async def read_zones(store: MetadataStore) -> dict[str, str]:
    """Zone by bookie, of all that have a cookie or are registered; "": it can't be read.

    Raises:
        MetadataError: the store can't tell.
    """
    watch = ClusterWatch(store, lambda: None)
    try:
        view = await watch.read()
    finally:
        watch.close()
    return {**view.cookies, **view.available, **dict.fromkeys(watch.unplaced, "")}
