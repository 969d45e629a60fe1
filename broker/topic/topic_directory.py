"""Which topics exist: creation, deletion, partitions and lists, loaded or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from magnetar.broker.cluster.broker_client import (
    BrokerCall,
    BrokerEndpoint,
    BrokerRefusedError,
    topic_path,
)
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import (
    AlreadyExistsError,
    BrokerMetadataError,
    InvalidTopicError,
    NamespaceNotFoundError,
    NotAllowedError,
    PersistenceError,
    PreconditionFailedError,
    TopicBusyError,
    TopicNotFoundError,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic import topic_permissions as topic_permissions
from magnetar.broker.topic.topic import Topic
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.loop_turns import in_turns

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

PARTITIONS_MAX: Final = 10_000
"""Of one topic, when the configuration sets no limit: one mistyped request must not fill the
metadata store.
"""
_AT_ONCE: Final = 256
_NOT_FOUND, _CONFLICT = 404, 409  # what brokers answer

_DOMAINS = {
    "persistent": ("persistent",),
    "non-persistent": ("non-persistent",),
    "all": ("non-persistent", "persistent"),  # as their names are sorted
}


def partitions_max(config: BrokerConfig) -> int:
    """How many partitions a topic may have."""
    return config.max_num_partitions_per_partitioned_topic or PARTITIONS_MAX


def _check_unused(topic: Topic) -> None:
    """Raises TopicBusyError: clients are connected."""
    if any(True for _ in topic.registry) or any(
        subscription.consumers for subscription in topic.subscriptions.values()
    ):
        raise TopicBusyError("Topic has active producers/subscriptions")


_Copied: TypeAlias = tuple[dict[str, str], bool]
"""Of a subscription for a new partition: its properties, and whether it is replicated."""


class TopicDirectory:
    """Existence of topics; the loader decides what is loaded."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    async def exists(self, name: TopicName) -> bool:
        """Whether there is a plain topic, or a partition, of that name."""
        if str(name) in self._service.topics:
            return True
        try:
            return name.is_persistent and await self._service.resources.is_stored(name)
        except ValueError as error:  # a name that can't be a path, such as "."
            raise InvalidTopicError(f"Invalid topic name {name}: {error}") from error

    async def names(self, namespace: str, mode: str = "persistent") -> list[str]:
        """Full names, sorted, also of system topics; of non-persistent topics those loaded here.

        Args:
            mode: persistent, non-persistent or all.
        """
        found: list[str] = []
        for domain in _DOMAINS[mode]:
            if domain == "persistent":
                stored = await self._service.resources.stored_topics(namespace)
                found = found + stored if found else stored  # to copy 100,000 takes a millisecond
            else:
                walk = in_turns(self._service.topics.of_namespace(namespace))
                found = sorted([topic.full_name async for topic in walk if not topic.persistent])
        return found

    async def create(self, name: TopicName, properties: Mapping[str, str] | None = None) -> None:
        """Create a plain topic, whatever the policies say.

        Raises:
            AlreadyExistsError, NamespaceNotFoundError, PreconditionFailedError.
        """
        await self._check_namespace(name)
        if await self.exists(name) or await self._service.resources.partitioned(name) is not None:
            raise AlreadyExistsError("This topic already exists")
        await self._service.loader.load(name, create=True, forced=True, properties=properties)

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Raises TopicNotFoundError; without ``force`` TopicBusyError if clients are connected."""
        if not await self.exists(name):
            raise TopicNotFoundError(f"Topic {name} not found")
        topic = await self._service.loader.load(name, create=False)
        if not force:
            _check_unused(topic)
        await self._service.loader.delete(str(name))

    # --- partitioned topics

    async def partitions(self, name: TopicName) -> int | None:
        """Partition count, None when there is no partitioned topic of that name."""
        record = await self._service.resources.partitioned(name)
        return None if record is None else int(record.get("partitions", 0))

    async def partitions_for_client(self, name: TopicName, *, create: bool) -> int:
        """What PARTITIONED_METADATA answers, creating what it may.

        Source: docs/spec/wire-protocol.md, "PARTITIONED_METADATA".

        Raises:
            TopicNotFoundError: absent, and not to be created.
        """
        if (count := await self.partitions(name)) is not None:
            return count
        if await self.exists(name) or name.is_partition:
            return 0
        wanted = (await self._service.policies.of(name)).auto_topic_creation
        if not (create and wanted.allowed):
            raise TopicNotFoundError(f"Topic {name} does not exist")
        if not wanted.partitioned or name.is_system:
            return 0
        count = wanted.partitions
        try:
            await self.create_partitioned(name, count, None)
        except AlreadyExistsError:
            return await self.partitions(name) or 0  # another client was faster
        return count

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Raises AlreadyExistsError, NamespaceNotFoundError, PreconditionFailedError."""
        if partitions <= 0 or name.is_partition:
            raise PreconditionFailedError(
                "Number of partitions should be more than 0 and the name no partition's"
            )
        self._check_partition_count(partitions)
        await self._check_namespace(name)
        if await self.exists(name):
            raise AlreadyExistsError("This topic already exists")
        if name.is_persistent and await self.partitions(name) is None:
            policies = await self._service.policies.of(name)
            await self._service.loader.check_room(name, policies, partitions)
        try:
            await self._service.resources.create_partitioned(name, partitions, properties)
            if await self.exists(name):  # see TopicLoader._was_partitioned
                await self._service.resources.delete_partitioned(name)
                raise AlreadyExistsError("This topic already exists")
        except MetadataError as error:
            raise BrokerMetadataError(str(error)) from error
        await self._create_partitions(name, 0, partitions)

    def _check_partition_count(self, partitions: int) -> None:
        if partitions > (limit := partitions_max(self._service.config)):
            raise PreconditionFailedError(
                f"Number of partitions should be less than or equal to {limit}"
            )

    async def update_partitions(self, name: TopicName, partitions: int) -> None:
        """Grow. Raises TopicNotFoundError, PreconditionFailedError."""
        if (current := await self.partitions(name)) is None:
            raise TopicNotFoundError(f"Topic {name} is not partitioned topic")
        if partitions < current or partitions <= 0:
            raise PreconditionFailedError(
                f"Number of partitions should be more than or equal to the current {current}"
            )
        self._check_partition_count(partitions)
        if name.is_persistent and partitions > current:
            policies = await self._service.policies.of(name)
            await self._service.loader.check_room(name, policies, partitions - current)
        await self._service.resources.update_partitioned(
            name,
            lambda record: {**record, "partitions": max(partitions, record.get("partitions", 0))},
        )
        await self._create_partitions(name, current, partitions)
        await self._copy_subscriptions(name, current, partitions)

    async def _create_partitions(self, name: TopicName, first: int, end: int) -> None:
        """Bring the partitions into being, so that lists show them before the first client."""
        if name.is_persistent:
            await self._each(name, range(first, end), self.create_partition)

    async def create_partition(self, name: TopicName) -> None:
        """Make sure that a partition exists. Its broker loads it when it is used first."""
        if not self._service.config.enable_persistent_topics:
            raise NotAllowedError("Persistent topics are disabled on this broker")
        try:
            if await self._service.ledgers.create(name.ml_name):
                return
        except MetadataError as error:
            raise BrokerMetadataError(str(error)) from error
        except ManagedLedgerError as error:
            raise PersistenceError(str(error)) from error

        async def here() -> None:
            await self._service.loader.load(name, create=True, forced=True)

        await self._create_at_owner(name, here, BrokerCall("PUT", topic_path(name)))

    async def _create_at_owner(
        self, name: TopicName, here: Callable[[], Awaitable[None]], call: BrokerCall
    ) -> None:
        """What is there already is fine."""
        try:
            await self._service.broker_client.on_owner(name, here, lambda: call)
        except BrokerRefusedError as error:
            if error.http_status != _CONFLICT:
                raise

    async def _each(
        self, name: TopicName, indexes: range, do: Callable[[TopicName], Awaitable[object]]
    ) -> None:
        """All are tried; then the first error is raised."""
        errors: list[BaseException] = []
        for start in range(0, len(indexes), _AT_ONCE):
            some = indexes[start : start + _AT_ONCE]
            results = await asyncio.gather(
                *(do(name.partition(index)) for index in some), return_exceptions=True
            )
            errors += [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    async def _copy_subscriptions(self, name: TopicName, old_end: int, end: int) -> None:
        """New partitions get the durable subscriptions of the old ones, from their beginning."""
        if not name.is_persistent or old_end >= end:
            return
        wanted: dict[str, _Copied] = {}
        for index in range(old_end):
            if not await self.exists(name.partition(index)):
                continue  # deleted by itself; loading would bring it back
            found = await self._durable_subscriptions(name.partition(index))
            wanted = found | wanted

        async def copy(part: TopicName) -> None:
            for subscription, copied in wanted.items():
                await self._create_subscription(part, subscription, *copied)

        if wanted:
            await self._each(name, range(old_end, end), copy)

    async def _durable_subscriptions(self, name: TopicName) -> dict[str, _Copied]:
        async def here() -> dict[str, _Copied]:
            topic = await self._service.loader.load(name, create=False)
            return {
                each.name: (dict(each.properties), each.replicated)
                for each in topic.subscriptions.values()
                if each.durable
            }

        call = BrokerCall("GET", topic_path(name, "/stats"), "excludeConsumers=true")
        asking = self._service.broker_client.on_owner(name, here, lambda: call)
        found: dict[str, Any] = await asking
        if "subscriptions" not in found or "msgRateIn" not in found:
            return found
        return {  # TopicStats of another broker
            subscription: (
                dict(stats.get("subscriptionProperties") or {}),
                bool(stats.get("isReplicated")),
            )
            for subscription, stats in found["subscriptions"].items()
            if stats.get("isDurable", True)
        }

    async def _create_subscription(
        self, name: TopicName, subscription: str, properties: Mapping[str, str], replicated: bool
    ) -> None:
        async def here() -> None:
            topic = await self._service.loader.load(name, create=True)
            with suppress(AlreadyExistsError):  # its client was faster
                made = await topic.create_subscription(subscription, EARLIEST, properties)
                if replicated:
                    await made.set_replicated(True)

        ledger_id, entry_id = EARLIEST
        body = {"ledgerId": ledger_id, "entryId": entry_id, "properties": dict(properties)}
        path = topic_path(name, "/subscription/" + quote(quote(subscription, safe=""), safe=""))
        call = BrokerCall("PUT", path, "replicated=true" if replicated else "", body)
        await self._create_at_owner(name, here, call)

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete all partitions, then the record. Raises TopicNotFoundError, TopicBusyError."""
        if (count := await self.partitions(name)) is None:
            raise TopicNotFoundError(f"Partitioned Topic {name} not found")
        if not force:  # all or nothing, as far as can be seen beforehand
            await self._each(name, range(count), self._check_unused_anywhere)

        async def delete(part: TopicName) -> None:
            call = BrokerCall("DELETE", topic_path(part), f"force={str(force).lower()}")
            try:
                await self._service.broker_client.on_owner(
                    part, lambda: self.delete(part, force=force), lambda: call
                )
            except TopicNotFoundError:
                pass  # never used, or deleted by an attempt before
            except BrokerRefusedError as error:
                if error.http_status != _NOT_FOUND:
                    raise

        await self._each(name, range(count), delete)
        await self._service.resources.delete_partitioned(name)
        await self.forget(name)

    async def _check_unused_anywhere(self, name: TopicName) -> None:
        """Raises TopicBusyError: a broker serves clients of the topic."""
        if (topic := self._service.topics.get(str(name))) is not None:
            _check_unused(topic)
            return
        broker_client = self._service.broker_client
        owner = await broker_client.other_owner(await self._service.bundles.bundle_of(str(name)))
        if owner is None or (name.is_persistent and not await self.exists(name)):
            return
        call = BrokerCall("GET", topic_path(name, "/stats"))
        try:
            stats = await broker_client.ask(BrokerEndpoint.of(owner), call)
        except BrokerRefusedError as error:
            if error.http_status == _NOT_FOUND:
                return
            raise
        if stats["publishers"] or any(
            each["consumers"] for each in stats["subscriptions"].values()
        ):
            raise TopicBusyError("Topic has active producers/subscriptions")

    async def forget(self, name: TopicName) -> None:
        """Forget the policies and the grants of a topic that is gone, and its schema.

        The schema stays while the topic of the same name in the other domain uses it.
        Pulsar drops it all the same: a volatile topic's end would make stored messages unreadable.
        """
        resources = self._service.resources
        await resources.delete_topic_policies(name)
        policies = await resources.policies(name.namespace)
        if policies is not None and topic_permissions.holds_grants(policies.document, name):
            await resources.update_policies(
                name.namespace, lambda before: topic_permissions.without(before, name)
            )
        other = "non-persistent" if name.is_persistent else "persistent"
        counterpart = TopicName.parse(f"{other}://{name.namespace}/{name.local}")
        if (
            await self.exists(counterpart)
            or await self._service.resources.partitioned(counterpart) is not None
        ):
            return
        await self._service.schemas.drop(name)

    async def _check_namespace(self, name: TopicName) -> None:
        if not await self._service.resources.namespace_exists(name.namespace):
            raise NamespaceNotFoundError("Namespace not found")
