"""Who may do what: every route declares it, and none runs before that was asked.

``access_answers.txt`` has a line for every route: its method and template, the status of a refusal,
and who may (y) or may not (n) use it, of a role without grants, one that may produce, one that may
consume and the tenant's admin. It is Apache Pulsar 4.2.4's answer, asked route by route; where it
differs, or has no such route, docs/reference/http-differences.md says so. A new route needs a line
there.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from magnetar.broker.auth.authorization import Caller, Permission, Resource
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import AuthorizationError
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.openapi import operations
from magnetar.broker.http.routing import route_permissions as access
from magnetar.broker.http.routing.route import Access, RoutingMode, declared_routes
from magnetar.broker.http.server.app import create_app
from magnetar.broker.http.websocket.routes import websocket_routes
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import acting_as, client_of

ANSWERS = Path(__file__).with_name("access_answers.txt")
ROLES = ("nobody", "prod", "cons", "ten")
NAMES = {"domain": "persistent", "tenant": "t1", "namespace": "ns", "topic": "t"}
PASSED = 418


class Nobody:
    """Says no to everybody."""

    async def require(
        self, caller: Caller, permission: Permission, resource: Resource, listener: str, remote: str
    ) -> None:
        raise AuthorizationError(f"{caller} lacks {permission.value} on {resource}")

    async def has_tenant(self, tenant: str) -> bool:
        return True


def make_app(access: Any = None) -> Starlette:
    """The application without a service: enough for what is decided before one is asked."""
    parts = {"config": BrokerConfig(), "access": access, "authenticator": None, "schemas": None}
    service: Any = SimpleNamespace(**parts)
    return create_app(service)


def documented(app: Starlette) -> list[tuple[str, str]]:
    """(method, template) of all documented routes."""
    return [(method.upper(), path) for method, path, _ in operations(app.state.openapi())]


def declared(app: Starlette) -> dict[tuple[str, str], Access]:
    """(method, template) -> who may use it; what a path answers to first."""
    found: dict[tuple[str, str], Access] = {}
    for route in declared_routes(app):
        found.setdefault((route.method, route.path_format), route.access)
    return found


def expected() -> dict[tuple[str, str], tuple[str, str]]:
    """(method, template) -> status, answers."""
    lines = [line.split() for line in ANSWERS.read_text().splitlines() if line[:1] != "#"]
    found = {(method, path): (status, answers) for method, path, status, answers in lines}
    assert len(found) == len(lines)
    return found


def filled(template: str) -> str:
    for name, value in NAMES.items():
        template = template.replace("{" + name + "}", value)
    return template.replace("{", "some-").replace("}", "")


def test_every_route_declares_who_may_use_it_and_which_broker_serves_it() -> None:
    known = list(declared_routes(make_app()))
    assert len(known) > 300
    for route in known:
        assert isinstance(route.access, Access), route.path
        assert isinstance(route.mode, RoutingMode), route.path


def test_every_route_has_an_expected_answer() -> None:
    """What is free and undocumented needs none: the documentation, services that are absent."""
    sockets = {("WEBSOCKET", route.path) for route in websocket_routes()}
    assert set(expected()) >= {*documented(make_app()), *sockets}
    for route, needed in declared(make_app()).items():
        if needed is not Access.FREE:
            assert route in expected()


# --- what the rules answer


@pytest.fixture
def stop_after_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever passes gets 418, and no route runs."""
    require = access.require

    async def stop(*arguments: Any) -> None:
        await require(*arguments)
        raise ApiError(PASSED, "passed")

    monkeypatch.setattr(access, "require", stop)


async def open_socket(app: Any, path: str, query: bytes = b"") -> list[dict[str, Any]]:
    """What a client that asks for an upgrade and leaves is sent."""
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "websocket.connect"}])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return next(received, {"type": "websocket.disconnect", "code": 1000})

    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
        "query_string": query,
        "extensions": {"websocket.http.response": {}},
    }
    await app(scope, receive, send)
    return sent


@pytest.mark.usefixtures("stop_after_rules")
async def test_the_answers_are_pulsars(authorized: Broker) -> None:
    app, wrong = create_app(authorized.service), []
    cases: list[tuple[str | None, str]] = [("admin", "y"), (None, "n")]
    for number, role in enumerate(ROLES):
        cases.append((role, str(number)))
    for who, column in cases:
        async with client_of(app, who) as client:
            for (method, template), (status, answers) in expected().items():
                if status == "-" or method == "WEBSOCKET":
                    continue
                answer = await client.request(method, filled(template))
                may = column if column in "yn" else answers[int(column)]
                right = PASSED if may == "y" else int(status)
                if answer.status_code != right:
                    wrong.append((method, template, who, answer.status_code, right))
                elif may == "n":
                    assert answer.json()["reason"].startswith(f"Unauthorized: {who} lacks ")
    assert wrong == []


@pytest.mark.usefixtures("stop_after_rules")
async def test_the_answers_of_sockets(authorized: Broker) -> None:
    app = create_app(authorized.service)
    for (method, template), (status, answers) in expected().items():
        if method != "WEBSOCKET":
            continue
        for role, may in (*zip(ROLES, answers, strict=True), ("admin", "y"), (None, "n")):
            query = b"topics=persistent://t1/ns/t,persistent://t1/ns/u"
            sent = await open_socket(acting_as(app, role), filled(template), query)
            assert sent[0]["status"] == (PASSED if may == "y" else int(status)), (template, role)


