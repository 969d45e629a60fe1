"""``magnetar autorecovery``: an auditor candidate and workers as a process of their own.

It keeps nothing on disk and may be killed at any time: another worker finds the markers, and the
copies that were made already.
"""

import asyncio
import faulthandler
import logging
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.bookie.http.admin_access import AdminAccess
from magnetar.bookkeeper.bookie.http.admin_server import AdminServer
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.pool_placement import placement_for
from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.origin_check import pages_check
from magnetar.bookkeeper.probes import SessionState
from magnetar.bookkeeper.process_shutdown import end_after, run_server, start_process
from magnetar.bookkeeper.replication.admin_pages import AutoRecoveryPages, Metrics
from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery, AutoRecoveryConfig
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings
from magnetar.bookkeeper.replication.stated_ends import EndsStatement, files_of
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore

_log = logging.getLogger(__name__)

_CLOSE_S_MAX: Final = 60.0
_LATE_S_MAX: Final = 2.0  # until a loop that is busy sees that the time is over


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class AutoRecoveryPart:
    """Auto-recovery as a part of some process that has a store and a pool of bookies.

    Attributes:
        recovery: None until it works.
        pages: what its HTTP server shows of it.
    """

    def __init__(self, settings: AutoRecoverySettings, metrics: Metrics | None = None) -> None:
        self.settings = settings
        self.recovery: AutoRecovery | None = None
        self.pages = AutoRecoveryPages(metrics)

    async def start(
        self,
        stack: AsyncExitStack,
        store: MetadataStore,
        pool: BookiePool,
        name: str,
        layout: Layout,
    ) -> None:
        """Begin to audit and to repair; ``stack`` ends it.

        Args:
            pool: started.
            name: of this candidate for the auditor's seat.
        """
        settings, rng = self.settings, random.Random()
        placement = await stack.enter_async_context(placement_for(settings.placement(), pool, rng))
        config = AutoRecoveryConfig(
            auditor=settings.auditor(),
            checks=settings.checks(),
            replication=settings.replication(),
            audits=settings.auditor_enabled,
            workers=settings.replication_workers,
            location=settings.location(),
        )
        recovery = AutoRecovery(
            *(store, pool, placement, name),
            clock=wall_clock_ms,
            rng=rng,
            config=config,
            layout=layout,
        )
        stack.push_async_callback(recovery.close)
        await recovery.start()
        statement = EndsStatement(store, name, lambda: files_of(settings))
        stack.push_async_callback(statement.close)
        statement.start()
        self.pages.marks = UnderReplicationStore(store, wall_clock_ms, layout)
        self.pages.session = session = SessionState(store)
        stack.callback(session.close)
        self.recovery = self.pages.recovery = recovery


class AutoRecoveryProcess:
    """The parts of one process; ``await start()``, ``await close()``."""

    def __init__(
        self, settings: AutoRecoverySettings, metadata_url: str, metrics: Metrics | None = None
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.web_url = ""  # "": no HTTP
        self._metadata_url = metadata_url
        self._part = AutoRecoveryPart(settings, metrics)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when it works, be it that the auditor is another one.

        Raises:
            AutoRecoverySettingsError: keys of the HTTP port that can't be used.
            OSError: the HTTP port or a TLS file can't be used.
            LedgerMetadataError: the cluster's layout isn't supported.
            MetadataError: the metadata store doesn't answer.
        """
        settings = self.settings
        path = settings.metadata_store_config_path
        if warning := settings.without_effect():
            _log.warning("%s", warning)
        async with AsyncExitStack() as stack:
            if settings.http_server_enabled:
                await self._listen_http(stack)
            store = await connect_store(
                self._metadata_url,
                Path(path) if path else None,
                session_timeout_s=settings.zk_timeout / 1000,
                start_timeout_s=float(settings.metadata_store_start_timeout_seconds),
            )
            stack.push_async_callback(store.close)
            layout = await open_layout(store)
            pool = await open_pool(stack, store, layout, settings.transport(), settings.tls())
            await self._part.start(stack, store, pool, self.name, layout)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        self._part.pages.recovery, self._part.pages.stage = None, "stopping"
        await self._stack.aclose()

    async def _listen_http(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        authenticator = settings.authenticator()
        pages = self._part.pages.by_path()
        sites = pages_check(
            settings.http_server_allowed_hosts,
            bind_address=settings.http_server_host,
            own=(),
            is_authenticated=authenticator is not None,
        )
        server = AdminServer(
            pages, None if authenticator is None else AdminAccess(authenticator), sites=sites
        )
        stack.push_async_callback(server.close)
        port = await server.listen(settings.http_server_host, settings.http_server_port)
        self.web_url = f"http://{settings.http_server_host}:{port}"


def run(settings: AutoRecoverySettings, metadata_url: str, metrics: Metrics | None = None) -> int:
    """Run until SIGTERM or SIGINT; the process's exit code: 1 can't start, 4 the end took too long.

    Args:
        metrics: makes the page for Prometheus.
    """
    keep_freed_memory()
    faulthandler.enable()
    return run_server(lambda: _serve(settings, metadata_url, metrics))


async def _serve(settings: AutoRecoverySettings, metadata_url: str, metrics: Metrics | None) -> int:
    process = AutoRecoveryProcess(settings, metadata_url, metrics)
    cannot = (OSError, ValueError, MetadataError, BookkeeperError)
    stop = await start_process(process.start(), cannot, _CLOSE_S_MAX)
    if process.web_url:
        print(f"magnetar autorecovery: {process.web_url} probes and metrics")
    print(f"magnetar autorecovery: {process.name} ready", flush=True)
    await stop.wait()
    end_after(_CLOSE_S_MAX + _LATE_S_MAX, 4)
    try:
        async with asyncio.timeout(_CLOSE_S_MAX):
            await process.close()
    except TimeoutError:
        _log.warning("stopped after %.0f s; the next one goes on with the markers", _CLOSE_S_MAX)
        return 4
    except Exception:  # another process goes on with the markers
        _log.exception("stopped; the next one goes on with the markers")
        return 4
    return 0
