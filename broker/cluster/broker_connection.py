"""A connection to another broker's binary port: how this broker is a client of topics served there.

One link belongs to one publisher or feed, so that its socket can be paused for it alone. It isn't
made again: who uses it is told that it ended, as a client whose topic has moved.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import urlsplit

from magnetar.broker import errors
from magnetar.broker.cluster.broker_client import CALLER
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FRAME_PADDING_BYTES,
    FrameReader,
    MalformedFrameError,
    encode_command,
)

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.bundles.lookup import BrokerLookup

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 30.0
_PROTOCOL_VERSION: Final = 21
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, and questions without an answer: the link ends after a minute."""
_Answer = pb.BaseCommand


class BrokerConnectionListener(Protocol):
    """A producer or consumer on a link; called on the loop."""

    def on_frame(self, command: pb.BaseCommand, body: bytes) -> None:
        """Of this user: SEND_RECEIPT, MESSAGE and the like."""

    def on_link_lost(self, error: ServiceNotReadyError) -> None:
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


class BrokerConnection(asyncio.Protocol):
    """Say hello with ``open``; then call, send, and be a ``BrokerConnectionListener`` by id."""

    def __init__(self, service: BrokerService, name: str, frame_bytes_max: int) -> None:
        self.name = name
        self._service = service
        self.users: dict[tuple[str, int], BrokerConnectionListener] = {}
        self.closed = False
        self._reader = FrameReader(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[_Answer]] = {}
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, service: BrokerService, peer: BrokerLookup) -> BrokerConnection:
        """Connect, in the name of whom this request is served for.

        Raises:
            ServiceNotReadyError: the broker can't be reached, or doesn't let us in.
        """
        access = service.broker_client.access
        url = access.binary_url_of(peer)
        parts = urlsplit(url)
        frame_bytes_max = service.config.max_message_size + FRAME_PADDING_BYTES
        link = cls(service, parts.netloc, frame_bytes_max)
        tls = access.tls_context() if parts.scheme == "pulsar+ssl" else False
        try:
            async with asyncio.timeout(_ANSWER_S):
                auth, original = await access.login(CALLER.get())
                host, port = parts.hostname or "", parts.port or 0
                await service.loop.create_connection(lambda: link, host, port, ssl=tls or None)
                link._say_hello(auth, original)
                await link._hello
        except (OSError, TimeoutError) as error:
            link.close()
            what = str(error) or "no answer"
            raise ServiceNotReadyError(f"Broker {link.name} can't be reached: {what}") from error
        except BaseException:
            link.close()
            raise
        return link

    def _say_hello(self, auth: tuple[str, bytes], original: str | None) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect = command.connect
        connect.client_version = "magnetar-broker"
        connect.protocol_version = _PROTOCOL_VERSION
        if auth[0]:
            connect.auth_method_name, connect.auth_data = auth
            connect.feature_flags.supports_auth_refresh = True
        if original is not None:
            connect.original_principal = original
        self.send(encode_command(command))

    async def _prove_again(self) -> None:
        """Credentials have expired: show those that there are now."""
        try:
            auth, _ = await self._service.broker_client.access.login(None)
        except ServiceNotReadyError as error:
            logger.warning("broker %s asks for new credentials: %s", self.name, error)
            self._end()
            return
        answer = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
        response = answer.authResponse.response
        response.auth_method_name, response.auth_data = auth
        self.send(encode_command(answer))

    # --- calls

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, data: bytes) -> None:
        """Bytes of whole frames; nothing when the link has ended."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    async def call(self, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        """Send a command and wait for its answer.

        Raises:
            BrokerError: as that broker tells it, or the link has ended.
        """
        if self.closed:
            raise self._lost()
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = future
        self.send(encode_command(command))
        try:
            return await asyncio.wait_for(future, _ANSWER_S)
        except TimeoutError as error:
            raise ServiceNotReadyError(f"Broker {self.name} has not answered in time") from error
        finally:
            self._calls.pop(request_id, None)

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

    def _lost(self) -> ServiceNotReadyError:
        return ServiceNotReadyError(f"The connection to broker {self.name} has ended")

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.close()
        waiting: list[asyncio.Future[Any]] = [*self._calls.values(), self._hello]
        for future in waiting:
            if not future.done():
                future.set_exception(self._lost())
                future.exception()  # its caller may be gone
        users, self.users = list(self.users.values()), {}
        for user in users:
            user.on_link_lost(self._lost())

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
            for command, body in self._reader.feed(data):
                self._on_frame(command, body)
        except MalformedFrameError as error:
            logger.warning("broker %s: %s", self.name, error)
            self._end()

    def _on_frame(self, command: pb.BaseCommand, body: bytes) -> None:
        kind = pb.BaseCommand
        match command.type:
            case kind.PING:
                pong = pb.BaseCommand(type=kind.PONG)
                pong.pong.SetInParent()
                self.send(encode_command(pong))
            case kind.CONNECTED:
                if not self._hello.done():
                    self._hello.set_result(None)
            case kind.AUTH_CHALLENGE:
                self._service.run(self._prove_again())
            case kind.SEND_RECEIPT:
                self._tell("producer", command.send_receipt.producer_id, command, body)
            case kind.SEND_ERROR:
                self._tell("producer", command.send_error.producer_id, command, body)
            case kind.CLOSE_PRODUCER:
                self._tell("producer", command.close_producer.producer_id, command, body)
            case kind.MESSAGE:
                self._tell("consumer", command.message.consumer_id, command, body)
            case kind.CLOSE_CONSUMER:
                self._tell("consumer", command.close_consumer.consumer_id, command, body)
            case kind.REACHED_END_OF_TOPIC:
                self._tell("consumer", command.reachedEndOfTopic.consumer_id, command, body)
            case _:
                self._answered(command)

    def _tell(self, kind: str, id_: int, command: pb.BaseCommand, body: bytes) -> None:
        if (user := self.users.get((kind, id_))) is not None:
            user.on_frame(command, body)

    def _answered(self, command: pb.BaseCommand) -> None:
        kind = pb.BaseCommand
        match command.type:
            case kind.ERROR:
                told, id_ = command.error, command.error.request_id
                error: BrokerError | None = error_of(told.error, told.message)
            case kind.SUCCESS:
                error, id_ = None, command.success.request_id
            case kind.PRODUCER_SUCCESS:
                error, id_ = None, command.producer_success.request_id
            case kind.ACK_RESPONSE:
                reply, id_ = command.ackResponse, command.ackResponse.request_id
                error = error_of(reply.error, reply.message) if reply.HasField("error") else None
            case kind.GET_OR_CREATE_SCHEMA_RESPONSE:
                created = command.getOrCreateSchemaResponse
                id_ = created.request_id
                failed = created.HasField("error_code")
                error = error_of(created.error_code, created.error_message) if failed else None
            case _:
                return
        if (future := self._calls.get(id_)) is not None and not future.done():
            if error is None:
                future.set_result(command)
            else:
                future.set_exception(error)
        elif error is not None and not self._hello.done():
            self._hello.set_exception(error)


def _notice_lost_machines(sock: socket.socket) -> None:
    """Whoever only waits for messages wouldn't learn that the other machine lost its power."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if (number := getattr(socket, option, None)) is not None:  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, number, value)


class BrokerConnections:
    """The links of one publisher or feed, at most one to each broker."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._links: dict[str, BrokerConnection] = {}

    async def to(self, peer: BrokerLookup) -> BrokerConnection:
        """Raises ServiceNotReadyError."""
        name = peer.broker_url or peer.broker_url_tls or ""
        link = self._links.get(name)
        if link is None or link.closed:
            link = self._links[name] = await BrokerConnection.open(self._service, peer)
        return link

    def pause(self) -> None:
        for link in self._links.values():
            link.pause()

    def resume(self) -> None:
        for link in self._links.values():
            link.resume()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
