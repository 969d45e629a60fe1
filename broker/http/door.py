"""Clients of the web port while authentication is enabled: one after the other.

Whoever hasn't begun to speak costs a socket (broker/service/doorstep.py). Those who have get their
connection one in a turn of the loop: a request that will be refused takes as long as any other, and
others are served in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from broker.service.doorstep import Doorstep
from broker.service.file_limit import file_limit
from broker.service.pacer import Pacer
from broker.service.waiting_room import WaitingRoom

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from broker.config import BrokerConfig
    from broker.service.doorstep import Guest

__all__ = ["HttpDoor"]

_SILENT_MAX: Final = 4096
"""And never more than a few of the files that may be open; of one address, half."""


class HttpDoor:
    """Owns a listening socket."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        config: BrokerConfig,
        listener: socket.socket,
    ) -> None:
        """Raises OSError: it can't listen."""
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._speaking: Pacer[Guest] = Pacer(self._loop, self._connect, turn_s=0.0)
        guests_max = max(2, min(_SILENT_MAX, file_limit() // 64))
        self._doorstep = Doorstep(
            self,
            WaitingRoom(guests_max, guests_max // 2),
            what="HTTP",
            deadline_s=lambda: config.http_request_header_timeout_millis / 1000,
            peeks=True,
        )
        self._doorstep.start(listener, config.http_server_accept_queue_size)

    def close(self) -> None:
        """Stop listening; connections stay."""
        self._doorstep.close()

    def look(self, guest: Guest) -> None:
        self._speaking.add(guest)

    def gone(self, guest: Guest) -> None:
        """Nothing is kept of him."""

    def _connect(self, guest: Guest) -> None:
        if guest.ended:
            return
        taken = guest.take()
        self._doorstep.run(self._loop.connect_accepted_socket(self._factory, taken), taken)
