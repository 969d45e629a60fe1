"""``MetadataStore`` of a process on the same machine, over its Unix socket.

Docs: docs/operate/metadata.md. The server ends a session with its connection, so here, too, a lost
connection is a lost session; the next one begins as soon as the server answers.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from magnetar.metadata.errors import (
    MetadataError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
    StoreUnreachableError,
)
from magnetar.metadata.paths import check_path
from magnetar.metadata.store import (
    MetadataEvent,
    MetadataStore,
    SessionEvent,
    Versioned,
    Watch,
    check_delete,
    check_put,
)
from magnetar.metadata.unix_socket.address import connect_unix
from magnetar.metadata.unix_socket.frames import (
    CHANGES,
    NOTHING,
    OK,
    REPLY_BYTES_MAX,
    UNNUMBERED,
    Operation,
    SocketFrameError,
    SocketFrameReader,
    connect_body,
    delete_body,
    frame,
    put_body,
    read_error,
    read_event,
    read_names,
    read_node,
)
from magnetar.metadata.watches import PathWatches, SessionWatches, report_to_loop

_RETRY_S: Final = 0.02
_RETRY_S_MAX: Final = 0.5
_PINGS: Final = 6
"""In a session's timeout."""
_NUMBERS: Final = 0xFFFFFFFF


