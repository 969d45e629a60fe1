"""Topics that were unloaded leave memory, although nothing frees a ring of objects at once."""

import gc
import weakref

import httpx
import pytest

from magnetar.broker.http.server.app import create_app
from magnetar.broker.service import memory
from tests.unit.broker.doubles import Broker

TOPIC = "persistent://public/default/t"


async def test_an_unloaded_topic_is_freed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_GONE_MIN", 1)
    service, admin = broker.service, "/admin/v2/persistent/public/default/t"
    transport = httpx.ASGITransport(create_app(service))
    gc.disable()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.put(admin)).is_success
            assert (await client.get(f"{admin}/stats")).is_success
            topic = weakref.ref(service.topics[TOPIC])
            assert (await client.put(f"{admin}/unload")).is_success
        assert TOPIC not in service.topics
        service.periodic_tasks._trims.is_quiet = True
        service.periodic_tasks._collect()
        assert topic() is None
    finally:
        gc.enable()
