"""A namespace's page: figures of REST, bundles with who serves them, permissions."""

from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from magnetar.broker.console.namespace_page import served_bundles
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of


@pytest.fixture
async def authorized() -> AsyncIterator[Broker]:
    async with authorized_broker() as broker:
        yield broker


BOUNDARIES = ["0x00000000", "0x80000000", "0xffffffff"]


def test_a_bundle_is_of_the_broker_that_says_so() -> None:
    answers: dict[str, dict[str, object]] = {
        "a:1": {"t/n/0x00000000_0x80000000": {}, "t/m/0x80000000_0xffffffff": {}},
        "b:1": {},
    }
    found = served_bundles("t/n", BOUNDARIES, answers)
    assert [(each.range, each.broker) for each in found] == [
        ("0x00000000_0x80000000", "a:1"),
        ("0x80000000_0xffffffff", ""),
    ]


@pytest.mark.parametrize("name", ["ns", "<b>n"])
async def test_what_is_not_there(authorized: Broker, name: str) -> None:
    async with client_of(create_app(authorized.service), "admin") as client:
        page = await client.get(f"/console/ns/{'t1' if name != 'ns' else 'nobody'}/{name}")
    assert page.status_code in (404, 412), page.text
    assert "<b>n" not in page.text


async def test_a_name_that_is_none_leads_to_those_like_it(authorized: Broker) -> None:
    resources = authorized.service.resources
    for name in ("orders", "stock"):
        await resources.create_namespace(f"t1/{name}", ["c"], 4, {})
    await resources.create_tenant("retail", {"adminRoles": []})
    async with client_of(create_app(authorized.service), "admin") as client:
        for path, link in (
            ("ns/t1/ordrs", '<a href="../../ns/t1/orders">orders</a>'),
            ("tenant/retial", '<a href="../tenant/retail">retail</a>'),
        ):
            page = await client.get(f"/console/{path}")
            assert page.status_code == 404
            assert link in page.text, path
            assert "stock" not in page.text
        for path in ("ns/nobody/ordrs", "ns/t1/quite-another"):
            assert "Names like it" not in (await client.get(f"/console/{path}")).text
    async with client_of(create_app(authorized.service), "nobody") as client:
        assert "orders</a>" not in (await client.get("/console/ns/t1/ordrs")).text


async def test_a_namespace_as_its_visitors_may_see_it(authorized: Broker) -> None:
    app = create_app(authorized.service)
    async with client_of(app, "admin") as client:
        assert (await client.put("/admin/v2/persistent/t1/ns/orders")).is_success
        rights = "/admin/v2/namespaces/t1/ns/permissions/billing"
        assert (await client.post(rights, json=["consume"])).is_success
        figures = (await client.get("/admin/v2/namespaces-index")).json()["namespaces"]["t1/ns"]
        page = await client.get("/console/ns/t1/ns")
        bundles = (await client.get("/admin/v2/namespaces/t1/ns/bundles")).json()
        listed = await client.get("/console/namespaces")
    assert page.status_code == 200
    text = unescape(page.text)
    assert 'href="../../roles/billing"' in text
    assert text.count("<code>0x") == bundles["numBundles"]
    assert f"<dt>Topics and partitions</dt><dd>{figures['topicCount']}</dd>" in text
    assert 'href="ns/t1/ns"' in listed.text
    async with client_of(app, "nobody") as client:
        refused = await client.get("/console/ns/t1/ns")
    assert "billing" not in refused.text


async def test_sums_say_which_topics_they_lack(broker: Broker) -> None:
    """Topics that no broker has loaded have no figures. Their bundle can't be unloaded either."""
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for name in ("a", "b", "c"):
            topic = f"/admin/v2/persistent/public/default/{name}"
            assert (await client.put(topic)).is_success
            await client.get(f"{topic}/stats")
        pages = ("", "namespaces", "tenant/public", "ns/public/default")
        whole = [(await client.get(f"/console/{page}")).text for page in pages]
        for name in ("a", "b"):
            unload = f"/admin/v2/persistent/public/default/{name}/unload"
            assert (await client.put(unload)).is_success
        sums = (await client.get("/admin/v2/namespaces-index")).json()["namespaces"]
        texts = [(await client.get(f"/console/{page}")).text for page in pages]
    row = sums["public/default"]
    assert (row["topicCount"], row["loadedTopicCount"]) == (3, 1)
    for before, after in zip(whole, texts, strict=True):
        assert "Without the figures" not in before
        assert "2 topics that no broker has loaded" in after
    assert "topics?namespace=public/default&amp;view=notLoaded" in texts[-1]
    unserved = texts[-1].count("no broker</span>")
    assert unserved > 0
    assert texts[-1].count("Split…") - texts[-1].count("do/unload?bundle=") == unserved


async def test_a_tenant_of_which_little_is_said_and_very_many_of_everything(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages fetch themselves: a list without an end would hold the loop every five seconds."""
    many, admin = 520, "/admin/v2"
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        clusters = (await client.get(f"{admin}/clusters")).json()
        body = {"allowedClusters": clusters}  # Pulsar's clients may leave out adminRoles
        assert (await client.put(f"{admin}/tenants/bare", json=body)).is_success
        for number in range(many):
            assert (await client.put(f"{admin}/namespaces/bare/n{number}")).is_success
            grant = f"{admin}/namespaces/bare/n0/permissions/role-{number}"
            assert (await client.post(grant, json=["produce"])).is_success
        tenant = await client.get("/console/tenant/bare")
        namespace = await client.get("/console/ns/bare/n0")
    assert (tenant.status_code, namespace.status_code) == (200, 200)
    assert tenant.text.count('href="../ns/bare/') == namespace.text.count("roles/role-") == 500
    assert "20 more: the field" in tenant.text
    assert "more: magnetar namespaces permissions bare/n0" in namespace.text
