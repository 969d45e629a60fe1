"""A bookie as a process: metadata store, storage, gRPC service, collection; until told to end.

Start order: listen (so that the address is known), open the storage, serve, register. Stop order:
unregister, so that no writer chooses it any more, answer what was accepted, flush, close.
"""

import asyncio
import faulthandler
import functools
import gc
import logging
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie.drain import Drain
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector, MetadataFreshnessCheck
from magnetar.bookkeeper.bookie.gc.over_replicated import OverReplicatedLedgers
from magnetar.bookkeeper.bookie.http.admin_access import AdminAccess
from magnetar.bookkeeper.bookie.http.admin_pages import AdminPages, Metrics
from magnetar.bookkeeper.bookie.http.admin_server import AdminServer
from magnetar.bookkeeper.bookie.integrity.integrity_service import IntegrityService
from magnetar.bookkeeper.bookie.integrity.replica_source import EnsembleReplicaSource
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.bookie.storage.directories import open_directories
from magnetar.bookkeeper.bookie_protocol.digest_client import DigestBookieClient
from magnetar.bookkeeper.bookie_protocol.server import ProtocolServer
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.client.async_ledger_recovery import recover_ledger
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import PlacementConfig
from magnetar.bookkeeper.client.pool_placement import placement_for
from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.loop_stalls import LoopStalls
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.origin_check import pages_check
from magnetar.bookkeeper.process_shutdown import PLAIN, end_after, run_server, start_process
from magnetar.bookkeeper.replication.process import AutoRecoveryPart
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.tls import TlsFiles, server_context
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.tls import server_credentials
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S: Final = 0.0005  # how long a disk thread back from a sync waits for the loop
_COLLECT_YOUNG_OBJECTS: Final = 50_000  # entries die by reference counting, collections find none
_CLOSE_S_MAX: Final = 60.0
_LATE_S_MAX: Final = 2.0  # until a loop that is busy sees that the time is over


