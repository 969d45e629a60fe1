"""The deep health check: a message is published, synced, dispatched and read back."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from magnetar.broker.errors import BrokerError
from magnetar.broker.http.messaging.internal_consumer import InternalConsumer
from magnetar.broker.http.messaging.internal_producer import InternalProducer
from magnetar.broker.http.messaging.messages import OutgoingMessage, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.consumer import EXCLUSIVE, SubscribeRequest
from magnetar.bundles.local_policies import is_heartbeat
from magnetar.managed_ledger.position import LATEST

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

_LOCAL_NAME = "healthcheck"
_BUFFER_BYTES = 1024 * 1024


def health_topic(service: BrokerService) -> TopicName:
    """In the broker's own namespace, which no other broker serves."""
    return TopicName.parse(f"persistent://pulsar/{service.broker_id}/{_LOCAL_NAME}")


def is_health_topic(name: TopicName) -> bool:
    return name.local == _LOCAL_NAME and is_heartbeat(name.namespace)


class HealthCheckError(Exception):
    """The round trip failed; the text names the step."""


class _PublishContext:
    def __init__(self) -> None:
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self, index: int, count: int, ledger_id: int, first_entry_id: int) -> None:
        if not self.stored.done():
            self.stored.set_result(None)

    def failed(self, index: int, count: int, error: Exception) -> None:
        if not self.stored.done():
            self.stored.set_exception(error)


async def check_round_trip(service: BrokerService) -> None:
    """Write a message to this broker's health topic and wait until a reader of its end sees it.

    Raises:
        HealthCheckError: a step failed. The caller sets the time limit.
    """
    arrived = asyncio.Event()
    lost = asyncio.Event()
    token = secrets.token_bytes(12)

    def on_ready() -> None:
        deliveries = consumer_feed.take(len(consumer_feed.ready))
        consumer_feed.release(deliveries)
        consumer_feed.add_credit(len(deliveries))
        if any(delivery.message.payload == token for delivery in deliveries):
            arrived.set()

    consumer_feed = InternalConsumer(service, on_ready, lost.set, _BUFFER_BYTES)
    publisher: InternalProducer | None = None
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
        await consumer_feed.open(topic, request, remote="127.0.0.1:0", client_version="health")
        consumer_feed.add_credit(100)
        step = "publish"
        publisher = await InternalProducer.open(
            service, topic, "", remote="127.0.0.1:0", client_version="health"
        )
        publish_context = _PublishContext()
        message = OutgoingMessage(token, 0)
        entry = encode_single(publisher.producer_name, message, service.clock())
        publisher.producers[0].publish([entry], publish_context)
        await publish_context.stored
        step = "read back"
        waits = {asyncio.ensure_future(event.wait()) for event in (arrived, lost)}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not arrived.is_set():
            raise HealthCheckError("read back: the topic was unloaded meanwhile")
    except BrokerError as error:
        raise HealthCheckError(f"{step}: {error}") from error
    finally:
        consumer_feed.close()
        if publisher is not None:
            publisher.close()
