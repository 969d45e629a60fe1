"""Lists of a namespace's topics for pattern consumers: filter, hash, watchers of changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import re2  # type: ignore[import-untyped]  # ships no stubs
from crc32c import crc32c

from broker.errors import InvalidTopicError
from broker.protocol import pulsar_api_pb2 as pb
from broker.protocol.topic_name import TopicName
from broker.service.resources import stored_topic_of
from metadata.store import EventType

if TYPE_CHECKING:
    from broker.service.broker_service import BrokerService
    from broker.service.connection import Connection
    from metadata.store import MetadataEvent, Watch

__all__ = [
    "PATTERN_LENGTH_MAX",
    "TopicListWatchers",
    "TopicPattern",
    "topics_hash",
    "visible_topics",
]

logger = logging.getLogger(__name__)

PATTERN_LENGTH_MAX: Final = 50
_WATCHERS_PER_CONNECTION_MAX: Final = 1_000


class TopicPattern:
    """A client's pattern, matched as Pulsar does: without domain and partition suffix.

    RE2 runs in linear time: a pattern from the network can't hold the event loop.
    """

    def __init__(self, pattern: str) -> None:
        """Raises InvalidTopicError: not a regular expression."""
        try:
            self._match = re2.compile(pattern.split("://", 1)[-1], _options()).fullmatch
        except re2.error as error:
            raise InvalidTopicError(f"Invalid topics pattern: {_text(error)}") from error

    def matches(self, name: TopicName) -> bool:
        return self._match(str(name.base).split("://", 1)[1]) is not None


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return options


def _text(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)


def topics_hash(topics: Iterable[str]) -> str:
    """Source: wire-protocol 4.15; ``00000000`` for an empty list."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


def visible_topics(names: Iterable[str], pattern: TopicPattern | None = None) -> list[str]:
    """Without system topics, and only what the pattern matches."""
    found = []
    for full in names:
        name = TopicName.parse(full)
        if not name.is_system and (pattern is None or pattern.matches(name)):
            found.append(full)
    return found


class _Watcher:
    __slots__ = ("connection", "namespace", "pattern", "topics", "watcher_id")

    def __init__(
        self, connection: Connection, watcher_id: int, namespace: str, pattern: TopicPattern
    ) -> None:
        self.connection = connection
        self.watcher_id = watcher_id
        self.namespace = namespace
        self.pattern = pattern
        self.topics: set[str] | None = None  # None until the list was sent: no updates before it


class TopicListWatchers:
    """All WATCH_TOPIC_LIST watchers of this broker, by namespace."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._by_namespace: dict[str, set[_Watcher]] = {}
        self._watch: Watch | None = None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    async def add(self, connection: Connection, command: pb.CommandWatchTopicList) -> None:
        """Send the list, then every change. A known watcher id is a refresh.

        Raises:
            InvalidTopicError: bad pattern.
        """
        pattern = TopicPattern(command.topics_pattern)
        if self._watch is None:
            self._watch = self._service.resources.watch_topics(self._on_event)
        self.remove(connection, command.watcher_id)
        if len(connection.watchers) >= _WATCHERS_PER_CONNECTION_MAX:
            raise InvalidTopicError("Too many topic list watchers on this connection")
        watcher = _Watcher(connection, command.watcher_id, command.namespace, pattern)
        connection.watchers[command.watcher_id] = watcher
        connection.on_closed[watcher] = lambda: self._discard(watcher)
        self._by_namespace.setdefault(command.namespace, set()).add(watcher)
        names = await self._service.list_topics(command.namespace, "persistent")
        if connection.closed or connection.watchers.get(command.watcher_id) is not watcher:
            return
        topics = visible_topics(names, pattern)
        watcher.topics = set(topics)
        base = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        reply = base.watchTopicListSuccess
        reply.request_id, reply.watcher_id = command.request_id, command.watcher_id
        reply.topics_hash = topics_hash(topics)
        if not command.topics_hash or command.topics_hash != reply.topics_hash:
            reply.topic.extend(topics)
        connection.send(base)

    def remove(self, connection: Connection, watcher_id: int) -> None:
        """Unknown ids are ignored."""
        if (watcher := connection.watchers.pop(watcher_id, None)) is not None:
            connection.on_closed.pop(watcher, None)
            self._discard(watcher)

    def _discard(self, watcher: _Watcher) -> None:
        watchers = self._by_namespace.get(watcher.namespace, set())
        watchers.discard(watcher)
        if not watchers:
            self._by_namespace.pop(watcher.namespace, None)

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type not in (EventType.CREATED, EventType.DELETED) or not self._by_namespace:
            return
        name = stored_topic_of(event.path)
        if name is None or name.is_system:
            return
        full, created = str(name), event.type is EventType.CREATED
        for watcher in self._by_namespace.get(name.namespace, ()):
            if watcher.topics is None or (full in watcher.topics) == created:
                continue
            if watcher.pattern.matches(name):
                self._push(watcher, [full] if created else [], [] if created else [full])

    def _push(self, watcher: _Watcher, new: Sequence[str], deleted: Sequence[str]) -> None:
        assert watcher.topics is not None
        watcher.topics.update(new)
        watcher.topics.difference_update(deleted)
        base = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_UPDATE)
        update = base.watchTopicUpdate
        update.watcher_id = watcher.watcher_id
        update.new_topics.extend(new)
        update.deleted_topics.extend(deleted)
        update.topics_hash = topics_hash(watcher.topics)
        watcher.connection.send(base)