class BookieProcess:
    """The parts of one bookie process; ``await start()``, ``await close()``.

    Attributes:
        failed: set when the bookie can't go on: a disk failed.
    """

    def __init__(
        self,
        settings: BookieSettings,
        metrics: Metrics | None = None,
        auto_recovery: AutoRecoveryPart | None = None,
        placement: PlacementConfig | None = None,
    ) -> None:
        self.settings = settings
        self._auto_recovery = auto_recovery
        self._placement = placement or PlacementConfig()
        self.web_url = ""  # "": no HTTP
        self._web_address: tuple[str, int] | None = None
        self._pages = AdminPages(metrics)
        # Of both ports; None: every caller is let in.
        self._authenticator: BookieAuthenticator | None = None
        self.bookie: Bookie
        self.address: tuple[str, int] = ("", 0)  # as advertised
        self.protocol_address: tuple[str, int] = ("", 0)  # of BookKeeper's protocol
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._drain: Drain
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when the bookie is registered and answers.

        Raises:
            BookieSettingsError: settings that don't go together.
            OSError: the port, a directory or a TLS file can't be used.
            BookkeeperError: the directory isn't this bookie's, or is damaged.
            LedgerMetadataError: the cluster's layout isn't supported.
            MetadataError: the metadata store doesn't answer.
        """
        settings = self.settings
        settings.check()
        self._authenticator = settings.authenticator()
        if warning := settings.without_effect():
            _log.warning("%s", warning)
        path = settings.metadata_store_config_path
        async with AsyncExitStack() as stack:
            if settings.http_server_enabled:  # first: probes are answered while a start takes long
                await self._listen_http(stack)
            self._pages.stage = "starting: waiting for the metadata store"
            store = await connect_store(
                settings.metadata_url,
                Path(path) if path else None,
                session_timeout_s=settings.zk_timeout / 1000,
                start_timeout_s=float(settings.metadata_store_start_timeout_seconds),
            )
            self._pages.stage = "starting: opening its storage"
            stack.push_async_callback(store.close)
            await self._start(stack, store, await open_layout(store))
            self._stack = stack.pop_all()

    async def drain(self) -> None:
        """Get rid of writers before ``close``, as long as the settings give them. REQUIRES:
        started."""
        if (wait_s := self.settings.shutdown_drain_timeout_ms / 1000) > 0:
            self._drain.begin()
            if not await self._drain.wait(wait_s):
                _log.warning("stopping with writers that are still here after %.0f s", wait_s)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _listen_http(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        pages = self._pages.by_path()
        if self._auto_recovery is not None:
            pages |= self._auto_recovery.pages.status_by_path()
        host = settings.http_server_host or settings.bind_address
        sites = pages_check(
            settings.http_server_allowed_hosts,
            bind_address=host,
            own=(settings.advertised_host,),
            is_authenticated=self._authenticator is not None,
        )
        access = None if self._authenticator is None else AdminAccess(self._authenticator)
        server = AdminServer(pages, access, sites=sites)
        stack.push_async_callback(server.close)
        port = await server.listen(host, settings.http_server_port)
        self._web_address = settings.advertised_host, port
        self.web_url = f"http://{settings.advertised_host}:{port}"

    async def _start(self, stack: AsyncExitStack, store: MetadataStore, layout: Layout) -> None:
        settings = self.settings
        tls = settings.tls()
        credentials = None if tls is None else server_credentials(tls)
        host = settings.advertised_host
        # The id may follow from the port, and the port be left to the system.
        server = BookieServer(
            settings.bookie_id, settings.transport(), credentials, self._authenticator
        )
        stack.push_async_callback(server.close)
        port = await server.listen(settings.bind_address, settings.bookie_port)
        self.address = host, port
        adds = AddLimits(settings.journal_queue_bytes // 2)
        protocol_server = self._protocol_server(adds, tls)
        stack.push_async_callback(protocol_server.close)
        self.protocol_address = (
            host,
            await protocol_server.listen(settings.bind_address, settings.bookie_protocol_port),
        )
        bookie_id = server.bookie_id = settings.bookie_id or f"{host}:{port}"
        config = settings.bookie(bookie_id, self.address, self._web_address, self.protocol_address)
        instance_id = await read_instance_id(store)

        async def serve(bookie: Bookie) -> None:
            bookie.on_fatal = self._on_fatal
            self._pages.bookie = bookie
            server.serve(bookie, instance_id)
            protocol_server.serve(bookie, instance_id)

        journal = settings.journals[0] if settings.journals else None
        files = open_directories(
            settings.ledgers,
            journal,
            settings.journals[1:],
            accept_data_loss=settings.accept_data_loss,
        )
        self.bookie = bookie = await open_bookie(
            config, files, store, before_register=serve, layout=layout
        )
        stack.push_async_callback(bookie.close)
        self._pages.drain = self._drain = Drain(bookie)
        stack.push_async_callback(self._drain.close)
        ledgers = LedgerStore(store, layout)
        locks = UnderReplicationStore(store, lambda: int(time.time() * 1000), layout)
        collector = GarbageCollector(
            bookie,
            ledgers,
            before_listing=MetadataFreshnessCheck(store, bookie_id, instance_id).check,
            over_replicated=OverReplicatedLedgers(bookie_id, ledgers, locks),
        )
        stack.push_async_callback(collector.close)
        collector.start(settings.gc_wait_time / 1000)
        self._pages.collector = collector
        await self._start_integrity_service(stack, store, ledgers, locks)

    def _protocol_server(self, adds: AddLimits, tls: TlsFiles | None) -> ProtocolServer:
        """The port for entries."""
        settings = self.settings
        transport = settings.transport()
        return ProtocolServer(
            settings.protocol_frame_bytes_max,
            transport.connection_bytes_max,
            adds,
            ByteSemaphore(transport.read_bytes_max),
            transport.connections_max,
            None if tls is None else functools.partial(server_context, tls),
            settings.protocol_login(),
            needs_login=settings.authentication_enabled,
            own_frame_bytes_max=transport.message_bytes_max,
            authenticator=self._authenticator,
        )

    async def _start_integrity_service(
        self,
        stack: AsyncExitStack,
        store: MetadataStore,
        ledgers: LedgerStore,
        locks: UnderReplicationStore,
    ) -> None:
        """Scrub and repair; the other bookies are reached as any client would reach them."""
        settings, bookie = self.settings, self.bookie
        pool = await open_pool(stack, store, ledgers.layout, settings.transport(), settings.tls())
        layout = ledgers.layout
        digest_of = layout.digest_of if isinstance(layout, BookKeeperLayout) else None
        pool.use(bookie if digest_of is None else DigestBookieClient(bookie, digest_of))
        rng = random.Random()
        placement = await stack.enter_async_context(placement_for(self._placement, pool, rng))
        config = ClientConfig()

        async def recover(ledger_id: int) -> LedgerMetadata:
            return await recover_ledger(ledger_id, ledgers, pool, placement, rng, config)

        replica_source = EnsembleReplicaSource(
            bookie.bookie_id, ledgers, pool, recover, locks.repairs, digest_of
        )
        integrity_service = IntegrityService(bookie, replica_source, settings.integrity_service())
        stack.push_async_callback(integrity_service.close)
        integrity_service.start()
        if self._auto_recovery is not None:
            await self._auto_recovery.start(stack, store, pool, bookie.bookie_id, ledgers.layout)

    def _on_fatal(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


def run(
    settings: BookieSettings,
    metrics: Metrics | None = None,
    auto_recovery: AutoRecoveryPart | None = None,
    placement: PlacementConfig | None = None,
) -> int:
    """Run until SIGTERM, SIGINT or a fatal error. Exit codes: docs/internals/failures.md.

    Args:
        metrics: makes the page for Prometheus.
        auto_recovery: what this process shall do beside; None: it is only a bookie.
        placement: of the copies that it makes when it closes ledgers of lost writers.
    """
    keep_freed_memory()
    faulthandler.enable()  # says where, should a damaged index make LMDB leave its map (SIGBUS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return run_server(lambda: _serve(settings, metrics, auto_recovery, placement))


async def _serve(
    settings: BookieSettings,
    metrics: Metrics | None,
    auto_recovery: AutoRecoveryPart | None,
    placement: PlacementConfig | None,
) -> int:
    process = BookieProcess(settings, metrics, auto_recovery, placement)
    cannot = (OSError, RuntimeError, ValueError, MetadataError, BookkeeperError)
    stop = await start_process(process.start(), cannot, _CLOSE_S_MAX)
    # What is alive now stays alive: never walk it again in a collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_YOUNG_OBJECTS, 5, 200)
    stalls: LoopStalls | None = None
    if threshold_ms := settings.loop_stall_threshold_millis:
        stalls = process.bookie.metrics.loop_stalls = LoopStalls(threshold_ms / 1000)
        stalls.start()
    host, port = process.address
    if process.web_url:
        print(f"magnetar bookie: {process.web_url} probes and metrics")
    print(f"magnetar bookie: {process.bookie.bookie_id} at {host}:{port} ready", flush=True)
    process.failed.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if stalls is not None:
        stalls.close()
    process.bookie.give_up_waiting()
    if process.failed.done():
        _log.error("magnetar: storage failed: %s", process.failed.result(), extra=PLAIN)
        # No orderly close: nothing can be made durable now; the next start replays the journal.
        return 3
    end_after(settings.shutdown_drain_timeout_ms / 1000 + _CLOSE_S_MAX + _LATE_S_MAX, 4)
    try:
        await process.drain()
        async with asyncio.timeout(_CLOSE_S_MAX):
            await process.close()
    except TimeoutError:
        # Nothing acknowledged depends on an orderly end; the next start does what is missing.
        _log.warning("stopped after %.0f s without a complete flush", _CLOSE_S_MAX)
        return 4
    except Exception:  # the next start finds what is missing here, too
        _log.exception("stopped without a complete end")
        return 4
    return 0
