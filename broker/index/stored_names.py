"""Names of all stored topics of a cluster, by namespace: listed once, then kept by events."""

from collections.abc import Callable

from magnetar.broker.protocol.topic_name import is_system_topic
from magnetar.broker.resources.resources import Resources, stored_topic_of
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.store import EventType, MetadataEvent, Watch


class StoredNames:
    """Tells of each name that there is, comes or goes; without the system's topics."""

    def __init__(
        self,
        resources: Resources,
        *,
        added: Callable[[str, str], None],
        removed: Callable[[str], None],
    ) -> None:
        """``added`` gets a full name and its namespace, more than once perhaps; ``removed`` a full
        name, also of one that was not told.
        """
        self._resources, self._added, self._removed = resources, added, removed
        self._deleted_meanwhile: set[str] | None = None  # while the list is read
        self._watch: Watch | None = None

    async def open(self) -> None:
        """Watch, and tell of all that there are. Raises MetadataError."""
        deleted = self._deleted_meanwhile = set()
        self._watch = self._resources.watch_topics(self._on_event)
        for tenant in await self._resources.tenants():
            async for namespace in in_turns(await self._resources.namespaces(tenant)):
                async for full in self._resources.walk_stored_topics(namespace):
                    if full not in deleted and not is_system_topic(full):
                        self._added(full, namespace)
        self._deleted_meanwhile = None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type not in (EventType.CREATED, EventType.DELETED):
            return
        name = stored_topic_of(event.path)
        if name is None or name.is_system:
            return
        full = str(name)
        if event.type is EventType.CREATED:
            self._added(full, name.namespace)
            return
        if self._deleted_meanwhile is not None:
            self._deleted_meanwhile.add(full)
        self._removed(full)
