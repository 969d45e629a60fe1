"""How this broker shares the work of its cluster: ``loadbalance`` and ``bundles`` put together.

It chooses brokers for bundles without an owner, moves bundles to them by orders
(bundles/bundle_commands.py) and measures this broker's load. A process that serves alone has none
of it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from magnetar.broker.cluster.broker_connection import BrokerPeerNetwork
from magnetar.broker.cluster.bundle_load import split_points
from magnetar.broker.cluster.load_report import load_report
from magnetar.broker.cluster.peer_failure_detector import PeerFailureDetector
from magnetar.broker.errors import BrokerError
from magnetar.broker.migration.marker import check_may_serve
from magnetar.bundles.bundle_commands import BundleCommand, BundleCommandQueue
from magnetar.bundles.errors import BundleError, BundleNotReadyError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import Redirect
from magnetar.loadbalance.documents import broker_load_of
from magnetar.loadbalance.leader_tasks import UnloadCallbacks
from magnetar.loadbalance.manager import LoadManager, NoCandidateError
from magnetar.loadbalance.model import BrokerLoad, Move, ResourceUsage, Split
from magnetar.loadbalance.policies import pinned_broker
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger(__name__)

_ORDER_S: Final = 90.0
"""Until an order without an answer is taken back: more than unloading may take."""
READS_CHUNKS: Final = "readsLedgerListsInChunks"
"""Property of a registered broker; earlier releases don't have it."""
_NAME_GRACE_S: Final = 5.0
_TAKEN_S: Final = 2.0
"""For the new owner to have a bundle; a broker that stops does not wait for long."""
_AT_ONCE: Final = 16
"""Bundles that are given away by a broker that stops."""


