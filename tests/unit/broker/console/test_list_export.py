"""Lists as files: the rows of their pages, in the same order, bounded, without formulas."""

import csv
import io
from collections.abc import AsyncIterator

import httpx
import pytest

from magnetar.broker.console import list_export
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

BASE = "/admin/v2/persistent/public/default"


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(create_app(broker.service), None) as found:
        assert (await found.put(f"{BASE}/wide/partitions", json=3)).is_success
        for name in ("a", "b"):
            assert (await found.put(f"{BASE}/{name}")).is_success
        for name, subscription in (("wide", "s"), ("b", "%3D1")):
            assert (await found.put(f"{BASE}/{name}/subscription/{subscription}")).is_success
        schema = {"type": "INT32", "schema": "", "properties": {}}
        url = "/admin/v2/schemas/public/default/b/schema"
        assert (await found.post(url, json=schema)).is_success
        body = {"messages": [{"payload": "1"}], "schemaVersion": 0}
        assert (await found.post("/topics/persistent/public/default/b", json=body)).is_success
        yield found


async def rows_of(client: httpx.AsyncClient, path: str) -> list[dict[str, str]]:
    answer = await client.get(f"/console/{path}")
    assert answer.status_code == 200, answer.text
    name = path.partition("?")[0]
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


async def test_rows_are_those_of_the_page_in_its_order(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_export, "_STEP", 2)
    rows = await rows_of(client, "topics.csv")
    assert [each["topic"].rpartition("/")[2] for each in rows] == ["a", "b", "wide"]
    assert [each["partitions"] for each in rows] == ["0", "0", "3"]
    assert [each["schema"] for each in rows] == ["", "INT32 v0", ""]
    asked = "sort=msgBacklog&q=default/b"
    (row,) = await rows_of(client, f"topics.csv?{asked}")
    (stored,) = (await client.get(f"/admin/v2/topics-index?{asked}")).json()["topics"]
    assert row["msgBacklog"] == "1" == str(stored["msgBacklog"])
    assert row["earliestMsgPublishTimeInBacklogs"].endswith("Z")
    first, *others = await rows_of(client, "subscriptions.csv")
    assert first["subscription"] == "'=1"  # the one that is behind
    assert [each["topic"][-1] for each in others] == ["0", "1", "2"]
    (schema,) = await rows_of(client, "schemas.csv")
    assert (schema["type"], schema["version"], schema["compatibility"]) == ("INT32", "0", "FULL")


async def test_a_long_file_says_that_there_is_more(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_export, "_STEP", 2)
    monkeypatch.setattr(list_export, "ROWS_MAX", 3)
    rows = await rows_of(client, "topics.csv?sort=storageSize")
    assert len(rows) == 4
    assert rows[-1]["topic"] == "there is more: 5 in all"


async def test_a_page_leads_to_its_file_and_a_wrong_one_is_refused(
    client: httpx.AsyncClient,
) -> None:
    page = (await client.get("/console/topics?q=b&sort=msgBacklog")).text
    assert 'href="topics.csv?q=b&amp;sort=msgBacklog"' in page
    assert (await client.get("/console/topics.csv?sort=nothing")).status_code == 400


async def test_a_file_has_what_its_reader_may_see() -> None:
    async with authorized_broker() as broker:
        app, shown = create_app(broker.service), []
        async with client_of(app, "admin") as client:
            assert (await client.put("/admin/v2/persistent/t1/ns/a")).is_success
        for role in ("prod", "nobody"):
            async with client_of(app, role) as client:
                shown.append(len(await rows_of(client, "topics.csv")))
    assert shown == [1, 0]
