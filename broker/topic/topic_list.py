"""Lists of a namespace's topics for pattern consumers: filter, hash, watchers of changes."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import re2  # type: ignore[import-untyped]  # ships no stubs
from crc32c import crc32c

from magnetar.broker.errors import InvalidTopicError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.resources.resources import Resources, stored_topic_of
from magnetar.broker.topic.topic_directory import TopicDirectory
from magnetar.metadata.loop_turns import Steps, run_in_turns
from magnetar.metadata.store import EventType, MetadataEvent, Watch

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

PATTERN_LENGTH_MAX: Final = 50
_WATCHERS_PER_CONNECTION_MAX: Final = 1_000
_KNOWN_MAX: Final = 2_000_000
"""Names that the watchers of a connection remember, above which it gets no more of them."""
_SLICE: Final = 250
"""Names that are matched, half a millisecond, before others get their turn on the loop."""
_TOLD_PER_TURN: Final = 20
_HASHED: Final = 1_000
"""Names that are hashed, or put into an answer, in a step."""


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


def topics_hash(topics: Sequence[str]) -> Steps[str]:
    """Source: docs/spec/wire-protocol.md, "Lists of topics".

    Args:
        topics: ascending.
    """
    found = 0
    for start in range(0, len(topics), _HASHED):
        text = ",".join(topics[start : start + _HASHED])
        found = crc32c((f",{text}" if start else text).encode(), found)
        yield
    return found.to_bytes(4, "little").hex()


def fill(names: Any, topics: Sequence[str]) -> Steps[None]:
    """Put them into a repeated field of an answer."""
    for start in range(0, len(topics), _HASHED):
        names.extend(topics[start : start + _HASHED])
        yield


def visible_topics(names: Iterable[str], pattern: TopicPattern | None = None) -> list[str]:
    """Without system topics, and only what the pattern matches."""
    found = []
    for full in names:
        name = TopicName.parse(full)
        if not name.is_system and (pattern is None or pattern.matches(name)):
            found.append(full)
    return found


@dataclass(slots=True, eq=False)
class _Watcher:
    connection: Connection
    watcher_id: int
    namespace: str
    pattern: TopicPattern
    topics: list[str] | None = None
    """What the client knows, ascending: a set would take ten times as much. None until the list was
    sent: no updates before it."""
    missed: dict[str, bool] = field(default_factory=dict)
    """What happened meanwhile: names, and whether created."""

    def change(self, changes: Mapping[str, bool]) -> tuple[list[str], list[str]]:
        """Apply changes of matching topics; what is new and what is gone by that."""
        assert self.topics is not None
        new: list[str] = []
        gone: list[str] = []
        for full, created in changes.items():
            at = bisect_left(self.topics, full)
            known = at < len(self.topics) and self.topics[at] == full
            if created and not known:
                self.topics.insert(at, full)
                new.append(full)
            elif known and not created:
                del self.topics[at]
                gone.append(full)
        return new, gone


class TopicListWatchers:
    """All WATCH_TOPIC_LIST watchers of this broker, by namespace."""

    def __init__(self, resources: Resources, directory: TopicDirectory) -> None:
        self._resources, self._directory = resources, directory
        self._by_namespace: dict[str, set[_Watcher]] = {}
        self._watch: Watch | None = None
        self._turns: dict[Connection, tuple[asyncio.Lock, int]] = {}  # lock, users
        self._changes: dict[str, dict[str, bool]] = {}  # by namespace, as ``_Watcher.missed``
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._task is not None:
            self._task.cancel()

    async def matching(
        self, connection: Connection, namespace: str, mode: str, pattern: TopicPattern | None
    ) -> list[str]:
        """Topics for a client, sorted: in small steps, one list of a connection at a time.

        A client may ask for thousands of lists of thousands of topics at once: others come first.

        Args:
            mode: as of ``TopicDirectory.names``, whose errors are raised.
        """
        lock, users = self._turns.get(connection) or (asyncio.Lock(), 0)
        self._turns[connection] = lock, users + 1
        try:
            async with lock:
                names = await self._directory.names(namespace, mode)
                found = visible_topics(names[:_SLICE], pattern)
                for start in range(_SLICE, len(names), _SLICE):
                    await asyncio.sleep(0)
                    found += visible_topics(names[start : start + _SLICE], pattern)
                if self._turns[connection][1] > 1:
                    await asyncio.sleep(0)
                return found
        finally:
            lock, users = self._turns[connection]
            self._turns[connection] = lock, users - 1
            if users == 1:
                del self._turns[connection]

    async def add(self, connection: Connection, command: pb.CommandWatchTopicList) -> None:
        """Send the list, then every change. A known watcher id is a refresh.

        Raises:
            InvalidTopicError: bad pattern, or this connection watches too much.
        """
        pattern = TopicPattern(command.topics_pattern)
        if self._watch is None:
            self._watch = self._resources.watch_topics(self._on_event)
        self.remove(connection, command.watcher_id)
        others: Iterable[_Watcher] = connection.watchers.values()
        known = sum(len(other.topics) for other in others if other.topics is not None)
        if len(connection.watchers) >= _WATCHERS_PER_CONNECTION_MAX or known > _KNOWN_MAX:
            raise InvalidTopicError("Too many topic list watchers on this connection")
        watcher = _Watcher(connection, command.watcher_id, command.namespace, pattern)
        connection.watchers[command.watcher_id] = watcher
        connection.on_closed[watcher] = lambda: self._discard(watcher)
        self._by_namespace.setdefault(command.namespace, set()).add(watcher)
        topics = await self.matching(connection, command.namespace, "persistent", pattern)
        reply = pb.CommandWatchTopicListSuccess(
            request_id=command.request_id,
            watcher_id=command.watcher_id,
            topics_hash=await run_in_turns(topics_hash(topics)),
        )
        if not command.topics_hash or command.topics_hash != reply.topics_hash:
            await run_in_turns(fill(reply.topic, topics))
        if connection.closed or connection.watchers.get(command.watcher_id) is not watcher:
            return
        watcher.topics = topics
        connection.send(reply)
        if watcher.missed:  # before what is to be told already
            self._changes[command.namespace] = {
                **watcher.missed,
                **self._changes.get(command.namespace, {}),
            }
            watcher.missed = {}
            self._tell_soon()

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
        if name is None or name.is_system or name.namespace not in self._by_namespace:
            return
        changes = self._changes.setdefault(name.namespace, {})
        changes.pop(str(name), None)  # its last change comes last
        changes[str(name)] = event.type is EventType.CREATED
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Tell all watchers what has changed; what changes meanwhile goes with the next round."""
        try:
            while self._changes:
                namespace, changes = self._changes.popitem()
                for number, watcher in enumerate(list(self._by_namespace.get(namespace, ()))):
                    if number % _TOLD_PER_TURN == _TOLD_PER_TURN - 1:
                        await asyncio.sleep(0)
                    if watcher.connection.watchers.get(watcher.watcher_id) is watcher:
                        await self._tell_one(watcher, changes)
        except Exception:  # the next change is told again
            logger.exception("telling what topics there are failed")
        finally:
            self._task = None

    async def _tell_one(self, watcher: _Watcher, changes: Mapping[str, bool]) -> None:
        matches = watcher.pattern.matches
        mine = {
            full: created for full, created in changes.items() if matches(TopicName.parse(full))
        }
        if watcher.topics is None:
            for full in mine:
                watcher.missed.pop(full, None)
            watcher.missed.update(mine)
            return
        new, gone = watcher.change(mine)
        if not new and not gone:
            return
        found = await run_in_turns(topics_hash(watcher.topics))
        if watcher.connection.watchers.get(watcher.watcher_id) is watcher:
            watcher.connection.send(
                pb.CommandWatchTopicUpdate(
                    watcher_id=watcher.watcher_id,
                    new_topics=new,
                    deleted_topics=gone,
                    topics_hash=found,
                )
            )
