"""The bookies of a cluster, each reached by the protocol that it has registered."""

from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connector import ProtocolConnector
from magnetar.bookkeeper.bookie_protocol.digest_client import DigestBookieClient
from magnetar.bookkeeper.client.health import BookieHealth
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.tls import TlsFiles, client_context
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.store import MetadataStore


async def open_pool(
    stack: AsyncExitStack,
    store: MetadataStore,
    layout: Layout,
    transport: TransportConfig,
    tls: TlsFiles | None = None,
    protocol: ProtocolConfig | None = None,
    health: BookieHealth | None = None,
) -> BookiePool:
    """A started pool; ``stack`` closes it and its connections.

    In BookKeeper's layout a cluster may have bookies of both kinds. Ours are reached by our own
    protocol, also those that speak BookKeeper's beside it.

    Args:
        transport: of our own bookies; ``protocol``: of Apache BookKeeper's.
        tls: certificates; None: plain connections.
    Raises:
        MetadataError: the store failed. KeyFormatError: ``transport.token`` is none.
    """
    ours = BookieConnector(store, transport, tls, layout)
    stack.push_async_callback(ours.close)
    await ours.start()
    if not isinstance(layout, BookKeeperLayout):

        def connect_ours(bookie_id: str) -> BookieClient | None:
            return ours.connect(bookie_id, pool.infos.get(bookie_id))

        pool = BookiePool(store, connect_ours, health)
        return await _start(stack, pool)
    protocol = protocol or ProtocolConfig()
    if tls is not None and protocol.tls is None:
        protocol = replace(protocol, tls=partial(client_context, tls))
    apaches = ProtocolConnector(store, layout, protocol)
    stack.push_async_callback(apaches.close)

    def connect(bookie_id: str) -> BookieClient | None:
        info = pool.infos.get(bookie_id)
        if info is None:
            return None
        if info.address is None:
            return apaches.connect(bookie_id, info.rpc_address)
        return DigestBookieClient(ours.connect(bookie_id, info), layout.digest_of)

    pool = BookiePool(store, connect, health)
    return await _start(stack, pool)


async def _start(stack: AsyncExitStack, pool: BookiePool) -> BookiePool:
    stack.push_async_callback(pool.close)
    await pool.start()
    return pool
