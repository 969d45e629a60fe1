"""Shell of ``SessionCore``: connects, writes the requests of one turn of the loop, wakes callers.

No thread: the connection lives on the event loop (why: decision 0017).
"""

import asyncio
import logging
import random
import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

from magnetar.metadata.errors import (
    AccessDeniedError,
    SessionLostError,
    StoreClosedError,
    StoreUnreachableError,
)
from magnetar.metadata.sasl.digest_md5 import DigestMd5Client
from magnetar.metadata.sasl.jaas import read_credentials
from magnetar.metadata.store import SessionEvent
from magnetar.metadata.zookeeper.session import (
    ENDED,
    LOST,
    SESSION_ENDED,
    CallKind,
    DropConnection,
    FirstConnected,
    NodeEvent,
    SessionCore,
    ZooKeeperCall,
)
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings

logger = logging.getLogger(__name__)

HEAD_START_S = 0.25
"""Before the next server is asked, too: more than an answer takes, less than a client notices."""

Server = tuple[str, int]

_SASL_SERVER = ("zookeeper", "zk-sasl-md5")  # as each server calls itself, wherever it is


# Not longer: a server that is back is of use only once this client is connected to it. Until then
# this broker answers no lookups, and takes no bundles of a dead broker.
_BACKOFF_MIN_S, _BACKOFF_MAX_S = 0.05, 1.0
_ATTEMPT_MIN_S, _ATTEMPT_MAX_S = 1.0, 10.0
_CLOSE_S = 5.0