class LoadSharing:
    """Life: construct, ``start`` once the service has its URLs, ``leave``, ``close``."""

    def __init__(self, service: BrokerService, version: str) -> None:
        self._service, self._version = service, version
        self.manager = LoadManager(
            service.store,
            service.cluster,
            service.config,
            self._measure,
            UnloadCallbacks(self._move, self._split_elsewhere, self._bundle_count),
        )
        self.orders: BundleCommandQueue
        self._failure_detector: PeerFailureDetector | None = None
        self._following: asyncio.Task[None] | None = None
        self._is_draining = False
        self._walked: BrokerLoad | None = None
        self._walked_s = 0.0
        self._on_chunks_read(False)  # until the others are known

    async def start(self) -> None:
        """Be a candidate for bundles, and for the lead.

        Raises:
            MetadataError: the store can't tell, or another broker has this one's web address.
            MigrationError: the cluster is given to Pulsar's brokers.
        """
        service = self._service
        self.orders = BundleCommandQueue(
            *(service.store, service.bundles, service.broker_id),
            *(self.find, self._split, self._accepts),
        )
        session_s = service.config.metadata_store_session_timeout_millis / 1000
        await self.manager.start(session_s + _NAME_GRACE_S)
        # Again: a swap that begins now sees this broker, one that began before is seen here.
        await check_may_serve(service.store)
        self._following = asyncio.get_running_loop().create_task(
            self.manager.registry.follow_property(READS_CHUNKS, self._on_chunks_read)
        )
        if service.config.broker_peer_failure_detection_enabled:
            self._failure_detector = PeerFailureDetector(
                service.store, service.broker_id, service.bundles.broker, BrokerPeerNetwork(service)
            )
            self._failure_detector.start()

    def _on_chunks_read(self, are_read: bool) -> None:
        self._service.ledgers.are_chunks_read = are_read

    async def stop_failure_detection(self) -> None:
        """Before the ports are closed: the others shall not take this broker for dead."""
        if self._failure_detector is not None:
            await self._failure_detector.leave()

    async def hand_over(self) -> None:
        """Take no more bundles, and give each that is here to another broker, which its clients are
        told. What no broker can have stays, for ``leave``.

        Ends early when the store doesn't answer: then nothing can be given.
        """
        self._is_draining = True
        self.orders.refuse()
        try:
            await self.manager.begin_drain()
            refused: set[str] = set()
            while left := set(self._service.bundles.owned_bundles) - refused:
                turns = asyncio.Semaphore(_AT_ONCE)
                await asyncio.gather(*(self._hand_over_one(each, turns, refused) for each in left))
        except (BundleError, MetadataError) as error:
            logger.warning("bundles are left to whoever finds them: %s", error)

    async def _hand_over_one(
        self, bundle: str, turns: asyncio.Semaphore, refused: set[str]
    ) -> None:
        async with turns:
            new_owner = await self.manager.assigned_broker(bundle)
            if new_owner is not None:
                command = BundleCommand(
                    bundle, self._service.broker_id, new_owner, epoch=await self._epoch()
                )
                if await self.orders.hand_over(command, _TAKEN_S):
                    return
            refused.add(bundle)

    async def leave(self) -> None:
        """Get no more bundles; those that are here stay until the service gives them up."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
        await self.manager.leave()

    async def close(self) -> None:
        await self.orders.close()
        await self.manager.close()

    # --- whose bundle it is

    async def choose(self, bundle: str, *, alone: bool = False) -> Redirect | None:
        """The broker to ask about a bundle without an owner; None: this broker shall own it.

        Args:
            alone: decide here, as when there is no leader.
        Raises:
            BundleNotReadyError: no broker may own it now, or that can't be told.
        """
        try:
            promised_to = self.orders.promised_to(bundle)
            referral = await self.manager.choose(bundle, promised_to, alone=alone)
        except (NoCandidateError, MetadataError) as error:
            raise BundleNotReadyError(bundle, str(error)) from error
        if referral is None:
            return None
        return Redirect(bundle, _lookup_of(referral.broker), referral.authoritative)

    async def find(self, broker_id: str) -> BrokerLookup | None:
        """A live broker; None: it isn't live. Raises MetadataError."""
        load = (await self.manager.registry.live()).get(broker_id)
        return None if load is None else _lookup_of(load)

    async def give_away(self, bundle: str, destination: str) -> bool:
        """Unload an owned bundle to another live broker; whether it left.

        Raises:
            MetadataError: the store can't tell.
        """
        command = BundleCommand(
            bundle, self._service.broker_id, destination, epoch=await self._epoch()
        )
        return await self.orders.give(command, _ORDER_S)

    # --- where the leader alone decides

    @property
    def _by_epoch(self) -> bool:
        return self._service.config.load_balancer_leader_epoch_enabled

    async def permit(self, bundle: str) -> None:
        """Whether this broker may take a bundle without an owner: as the leader has assigned it.

        Raises:
            BundleNotReadyError: it may not, or that can't be told.
        """
        broker_id = self._service.broker_id
        if not self._by_epoch or pinned_broker(bundle.rpartition("/")[0]) == broker_id:
            return
        try:
            if await self.manager.leader_epoch.is_assigned(bundle, broker_id):
                return
        except MetadataError as error:
            raise BundleNotReadyError(bundle, str(error)) from error
        raise BundleNotReadyError(bundle, "the leader hasn't assigned it to this broker")

    async def _accepts(self, epoch: int) -> bool:
        return not self._by_epoch or await self.manager.leader_epoch.is_current(epoch)

    async def _epoch(self) -> int:
        """For what an operator orders at the owner."""
        return await self.manager.leader_epoch.current() if self._by_epoch else 0

    # --- what a leader orders

    async def _move(self, move: Move) -> bool:
        command = BundleCommand(move.bundle, move.source, move.target or "", epoch=move.epoch)
        try:
            return await self.orders.give(command, _ORDER_S)
        except BundleError as error:
            logger.warning("%s: %s", command, error)
            return False

    async def _split_elsewhere(self, split: Split) -> bool:
        command = BundleCommand(
            *(split.bundle, split.owner),
            algorithm=split.algorithm,
            unload=split.unload,
            epoch=split.epoch,
        )
        try:
            await self.orders.give(command, _ORDER_S)
            namespace = split.bundle.rpartition("/")[0]
            return split.bundle not in (await self._service.bundles.bundles(namespace)).names
        except (BundleError, MetadataError) as error:
            logger.warning("%s: %s", command, error)
            return False

    async def _bundle_count(self, namespace: str) -> int | None:
        try:
            return len(await self._service.bundles.bundles(namespace))
        except BundleError:
            return None

    async def _split(self, bundle: str, algorithm: str, unload: bool) -> None:
        """A bundle of this broker's."""
        service = self._service
        namespace, _, name = bundle.rpartition("/")
        bundles = await service.bundles.bundles(namespace)
        found = bundles.find(name)
        try:
            points = await split_points(service, bundles, found, algorithm, ())
        except BrokerError as error:
            raise BundleNotReadyError(bundle, str(error)) from error
        parts = await service.bundles.split(namespace, found, points)
        self.manager.reporter.report_soon()
        if unload and len(parts) > 1:
            for part in parts:
                await service.bundles.release(part)

    # --- this broker's load

    async def _measure(self) -> BrokerLoad:
        service = self._service
        now_s = service.loop.time()
        # All loaded topics are looked at as often as their rates change.
        walk_s = service.config.stats_update_frequency_in_secs
        if self._walked is None or now_s - self._walked_s >= walk_s:
            document = await load_report(service, service.host_usage, self._version)
            self._walked = broker_load_of(service.broker_id, document)
            self._walked_s = now_s
            load = self._walked
        else:
            host = service.host_usage.sample()
            load = replace(
                self._walked,
                cpu=ResourceUsage(**host["cpu"]),
                memory=ResourceUsage(**host["memory"]),
                bandwidth_in=ResourceUsage(**host["bandwidthIn"]),
                bandwidth_out=ResourceUsage(**host["bandwidthOut"]),
                last_update_ms=service.wall_clock(),
                topics=len(service.topics),
                bundles=sorted(service.bundles.owned_bundles),
            )
        # As the nodes of its bundles name it, so that both can be compared.
        own = service.bundles.broker
        return replace(
            load,
            web_service_url=own.http_url or "",
            web_service_url_tls=own.http_url_tls or "",
            pulsar_service_url=own.broker_url or "",
            pulsar_service_url_tls=own.broker_url_tls or "",
            advertised_listeners=own.advertised_listeners,
            incarnation=own.incarnation,
            draining=self._is_draining,
            properties={READS_CHUNKS: "true"},
        )


def _lookup_of(load: BrokerLoad) -> BrokerLookup:
    return BrokerLookup(
        load.pulsar_service_url or None,
        load.pulsar_service_url_tls or None,
        load.web_service_url or None,
        load.web_service_url_tls or None,
        load.advertised_listeners,
    )
