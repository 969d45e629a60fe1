"""What a route's function asks for: marks in its signature, as FastAPI has them.

``routing/route_call.py`` reads them at a route's first request, and FastAPI for the document only
(``routing/documented_route.py``): to load FastAPI is a quarter of a start.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from starlette.requests import Request

Called = Callable[..., Awaitable[Any]]

_NONE: Final = inspect.Parameter.empty
_SCALARS: Final = (str, int, float, bool, Enum, NoneType)


class ParameterPlace(Enum):
    PATH = "path"
    QUERY = "query"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Mark:
    """A parameter of the path, the query or the headers."""

    place: ParameterPlace
    default: Any
    options: dict[str, Any]
    """FastAPI's and Pydantic's: bounds, ``alias``, ``default_factory``, and what is documented."""

    @property
    def is_required(self) -> bool:
        return self.default is _NONE and "default_factory" not in self.options

    def key(self, name: str) -> str:
        """Under which name the request has a parameter."""
        text: str = self.options.get("alias", name)
        return text.replace("_", "-") if self.place is ParameterPlace.HEADER else text


@dataclass(frozen=True, slots=True)
class Dependency:
    """The result of another function, which is called once a request."""

    call: Called


def Query(default: Any = _NONE, **options: Any) -> Any:
    return Mark(ParameterPlace.QUERY, default, options)


def Path(**options: Any) -> Any:
    return Mark(ParameterPlace.PATH, _NONE, options)


def Header(**options: Any) -> Any:
    return Mark(ParameterPlace.HEADER, _NONE, options)


def Depends(call: Called) -> Any:
    return Dependency(call)


@dataclass(frozen=True, slots=True)
class FunctionParameter:
    """One parameter of a function."""

    name: str
    kind: Any
    """Its type, with what Pydantic is to do with the value; without the mark."""
    mark: Mark | Dependency | None
    """None: the request."""


def asked_by(function: Called, path: str) -> list[FunctionParameter]:
    """What a function of a route, or of one of its dependencies, asks for.

    Without a mark a parameter is of the path that names it, else of the query.
    """
    in_path = set(re.findall(r"\{(\w+)", path))
    found = []
    for name, each in inspect.signature(function, eval_str=True).parameters.items():
        kind, marks = each.annotation, [each.default]
        if get_origin(kind) is Annotated:
            kind, *others = get_args(kind)
            marks += others
            if rest := [other for other in others if not isinstance(other, Mark | Dependency)]:
                kind = Annotated[kind, *rest]
        if kind is Request:
            found.append(FunctionParameter(name, kind, None))
            continue
        mark = next((mark for mark in marks if isinstance(mark, Mark | Dependency)), None)
        if mark is None:
            assert _is_scalar(kind), f"{function} has parameters that we don't read: {name}"
            mark = Path() if name in in_path else Query()
        if isinstance(mark, Mark) and not isinstance(each.default, Mark):
            mark = Mark(mark.place, each.default, mark.options)
        found.append(FunctionParameter(name, kind, mark))
    return found


def _is_scalar(kind: Any) -> bool:
    origin = get_origin(kind)
    if origin in (Annotated, Union, UnionType):
        kinds = get_args(kind)[:1] if origin is Annotated else get_args(kind)
        return all(map(_is_scalar, kinds))
    return origin is Literal or (isinstance(kind, type) and issubclass(kind, _SCALARS))
