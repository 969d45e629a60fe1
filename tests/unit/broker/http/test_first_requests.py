"""FastAPI reads the function of a route with its first request: not in a turn of the loop."""

import threading

import pytest
from fastapi.routing import APIRoute

from magnetar.broker.http.routing import route
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of


async def test_a_thread_reads_the_function_of_a_route(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = list[threading.Thread]()

    def noted(*args: object, **options: object) -> APIRoute:
        readers.append(threading.current_thread())
        return APIRoute(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(route, "APIRoute", noted)
    app = create_app(broker.service)
    for each in route.declared_routes(app):  # routes are the module's: others have asked before
        vars(each).pop("declared", None)
        vars(each).pop("_call", None)
    async with client_of(app, None) as client:
        for _ in range(2):
            assert (await client.get("/admin/v2/clusters")).is_success
    assert len(readers) == 1
    assert threading.main_thread() not in readers
