"""What a bookie says of itself in its registration, and where registrations are."""

import json
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.errors import BookieUnavailableError

LEDGERS_ROOT: Final = "/ledgers"
AVAILABLE_PATH: Final = f"{LEDGERS_ROOT}/available"
READ_ONLY_NAME: Final = "readonly"  # a directory below AVAILABLE_PATH, not a bookie
READ_ONLY_PATH: Final = f"{AVAILABLE_PATH}/{READ_ONLY_NAME}"
COOKIES_PATH: Final = "/ledgers/cookies"
UNDER_REPLICATION_ROOT: Final = "/ledgers/underreplication"
RACKS_PATH: Final = "/bookies"  # operators' word on where bookies stand, at Pulsar's path
#: While this node exists no client puts bookies in quarantine: an operator's switch.
NO_HEALTH_CHECK_PATH: Final = "/ledgers/disableHealthCheck"
PROTOCOL: Final = "magnetar-bookie-grpc"
RPC_PROTOCOL: Final = "bookie-rpc"
"""Of the endpoint that answers BookKeeper's protocol, as BookKeeper names it."""
DEFAULT_LOCATION: Final = "/default-zone/default-upgrade-domain"  # of a bookie without a location


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """Value of a bookie's node.

    Attributes:
        network_location: ``/zone/upgrade-domain``.
        address: host and port of its gRPC service; None: it has none, or is only reached in its
            own process.
        incarnation: differs between two processes of one bookie; 0: not known.
        rpc_address: of BookKeeper's protocol; None: it is only reached in its own process.
        web_address: of its HTTP server. Our own form of registrations doesn't have it.
    """

    bookie_id: str
    network_location: str
    address: tuple[str, int] | None = None
    incarnation: int = field(default=0, compare=False)
    rpc_address: tuple[str, int] | None = None
    web_address: tuple[str, int] | None = field(default=None, compare=False)

    @property
    def any_address(self) -> tuple[str, int] | None:
        """Where it is reached, by whichever protocol."""
        return self.address or self.rpc_address

    def encode(self) -> bytes:
        found = ((PROTOCOL, self.address), (RPC_PROTOCOL, self.rpc_address))
        endpoints = [
            {"id": "bookie", "protocol": protocol, "host": address[0], "port": address[1]}
            for protocol, address in found
            if address is not None
        ]
        fields: dict[str, object] = {
            "bookieId": self.bookie_id,
            "endpoints": endpoints,
            "networkLocation": self.network_location,
        }
        if self.incarnation:
            fields["incarnation"] = self.incarnation
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> "ServiceInfo":
        """Raises: BookieUnavailableError: it can't be read, so the bookie's address isn't known."""
        try:
            fields = json.loads(data)
            addresses = {
                endpoint["protocol"]: (str(endpoint["host"]), int(endpoint["port"]))
                for endpoint in fields.get("endpoints", ())
            }
            bookie_id, location = str(fields["bookieId"]), str(fields["networkLocation"])
            incarnation = int(fields.get("incarnation", 0))
            return cls(
                *(bookie_id, location, addresses.get(PROTOCOL), incarnation),
                rpc_address=addresses.get(RPC_PROTOCOL),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BookieUnavailableError(f"unreadable registration of a bookie: {error}") from error
