"""The official client's asyncio interface."""

import asyncio
from typing import Any

import pulsar.asyncio

from tests.interop.conftest import RECEIVE_MS


async def test_produce_and_consume(
    service_url: str, topic: str, credentials: dict[str, Any]
) -> None:
    client = pulsar.asyncio.Client(service_url, **credentials)
    try:
        consumer = await client.subscribe(topic, "s")
        producer = await client.create_producer(topic)
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(50)))
        seen = []
        for _ in range(50):
            message = await asyncio.wait_for(consumer.receive(), RECEIVE_MS / 1000)
            await consumer.acknowledge(message)
            seen.append(message.data())
        assert seen == [b"%d" % n for n in range(50)]
        await consumer.close()
        await producer.close()
    finally:
        await client.close()
