"""Calls a route's function with what its parameters ask for (``parameters.py``).

FastAPI's own call does much more than our routes use (forms, streams, models of answers,
dependencies that end with the request) and took half of a small call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Self

from pydantic import Field, TypeAdapter, ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import (
    Called,
    Dependency,
    FunctionParameter,
    Mark,
    ParameterPlace,
    asked_by,
)
from magnetar.metadata.loop_turns import Steps

_TEXTS: Final = (str, str | None)
_LISTS: Final = (list[str], list[str] | None)
_BOUNDS: Final = frozenset({"ge", "le", "lt"})


class RouteCall:
    """A function and its dependencies, each of which is called once a request."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []  # dependencies in front of those that want them
        self._places: dict[Called, int] = {}

    @classmethod
    def read(cls, function: Called, path: str) -> Steps[Self]:
        """Of a function, a step for it and for each dependency.

        REQUIRES: it and its dependencies are coroutine functions.
        """
        found = cls()
        yield from found._add(function, path)
        return found

    def _add(self, call: Called, path: str) -> Steps[int]:
        if (place := self._places.get(call)) is None:
            asked, wanted = asked_by(call, path), list[tuple[str, int]]()
            for each in asked:
                if isinstance(each.mark, Dependency):
                    wanted.append((each.name, (yield from self._add(each.mark.call, path))))
            yield
            place = self._places[call] = len(self._steps)
            self._steps.append(_Step(call, asked, wanted))
            yield
        return place

    async def __call__(self, request: Request) -> Any:
        """Raises ApiError: 400, a parameter is missing or can't be read."""
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

    def __init__(
        self, call: Called, asked: list[FunctionParameter], wanted: list[tuple[str, int]]
    ) -> None:
        """``wanted``: by parameter, which step's result."""
        self.call, self.wanted = call, wanted
        self.request_name = next((each.name for each in asked if each.mark is None), None)
        of: dict[ParameterPlace, list[_Parameter]] = {place: [] for place in ParameterPlace}
        for each in asked:
            if isinstance(each.mark, Mark):
                of[each.mark.place].append(_Parameter(each.name, each.kind, each.mark))
        self.of_path, self.of_query, self.of_headers = of.values()


class _Parameter:
    """A value of the path, the query or the headers."""

    __slots__ = (
        *("_adapter", "_default", "_is_list", "_is_required", "_key", "_new_default", "name"),
    )

    def __init__(self, name: str, kind: Any, mark: Mark) -> None:
        options = mark.options
        self.name, self._key = name, mark.key(name)
        self._is_list = kind in _LISTS
        self._default, self._is_required = mark.default, mark.is_required
        self._new_default: Callable[[], Any] | None = options.get("default_factory")
        bounds = {bound: options[bound] for bound in options.keys() & _BOUNDS}
        self._adapter: TypeAdapter[Any] | None = None  # None: the text is the value
        if bounds or kind not in _TEXTS:
            self._adapter = TypeAdapter(Annotated[kind, Field(**bounds)])

    def read(self, values: Mapping[str, Any]) -> Any:
        """Raises ApiError."""
        if self._is_list:
            assert isinstance(values, QueryParams | Headers)
            value: Any = values.getlist(self._key) or None
        else:
            value = values.get(self._key)
        if value is None:
            if self._is_required:
                raise ApiError(400, f"{self._key}: Field required")
            return self._default if self._new_default is None else self._new_default()
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise ApiError(400, f"{self._key}: {error.errors()[0]['msg']}") from None
