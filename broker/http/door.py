"""Clients of the web port while authentication is enabled: one after the other.

Whoever hasn't begun to speak costs a socket (broker/service/doorstep.py). Those who have get their
connection one in a turn of the loop, so that others are served in between. A plain request that is
refused whatever it asks for, being whole and without credentials that are good for something, gets
its answer here, for half of what a connection costs. So does one with a wrong password, once that
has been checked; meanwhile it is a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from broker.http.early_refusals import HEAD_BYTES_MAX, Doubt
from broker.service.doorstep import Doorstep
from broker.service.file_limit import file_limit
from broker.service.pacer import Pacer
from broker.service.waiting_room import WaitingRoom

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from broker.config import BrokerConfig
    from broker.http.early_refusals import EarlyRefusals
    from broker.service.doorstep import Guest

__all__ = ["HttpDoor"]

_SILENT_MAX: Final = 4096
"""And never more than a few of the files that may be open; of one address, half."""
_DOUBTED_MAX: Final = 1024
"""So many, and never more than a few of the files, wait here for the check of a password; others
have a connection meanwhile."""


class HttpDoor:
    """Owns a listening socket."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        config: BrokerConfig,
        listener: socket.socket,
        refusals: EarlyRefusals | None = None,
    ) -> None:
        """Raises OSError: it can't listen."""
        self._refusals = refusals
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._speaking: Pacer[Guest] = Pacer(self._loop, self._connect, turn_s=0.0)
        guests_max = max(2, min(_SILENT_MAX, file_limit() // 64))
        self._doubted = 0
        self._doubted_max = min(_DOUBTED_MAX, guests_max)
        self.room = WaitingRoom(guests_max, guests_max // 2)
        self._doorstep = Doorstep(
            self,
            self.room,
            what="HTTP",
            deadline_s=lambda: config.http_request_header_timeout_millis / 1000,
            peek_bytes=HEAD_BYTES_MAX + 1,
        )
        self._doorstep.start(listener, config.http_server_accept_queue_size)

    def close(self) -> None:
        """Stop listening; connections stay."""
        self._doorstep.close()

    def look(self, guest: Guest) -> None:
        if self._refusals is not None:
            words = bytes(guest.received)
            found = self._refusals.answer(words, guest.ip, guest.port)
            if isinstance(found, bytes):
                guest.hear()
                guest.end(found)
                return
            if found is not None and self._doubted < self._doubted_max:
                taken = guest.take()
                waiting = self._resolve(self._refusals, found, taken, len(words))
                self._doorstep.run(waiting, taken)
                return
        self._speaking.add(guest)

    async def _resolve(
        self, refusals: EarlyRefusals, doubt: Doubt, taken: socket.socket, size: int
    ) -> None:
        self._doubted += 1
        try:
            answer = await refusals.resolve(doubt)
        finally:
            self._doubted -= 1
        if answer is None:
            await self._loop.connect_accepted_socket(self._factory, taken)
            return
        with taken, contextlib.suppress(OSError):
            taken.recv(size)  # as Guest.hear
            taken.send(answer)

    def gone(self, guest: Guest) -> None:
        """Nothing is kept of him."""

    def _connect(self, guest: Guest) -> None:
        if guest.ended:
            return
        taken = guest.take()
        self._doorstep.run(self._loop.connect_accepted_socket(self._factory, taken), taken)
