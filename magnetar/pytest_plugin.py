"""The pytest plugin: a broker for the session, a fresh tenant and namespace for each test.

Loaded in every pytest run where Magnetar is installed, so it imports nothing until a test asks for
one of its fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from magnetar.embedding import EmbeddedBroker
    from magnetar.fresh_namespace import FreshNamespace

MODES = ("process", "thread")
_DEFAULTS: dict[str, object] = {
    # The topics of a test are removed with its tenant.
    "forceDeleteTenantAllowed": True,
    "forceDeleteNamespaceAllowed": True,
}
_ROOT = str(Path(__file__).resolve().parents[1])


class _PlainImports:
    """Finds our modules before pytest does, which would rewrite the asserts of all of them.

    It does so with every module of a distribution that has a plugin: 3 s for a broker in a thread.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "magnetar":
            return None
        spec = PathFinder.find_spec(name, path, target)
        # A suite may have something of this name: that one is not ours.
        ours = spec is not None and spec.origin is not None and spec.origin.startswith(_ROOT)
        return spec if ours else None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    sys.meta_path.insert(0, _PlainImports)


def pytest_unconfigure() -> None:
    if _PlainImports in sys.meta_path:
        sys.meta_path.remove(_PlainImports)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("magnetar")
    group.addoption(
        "--magnetar-mode",
        choices=MODES,
        help="where the broker of the magnetar fixture runs (ini: magnetar_mode)",
    )
    parser.addini("magnetar_mode", "process (default) or thread", default=MODES[0])
    parser.addini(
        "magnetar_settings", "broker settings, a line each: key=value", type="linelist", default=[]
    )
    parser.addini("magnetar_start_timeout", "seconds the broker may take to start", default="30")


@pytest.fixture(scope="session")
def magnetar_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """One running broker for all tests of this session (with pytest-xdist: of this worker)."""
    import magnetar

    with magnetar.embedded(
        mode=_mode(request.config),
        start_timeout_s=_start_timeout_s(request.config),
        clock="virtual",
        **{**_DEFAULTS, **_settings(request.config)},
    ) as broker:
        yield broker


@pytest.fixture
def magnetar(magnetar_broker: EmbeddedBroker) -> Iterator[FreshNamespace]:
    """A tenant and a namespace of this test's own on the session's broker."""
    from magnetar.fresh_namespace import FreshNamespace

    with FreshNamespace(magnetar_broker) as namespace:
        yield namespace


def _mode(config: pytest.Config) -> Literal["process", "thread"]:
    mode = config.getoption("--magnetar-mode") or config.getini("magnetar_mode")
    if mode == "process":
        return "process"
    if mode == "thread":
        return "thread"
    raise pytest.UsageError(f"magnetar_mode={mode}: one of {', '.join(MODES)} is possible")


def _start_timeout_s(config: pytest.Config) -> float:
    text = config.getini("magnetar_start_timeout")
    try:
        return float(text)
    except ValueError:
        raise pytest.UsageError(f"magnetar_start_timeout={text}: not seconds") from None


def _settings(config: pytest.Config) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for line in config.getini("magnetar_settings"):
        key, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"magnetar_settings: {line}: key=value is expected")
        settings[key.strip()] = value.strip()
    return settings