class ZooKeeperConnection:
    """Owns a core, its connections and timers. For the loop."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        core: SessionCore,
        on_node_event: Callable[[NodeEvent], None],
        on_session_event: Callable[[SessionEvent], None],
    ) -> None:
        self.core = core
        self._settings = settings
        self._on_node_event, self._on_session_event = on_node_event, on_session_event
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random()
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] | None = None  # of the transport
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._dialing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._backoff_s = 0.0
        self._failure: object = "no server has answered"
        self._told = set[str]()  # failures since the last success
        self._closed = False

    async def start(self) -> None:
        """Returns when the first session has begun.

        Raises:
            StoreUnreachableError, AccessDeniedError
        """
        self._dialing = self._loop.create_task(self._dial())
        try:
            async with asyncio.timeout(self._settings.first_session_s):
                await self._first
        except TimeoutError:
            await self.close()
            raise StoreUnreachableError(str(self._settings), self._failure) from None
        except BaseException:
            await self.close()
            raise

    @property
    def session_name(self) -> str:
        return f"{self.core.session_id & 0xFFFFFFFFFFFFFFFF:x}"

    async def ask(self, call: ZooKeeperCall) -> ZooKeeperCall:
        """``call`` with its answer: a code of the server, or LOST when it is a change."""
        await self.ask_all((call,))
        return call

    async def ask_all(self, calls: Sequence[ZooKeeperCall]) -> None:
        """The same for many, which arrive in this order, together with all else that this turn of
        the loop brought.

        While there is no connection they wait for one, or for the end of the session.

        Raises:
            SessionLostError: there is no session; what wasn't sent had no effect.
            StoreClosedError: the same, for good.
            StoreUnreachableError: the connection broke each time that a read was sent.
        """
        self.check()
        for call in calls:
            call.waiter = self._loop.create_future()
            self.core.submit(call)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        try:
            for call in calls:
                await call.waiter
        except asyncio.CancelledError:
            for call in calls:
                call.cancelled = True
            raise
        for call in calls:
            if call.code == SESSION_ENDED:
                raise SessionLostError(self.session_name)
            if call.code == ENDED:
                raise StoreClosedError
            if call.code == LOST and call.kind is CallKind.READ:
                raise StoreUnreachableError(str(self._settings), self._failure)

    def check_open(self) -> None:
        """Raises StoreClosedError."""
        if self._closed:
            raise StoreClosedError

    def check(self) -> None:
        """Raises StoreClosedError, SessionLostError."""
        self.check_open()
        if self.core.lost:
            raise SessionLostError(self.session_name)

    async def close(self) -> None:
        """Ends the session, if a server can be told; else it will expire."""
        if self._closed:
            return
        self._closed = True
        if (call := self.core.close()) is not None:
            call.waiter = waiter = self._loop.create_future()
            self._perform()
            await asyncio.wait([waiter], timeout=_CLOSE_S)
            self.core.abandon()
        self._perform()
        if self._dialing is not None:
            self._dialing.cancel()
            await asyncio.wait([self._dialing])
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _dial(self) -> None:
        servers = list(self._settings.servers)
        while True:
            # All shall have their turn before the session is over.
            timeout_s = self.core.timeout_s / (3 * len(servers))
            timeout_s = min(max(timeout_s, _ATTEMPT_MIN_S), _ATTEMPT_MAX_S)
            self._rng.shuffle(servers)
            impostors = 0
            untried = list(servers)
            while found := await reach_one(untried, timeout_s, self._on_attempt_failed):
                server, sock = found
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._connect(server[0], sock, timeout_s)
                except Exception as error:  # whatever it is, a later attempt may succeed
                    if self._transport is not None:  # it came with the last moment
                        self.core.connection_lost(self._loop.time())
                        self._drop(DropConnection("too late"))
                    self._on_attempt_failed(server, error)
                    impostors += isinstance(error, ssl.SSLCertVerificationError)
                    continue
                assert self._gone is not None
                await self._gone
            if impostors == len(servers) and not self._first.done():
                # Wrong settings: waiting would only delay the message.
                self._first.set_exception(StoreUnreachableError(str(self._settings), self._failure))
            # Soon after a connection that worked, then slower and slower.
            await asyncio.sleep(self._backoff_s * self._rng.uniform(0.5, 1.0))
            self._backoff_s = min(max(2 * self._backoff_s, _BACKOFF_MIN_S), _BACKOFF_MAX_S)

    async def _connect(self, host: str, sock: socket.socket, timeout_s: float) -> None:
        """Begin to talk over a socket that is connected; it is closed if that fails."""
        tls = self._settings.tls
        try:
            context = None if tls is None else tls.context()
            login = new_login(self._settings)
        except (OSError, ValueError):
            sock.close()
            raise
        self._gone = self._loop.create_future()
        await self._loop.create_connection(
            lambda: _Protocol(self, timeout_s, login),
            sock=sock,
            ssl=context,
            server_hostname=None if context is None else host,
        )

    def _on_attempt_failed(self, server: Server, error: Exception) -> None:
        host, port = server
        failure = f"{host}:{port}: {error or 'no answer'}"
        self._failure = failure
        if failure not in self._told:  # an outage of hours shall not fill the log
            self._told.add(failure)
            logger.warning("zookeeper: %s", failure)

    # Called by the protocol

    def connection_made(
        self, transport: asyncio.Transport, timeout_s: float, login: DigestMd5Client | None
    ) -> None:
        if self._closed:
            transport.abort()
            return
        self._transport = transport
        self.core.connection_made(self._loop.time(), timeout_s, login)
        self._perform()

    def data_received(self, data: bytes) -> None:
        self.core.data_received(data, self._loop.time())
        self._perform()

    def connection_lost(self, transport: asyncio.Transport, error: Exception | None) -> None:
        if self._transport is not transport:
            return  # dropped by ourselves
        self._transport = None
        self._failure = error or "the server closed the connection"
        self.core.connection_lost(self._loop.time())
        self._perform()
        self._dial_again()

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._perform()

    def _on_timer(self) -> None:
        self._timer = None
        self.core.on_time(self._loop.time())
        self._perform()

    def _perform(self) -> None:
        while effects := self.core.take_effects():
            for effect in effects:
                if type(effect) is ZooKeeperCall:
                    waiter = effect.waiter
                    if waiter is not None and not waiter.done():
                        waiter.set_result(None)
                elif type(effect) is NodeEvent:
                    self._on_node_event(effect)
                elif type(effect) is DropConnection:
                    self._drop(effect)
                elif type(effect) is SessionEvent:
                    self._on_event(effect)
                elif type(effect) is FirstConnected and not self._first.done():
                    self._backoff_s = _BACKOFF_MIN_S
                    self._first.set_result(None)
        if self._transport is not None and (output := self.core.take_output(self._loop.time())):
            self._transport.write(b"".join(output))
        self._arm()

    def _on_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.RECONNECTED:
            self._backoff_s = _BACKOFF_MIN_S
            self._told.clear()
        logger.log(
            logging.INFO if event is SessionEvent.RECONNECTED else logging.WARNING,
            "zookeeper: %s (session %s)",
            event.value,
            self.session_name,
        )
        self._on_session_event(event)

    def _drop(self, drop: DropConnection) -> None:
        logger.info("zookeeper: connection dropped: %s", drop.reason)
        self._failure = drop.reason
        if drop.at_once:
            self._backoff_s = 0.0
        if drop.login_refused and not self._first.done():
            self._first.set_exception(AccessDeniedError(str(self._settings), drop.reason))
        if self._transport is not None:
            # abort, not close: what is in its buffers must not be delivered after a reconnect.
            self._transport.abort()
            self._transport = None
        self._dial_again()

    def _dial_again(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _arm(self) -> None:
        deadline = self.core.deadline()
        if deadline is None:
            return
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return  # it fires early, looks and arms again
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_timer)


class _Protocol(asyncio.Protocol):
    def __init__(
        self, link: ZooKeeperConnection, timeout_s: float, login: DigestMd5Client | None
    ) -> None:
        self._link, self._timeout_s, self._login = link, timeout_s, login
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by name
        self._link.connection_made(self._transport, self._timeout_s, self._login)

    def data_received(self, data: bytes) -> None:
        self._link.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._link.connection_lost(self._transport, error)


def new_login(settings: ZooKeeperSettings) -> DigestMd5Client | None:
    """By SASL, of one connection; None: without.

    Raises:
        OSError, ValueError: there are no credentials.
    """
    if settings.login is None:
        return None
    credentials = read_credentials(*settings.login)
    return DigestMd5Client(credentials, *_SASL_SERVER, secrets.token_urlsafe(24))


async def reach_one(
    servers: list[Server], timeout_s: float, on_failure: Callable[[Server, Exception], None]
) -> tuple[Server, socket.socket] | None:
    """Connects to the first server that answers; asks them in order. A machine that is gone sends
    no refusal, so the next server is asked before an attempt has failed.

    Args:
        servers: those that failed, and the one that is reached, are taken out.
        timeout_s: for each of them.
    Returns:
        None: ``servers`` is empty.
    """
    asking: dict[asyncio.Task[socket.socket], Server] = {}
    unasked = list(servers)
    try:
        while asking or unasked:
            if unasked:
                server = unasked.pop(0)
                asking[asyncio.create_task(_reach(server, timeout_s))] = server
            done, _ = await asyncio.wait(
                asking,
                timeout=HEAD_START_S if unasked else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in sorted(done, key=lambda each: each.exception() is not None):
                error = task.exception()
                server = asking[task]
                servers.remove(server)
                del asking[task]
                if error is None:
                    return server, task.result()
                if not isinstance(error, Exception):
                    raise error
                on_failure(server, error)
        return None
    finally:
        for task in asking:
            task.cancel()
        for each in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(each, socket.socket):
                each.close()


async def _reach(server: Server, timeout_s: float) -> socket.socket:
    """Raises: OSError: at none of its addresses. TimeoutError: one is silent."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    async with asyncio.timeout(timeout_s):
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            *server, type=socket.SOCK_STREAM
        ):
            try:
                return await _connect(socket.socket(family, kind, protocol), address)
            except OSError as error:
                failure = error
    raise failure or OSError("the name has no address")


async def _connect(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
