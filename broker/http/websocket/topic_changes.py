"""Tells pattern sessions which topics of a namespace come and go: one watch for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.resources.resources import stored_topic_of
from magnetar.metadata.store import EventType

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.metadata.store import MetadataEvent, SessionEvent, Watch

    OnChange = Callable[[TopicName | None, bool], None]


class TopicChanges:
    """Of one broker; watches the metadata store from the first listener on."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._listeners: dict[str, set[OnChange]] = {}  # by namespace
        self._watches: tuple[Watch, ...] = ()

    def add(self, namespace: str, on_change: OnChange) -> None:
        """``on_change(name, exists)`` for each topic or partition from now on; ``name`` is None
        when changes may have been missed.
        """
        if not self._watches:
            self._watches = (
                self._service.resources.watch_topics(self._on_event),
                self._service.store.on_session_event(self._on_session_event),
            )
        self._listeners.setdefault(namespace, set()).add(on_change)

    def remove(self, namespace: str, on_change: OnChange) -> None:
        listeners = self._listeners.get(namespace, set())
        listeners.discard(on_change)
        if not listeners:
            self._listeners.pop(namespace, None)
        if not self._listeners:
            self.close()

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = ()

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type not in (EventType.CREATED, EventType.DELETED):
            return
        name = stored_topic_of(event.path)
        if name is None or name.is_system:
            return
        for on_change in list(self._listeners.get(name.namespace, ())):
            on_change(name, event.type is EventType.CREATED)

    def _on_session_event(self, event: SessionEvent) -> None:
        for listeners in list(self._listeners.values()):
            for on_change in list(listeners):
                on_change(None, True)
