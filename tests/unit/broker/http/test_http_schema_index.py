"""Topics that have a schema, over HTTP: their pages, and what each role may see."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

NAMES = ("a", "b%20c", "B-d", "e")
INT32 = {"type": "INT32", "schema": "", "properties": {}}


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(broker.service), None) as found:
        for name in NAMES:
            url = f"/admin/v2/schemas/public/default/{name}/schema"
            assert (await found.post(url, json=INT32)).is_success
        yield found


async def ask(client: httpx.AsyncClient, query: str = "") -> Any:
    answer = await client.get(f"/admin/v2/schemas-index?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(answer: Any) -> list[str]:
    return [row["topic"].removeprefix("persistent://public/default/") for row in answer["schemas"]]


async def test_pages_follow_each_other(client: httpx.AsyncClient) -> None:
    found, after = [], ""
    for _ in range(2):
        answer = await ask(client, f"limit=2&after={after}")
        assert (answer["total"], answer["matching"]) == (4, 4)
        found += names(answer)
        after = answer["next"] or ""
    assert found == ["B-d", "a", "b c", "e"]
    assert not after


async def test_rows_are_filtered_and_equal_the_newest_version(client: httpx.AsyncClient) -> None:
    url = "/admin/v2/schemas/public/default/e/schema"
    assert (await client.delete(url)).is_success
    answer = await ask(client, "q=B")
    assert (answer["total"], answer["matching"]) == (4, 4)  # all are in public
    assert names(await ask(client, "q=T/b")) == ["B-d", "b c"]
    for nothing in ("public/none", "publi"):
        assert names(await ask(client, f"namespace={nothing}")) == []
    assert await ask(client, "namespace=public") == await ask(client, "namespace=public/default")
    first, *_, deleted = (await ask(client, "namespace=public/default"))["schemas"]
    stored = (await client.get("/admin/v2/schemas/public/default/B-d/schema")).json()
    assert (first["type"], first["version"], first["timestamp"]) == (
        "INT32",
        0,
        stored["timestamp"],
    )
    assert first["compatibility"] == "FULL"
    assert deleted["topic"].endswith("/e")
    assert (deleted["type"], deleted["version"]) == (None, None)


async def test_topics_have_their_schema_when_asked(client: httpx.AsyncClient) -> None:
    topics = "/admin/v2/persistent/public/default"
    assert (await client.put(f"{topics}/a/partitions", json=2)).is_success
    assert (await client.put(f"{topics}/plain")).is_success
    for query in ("grouped=true", "sort=msgBacklog"):
        for _ in range(2):  # pages are kept, without what one of them has asked for
            plain = (await client.get(f"/admin/v2/topics-index?{query}")).json()["topics"]
            assert not any("schema" in row for row in plain)
            rows = (await client.get(f"/admin/v2/topics-index?{query}&schemas=true")).json()
            found = {row["topic"].rpartition("/")[2]: row["schema"] for row in rows["topics"]}
            assert found.pop("plain") is None
            assert found
            assert all(each == {"type": "INT32", "version": 0} for each in found.values())


async def test_each_role_sees_what_it_may_look_up() -> None:
    async with authorized_broker() as broker:
        resources = broker.service.resources
        granted = {"destination_auth": {"persistent://t2/ns/c": {"prod": ["produce"]}}}
        await resources.create_tenant("t2", {"adminRoles": []})
        await resources.create_namespace("t2/ns", ["c"], 4, {"auth_policies": granted})
        app, shown = create_app(broker.service), {}
        async with client_of(app, "admin") as client:
            for name in ("t1/ns/a", "t2/ns/c", "t2/ns/d"):
                url = f"/admin/v2/schemas/{name}/schema"
                assert (await client.post(url, json=INT32)).is_success
        for role in ("admin", "prod", "nobody"):
            async with client_of(app, role) as client:
                answer = await ask(client)
                topics = [row["topic"].removeprefix("persistent://") for row in answer["schemas"]]
                assert answer["total"] == len(topics)
                shown[role] = topics
    assert shown == {
        "admin": ["t1/ns/a", "t2/ns/c", "t2/ns/d"],
        "prod": ["t1/ns/a", "t2/ns/c"],
        "nobody": [],
    }
