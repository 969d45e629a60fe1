"""Who gives up while a consumer or producer is being created leaves nothing at the broker."""

import asyncio
import secrets
from typing import Any

from magnetar.broker.cli.binary_client import CommandClient
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.client_connection import CONSUMER, PRODUCER
from magnetar.broker.protocol.topic_name import TopicName

NOBODY: Any = None


async def test_a_consumer_and_a_producer_that_are_given_up(service_url: str) -> None:
    topic = f"persistent://public/default/given-up-{secrets.token_hex(4)}"

    def commands(id_: int) -> list[tuple[str, Any]]:
        """Only one of each can be there at a time."""
        exclusive = pb.CommandSubscribe.Exclusive
        consumer = pb.CommandSubscribe(
            topic=topic, subscription="s", subType=exclusive, consumer_id=id_
        )
        producer = pb.CommandProducer(topic=topic, producer_id=id_, producer_name="p")
        return [(CONSUMER, consumer), (PRODUCER, producer)]

    async with CommandClient(ClusterTarget(service_url, "")) as client:
        connection = await client.owner(TopicName.parse(topic))
        for kind, command in commands(1):
            given_up = asyncio.ensure_future(connection.register(kind, 1, NOBODY, command))
            await asyncio.sleep(0)  # it is sent
            given_up.cancel()
            await asyncio.wait([given_up])
            assert given_up.cancelled()
        for kind, command in commands(2):
            await connection.register(kind, 2, NOBODY, command)
