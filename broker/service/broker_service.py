"""The broker itself: its connections, its loaded topics, their loading, creation and deletion."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.loop_stalls import LoopStalls
from magnetar.broker.advertised_listeners import address_of, parse_listeners
from magnetar.broker.cluster.broker_client import BrokerClient
from magnetar.broker.cluster.bundle_load import BundleLoads
from magnetar.broker.cluster.cluster_members import ClusterMembers
from magnetar.broker.cluster.load_report import HostUsage
from magnetar.broker.compaction.compaction_places import CompactionPlaces
from magnetar.broker.config import BrokerConfig, without_effect
from magnetar.broker.connection.command_authorizer import CommandAuthorizer
from magnetar.broker.connection.command_turns import CommandTurns
from magnetar.broker.connection.connection import Connection
from magnetar.broker.connection.receive_buffer import SharedBuffer
from magnetar.broker.connection.send_path import SendMessages
from magnetar.broker.dispatch.async_turn_queue import AsyncTurnQueue
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.dispatch.unsent_budget import UnsentBudget
from magnetar.broker.doctor.doctor import Doctor
from magnetar.broker.index.broker_index import BrokerIndex
from magnetar.broker.index.figure_recorder import FigureRecorder
from magnetar.broker.listener.file_limit import SocketQuota, binary_sockets_max
from magnetar.broker.listener.pre_auth_acceptor import PreAuthAcceptor
from magnetar.broker.listener.tls import TlsListener, listening_socket
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter
from magnetar.broker.protocol.chunks import ByteBudget
from magnetar.broker.protocol.decoded_entries import DecodedEntries
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter, RateLimiter, broker_limiter
from magnetar.broker.resources.cluster_documents import ClusterDocuments
from magnetar.broker.resources.resources import Resources
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.service.access_control import AccessControl
from magnetar.broker.service.background_tasks import BackgroundTasks
from magnetar.broker.service.bookie_access import BookieAddressResolver
from magnetar.broker.service.bookie_cluster import BookieCluster
from magnetar.broker.service.dynamic_configuration import DynamicConfiguration
from magnetar.broker.service.metrics import BrokerMetrics
from magnetar.broker.service.periodic_tasks import PeriodicTasks
from magnetar.broker.service.policy_watcher import PolicyWatcher
from magnetar.broker.service.readiness import Readiness
from magnetar.broker.service.transaction_coordinators import TransactionCoordinators
from magnetar.broker.service.virtual_clock import VirtualClock
from magnetar.broker.topic.loaded_topics import LoadedTopics
from magnetar.broker.topic.topic_directory import TopicDirectory
from magnetar.broker.topic.topic_list import TopicListWatchers
from magnetar.broker.topic.topic_loader import TopicLoader
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OwnershipService
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.recipes import IdGenerator
from magnetar.metadata.store import MetadataStore

if TYPE_CHECKING:
    from magnetar.broker.auth.authenticator import Authenticator
    from magnetar.broker.cluster.load_sharing import LoadSharing
    from magnetar.broker.http.messaging.local_producer import LocalProducer

logger = logging.getLogger(__name__)

_CONNECTION_IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""Published bytes of one connection that may wait for storage before its reads pause."""

_CHUNK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Incomplete chunked messages of all clients of HTTP and WebSocket."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _authenticator_of(config: BrokerConfig) -> Authenticator | None:
    """Raises ConfigError."""
    if not config.authentication_enabled:
        return None
    # Imported here: its libraries take longer to load than all the rest of this package.
    from magnetar.broker.auth.authenticator import Authenticator

    return Authenticator.of_config(config)


def _unacked_budget(config: BrokerConfig) -> UnackedBudget | None:
    limit = config.max_unacked_messages_per_broker
    share = config.max_unacked_messages_per_subscription_on_broker_blocked
    return UnackedBudget(limit, share) if limit > 0 and share > 0 else None


def _limiters_of(
    config: BrokerConfig,
) -> tuple[SocketQuota, UnauthenticatedLimiter, dict[str, UnauthenticatedLimiter]]:
    """Of the plain binary port; and the limiters of the other ports, by name, once they are
    open."""
    most = binary_sockets_max(config.broker_max_connections, config.max_http_server_connections)
    quota = SocketQuota("binary protocol", most)
    return quota, UnauthenticatedLimiter(config.max_unauthenticated_connections), {}


