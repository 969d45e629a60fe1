"""Declares REST routes: path, summary, who may use it, which broker serves it, what it answers.

``access`` and ``mode`` of a module's ``Routes`` hold for each of its routes that doesn't name its
own. Both are applied before anything else of the route runs: its parameters aren't read before.
A route without a summary takes it from the docstring of its function, and its description too.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypedDict, TypeVar, Unpack

from starlette import routing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.responses import JsonResponse, TextResponse
from magnetar.broker.http.routing.request_routing import RoutingMode as RoutingMode
from magnetar.broker.http.routing.request_routing import send_to_owner
from magnetar.broker.http.routing.route_call import RouteCall
from magnetar.broker.http.routing.route_permissions import Access as Access
from magnetar.broker.http.routing.route_permissions import authorize
from magnetar.metadata.loop_turns import next_turn, run_in_turns

Statuses = Mapping[int, str | dict[str, Any]]
"""Answers by status: what one means, or FastAPI's whole description of it."""
_Function = Callable[..., Awaitable[Response | None]]
Endpoint = TypeVar("Endpoint", bound=_Function)

_SENT_BY_BUNDLE: Final = (RoutingMode.TOPIC, RoutingMode.ACQUIRE)
_AUTHORITATIVE: Final = {
    "name": "authoritative",
    "in": "query",
    "required": False,
    "description": "`true`: the asked broker takes what none owns, as one that was chosen",
    "schema": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Authoritative"},
}
"""Read by ``send_to_owner``, so it is described here; a declared parameter costs 6 µs a call."""


class RouteOptions(TypedDict, total=False):
    access: Access
    mode: RoutingMode
    status: int
    """Of success; left out: 200 of a GET and of what answers with something, else 204."""
    example: Any
    """Of the JSON that it answers with."""
    text: str
    """The same of a plain text."""
    empty: str
    """The meaning of a success that has no body though it is 200."""
    statuses: Statuses
    """Its other answers."""
    body: dict[str, Any]
    """``body_doc`` of a body that isn't read by a ``Body`` parameter."""
    parameters: list[dict[str, Any]]
    """Of the query, that the function reads by itself."""
    authoritative: bool
    """Whether that parameter is described; left out: where a bundle's owner is asked for."""
    description: str
    name: str
    response_class: type[Response]
    include_in_schema: bool


class Route(routing.BaseRoute):
    """A route that runs once its caller is known to be allowed, at the broker that serves it.

    Its function is read with the first request, in a millisecond at most; FastAPI reads it for the
    document alone (``documented_route.py``).
    """

    def __init__(
        self,
        method: str,
        path: str,
        function: _Function,
        options: dict[str, Any],
        access: Access,
        mode: RoutingMode,
    ) -> None:
        """``options``: of FastAPI's ``APIRoute``."""
        self.method, self.path = method, path
        front, brace, self._tail = path.rpartition("}")
        # `re` keeps patterns that it has compiled, and all routes together have 74 such fronts.
        self._front, front_format, _ = routing.compile_path(front + brace)
        self.path_format = front_format + self._tail
        self.access, self.mode = access, mode
        self.function, self.options = function, options
        self._call: RouteCall | None = None

    def names_in(self, path: str) -> dict[str, str] | None:
        """What a path has for the names of this one's; None: it is of another route."""
        if not path.endswith(self._tail):
            return None
        match = self._front.match(path[: len(path) - len(self._tail)])
        return None if match is None else match.groupdict()

    async def answer(self, request: Request) -> Response:
        """Of a request whose ``path_params`` are known. Raises whatever its function does."""
        if request.scope["app"].state.access is not None:
            await authorize(request, self.access)
        if self.mode is not RoutingMode.LOCAL:
            await send_to_owner(request, self.mode)
        if self._call is None:
            self._call = await run_in_turns(RouteCall.read(self.function, self.path))
            await next_turn()
        answer: Response | None = await self._call(request)
        return self._nothing() if answer is None else answer

    def _nothing(self) -> Response:
        kind: type[Response] = self.options["response_class"]
        return kind(None, status_code=self.options["status_code"])


