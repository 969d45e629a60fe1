"""Commands of transactions: to coordinators, and between them and the owners of topics.

Each failure is told in the command's own response, with the number of the coordinator: official
clients find by it who asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.auth.authorization import Caller, Permission, Resource
from magnetar.broker.connection.lookup_commands import parse_topic
from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    NotAllowedError,
    as_broker_error,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import COMMAND_HEADS, short_frame, varint
from magnetar.broker.topic.persistent_topic import NO_TRANSACTIONS
from magnetar.broker.transaction.coordinator import as_signed
from magnetar.broker.transaction.transaction_id import TransactionId

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection
    from magnetar.broker.topic.topic import Topic
    from magnetar.broker.transaction.async_coordinator import AsyncCoordinator


_NAMES_MAX: Final = 1000
"""Partitions or subscriptions that a command registers: all of them are looked at in one turn."""
_ANSWER_HEADS: Final = {
    kind: COMMAND_HEADS[kind]
    for kind in (
        pb.CommandNewTxnResponse,
        pb.CommandAddPartitionToTxnResponse,
        pb.CommandAddSubscriptionToTxnResponse,
        pb.CommandEndTxnResponse,
    )
}
"""Of those with the same fields: request, least and most bits of the transaction."""


def _enabled(handler: Callable[[Connection, Any], None]) -> Callable[[Connection, Any], None]:
    def handle(connection: Connection, command: Any) -> None:
        if connection.service.transactions is None:
            connection.reply_error(command.request_id, pb.NotAllowedError, NO_TRANSACTIONS)
        else:
            handler(connection, command)

    return handle


# To a coordinator


def on_connect(connection: Connection, command: pb.CommandTcClientConnectRequest) -> None:
    connection.run(_connect(connection, command))


async def _connect(connection: Connection, command: pb.CommandTcClientConnectRequest) -> None:
    assert connection.service.transactions is not None
    reply = pb.CommandTcClientConnectResponse(request_id=command.request_id)
    try:
        await connection.service.transactions.connect(command.tc_id)
    except (BrokerError, *STORAGE_ERRORS) as failed:
        error = as_broker_error(failed)
        reply.error, reply.message = error.wire_code, str(error)
    connection.send(reply)


def on_new(connection: Connection, command: pb.CommandNewTxn) -> None:
    number, now_ms = command.tc_id, connection.service.clock()
    reply = _Reply(connection, pb.CommandNewTxnResponse, command.request_id, number)
    if (coordinator := _coordinator(connection, number, reply)) is not None:
        ttl_ms = as_signed(command.txn_ttl_millis)
        coordinator.core.new(reply, now_ms, ttl_ms, _role(connection) or "")
        coordinator.run()


def on_add_partitions(connection: Connection, command: pb.CommandAddPartitionToTxn) -> None:
    number, least, names = command.txnid_most_bits, command.txnid_least_bits, command.partitions
    kind = pb.CommandAddPartitionToTxnResponse
    reply = _Reply(connection, kind, command.request_id, number, least)
    if (coordinator := _coordinator(connection, number, reply, len(names))) is None:
        return
    try:
        for name in names:  # kept as they are: clients ask for them in the same words
            parse_topic(name)
    except BrokerError as error:
        reply(error)
        return
    coordinator.core.add_partitions(reply, least, names, _caller(connection))
    coordinator.run()


def on_add_subscriptions(connection: Connection, command: pb.CommandAddSubscriptionToTxn) -> None:
    number, least, pairs = command.txnid_most_bits, command.txnid_least_bits, command.subscription
    kind = pb.CommandAddSubscriptionToTxnResponse
    reply = _Reply(connection, kind, command.request_id, number, least)
    if (coordinator := _coordinator(connection, number, reply, len(pairs))) is None:
        return
    names = [(each.topic, each.subscription) for each in pairs]
    try:
        for topic, _ in names:
            parse_topic(topic)
    except BrokerError as error:
        reply(error)
        return
    coordinator.core.add_subscriptions(reply, least, names, _caller(connection))
    coordinator.run()


def on_end(connection: Connection, command: pb.CommandEndTxn) -> None:
    number, least = command.txnid_most_bits, command.txnid_least_bits
    reply = _Reply(connection, pb.CommandEndTxnResponse, command.request_id, number, least)
    if (coordinator := _coordinator(connection, number, reply)) is not None:
        commits = command.txn_action == pb.COMMIT
        coordinator.core.end(reply, least, commits=commits, caller=_caller(connection))
        coordinator.run()


def _coordinator(
    connection: Connection, number: int, reply: _Reply, names: int = 0
) -> AsyncCoordinator | None:
    """None: the command is refused."""
    assert connection.service.transactions is not None
    try:
        if names > _NAMES_MAX:
            raise NotAllowedError(
                f"At most {_NAMES_MAX} partitions or subscriptions in one command"
            )
        return connection.service.transactions.get(number)
    except BrokerError as error:
        reply(error)
        return None


def _role(connection: Connection) -> str | None:
    return connection.original_role or connection.role


def _caller(connection: Connection) -> str | None:
    """Whose transactions a client may use; None: everyone's."""
    if (access := connection.service.access) is not None:
        caller = Caller(connection.role, connection.original_role)
        if access.may_nowait(caller, Permission.SUPERUSER, Resource()):
            return None
    return _role(connection)


