"""The tab of schemas: differences of versions, and a new version that is checked before."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console.schema_view import schema_versions
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.console.test_console_actions import token_in
from tests.unit.broker.doubles import Broker

TOPIC = "persistent/public/default/orders"
PAGE = f"/console/topic/{TOPIC}/schema"
SCHEMAS = "/admin/v2/schemas/public/default/orders"


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID = {"name": "id", "type": "long"}
PAID = {"name": "paid", "type": "boolean", "default": False}
NAME = {"name": "name", "type": "string"}


def stored(version: int, data: str, **more: Any) -> dict[str, Any]:
    return {"version": version, "type": "AVRO", "timestamp": 5, "data": data, **more}


def test_a_version_tells_what_it_changes() -> None:
    newest, first = schema_versions([stored(0, record(ID)), stored(1, record(ID, PAID))])
    assert (newest.number, first.number, first.changes) == (1, 0, ())
    changed = [(sign, line.strip()) for sign, line in newest.changes if sign != " "]
    assert ("+", '"name": "paid",') in changed
    assert all(sign == "+" or line in ("}", "},") for sign, line in changed)


lines = st.lists(st.sampled_from(["a", "b", "- c", "+d", "@@ e", "-- f", "++ g"]), max_size=8)


@given(lines, lines)
def test_added_and_removed_lines_are_all_of_the_difference(old: list[str], new: list[str]) -> None:
    """Without what is the same they are what is only in one of the two."""
    newest, _ = schema_versions([stored(0, "\n".join(old)), stored(1, "\n".join(new))])
    removed = [line for sign, line in newest.changes if sign == "-"]
    added = [line for sign, line in newest.changes if sign == "+"]
    rest = ["AVRO", *old]
    for line in removed:
        rest.remove(line)
    assert sorted([*rest, *added]) == sorted(["AVRO", *new])


def test_properties_and_types_are_part_of_it() -> None:
    newest, _ = schema_versions(
        [stored(0, "x", properties={"a": "1"}), stored(1, "x", type="JSON", properties={"a": "2"})]
    )
    assert {("-", "AVRO"), ("+", "JSON"), ("+", '  "a": "2"')} <= set(newest.changes)


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        assert (await found.put(f"/admin/v2/{TOPIC}")).is_success
        yield found


async def send(client: httpx.AsyncClient, do: str, definition: str) -> httpx.Response:
    token = token_in(await client.get(f"{PAGE}/new"))
    fields = {"token": token, "do": do, "type": "AVRO", "definition": definition}
    return await client.post(f"{PAGE}/new", data=fields)


async def test_a_version_is_checked_then_stored(client: httpx.AsyncClient) -> None:
    assert "No schema" in (await client.get(PAGE)).text
    assert (await send(client, "upload", record(ID))).status_code == 303
    checked = await send(client, "check", record(ID, PAID))
    assert "It is compatible (FULL)." in checked.text
    assert len((await client.get(f"{SCHEMAS}/schemas")).json()["getSchemaResponses"]) == 1
    assert (await send(client, "upload", record(ID, PAID))).status_code == 303
    page = (await client.get(PAGE)).text
    assert "Version 1" in page
    assert "Changes since version 0" in page
    form = (await client.get(f"{PAGE}/new")).text
    assert "&#34;paid&#34;" in form  # the newest one is in the form


async def test_what_is_not_compatible_is_told_and_not_stored(client: httpx.AsyncClient) -> None:
    assert (await send(client, "upload", record(ID))).status_code == 303
    checked = await send(client, "check", record(ID, NAME))
    assert "not compatible with the stored versions (FULL)" in checked.text
    refused = await send(client, "upload", record(ID, NAME))
    assert refused.status_code == 409
    assert 'role="alert"' in refused.text
    broken = await send(client, "check", "<b>{")
    assert broken.status_code == 422
    assert "<b>{" not in broken.text
    assert len((await client.get(f"{SCHEMAS}/schemas")).json()["getSchemaResponses"]) == 1


async def test_a_foreign_form_stores_nothing(client: httpx.AsyncClient) -> None:
    fields = {"token": "x", "do": "upload", "type": "AVRO", "definition": record(ID)}
    assert (await client.post(f"{PAGE}/new", data=fields)).status_code == 403
    fields["token"] = token_in(await client.get(f"{PAGE}/new"))
    strange = await client.post(f"{PAGE}/new", data={**fields, "type": "NO_SUCH"})
    assert strange.status_code == 400
    assert (await client.get(f"{SCHEMAS}/schemas")).status_code == 404


async def test_a_deleted_schema_stays_in_the_list(broker: Broker) -> None:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert "No topic has a schema." in (await client.get("/console/schemas")).text
        schema = {"type": "INT32", "schema": "", "properties": {}}
        assert (await client.post(f"{SCHEMAS}/schema", json=schema)).is_success
        page = (await client.get("/console/schemas")).text
        assert f'href="topic/{TOPIC}/schema"' in page
        assert '<td>INT32</td><td class="r">0</td>' in page
        assert (await client.delete(f"{SCHEMAS}/schema")).is_success
        assert '<span class="mu">deleted</span>' in (await client.get("/console/schemas")).text
