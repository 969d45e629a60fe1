"""A route's function gets what FastAPI would give it; the same requests are sent to both."""

from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse, Response

from magnetar.broker.http.dependencies import DECODED
from magnetar.broker.http.routing.route_call import RouteCall

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


async def _second(
    calls: Annotated[list[str], Depends(_first)], also: str | None = None
) -> str | None:
    calls.append("second")
    return also


async def answer(
    request: Request,
    calls: Annotated[list[str], Depends(_first)],
    second: Annotated[str | None, Depends(_second)],
    name: str,
    number: Annotated[int, Path(ge=0, lt=11)],
    decoded: Annotated[str, DECODED],
    some: Annotated[list[str], Query(default_factory=list)],
    needed: str,
    word: str = "earliest",
    count: Annotated[int | None, Query(ge=1, le=10)] = None,
    kind: Literal["text", "base64"] = "text",
    yes: bool = False,
    x_listener: Annotated[str | None, Header()] = None,
) -> Response:
    given = (name, number, decoded, some, needed, word, count, kind, yes, x_listener, second)
    return JSONResponse([request.method, calls, *given])


async def refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse([first["type"], first["msg"], list(first["loc"])], 400)


def client_of(route: Any) -> httpx.AsyncClient:
    app = FastAPI(exception_handlers={RequestValidationError: refused})
    app.router.routes.append(route)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


ROUTE = APIRoute(PATH, answer, response_model=None)
CALL = RouteCall(ROUTE.dependant)


class CalledByUs(APIRoute):
    def get_route_handler(self) -> Any:
        return CALL


@given(VALUES, VALUES, VALUES, QUERY, st.none() | VALUES)
async def test_the_same_values(
    name: str, number: str, decoded: str, query: list[tuple[str, str]], listener: str | None
) -> None:
    headers = httpx.Headers({} if listener is None else {b"x-listener": listener.encode()})
    path, params = f"/{name}/{number}/{decoded}", urlencode(query)
    async with client_of(ROUTE) as theirs, client_of(CalledByUs(PATH, answer)) as ours:
        expected = await theirs.get(path, params=params, headers=headers)
        found = await ours.get(path, params=params, headers=headers)
    assert (found.status_code, found.text) == (expected.status_code, expected.text)


async def test_a_body_that_fastapi_would_read_is_refused() -> None:
    async def with_body(body: dict[str, int]) -> None: ...

    with pytest.raises(AssertionError, match="parameters that we don't read"):
        RouteCall(APIRoute("/", with_body, response_model=None).dependant)
