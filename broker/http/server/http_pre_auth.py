"""Clients of the web port while authentication is enabled: one after the other.

A client that has sent nothing costs a socket (broker/listener/pre_auth_acceptor.py). The others
get their connection one in a turn of the loop, so that others are served in between. A plain
request that is refused whatever it asks for, being whole and without credentials that are good for
something, gets its answer here, for half of what a connection costs. So does one with a wrong
password, once that has been checked; meanwhile it is a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from magnetar.broker.http.server.fast_rejector import HEAD_BYTES_MAX
from magnetar.broker.listener.file_limit import file_limit
from magnetar.broker.listener.pre_auth_acceptor import PreAuthAcceptor
from magnetar.broker.listener.time_sliced_queue import TimeSlicedQueue
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from magnetar.broker.config import BrokerConfig
    from magnetar.broker.http.server.fast_rejector import FastRejector, PendingAuth
    from magnetar.broker.listener.pre_auth_acceptor import PendingSocket

_SILENT_MAX: Final = 4096
"""And never more than a few of the files that may be open; of one address, half."""
_DOUBTED_MAX: Final = 1024
"""So many, and never more than a few of the files, wait here for the check of a password; others
have a connection meanwhile."""


class HttpPreAuth(PreAuthAcceptor):
    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        config: BrokerConfig,
        refusals: FastRejector | None = None,
    ) -> None:
        pending_max = max(2, min(_SILENT_MAX, file_limit() // 64))
        super().__init__(
            UnauthenticatedLimiter(pending_max, pending_max // 2),
            what="HTTP",
            deadline_s=lambda: config.http_request_header_timeout_millis / 1000,
            peek_bytes=HEAD_BYTES_MAX + 1,
        )
        self._refusals = refusals
        self._factory = factory
        self._speaking: TimeSlicedQueue[PendingSocket] = TimeSlicedQueue(
            self.loop, self._connect, turn_s=0.0
        )
        self._doubted = 0
        self._doubted_max = min(_DOUBTED_MAX, pending_max)

    def look(self, pending: PendingSocket) -> None:
        if self._refusals is not None:
            words = bytes(pending.received)
            found = self._refusals.answer(words, pending.ip, pending.port)
            if isinstance(found, bytes):
                pending.read()
                pending.end(found)
                return
            if found is not None and self._doubted < self._doubted_max:
                taken = pending.take()
                self.run(self._resolve(found, taken, len(words)), taken.close)
                return
        self._speaking.add(pending)

    async def _resolve(self, pending_auth: PendingAuth, taken: socket.socket, size: int) -> None:
        self._doubted += 1
        try:
            answer = await pending_auth()
        finally:
            self._doubted -= 1
        if answer is None:
            await self.loop.connect_accepted_socket(self._factory, taken)
            return
        with taken, contextlib.suppress(OSError):
            taken.recv(size)  # as PendingSocket.read
            taken.send(answer)

    def _connect(self, pending: PendingSocket) -> None:
        if pending.ended:
            return
        taken = pending.take()
        connecting = self.loop.connect_accepted_socket(self._factory, taken)
        self.run(connecting, taken.close)
