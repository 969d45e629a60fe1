"""The first words of a client of the binary port, while authentication is enabled.

A client that shows wrong credentials, talks nonsense or is silent is refused here, for a fifth of
what a connection costs. Whoever is known gets one. While a password is checked, who has shown it
remains a pending socket like the silent ones: the limiter may close it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.provider import BUSY, REFUSED
from magnetar.broker.auth.provider_chain import Credentials
from magnetar.broker.connection.auth_session import method_of
from magnetar.broker.connection.connection import UNKNOWN_FRAME_BYTES_MAX, Connection
from magnetar.broker.connection.session_commands import PONG_FRAME
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.listener.pre_auth_acceptor import PendingSocket, PreAuthAcceptor
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import NO_ID, MalformedFrameError, encode
from magnetar.broker.protocol.text import has_broken_text

if TYPE_CHECKING:
    from magnetar.broker.auth.authenticator import Authenticator
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger("magnetar.broker.connection.connection")

_TWO_U32: Final = Struct(">II")
_CONNECT, _PING, _PONG = pb.BaseCommand.CONNECT, pb.BaseCommand.PING, pb.BaseCommand.PONG


def _refusal(code: pb.ServerError.ValueType, message: str) -> bytes:
    return encode(pb.CommandError(request_id=NO_ID, error=code, message=message))


_REFUSAL: Final = _refusal(pb.AuthenticationError, REFUSED)
_BUSY: Final = _refusal(pb.ServiceNotReady, BUSY)


class BinaryPreAuth(PreAuthAcceptor):
    def __init__(
        self, service: BrokerService, authenticator: Authenticator, admits: Callable[[int], bool]
    ) -> None:
        """``admits``: whether there may be so many pending sockets beside the connections."""
        super().__init__(
            service.unauthenticated_limiter,
            what="binary protocol",
            deadline_s=lambda: service.keep_alive_ms / 1000,
            admits=admits,
        )
        self._service = service
        self._authenticator = authenticator

    def look(self, pending: PendingSocket) -> None:
        command: pb.BaseCommand | None = None
        try:
            command = self._first_command(pending)
            if pending.ended:
                return
            if command is None:
                pending.wait()
                return
            self._decide(pending, command)
        except AuthenticationError as error:
            method = method_of(command.connect) if command is not None else ""
            self._refuse(pending, method, error)
        except (MalformedFrameError, DecodeError, ValueError) as error:
            service = self._service
            may_log = service.unauthenticated_limiter.may_log(service.wall_clock())
            level = logging.INFO if may_log else logging.DEBUG
            pending.close(f"malformed frame: {error}", level=level)

    def gone(self, pending: PendingSocket) -> None:
        metrics = self._service.metrics
        metrics.connections_created += 1
        metrics.connections_closed += 1

    def _first_command(self, pending: PendingSocket) -> pb.BaseCommand | None:
        """CONNECT; None: it hasn't come yet. What may come before it is answered.

        Raises:
            MalformedFrameError, DecodeError, ValueError.
        """
        received = pending.received
        while len(received) >= 4:
            total = int.from_bytes(received[:4], "big")
            if not 4 <= total <= UNKNOWN_FRAME_BYTES_MAX:
                raise MalformedFrameError(
                    f"frame of {total} bytes, limit {UNKNOWN_FRAME_BYTES_MAX}"
                )
            if len(received) < 4 + total:
                return None
            _, size = _TWO_U32.unpack_from(received)
            if not 2 <= size <= total - 4:
                raise MalformedFrameError(f"command of {size} bytes in a frame of {total}")
            command = pb.BaseCommand.FromString(bytes(received[8 : 8 + size]))
            if not command.IsInitialized():
                raise MalformedFrameError("command lacks a required field")
            if command.type == _CONNECT:
                return command
            if command.type not in (_PING, _PONG):
                raise MalformedFrameError(f"command {command.type} before CONNECT")
            pending.use(4 + total)
            if command.type == _PING:
                pending.send(PONG_FRAME)
        return None

    def _decide(self, pending: PendingSocket, command: pb.BaseCommand) -> None:
        """Make a connection, unless the client is refused at once.

        Raises:
            AuthenticationError: that is refused.
            MalformedFrameError.
        """
        connect = command.connect
        if not command.HasField("connect") or has_broken_text(connect):
            raise MalformedFrameError("CONNECT without its message, or with text that isn't UTF-8")
        service, authenticator = self._service, self._authenticator
        if service.ready:
            credentials = Credentials(method_of(connect), connect.auth_data)
            if authenticator.authenticate_or_wait(credentials, pending.ip) is None:
                self.run(self._resolve(pending, credentials), pending.end)
                return
        self._admit(pending)

    async def _resolve(self, pending: PendingSocket, credentials: Credentials) -> None:
        """The same, however long the check takes."""
        try:
            await self._authenticator.authenticate(credentials, pending.ip)
        except AuthenticationError as error:
            self._refuse(pending, credentials.method, error)
        else:
            self._admit(pending)

    def _refuse(self, pending: PendingSocket, method: str, error: AuthenticationError) -> None:
        self._authenticator.refusal(pending.remote, "binary", method, error)
        pending.end(_BUSY if isinstance(error, TooManyChecksError) else _REFUSAL)

    def _admit(self, pending: PendingSocket) -> None:
        """A connection, which asks again: that is remembered, and there is more to it than this."""
        if pending.ended:
            return  # cut meanwhile
        service, taken, received = self._service, pending.take(), bytes(pending.received)

        def new_connection() -> Connection:
            return service.connection_type(service, received)

        self.run(service.loop.connect_accepted_socket(new_connection, taken), taken.close)
