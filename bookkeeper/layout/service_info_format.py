"""A bookie's registration as Apache BookKeeper stores it: ``BookieServiceInfoFormat``.

BookKeeper's own clients go by the endpoint of ``bookie-rpc``, ours by that of our protocol if there
is one. What only we know is in the properties.
"""

from typing import Final

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.proto.data_formats_pb2 import BookieServiceInfoFormat
from magnetar.bookkeeper.service_info import (
    DEFAULT_LOCATION,
    PROTOCOL,
    RPC_PROTOCOL,
    ServiceInfo,
)

_ENDPOINTS: Final = (  # attribute of ServiceInfo, endpoint's id, its protocol
    ("web_address", "httpserver", "http"),
    ("rpc_address", "bookie", RPC_PROTOCOL),
    ("address", "magnetar", PROTOCOL),
)
_LOCATION: Final = "magnetar/networkLocation"
_INCARNATION: Final = "magnetar/incarnation"


def encode(info: ServiceInfo) -> bytes:
    """Value of its node."""
    message = BookieServiceInfoFormat()
    for attribute, name, protocol in _ENDPOINTS:
        address: tuple[str, int] | None = getattr(info, attribute)
        if address is not None:
            host, port = address
            message.endpoints.add(id=name, host=host, port=port, protocol=protocol)
    message.properties[_LOCATION] = info.network_location
    if info.incarnation:
        message.properties[_INCARNATION] = str(info.incarnation)
    return message.SerializeToString(deterministic=True)


def decode_registration(bookie_id: str, value: bytes) -> ServiceInfo:
    """Of a bookie of either kind: the first byte tells JSON from this form.

    Raises:
        BookieUnavailableError: it can't be read, or says nothing of how to reach the bookie.
    """
    return ServiceInfo.decode(value) if value.startswith(b"{") else _decode(bookie_id, value)


def _decode(bookie_id: str, value: bytes) -> ServiceInfo:
    if not value:  # before BookKeeper 4.11
        host, colon, port = bookie_id.rpartition(":")
        if colon and port.isdigit():
            address = host, int(port)
            return ServiceInfo(bookie_id, DEFAULT_LOCATION, rpc_address=address)
        raise BookieUnavailableError(f"bookie {bookie_id}: neither its id nor its node says where")
    try:
        message = BookieServiceInfoFormat.FromString(value)
        incarnation = int(message.properties.get(_INCARNATION, "0"))
    except (DecodeError, ValueError) as error:
        raise BookieUnavailableError(
            f"bookie {bookie_id}: unreadable registration: {error}"
        ) from error
    found: dict[str, tuple[str, int]] = {}
    for endpoint in message.endpoints:
        found.setdefault(endpoint.protocol, (endpoint.host, endpoint.port))
    addresses = {attribute: found.get(protocol) for attribute, _, protocol in _ENDPOINTS}
    if addresses["rpc_address"] is None and addresses["address"] is None:
        raise BookieUnavailableError(f"bookie {bookie_id}: it has no endpoint of {RPC_PROTOCOL}")
    return ServiceInfo(
        bookie_id,
        message.properties.get(_LOCATION, DEFAULT_LOCATION),
        addresses["address"],
        incarnation,
        rpc_address=addresses["rpc_address"],
        web_address=addresses["web_address"],
    )
