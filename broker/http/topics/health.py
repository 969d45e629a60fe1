"""The deep health check: a message is published, synced, dispatched and read back."""

import asyncio
import secrets
from typing import Any

from magnetar.broker.errors import BrokerError
from magnetar.broker.http.messaging.internal_consumer import InternalConsumer
from magnetar.broker.http.messaging.internal_producer import InternalProducer
from magnetar.broker.protocol.messages import OutgoingMessage, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.consumer import EXCLUSIVE, SubscribeRequest
from magnetar.bundles.local_policies import is_heartbeat
from magnetar.managed_ledger.position import LATEST

_LOCAL_NAME = "healthcheck"
_BUFFER_BYTES = 1024 * 1024


def health_topic(service: BrokerService) -> TopicName:
    """In the broker's own namespace, which no other broker serves."""
    return TopicName.parse(f"persistent://pulsar/{service.broker_id}/{_LOCAL_NAME}")


def is_health_topic(name: TopicName) -> bool:
    return name.local == _LOCAL_NAME and is_heartbeat(name.namespace)


class HealthCheckError(Exception):
    """The round trip failed; the text names the step."""


async def check_round_trip(service: BrokerService) -> None:
    """Write a message to this broker's health topic and wait until a reader of its end sees it.

    Raises:
        HealthCheckError: a step failed. The caller sets the time limit.
    """
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    read.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be too late
    token = secrets.token_bytes(12)

    def fail(error: Exception) -> None:
        if not read.done():
            read.set_exception(error)

    def on_ready() -> None:
        messages = consumer.take(len(consumer.ready))
        consumer.release(messages)
        consumer.add_credit(len(messages))
        if any(each.message.payload == token for each in messages) and not read.done():
            read.set_result(None)

    def on_lost() -> None:
        fail(HealthCheckError("read back: the topic was unloaded meanwhile"))

    def on_published(_index: int, _count: int, _ledger: int, _entry: int, error: Any) -> None:
        if error is not None:
            fail(HealthCheckError(f"publish: {error}"))

    consumer = InternalConsumer(service, on_ready, on_lost, _BUFFER_BYTES)
    producer: InternalProducer | None = None
    topic = health_topic(service)
    step = "load the topic"
    try:
        # Whatever the policies say of topics that are made by use.
        await service.loader.load(topic, create=True, forced=True)
        step = "subscribe"
        request = SubscribeRequest(
            subscription=f"health-{secrets.token_hex(5)}",
            sub_type=EXCLUSIVE,
            consumer_name="health",
            durable=False,
            start_position=LATEST,
        )
        await consumer.open((topic,), request, remote="127.0.0.1:0", client_version="health")
        consumer.add_credit(100)
        step = "publish"
        producer = await InternalProducer(service, topic, client_version="health").open()
        message = OutgoingMessage(token, 0)
        entry = encode_single(producer.producer_name, message, service.wall_clock())
        producer.producers[0].publish([entry], on_published)
        await read
    except BrokerError as error:
        raise HealthCheckError(f"{step}: {error}") from error
    finally:
        consumer.close()
        if producer is not None:
            producer.close()
