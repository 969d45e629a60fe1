"""Who analyses the routes, and when."""

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.dependencies import utils

from magnetar.broker.http.server.app import create_app
from magnetar.broker.http.server.route_warmup import RouteWarmup
from tests.unit.broker_service.doubles import Broker
from tests.unit.managed_ledger.cluster import eventually


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker().start()
    yield broker
    await broker.close()


async def test_the_first_request_analyses_nothing_on_the_loop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(broker.service)
    threads: list[int] = []
    get_dependant: Any = utils.get_dependant

    def noting(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return get_dependant(*args, **kwargs)

    monkeypatch.setattr(utils, "get_dependant", noting)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.get(path) for path in ("/metrics", "/admin/v2/tenants")]
        noted = len(threads)
        answers += [await client.get(path) for path in ("/lookup/v2/x", "/admin/v2/clusters")]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200]
    assert noted > 100, "of which the search of routes is made"
    assert len(threads) == noted, "once"
    assert threading.get_ident() not in threads


async def test_everybody_waits_for_one_preparation() -> None:
    looked, release = [], threading.Event()

    class Route:
        def matches(self, scope: dict[str, Any]) -> None:
            looked.append(scope["path"])
            assert release.wait(30)

    served: list[object] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["id"])

    layer = RouteWarmup(serve)
    app = SimpleNamespace(router=SimpleNamespace(routes=[Route()]))

    async def ask(number: int) -> None:
        await layer({"id": number, "app": app}, None, None)  # type: ignore[arg-type] # unused

    first, second = asyncio.create_task(ask(1)), asyncio.create_task(ask(2))
    await eventually(lambda: bool(looked))
    first.cancel()  # a client that leaves takes nobody's routes with it
    await asyncio.sleep(0)
    assert served == []
    release.set()
    await second
    await ask(3)
    assert served == [2, 3]
    assert len(looked) == 1


async def test_a_failure_is_left_to_the_search() -> None:
    class Route:
        def matches(self, scope: dict[str, Any]) -> None:
            raise ValueError("broken")

    served: list[object] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["id"])

    app = SimpleNamespace(router=SimpleNamespace(routes=[Route()]))
    scope: Any = {"id": 1, "app": app}
    await RouteWarmup(serve)(scope, None, None)  # type: ignore[arg-type] # unused
    assert served == [1]
