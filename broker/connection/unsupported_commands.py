"""Commands that are understood and declined: transactions, scalable topics.

No client sends the latter unasked: CONNECTED doesn't say that this broker has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection


def on_transaction(connection: Connection, command: Any) -> None:
    connection.reply_error(
        command.request_id, pb.NotAllowedError, "Transactions are not enabled on this broker"
    )


def on_watch_coordinators(connection: Connection, command: Any) -> None:
    connection.reply_error(
        command.watch_id, pb.NotAllowedError, "Transactions are not enabled on this broker"
    )


def on_scalable_topic(connection: Connection, command: Any) -> None:
    _decline_scalable(connection, command.request_id)


def on_scalable_session(connection: Connection, command: Any) -> None:
    # It has no request id; what its sender waits by is the session's.
    _decline_scalable(connection, command.session_id)


def on_scalable_watch(connection: Connection, command: Any) -> None:
    _decline_scalable(connection, command.watch_id)


def on_close(connection: Connection, command: Any) -> None:
    """Nothing was opened, and nobody waits for an answer."""


def _decline_scalable(connection: Connection, request_id: int) -> None:
    connection.reply_error(
        request_id, pb.NotAllowedError, "Scalable topics are not supported by this broker"
    )


_TRANSACTIONS: Final[dict[int, Any]] = dict.fromkeys(
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
HANDLERS: Final[dict[int, Any]] = {
    **_TRANSACTIONS,
    pb.BaseCommand.SCALABLE_TOPIC_LOOKUP: on_scalable_session,
    pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: on_scalable_topic,
    pb.BaseCommand.SCALABLE_TOPIC_CLOSE: on_close,
    pb.BaseCommand.WATCH_SCALABLE_TOPICS: on_scalable_watch,
    pb.BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE: on_close,
    pb.BaseCommand.WATCH_TC_ASSIGNMENTS: on_watch_coordinators,
    pb.BaseCommand.WATCH_TC_ASSIGNMENTS_CLOSE: on_close,
}
