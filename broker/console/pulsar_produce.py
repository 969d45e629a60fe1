"""One message into a topic of Apache Pulsar, by the binary protocol: its REST takes texts only."""

import asyncio
import random
import time
from typing import Final

from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.draft import Delivery
from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.rest_produce import encode_value, parse_messages
from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.broker.protocol.messages import OutgoingMessage, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import SchemaDefinition, version_bytes
from magnetar.broker.schema.values import codec_of

_ANSWER_S: Final = 30.0
_NO_SCHEMA: Final = frozenset({"BYTES", "NONE"})


async def publish(
    client: ClusterClient, delivery: Delivery, definition: SchemaDefinition | None
) -> str:
    """The message's id, ``ledger:entry:partition``.

    Args:
        definition: what the value is encoded by, and which its schema version names.
    Raises:
        AdminError: the value doesn't fit, or no broker takes it in time.
        BrokerError: as a broker says.
    """
    message = await asyncio.to_thread(_message, delivery, definition)
    part = await _part(client, delivery, message)
    producer = ClientProducer(await client.owner(part), part)
    try:
        async with asyncio.timeout(_ANSWER_S):
            has_schema = definition is not None and definition.type not in _NO_SCHEMA
            await producer.open(schema=definition if has_schema else None)
            message.schema_version = version_bytes(producer.schema_version)
            ledger_id, entry_id = await _stored(client, producer, message)
    except TimeoutError as error:
        raise AdminError(503, f"{part}: no receipt within {_ANSWER_S:.0f} s") from error
    return f"{ledger_id}:{entry_id}:{part.partition_index}"


def _message(delivery: Delivery, definition: SchemaDefinition | None) -> OutgoingMessage:
    """With its value encoded. Raises AdminError: it doesn't fit."""
    try:
        _, (message,) = parse_messages({"messages": [delivery.message]})
    except ApiError as error:
        raise AdminError(error.status, str(error)) from error
    if message.is_value or definition is None or definition.type in _NO_SCHEMA:
        return message
    try:
        codec = codec_of(definition)
    except InvalidSchemaError as error:
        raise AdminError(400, f"{definition.type}: {error}") from error
    if codec is None:
        raise AdminError(501, f"values of a schema {definition.type} have no text form: give bytes")
    if (wrong := encode_value(codec, message)) is not None:
        raise AdminError(400, f"{definition.type}: {wrong}") from wrong
    return message


async def _part(client: ClusterClient, delivery: Delivery, message: OutgoingMessage) -> TopicName:
    """The partition that is asked for, or that of the key, as Pulsar's clients choose it."""
    name = TopicName.parse(str(delivery.topic))
    parts = await client.parts(name)
    if delivery.partition is not None:
        if delivery.partition >= len(parts) or parts[0] == name:
            raise AdminError(404, f"{name} has no partition {delivery.partition}")
        return parts[delivery.partition]
    if message.key is not None:
        return parts[java_string_hash(message.key) % len(parts)]
    return random.choice(parts)


async def _stored(
    client: ClusterClient, producer: ClientProducer, message: OutgoingMessage
) -> tuple[int, int]:
    """Publish; ledger and entry of the receipt."""
    receipt: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    def settled(_: int, __: int, ledger_id: int, entry_id: int, error: Exception | None) -> None:
        if receipt.done():  # given up
            return
        if error is None:
            receipt.set_result((ledger_id, entry_id))
        else:
            receipt.set_exception(error)

    message.sequence_id = producer.last_sequence_id + 1
    entry = encode_single(producer.producer_name, message, time.time_ns() // 1_000_000)
    if len(entry[1]) > client.message_bytes_max:
        # A broker would close the connection without a word.
        raise AdminError(413, f"{len(entry[1])} bytes, limit {client.message_bytes_max}")
    producer.publish([entry], settled)
    return await receipt
