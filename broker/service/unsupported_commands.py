"""Commands that are understood and declined: transactions (wire-protocol 4.20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.protocol import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from broker.service.connection import Connection

__all__ = ["HANDLERS"]


def on_transaction(connection: Connection, command: Any) -> None:
    connection.reply_error(
        command.request_id, pb.NotAllowedError, "Transactions are not enabled on this broker"
    )


HANDLERS: Final[dict[int, Any]] = dict.fromkeys(
    (
        pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        pb.BaseCommand.NEW_TXN,
        pb.BaseCommand.ADD_PARTITION_TO_TXN,
        pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
        pb.BaseCommand.END_TXN,
        pb.BaseCommand.END_TXN_ON_PARTITION,
        pb.BaseCommand.END_TXN_ON_SUBSCRIPTION,
    ),
    on_transaction,
)