def declared_routes(app: Starlette) -> Iterator[Route]:
    """All routes of HTTP, be they documented or not; REQUIRES: all were declared by ``Routes``."""
    for route in app.routes:
        if not isinstance(route, routing.WebSocketRoute):
            assert isinstance(route, Route), f"{route} declares nothing"
            yield route


class _Decorator(Protocol):
    def __call__(
        self, path: str, summary: str = "", **options: Unpack[RouteOptions]
    ) -> Callable[[Endpoint], Endpoint]: ...


class Routes:
    """The routes of one resource."""

    def __init__(
        self,
        prefix: str = "",
        *,
        tag: str = "",
        access: Access,
        mode: RoutingMode,
        statuses: Statuses = MappingProxyType({}),
        authoritative: bool | None = None,
        include_in_schema: bool = True,
    ) -> None:
        """Values for routes that don't name their own."""
        self.all: list[Route] = []
        self._prefix, self._tags = prefix, [tag] if tag else []
        self._access, self._mode, self._statuses = access, mode, statuses
        self._authoritative, self._include_in_schema = authoritative, include_in_schema

        self.get, self.put = self._decorator("GET"), self._decorator("PUT")
        self.post, self.delete = self._decorator("POST"), self._decorator("DELETE")

    def _decorator(self, method: str) -> _Decorator:
        def of_route(
            path: str, summary: str = "", **options: Unpack[RouteOptions]
        ) -> Callable[[Endpoint], Endpoint]:
            def decorate(endpoint: Endpoint) -> Endpoint:
                self.declare(method, path, endpoint, summary, **options)
                return endpoint

            return decorate

        return of_route

    def declare(
        self,
        method: str,
        path: str,
        endpoint: _Function,
        summary: str,
        **options: Unpack[RouteOptions],
    ) -> None:
        """Declare a route; see ``RouteOptions``. A function that returns nothing answers 204."""
        description = options.get("description", "")
        if not summary:
            summary, description = _of_docstring(endpoint.__doc__ or "")
        mode = options.get("mode", self._mode)
        is_shown = not options.keys().isdisjoint(("example", "text", "empty"))
        status = options.get("status", 200 if is_shown or method == "GET" else 204)
        responses: dict[int | str, dict[str, Any]] = {
            code: {"description": each} if isinstance(each, str) else each
            for code, each in {**self._statuses, **options.get("statuses", {})}.items()
        }
        response_class = Response if status == 204 else JsonResponse
        if "example" in options:
            responses[status] = _shown("application/json", options["example"])
        if "text" in options:
            responses[status] = _shown("text/plain", options["text"])
            response_class = TextResponse
        if "empty" in options:
            responses[status] = {"description": options["empty"], **_shown("text/plain", "")}
            response_class = Response
        parameters = list(options.get("parameters", ()))
        by_mode = mode in _SENT_BY_BUNDLE if self._authoritative is None else self._authoritative
        if options.get("authoritative", by_mode):
            parameters.append(_AUTHORITATIVE)
        described = {
            "tags": self._tags,
            "summary": summary or None,
            "description": description,
            "name": options.get("name", endpoint.__name__),
            "status_code": status,
            "response_class": options.get("response_class", response_class),
            "responses": responses,
            "include_in_schema": options.get("include_in_schema", self._include_in_schema),
            "openapi_extra": {
                **({"parameters": parameters} if parameters else {}),
                **options.get("body", {}),
            },
        }
        access = options.get("access", self._access)
        self.all.append(Route(method, self._prefix + path, endpoint, described, access, mode))


def _of_docstring(text: str) -> tuple[str, str]:
    """The first paragraph without its full stop, and the others."""
    first, *others = (" ".join(each.split()) for each in inspect.cleandoc(text).split("\n\n"))
    return first.removesuffix("."), "\n\n".join(others)


def _shown(kind: str, example: Any) -> dict[str, Any]:
    return {"content": {kind: {"example": example}}}
