"""Where a client goes whose topic moves: CLOSE_PRODUCER and CLOSE_CONSUMER name it (PIP-307)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.protocol import pulsar_api_pb2 as pb
    from bundles.lookup import BrokerLookup

__all__ = ["assign_broker"]


def assign_broker(
    command: pb.CommandCloseProducer | pb.CommandCloseConsumer, heir: BrokerLookup
) -> None:
    """The client may connect there without a lookup; older ones skip the fields, and look up."""
    if heir.broker_url:
        command.assignedBrokerServiceUrl = heir.broker_url
    if heir.broker_url_tls:
        command.assignedBrokerServiceUrlTls = heir.broker_url_tls
