"""Pages of roles: all grants with where they come from, and commands that take them away."""

import re
import shlex
from html import unescape

import httpx
import pytest

from magnetar.broker.cli.main import build_parser
from magnetar.broker.console.roles_page import grant_row
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.http.authorized import authorized_broker, client_of


async def text_of(client: httpx.AsyncClient, path: str) -> str:
    page = await client.get(f"/console/{path}")
    assert page.status_code == 200
    return unescape(page.text)


async def test_grants_of_all_kinds_are_those_of_rest() -> None:
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "admin") as client:
            space = "/admin/v2/namespaces/t1/ns/permissions"
            assert (await client.post(f"{space}/new%20role", json=["consume"])).is_success
            topic = "/admin/v2/persistent/t1/ns/orders"
            assert (await client.put(topic)).is_success
            grant = await client.post(f"{topic}/permissions/new%20role", json=["produce"])
            assert grant.is_success
            grants = (await client.get("/admin/v2/roles/new%20role")).json()["grants"]
            assert {each["source"] for each in grants} == {"namespace", "topic"}
            page = await text_of(client, "roles/new%20role")
            assert page.count('<tr id="') == len(grants)
            for each in grants:
                assert f'<td class="n">{each["resource"]}</td><td>{each["source"]}</td>' in page
            tab = await text_of(client, "topic/persistent/t1/ns/orders/permissions")
            row = tab[tab.index('<td class="n">new role</td>') :].partition("</td>")[2]
            told = re.sub("<[^>]+>", "", row.partition("</td>")[0]).split()
            assert told in (
                ["consume", "of", "the", "namespace", "produce"],
                ["produce", "consume", "of", "the", "namespace"],
            )
            listed = await text_of(client, "roles")
            known = (await client.get("/admin/v2/roles")).json()
            assert re.findall(r"<b>([^<]+)</b></a></td>", listed) == sorted(known["roles"])
            for role in known["superUserRoles"]:
                assert f'href="roles/{role}"' in listed
            assert ">superuser<" in (await text_of(client, "roles/admin")).partition("<main")[2]
            assert "It has no grant here." in await text_of(client, "roles/nobody%3Ci%3E")
        async with client_of(app, "ten") as client:
            for path in ("roles", "roles/new%20role"):
                page = await text_of(client, path)
                assert 'class="fail"' in page
                assert "t1/ns" not in page.partition("<main")[2]


@pytest.mark.parametrize("source", ["namespace", "topic", "subscription"])
def test_commands_that_take_grants_away_can_be_typed(source: str) -> None:
    resource = "persistent://t/n/x" if source == "topic" else "t/n"
    grant = {"source": source, "resource": resource, "subscription": "s", "role": "a b*"}
    row = grant_row("a b", grant)
    words = shlex.split(row.command)
    assert words[0] == "magnetar"
    assert build_parser(words[1:]).parse_args(words[1:])
    assert row.pattern == "a b*"


def test_an_admin_of_a_tenant_has_no_such_command() -> None:
    row = grant_row("a", {"source": "tenant", "resource": "t", "role": "a", "actions": []})
    assert (row.command, row.pattern) == ("", "")
