"""Bookies of this process that are reached over real sockets, and a client of them."""

import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie_protocol.config import FRAME_BYTES_MAX
from magnetar.bookkeeper.bookie_protocol.server import ProtocolServer
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.tls import TlsFiles, server_context
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.bookkeeper.transport_grpc.remote_bookie import RemoteBookieClient
from magnetar.bookkeeper.transport_grpc.tls import server_credentials
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.free_port import free_port
from tests.waiting import eventually as eventually

SMALL = StorageConfig(journal_segment_bytes=4 << 20, journal_extend_bytes=1 << 18)
HEAD = b"head"
TRANSPORT = TransportConfig(backoff_first_s=0.02, backoff_max_s=0.1)


@dataclass
class Served:
    bookie: Bookie
    server: BookieServer
    entries: ProtocolServer
    port: int
    entries_port: int

    async def close(self) -> None:
        await self.bookie.close()
        await self.entries.close()
        await self.server.close()


class Network:
    """Bookies b0, b1, ... behind gRPC servers, found through their registration."""

    def __init__(
        self,
        directory: Path,
        transport: TransportConfig = TRANSPORT,
        server_tls: TlsFiles | None = None,
        client_tls: TlsFiles | None = None,
        authenticator: BookieAuthenticator | None = None,
        client_token: str = "",
    ) -> None:
        self.directory = directory
        self.transport = transport
        self.server_tls = server_tls
        self.authenticator = authenticator
        self.store = EmbeddedMetadataStore.open(None)
        self.served: dict[str, Served] = {}
        self.connector = BookieConnector(
            self.store, replace(transport, token=client_token), client_tls
        )
        self.pool = BookiePool(self.store, self.connector.connect)
        rng = random.Random(3)
        self.client = BookKeeperClient(
            self.store, self.pool, RandomPlacement(rng), clock=lambda: 0, rng=rng
        )

    async def start(self, bookie_id: str, port: int = 0, **changes: object) -> Served:
        credentials = None if self.server_tls is None else server_credentials(self.server_tls)
        server = BookieServer(bookie_id, self.transport, credentials, self.authenticator)
        port = await server.listen("127.0.0.1", port or free_port())
        entries = entries_server(self.transport, self.server_tls, self.authenticator)
        entries_port = await entries.listen("127.0.0.1", free_port())
        config = BookieConfig(
            *(bookie_id, self.directory / bookie_id, SMALL),
            advertised=("127.0.0.1", port),
            rpc_advertised=("127.0.0.1", entries_port),
            disk_reserve_bytes=0,
            disk_usage_max=1.0,
        )
        config = replace(config, **changes)  # type: ignore[arg-type]  # fields by name
        instance_id = await read_instance_id(self.store)

        async def serve(bookie: Bookie) -> None:
            server.serve(bookie, instance_id)
            entries.serve(bookie, instance_id)

        bookie = await open_bookie(
            config, OsFileSystem(config.data_dir), self.store, before_register=serve
        )
        served = Served(bookie, server, entries, port, entries_port)
        self.served[bookie_id] = served
        return served

    async def stop(self, bookie_id: str) -> None:
        await self.served.pop(bookie_id).close()

    async def close(self) -> None:
        await self.pool.close()
        await self.connector.close()
        for bookie_id in list(self.served):
            await self.stop(bookie_id)
        await self.store.close()

    def remote(self, bookie_id: str) -> RemoteBookieClient:
        """The pool's client of a bookie."""
        return self.connector.connect(bookie_id)


def entries_server(
    transport: TransportConfig,
    tls: TlsFiles | None = None,
    authenticator: BookieAuthenticator | None = None,
) -> ProtocolServer:
    """Beside a ``BookieServer``, as ``BookieProcess`` makes it."""
    return ProtocolServer(
        *(FRAME_BYTES_MAX, transport.connection_bytes_max, AddLimits(128 << 20)),
        *(ByteSemaphore(transport.read_bytes_max), transport.connections_max),
        None if tls is None else partial(server_context, tls),
        needs_login=authenticator is not None,
        own_frame_bytes_max=transport.message_bytes_max,
        authenticator=authenticator,
    )


async def write(
    client: BookKeeperClient, quorums: LedgerConfig, bodies: list[bytes], batch: int = 10
) -> AsyncLedgerWriter:
    """A ledger with these entries, all confirmed."""
    ledger = await client.create_ledger(quorums)
    for first in range(0, len(bodies), batch):
        part = bodies[first : first + batch]
        ledger.append([HEAD] * len(part), part)
    await eventually(lambda: ledger.last_confirmed == len(bodies) - 1 or ledger.error is not None)
    assert ledger.error is None, ledger.error
    return ledger


async def read_all(client: BookKeeperClient, ledger_id: int, *, recover: bool) -> list[bytes]:
    """Bodies of all entries that a new reader may see."""
    reader = await client.open_ledger(ledger_id, recover=recover)
    bodies: list[bytes] = []
    while len(bodies) <= reader.last_confirmed:
        run = await reader.read(len(bodies), reader.last_confirmed, 1 << 20)
        bodies += [bytes(entry).removeprefix(HEAD) for entry in run.bodies]
    return bodies
