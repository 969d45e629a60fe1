"""GET_SCHEMA and GET_OR_CREATE_SCHEMA.

Failures use the commands' own response types, code and text together: the official clients look
for nothing else there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.connection.lookup_commands import parse_topic
from magnetar.broker.errors import BrokerError, TopicNotFoundError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.schema.definition import (
    definition_of,
    fill_wire,
    parse_version,
    version_bytes,
)
from magnetar.broker.schema.schema_checks import admit_producer

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

_BYTES: Final = pb.Schema.Type.Value("None")  # a keyword here


def on_get_schema(connection: Connection, command: pb.CommandGetSchema) -> None:
    connection.run(_get(connection, command))


async def _get(connection: Connection, command: pb.CommandGetSchema) -> None:
    reply = pb.CommandGetSchemaResponse()
    try:
        await _fill_schema(connection, command, reply)
    except Exception as failed:
        error = _error(failed, command.topic)
        reply.Clear()
        reply.error_code, reply.error_message = error.wire_code, str(error)
    reply.request_id = command.request_id
    connection.send(reply)


async def _fill_schema(
    connection: Connection, command: pb.CommandGetSchema, reply: pb.CommandGetSchemaResponse
) -> None:
    name = parse_topic(command.topic)
    if command.HasField("schema_version") and not command.schema_version:
        # What PRODUCER_SUCCESS gave for a bytes schema and the producer put into its messages.
        # Go asks for it before it decodes them; without an answer its table views stay empty.
        reply.schema.name, reply.schema.schema_data = name.local, b""
        reply.schema.type, reply.schema_version = _BYTES, b""
        return
    schemas = connection.service.schemas
    if command.HasField("schema_version"):
        version = parse_version(command.schema_version)
        found = None if version is None else await schemas.get(name, version)
    else:
        found = await schemas.latest(name)
    if found is None:
        raise TopicNotFoundError(f"{name} has no such schema")
    fill_wire(reply.schema, name.local, found.definition)
    reply.schema_version = version_bytes(found.version)


def on_get_or_create_schema(connection: Connection, command: pb.CommandGetOrCreateSchema) -> None:
    connection.run(_get_or_create(connection, command))


async def _get_or_create(connection: Connection, command: pb.CommandGetOrCreateSchema) -> None:
    reply = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    service = connection.service
    try:
        name = parse_topic(command.topic)
        if (topic := service.topics.get(str(name))) is None:
            raise TopicNotFoundError(f"{name} is not loaded")
        version = await admit_producer(topic, definition_of(command.schema), topic.policies)
        reply.schema_version = version_bytes(version)
    except Exception as failed:
        error = _error(failed, command.topic)
        reply.error_code, reply.error_message = error.wire_code, str(error)
    connection.send(reply)


def _error(failed: Exception, topic: str) -> BrokerError:
    """What the client is told; a failure of ours must not leave it waiting."""
    if isinstance(failed, BrokerError):
        return failed
    logger.error("schema of %s", topic, exc_info=failed)
    return BrokerError(f"Schema of {topic}: {failed}")


HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.GET_SCHEMA: on_get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: on_get_or_create_schema,
}
