"""A WebSocket consumer of all topics whose names match a pattern, also of those to come.

Follows the metadata store (`TopicChanges`) and compares with the whole list once a minute, for
what was missed. A topic that is closed, because it is deleted or moves, leaves the session as it
is: whether it still exists is found out by subscribing again, later and later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.errors import (
    BrokerError,
    BrokerMetadataError,
    TopicNotFoundError,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.websocket.consumer import ConsumerSession
from magnetar.broker.http.websocket.parameters import ConsumerParameters
from magnetar.broker.protocol.topic_name import TopicName, valid_namespace_part
from magnetar.broker.resources.resources import stored_topic_of
from magnetar.broker.service.access_control import Right
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.topic_list import TopicPattern, visible_topics
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import EventType, MetadataEvent, SessionEvent, Watch

if TYPE_CHECKING:
    OnChange = Callable[[TopicName | None, bool], None]

logger = logging.getLogger(__name__)

TOPICS_MAX: Final = 1_000
"""Of one socket; partitions count each."""
PATTERN_LENGTH_MAX: Final = 1_024
COMPARE_S: Final = 60.0
_AGAIN_S, _AGAIN_MAX_S = 0.1, 30.0
"""Until a topic that couldn't be subscribed to is tried again: doubles."""
_SLICE: Final = 500  # names between which others get their turn: a millisecond or two


class TopicAuthorizer(Protocol):
    """Asks for the rights of a topic that the pattern has met."""

    async def rights_of(self, name: TopicName, writes: Iterable[TopicName]) -> list[Right]:
        """To consume it, and to publish to the others. Raises ApiError: 403."""


class NamePattern:
    """``[persistent://]tenant/namespace/expression``, as ``topicsPattern`` has it; the expression
    alone is for public/default.
    """

    def __init__(self, text: str) -> None:
        """Raises ApiError: 400, InvalidTopicError: no expression that RE2 understands."""
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
        parts = rest.split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", rest]
        if len(text) > PATTERN_LENGTH_MAX:
            raise ApiError(400, f"topicsPattern is longer than {PATTERN_LENGTH_MAX} characters")
        if domain == "non-persistent":
            raise ApiError(400, "topicsPattern finds persistent topics only, as Pulsar's")
        if (
            domain != "persistent"
            or len(parts) != 3
            or not parts[2]
            or not all(map(valid_namespace_part, parts[:2]))
        ):
            raise ApiError(400, "topicsPattern must be persistent://tenant/namespace/expression")
        self.namespace = f"{parts[0]}/{parts[1]}"
        self._pattern = TopicPattern("/".join(parts))

    def matches(self, name: TopicName) -> bool:
        return name.namespace == self.namespace and self._pattern.matches(name)

    def visible(self, names: Iterable[str]) -> list[TopicName]:
        """Of a namespace's topics those that match, without system topics."""
        return [TopicName.parse(full) for full in visible_topics(names, self._pattern)]


class TopicChanges:
    """Tells the pattern sessions of one broker which topics of a namespace come and go.

    One watch on the metadata store serves all of them, from the first listener on.
    """

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


