"""Asks for each binary command whether its sender may, before its handler sees it.

``RULES`` has a row for every type of command that clients may send; a test compares it with the
enum. SEND, ACK and FLOW need no question: they name a producer or consumer that was asked about
when it was created, and that is ended when its right is taken away (access_control.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.message import DecodeError, Message

from magnetar.broker.auth.authorization import Caller, Permission, Resource
from magnetar.broker.connection.connection import Connection
from magnetar.broker.connection.handlers import HANDLERS
from magnetar.broker.connection.lookup_commands import (
    check_namespace,
    parse_topic,
    refuse_partitions,
    reply_lookup_error,
)
from magnetar.broker.connection.receive_buffer import PauseReason
from magnetar.broker.connection.transaction_commands import refuse_end
from magnetar.broker.errors import AuthorizationError, BrokerError, as_broker_error
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import MalformedFrameError
from magnetar.broker.subscription.consumer import Consumer
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.service.access_control import AccessControl

Need: TypeAlias = tuple[Caller, Permission, Resource]
Refuse: TypeAlias = "Callable[[Connection, Any, BrokerError], None]"
_LOOKUP, _PRODUCE, _CONSUME = Permission.LOOKUP, Permission.PRODUCE, Permission.CONSUME


@dataclass(frozen=True, slots=True)
class CommandRule:
    """What one type of command needs."""

    needs: Callable[[Connection, Any], list[Need]] | None
    """All that must be allowed; raises BrokerError, nothing can be meant. None: nothing."""
    what: str = ""
    """What the refusal says is not allowed, in Pulsar's words."""
    refuse: Refuse | None = None
    """Answers in the form that the command's sender understands; None: with ERROR."""


def _caller(connection: Connection) -> Caller:
    return Caller(connection.role, connection.original_role)


def _lookup_needs(connection: Connection, command: Any) -> list[Need]:
    """Of LOOKUP and PARTITIONED_METADATA, which may name a principal of their own."""
    resource = Resource.of_topic(parse_topic(command.topic))
    needs: list[Need] = [(_caller(connection), _LOOKUP, resource)]
    if (named := command.original_principal) and named != connection.original_role:
        needs.append((Caller(connection.role, named), _LOOKUP, resource))
    return needs


def _producer_needs(connection: Connection, command: pb.CommandProducer) -> list[Need]:
    caller, topic = _caller(connection), parse_topic(command.topic)
    needs: list[Need] = [(caller, _PRODUCE, Resource.of_topic(topic))]
    if subscription := command.initial_subscription_name:
        needs.append((caller, _CONSUME, Resource.of_topic(topic, subscription)))
    return needs


def _subscribe_needs(connection: Connection, command: pb.CommandSubscribe) -> list[Need]:
    resource = Resource.of_topic(parse_topic(command.topic), command.subscription)
    return [(_caller(connection), _CONSUME, resource)]


def _namespace_needs(connection: Connection, command: Any) -> list[Need]:
    check_namespace(command.namespace)
    return [(_caller(connection), _LOOKUP, Resource.of_namespace(command.namespace))]


def _consumer_needs(connection: Connection, command: Any) -> list[Need]:
    """Of commands about a consumer of this connection; there is nothing about others to learn."""
    consumer = connection.consumers.get(command.consumer_id)
    if not isinstance(consumer, Consumer):
        return []
    return [(_caller(connection), _CONSUME, consumer.subscription.resource)]


def _topic_needs(permission: Permission) -> Callable[[Connection, Any], list[Need]]:
    def needs(connection: Connection, command: Any) -> list[Need]:
        topic = Resource.of_topic(parse_topic(command.topic))
        return [(_caller(connection), permission, topic)]

    return needs


def _superuser_needs(connection: Connection, command: Any) -> list[Need]:
    return [(_caller(connection), Permission.SUPERUSER, Resource())]


def _refuse_lookup(connection: Connection, command: Any, error: BrokerError) -> None:
    reply_lookup_error(connection, command.request_id, error)


def _refuse_with(kind: type[Message]) -> Refuse:
    """With the error fields of a command's own response."""

    def refuse(connection: Connection, command: Any, error: BrokerError) -> None:
        reply: Any = kind()
        reply.request_id = command.request_id
        reply.error_code, reply.error_message = error.wire_code, str(error)
        connection.send(reply)

    return refuse


_C = pb.BaseCommand
_FREE: Final = CommandRule(None)
_UNKNOWN: Final = CommandRule(_superuser_needs, "send this command")
"""Of a command that the table forgot."""

