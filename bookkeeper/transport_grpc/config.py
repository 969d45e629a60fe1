"""Settings of both ends of the wire, and the gRPC options that follow from them."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.own_login import OwnLogin

ChannelOptions: TypeAlias = "list[tuple[str, int]]"

SERVICE = "magnetar.bookie.v1.Bookie"
BOOKIE_ID_HEADER = "bookie-id-bin"  # -bin: any bytes, so any id
INSTANCE_HEADER = "instance-id"
AUTHORIZATION_HEADER = "authorization"
BEARER = "Bearer "
_MIB = 1024 * 1024
_HANDSHAKE_MS = 10_000
_IDLE_MS = 600_000
_ENTRIES_MAX = 20_000  # under way at a bookie, which bounds their bytes itself


@dataclass(frozen=True, slots=True)
class TransportConfig(ProtocolConfig):
    """Of our own bookies; ``connect_timeout_s`` and what follows it is of gRPC, too.

    Attributes:
        keepalive_s: a silent peer is asked after this time, and given up after as long again.
        entry_bytes_max: the largest packet either side takes.
        connection_bytes_max: what a bookie takes from one connection before it has answered.
        read_bytes_max: read replies a bookie has in memory at a time, all clients together.
        token: a client's, shown with every call: where it is (``bookkeeper.auth.TokenSource``).
        connections_max: that a bookie accepts; 0: any number.
    """

    connect_timeout_s: float = 5.0
    entries_max: int = _ENTRIES_MAX
    keepalive_s: float = 5.0
    entry_bytes_max: int = 64 * _MIB
    connection_bytes_max: int = 32 * _MIB
    read_bytes_max: int = 64 * _MIB
    token: str = field(default="", repr=False)
    connections_max: int = 0

    @property
    def message_bytes_max(self) -> int:
        """Above the largest entry, and above what a reply may hold beside a first large entry."""
        return self.entry_bytes_max + 9 * _MIB

    def protocol(
        self, login: OwnLogin, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> ProtocolConfig:
        """Of the connections that entries go over."""
        return replace(self, frame_bytes_max=self.message_bytes_max, tls=tls, login=login)

    def common_options(self) -> ChannelOptions:
        limit = self.message_bytes_max
        return [
            ("grpc.max_send_message_length", limit),
            ("grpc.max_receive_message_length", limit),
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.keepalive_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),  # no limit: an idle stream is asked, too
        ]

    def channel_options(self) -> ChannelOptions:
        return [
            *self.common_options(),
            # Every channel its own connection: a read never waits behind megabytes of adds.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", int(self.connect_timeout_s * 1000)),
            ("grpc.initial_reconnect_backoff_ms", int(self.backoff_first_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(self.backoff_max_s * 1000)),
            ("grpc.enable_retries", 0),  # the ledger client retries, at the bookie it chooses
            ("grpc.enable_http_proxy", 0),
        ]

    def server_options(self) -> ChannelOptions:
        limit = self.connections_max
        return [
            *self.common_options(),
            *([("grpc.max_allowed_incoming_connections", limit)] if limit else []),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", _IDLE_MS),  # clients connect again when they need it
            ("grpc.so_reuseport", 0),  # a second bookie on the port is an error, not a partner
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ("grpc.max_concurrent_streams", 4096),
        ]
