"""The deep health check: a message is published, synced, dispatched and read back."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.http.feed import Feed
from broker.http.messages import OutgoingMessage, encode_single
from broker.http.publisher import Publisher
from broker.protocol.topic_name import TopicName
from broker.service.consumer import EXCLUSIVE, SubscribeRequest
from managed_ledger.position import LATEST

if TYPE_CHECKING:
    from broker.service.broker_service import BrokerService

__all__ = ["HEALTH_TOPIC", "HealthCheckError", "check_round_trip"]

HEALTH_TOPIC = TopicName.parse("persistent://pulsar/system/healthcheck")
_BUFFER_BYTES = 1024 * 1024


class HealthCheckError(Exception):
    """The round trip failed; the text names the step."""


class _Ticket:
    def __init__(self) -> None:
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self, index: int, count: int, ledger_id: int, first_entry_id: int) -> None:
        if not self.stored.done():
            self.stored.set_result(None)

    def failed(self, index: int, count: int, error: Exception) -> None:
        if not self.stored.done():
            self.stored.set_exception(error)


async def check_round_trip(service: BrokerService) -> None:
    """Write a message to the health topic and wait until a reader of the end sees it.

    Raises:
        HealthCheckError: a step failed. The caller sets the time limit.
    """
    arrived = asyncio.Event()
    lost = asyncio.Event()
    token = secrets.token_bytes(12)

    def on_ready() -> None:
        deliveries = feed.take(len(feed.ready))
        feed.release(deliveries)
        feed.add_credit(len(deliveries))
        if any(delivery.message.payload == token for delivery in deliveries):
            arrived.set()

    feed = Feed(service, on_ready, lost.set, _BUFFER_BYTES)
    publisher: Publisher | None = None
    step = "subscribe"
    try:
        request = SubscribeRequest(
            subscription=f"health-{secrets.token_hex(5)}",
            sub_type=EXCLUSIVE,
            consumer_name="health",
            durable=False,
            start_position=LATEST,
        )
        await feed.open(HEALTH_TOPIC, request, remote="127.0.0.1:0", client_version="health")
        feed.add_credit(100)
        step = "publish"
        publisher = await Publisher.open(
            service, HEALTH_TOPIC, "", remote="127.0.0.1:0", client_version="health"
        )
        ticket = _Ticket()
        message = OutgoingMessage(token, 0)
        entry = encode_single(publisher.producer_name, message, service.clock())
        publisher.producers[0].publish([entry], ticket)
        await ticket.stored
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
        feed.close()
        if publisher is not None:
            publisher.close()
