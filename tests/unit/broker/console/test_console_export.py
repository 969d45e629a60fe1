"""What a search found, as a file: all of it, nothing that is withheld, no formulas."""

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console import export
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

TOPIC = "persistent/public/default/orders"
FILE = f"/console/topic/{TOPIC}/messages"
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\n=x", '"=x"', "a,b\n=c", "é")


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def fill(client: httpx.AsyncClient, *messages: dict[str, Any], topic: str = TOPIC) -> None:
    body = {"messages": list(messages), "valueSchema": '{"type":"BYTES"}'}
    assert (await client.post(f"/topics/{topic}", json=body)).is_success


def rows_of(answer: httpx.Response) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


async def test_all_that_is_found_in_several_steps(client: httpx.AsyncClient) -> None:
    await fill(client, *({"payload": str(n), "key": f"k{n % 2}"} for n in range(500)))
    query = {"position": "earliest", "filter": "key = k1"}
    answer = await client.get(f"{FILE}.ndjson", params=query)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == 'attachment; filename="orders.ndjson"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["payload"] for each in lines] == [str(n) for n in range(1, 500, 2)]
    rest = await client.get(f"/admin/v2/{TOPIC}/messages", params={**query, "limit": 500})
    assert lines == rest.json()["messages"]
    table = rows_of(await client.get(f"{FILE}.csv", params=query))
    assert [each["value"] for each in table] == [str(n) for n in range(1, 500, 2)]
    assert {each["key"] for each in table} == {"k1"}
    (last,) = rows_of(await client.get(f"{FILE}.csv", params={"position": table[-1]["messageId"]}))
    assert last == table[-1]


async def test_the_page_leads_to_what_it_shows(client: httpx.AsyncClient) -> None:
    await fill(client, *({"payload": str(n)} for n in range(60)))
    page = (await client.get(FILE)).text
    assert f'{TOPIC}/messages.csv?position=latest" download' in page
    table = rows_of(await client.get(f"{FILE}.csv?position=latest"))
    assert [each["value"] for each in table] == [str(n) for n in range(10, 60)]


async def test_a_file_that_is_cut_says_where_to_go_on(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MESSAGES_MAX", 150)
    await fill(client, *({"payload": str(n)} for n in range(290)))
    answer = await client.get(f"{FILE}.ndjson?position=earliest")
    *lines, last = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["payload"] for each in lines] == [str(n) for n in range(150)]
    answer = await client.get(f"{FILE}.ndjson", params={"position": last["next"]})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["payload"] for each in lines] == [str(n) for n in range(150, 290)]
    table = rows_of(await client.get(f"{FILE}.csv?position=earliest"))
    assert table[-1]["messageId"] == f"there is more, from {last['next']}"


async def test_no_cell_is_a_formula(client: httpx.AsyncClient) -> None:
    await fill(client, *({"payload": text, "key": text} for text in FORMULAS))
    await fill(client, {"payload": "v", "properties": {"=a": "=b"}})
    table = rows_of(await client.get(f"{FILE}.csv?position=earliest"))
    for row, text in zip(table, FORMULAS, strict=False):
        shown = text if text[0] in '"aé' else f"'{text}"
        assert (row["value"], row["key"]) == (shown, shown)
    assert json.loads(table[-1]["properties"]) == {"=a": "=b"}


@given(st.text())
def test_no_text_becomes_a_formula(text: str) -> None:
    cell = export._cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert cell.removeprefix("'") == text.removeprefix("'")


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
async def test_values_that_are_withheld_are_in_no_file(kind: str) -> None:
    for contents, status in (("metadata", 200), ("off", 403)):
        broker = await Broker(web_console_messages=contents).start()
        transport = httpx.ASGITransport(create_app(broker.service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await fill(client, {"payload": "secret", "key": "k-1"})
            answer = await client.get(f"{FILE}.{kind}?position=earliest")
            assert answer.status_code == status
            assert "secret" not in answer.text
            assert ("k-1" in answer.text) == (status == 200)
            answer = await client.get(f"{FILE}.{kind}", params={"filter": 'value ~ "s"'})
            assert answer.status_code == 403
        await broker.close()


async def test_what_is_refused_is_a_page(client: httpx.AsyncClient) -> None:
    for query, status in (("", 404), ("?filter=%3D", 404), ("?partition=x", 400)):
        answer = await client.get(f"{FILE}.csv{query}")
        assert answer.status_code == status
        assert "content-disposition" not in answer.headers
    assert (await client.get(f"{FILE}.exe")).status_code == 404


async def test_a_file_is_made_as_its_visitor() -> None:
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "admin") as client:
            await fill(client, {"payload": "v"}, topic="persistent/t1/ns/orders")
        path = "/console/topic/persistent/t1/ns/orders/messages.csv?position=earliest"
        async with client_of(app, "cons") as client:
            assert [each["value"] for each in rows_of(await client.get(path))] == ["v"]
        async with client_of(app, "prod") as client:
            assert (await client.get(path)).status_code in (401, 403)
