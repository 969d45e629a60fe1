"""Who may do what: every route has a rule, and none runs before it was asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from broker.config import BrokerConfig
from broker.http.access import Permission, Rule, rule_of
from broker.http.app import create_app
from broker.http.openapi import operations
from broker.http.websocket.routes import websocket_routes


def make_app() -> FastAPI:
    """The application without a service: enough for what is decided before one is asked."""
    service: Any = SimpleNamespace(config=BrokerConfig())
    return create_app(service)


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """(method, template) of all documented routes."""
    return [(method.upper(), path) for method, path, _ in operations(app.openapi())]


def test_every_route_has_a_rule() -> None:
    lacking = [route for route in routes(make_app()) if rule_of(*route) is None]
    assert lacking == []
    sockets = [route.path for route in websocket_routes()]
    assert sockets
    assert [path for path in sockets if rule_of("WEBSOCKET", path) is None] == []


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("GET", "/metrics", Rule(Permission.NOTHING, False, 401)),
        ("HEAD", "/status.html", Rule(Permission.NOTHING, False, 401)),
        ("PUT", "/admin/v2/tenants/{tenant}", Rule(Permission.SUPERUSER, True, 401)),
        ("GET", "/admin/v2/clusters", Rule(Permission.NOTHING, False, 401)),
        ("GET", "/admin/v2/clusters/{cluster}", Rule(Permission.SUPERUSER, False, 401)),
        (
            "POST",
            "/admin/v2/namespaces/{tenant}/{namespace}/retention",
            Rule(Permission.TENANT_ADMIN, True, 403),
        ),
        (
            "GET",
            "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}/stats",
            Rule(Permission.LOOKUP, False, 401),
        ),
        (
            "POST",
            "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/skip_all",
            Rule(Permission.CONSUME, True, 401),
        ),
        (
            "DELETE",
            "/admin/v2/{domain}/{tenant}/{namespace}/{topic}",
            Rule(Permission.TENANT_ADMIN, True, 401),
        ),
        (
            "POST",
            "/topics/{domain}/{tenant}/{namespace}/{topic}",
            Rule(Permission.PRODUCE, True, 401),
        ),
        (
            "POST",
            "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}/ack",
            Rule(Permission.CONSUME, True, 401),
        ),
        (
            "WEBSOCKET",
            "/ws/v2/reader/persistent/t/n/x",
            Rule(Permission.CONSUME, False, 401),
        ),
        ("GET", "/admin/v2/unheard-of", None),
    ],
)
def test_rules(method: str, path: str, rule: Rule | None) -> None:
    assert rule_of(method, path) == rule


async def nobody(role: str, rule: Rule, resource: Any) -> bool:
    return False


async def test_no_route_runs_before_its_rule_was_asked() -> None:
    app = make_app()
    app.state.may = nobody
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://magnetar") as client:
        for method, template in routes(app):
            path = template.replace("{domain}", "persistent").replace("{", "").replace("}", "")
            answer = await client.request(method, path)
            assert answer.status_code in (401, 403), (method, template, answer.text)
            assert answer.json()["reason"].startswith("anonymous lacks the permission")


@pytest.mark.parametrize("template", [route.path for route in websocket_routes()])
async def test_no_websocket_opens_before_its_rule_was_asked(template: str) -> None:
    app = make_app()
    app.state.may = nobody
    path = template.replace("{domain}", "persistent").replace("{", "").replace("}", "")
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
        "query_string": b"",
        "extensions": {"websocket.http.response": {}},
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert b"anonymous lacks the permission" in sent[1]["body"]