def test_free_routes_need_nothing_and_no_others_do() -> None:
    rules = declared(make_app())
    for (method, template), (status, answers) in expected().items():
        is_free = method != "WEBSOCKET" and rules[method, template] is Access.FREE
        assert is_free == (status == "-") == (answers == "yyyy")


async def test_no_route_runs_before_its_rule_was_asked() -> None:
    """Nobody's application has no service: a route that ran would fail."""
    app, free = make_app(Nobody()), 0
    async with client_of(app, "joe") as client:
        for method, template in documented(app):
            if expected()[method, template][0] == "-":
                free += 1
                continue
            answer = await client.request(method, filled(template))
            assert answer.status_code in (401, 403), (method, template, answer.text)
            assert answer.json()["reason"].startswith("Unauthorized: joe lacks ")
    assert free < 20  # probes, documentation, and lists of what the caller may see


@pytest.mark.parametrize("template", [route.path for route in websocket_routes()])
async def test_no_websocket_opens_before_its_rule_was_asked(template: str) -> None:
    sent = await open_socket(acting_as(make_app(Nobody()), "joe"), filled(template), b"topics=a")
    assert sent[0]["status"] == 403
    assert b"Unauthorized: joe lacks " in sent[1]["body"]


@pytest.mark.usefixtures("stop_after_rules")
@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        ("nobody", "GET", "/admin/v2/namespaces/nosuch/x", 404),
        ("nobody", "GET", "/admin/v2/namespaces/nosuch", 404),
        ("nobody", "GET", "/admin/v2/persistent/nosuch/x/t/stats", 404),
        ("nobody", "GET", "/lookup/v2/topic/persistent/nosuch/x/t", 404),
        ("nobody", "GET", "/admin/v2/tenants/nosuch", 401),
        ("nobody", "PUT", "/admin/v2/tenants/nosuch", 401),
        ("ten", "PUT", "/admin/v2/tenants/nosuch", 401),
        ("nobody", "GET", "/admin/v2/namespaces/t1/nosuch", 403),
        ("nobody", "GET", "/admin/v2/namespaces/t1/nosuch/topics", 403),
        ("nobody", "GET", "/admin/v2/namespaces/a%20b/x", 412),
        ("ten", "GET", "/admin/v2/namespaces/t1%2Fx/y", 412),
        # One more encoding, a partition, a trailing slash, a query: it is the same topic
        ("prod", "GET", "/admin/v2/persistent/t1/ns/t-partition-3/stats", PASSED),
        ("cons", "GET", "/admin/v2/persistent/%741/ns/t/subscriptions", PASSED),
        ("nobody", "GET", "/admin/v2/persistent/%741/ns/t/subscriptions/", 401),
        ("ten", "GET", "/admin/v2/namespaces/t2/ns/retention", 404),
        ("ten", "GET", "/admin/v2/namespaces/public/default/retention?tenant=t1", 403),
        ("ten", "GET", "/admin/v2/tenants/public", 401),
        ("ten", "HEAD", "/admin/v2/tenants", 401),
        ("nobody", "HEAD", "/admin/v2/namespaces/t1/ns", 403),
        ("nobody", "GET", "/admin/v2/worker/cluster", 409),
    ],
)
async def test_what_a_path_means(
    authorized: Broker, role: str, method: str, path: str, status: int
) -> None:
    async with client_of(create_app(authorized.service), role) as client:
        assert (await client.request(method, path)).status_code == status


@pytest.mark.usefixtures("stop_after_rules")
async def test_subscriptions_and_proxies(authorized: Broker) -> None:
    app = create_app(authorized.service)
    await authorized.service.resources.update_policies(
        "t1/ns",
        lambda document: {
            **document,
            "auth_policies": {
                "namespace_auth": {"cons": ["consume"], "gate": ["consume"]},
                "subscription_auth_roles": {"a/b": ["other"]},
            },
        },
    )
    base = "/admin/v2/persistent/t1/ns/t/subscription"
    async with client_of(app, "cons") as client:
        for name, status in (("a%252Fb", 401), ("a%2Fb", 401), ("free", PASSED)):
            assert (await client.post(f"{base}/{name}/skip_all")).status_code == status
        path = "/admin/v2/namespaces/t1/ns/unsubscribe"
        assert (await client.post(f"{path}/a%2Fb")).status_code == 403
        assert (await client.post(f"{path}/free")).status_code == PASSED
        path = "/topics/persistent/t1/ns/t/subscription"
        assert (await client.get(f"{path}/a%252Fb/messages")).status_code == 401
        assert (await client.get(f"{path}/free/messages")).status_code == PASSED
    base += "/free/skip_all"
    # "gate" is no proxy role here: nobody may be named
    async with client_of(app, "gate", "cons") as client:
        assert (await client.post(base)).status_code == 401
    async with client_of(app, "gate") as client:
        assert (await client.post(base)).status_code == PASSED


@pytest.mark.usefixtures("stop_after_rules")
async def test_several_topics_are_asked_for_one_by_one(authorized: Broker) -> None:
    app = acting_as(create_app(authorized.service), "cons")
    for topics, status in (
        ("t1/ns/t,t1/ns/u", PASSED),
        ("t1/ns/t,public/default/u", 403),
        ("public/default/u,t1/ns/t", 403),
        ("non-persistent://t1/ns/t", PASSED),
        ("a://b", 400),
    ):
        sent = await open_socket(app, "/ws/v3/consumer/s", f"topics={topics}".encode())
        assert sent[0]["status"] == status, topics
