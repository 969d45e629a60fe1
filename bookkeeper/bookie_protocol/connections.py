"""A connection that is made when it is needed, and again after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connection import BookieConnection
from magnetar.bookkeeper.bookie_protocol.login import LoginExchange
from magnetar.bookkeeper.bookie_protocol.start_tls import connect_tls
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    LedgerError,
    UnauthorizedAccessError,
)

T = TypeVar("T", bound=BookieConnection)
Resolve = Callable[[str], Awaitable[tuple[str, int]]]
"""Bookie id -> host and port; BookieUnavailableError: it isn't registered."""


class LazyConnection(Generic[T]):
    """One connection to a bookie at a time.

    Args:
        create: the protocol of a new connection; it gets what is to be told of its loss.
        on_lost: told why, after ``current`` is None again.
    """

    def __init__(
        self,
        bookie_id: str,
        resolve: Resolve,
        create: Callable[[Callable[[BookieConnection, Exception], None]], T],
        on_lost: Callable[[Exception], None],
        config: ProtocolConfig,
    ) -> None:
        self.current: T | None = None
        self._bookie_id = bookie_id
        self._resolve = resolve
        self._create = create
        self._on_lost = on_lost
        self._connect_timeout_s = config.connect_timeout_s
        self._tls, self._login = config.tls, config.login
        self._connecting: asyncio.Task[T] | None = None
        self._closed = False

    async def get(self) -> T:
        """
        Raises:
            BookieUnavailableError: it can't be reached.
            UnauthorizedAccessError: it refuses our login.
        """
        if self.current is not None:
            return self.current
        if self._closed:
            raise BookieUnavailableError(f"bookie {self._bookie_id}: the client is closed")
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(_retrieve)  # the callers may have been cancelled
        return await asyncio.shield(self._connecting)

    def drop(self, error: Exception) -> None:
        """Close the connection, if there is one, as if it were lost."""
        if self.current is not None:
            self.current.fail(error)

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self.current is not None:
            self.current.close()
            self.current = None

    async def _connect(self) -> T:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                try:
                    connection = await self._attempt()
                except UnauthorizedAccessError:
                    # A bookie that ends closes connections, too; then it can't be reached now.
                    connection = await self._attempt()
            if connection.is_lost:
                raise ConnectionResetError("the bookie closed the connection")
            self.current = connection
            return connection
        except LedgerError:
            raise
        except (OSError, ValueError, TimeoutError) as error:
            raise BookieUnavailableError(
                f"bookie {self._bookie_id}: {str(error) or 'no connection in time'}"
            ) from error
        finally:
            self._connecting = None

    async def _attempt(self) -> T:
        host, port = await self._resolve(self._bookie_id)
        connection = self._create(self._lost)
        if self._login is None:
            await self._open(connection, host, port)
            return connection
        asking = LoginExchange(connection.version, self._login.plugin)
        session = self._login.begin(self._bookie_id)
        await self._open(asking, host, port)
        try:
            await session.run(asking)
        except BaseException:
            asking.transport.abort()
            raise
        connection.session, transport = session, asking.transport
        transport.set_protocol(connection)
        connection.connection_made(transport)
        return connection

    async def _open(self, protocol: asyncio.Protocol, host: str, port: int) -> None:
        if self._tls is None:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: protocol, host, port)
        else:
            await connect_tls(protocol, self._tls(), host, port)

    def _lost(self, connection: BookieConnection, error: Exception) -> None:
        if connection is self.current:
            self.current = None
            self._on_lost(error)


def _retrieve(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()
