"""PRODUCER and CLOSE_PRODUCER. SEND is in send_path.py."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.connection.lookup_commands import parse_topic
from magnetar.broker.errors import (
    BrokerError,
    BrokerMetadataError,
    NamingError,
    ServiceNotReadyError,
    as_broker_error,
)
from magnetar.broker.producer.producer import Producer, ProducerRequest
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import definition_of, version_bytes
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

_NAME_LENGTH_MAX: Final = 4_096
_METADATA_LENGTH_MAX: Final = 64 * 1024


def on_producer(connection: Connection, command: pb.CommandProducer) -> None:
    producer_id, request_id = command.producer_id, command.request_id
    known = connection.producers.get(producer_id)
    try:
        name = parse_topic(command.topic)
        if isinstance(known, ProducerRequest):
            raise ServiceNotReadyError("Producer is already present on the connection")
        if known is not None:
            _reply_success(connection, request_id, known, ready=not known.waiting)
            return
        _check_sizes(command)
        request = _request(connection, command)
    except BrokerError as error:
        connection.reply_error(request_id, error)
        return
    connection.producers[producer_id] = request  # until the producer is created
    connection.run(_create(connection, request_id, name, request))


def _check_sizes(command: pb.CommandProducer) -> None:
    """What a producer keeps in memory for its life stays small."""
    if len(command.producer_name) > _NAME_LENGTH_MAX:
        raise NamingError(f"Producer name longer than {_NAME_LENGTH_MAX} characters")
    if sum(len(item.key) + len(item.value) for item in command.metadata) > _METADATA_LENGTH_MAX:
        raise BrokerMetadataError(f"Producer metadata longer than {_METADATA_LENGTH_MAX} bytes")


async def _create(
    connection: Connection, request_id: int, name: TopicName, request: ProducerRequest
) -> None:
    producer_id = request.producer_id
    try:
        topic = await connection.service.loader.load(name, create=True, acquire=False)
        producer = await topic.add_producer(request)
        if request.cancelled or connection.closed or topic.fenced:
            # The client gave up, or the topic was closed, while it was being created.
            topic.remove_producer(producer)
            raise ServiceNotReadyError("Topic is being closed")
    except (BrokerError, MetadataError) as failed:
        error = as_broker_error(failed)
        if not request.cancelled:
            logger.info("connection %s: no producer on %s: %s", connection.remote, name, error)
            connection.reply_error(request_id, error)
        return
    finally:
        if connection.producers.get(producer_id) is request:
            del connection.producers[producer_id]
    connection.producers[producer_id] = producer
    connection.sends.created(producer_id)
    for limit in (topic.rate_limits.publish, connection.service.publish_throttle):
        if limit is not None:
            connection.sends.read_less(limit)
    _reply_success(connection, request_id, producer, ready=not producer.waiting)
    if (access := connection.service.access) is not None:
        access.created(connection, producer)


def _request(connection: Connection, command: pb.CommandProducer) -> ProducerRequest:
    """Raises InvalidSchemaError."""
    request_id = command.request_id

    def on_ready(producer: Producer, error: BrokerError | None) -> None:
        """The second answer to the same request, when the wait is over."""
        if connection.producers.get(producer.producer_id) is not producer:
            return
        if error is None:
            _reply_success(connection, request_id, producer, ready=True)
        else:
            connection.sends.forget(producer)
            connection.reply_error(request_id, error)

    name = command.producer_name or connection.service.next_producer_name()
    return ProducerRequest(
        sink=connection.sends,
        producer_id=command.producer_id,
        name=name,
        epoch=command.epoch,
        user_provided_name=command.user_provided_producer_name,
        access_mode=command.producer_access_mode,
        # Some clients send an epoch with Shared as well: it means nothing there
        topic_epoch=command.topic_epoch
        if command.HasField("topic_epoch") and command.producer_access_mode != pb.Shared
        else None,
        encrypted=command.encrypted,
        metadata={item.key: item.value for item in command.metadata},
        initial_subscription=command.initial_subscription_name,
        schema=definition_of(command.schema) if command.HasField("schema") else None,
        on_ready=on_ready,
    )


def _reply_success(
    connection: Connection, request_id: int, producer: Producer, *, ready: bool
) -> None:
    reply = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer.name,
        last_sequence_id=producer.topic.last_sequence_id(producer.name),
        schema_version=version_bytes(producer.schema_version),
        producer_ready=ready,
    )
    if ready and producer.topic_epoch is not None:
        reply.topic_epoch = producer.topic_epoch
    connection.send(reply)


def on_close_producer(connection: Connection, command: pb.CommandCloseProducer) -> None:
    producer_id, request_id = command.producer_id, command.request_id
    connection.sends.publish()  # what came before this command in the same read
    known = connection.producers.get(producer_id)
    if known is None:
        connection.reply_success(request_id)
    elif isinstance(known, ProducerRequest):
        known.cancelled = True
        del connection.producers[producer_id]
        connection.reply_success(request_id)
    else:
        producer = known

        def settled() -> None:
            producer.topic.remove_producer(producer)
            if connection.producers.get(producer_id) is producer:
                connection.sends.forget(producer)
            connection.reply_success(request_id)

        if producer.sent == producer.answered:
            settled()
        else:
            producer.on_settled = settled


HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.PRODUCER: on_producer,
    pb.BaseCommand.CLOSE_PRODUCER: on_close_producer,
}