class PatternSession(ConsumerSession):
    """One consumer socket whose topics come and go."""

    def __init__(
        self,
        service: BrokerService,
        pattern: NamePattern,
        subscription: str,
        parameters: ConsumerParameters,
        changes: TopicChanges,
        guard: TopicAuthorizer | None,
    ) -> None:
        """``guard``: None while authorization is off."""
        super().__init__(service, (), subscription, parameters)
        self._shows_topic = True
        self._pattern, self._changes, self._guard = pattern, changes, guard
        self._rights: dict[str, list[Right]] = {}
        self.on_rights: Callable[[], None] | None = None
        """To be told of more rights that the session lives on."""
        self._subscribed: set[str] = set()
        self._older: set[str] = set()  # were there before us: the parameters say where to start
        self._wanted: set[str] = set()  # to be subscribed to as soon as possible
        self._gone: set[str] = set()
        self._again: set[str] = set()  # couldn't be
        self._again_s = _AGAIN_S
        self._again_timer: asyncio.TimerHandle | None = None
        self._compare_timer: asyncio.TimerHandle | None = None
        self._compare_now = False
        self._busy = False
        self._full = False
        self._following = False

    @property
    def rights(self) -> Sequence[Right]:
        return [right for rights in self._rights.values() for right in rights]

    async def open(self, remote: str, client_version: str) -> None:
        """Subscribe to what matches now.

        Raises:
            ApiError: 400 too many topics; 403 one of them may not be consumed.
            BrokerError: the upgrade is to be refused with its status.
        """
        self._remote, self._client_version = remote, client_version
        self.consumer_feed.on_topic_lost = self._on_topic_lost
        self._following = True
        self._changes.add(self._pattern.namespace, self._on_change)
        names = await self._matching()
        if len(names) > TOPICS_MAX:
            raise ApiError(400, f"topicsPattern matches {len(names)} topics, {TOPICS_MAX} at most")
        self._older = {str(name) for name in names}
        for name in names:
            if str(name) not in self._subscribed:  # it may have come just before the list
                await self._subscribe(name)
        self._start_pushing()
        self._compare_timer = asyncio.get_running_loop().call_later(COMPARE_S, self._compare_soon)

    def close(self) -> None:
        self._stop_following()
        super().close()

    def _stop_following(self) -> None:
        if not self._following:
            return
        self._following = False
        self._changes.remove(self._pattern.namespace, self._on_change)
        for timer in (self._again_timer, self._compare_timer):
            if timer is not None:
                timer.cancel()

    async def _unsubscribe(self) -> None:
        self._stop_following()
        await super()._unsubscribe()

    # --- topics that come and go

    async def _matching(self) -> list[TopicName]:
        """Raises BrokerMetadataError. A namespace that doesn't exist may do so later."""
        namespace = self._pattern.namespace
        try:
            found = await self._service.directory.names(namespace, "persistent")
        except MetadataError as error:
            raise BrokerMetadataError(str(error)) from error
        matching: list[TopicName] = []
        for first in range(0, len(found), _SLICE):
            matching += self._pattern.visible(found[first : first + _SLICE])
            await asyncio.sleep(0)  # the list may be long
        return [name for name in matching if not self._is_our_own(name)]

    def _is_our_own(self, name: TopicName) -> bool:
        """A topic of dead letters of this session: it would feed on itself."""
        if not self._parameters.redeliver_max:
            return False
        if fixed := self._parameters.dead_letter_topic:
            return str(name.base) == str(TopicName.parse(fixed).base)
        return name.base.local.endswith(f"-{self._subscription}-DLQ")

    async def _subscribe(self, name: TopicName) -> None:
        """Raises ApiError: 403; BrokerError."""
        rights: list[Right] = []
        if self._guard is not None:
            rights = await self._guard.rights_of(name, self._dead_letter_topics((name,)))
        request = self._request()
        if str(name) not in self._older:
            # It is younger than this session: nothing in it was published before we listened.
            request = replace(request, initial_position=EARLIEST)
        self._rights[str(name)] = rights
        self._subscribed.add(str(name))
        try:
            await self.consumer_feed.add_topic(
                name, request, remote=self._remote, client_version=self._client_version
            )
        except BaseException:
            self._forget(str(name))
            raise
        if not self._following:  # unsubscribed meanwhile
            self.consumer_feed.remove_topic(str(name))
        if self.on_rights is not None:
            self.on_rights()

    def _forget(self, topic: str) -> None:
        self._subscribed.discard(topic)
        self._rights.pop(topic, None)

    def _on_change(self, name: TopicName | None, exists: bool) -> None:
        if name is None:
            self._compare_now = True
        elif not self._pattern.matches(name) or self._is_our_own(name):
            return
        elif not exists:
            self._older.discard(str(name))
            self._wanted.discard(str(name))
            self._again.discard(str(name))
            self._gone.add(str(name))
        elif str(name) not in self._subscribed:
            self._want(str(name))
        self._work_soon()

    def _want(self, topic: str) -> None:
        if len(self._subscribed) + len(self._wanted) < TOPICS_MAX:
            self._wanted.add(topic)
        elif not self._full:
            self._full = True
            logger.warning(
                "%s: more than %d topics match: the rest is left out until some go",
                self._pattern.namespace,
                TOPICS_MAX,
            )

    def _on_topic_lost(self, topic: str) -> None:
        """Its consumer was closed: deleted, unloaded or moved."""
        self._forget(topic)
        if self._following:
            self._older.add(topic)  # if it is still there: our subscription is there as well
            self._again.add(topic)
            self._arm_again()

    def _arm_again(self) -> None:
        if self._again_timer is None and self._following:
            loop = asyncio.get_running_loop()
            self._again_timer = loop.call_later(self._again_s, self._on_again)

    def _on_again(self) -> None:
        self._again_timer = None
        self._again_s = min(self._again_s * 2, _AGAIN_MAX_S)
        again, self._again = self._again, set()
        for topic in again - self._subscribed:
            self._want(topic)
        self._work_soon()

    def _compare_soon(self) -> None:
        self._compare_timer = asyncio.get_running_loop().call_later(COMPARE_S, self._compare_soon)
        self._compare_now = True
        self._work_soon()

    def _work_soon(self) -> None:
        if not self._busy and self._following:
            self._busy = True
            # Not cancelled before the broker ends, so that no consumer is left behind half made; it
            # sees the end itself.
            self._service.run(self._work())

    async def _work(self) -> None:
        try:
            while self._following and (self._compare_now or self._wanted or self._gone):
                if self._compare_now:
                    self._compare_now = False
                    await self._compare()
                while self._gone:
                    topic = self._gone.pop()
                    self._forget(topic)
                    self.consumer_feed.remove_topic(topic)
                if self._wanted:
                    await self._try(self._wanted.pop())
        finally:
            self._busy = False
        if not self._again:
            self._again_s = _AGAIN_S

    async def _compare(self) -> None:
        try:
            names = {str(name) for name in await self._matching()}
        except BrokerError as error:
            logger.warning("topics of %s can't be listed: %s", self._pattern.namespace, error)
            return
        self._full = False
        self._gone |= self._subscribed - names
        for topic in sorted(names - self._subscribed - self._again):
            self._want(topic)

    async def _try(self, topic: str) -> None:
        if topic in self._subscribed:
            return
        try:
            await self._subscribe(TopicName.parse(topic))
        except TopicNotFoundError:
            self._older.discard(topic)
        except ApiError as error:
            # Not ours to read, and said in the log; asked again with the next comparison.
            logger.info("%s isn't consumed: %s", topic, error)
        except BrokerError as error:
            logger.warning("%s can't be consumed yet: %s", topic, error)
            self._again.add(topic)
            self._arm_again()
