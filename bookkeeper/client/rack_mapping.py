"""Where bookies stand: what operators say, else the bookie's registration, else its cookie."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Final

from magnetar.bookkeeper.layout.cookie_format import location_of
from magnetar.bookkeeper.service_info import COOKIES_PATH, RACKS_PATH, ServiceInfo
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import MetadataStore

_READS: Final = 64  # at a time
_log = logging.getLogger(__name__)


class BookieRackMapping:
    """Paths of bookies, like ``/zone/upgrade-domain`` or ``/rack``.

    Args:
        infos: registrations by bookie id, kept current by the caller.
    """

    def __init__(self, infos: Mapping[str, ServiceInfo]) -> None:
        self._infos = infos
        self._racks: dict[str, str] = {}
        self._groups: dict[str, frozenset[str]] = {}
        self._cookies: dict[str, str] | None = None  # None: not read yet

    def locate(self, bookie_id: str) -> str | None:
        """The bookie's path; None: not known."""
        info = self._infos.get(bookie_id)
        if self._racks:
            rack = self._racks.get(bookie_id) or self._racks.get(self._address(bookie_id))
            if rack is not None:
                return rack
        if info is not None:
            return info.network_location
        return None if self._cookies is None else self._cookies.get(bookie_id)

    def groups_of(self, bookie_id: str) -> frozenset[str]:
        """Names of its groups; empty: it is in none."""
        found = self._groups.get(bookie_id) or self._groups.get(self._address(bookie_id))
        return found or frozenset()

    def _address(self, bookie_id: str) -> str:
        """``host:port``, by which operators may name it, too; "": not known."""
        info = self._infos.get(bookie_id)
        address = None if info is None else info.any_address
        return "" if address is None else "{}:{}".format(*address)

    async def read(self, store: MetadataStore) -> None:
        """What operators say; and, once, the cookies: of bookies that were gone when we came.

        Raises:
            MetadataError: the store can't tell; what was known stays.
        """
        node = await store.get(RACKS_PATH)
        if node is None or not node.value:
            self._racks, self._groups = {}, {}
        else:
            try:
                self._racks, self._groups = parse_racks(node.value), parse_groups(node.value)
            except ValueError as error:
                _log.warning("%s is ignored, bookies stay where they were: %s", RACKS_PATH, error)
        if self._cookies is None:
            self._cookies = await _read_cookies(store, self._infos)


async def _read_cookies(
    store: MetadataStore, registered: Mapping[str, ServiceInfo]
) -> dict[str, str]:
    names = [n for n in await store.children(COOKIES_PATH) if decode_name(n) not in registered]
    places: dict[str, str] = {}
    for start in range(0, len(names), _READS):
        part = names[start : start + _READS]
        nodes = await asyncio.gather(*(store.get(f"{COOKIES_PATH}/{name}") for name in part))
        for name, node in zip(part, nodes, strict=True):
            try:
                if node is not None:
                    places[decode_name(name)] = location_of(node.value)
            except ValueError:
                continue  # a cookie of another version; its owner will say so
    return places


def parse_racks(document: bytes) -> dict[str, str]:
    """Path by bookie (id, or host:port), out of ``{group: {bookie: {"rack": path}}}``.

    Raises:
        ValueError: it has another form.
    """
    groups = json.loads(document)
    try:
        infos = {
            bookie: info.get("rack") or ""
            for members in groups.values()
            for bookie, info in members.items()
        }
        return {bookie: "/" + rack.strip("/") for bookie, rack in infos.items() if rack.strip("/")}
    except AttributeError as error:
        raise ValueError(f"not groups of bookies with racks: {error}") from error


def parse_groups(document: bytes) -> dict[str, frozenset[str]]:
    """Names of groups by bookie, out of the same. Raises ValueError."""
    groups: dict[str, set[str]] = {}
    try:
        for name, members in json.loads(document).items():
            for bookie in members:
                groups.setdefault(bookie, set()).add(name)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not groups of bookies: {error}") from error
    return {bookie: frozenset(names) for bookie, names in groups.items()}
