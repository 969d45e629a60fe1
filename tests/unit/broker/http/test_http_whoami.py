"""``whoami``: what a role is told that it may do is what routes let it do."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from magnetar.broker.http.routes import whoami
from magnetar.broker.http.server.app import create_app
from tests.certificates import Authority
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of
from tests.unit.broker.http.test_http_access import ROLES, expected

PATH = "/admin/v2/whoami"
TOPIC = "persistent://t1/ns/t"


async def ask(
    broker: Broker, role: str | None, original: str | None = None, **query: Any
) -> dict[str, Any]:
    async with client_of(create_app(broker.service), role, original) as client:
        answer = await client.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _level(template: str) -> str:
    found = [each for each in ("topic", "namespace", "tenant") if f"{{{each}}}" in template]
    return found[0] if found else ""


@pytest.mark.parametrize(
    ("level", "name"), [("topic", TOPIC), ("namespace", "t1/ns"), ("tenant", "t1")]
)
async def test_calls_that_are_named_are_those_that_are_allowed(
    authorized: Broker, level: str, name: str
) -> None:
    cases: list[tuple[str | None, str]] = [("admin", "y"), (None, "n")]
    cases += [(role, str(number)) for number, role in enumerate(ROLES)]
    for role, column in cases:
        answer = await ask(authorized, role, **{level: name, "operations": "true"})
        right = {
            f"{method} {template}"
            for (method, template), (_, answers) in expected().items()
            if method != "WEBSOCKET" and _level(template) == level
            if "/destination/" not in template  # not documented
            if (column if column in "yn" else answers[int(column)]) == "y"
        }
        assert set(answer["rights"][name]["operations"]) == right, role
        assert right or role != "admin"


async def test_permissions_of_each_role(authorized: Broker) -> None:
    found = {
        role: (await ask(authorized, role, topic=TOPIC))["rights"][TOPIC]["permissions"]
        for role in ("nobody", "prod", "cons", "ten", "admin")
    }
    every = ["lookup", "produce", "consume", "consume every subscription", "tenant admin"]
    assert found == {
        "nobody": [],
        "prod": ["lookup", "produce"],
        "cons": ["lookup", "consume", "consume every subscription"],
        "ten": every,
        "admin": [*every, "superuser"],
    }


async def test_a_subscription_that_names_its_roles(authorized: Broker) -> None:
    def closed(document: dict[str, Any]) -> dict[str, Any]:
        auth = {**document["auth_policies"], "subscription_auth_roles": {"a/b": ["other"]}}
        return {**document, "auth_policies": auth}

    await authorized.service.resources.update_policies("t1/ns", closed)
    path = "{domain}/{tenant}/{namespace}/{topic}"
    for name, permissions in (("a/b", ["lookup"]), ("free", ["lookup", "consume"])):
        answer = await ask(authorized, "cons", topic=TOPIC, subscription=name, operations="true")
        assert answer["rights"][TOPIC]["permissions"] == permissions
        operations = answer["rights"][TOPIC]["operations"]
        skip = f"POST /admin/v2/{path}/subscription/{{subscription}}/skip_all"
        assert (skip in operations) == (name == "free")
        assert f"GET /admin/v2/{path}/lastMessageId" in operations  # of no subscription


async def test_who_asks(authorized: Broker) -> None:
    answer = await ask(authorized, "ten")
    assert answer == {
        "role": "ten",
        "originalRole": None,
        "method": None,
        "expiresAt": None,
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "superuser": False,
        "adminOf": ["t1"],
        "nextTenant": None,
        "rights": {},
    }
    assert (await ask(authorized, "admin"))["adminOf"] == ["public", "pulsar", "t1"]
    assert (await ask(authorized, "admin"))["superuser"] is True
    assert (await ask(authorized, "prod"))["adminOf"] == []
    # "gate" is no proxy: nothing is allowed in another role's name
    named = await ask(authorized, "gate", "ten")
    assert (named["originalRole"], named["adminOf"]) == ("ten", [])


async def test_tenants_come_by_page(authorized: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whoami, "_TENANTS_MAX", 2)
    first = await ask(authorized, "admin")
    assert (first["adminOf"], first["nextTenant"]) == (["public", "pulsar"], "pulsar")
    second = await ask(authorized, "admin", after="pulsar")
    assert (second["adminOf"], second["nextTenant"]) == (["t1"], None)


async def test_without_authorization_everything_is_allowed() -> None:
    broker = await Broker().start()
    answer = await ask(broker, None, topic=TOPIC, operations="true")
    assert (answer["authorizationEnabled"], answer["superuser"]) == (False, True)
    assert "superuser" in answer["rights"][TOPIC]["permissions"]
    assert len(answer["rights"][TOPIC]["operations"]) > 100
    await broker.close()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("topic=a://b", 412),
        ("namespace=a%20b/c", 412),
        ("namespace=only", 412),
        ("&".join(["tenant=t"] * 101), 400),
        ("&".join(["tenant=t"] * 100), 200),
    ],
)
async def test_names_that_are_none_and_too_many(
    authorized: Broker, query: str, status: int
) -> None:
    async with client_of(create_app(authorized.service), "nobody") as client:
        assert (await client.get(f"{PATH}?{query}")).status_code == status


async def test_how_and_until_when(authorized: Broker, tmp_path: Path) -> None:
    certificate = Authority(tmp_path).sign("alice").der
    inner = create_app(authorized.service)
    state: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"role": "alice", **state}
        await inner(scope, receive, send)

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def login(*found: object) -> tuple[str, int | None]:
            state["login"] = found
            answer = (await client.get(PATH)).json()
            return answer["method"], answer["expiresAt"]

        assert await login("token", 1_700_000_000.5) == ("token", 1_700_000_000_500)
        assert await login("none", None) == ("anonymous", None)
        state["client_certificate"] = certificate
        method, until = await login("tls", None)
        assert method == "tls"
        assert until is not None
        assert datetime.fromtimestamp(until / 1000, UTC) > datetime.now(UTC)
