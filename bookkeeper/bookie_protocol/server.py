"""The port at which a bookie of ours answers BookKeeper's protocol."""

import asyncio
import ssl
from collections.abc import Callable

from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie_protocol.server_connection import ServerConnection
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore


class ProtocolServer:
    """Serves one bookie: ``await listen(...)``, ``serve(bookie)``, ``await close()``.

    Connections that come before there is a bookie are closed.

    Args:
        frame_bytes_max: the largest frame it takes (``nettyMaxFrameSizeBytes``).
        connection_bytes_max: adds of one connection that it takes before it has answered.
        adds, reads: what all clients of the bookie have in memory, those of other ports included.
        connections_max: that it accepts; 0: any number.
        tls: makes the context of a new connection; None: connections are plain.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        connection_bytes_max: int,
        adds: AddLimits,
        reads: ByteSemaphore,
        connections_max: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.frame_bytes_max, self.connection_bytes_max = frame_bytes_max, connection_bytes_max
        self.adds, self.reads = adds, reads
        self.bookie: Bookie | None = None
        self.lac_bodies: dict[int, bytes] = {}
        self._connections_max, self._tls = connections_max, tls
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Bind and start; the port, which 0 leaves to the system.

        Raises:
            OSError: the address can't be used, or a TLS file.
        """
        self.tls_context()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ServerConnection(self), host or None, port)
        return int(self._server.sockets[0].getsockname()[1])

    def serve(self, bookie: Bookie) -> None:
        """Answer for ``bookie`` from now on."""
        self.bookie = bookie

    @property
    def has_tls(self) -> bool:
        """Requests must be encrypted."""
        return self._tls is not None

    async def close(self) -> None:
        """Disconnect everybody."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()

    def tls_context(self) -> ssl.SSLContext | None:
        """See ``ConnectionOwner``."""
        return None if self._tls is None else self._tls()

    def admit(self, connection: ServerConnection) -> bool:
        """See ``ConnectionOwner``."""
        if self._connections_max and len(self._connections) >= self._connections_max:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ServerConnection) -> None:
        """See ``ConnectionOwner``."""
        self._connections.discard(connection)
