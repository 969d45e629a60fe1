"""When the routes' parameters are analysed."""

from typing import Any

import httpx
import pytest
from fastapi.dependencies import utils

from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker


async def test_a_request_analyses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters of 500 routes are known since their modules were imported."""
    broker = await Broker().start()
    analysed: list[Any] = []
    monkeypatch.setattr(utils, "get_dependant", lambda **options: analysed.append(options))
    transport = httpx.ASGITransport(create_app(broker.service))
    paths = ("/metrics", "/admin/v2/tenants", "/lookup/v2/x", "/admin/v2/clusters")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200]
    assert analysed == []
    await broker.close()
