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
    TopicNotFoundError,
    as_broker_error,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.topic.persistent_topic import NO_TRANSACTIONS
from magnetar.broker.transaction.coordinator import Coordinator, as_signed
from magnetar.broker.transaction.transaction_id import TransactionId

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection
    from magnetar.broker.topic.topic import Topic
    from magnetar.broker.transaction.async_coordinator import OnAnswer


_NAMES_MAX: Final = 1000
"""Partitions or subscriptions that a command registers: all of them are looked at in one turn."""


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
    ttl_ms, now_ms = as_signed(command.txn_ttl_millis), connection.service.clock()
    reply = pb.CommandNewTxnResponse(request_id=command.request_id, txnid_most_bits=command.tc_id)
    answer = _answer(connection, reply)

    def new(core: Coordinator) -> None:
        core.new(answer, now_ms, ttl_ms, _role(connection) or "")

    _ask(connection, command.tc_id, answer, new)


def on_add_partitions(connection: Connection, command: pb.CommandAddPartitionToTxn) -> None:
    answer = _answer(connection, _filled(pb.CommandAddPartitionToTxnResponse, command))

    def add(core: Coordinator) -> None:
        _check_count(len(command.partitions))
        names = [str(parse_topic(name)) for name in command.partitions]
        core.add_partitions(answer, command.txnid_least_bits, names, _caller(connection))

    _ask(connection, command.txnid_most_bits, answer, add)


def on_add_subscriptions(connection: Connection, command: pb.CommandAddSubscriptionToTxn) -> None:
    answer = _answer(connection, _filled(pb.CommandAddSubscriptionToTxnResponse, command))

    def add(core: Coordinator) -> None:
        _check_count(len(command.subscription))
        pairs = [(str(parse_topic(x.topic)), x.subscription) for x in command.subscription]
        core.add_subscriptions(answer, command.txnid_least_bits, pairs, _caller(connection))

    _ask(connection, command.txnid_most_bits, answer, add)


def _check_count(count: int) -> None:
    if count > _NAMES_MAX:
        raise NotAllowedError(f"At most {_NAMES_MAX} partitions or subscriptions in one command")


def on_end(connection: Connection, command: pb.CommandEndTxn) -> None:
    answer = _answer(connection, _filled(pb.CommandEndTxnResponse, command))

    def end(core: Coordinator) -> None:
        commits = command.txn_action == pb.COMMIT
        core.end(answer, command.txnid_least_bits, commits=commits, caller=_caller(connection))

    _ask(connection, command.txnid_most_bits, answer, end)


def _ask(
    connection: Connection, number: int, answer: OnAnswer, ask: Callable[[Coordinator], None]
) -> None:
    assert connection.service.transactions is not None
    try:
        coordinator = connection.service.transactions.get(number)
        ask(coordinator.core)
    except BrokerError as error:
        answer(error)
        return
    coordinator.run()


def _role(connection: Connection) -> str | None:
    return connection.original_role or connection.role


def _caller(connection: Connection) -> str | None:
    """Whose transactions a client may use; None: everyone's."""
    if (access := connection.service.access) is not None:
        caller = Caller(connection.role, connection.original_role)
        if access.may_nowait(caller, Permission.SUPERUSER, Resource()):
            return None
    return _role(connection)


def _filled(kind: type[Any], command: Any) -> Any:
    return kind(
        request_id=command.request_id,
        txnid_least_bits=command.txnid_least_bits,
        txnid_most_bits=command.txnid_most_bits,
    )


def _answer(connection: Connection, reply: Any) -> OnAnswer:
    def answer(result: TransactionId | BrokerError) -> None:
        if isinstance(result, BrokerError):
            reply.error, reply.message = result.wire_code, str(result)
        else:
            reply.txnid_least_bits = result.least
        if not connection.closed:
            connection.send(reply)

    return answer


# To the owner of a topic


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
        found = await connection.service.loader.load(
            parse_topic(topic), create=False, acquire=False
        )
        await end(found)
    except TopicNotFoundError:
        pass  # it was deleted, and all of the transaction with it
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
