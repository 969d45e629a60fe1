"""Where a client goes whose topic moves: CLOSE_PRODUCER and CLOSE_CONSUMER name it (PIP-307).

Of a broker with several networks' addresses (``advertisedListeners``) that is the one of the
client's network, which the client names in its lookups, and nothing else tells for certain: behind
a translated address all networks look alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import NO_ID
from magnetar.bundles.lookup import BrokerLookup

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection


_CLOSE_VERSION: Final = 5


def send_close(
    connection: Connection,
    closing: pb.CommandCloseProducer | pb.CommandCloseConsumer,
    new_owner: BrokerLookup | None,
) -> None:
    """Tell a client that the broker ends its producer or consumer.

    Args:
        closing: with its id.
        new_owner: of the topic; None: the client looks it up.
    """
    if connection.protocol_version < _CLOSE_VERSION:
        connection.close("the client is too old to lose a single producer or consumer")
        return
    closing.request_id = NO_ID
    if new_owner is not None:
        assign_broker(closing, new_owner, connection.listener)
    connection.send(closing)


def assign_broker(
    command: pb.CommandCloseProducer | pb.CommandCloseConsumer,
    new_owner: BrokerLookup,
    listener: str | None,
) -> None:
    """The client may connect there without a lookup; older ones skip the fields, and look up.

    Args:
        listener: whose addresses the client asks for; "": for none's; None: unknown, so that it
            isn't told anything if that matters.
    """
    if new_owner.advertised_listeners and listener != "":
        reached = None if listener is None else new_owner.by_listener(listener)
        if reached is None:
            return
        new_owner = reached
    if new_owner.broker_url:
        command.assignedBrokerServiceUrl = new_owner.broker_url
    if new_owner.broker_url_tls:
        command.assignedBrokerServiceUrlTls = new_owner.broker_url_tls
