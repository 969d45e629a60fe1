"""When the routes' parameters are analysed."""

from inspect import iscoroutinefunction
from typing import Any

import httpx
import pytest
from fastapi.dependencies import utils
from fastapi.dependencies.models import Dependant

from magnetar.broker.http.routing.route import Route
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


async def test_calls_about_topics_are_refused_while_the_broker_starts() -> None:
    """HTTP listens before anybody can tell whose they are."""
    broker = Broker()
    transport = httpx.ASGITransport(create_app(broker.service))
    path = "/admin/v2/persistent/public/default/orders/stats"
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(path)).status_code == 503
        await broker.start()
        assert (await client.get(path)).status_code == 404
    await broker.close()


async def test_no_request_waits_for_a_thread() -> None:
    """FastAPI calls what is no coroutine in one: a hop for each, beside the loop that owns it."""
    broker = await Broker().start()
    routes = [each for each in create_app(broker.service).routes if isinstance(each, Route)]
    assert len(routes) > 300
    beside_the_loop = {
        f"{route.path}: {each.call}"
        for route in routes
        for each in _dependants(route.dependant)
        if not any(map(iscoroutinefunction, (each.call, type(each.call).__call__)))
    }
    await broker.close()
    assert beside_the_loop == set()


def _dependants(of: Dependant) -> list[Dependant]:
    return [of, *(each for inner in of.dependencies for each in _dependants(inner))]
