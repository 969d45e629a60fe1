"""Starlette's application with one step between our layers and a route.

Starlette puts four around each request that catch errors and watch whether its answer has begun;
the outermost of ours does that (request_context.py). Its router tries all routes in turn: 0.3 ms
for the last of 530.
"""

from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from magnetar.broker.http.errors import response_of
from magnetar.broker.http.page_answers import refusal_for
from magnetar.broker.http.routing.redirects import redirection
from magnetar.broker.http.routing.route import Route, declared_routes

_METHODS: Final = ("GET", "PUT", "POST", "DELETE")


class Application(Starlette):
    """REQUIRES: ``sort_routes`` was called when all routes were there, before the first request."""

    _routes_by_area: dict[str, list[Route]]
    """Those that paths of an area may be of, in their order."""
    _other_routes: list[Route]
    """Those that a path of any other area may be of."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self.serve
        for layer, args, kwargs in reversed(self.user_middleware):
            app = layer(app, *args, **kwargs)
        return app

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP that has passed our layers. Raises what breaks off an answer."""
        request = Request(scope, receive, send)
        try:
            answer = await self._route_of(scope).answer(request)
        except ClientDisconnect:
            raise
        except Exception as error:
            answer = await _answer_for(request, error)
        await answer(scope, receive, send)

    def _route_of(self, scope: Scope) -> Route:
        """Raises HTTPException: 404, 405."""
        path: str = scope["path"]
        allowed: set[str] = set()
        for route in self._routes_by_area.get(_area(path), self._other_routes):
            if (names := route.names_in(path)) is None:
                continue
            if scope["method"] == route.method:
                scope["route"], scope["path_params"] = route, names
                return route
            allowed.add(route.method)
        if not allowed:
            raise HTTPException(404)
        methods = ", ".join(method for method in _METHODS if method in allowed)
        raise HTTPException(405, headers={"Allow": methods})

    def sort_routes(self) -> None:
        """By areas of paths. A millisecond, so that no request does it."""
        routes = [(_area(route.path), route) for route in declared_routes(self)]
        areas = {area for area, _ in routes}
        found: dict[str, list[Route]] = {area: [] for area in areas if "{" not in area}
        fitting = {area: [area] for area in found}
        for area in areas - found.keys():
            pattern = compile_path(f"/{area}")[0]
            fitting[area] = [each for each in found if pattern.match(f"/{each}")]
        for area, route in routes:
            for each in fitting[area]:
                found[each].append(route)
        self._routes_by_area = found
        self._other_routes = [route for area, route in routes if "{" in area]


def _area(path: str) -> str:
    """What is told apart before any route's expression is tried: ``admin/v2/tenants``,
    ``metrics``."""
    parts = path.split("/", 4)[1:4]
    return "/".join(parts if parts[:1] == ["admin"] else parts[:1])


async def _answer_for(request: Request, error: Exception) -> Response:
    """To a request that failed before its answer began."""
    if (elsewhere := await redirection(request, error)) is not None:
        return elsewhere
    return refusal_for(request.scope, response_of(error))
