"""uvicorn's two protocol classes are what ours are made for (docs/decisions/0048)."""

import ast
import inspect
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from magnetar.broker.http.server.request_cycle import RequestCycle
from magnetar.broker.http.server.request_protocol import LenientHttpProtocol, _Flow
from magnetar.broker.http.websocket.protocol import CorkedWebSocketProtocol

ROOT = Path(__file__).resolve().parents[4]
PAIRS: list[tuple[type, type]] = [
    (LenientHttpProtocol, HttpToolsProtocol),
    (RequestCycle, RequestResponseCycle),
    (CorkedWebSocketProtocol, WebSocketsSansIOProtocol),
    (_Flow, FlowControl),
]


def parsed(cls: type) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(cls)))


def attributes(cls: type, of: str) -> set[str]:
    """Names behind a dot: ``self.NAME`` for ``self``, ``self.cycle.NAME`` for ``cycle``."""
    return {
        node.attr
        for node in ast.walk(parsed(cls))
        if isinstance(node, ast.Attribute)
        and of in (getattr(node.value, "attr", ""), getattr(node.value, "id", ""))
    }


def defined(cls: type) -> set[str]:
    """Methods and class attributes, and what methods assign to ``self``."""
    assigned = {
        node.attr
        for node in ast.walk(parsed(cls))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return assigned | set(vars(cls)) | set(cls.__annotations__)


def overridden(ours: type) -> set[str]:
    """Of our methods those that call the one they replace."""
    return {
        node.func.attr
        for node in ast.walk(parsed(ours))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Call)
        and getattr(node.func.value.func, "id", "") == "super"
    }


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_what_is_used_of_the_base_is_there(ours: type, theirs: type) -> None:
    assert attributes(ours, "self") <= defined(ours) | defined(theirs)
    assert overridden(ours) <= set(vars(theirs))


def test_what_is_used_of_a_request_is_there() -> None:
    used = attributes(LenientHttpProtocol, "cycle")
    assert used
    assert used <= defined(RequestResponseCycle)


def test_the_release_is_one_that_was_tried() -> None:
    """A new one: run all tests of HTTP and WebSockets, and read what has changed in both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    release = ".".join(version("uvicorn").split(".")[:2])
    assert f"uvicorn=={release}.*" in project["dependencies"]