class BrokerService:
    """Everything a connection, an HTTP call or a WebSocket asks of this broker.

    Life: construct on the loop, ``listen``, ``start`` (now requests are served), ``close``.
    """

    connection_type: type[Connection] = Connection
    """What serves a client of the binary protocol; tests of clients have it make faults."""
    service_url = web_url = broker_id = ""
    service_url_tls = web_url_tls = ""  # "": not served over TLS
    has_started = False
    """Whether ``bundles`` is there; HTTP listens some moments earlier."""
    ready = False
    lookups = 0
    """LOOKUP-class requests under way."""
    bundles: OwnershipService  # set by start: it needs the URLs
    request_shutdown: Callable[[], None] | None = None
    """Ends the process in an orderly way; None where the process isn't this broker's."""
    bookie: Bookie | None = None
    """The one in this process, for its metrics; None: bookies are elsewhere."""
    process_name = ""
    """Which of several processes with one log and one page of metrics; "": it is alone."""
    other_metrics: Callable[[], Awaitable[list[bytes]]] | None = None
    """Pages of processes whose series this one's page has, too."""
    bookie_cluster: BookieCluster | None = None
    """What topics are stored on; None: not known."""
    bookie_directory: BookieAddressResolver | None = None
    """For readers in other processes; None: they can reach no bookie."""
    transactions: TransactionCoordinators | None = None
    """Those that this broker has; None: transactions are off."""
    sharing: LoadSharing | None = None
    """With the other brokers of a cluster; None: this one serves alone."""
    loop_stalls: LoopStalls | None = None
    """Set: its loop's turns are looked at."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MetadataStore,
        ledgers: ManagedLedgerFactory,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        virtual_clock: VirtualClock | None = None,
    ) -> None:
        self.config, self.store, self.ledgers = config, store, ledgers
        self.wall_clock, self.virtual_clock = clock, virtual_clock
        """Milliseconds since 1970, for what is agreed with others: keep-alive, credentials."""
        self.clock = clock if virtual_clock is None else virtual_clock.now_ms
        """The same for what happens to messages, subscriptions and topics: tests may advance it."""
        self.cluster, self.loop = config.cluster_name, (loop := asyncio.get_running_loop())
        self.resources = Resources(store, config)
        self.schemas = SchemaRegistry(store, self.clock)
        self.dynamic_configuration = DynamicConfiguration(store, config, self.apply_config)
        self.cluster_documents, self.cluster_members = ClusterDocuments(store), ClusterMembers(self)
        self.host_usage, self.metrics = HostUsage(), BrokerMetrics()
        # Finds the roles of clients; None: authentication is off, and they have none.
        self.authenticator = _authenticator_of(config)
        self.readiness, self.doctor, self.loads = Readiness(self), Doctor(self), BundleLoads(self)
        self.topics = LoadedTopics()
        """Loaded topics by full name; only the loader changes it."""
        self.policies = PolicyWatcher(store, self.resources, self.topics, config)
        self.loader, self.broker_client = TopicLoader(self), BrokerClient(self)
        self.directory, self.index = TopicDirectory(self), BrokerIndex(self)
        self.figure_recorder = FigureRecorder(self.metrics.publish)
        self.watchers = TopicListWatchers(self.resources, self.directory)
        header = make_header if virtual_clock is None else virtual_clock.make_header
        self.shared_buffer, self.send_messages = SharedBuffer(), SendMessages(header)
        self.command_turns, self.dispatch_turns = CommandTurns(loop), AsyncTurnQueue(loop)
        self.chunk_bytes, self.compaction_places = (
            ByteBudget(_CHUNK_BYTES_MAX),
            CompactionPlaces(self._compaction_rate),
        )
        self.keep_alive_ms = config.keep_alive_interval_seconds * 1000
        ledgers.append_budget.on_relief = self._resume_publishers
        self._size_publish_buffer(config)
        self.connection_in_flight_max = min(
            _CONNECTION_IN_FLIGHT_BYTES, max(1, ledgers.append_budget.bytes_max // 2)
        )
        self.publish_throttle = broker_limiter(
            PublishRateLimiter,
            config.broker_publisher_throttling_max_message_rate,
            config.broker_publisher_throttling_max_byte_rate,
        )
        """Of everything that is published here; None: no limit."""
        self.dispatch_throttle = broker_limiter(
            RateLimiter,
            config.dispatch_throttling_rate_in_msg,
            config.dispatch_throttling_rate_in_byte,
        )
        # The first is None without a limit.
        self.unacked_budget, self.unsent_budget = _unacked_budget(config), UnsentBudget()
        self.connections: set[Connection] = set()
        # What clients may do; None: authorization is off, and they may everything.
        self.access: AccessControl | None = None
        self.command_authorizer: CommandAuthorizer | None = None
        if config.authorization_enabled:
            self.access = AccessControl(config, store, self.resources, self.connections)
            self.command_authorizer = CommandAuthorizer(self.access)
        self._quota, self.unauthenticated_limiter, self.limiters = _limiters_of(config)
        self._connections_per_ip, self.decoded_entries = Counter[str](), DecodedEntries()
        self._paused: set[Connection | LocalProducer] = set()  # for the process's publish buffer
        self._tasks: set[asyncio.Task[Any]] = set()
        self._servers: list[asyncio.Server | PreAuthAcceptor] = []
        self.background_tasks, self.periodic_tasks = BackgroundTasks(self), PeriodicTasks(self)
        self._producer_names, self._name_prefix = itertools.count(), ""

    # --- time

    def monotonic_s(self) -> float:
        """Seconds that steps of the wall clock don't change; they pass with ``clock`` in tests."""
        ahead_ms = 0 if self.virtual_clock is None else self.virtual_clock.ahead_ms
        return self.loop.time() + ahead_ms / 1000

    def stamped_ms(self, client_ms: int) -> int:
        """What ``clock`` told when the clocks of clients told ``client_ms``."""
        return client_ms if self.virtual_clock is None else self.virtual_clock.stamped_ms(client_ms)

    # --- life

    async def listen(self, host: str, port: int) -> int:
        """Serve the binary protocol; returns the port (0 picks a free one)."""
        if self.authenticator is not None:
            return self._listen_unauthenticated(self.authenticator, host, port)
        try:
            server = await self.loop.create_server(
                lambda: self.connection_type(self), host, port, backlog=1024, reuse_address=True
            )
        except OSError as error:
            number = error.errno or 0  # negative: the name can't be resolved
            reason = os.strerror(number) if number > 0 else error.strerror
            raise OSError(error.errno, f"{reason}: binary protocol on {host}:{port}") from error
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        self.service_url = f"pulsar://{self.config.advertised_host}:{bound}"
        return bound

    def _listen_unauthenticated(self, authenticator: Authenticator, host: str, port: int) -> int:
        """The same, of clients that must authenticate before they get a connection."""
        from magnetar.broker.connection.binary_pre_auth import (
            BinaryPreAuth,  # loaded with the authenticator
        )

        def admits(pending_sockets: int) -> bool:
            return self._quota.admits(len(self.connections) + pending_sockets)

        listener = listening_socket(host, port, "binary protocol")
        acceptor = BinaryPreAuth(self, authenticator, admits)
        self._servers.append(acceptor)
        bound = acceptor.listen(listener, backlog=1024)
        self.service_url = f"pulsar://{self.config.advertised_host}:{bound}"
        return bound

    async def listen_tls(self, host: str, port: int) -> int:
        """Serve it over TLS as well; returns the port (0 picks a free one).

        Raises:
            OSError: the port. ConfigError: the certificate, its key or another setting of TLS.
        """
        listener = TlsListener(self.config, lambda: self.connection_type(self), backlog=1024)
        bound = await listener.start(host, port, "binary protocol over TLS")
        self.limiters["pulsar+ssl"] = listener.limiter
        self._servers.append(listener)
        self.service_url_tls = f"pulsar+ssl://{self.config.advertised_host}:{bound}"
        return bound

    async def start(self, web_port: int | None = None, web_port_tls: int | None = None) -> None:
        """Bootstrap tenants and namespaces; from here on requests are served.

        Args:
            web_port: where HTTP listens; None: as configured; -1: nowhere.
            web_port_tls: where HTTPS listens; None: nowhere.
        """
        host = self.config.advertised_host
        port = self.config.web_service_port if web_port is None else web_port
        if port >= 0:
            self.web_url = f"http://{host}:{port}"
        if web_port_tls is not None:
            self.web_url_tls = f"https://{host}:{web_port_tls}"
        self.broker_id = (self.web_url or self.web_url_tls).partition("//")[2]
        urls = {
            "serviceUrl": self.web_url,
            "serviceUrlTls": self.web_url_tls,
            "brokerServiceUrl": self.service_url,
            "brokerServiceUrlTls": self.service_url_tls,
        }
        await self.resources.bootstrap(
            self.cluster,
            {name: url for name, url in urls.items() if url},
            self.config.default_number_of_namespace_bundles,
        )
        await self.dynamic_configuration.renew()
        if self.config.transaction_coordinator_enabled:
            self.transactions = TransactionCoordinators(self)
            await self.transactions.create_topic()
        instance = await IdGenerator(self.store, "/counters/producer-name", block=1).next_id()
        self._name_prefix = f"{self.cluster}-{instance}"
        self.bundles = OwnershipService(
            self.store,
            self._own_lookup(instance + 1),
            unload=self._unload_bundle,
            choose=None if self.sharing is None else self.sharing.choose,
            permit=None if self.sharing is None else self.sharing.permit,
            default_bundle_count=self.config.default_number_of_namespace_bundles,
        )
        self.has_started = True
        self.periodic_tasks.start()
        if self.authenticator is not None:
            self.authenticator.start()
        elif warning := without_effect(self.config):
            logger.warning("%s", warning)
        self.ready = True  # before others send clients here
        if self.sharing is not None:
            await self.sharing.start()
        logger.info("broker %s serves %s", self.broker_id, self.cluster)

    async def _unload_bundle(self, bundle: str) -> None:
        if self.transactions is not None:
            await self.transactions.unload_bundle(bundle)
        await self.loader.unload_bundle(bundle)

    def _own_lookup(self, incarnation: int) -> BrokerLookup:
        """What lookups of our topics answer."""
        listeners = parse_listeners(self.config.advertised_listeners)

        def reached(scheme: str, otherwise: str) -> str | None:
            internal = self.config.internal_listener_name
            return address_of(listeners, internal, scheme) or otherwise or None

        return BrokerLookup(
            reached("pulsar", self.service_url),
            reached("pulsar+ssl", self.service_url_tls),
            reached("http", self.web_url),
            reached("https", self.web_url_tls),
            listeners,
            incarnation,
        )

    async def drain(self) -> None:
        """Give the bundles to other brokers, if there are any; all that is here is served on."""
        self.readiness.is_draining = True
        if self.ready and self.sharing is not None:
            await self.sharing.hand_over()

    async def close(self) -> None:
        """Stop listening, unload every topic, release the bundles, close every connection."""
        was_ready, self.ready = self.ready, False
        if was_ready and self.sharing is not None:
            await self.sharing.stop_failure_detection()
        for server in self._servers:
            server.close()
        self.periodic_tasks.close()
        self.readiness.close()
        self.doctor.close()
        self.loads.close()
        self.watchers.close()
        if was_ready and self.sharing is not None:
            await self.sharing.leave()  # what is unloaded from now on goes to others
            await self.bundles.close()  # each bundle as soon as its own topics are closed
        if self.transactions is not None:
            await self.transactions.close()
        await self.loader.close()
        if was_ready:
            await self.bundles.close()
            if self.sharing is not None:
                await self.sharing.close()
        for connection in list(self.connections):
            connection.close("broker is stopping")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker_client.close()
        if self.authenticator is not None:
            self.authenticator.close()
        if self.access is not None:
            self.access.close()
        self.dynamic_configuration.close()
        self.policies.close()
        self.resources.close()
        self.schemas.close()

    async def apply_config(self, config: BrokerConfig) -> None:
        """Go on with other settings; only the dynamic ones may differ."""
        self.config = config
        self._size_publish_buffer(config)
        await self.policies.config_changed(config)
        if self.sharing is not None:
            self.sharing.manager.reconfigure(config)

    def _compaction_rate(self) -> int:
        """Bytes a second; 0: any."""
        return self.config.broker_service_compaction_rate_in_bytes

    def _size_publish_buffer(self, config: BrokerConfig) -> None:
        """Bytes published and not yet stored beyond which publishers pause, all together."""
        size_mb = config.max_message_publish_buffer_size_in_mb
        self.ledgers.append_budget.bytes_max = size_mb * 1024 * 1024

    def run(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run a task of the broker; its errors are logged."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task failed", exc_info=error)

    # --- connections and publish memory

    def add_connection(self, connection: Connection) -> str | None:
        """Register a new connection; the reason when it is one too many."""
        ip = connection.ip
        self.metrics.connections_created += 1
        self.connections.add(connection)
        self._connections_per_ip[ip] += 1
        per_ip = self.config.broker_max_connections_per_ip
        refused = None
        if not self._quota.admits(len(self.connections)):
            refused = "Reached the maximum number of connections"
        elif 0 < per_ip < self._connections_per_ip[ip]:
            refused = "Reached the maximum number of connections on address " + ip
        if refused is None and self.authenticator is not None:
            self.unauthenticated_limiter.enter(connection)
        self.metrics.connections_refused += refused is not None
        return refused

    def remove_connection(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self.unauthenticated_limiter.leave(connection)
        self.metrics.connections_closed += 1
        self._paused.discard(connection)
        self._connections_per_ip[connection.ip] -= 1
        if not self._connections_per_ip[connection.ip]:
            del self._connections_per_ip[connection.ip]

    def pause_publisher(self, publisher: Connection | LocalProducer) -> None:
        """Too many bytes wait for storage (``append_budget``): it stops until half of them do."""
        self._paused.add(publisher)
        publisher.pause_for_process()

    def _resume_publishers(self) -> None:
        """Half of the limit is free again."""
        paused, self._paused = self._paused, set()
        for publisher in paused:
            publisher.resume_for_process()

    def forget_publisher(self, publisher: LocalProducer) -> None:
        """It has ended."""
        self._paused.discard(publisher)

    def next_producer_name(self) -> str:
        """A name no other producer of the cluster has."""
        return f"{self._name_prefix}-{next(self._producer_names)}"
