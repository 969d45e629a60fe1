"""When the routes' parameters are analysed."""

import subprocess
import sys
from inspect import iscoroutinefunction

import httpx

from magnetar.broker.http.parameters import Called, Dependency, asked_by
from magnetar.broker.http.routing.route import declared_routes
from magnetar.broker.http.routing.route_call import RouteCall
from magnetar.broker.http.server.app import create_app
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker


def test_a_server_loads_no_fastapi_to_start() -> None:
    """It is a quarter of the start's processor time, and for the OpenAPI document alone."""
    program = (
        "import sys, magnetar.broker.http.server.app, magnetar.broker.http.server.server\n"
        "assert not {'fastapi', 'opentelemetry'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_a_request_analyses_only_its_route() -> None:
    """To read the parameters of all 500 takes a tenth of a second."""
    broker = await Broker().start()
    app = create_app(broker.service)
    for route in declared_routes(app):
        route._call = None  # of other tests: routes are their modules'
    transport = httpx.ASGITransport(app)
    paths = ("/metrics", "/admin/v2/tenants", "/lookup/v2/x", "/admin/v2/clusters")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.get(path) for path in paths * 2]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200] * 2
    analysed = [route.path for route in declared_routes(app) if route._call is not None]
    assert analysed == ["/admin/v2/tenants", "/admin/v2/clusters", "/metrics"]
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


async def test_every_route_can_be_called() -> None:
    """It asks for nothing that only FastAPI's own call gives."""
    broker = await Broker().start()
    for route in declared_routes(create_app(broker.service)):
        run_at_once(RouteCall.read(route.function, route.path))
    await broker.close()


async def test_no_request_waits_for_a_thread() -> None:
    """All functions run on the loop that owns what they read."""
    broker = await Broker().start()
    routes = list(declared_routes(create_app(broker.service)))
    assert len(routes) > 300
    beside_the_loop = {
        f"{route.path}: {call}"
        for route in routes
        for call in _called(route.function, route.path)
        if not any(map(iscoroutinefunction, (call, type(call).__call__)))
    }
    await broker.close()
    assert beside_the_loop == set()


def _called(function: Called, path: str) -> list[Called]:
    marks = [each.mark for each in asked_by(function, path)]
    inner = [mark.call for mark in marks if isinstance(mark, Dependency)]
    return [function, *(each for call in inner for each in _called(call, path))]
