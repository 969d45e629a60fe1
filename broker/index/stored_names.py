"""Names of all stored topics of a cluster, by namespace: listed once, then kept by events."""

import asyncio
from collections.abc import Callable
from typing import Final

from magnetar.broker.protocol.topic_name import is_system_topic
from magnetar.broker.resources.resources import Resources, stored_topic_of
from magnetar.metadata.store import EventType, MetadataEvent, Watch

_SLICE: Final = 200
"""Names told before others get their turn on the loop."""


class StoredNames:
    """Tells of each name that there is, comes or goes; without the system's topics."""

    def __init__(
        self,
        resources: Resources,
        *,
        added: Callable[[str, str], None],
        removed: Callable[[str], None],
    ) -> None:
        """``added`` gets a full name and its namespace, ``removed`` a full name."""
        self._resources, self._added, self._removed = resources, added, removed
        self._known: set[str] = set()
        self._deleted_meanwhile: set[str] = set()  # while the list is read
        self._watch: Watch | None = None

    def __contains__(self, full: str) -> bool:
        return full in self._known

    async def open(self) -> None:
        """Watch, and tell of all that there are. Raises MetadataError."""
        self._watch = self._resources.watch_topics(self._on_event)
        for tenant in await self._resources.tenants():
            for namespace in await self._resources.namespaces(tenant):
                names = await self._resources.stored_topics(namespace)
                for start in range(0, len(names), _SLICE):
                    for full in names[start : start + _SLICE]:
                        if full not in self._deleted_meanwhile and not is_system_topic(full):
                            self._add(full, namespace)
                    await asyncio.sleep(0)
        self._deleted_meanwhile.clear()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _add(self, full: str, namespace: str) -> None:
        if full not in self._known:
            self._known.add(full)
            self._added(full, namespace)

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type not in (EventType.CREATED, EventType.DELETED):
            return
        name = stored_topic_of(event.path)
        if name is None or name.is_system:
            return
        full = str(name)
        if event.type is EventType.CREATED:
            self._deleted_meanwhile.discard(full)
            self._add(full, name.namespace)
        else:
            self._deleted_meanwhile.add(full)
            if full in self._known:
                self._known.remove(full)
                self._removed(full)
