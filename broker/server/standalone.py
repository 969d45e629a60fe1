"""One process with everything: metadata (embedded or ZooKeeper), a bookie, a broker, HTTP.

Start order is the layers' order, stop order its reverse; what a clean stop saves, ``kill -9`` only
makes the next start do (journal replay, ledger recovery).
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

from starlette.applications import Starlette

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.loop_stalls import LoopStalls
from magnetar.bookkeeper.process_shutdown import PLAIN, end_after, start_process
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.broker.bookie_client_settings import check_placement, client_config
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.http.middleware.origin_settings import site_check
from magnetar.broker.server.embedded_bookie_server import EmbeddedBookieServer
from magnetar.broker.server.embedded_storage import (
    bookie_config,
    open_embedded,
    open_only_bookie,
    with_place_of_copies,
)
from magnetar.broker.server.server_process import freeze_objects, run_process
from magnetar.broker.server.startup_probe_server import StartupProbeServer
from magnetar.broker.service.bookie_access import BookieAddressResolver
from magnetar.broker.service.bookie_cluster import BookieCluster
from magnetar.broker.service.broker_service import BrokerService, wall_clock_ms
from magnetar.broker.service.virtual_clock import VirtualClock
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.offload.file_store import FilesystemOffloader
from magnetar.managed_ledger.orphan_ledgers import OWNER, read_owner
from magnetar.metadata.errors import MetadataError, StoreClosedError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

OpenFiles: TypeAlias = "Callable[[Path], FileSystem]"

_MIB = 1024 * 1024
_CLOSE_S = 15.0
"""Of the time for a stop, kept for closing whatever a drain takes; half, if that is less."""
_LATE_S = 2.0
"""Until a loop that is busy sees that the time is over."""


class Standalone:
    """The parts of one process; ``await start()``, use ``service``, ``await close()``.

    ``cluster_broker.py`` is the same without a bookie of its own.
    """

    word = "standalone"  # the command's name

    def __init__(
        self,
        config: BrokerConfig,
        open_files: OpenFiles = OsFileSystem,
        virtual_clock: VirtualClock | None = None,
    ) -> None:
        """``open_files`` makes the bookie's file system of its root directory."""
        self.config = self._with_place_of_copies(config)
        self._virtual_clock = virtual_clock
        self._open_files = open_files
        self.bookie: Bookie
        self._own_bookie: Bookie | None = None  # the same; None: this process has none
        self.service: BrokerService
        self.service_url = self.web_url = ""
        self.service_url_tls = self.web_url_tls = ""  # "": not served over TLS
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Set when the process can't go on: its bookie lost its journal or its disk."""
        self._pre_auth: StartupProbeServer | None = None
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Bring up all layers; returns when clients are served.

        Raises:
            ConfigError: keys, certificates or passwords can't be used.
            OSError: a port or the data directory can't be used.
            BookkeeperError, MetadataError: what is in the directory is damaged, or in use.
        """
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()

    def watch_loop(self) -> None:
        """Look at the turns of its loop until `close`, where a setting asks for it.

        What comes before the first client is served holds up nobody.
        """
        if threshold_ms := self.config.loop_stall_threshold_millis:
            stalls = self.service.loop_stalls = LoopStalls(threshold_ms / 1000)
            stalls.start()
            self._stack.callback(stalls.close)

    async def drain(self) -> None:
        """Give to others what they can serve, while all still works; ``close`` follows."""
        await self.service.drain()

    async def close(self) -> None:
        """Stop serving, then flush and close every layer."""
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        config, rng = self.config, random.Random()
        if config.managed_ledger_offload_driver and not config.file_system_uri:
            raise ConfigError("managedLedgerOffloadDriver needs fileSystemURI: file:///DIRECTORY")
        check_placement(config)
        reading_and_writing = client_config(config)
        await self._open_probe_server(stack)
        store = await self._open_store()
        stack.push_async_callback(store.close)
        self._stage("starting: opening its storage")
        bookies = await self._open_bookies(stack, store)
        placement = await self._open_placement(stack, bookies.pool, rng)
        client = BookKeeperClient(
            *(bookies.store, bookies.pool, placement),
            clock=wall_clock_ms,
            rng=rng,
            config=reading_and_writing,
            layout=bookies.layout,
        )
        client.on_ledger_deleted = bookies.on_ledger_deleted
        if bookies.store is not store:
            client.custom_metadata = {OWNER: await read_owner(store, lambda: str(uuid4()))}
        clock = wall_clock_ms if self._virtual_clock is None else self._virtual_clock.now_ms
        cache = EntryCache(config.managed_ledger_cache_size_mb * _MIB)
        offloader = FilesystemOffloader(
            config.managed_ledger_offload_max_threads, config.managed_ledger_offload_read_threads
        )
        stack.callback(offloader.close)
        ledgers = ManagedLedgerFactory(
            *(client, store, cache, FactoryConfig(), clock, rng), [offloader]
        )
        stack.push_async_callback(ledgers.close)
        self.service = service = BrokerService(
            config, store, ledgers, virtual_clock=self._virtual_clock
        )
        service.bookie, service.bookie_cluster = self._own_bookie, bookies
        service.cluster_documents.racks_store = bookies.store
        service.bookie_directory = self._directory(stack, bookies)
        self._share_load(service)
        stack.push_async_callback(service.close)
        await self._listen(stack, service)

    async def _open_probe_server(self, stack: AsyncExitStack) -> None:
        """Somebody answers probes from here on."""
        config = self.config
        if config.web_service_port >= 0:
            self._pre_auth = StartupProbeServer(
                config.bind_address, config.web_service_port, site_check(config)
            )
            stack.push_async_callback(self._pre_auth.close)
            await self._pre_auth.open()
            self._stage("starting: waiting for the metadata store")

    def _stage(self, text: str) -> None:
        if self._pre_auth is not None:
            self._pre_auth.stage = text

    async def _open_bookies(self, stack: AsyncExitStack, store: MetadataStore) -> BookieCluster:
        """Where ledgers are."""
        settings = bookie_config(self.config)
        bookie, collector = await open_only_bookie(
            *(stack, store, settings, self._open_files(settings.data_dir)),
            collect_s=self.config.gc_wait_time_ms / 1000,
        )
        self._own_bookie = self.bookie = bookie
        bookie.on_fatal = self._on_fatal
        pool = BookiePool()
        pool.add(bookie)
        return BookieCluster(pool, store, on_ledger_deleted=collector.ledger_deleted_hint)

    async def _open_placement(
        self, stack: AsyncExitStack, pool: BookiePool, rng: random.Random
    ) -> EnsemblePlacementPolicy:
        return RandomPlacement(rng)  # there is one bookie

    def _directory(self, stack: AsyncExitStack, bookies: BookieCluster) -> BookieAddressResolver:
        """Where readers in other processes find the bookies."""
        port = EmbeddedBookieServer(self.config, bookies.store, self.bookie)
        stack.push_async_callback(port.close)
        return port

    def _with_place_of_copies(self, config: BrokerConfig) -> BrokerConfig:
        return with_place_of_copies(config)

    def _share_load(self, service: BrokerService) -> None:
        """There is nobody to share it with."""

    def give_up_waiting(self) -> None:
        """The end is near: what waits for space on the disk won't get it."""
        self.bookie.give_up_waiting()

    async def _open_store(self) -> MetadataStore:
        config = self.config
        if not config.metadata_store_url:
            config.data_path.mkdir(parents=True, exist_ok=True)
            embedded = open_embedded(config.data_path)
            embedded.on_session_event(self._on_session_event)
            return embedded
        # Importing the HTTP part can hold the loop for longer than a session may be silent.
        import magnetar.broker.http.server.app
        import magnetar.broker.http.server.server  # noqa: F401

        return await self._connect_store(config.metadata_store_url)

    async def _connect_store(self, url: str) -> MetadataStore:
        config = self.config
        path = config.metadata_store_config_path
        try:
            return await connect_store(
                url,
                Path(path) if path else None,
                session_timeout_s=config.metadata_store_session_timeout_millis / 1000,
                operation_timeout_s=float(config.metadata_store_operation_timeout_seconds),
                start_timeout_s=float(config.metadata_store_start_timeout_seconds),
            )
        except ValueError as error:
            raise ConfigError(f"metadataStoreUrl, metadataStoreConfigPath: {error}") from error

    async def _listen(self, stack: AsyncExitStack, service: BrokerService) -> None:
        # Imported here, a third of the start: probes are answered by then.
        from magnetar.broker.http.server.app import create_app
        from magnetar.broker.http.server.server import HttpServer

        config = self.config
        if config.broker_service_port >= 0:
            await service.listen(config.bind_address, config.broker_service_port)
        if config.broker_service_port_tls >= 0:
            await service.listen_tls(config.bind_address, config.broker_service_port_tls)
        app = create_app(service)
        await self._show_metrics(stack, service, app)
        http = HttpServer(app, config)
        stack.push_async_callback(http.close)
        listener = None if self._pre_auth is None else await self._pre_auth.hand_over()
        web_port = await http.start(config.bind_address, config.web_service_port, listener)
        web_port_tls = None
        if config.web_service_port_tls >= 0:
            web_port_tls = await http.start_tls(config.bind_address, config.web_service_port_tls)
        await service.start(web_port, web_port_tls)
        self.service_url, self.web_url = service.service_url, service.web_url
        self.service_url_tls, self.web_url_tls = service.service_url_tls, service.web_url_tls

    async def _show_metrics(
        self, stack: AsyncExitStack, service: BrokerService, app: Starlette
    ) -> None:
        """To other processes of this command: there is none."""

    def _on_session_event(self, event: SessionEvent) -> None:
        # The embedded store has no network to lose: this means that a commit failed and that what
        # is on disk must be read anew before anything may be believed.
        if event is SessionEvent.SESSION_LOST:
            self._on_fatal(StoreClosedError("the metadata store failed"))

    def _on_fatal(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


def run(config: BrokerConfig, open_files: OpenFiles = OsFileSystem) -> int:
    """A standalone process; see ``run_node``."""
    return run_node(config, lambda: Standalone(config, open_files))


def run_node(config: BrokerConfig, new_node: Callable[[], Standalone]) -> int:
    """Run until SIGTERM, SIGINT or a fatal error. Exit codes: docs/internals/failures.md."""
    return run_process(config, lambda: _serve(new_node))


async def _serve(new_node: Callable[[], Standalone]) -> int:
    standalone = new_node()
    cannot = (OSError, RuntimeError, ConfigError, MetadataError, BookkeeperError)
    end_s = standalone.config.broker_shutdown_timeout_ms / 1000 + _LATE_S
    stop = await start_process(standalone.start(), cannot, end_s)
    standalone.service.request_shutdown = stop.set
    freeze_objects(standalone.service.periodic_tasks.is_growth)
    standalone.watch_loop()
    if tls := " ".join(filter(None, (standalone.service_url_tls, standalone.web_url_tls))):
        print(f"magnetar {standalone.word}: {tls} over TLS")
    service_url = standalone.service_url or standalone.service_url_tls
    web_url = standalone.web_url or standalone.web_url_tls
    print(f"magnetar {standalone.word}: {service_url} {web_url} ready", flush=True)
    standalone.failed.add_done_callback(lambda _: stop.set())
    await stop.wait()
    standalone.give_up_waiting()
    if standalone.failed.done():
        logger.error("magnetar: storage failed: %s", standalone.failed.result(), extra=PLAIN)
        # No orderly close: nothing can be made durable now; the next start replays the journal.
        return 3
    return await _stop(standalone)


async def _stop(standalone: Standalone) -> int:
    """Drain and close within ``brokerShutdownTimeoutMs``; the exit code."""
    timeout_s = standalone.service.config.broker_shutdown_timeout_ms / 1000
    close_s = min(_CLOSE_S, timeout_s / 2)
    end_after(timeout_s + _LATE_S, 4)
    try:
        async with asyncio.timeout(timeout_s):
            try:
                async with asyncio.timeout(timeout_s - close_s):
                    await standalone.drain()
            except TimeoutError:
                logger.warning("not drained in time: what is left is found by lookups")
            except Exception:  # whatever it is, the stop goes on
                logger.exception("not drained")
            await standalone.close()
    except TimeoutError:
        # Nothing acknowledged depends on an orderly end; the next start does what is missing.
        logger.warning("stopped after brokerShutdownTimeoutMs without a complete flush")
        return 4
    except Exception:  # the next start finds what is missing here, too
        logger.exception("stopped without a complete end")
        return 4
    return 0
