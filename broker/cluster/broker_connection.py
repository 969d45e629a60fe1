"""Connections to the binary ports of other brokers: how this broker is a client of their topics.

One belongs to one producer or consumer of an HTTP client, so that its socket can be paused for it
alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.protocol.framing import FRAME_PADDING_BYTES
from magnetar.bundles.lookup import BrokerLookup

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService


_CONNECT_S: Final = 2.0
_CALLER: Final = "magnetar-death-watch"
"""A proxy's role must name a client. Nothing is asked here, so no permission is needed."""


async def connect_to_broker(service: BrokerService, peer: BrokerLookup) -> AsyncClientConnection:
    """A connection in the name of the role that this request is served for.

    Raises:
        ServiceNotReadyError: the broker can't be reached; BrokerError: it doesn't let us in.
    """
    access, caller = service.broker_client.access, CALLER.get()
    parts = urlsplit(access.binary_url_of(peer))
    connection = AsyncClientConnection(
        parts.netloc,
        lambda: access.login(caller),
        service.config.max_message_size + FRAME_PADDING_BYTES,
    )
    tls = access.tls_context() if parts.scheme == "pulsar+ssl" else False
    await connection.connect(
        parts.hostname or "", parts.port or 0, "magnetar-broker", tls=tls or None
    )
    return connection


class BrokerConnections:
    """Those of one producer or consumer, at most one to each broker."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._connections: dict[str, AsyncClientConnection] = {}
        self._connecting = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def to(self, peer: BrokerLookup) -> AsyncClientConnection:
        """Raises BrokerError, as ``connect_to_broker``."""
        name = peer.broker_url or peer.broker_url_tls or ""
        async with self._connecting[name]:
            known = self._connections.get(name)
            if known is None or known.closed:
                known = self._connections[name] = await connect_to_broker(self._service, peer)
            return known

    def pause(self) -> None:
        for connection in self._connections.values():
            connection.pause()

    def resume(self) -> None:
        for connection in self._connections.values():
            connection.resume()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class BrokerPeerNetwork:
    """The ``PeerNetwork`` of the failure detector: connections to binary ports."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    async def connect(self, broker: BrokerLookup) -> AsyncClientConnection:
        caller = CALLER.set(_CALLER)
        try:
            return await connect_to_broker(self._service, broker)
        finally:
            CALLER.reset(caller)

    async def refuses(self, broker: BrokerLookup) -> bool:
        loop = self._service.loop
        parts = urlsplit(self._service.broker_client.access.binary_url_of(broker))
        try:
            found = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
        except OSError:
            return False  # its name can't be resolved, which says nothing of the process
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as attempt:
                attempt.setblocking(False)
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        await loop.sock_connect(attempt, address)
                    return False
                except ConnectionRefusedError:
                    continue
                except OSError:  # TimeoutError, too
                    return False
        return bool(found)
