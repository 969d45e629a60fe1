"""A route's function gets what FastAPI would give it; the same requests are sent to both."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import fastapi
import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticUndefined
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from magnetar.broker.http import parameters
from magnetar.broker.http.dependencies import DECODED
from magnetar.broker.http.errors import ApiError, response_of
from magnetar.broker.http.parameters import asked_by
from magnetar.broker.http.routing.documented_route import documented_route
from magnetar.broker.http.routing.route import declared_routes
from magnetar.broker.http.routing.route_call import RouteCall
from magnetar.broker.http.server.app import create_app
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker

PATH = "/{name}/{number}/{decoded}"
VALUES = st.sampled_from(["", "0", "1", "10", "11", "-1", "x", "a%2Bb", "true", "text", "é"])
QUERY = st.lists(
    st.tuples(st.sampled_from(["word", "count", "some", "kind", "needed", "yes", "also"]), VALUES),
    max_size=6,
)


async def _first(request: Request) -> list[str]:
    calls: list[str] = request.scope.setdefault("calls", [])
    calls.append("first")
    return calls


def endpoint(marks: Any) -> Callable[..., Awaitable[Response]]:
    """A route's function with marks of FastAPI's or of ours."""

    async def second(
        calls: Annotated[list[str], marks.Depends(_first)], also: str | None = None
    ) -> str | None:
        calls.append("second")
        return also

    async def answer(
        request: Request,
        calls: Annotated[list[str], marks.Depends(_first)],
        second: Annotated[str | None, marks.Depends(second)],
        name: str,
        number: Annotated[int, marks.Path(ge=0, lt=11)],
        decoded: Annotated[str, DECODED],
        some: Annotated[list[str], marks.Query(default_factory=list)],
        needed: str,
        word: str = "earliest",
        count: Annotated[int | None, marks.Query(ge=1, le=10)] = None,
        kind: Literal["text", "base64"] = "text",
        yes: bool = False,
        x_listener: Annotated[str | None, marks.Header()] = None,
        named: str | None = marks.Query(None, alias="also"),
    ) -> Response:
        given = (name, number, decoded, some, needed, word, count, kind, yes, x_listener, second)
        return JSONResponse([request.method, calls, *given, named])

    return answer


async def refused(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        error = ApiError(400, f"{'.'.join(first['loc'][1:])}: {first['msg']}")
    return response_of(error)


def client_of(route: Any) -> httpx.AsyncClient:
    app = fastapi.FastAPI(exception_handlers={RequestValidationError: refused, ApiError: refused})
    app.router.routes.append(route)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


THEIRS = APIRoute(PATH, endpoint(fastapi), response_model=None)
CALL = run_at_once(RouteCall.read(endpoint(parameters), PATH))


class CalledByUs(APIRoute):
    def get_route_handler(self) -> Any:
        return CALL


OURS = CalledByUs(PATH, endpoint(fastapi))


@given(VALUES, VALUES, VALUES, QUERY, st.none() | VALUES)
async def test_the_same_values(
    name: str, number: str, decoded: str, query: list[tuple[str, str]], listener: str | None
) -> None:
    headers = httpx.Headers({} if listener is None else {b"x-listener": listener.encode()})
    path, params = f"/{name}/{number}/{decoded}", urlencode(query)
    async with client_of(THEIRS) as theirs, client_of(OURS) as ours:
        expected = await theirs.get(path, params=params, headers=headers)
        found = await ours.get(path, params=params, headers=headers)
    assert (found.status_code, found.text) == (expected.status_code, expected.text)


async def test_a_body_that_fastapi_would_read_is_refused() -> None:
    async def with_body(body: dict[str, int]) -> None: ...

    with pytest.raises(AssertionError, match="parameters that we don't read"):
        run_at_once(RouteCall.read(with_body, "/"))


async def test_fastapi_documents_what_each_route_reads() -> None:
    """Of every function: the places, names and defaults of its parameters, and nothing else."""
    broker = await Broker().start()
    routes = list(declared_routes(create_app(broker.service)))
    await broker.close()
    for route in routes:
        assert _theirs(documented_route(route).dependant) == _ours(route.function, route.path)


def _theirs(dependant: Dependant) -> list[Any]:
    assert dependant.body_params == dependant.cookie_params == []
    fields = [
        ("path", dependant.path_params),
        ("query", dependant.query_params),
        ("header", dependant.header_params),
    ]
    found = [
        (place, each.name, each.alias, info.is_required(), info.default)
        for place, of_place in fields
        for each in of_place
        for info in [each.field_info]
    ]
    inner = [(each.name, _theirs(each)) for each in dependant.dependencies]
    return [dependant.request_param_name, sorted(found), inner]


def _ours(function: parameters.Called, path: str) -> list[Any]:
    asked = asked_by(function, path)
    found = [
        (
            *(mark.place.value, each.name, mark.key(each.name), mark.is_required),
            PydanticUndefined if mark.default is inspect.Parameter.empty else mark.default,
        )
        for each in asked
        if isinstance(mark := each.mark, parameters.Mark)
    ]
    inner = [
        (each.name, _ours(each.mark.call, path))
        for each in asked
        if isinstance(each.mark, parameters.Dependency)
    ]
    request = next((each.name for each in asked if each.mark is None), None)
    return [request, sorted(found), inner]


def test_every_function_of_a_route_is_read_in_a_step_of_its_own() -> None:
    """All at once are two to four milliseconds of the first request for a page of the index."""
    steps = sum(1 for _ in RouteCall.read(endpoint(parameters), PATH))
    assert steps == 2 * len(CALL._steps) > 2
