"""scripts/compare_http.py asks Pulsar about every route that both have."""

import importlib
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import Request
from starlette.applications import Starlette

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.openapi import operations
from magnetar.broker.http.routing import route
from magnetar.broker.http.routing.route import Access
from magnetar.broker.http.server.app import create_app

SCRIPTS = Path(__file__).parents[4] / "scripts"
NOT_ASKED = re.compile(
    r"POST /admin/v2/brokers/shutdown"  # others use the server
    r"|GET .*/{topic}/(.*/)?explain(/publishing|/worst)?"  # ours
    r"|POST /admin/v2/clusters/{cluster}/migrate"  # Pulsar lists the cluster for ever after it
    r"|GET /(ready|livez|readyz)"  # probes; Pulsar has the first below brokers only
    r"|\w+ /topics/.*/subscription/.*"  # REST consume is ours
    r"|GET .*/{topic}/(segments|messages(/follow)?|history)"  # ours, too
    r"|GET /admin/v2/(whoami|audit|history|doctor|doctor/broker|roles|roles/{role}|[a-z]+-index)"
    r"|GET /admin/v2/(broker-stats/connections|bookies/state)"
    r"|GET /admin/v3/transactions/openTransactions"
    r"|GET .*/{(topic|namespace)}/policies"
)
PASSED = 418


@pytest.fixture
def areas(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.syspath_prepend(SCRIPTS)
    cases = importlib.import_module("http_cases")
    names = [module.name for module in pkgutil.iter_modules(cases.__path__)]
    modules = [importlib.import_module(f"http_cases.{name}") for name in names]
    return [module for module in modules if not hasattr(module, "NEEDS_DOCUMENT")]


@pytest.fixture
def app() -> Starlette:
    service: Any = SimpleNamespace(
        config=BrokerConfig(), access=None, authenticator=None, schemas=None
    )
    return create_app(service)


async def test_every_route_is_compared(
    areas: list[Any], app: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    async def note(request: Request, access: Access) -> None:
        template = re.sub(r":[a-z]+}", "}", request.scope["route"].path)
        asked.add(f"{request.method} {template}")
        raise ApiError(PASSED, "noted")

    app.state.access = object()
    monkeypatch.setattr(route, "authorize", note)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for area in areas:
            for method, path, _, _ in area.requests("tenant"):
                await client.request(method, path)
    routes = {f"{method.upper()} {path}" for method, path, _ in operations(app.state.openapi())}
    assert len(asked) > 300
    left = sorted(route for route in routes - asked if not NOT_ASKED.fullmatch(route))
    assert left == [], "add a case to scripts/http_cases, or say here why it can't be asked"


def test_every_difference_says_why(areas: list[Any]) -> None:
    notes = {case[3] for area in areas for case in area.requests("tenant")}
    assert all(note == "" or note.startswith(("known: ", "other ")) for note in notes), notes


def test_statistics_differ_only_where_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    view = importlib.import_module("http_cases.statistics").view
    differences = importlib.import_module("compare_http").differences

    def stats(ledger: int, **more: Any) -> dict[str, Any]:
        consumer = {"address": f"/127.0.0.1:{ledger}", "unackedMessages": 3}
        cursor = {"markDeletePosition": f"{ledger}:4", "cursorLedger": ledger + 1}
        return {"size": ledger, "rate": 0.5, "consumers": [consumer], "cursors": cursor, **more}

    def found(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
        answer: list[str] = differences(view(left), view(right))
        return answer

    holes = ("[(7:1..7:2],(8:-1..8:0]]", "[(9:1..9:2],(10:-1..10:0]]")
    assert found(stats(7, holes=holes[0]), stats(9, holes=holes[1])) == []
    assert found(stats(7, at="7:4"), stats(9, at="9:5")) == ["at: L0:4 / L0:5"]
    assert found(stats(7, n=1), stats(7, n=2)) == ["n: 1 / 2"]
    assert found(stats(7, t=0), stats(7, t=1_800_000_000_000)) == ["t: 0 / time"]
    assert found(stats(7, size=0), stats(7)) == ["size: 0 / bytes"]
    assert found(stats(7, each=[1, 2]), stats(7, each=[1, 3])) == ["each.[1]: 2 / 3"]
    assert found(stats(7, each=[1, 2]), stats(7, each=[1])) == ["each: 2 / 1 items"]


def test_what_is_wrong_changes_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch, app: Starlette
) -> None:
    """The servers that are compared are shared: only the run's own tenant may change.

    Calls with no path of their own (PermissionsOnTopics) get no body that could be taken.
    """
    monkeypatch.syspath_prepend(SCRIPTS)
    every_route = importlib.import_module("http_cases.every_route")
    cases = every_route.requests("own-tenant", app.state.openapi())
    assert len(cases) > 2000
    mine = re.compile(r"/own-tenant(/|\?|$)|/(nosuchtenant|nowhere|nope|some-[a-z_]+)(/|\?|$)")
    refused = [body for body in every_route.WRONG_BODIES.values() if body is not None]
    changing = {
        f"{method} {path}"
        for method, path, body, _ in cases
        if method != "GET" and body not in refused and "PermissionsOnTopics" not in path
    }
    assert sorted(each for each in changing if not mine.search(each)) == []