class _Reply:
    """Answers one command to a coordinator; see `OnAnswer`.

    A slotted object: a function with the response in its closure takes three times as long.
    """

    __slots__ = ("_connection", "_kind", "_least", "_most", "_request_id")

    def __init__(
        self,
        connection: Connection,
        kind: type[Any],
        request_id: int,
        most: int,
        least: int | None = None,
    ) -> None:
        """Args:
        kind: class of the response.
        least: None: the command names no transaction.
        """
        self._connection, self._kind, self._request_id = connection, kind, request_id
        self._most, self._least = most, least

    def __call__(self, result: TransactionId | BrokerError) -> None:
        if self._connection.closed:
            return
        if not isinstance(result, BrokerError):
            frame = encode_answer(self._kind, self._request_id, result.least, self._most)
            self._connection.write([frame])
            return
        error, message = result.wire_code, str(result)
        reply = self._kind(request_id=self._request_id, error=error, message=message)
        reply.txnid_most_bits = self._most
        if self._least is not None:
            reply.txnid_least_bits = self._least
        self._connection.send(reply)


def encode_answer(kind: type[Any], request_id: int, least: int, most: int) -> bytes:
    """The frame of a response that names a transaction, as `encode` makes it; cheaper."""
    data = b"\x08%b\x10%b\x18%b" % (varint(request_id), varint(least), varint(most))
    return short_frame(_ANSWER_HEADS[kind], data)


# To the owner of a topic


def _filled(kind: type[Any], command: Any) -> Any:
    return kind(
        request_id=command.request_id,
        txnid_least_bits=command.txnid_least_bits,
        txnid_most_bits=command.txnid_most_bits,
    )


def refuse_end(kind: type[Any]) -> Callable[[Connection, Any, BrokerError], None]:
    """Answers a sender that is no superuser, in Pulsar's words."""

    def refuse(connection: Connection, command: Any, _: BrokerError) -> None:
        reply, transaction = _filled(kind, command), _end_of(command)[0]
        reply.error = pb.NotAllowedError
        reply.message = (
            f"TC client ({_role(connection)}) is not a super user, and is not allowed to operate on"
            f" transaction {transaction}"
        )
        connection.send(reply)

    return refuse


def on_end_on_partition(connection: Connection, command: pb.CommandEndTxnOnPartition) -> None:
    transaction, low_watermark, commit = _end_of(command)
    connection.run(
        _end_on_topic(
            connection,
            command.topic,
            _filled(pb.CommandEndTxnOnPartitionResponse, command),
            lambda topic: topic.end_transaction(transaction, low_watermark, commit=commit),
        )
    )


def on_end_on_subscription(connection: Connection, command: pb.CommandEndTxnOnSubscription) -> None:
    transaction, low_watermark, commit = _end_of(command)
    name = command.subscription.subscription
    connection.run(
        _end_on_topic(
            connection,
            command.subscription.topic,
            _filled(pb.CommandEndTxnOnSubscriptionResponse, command),
            lambda topic: topic.end_acknowledgements(
                name, transaction, low_watermark, commit=commit
            ),
        )
    )


def _end_of(
    command: pb.CommandEndTxnOnPartition | pb.CommandEndTxnOnSubscription,
) -> tuple[TransactionId, int, bool]:
    """The transaction, its coordinator's low watermark, whether it was committed."""
    return (
        TransactionId(command.txnid_most_bits, command.txnid_least_bits),
        as_signed(command.txnid_least_bits_of_low_watermark),
        command.txn_action == pb.COMMIT,
    )


async def _end_on_topic(
    connection: Connection, topic: str, reply: Any, end: Callable[[Topic], Awaitable[None]]
) -> None:
    try:
        name = parse_topic(topic)
        found = await connection.service.loader.load_stored(name, acquire=False)
        if found is not None:
            await end(found)
    except (BrokerError, *STORAGE_ERRORS) as failed:
        error = as_broker_error(failed)
        reply.error, reply.message = error.wire_code, str(error)
    connection.send(reply)


_C = pb.BaseCommand
HANDLERS: Final[dict[int, Any]] = {
    _C.TC_CLIENT_CONNECT_REQUEST: _enabled(on_connect),
    _C.NEW_TXN: _enabled(on_new),
    _C.ADD_PARTITION_TO_TXN: _enabled(on_add_partitions),
    _C.ADD_SUBSCRIPTION_TO_TXN: _enabled(on_add_subscriptions),
    _C.END_TXN: _enabled(on_end),
    _C.END_TXN_ON_PARTITION: _enabled(on_end_on_partition),
    _C.END_TXN_ON_SUBSCRIPTION: _enabled(on_end_on_subscription),
}
