"""How the peer failure detector reaches other brokers: as a client of their binary ports."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.cluster.broker_connection import connect_to_broker

if TYPE_CHECKING:
    from magnetar.broker.client.async_client_connection import AsyncClientConnection
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.bundles.lookup import BrokerLookup

_CONNECT_S: Final = 2.0
_CALLER: Final = "magnetar-death-watch"
"""Proxy roles must name somebody. Nothing is asked over these links, so no rights are needed."""


class BrokerPeerNetwork:
    """A ``failure_detector.Network``."""

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
            return False  # its name is gone: who knows what of it lives
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
