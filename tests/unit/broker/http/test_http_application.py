"""The application finds the route that Starlette's router would find, trying all in turn."""

from re import Pattern
from typing import Any, TypeAlias

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from magnetar.broker.http.routing.route import Route, declared_routes
from magnetar.broker.http.server.app import create_app
from magnetar.broker.http.server.application import Application
from tests.unit.broker.doubles import Broker

Found: TypeAlias = "tuple[str | int, dict[str, Any]]"
"""Path of the route, or a status, and what the path has for its names."""
WORDS = ("non-persistent", "tenants")


def in_turn(routes: list[tuple[Route, Pattern[str]]], method: str, path: str) -> Found:
    """As Starlette's router does it."""
    tried = [(route, pattern.match(path)) for route, pattern in routes]
    of_path = [(route, match.groupdict()) for route, match in tried if match]
    for route, names in of_path:
        if method == route.method:
            return route.path, names
    return 405 if of_path else 404, {}


def by_area(app: Application, method: str, path: str) -> Found:
    scope: dict[str, Any] = {"method": method, "path": path}
    try:
        return app._route_of(scope).path, scope["path_params"]
    except HTTPException as error:
        return error.status_code, {}


def paths_of(routes: list[Route]) -> list[str]:
    """Of every route, with each of some words for its parameters; and of none."""
    templates = {route.path for route in routes}
    found = {"*", "/", "", "//", "/admin", "/admin/v2", "/admin/v2/", "/none/of/them"}
    for template in templates:
        parts = template.split("/")
        for word in WORDS:
            filled = [word if "{" in part else part for part in parts]
            found |= {"/".join(filled), "/".join([*filled, word]), "/".join(filled[:-1])}
    return sorted(found)


async def test_each_path_has_the_route_that_it_would_have_in_turn() -> None:
    broker = await Broker().start()
    app = create_app(broker.service)
    assert isinstance(app, Application)
    routes = list(declared_routes(app))
    patterns = [(route, compile_path(route.path)[0]) for route in routes]
    reached = set()
    for path in paths_of(routes):
        for method in ("GET", "POST"):
            found = by_area(app, method, path)
            assert found == in_turn(patterns, method, path), path
            reached.add(found[0])
    assert len(reached) > 200
    await broker.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("DELETE", "/topics/persistent/public/default/t", 405, "POST"),
        ("PATCH", "/admin/v2/tenants/public", 405, "GET, PUT, POST, DELETE"),
        ("GET", "/admin/v2/none", 404, None),
        ("GET", "/none", 404, None),
    ],
)
async def test_what_no_route_takes(
    method: str, path: str, status: int, allowed: str | None
) -> None:
    broker = await Broker().start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    assert set(answer.json()) == {"reason"}
    await broker.close()
