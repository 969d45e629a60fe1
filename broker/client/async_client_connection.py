"""The asyncio shell of `ClientConnection`: a connection to the binary port of a broker.

It isn't made again: its user is told that it ended, as a client whose topic has moved.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, cast

from google.protobuf.message import Message as Command

from magnetar.broker import errors
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import client_connection as core
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FRAME_PADDING_BYTES,
    MAX_MESSAGE_BYTES,
    MalformedFrameError,
)

logger = logging.getLogger(__name__)

ANSWER_S: Final = 30.0
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, and questions without an answer: the connection ends after a minute."""


class ConnectionListener(Protocol):
    """A producer or consumer of a connection; called on the loop."""

    def on_command(self, command: Any, body: bytes) -> None:
        """Of this user: ``pb.CommandSendReceipt``, ``pb.CommandMessage`` and the like."""

    def on_connection_lost(self, error: ServiceNotReadyError) -> None:
        """Nothing comes or goes any more."""


def _errors_by_code() -> dict[int, type[BrokerError]]:
    found: dict[int, type[BrokerError]] = {}
    for kind in vars(errors).values():
        if not (isinstance(kind, type) and issubclass(kind, BrokerError)):
            continue
        known = found.get(kind.wire_code)
        if known is None or issubclass(known, kind):  # the first one, or its base
            found[kind.wire_code] = kind
    return found


_ERRORS: Final = _errors_by_code()


def error_of(code: int, message: str) -> BrokerError:
    """The error that another broker has told."""
    return _ERRORS.get(code, BrokerError)(message)


class AsyncClientConnection(asyncio.Protocol):
    """``connect``; then call, tell, and be a ``ConnectionListener`` by id."""

    def __init__(
        self,
        name: str,
        login: Callable[[], Awaitable[tuple[tuple[str, bytes], str | None]]],
        frame_bytes_max: int = MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES,
    ) -> None:
        """
        Args:
            name: of the broker, for errors.
            login: gives method and credentials, and in whose name a proxy connects; asked again
                when they have expired.
        """
        self.name = name
        self.users: dict[tuple[str, int], ConnectionListener] = {}
        self.closed = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._core = core.ClientConnection(self.send, frame_bytes_max)
        self.next_id, self.tell = self._core.next_id, self._core.tell
        self.request = self._core.request  # without waiting for its answer
        self._login = login
        self._renewal: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._hello: asyncio.Future[pb.CommandConnected] = (
            asyncio.get_running_loop().create_future()
        )

    async def connect(
        self,
        host: str,
        port: int,
        client_version: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        server_name: str | None = None,
    ) -> pb.CommandConnected:
        """Say hello.

        Args:
            server_name: as TLS asks for it; None: the host.
        Raises:
            ServiceNotReadyError: the broker can't be reached.
            BrokerError: it doesn't let us in.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                auth, original = await self._login()
                await asyncio.get_running_loop().create_connection(
                    lambda: self, host, port, ssl=tls, server_hostname=server_name
                )
                self._core.connect(client_version, auth, original)
                return await self._hello
        except (OSError, TimeoutError) as error:
            self.close()
            what = str(error) or "no answer"
            raise ServiceNotReadyError(f"Broker {self.name} can't be reached: {what}") from error
        except BaseException:  # also when the caller is cancelled
            self.close()
            raise

    async def _renew(self) -> None:
        """Credentials have expired: show those that there are now."""
        try:
            auth, _ = await self._login()
        except ServiceNotReadyError as error:
            logger.warning("broker %s asks for new credentials: %s", self.name, error)
            self._end()
            return
        self._core.authenticate(auth)

    # --- calls

    def send(self, data: bytes) -> None:
        """Bytes of whole frames; nothing when it has ended."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def begin(self, command: Command) -> asyncio.Future[Any]:
        """Send a command now; the future gets its answer, a ``pb.CommandSuccess`` or the like.

        It fails with a BrokerError: as that broker tells it, or since the connection has ended.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request_id = self._core.request(command)
        if self.closed:
            future.set_exception(self._lost())
        else:
            self._calls[request_id] = future
            future.add_done_callback(lambda _: self._calls.pop(request_id, None))
        return future

    def call(self, command: Command) -> Coroutine[Any, Any, Any]:
        """Send a command now; what is to be awaited is its answer.

        Raises:
            BrokerError: when it is awaited: as ``begin``, or no answer came in time.
        """
        return self._answer(self.begin(command))

    async def _answer(self, future: asyncio.Future[Any]) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError as error:
            raise self.no_answer() from error

    def no_answer(self) -> ServiceNotReadyError:
        return ServiceNotReadyError(f"Broker {self.name} has not answered in time")

    async def register(
        self, kind: str, id_: int, user: ConnectionListener, command: Command
    ) -> Any:
        """Call a command that makes a producer or consumer, which may get something before the
        answer; raises as ``call``.
        """
        self.users[kind, id_] = user
        answer = self.begin(command)
        try:
            return await self._answer(answer)
        except BaseException:  # also when the caller is cancelled
            self.users.pop((kind, id_), None)
            if answer.cancelled():
                self._take_back(kind, id_)
            raise

    def _take_back(self, kind: str, id_: int) -> None:
        """Nobody waits for the answer to `register` any more. The broker may let it in all the
        same: it would hold an exclusive subscription, a producer's name or keys while the
        connection lasts.
        """
        command: Command = pb.CommandCloseProducer(producer_id=id_)
        if kind == core.CONSUMER:
            command = pb.CommandCloseConsumer(consumer_id=id_)
        self.request(command)

    def pause(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def close(self) -> None:
        """Leave; producers and consumers there end with the connection."""
        self.users.clear()
        self._end()

    async def ended(self) -> None:
        """Returns when nothing comes or goes any more."""
        await asyncio.shield(self._ended)

    def _lost(self) -> ServiceNotReadyError:
        return ServiceNotReadyError(f"The connection to broker {self.name} has ended")

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._ended.set_result(None)
        if self._transport is not None:
            self._transport.close()
        for future in (*self._calls.values(), self._hello):
            if not future.done():
                future.set_exception(self._lost())
                future.exception()  # its caller may be gone
        users, self.users = list(self.users.values()), {}
        for user in users:
            user.on_connection_lost(self._lost())

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type
        if (sock := transport.get_extra_info("socket")) is not None:
            _notice_lost_machines(sock)
        if self.closed:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._core.receive(data):
                self._on_event(event)
        except MalformedFrameError as error:
            logger.warning("broker %s: %s", self.name, error)
            self._end()

    def _on_event(self, event: core.ServerEvent) -> None:
        match event.kind:
            case core.CONNECTED:
                if not self._hello.done():
                    self._hello.set_result(event.command)
            case core.AUTH_CHALLENGE:
                self._renewal = asyncio.ensure_future(self._renew())
            case core.ANSWER:
                if (future := self._calls.get(event.id)) is not None and not future.done():
                    future.set_result(event.command)
            case core.REFUSAL:
                future = self._calls.get(event.id, self._hello)
                if not future.done():
                    future.set_exception(error_of(*event.command))
            case kind:
                if (user := self.users.get((kind, event.id))) is not None:
                    user.on_command(event.command, event.body)


def _notice_lost_machines(sock: socket.socket) -> None:
    """A consumer that only waits wouldn't learn that the other machine lost its power."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if (number := getattr(socket, option, None)) is not None:  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
