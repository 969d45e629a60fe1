"""Calls a route's function with what its parameters ask for.

FastAPI reads what they ask for, once. Its own call does much more than our routes use (forms,
streams, models of answers, dependencies that end with the request) and took half of a small call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request

if TYPE_CHECKING:
    from fastapi._compat import ModelField

_TEXTS: Final = (str, str | None)


class RouteCall:
    """A function and its dependencies, each of which is called once a request."""

    def __init__(self, dependant: Dependant) -> None:
        """REQUIRES: its function and those of its dependencies are coroutine functions."""
        self._steps: list[_Step] = []  # dependencies in front of those that want them
        self._places: dict[Any, int] = {}
        self._add(dependant)

    def _add(self, dependant: Dependant) -> int:
        if (place := self._places.get(dependant.call)) is None:
            wanted = [(each.name or "", self._add(each)) for each in dependant.dependencies]
            place = self._places[dependant.call] = len(self._steps)
            self._steps.append(_Step(dependant, wanted))
        return place

    async def __call__(self, request: Request) -> Any:
        """Raises RequestValidationError: a parameter is missing or can't be read."""
        results: list[Any] = []
        for step in self._steps:
            values = {name: results[place] for name, place in step.wanted}
            if step.request_name is not None:
                values[step.request_name] = request
            for parameter in step.of_path:
                values[parameter.name] = parameter.read(request.path_params)
            for parameter in step.of_query:
                values[parameter.name] = parameter.read(request.query_params)
            for parameter in step.of_headers:
                values[parameter.name] = parameter.read(request.headers)
            results.append(await step.call(**values))
        return results[-1]


class _Step:
    """One function and its parameters."""

    __slots__ = ("call", "of_headers", "of_path", "of_query", "request_name", "wanted")

    def __init__(self, dependant: Dependant, wanted: list[tuple[str, int]]) -> None:
        """``wanted``: by parameter, which step's result."""
        assert dependant.call is not None
        unknown = (dependant.body_params, dependant.cookie_params, dependant.response_param_name)
        assert not any(unknown), f"{dependant.call} has parameters that we don't read"
        self.call, self.wanted = dependant.call, wanted
        self.request_name = dependant.request_param_name
        self.of_path = [_Parameter(each, "path") for each in dependant.path_params]
        self.of_query = [_Parameter(each, "query") for each in dependant.query_params]
        self.of_headers = [_Parameter(each, "header") for each in dependant.header_params]


class _Parameter:
    """A value of the path, the query or the headers."""

    __slots__ = ("_field", "_is_list", "_is_text", "_new_default", "_place", "name")

    def __init__(self, field: ModelField, place: str) -> None:
        info = field.field_info
        self.name, self._field, self._place = field.name, field, place
        self._is_text = info.annotation in _TEXTS and not info.metadata
        self._is_list = info.annotation in (list[str], list[str] | None)
        # Pydantic looks at the factory's signature at each call, which leaves garbage in cycles.
        self._new_default = cast("Callable[[], Any] | None", info.default_factory)

    def read(self, values: Mapping[str, Any]) -> Any:
        """Raises RequestValidationError."""
        field, name = self._field, self._field.alias
        if self._is_list:
            assert isinstance(values, QueryParams | Headers)
            value: Any = values.getlist(name) or None
        else:
            value = values.get(name)
        if value is None:
            if field.field_info.is_required():
                self._refuse([{"type": "missing", "msg": "Field required"}])
            return field.get_default() if self._new_default is None else self._new_default()
        if self._is_text:
            return value
        value, errors = field.validate(value)
        if errors:
            self._refuse(errors)
        return value

    def _refuse(self, errors: list[dict[str, Any]]) -> NoReturn:
        raise RequestValidationError(
            [{**each, "loc": (self._place, self._field.alias)} for each in errors]
        )
