"""The coordinators of transactions that this broker has.

Coordinator i is where partition i of ``ASSIGN_TOPIC`` is, as in Pulsar. Nothing is stored there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.cluster.broker_connection import BrokerConnections
from magnetar.broker.errors import (
    AlreadyExistsError,
    BrokerError,
    CoordinatorNotFoundError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.access_control import roles_of
from magnetar.broker.topic.ledger_settings import ledger_config
from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
from magnetar.broker.transaction.coordinator import UINT64, Coordinator
from magnetar.broker.transaction.coordinator_metrics import CoordinatorsMetrics
from magnetar.bundles.errors import BundleError

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.topic import Topic
    from magnetar.broker.transaction.async_coordinator import OnEnded
    from magnetar.broker.transaction.transaction_id import TransactionId

logger = logging.getLogger(__name__)

ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
_COORDINATORS: Final = 16


class TransactionCoordinators:
    """Opened when a client, or any broker, connects to one; closed with the bundle of its
    partition.

    Attributes:
        failures: why the last opening failed, by number.
        metrics: of all of them since the broker's start.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._topic = TopicName.parse(ASSIGN_TOPIC)
        self._open: dict[int, AsyncCoordinator] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self.failures: dict[int, str] = {}
        self.metrics = CoordinatorsMetrics()
        self._connections = BrokerConnections(service)
        proxies = roles_of(service.config.proxy_roles)
        superusers = roles_of(service.config.super_user_roles)
        self._superuser = next((role for role in superusers if role not in proxies), None)

    async def create_topic(self) -> None:
        """Store how many coordinators the cluster has, unless that is stored."""
        count = 1 if self._service.sharing is None else _COORDINATORS
        with suppress(AlreadyExistsError):
            await self._service.resources.create_partitioned(self._topic, count)

    async def count(self) -> int:
        """How many the cluster has. Raises MetadataError."""
        stored = await self._service.resources.partitioned(self._topic)
        return 0 if stored is None else int(stored["partitions"])

    async def grow(self, count: int) -> None:
        """Raises NotAllowedError: there are as many already; MetadataError."""

        def change(stored: dict[str, Any]) -> dict[str, Any]:
            if count <= stored["partitions"]:
                raise NotAllowedError(
                    "Number of transaction coordinators should be more than the current number of"
                    " transaction coordinator"
                )
            return {**stored, "partitions": count}

        await self._service.resources.update_partitioned(self._topic, change)

    def partition(self, number: int) -> TopicName:
        """Where it is served, the coordinator is."""
        return self._topic.partition(number)

    def get(self, number: int) -> AsyncCoordinator:
        """Raises CoordinatorNotFoundError: it isn't open here; a client connects to it first."""
        found = self._open.get(number)
        if found is None or found.is_closed:
            raise CoordinatorNotFoundError(f"Coordinator {number} of transactions isn't here")
        return found

    def opened(self) -> dict[int, AsyncCoordinator]:
        """Those that are open here, by number."""
        return {number: each for number, each in self._open.items() if not each.is_closed}

    def times_of(self, transaction: TransactionId) -> tuple[int, int] | None:
        """See `Coordinator.times_of`; None also if the coordinator isn't open here."""
        found = self._open.get(transaction.most)
        if found is None or found.is_closed:
            return None
        return found.core.times_of(transaction.least)

    async def connect(self, number: int) -> None:
        """Open it here, if its partition is here.

        Raises:
            CoordinatorNotFoundError: there are fewer.
            ServiceNotReadyError: another broker has it, or is about to.
            PersistenceError: its log.
        """
        if number >= await self.count():
            raise CoordinatorNotFoundError(f"There is no coordinator {number} of transactions")
        try:
            await self._service.bundles.ensure_owned(str(self.partition(number)))
        except BundleError as error:
            raise ServiceNotReadyError(str(error)) from error
        found = self._open.get(number)
        if found is None or found.is_closed:
            task = self._opening.get(number)
            if task is None:
                task = asyncio.get_running_loop().create_task(self._load(number))
                self._opening[number] = task
                task.add_done_callback(lambda _: self._opening.pop(number, None))
            await asyncio.shield(task)

    async def connect_anywhere(self, number: int) -> None:
        """Have it opened at the broker that has its partition.

        Else it would wait for a client, and what it has open would not time out before.

        Raises:
            BrokerError: nobody has opened it.
        """
        CALLER.set(self._superuser)  # as in ``_end``
        peer = await self._service.broker_client.serving(self.partition(number))
        if peer is None:
            await self.connect(number)
            return
        connection = await self._connections.to(peer)
        await connection.call(pb.CommandTcClientConnectRequest(tc_id=number))

    async def _load(self, number: int) -> None:
        service = self._service
        if (failed := self._open.pop(number, None)) is not None:
            await failed.close_log()  # what it appended last may be stored, or not
        policies = await service.policies.of(self._topic)
        coordinator = AsyncCoordinator(
            Coordinator(number, service.config.max_active_transactions_per_coordinator),
            self,
            service.clock,
            service.run,
            self.metrics,
        )
        try:
            config = ledger_config(service, policies, self._topic)
            await coordinator.open(service.ledgers, config, number)
        except BrokerError as error:
            self.failures[number] = str(error)
            raise
        self.failures.pop(number, None)
        if not service.bundles.owns_nowait(str(self.partition(number))):
            coordinator.close()  # it moved while its log was read
            await coordinator.close_log()
            raise ServiceNotReadyError(f"Coordinator {number} of transactions is moving")
        self._open[number] = coordinator
        logger.info("coordinator %d: %d transactions are open", number, len(coordinator.core))

    async def unload_bundle(self, bundle: str) -> None:
        """Close those whose partitions are in it."""
        for number in list(self._open):
            if self._service.bundles.bundle_of_nowait(str(self.partition(number))) == bundle:
                await self._close(number)

    async def close(self) -> None:
        self._connections.close()
        for number in list(self._open):
            await self._close(number)

    async def _close(self, number: int) -> None:
        coordinator = self._open.pop(number)
        coordinator.close()
        await coordinator.close_log()

    # --- participants

    def end_nowait(
        self,
        participant: tuple[str, ...],
        transaction: TransactionId,
        done: OnEnded,
        *,
        commit: bool,
        low_watermark: int,
    ) -> bool:
        """See `Participants`."""
        if (topic := self._service.topics.get(participant[0])) is None:
            return False
        found = topic.participant(participant[1] if len(participant) > 1 else None)
        return found is not None and found.end_nowait(
            transaction, low_watermark, done, commit=commit
        )

    async def end_partition(
        self, topic: str, transaction: TransactionId, *, commit: bool, low_watermark: int
    ) -> None:
        """See `Participants`."""
        command = pb.CommandEndTxnOnPartition(
            topic=topic,
            txnid_most_bits=transaction.most,
            txnid_least_bits=transaction.least,
            txn_action=pb.COMMIT if commit else pb.ABORT,
            txnid_least_bits_of_low_watermark=low_watermark & UINT64,
        )
        await self._end(
            topic,
            command,
            lambda found: found.end_transaction(transaction, low_watermark, commit=commit),
        )

    async def end_subscription(
        self,
        topic: str,
        subscription: str,
        transaction: TransactionId,
        *,
        commit: bool,
        low_watermark: int,
    ) -> None:
        """See `Participants`."""
        command = pb.CommandEndTxnOnSubscription(
            subscription=pb.Subscription(topic=topic, subscription=subscription),
            txnid_most_bits=transaction.most,
            txnid_least_bits=transaction.least,
            txn_action=pb.COMMIT if commit else pb.ABORT,
            txnid_least_bits_of_low_watermark=low_watermark & UINT64,
        )
        await self._end(
            topic,
            command,
            lambda found: found.end_acknowledgements(
                subscription, transaction, low_watermark, commit=commit
            ),
        )

    async def _end(
        self,
        topic: str,
        command: pb.CommandEndTxnOnPartition | pb.CommandEndTxnOnSubscription,
        end: Callable[[Topic], Awaitable[None]],
    ) -> None:
        """Here, or by the command where the topic is."""
        name = TopicName.parse(topic)
        # Not that of an HTTP request which ends the transaction: superusers alone may do this. A
        # proxy's role can't speak for itself.
        CALLER.set(self._superuser)
        peer = await self._service.broker_client.serving(name)
        if peer is not None:
            connection = await self._connections.to(peer)
            await connection.call(command)
            return
        if (found := await self._service.loader.load_stored(name)) is not None:
            await end(found)
