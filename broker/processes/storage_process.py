"""The process that owns the data directory: metadata and the bookie, for brokers of this machine.

What ``Standalone`` has of them, behind two ways in: a Unix socket for metadata, and the bookie's
own protocol on the loopback interface. With authentication, for whoever shows the token that lies
beside the socket.
"""

import asyncio
import base64
import dataclasses
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.auth.bookie_authenticator import (
    EVERYBODY,
    AuthSettings,
    BookieAuthenticator,
)
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie_protocol.config import FRAME_BYTES_MAX
from magnetar.bookkeeper.bookie_protocol.server import ProtocolServer
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.process_shutdown import PLAIN, end_after, start_process
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.http.metrics.bookie_metrics import add_bookie_metrics, bookie_disk
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage
from magnetar.broker.processes.places import folder_of, socket_of, token_file_of
from magnetar.broker.processes.plan import STORAGE
from magnetar.broker.processes.shared_metrics import MetricsSocket
from magnetar.broker.server.bookie_transport_settings import transport_config
from magnetar.broker.server.embedded_storage import bookie_config, open_embedded, open_only_bookie
from magnetar.broker.server.server_process import freeze_objects, run_process
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, StoreClosedError
from magnetar.metadata.store import SessionEvent
from magnetar.metadata.unix_socket.server import MetadataServer

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_CLOSE_S: Final = 15.0
_LATE_S: Final = 2.0


class StorageProcess:
    """``await start()``, ``await close()``.

    Attributes:
        failed: set when it can't go on: the journal, the disk or the metadata failed.
        address: host and port for entries.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.address = (_HOST, 0)
        self.bookie: Bookie
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when brokers can come.

        Raises:
            OSError: the data directory or a port can't be used.
            BookkeeperError, MetadataError: what is in the directory is damaged, or in use.
        """
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """Refuse what comes, answer what was accepted, flush."""
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self.config
        folder = folder_of(config)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        store = open_embedded(config.data_path)
        stack.push_async_callback(store.close)
        store.on_session_event(self._on_session_event)
        await self._open_bookie(stack, store)
        # Behind the bookie: brokers that come find it registered.
        server = MetadataServer(store, socket_of(config))
        await server.listen()
        stack.push_async_callback(server.close)
        metrics = MetricsSocket(folder, STORAGE, self._metrics)
        await metrics.listen()
        stack.push_async_callback(metrics.close)

    async def _open_bookie(self, stack: AsyncExitStack, store: EmbeddedMetadataStore) -> None:
        config = self.config
        settings = bookie_config(config)
        transport = transport_config(config)
        # Without authentication everybody on this machine may produce, too.
        authenticator = _new_token(token_file_of(config)) if config.authentication_enabled else None
        calls = BookieServer(settings.bookie_id, transport, authenticator=authenticator)
        stack.push_async_callback(calls.close)
        port = await calls.listen(_HOST, 0)
        entries = _entry_server(transport, settings.storage.journal_queue_bytes_max, authenticator)
        stack.push_async_callback(entries.close)
        self.address = _HOST, await entries.listen(_HOST, max(config.bookie_port, 0))
        instance_id = await read_instance_id(store)

        async def serve(bookie: Bookie) -> None:
            bookie.on_fatal = self._on_fatal
            calls.serve(bookie, instance_id)
            entries.serve(bookie, instance_id)

        self.bookie, _ = await open_only_bookie(
            *(stack, store),
            dataclasses.replace(settings, advertised=(_HOST, port), rpc_advertised=self.address),
            OsFileSystem(settings.data_dir),
            collect_s=config.gc_wait_time_ms / 1000,
            before_register=serve,
        )

    async def _metrics(self) -> AsyncIterator[bytes]:
        disk = await asyncio.to_thread(bookie_disk, self.bookie)
        page = PrometheusPage(self.config.cluster_name, STORAGE)
        period_s = self.config.stats_update_frequency_in_secs
        add_bookie_metrics(page, self.bookie, disk, period_s)
        for piece in page.pieces():
            yield piece

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self._on_fatal(StoreClosedError("the metadata store failed"))

    def _on_fatal(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


def _entry_server(
    transport: TransportConfig, queue_bytes: int, authenticator: BookieAuthenticator | None
) -> ProtocolServer:
    return ProtocolServer(
        FRAME_BYTES_MAX,
        transport.connection_bytes_max,
        AddLimits(queue_bytes // 2),
        ByteSemaphore(transport.read_bytes_max),
        needs_login=True,
        own_frame_bytes_max=transport.message_bytes_max,
        authenticator=authenticator,
    )


def _new_token(path: Path) -> BookieAuthenticator:
    """Lets in whoever can read ``path``, which is written anew. Raises OSError."""
    import jwt

    key = secrets.token_bytes(32)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(jwt.encode({"sub": "broker"}, key, "HS256"))
    new.replace(path)
    secret = f"data:;base64,{base64.b64encode(key).decode()}"
    return BookieAuthenticator(
        AuthSettings(
            providers=("token",), secret_keys=(secret,), allowed_roles=frozenset({EVERYBODY})
        )
    )


def run(config: BrokerConfig) -> int:
    """Run until SIGTERM, SIGINT or a fatal error. Exit codes: docs/internals/failures.md."""
    keep_freed_memory()
    return run_process(config, partial(_serve, config))


async def _serve(config: BrokerConfig) -> int:
    process = StorageProcess(config)
    cannot = (OSError, RuntimeError, ConfigError, MetadataError, BookkeeperError)
    stop = await start_process(process.start(), cannot, _CLOSE_S)
    freeze_objects()
    host, port = process.address
    print(f"magnetar storage: {host}:{port} ready", flush=True)
    process.failed.add_done_callback(lambda _: stop.set())
    await stop.wait()
    process.bookie.give_up_waiting()
    if process.failed.done():
        logger.error("magnetar: storage failed: %s", process.failed.result(), extra=PLAIN)
        # No orderly close: nothing can be made durable now; the next start replays the journal.
        return 3
    end_after(_CLOSE_S + _LATE_S, 4)
    try:
        async with asyncio.timeout(_CLOSE_S):
            await process.close()
    except Exception:  # the next start finds what is missing here
        logger.exception("stopped without a complete end")
        return 4
    return 0
