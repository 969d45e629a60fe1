"""When the routes' parameters are analysed."""

from inspect import iscoroutinefunction

import httpx
from fastapi.dependencies.models import Dependant

from magnetar.broker.http.routing.route import declared_routes
from magnetar.broker.http.routing.route_call import RouteCall
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker


async def test_a_request_analyses_only_its_route() -> None:
    """To read the parameters of all 500 takes a third of a second."""
    broker = await Broker().start()
    app = create_app(broker.service)
    for route in declared_routes(app):
        vars(route).pop("declared", None)  # of other tests: routes are their modules'
        vars(route).pop("_call", None)
    transport = httpx.ASGITransport(app)
    paths = ("/metrics", "/admin/v2/tenants", "/lookup/v2/x", "/admin/v2/clusters")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.get(path) for path in paths * 2]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200] * 2
    analysed = [route.path for route in declared_routes(app) if "declared" in vars(route)]
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
        RouteCall(route.declared.dependant)
    await broker.close()


async def test_no_request_waits_for_a_thread() -> None:
    """FastAPI calls what is no coroutine in one: a hop for each, beside the loop that owns it."""
    broker = await Broker().start()
    routes = list(declared_routes(create_app(broker.service)))
    assert len(routes) > 300
    beside_the_loop = {
        f"{route.path}: {each.call}"
        for route in routes
        for each in _dependants(route.declared.dependant)
        if not any(map(iscoroutinefunction, (each.call, type(each.call).__call__)))
    }
    await broker.close()
    assert beside_the_loop == set()


def _dependants(of: Dependant) -> list[Dependant]:
    return [of, *(each for inner in of.dependencies for each in _dependants(inner))]
