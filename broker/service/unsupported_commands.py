"""Commands that are understood and declined: transactions, and schemas beyond bytes.

Each failure uses the response type in which the official clients look for it (wire-protocol 4.17,
4.20 and trap 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.errors import BrokerError, IncompatibleSchemaError
from broker.protocol import pulsar_api_pb2 as pb
from broker.service.lookup_commands import parse_topic

if TYPE_CHECKING:
    from broker.service.connection import Connection

__all__ = ["HANDLERS", "check_schema"]

_BYTES: Final = pb.Schema.Type.Value("None")  # a keyword here
_PLAIN_SCHEMAS: Final = frozenset((_BYTES, pb.Schema.AutoConsume))


def check_schema(schema: pb.Schema) -> None:
    """Accept schemas that say nothing about the payload: bytes (None) and AUTO_CONSUME.

    Raises:
        IncompatibleSchemaError: any other type.
    """
    if schema.type not in _PLAIN_SCHEMAS:
        name = pb.Schema.Type.Name(schema.type)
        raise IncompatibleSchemaError(f"Schemas of type {name} are not supported by this broker")


def on_transaction(connection: Connection, command: Any) -> None:
    connection.reply_error(
        command.request_id, pb.NotAllowedError, "Transactions are not enabled on this broker"
    )


def on_get_schema(connection: Connection, command: pb.CommandGetSchema) -> None:
    base = pb.BaseCommand(type=pb.BaseCommand.GET_SCHEMA_RESPONSE)
    reply = base.getSchemaResponse
    reply.request_id = command.request_id
    try:
        name = parse_topic(command.topic)
    except BrokerError as error:
        reply.error_code, reply.error_message = error.wire_code, str(error)
    else:
        if command.HasField("schema_version") and not command.schema_version:
            # What PRODUCER_SUCCESS gave for a bytes schema and the producer put into its messages.
            # Go asks for it before it decodes them; without an answer its table views stay empty.
            reply.schema.name, reply.schema.schema_data = name.local, b""
            reply.schema.type, reply.schema_version = _BYTES, b""
        else:
            reply.error_code = pb.TopicNotFound
            reply.error_message = f"{name} has no schema"
    connection.send(base)


def on_get_or_create_schema(connection: Connection, command: pb.CommandGetOrCreateSchema) -> None:
    base = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    reply = base.getOrCreateSchemaResponse
    reply.request_id = command.request_id
    try:
        topic = str(parse_topic(command.topic))
        if topic not in connection.service.topics:
            reply.error_code, reply.error_message = pb.TopicNotFound, f"{topic} is not loaded"
        else:
            check_schema(command.schema)
            reply.schema_version = b""
    except BrokerError as error:
        reply.error_code, reply.error_message = error.wire_code, str(error)
    connection.send(base)


HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.GET_SCHEMA: on_get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: on_get_or_create_schema,
    **dict.fromkeys(
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
    ),
}