RULES: Final[dict[int, CommandRule]] = {
    **dict.fromkeys(
        (
            # The session itself
            *(_C.CONNECT, _C.AUTH_RESPONSE, _C.PING, _C.PONG),
            # About a producer or a consumer that this connection was allowed to create
            *(_C.SEND, _C.CLOSE_PRODUCER, _C.ACK, _C.FLOW, _C.CLOSE_CONSUMER),
            *(_C.REDELIVER_UNACKNOWLEDGED_MESSAGES, _C.WATCH_TOPIC_LIST_CLOSE),
            # About transactions: the coordinator asks whose they are
            *(_C.TC_CLIENT_CONNECT_REQUEST, _C.NEW_TXN, _C.END_TXN),
            *(_C.ADD_PARTITION_TO_TXN, _C.ADD_SUBSCRIPTION_TO_TXN),
            # Declined for every client (unsupported_commands.py)
            *(_C.SCALABLE_TOPIC_LOOKUP, _C.SCALABLE_TOPIC_SUBSCRIBE, _C.SCALABLE_TOPIC_CLOSE),
            *(_C.WATCH_SCALABLE_TOPICS, _C.WATCH_SCALABLE_TOPICS_CLOSE),
            *(_C.WATCH_TC_ASSIGNMENTS, _C.WATCH_TC_ASSIGNMENTS_CLOSE),
        ),
        _FREE,
    ),
    # The same, but it changes the subscription or tells of it: asked again
    _C.UNSUBSCRIBE: CommandRule(_consumer_needs, "unsubscribe"),
    _C.SEEK: CommandRule(_consumer_needs, "seek"),
    _C.GET_LAST_MESSAGE_ID: CommandRule(_consumer_needs, "get the last message id"),
    _C.CONSUMER_STATS: CommandRule(
        _consumer_needs,
        "get statistics",
        _refuse_with(pb.CommandConsumerStatsResponse),
    ),
    # About topics and namespaces
    _C.PARTITIONED_METADATA: CommandRule(
        _lookup_needs, "Get Partition Metadata", refuse_partitions
    ),
    _C.LOOKUP: CommandRule(_lookup_needs, "Lookup", _refuse_lookup),
    _C.PRODUCER: CommandRule(_producer_needs, "Produce"),
    _C.SUBSCRIBE: CommandRule(_subscribe_needs, "subscribe"),
    _C.GET_TOPICS_OF_NAMESPACE: CommandRule(_namespace_needs, "GetTopicsOfNamespace"),
    _C.WATCH_TOPIC_LIST: CommandRule(_namespace_needs, "watchTopicList"),
    _C.GET_SCHEMA: CommandRule(
        _topic_needs(_LOOKUP),
        "get the schema",
        _refuse_with(pb.CommandGetSchemaResponse),
    ),
    _C.GET_OR_CREATE_SCHEMA: CommandRule(
        _topic_needs(_PRODUCE),
        "create the schema",
        _refuse_with(pb.CommandGetOrCreateSchemaResponse),
    ),
    # Between brokers
    _C.END_TXN_ON_PARTITION: CommandRule(
        _superuser_needs, "end transactions", refuse_end(pb.CommandEndTxnOnPartitionResponse)
    ),
    _C.END_TXN_ON_SUBSCRIPTION: CommandRule(
        _superuser_needs, "end transactions", refuse_end(pb.CommandEndTxnOnSubscriptionResponse)
    ),
}


class CommandAuthorizer:
    """Between a connection's frames and the handlers, while authorization is enabled."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        # What came behind a command whose answer had to be read from the store
        self._held: dict[Connection, deque[tuple[int, Any]]] = {}

    def take(self, connection: Connection, kind: int, command: Any) -> None:
        """Hand a command to its handler, now or in its turn, or refuse it.

        Raises:
            MalformedFrameError: from the handler.
        """
        if (held := self._held.get(connection)) is not None:
            held.append((kind, command))
        elif not self._pass_nowait(connection, kind, command):
            self._held[connection] = deque(((kind, command),))
            # At most what one read brought is held.
            connection.pause_reading(PauseReason.ACCESS)
            # A task that is cancelled before its first step would not clean up.
            connection.on_closed[self] = partial(self._forget, connection)
            connection.run(self._release(connection))

    def _forget(self, connection: Connection) -> None:
        self._held.pop(connection, None)
        connection.on_closed.pop(self, None)

    def _pass_nowait(self, connection: Connection, kind: int, command: Any) -> bool:
        """Whether it could be decided without waiting."""
        rule = RULES.get(kind, _UNKNOWN)
        if rule.needs is None:
            HANDLERS[kind](connection, command)
            return True
        try:
            needs = rule.needs(connection, command)
        except BrokerError as error:
            _refuse(connection, rule, command, error)
            return True
        for need in needs:
            may = self._access.may_nowait(*need)
            if may is None:
                return False
            if not may:
                self._refused(connection, rule, command, need)
                return True
        HANDLERS[kind](connection, command)
        return True

    async def _release(self, connection: Connection) -> None:
        held = self._held[connection]
        try:
            while held:
                kind, command = held[0]
                if self._pass_nowait(connection, kind, command):
                    held.popleft()
                else:
                    await self._pass(connection, kind, command)
                    held.popleft()
                if connection.closed:
                    return
        except (MalformedFrameError, DecodeError, ValueError) as error:
            connection.close(f"malformed frame: {error}")
        finally:
            self._forget(connection)
            connection.resume_reading(PauseReason.ACCESS)

    async def _pass(self, connection: Connection, kind: int, command: Any) -> None:
        rule = RULES.get(kind, _UNKNOWN)
        assert rule.needs is not None
        try:
            for need in rule.needs(connection, command):
                if not await self._access.may(*need):
                    self._refused(connection, rule, command, need)
                    return
        except (MetadataError, BrokerError) as error:
            _refuse(connection, rule, command, as_broker_error(error))
            return
        if not connection.closed:
            HANDLERS[kind](connection, command)

    def _refused(self, connection: Connection, rule: CommandRule, command: Any, need: Need) -> None:
        caller, permission, resource = need
        self._access.refusal("binary", connection.remote, caller, permission, resource)
        error = AuthorizationError(f"Client is not authorized to {rule.what}")
        _refuse(connection, rule, command, error)


def _refuse(connection: Connection, rule: CommandRule, command: Any, error: BrokerError) -> None:
    if connection.closed:
        return
    if rule.refuse is not None:
        rule.refuse(connection, command, error)
    else:
        connection.reply_error(command.request_id, error)
