"""Roles and their grants: each grant once, whatever the pages, and nothing that isn't granted."""

from dataclasses import replace
from itertools import product
from typing import Any

import httpx
import pytest

from magnetar.broker.auth.authorization import Authorizer, Caller, Grants, Permission, Resource
from magnetar.broker.auth.role_grants import grants_of_namespace
from magnetar.broker.http.routes import roles
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of

TOPIC = "persistent://t1/b/t"
PATH = "/admin/v2/roles"


@pytest.fixture
async def granted(authorized: Broker) -> Broker:
    """More tenants and namespaces with grants, in an order that isn't the alphabet's."""
    resources = authorized.service.resources
    await resources.create_tenant("t2", {"adminRoles": ["ten", "cons"]})
    for name, auth in (
        ("t2/z", {"namespace_auth": {"cons": ["produce"], "c*": ["consume"], "*ns": ["produce"]}}),
        ("t1/b", {"destination_auth": {TOPIC: {"cons": ["consume"], "prod": ["produce"]}}}),
        ("t2/a", {"subscription_auth_roles": {"s": ["cons"], "open": []}}),
        ("t1/empty", {}),
    ):
        await resources.create_namespace(name, ["c"], 4, {"auth_policies": auth})
    return authorized


async def pages(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = await client.get(path, params={"after": after})
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        after = found[-1]["next"]
    return found


def _grant(source: str, resource: str, *actions: str, **more: str) -> dict[str, Any]:
    row = {"source": source, "resource": resource, "actions": list(actions)}
    return {**row, "role": "cons", "subscription": "", **more}


OF_CONS = [
    _grant("topic", TOPIC, "consume"),
    _grant("namespace", "t1/ns", "consume"),
    _grant("tenant", "t2", "admin"),
    _grant("subscription", "t2/a", "consume", subscription="s"),
    _grant("namespace", "t2/z", "produce"),
]


@pytest.mark.parametrize(("places", "grants"), [(1000, 10_000), (1, 10_000), (3, 10_000), (4, 1)])
async def test_grants_of_a_role_by_page(
    granted: Broker, monkeypatch: pytest.MonkeyPatch, places: int, grants: int
) -> None:
    monkeypatch.setattr(roles, "_PLACES_MAX", places)
    monkeypatch.setattr(roles, "_FOUND_MAX", grants)
    monkeypatch.setattr(roles, "_AT_ONCE", 2)
    async with client_of(create_app(granted.service), "admin") as client:
        found = await pages(client, f"{PATH}/cons")
        assert [each for page in found for each in page["grants"]] == OF_CONS
        assert {(page["role"], page["superuser"], page["proxy"]) for page in found} == {
            ("cons", False, False)
        }
        assert (len(found) == 1) == (places == 1000)
        total: dict[str, int] = {}
        for page in await pages(client, PATH):
            for role, counts in page["roles"].items():
                total[role] = total.get(role, 0) + sum(counts.values())
        assert total == {"*ns": 1, "c*": 1, "cons": 5, "prod": 2, "ten": 2}


async def test_roles_of_settings_and_unknown_ones(granted: Broker) -> None:
    async with client_of(create_app(granted.service), "admin") as client:
        answer = (await client.get(f"{PATH}/admin")).json()
        assert (answer["superuser"], answer["grants"]) == (True, [])
        answer = (await client.get(f"{PATH}/no%2Fsuch")).json()
        assert (answer["role"], answer["superuser"], answer["grants"]) == ("no/such", False, [])
        answer = (await client.get(PATH)).json()
        assert (answer["superUserRoles"], answer["proxyRoles"]) == (["admin"], [])
        # A place that has been deleted since: the next page begins behind it
        assert (await client.get(f"{PATH}/ten?after=t1/gone")).json()["grants"] == [
            _grant("tenant", "t2", "admin", role="ten")
        ]


async def test_patterns_are_listed_where_they_count(granted: Broker) -> None:
    service = granted.service
    service.config = replace(service.config, authorization_allow_wildcards_matching=True)
    async with client_of(create_app(service), "admin") as client:
        found = (await client.get(f"{PATH}/cons")).json()["grants"]
        assert [each["role"] for each in found if each["resource"] == "t2/z"] == [
            *("cons", "c*", "*ns")
        ]


async def test_only_superusers_see_them(authorized: Broker) -> None:
    for role, status in ((None, 401), ("nobody", 401), ("cons", 401), ("ten", 401), ("admin", 200)):
        async with client_of(create_app(authorized.service), role) as client:
            for path in (PATH, f"{PATH}/cons"):
                assert (await client.get(path)).status_code == status


@pytest.mark.parametrize("wildcards", [False, True])
def test_a_role_may_what_its_grants_say(wildcards: bool) -> None:
    """The same documents, asked by ``Authorizer``."""
    authorizer = Authorizer(wildcards=wildcards)
    topic = TopicName.parse(TOPIC)
    actions = {"produce": Permission.PRODUCE, "consume": Permission.CONSUME}
    names = ("ab", "a*", "*b", "cd")
    for own, shared, role in product(names, names, ("ab", "cd")):
        grants = Grants(
            {own: frozenset({"produce"})}, {TOPIC: {shared: frozenset({"consume", "sinks"})}}
        )
        listed = {
            action
            for grant in grants_of_namespace(role, "t1/b", grants, wildcards=wildcards)
            for action in grant.actions
        }
        for action, permission in actions.items():
            may = authorizer.allows(
                Caller(role), permission, Resource.of_topic(topic), frozenset(), grants
            )
            assert may == (action in listed), (own, shared, role, action)
