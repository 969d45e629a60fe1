"""What FastAPI documents of a route. Loaded with the first request for the document."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import fastapi
from fastapi.routing import APIRoute

from magnetar.broker.http.dependencies import BodyReader
from magnetar.broker.http.parameters import Called, Dependency, ParameterPlace, asked_by

if TYPE_CHECKING:
    from magnetar.broker.http.routing.route import Route

_MARKS: Final = {
    ParameterPlace.PATH: fastapi.Path,
    ParameterPlace.QUERY: fastapi.Query,
    ParameterPlace.HEADER: fastapi.Header,
}


def documented_route(route: Route) -> APIRoute:
    options = route.options
    for body in _bodies(route.function, route.path):
        if "requestBody" not in options["openapi_extra"]:
            options = {**options, "openapi_extra": {**options["openapi_extra"], **body.document}}
    function = _for_fastapi(route.function, route.path)
    return APIRoute(route.path, function, methods=[route.method], response_model=None, **options)


def _bodies(function: Called, path: str) -> Iterator[BodyReader]:
    """Those that the function, or one of its dependencies, reads by a ``Body``."""
    for each in asked_by(function, path):
        if isinstance(each.mark, Dependency):
            if isinstance(each.mark.call, BodyReader):
                yield each.mark.call
            yield from _bodies(each.mark.call, path)


def _for_fastapi(function: Called, path: str) -> Any:
    """A function with the same signature, of FastAPI's marks; nobody calls it."""
    asked = {each.name: each for each in asked_by(function, path)}
    signature = inspect.signature(function, eval_str=True)
    parameters = []
    for parameter in signature.parameters.values():
        each = asked[parameter.name]
        kind, default = each.kind, parameter.default
        if isinstance(each.mark, Dependency):
            kind = Annotated[kind, fastapi.Depends(_for_fastapi(each.mark.call, path))]
        elif each.mark is not None:
            kind = Annotated[kind, _MARKS[each.mark.place](**each.mark.options)]
            default = each.mark.default
        if isinstance(default, Dependency):
            default = inspect.Parameter.empty
        keyword = inspect.Parameter.KEYWORD_ONLY  # in any order, with defaults or without
        parameters.append(parameter.replace(annotation=kind, default=default, kind=keyword))

    async def stand_in() -> None: ...

    vars(stand_in)["__signature__"] = signature.replace(parameters=parameters)
    return stand_in
