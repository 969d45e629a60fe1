"""The console in front of the server under test, and a topic of each test's own."""

import time
from collections.abc import AsyncIterator

import httpx
import pulsar
import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.console.server import console_app
from tests.interop.console.visitor import LOCAL
from tests.official_client import client_of


@pytest.fixture
async def console(admin_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with console_app(admin_url, ClientAuth(), bind_address="127.0.0.1") as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            yield client


@pytest.fixture
def topic(service_url: str) -> str:
    """A topic with a subscription ``billing`` that has seen none of its three messages."""
    name = f"public/default/console-{time.time_ns()}"
    with client_of(service_url) as client:
        consumer = client.subscribe(
            f"persistent://{name}", "billing", pulsar.ConsumerType.Shared, receiver_queue_size=1
        )
        consumer.close()
        producer = client.create_producer(f"persistent://{name}", batching_enabled=False)
        for number in range(3):
            producer.send(b"%d" % number)
        producer.close()
    return f"persistent/{name}"
