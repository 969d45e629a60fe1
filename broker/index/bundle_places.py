"""Which broker answers for a topic that none has loaded: the one that owns its bundle."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from magnetar.broker.index.figure_table import ELSEWHERE, UNLOADED, UNLOADED_HERE
from magnetar.bundles.errors import BundleError
from magnetar.bundles.namespace_bundles import NamespaceBundles
from magnetar.bundles.ownership import OWNERS_ROOT, OwnershipService
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataEvent, MetadataStore, Watch

logger = logging.getLogger(__name__)

_SPACES_AT_ONCE: Final = 16


class BundlePlaces:
    """Owners of all bundles, read once a namespace and again when one changes."""

    def __init__(self, store: MetadataStore, bundles: OwnershipService) -> None:
        self._store, self._bundles = store, bundles
        self._known: dict[int, tuple[NamespaceBundles, dict[str, int]]] = {}
        self._stale: set[str] = set()
        self._watch: Watch | None = None

    def open(self) -> None:
        self._watch = self._store.watch(OWNERS_ROOT, self._on_event)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _on_event(self, event: MetadataEvent) -> None:
        parts = event.path.removeprefix(OWNERS_ROOT + "/").split("/")
        if len(parts) == 3:
            self._stale.add(f"{parts[0]}/{parts[1]}")

    def place_of(self, full: str, space: int) -> int:
        """UNLOADED_HERE, UNLOADED (no broker owns the bundle, or that isn't known) or ELSEWHERE."""
        if (known := self._known.get(space)) is None:
            return UNLOADED
        bundles, places = known
        return places.get(bundles.bundle_of(full), UNLOADED)

    async def renew(self, namespaces: Sequence[str]) -> frozenset[int]:
        """Read the owners where they may have changed; the numbers of these namespaces.

        A namespace whose owners can't be read stays as it was, and is read again the next time.
        """
        stale, self._stale = self._stale, set()
        spaces = [
            space
            for space, namespace in enumerate(namespaces)
            if space not in self._known or namespace in stale
        ]
        renewed: set[int] = set()
        for start in range(0, len(spaces), _SPACES_AT_ONCE):
            some = spaces[start : start + _SPACES_AT_ONCE]
            done = await asyncio.gather(*(self._read(each, namespaces[each]) for each in some))
            renewed.update(space for space, is_read in zip(some, done, strict=True) if is_read)
        return frozenset(renewed)

    async def _read(self, space: int, namespace: str) -> bool:
        try:
            bundles = await self._bundles.bundles(namespace)
            owned = await self._store.children(f"{OWNERS_ROOT}/{namespace}")
        except (BundleError, MetadataError) as error:
            logger.debug("%s: owners of bundles: %s", namespace, error)
            self._stale.add(namespace)
            return False
        own = set(self._bundles.owned_bundles)
        names = [f"{namespace}/{each}" for each in owned]
        places = {name: UNLOADED_HERE if name in own else ELSEWHERE for name in names}
        self._known[space] = bundles, places
        return True
