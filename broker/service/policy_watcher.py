"""Reads the policies of topics, and renews those of loaded topics when documents change.

A topic gets its ``EffectivePolicies`` when it is loaded. When any broker changes a document, its
store event gives every loaded topic that it concerns the new policies and ``policies_changed``. A
write through ``PolicyWatcher`` returns when the topics here have them; the event of that write then
finds nothing new.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

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
from magnetar.broker.service.store_follower import EVERYTHING, StoreFollower
from magnetar.broker.topic.loaded_topics import LoadedTopics
from magnetar.broker.topic.topic import Topic
from magnetar.bundles.local_policies import is_heartbeat
from magnetar.bundles.namespace_bundles import namespace_of
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)


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
        self.defaults = EffectivePolicies({}, config)
        """The broker's settings alone."""
        self.follower = StoreFollower(store, (POLICIES, TOPIC_POLICIES), _key_of, self._renew)
        self.close = self.follower.close

    async def config_changed(self, config: BrokerConfig) -> None:
        """The broker's settings have changed: return when the loaded topics have them."""
        self._config, self.defaults = config, EffectivePolicies({}, config)
        self._resources.config_changed(config)
        await asyncio.shield(self.follower.invalidate(EVERYTHING))

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
        await asyncio.shield(self.follower.invalidate(namespace))

    async def update_topic(
        self, name: TopicName, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Change a topic's own document; see ``Resources.update_topic_policies``."""
        await self._resources.update_topic_policies(name, change)
        await asyncio.shield(self.follower.invalidate(name.base.full))

    def registered(self, topic: Topic, changes: int) -> None:
        """A topic was loaded with policies that were read when ``changes`` was this number."""
        if changes != self.follower.changes:  # one of them may have been a change of its policies
            self.follower.invalidate(topic.name.base.full)

    # --- renewing

    async def _renew(self, stale: set[str]) -> set[str]:
        """Renew the policies of all topics that the keys concern.

        Args:
            stale: ``tenant/ns``, full names of topics, EVERYTHING.
        Returns:
            Full names of topics whose documents can't be read.
        """
        everything, topics, unread = EVERYTHING in stale, self._topics, set[str]()
        # Read once for all topics, so that they share one object whatever happens meanwhile: a
        # change after the read renews them again.
        read = dict[str, EffectivePolicies | None]()
        # Namespaces that are, or have a topic, in it.
        namespaces = {namespace_of(key) if "://" in key else key for key in stale}
        stale_topics = chain.from_iterable(map(topics.of_namespace, namespaces))
        async for topic in in_turns(topics.walk() if everything else stale_topics):
            own = everything or topic.name.base.full in stale
            if not own and topic.name.namespace not in stale:
                continue
            try:
                if (namespace := topic.name.namespace) not in read:
                    read[namespace] = await self._resources.policies(namespace)
                if (policies := read[namespace]) is not None:
                    await self._renew_topic(topic, policies, read_own=own)
                # Else it was deleted, and its topics are about to be.
            except (MetadataError, BrokerMetadataError) as error:
                # Its old policies hold until its documents can be read again.
                logger.warning("%s: its policies can't be read: %s", topic.full_name, error)
                unread.add(topic.name.base.full)
        return unread

    async def _renew_topic(
        self, topic: Topic, namespace: EffectivePolicies, *, read_own: bool
    ) -> None:
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


def _key_of(path: str) -> str | None:
    """``tenant/ns`` or a topic's full name, by the path of the policies; None: other documents."""
    if path.startswith(POLICIES + "/"):
        namespace = path.removeprefix(POLICIES + "/")
        return namespace if namespace.count("/") == 1 else None  # else a tenant
    name = topic_of_policies(path)
    return None if name is None else name.full
