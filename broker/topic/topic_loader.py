"""Loading and unloading of topics: at most one load per name, a bounded number at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    BrokerMetadataError,
    InvalidTopicError,
    NotAllowedError,
    PersistenceError,
    PreconditionFailedError,
    ServiceNotReadyError,
    TopicFencedError,
    TopicNotFoundError,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol.topic_name import TopicName, is_system_topic
from magnetar.broker.topic.ledger_settings import ledger_config
from magnetar.broker.topic.non_persistent_topic import NonPersistentTopic
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic import Topic
from magnetar.bundles.errors import BundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.managed_ledger.errors import ManagedLedgerError, ManagedLedgerNotFoundError
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.loop_turns import LoopTurns, in_turns

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger(__name__)

_CLOSED_AT_ONCE = 256
"""Topics, of a bundle or of all: a task for each of a hundred thousand takes a second to make."""


@dataclass(slots=True)
class _LoadOptions:
    """As the arguments of ``load``."""

    create: bool
    forced: bool
    acquire: bool
    properties: Mapping[str, str] | None

    def may_create(self, policies: EffectivePolicies) -> bool:
        return self.forced or (self.create and policies.auto_topic_creation.allowed)


class TopicLoader:
    """Owner of ``service.topics``."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._topics = service.topics
        self._loading: dict[str, asyncio.Task[Topic]] = {}
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._creating: dict[str, set[str]] = {}  # full names, by namespace
        self._permits = asyncio.Semaphore(service.config.max_concurrent_topic_load_request)
        self._closed = False

    @property
    def loading(self) -> int:
        """Loads under way, and waiting for their turn."""
        return len(self._loading)

    async def load(
        self,
        name: TopicName,
        *,
        create: bool,
        forced: bool = False,
        acquire: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> Topic:
        """The loaded topic; joins a load that is under way.

        Args:
            create: create an absent topic, if the policies allow it.
            forced: create it whatever they say (an admin asked).
            acquire: own its bundle if no broker does and this one is chosen to; False for clients,
                which were told by a lookup where it is and else look it up again.
            properties: of a topic that is created.
        Raises:
            TopicNotFoundError: absent, and not to be created.
            NotAllowedError: no such partition, the name of a partitioned topic itself, or of a log
                of transactions.
            ServiceNotReadyError: another broker owns it, or it could not be loaded in time.
        """
        full, options = str(name), _LoadOptions(create, forced, acquire, properties)
        while True:
            if (topic := self._topics.get(full)) is not None:
                return topic
            if self._closed or not self._service.ready:
                raise ServiceNotReadyError("The broker is starting or stopping")
            joined = self._loading.get(full)
            task = joined or self._start(name, options)
            timeout_s = self._service.config.topic_load_timeout_seconds
            try:
                async with asyncio.timeout(timeout_s):
                    return await asyncio.shield(task)
            except TimeoutError:
                raise ServiceNotReadyError(f"Loading {full} timed out") from None
            except TopicNotFoundError:
                # The load we joined may not have been allowed to create the topic; ours may.
                if joined is None or not (create or forced):
                    raise
            finally:
                del task, joined  # an error of theirs holds this frame

    async def load_stored(self, name: TopicName, *, acquire: bool = True) -> Topic | None:
        """None: no topic of that name is stored, and so nothing of it.

        See ``load`` for what it raises.
        """
        try:
            return await self.load(name, create=False, acquire=acquire)
        except (TopicNotFoundError, NotAllowedError):
            if not name.is_transaction_log and await self._service.resources.is_stored(name):
                raise
            return None

    def _start(self, name: TopicName, options: _LoadOptions) -> asyncio.Task[Topic]:
        full = str(name)
        task = self._service.loop.create_task(self._load(name, options))
        self._loading[full] = task

        def done(task: asyncio.Task[Topic]) -> None:
            del self._loading[full]
            error = None if task.cancelled() else task.exception()  # every caller may have left
            if error is not None and not isinstance(error, TopicNotFoundError | NotAllowedError):
                self._service.metrics.topic_load_failures += 1

        task.add_done_callback(done)
        return task

    async def _load(self, name: TopicName, options: _LoadOptions) -> Topic:
        full, bundles, began_s = str(name), self._service.bundles, perf_counter()
        changes = self._service.policies.follower.changes
        async with self._permits:
            if (leaving := self._unloading.get(full)) is not None:
                await asyncio.wait((leaving,))
            try:
                if options.acquire:
                    await bundles.acquire_if_assigned(full)
                else:
                    await bundles.ensure_owned(full)
                try:
                    topic = await self._open(name, options)
                except ManagedLedgerNotFoundError:  # a deletion that had failed is finished by now
                    if not options.create:
                        raise
                    topic = await self._open(name, options)
                try:
                    if not await self._still_owned(full) or self._closed:
                        raise ServiceNotReadyError(f"The bundle of {full} is being unloaded")
                except BaseException:
                    await topic.close()
                    raise
            except BundleError as error:
                raise ServiceNotReadyError(str(error)) from error
            except MetadataError as error:
                raise BrokerMetadataError(f"Loading {full}: {error}") from error
            except ValueError as error:  # a name that can't be a path, such as "."
                raise InvalidTopicError(f"Invalid topic name {full}: {error}") from error
            except ManagedLedgerNotFoundError as error:
                raise TopicNotFoundError(f"Topic {full} does not exist") from error
            except ManagedLedgerError as error:
                logger.warning("loading %s failed: %s", full, error)
                raise PersistenceError(f"Loading {full}: {error}") from error
        self._topics[full] = topic
        self._service.metrics.topic_load.record((perf_counter() - began_s) * 1000)
        self._service.policies.registered(topic, changes)
        return topic

    async def _still_owned(self, full: str) -> bool:
        """Whether a topic that was just opened may be served here.

        That it isn't known may only mean that the boundaries have to be read again, as they are
        each time a bundle of the namespace is acquired. ``ensure_owned`` waits for nothing after
        its look at what is owned, so the bundle can't go before the topic is found.
        """
        try:
            await self._service.bundles.ensure_owned(full)
        except BundleError:
            return False
        return True

    async def _open(self, name: TopicName, options: _LoadOptions) -> Topic:
        service = self._service
        if name.is_transaction_log:  # somebody else has it open
            raise NotAllowedError(f"Can not create transaction system topic {name}")
        policies = await service.policies.of(name)
        may_create = await self._check_partition(name) or options.may_create(policies)
        if not name.is_persistent:
            if not service.config.enable_non_persistent_topics:
                raise NotAllowedError("Non-persistent topics are disabled on this broker")
            if not may_create:
                raise TopicNotFoundError(f"Topic {name} does not exist")
            return NonPersistentTopic(service, name, policies)
        if not service.config.enable_persistent_topics:
            raise NotAllowedError("Persistent topics are disabled on this broker")
        exists = await service.resources.is_stored(name)
        if not exists:
            if not may_create:
                raise TopicNotFoundError(f"Topic {name} does not exist")
            await self.check_room(name, policies)
        # Until it is stored, it counts for those that ask for room meanwhile.
        creating = self._creating.setdefault(name.namespace, set())
        creating.add(name.full)
        try:
            config = ledger_config(service, policies, name)
            ledger = await service.ledgers.open(name.ml_name, config)
        finally:
            creating.discard(name.full)
            if not creating:
                self._creating.pop(name.namespace, None)
        try:
            if not exists and await self._was_partitioned(name):
                await ledger.delete()
                raise NotAllowedError(f"{name} is a partitioned topic; use its partitions")
            if not exists and options.properties:
                await ledger.set_properties(dict(options.properties))
            topic = PersistentTopic(service, name, ledger, policies)
            await topic.prepare()
        except BaseException:
            await ledger.close()  # a log is open as long as its topic is loaded, and not longer
            raise
        return topic

    async def _check_partition(self, name: TopicName) -> bool:
        """Whether the name is a partition of an existing partitioned topic.

        Raises:
            NotAllowedError: a partition beyond the count, or the partitioned topic's own name.
        """
        if not name.is_partition:
            if await self._service.resources.partitioned(name) is not None:
                raise NotAllowedError(f"{name} is a partitioned topic; use its partitions")
            return False
        if (record := await self._service.resources.partitioned(name.base)) is None:
            return False
        if name.partition_index >= record.get("partitions", 0):
            raise NotAllowedError(f"{name.base} has only {record.get('partitions', 0)} partitions")
        return True

    async def _was_partitioned(self, name: TopicName) -> bool:
        """Whether it became a partitioned topic while this load made a plain one.

        Each of both writes first and looks then, so that at least one sees the other and steps
        back (``TopicDirectory.create_partitioned``).
        """
        if name.is_partition:
            return False
        return await self._service.resources.partitioned(name, anew=True) is not None

    async def check_room(
        self, name: TopicName, policies: EffectivePolicies, count: int = 1
    ) -> None:
        """Whether the namespace may have ``count`` more stored topics.

        Raises:
            PreconditionFailedError.
        """
        limit = policies.max_topics
        if limit <= 0 or name.is_system:
            return
        there = set(self._creating.get(name.namespace, ()))  # some are stored by then
        stored = await self._service.resources.stored_topics(name.namespace)
        there.update([full async for full in in_turns(stored) if not is_system_topic(full)])
        there |= self._creating.get(name.namespace, set())
        there.discard(name.full)
        if len(there) + count > limit:
            raise PreconditionFailedError("Exceed maximum number of topics in namespace.")

    # --- leaving

    async def unload(
        self,
        full: str,
        new_owner: BrokerLookup | None = None,
        *,
        lost: bool = False,
        delete: bool = False,
    ) -> None:
        """Close a loaded topic and forget it; joins an unload under way.

        Args:
            new_owner: the broker that gets it; clients are sent there.
            lost: that broker owns it already: nothing is written any more.
            delete: what is stored goes, too; see ``delete``.
        """
        if (task := self._unloading.get(full)) is None:
            if (topic := self._topics.get(full)) is None:
                return
            task = self._service.loop.create_task(self._close(full, topic, delete, new_owner, lost))
            self._unloading[full] = task

            def done(task: asyncio.Task[None]) -> None:
                del self._unloading[full]
                if not task.cancelled():
                    task.exception()

            task.add_done_callback(done)
        await asyncio.shield(task)

    async def unload_bundle(self, bundle: str) -> None:
        """Close the loaded topics of a bundle (``tenant/ns/0x..._0x...``)."""
        names, bundles = self._topics.within(bundle), self._service.bundles
        new_owner, lost = bundles.new_owner(bundle), bundles.is_lost(bundle)
        await self._unload_all(len(names), iter(names), new_owner, lost=lost)

    async def delete(self, full: str) -> None:
        """Delete a loaded topic and forget it.

        Raises:
            TopicFencedError: it is just being closed.
            PersistenceError: storage refused. The topic is closed and forgotten all the same; the
                next load finds it as it was, or finishes the deletion.
        """
        if full in self._unloading:
            raise TopicFencedError(f"Topic {full} is being closed")
        await self.unload(full, delete=True)

    async def _close(
        self, full: str, topic: Topic, delete: bool, new_owner: BrokerLookup | None, lost: bool
    ) -> None:
        try:
            await (topic.delete() if delete else topic.close(new_owner, lost=lost))
            # A partition's schema and policies are its siblings' as well: they go with the
            # partitioned topic.
            if delete and not topic.name.is_partition:
                await self._service.directory.forget(topic.name)
        except BrokerError:
            raise
        except STORAGE_ERRORS as error:
            raise PersistenceError(f"Closing {full}: {error}") from error
        finally:
            # Also when closing failed: a new load recovers what is stored.
            if self._topics.get(full) is topic:
                del self._topics[full]

    async def close(self) -> None:
        """Unload everything; afterwards nothing is loaded."""
        self._closed = True
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        names = (topic.full_name for topic in self._topics.walk())
        await self._unload_all(len(self._topics), names)

    async def _unload_all(
        self,
        count: int,
        names: Iterator[str],
        new_owner: BrokerLookup | None = None,
        *,
        lost: bool = False,
    ) -> None:
        """Some at a time. ``count``: of the names."""
        turns = LoopTurns()

        async def one_after_the_other() -> None:
            for full in names:
                try:
                    await self.unload(full, new_owner, lost=lost)
                except Exception as error:
                    logger.error("unloading %s failed", full, exc_info=error)
                if turns.is_over:
                    await turns.next()

        await asyncio.gather(*(one_after_the_other() for _ in range(min(count, _CLOSED_AT_ONCE))))
