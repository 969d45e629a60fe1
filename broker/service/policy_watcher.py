"""The one place where a topic's policies come from, and where they are renewed.

A topic gets its ``EffectivePolicies`` when it is loaded; afterwards the store's events renew them:
whoever changed a document, on whatever broker, every loaded topic that it concerns gets the new
policies and ``policies_changed``. A write through ``PolicyWatcher`` returns when the topics here
know of it; its own event then finds nothing new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import BrokerMetadataError, NamespaceNotFoundError
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.resources.resources import (
    POLICIES,
    TOPIC_POLICIES,
    Resources,
    topic_of_policies,
)
from magnetar.broker.topic.loaded_topics import LoadedTopics
from magnetar.broker.topic.topic import Topic
from magnetar.bundles.hash_ranges import namespace_of
from magnetar.bundles.local_policies import is_heartbeat
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

_SLICE: Final = 200
"""Topics looked at before others get their turn on the loop."""
_RETRY_S: Final = 1.0
_EVERYTHING: Final = ""


class PolicyWatcher:
    """Keeps the policies of every loaded topic current."""

    def __init__(
        self,
        store: MetadataStore,
        resources: Resources,
        topics: LoadedTopics,
        config: BrokerConfig,
    ) -> None:
        """``topics``: those that are loaded."""
        self._resources, self._topics, self._config = resources, topics, config
        self._loop = asyncio.get_running_loop()
        self.defaults = EffectivePolicies({}, config)
        """The broker's settings alone."""
        self.changes = 0
        """Grows with every change of a document: what was read before it may be old."""
        self._dirty: set[str] = set()  # ``tenant/ns``, full names of topics, _EVERYTHING
        self._applied: asyncio.Future[None] | None = None  # done when topics know what is dirty now
        self._task: asyncio.Task[None] | None = None
        self._unread: set[str] = set()  # topics whose documents can't be read, until _retry
        self._retry: asyncio.TimerHandle | None = None
        self._watches = (
            store.watch(POLICIES, self._on_event),
            store.watch(TOPIC_POLICIES, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._unread.clear()
        if self._applied is not None:
            self._applied.set_result(None)  # nobody waits for a round that never begins
            self._applied = None
        if self._task is not None:
            self._task.cancel()
        if self._retry is not None:
            self._retry.cancel()

    async def config_changed(self, config: BrokerConfig) -> None:
        """The broker's settings have changed: return when the loaded topics have them."""
        self._config, self.defaults = config, EffectivePolicies({}, config)
        self._resources.config_changed(config)
        await asyncio.shield(self._invalidate(_EVERYTHING))

    async def of(self, name: TopicName) -> EffectivePolicies:
        """What holds for a topic, loaded or not.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError, MetadataError.
        """
        resources = self._resources
        if (policies := await resources.policies(name.namespace)) is None:
            if is_heartbeat(name.namespace):
                return self.defaults
            raise NamespaceNotFoundError(f"Namespace {name.namespace} does not exist")
        return policies.with_topic(await self._own(name))

    async def _own(self, name: TopicName) -> dict[str, Any] | None:
        if not self._config.topic_level_policies_enabled:
            return None
        return await self._resources.topic_policies(name)

    async def update_namespace(
        self, namespace: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Change a namespace's document; see ``Resources.update_policies``."""
        await self._resources.update_policies(namespace, change)
        await asyncio.shield(self._invalidate(namespace))

    async def update_topic(
        self, name: TopicName, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Change a topic's own document; see ``Resources.update_topic_policies``."""
        await self._resources.update_topic_policies(name, change)
        await asyncio.shield(self._invalidate(name.base.full))

    def registered(self, topic: Topic, changes: int) -> None:
        """A topic was loaded with policies that were read when ``changes`` was this number."""
        if changes != self.changes:  # one of them may have been a change of its policies
            self._invalidate(topic.name.base.full)

    # --- news

    def _on_event(self, event: MetadataEvent) -> None:
        path = event.path
        if event.type is EventType.CHILDREN_CHANGED:
            return
        if path.startswith(POLICIES + "/"):
            namespace = path.removeprefix(POLICIES + "/")
            if namespace.count("/") == 1:  # else a tenant
                self._invalidate(namespace)
        elif (name := topic_of_policies(path)) is not None:
            self._invalidate(name.full)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._invalidate(_EVERYTHING)  # events were lost meanwhile

    def _invalidate(self, key: str) -> asyncio.Future[None]:
        """The result is done when every topic it concerns has it, or can't be told now."""
        self.changes += 1
        self._dirty.add(key)
        if self._applied is None:
            self._applied = self._loop.create_future()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return self._applied

    async def _run(self) -> None:
        try:
            while self._dirty:
                dirty, self._dirty = self._dirty, set()
                told, self._applied = self._applied, None
                try:
                    await self._renew(dirty)
                except Exception:
                    logger.exception("renewing policies failed")
                finally:
                    if told is not None:
                        told.set_result(None)
        finally:
            self._task = None
            if self._unread and self._retry is None:
                self._retry = self._loop.call_later(_RETRY_S, self._read_again)

    def _read_again(self) -> None:
        self._retry = None
        unread, self._unread = self._unread, set()
        for key in unread:
            self._invalidate(key)

    # --- renewing

    async def _renew(self, dirty: set[str]) -> None:
        everything, topics = _EVERYTHING in dirty, self._topics
        names = list(topics) if everything else self._loaded_of(dirty)
        for number, full in enumerate(names, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            if (topic := topics.get(full)) is None:
                continue  # unloaded meanwhile
            own = everything or topic.name.base.full in dirty
            if not own and topic.name.namespace not in dirty:
                continue
            try:
                await self._renew_topic(topic, read_own=own)
            except (MetadataError, BrokerMetadataError) as error:
                # What held goes on until its documents can be read again; others have theirs.
                logger.warning("%s: its policies can't be read: %s", topic.full_name, error)
                self._unread.add(topic.name.base.full)

    def _loaded_of(self, dirty: set[str]) -> list[str]:
        """Full names of the loaded topics in the namespaces that are, or have a topic, in it."""
        namespaces = {namespace_of(key) if "://" in key else key for key in dirty}
        return [full for each in namespaces for full in self._topics.of_namespace(each)]

    async def _renew_topic(self, topic: Topic, *, read_own: bool) -> None:
        resources = self._resources
        if (namespace := await resources.policies(topic.name.namespace)) is None:
            return  # it was deleted, and its topics are about to be
        before = topic.policies
        document = before.topic_document
        if read_own:
            document = await self._own(topic.name) or {}
        if (before.config, before.document, before.topic_document) == (
            namespace.config,
            namespace.document,
            document,
        ):
            return  # as after the event of an own write
        topic.policies = namespace.with_topic(document)
        try:
            topic.policies_changed()
        except Exception:  # one topic's trouble is not the others'
            logger.exception("%s: its new policies are not applied", topic.full_name)
