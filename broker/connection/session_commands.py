"""CONNECT, AUTH_RESPONSE, PING and PONG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import MalformedFrameError

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

PROTOCOL_VERSION: Final = 21
SERVER_VERSION: Final = "Magnetar 0.1.0"
PONG_FRAME = bytes.fromhex("000000090000000508139a0100")


def on_connect(connection: Connection, command: pb.CommandConnect) -> None:
    if connection.connected or connection.session is not None:
        raise MalformedFrameError("second CONNECT")
    service = connection.service
    if not service.ready:
        connection.refuse(pb.ServiceNotReady, "Broker is starting")
        return
    connection.client_version = command.client_version
    connection.protocol_version = min(PROTOCOL_VERSION, max(0, command.protocol_version))
    connection.features.CopyFrom(command.feature_flags)
    if service.authenticator is None:
        send_connected(connection)  # all fields of authentication are ignored
        return
    from magnetar.broker.connection.auth_session import AuthSession  # loaded with the authenticator

    connection.session = AuthSession(
        connection, service.authenticator, command, SERVER_VERSION, send_connected
    )
    connection.session.start()


def send_connected(connection: Connection) -> None:
    """The handshake is complete."""
    connected = pb.CommandConnected(
        server_version=SERVER_VERSION,
        protocol_version=connection.protocol_version,
        max_message_size=connection.service.config.max_message_size,
        feature_flags=pb.FeatureFlags(
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
    )
    connection.admit()
    connection.send(connected)


def on_auth_response(connection: Connection, command: pb.CommandAuthResponse) -> None:
    if connection.session is None:
        raise MalformedFrameError("AUTH_RESPONSE without a challenge")
    connection.session.on_response(command)


def on_ping(connection: Connection, command: pb.CommandPing) -> None:
    connection.write([PONG_FRAME])


def on_pong(connection: Connection, command: pb.CommandPong) -> None:
    """Any byte counts as an answer: the connection has noted it already."""


HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.CONNECT: on_connect,
    pb.BaseCommand.AUTH_RESPONSE: on_auth_response,
    pb.BaseCommand.PING: on_ping,
    pb.BaseCommand.PONG: on_pong,
}