class _Link(asyncio.Protocol):
    """One connection: requests out, replies and events in."""

    def __init__(
        self,
        on_event: Callable[[MetadataEvent], None],
        on_lost: Callable[["_Link", str], None],
    ) -> None:
        self._on_event, self._on_lost = on_event, on_lost
        self._reader = SocketFrameReader(REPLY_BYTES_MAX)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._number = UNNUMBERED
        self._pending: dict[int, tuple[Operation, str, asyncio.Future[tuple[int, bytes]]]] = {}
        self._reason = "the server closed the connection"
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        try:
            for number, code, body in self._reader.feed(data):
                if number == UNNUMBERED:
                    self._on_event(read_event(code, body))
                    continue
                _, _, reply = self._pending.pop(number)
                if reply.done():  # nobody waits any more
                    continue
                if code in (OK, NOTHING):
                    reply.set_result((code, body))
                else:
                    reply.set_exception(read_error(code, body))
        except (SocketFrameError, LookupError, ValueError) as error:
            self.drop(f"the server doesn't speak the protocol: {error!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        pending, self._pending = self._pending, {}
        for operation, subject, reply in pending.values():
            if reply.done():
                continue
            if operation in CHANGES:
                reply.set_exception(OutcomeUnknownError(subject, self._reason))
            else:
                reply.set_exception(SessionLostError(subject))
        self._on_lost(self, self._reason)

    def drop(self, reason: str) -> None:
        if self.is_open:
            self._reason = reason
            self._transport.abort()

    async def ask(self, operation: Operation, body: bytes, subject: str) -> tuple[int, bytes]:
        """Code and body of the reply.

        Args:
            subject: path of a change, else the session.
        Raises:
            MetadataError, ValueError: as the server says.
            OutcomeUnknownError: the connection has ended meanwhile.
            SessionLostError: the same, of what changes nothing; or it had ended before.
        """
        if not self.is_open:
            raise SessionLostError(subject)
        self._number = number = self._number % _NUMBERS + 1
        reply: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        self._pending[number] = operation, subject, reply
        self._transport.write(frame(number, operation, body))
        return await reply


class UnixSocketStore(MetadataStore):
    """One session after another. Made by ``connect``."""

    def __init__(self, path: Path, session_timeout_s: float) -> None:
        """Use ``connect``."""
        self._path, self._timeout_s = path, session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None  # with a session
        self._key = ""  # of this session, or of the last one
        self._closed = False
        self._watches = PathWatches()
        self._session_watches = SessionWatches()
        self._connecting: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls, path: Path, session_timeout_s: float, start_timeout_s: float
    ) -> "UnixSocketStore":
        """Begins the first session; tries again while nobody listens.

        Raises:
            StoreUnreachableError: nobody has answered in time, or a process of another version.
        """
        store = cls(path, session_timeout_s)
        deadline = time.monotonic() + start_timeout_s
        wait_s = _RETRY_S
        while True:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), _RETRY_S)):
                    await store._begin()
                return store
            except (OSError, MetadataError) as error:  # TimeoutError is an OSError
                if time.monotonic() + wait_s > deadline:
                    raise StoreUnreachableError(f"unix:{path}", error or "no answer") from error
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    @property
    def session_id(self) -> str:
        return self._key

    @property
    def session_key(self) -> str:
        return self._key

    async def end_session(self, key: str) -> None:
        await self._ask(Operation.END_SESSION, key.encode())

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        code, body = await self._ask(Operation.GET, path.encode())
        return read_node(body) if code == OK else None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        _, body = await self._ask(Operation.CHILDREN, path.encode())
        return read_names(body)

    async def exists(self, path: str) -> bool:
        check_path(path)
        code, _ = await self._ask(Operation.EXISTS, path.encode())
        return code == OK

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        self._open_link()
        check_put(path, value, expected_version, sequential)
        body = put_body(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)
        _, reply = await self._ask(Operation.PUT, body, path)
        return read_node(reply)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self._open_link()
        check_delete(path, expected_version)
        await self._ask(Operation.DELETE, delete_body(path, expected_version), path)

    async def delete_recursive(self, path: str) -> None:
        self._open_link()
        check_delete(path, None)
        await self._ask(Operation.DELETE_RECURSIVE, path.encode(), path)

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        if self._closed:
            raise StoreClosedError
        check_path(path_prefix)
        return self._watches.add(path_prefix, on_event)

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        return self._session_watches.add(on_event)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.close_all()
        self._session_watches.close_all()
        tasks = [task for task in (self._connecting, self._pinging) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if (link := self._link) is not None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await link.ask(Operation.CLOSE, b"", self._key)
            except (MetadataError, TimeoutError):
                pass  # it ends with the connection
            link.drop("closed")

    def _open_link(self) -> _Link:
        if self._closed:
            raise StoreClosedError
        if self._link is None:
            raise SessionLostError(self._key)
        return self._link

    async def _ask(self, operation: Operation, body: bytes, subject: str = "") -> tuple[int, bytes]:
        return await self._open_link().ask(operation, body, subject or self._key)

    # Sessions.

    async def _begin(self) -> None:
        """A connection and its session. Raises OSError, MetadataError."""
        link = _Link(self._on_event, self._on_lost)
        await connect_unix(self._path, lambda: link)
        try:
            request = connect_body(int(self._timeout_s * 1000), self._key)
            _, key = await link.ask(Operation.CONNECT, request, self._key)
            if not link.is_open:  # its end was told before there was a session to lose
                raise SessionLostError(key.decode())
        except BaseException:
            link.drop("no session")
            raise
        self._key, self._link = key.decode(), link
        self._pinging = self._loop.create_task(self._ping(link))

    def _on_lost(self, link: _Link, reason: str) -> None:
        if link is not self._link:  # it had no session yet
            return
        self._link = None
        if self._pinging is not None:
            self._pinging.cancel()
        if self._closed:
            return
        self._session_watches.tell(SessionEvent.CONNECTION_LOST)
        self._session_watches.tell(SessionEvent.SESSION_LOST)
        self._connecting = self._loop.create_task(self._begin_again())

    async def _begin_again(self) -> None:
        wait_s = _RETRY_S
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._begin()
                break
            except (OSError, MetadataError):  # TimeoutError is an OSError
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
        self._session_watches.tell(SessionEvent.RECONNECTED)
        self._session_watches.tell(SessionEvent.SESSION_REESTABLISHED)

    async def _ping(self, link: _Link) -> None:
        """Signs of life, until the server has given none for 5/6 of the timeout.

        Earlier than the server gives up this session: what it held isn't another's before this
        process knows.
        """
        while True:
            await asyncio.sleep(self._timeout_s / _PINGS)
            try:
                async with asyncio.timeout((_PINGS - 2) * self._timeout_s / _PINGS):
                    await link.ask(Operation.PING, b"", self._key)
            except TimeoutError:
                link.drop("no sign of life of the server")
                return
            except MetadataError:
                return

    def _on_event(self, event: MetadataEvent) -> None:
        self._watches.deliver((event,), report_to_loop)
