"""Schemas over HTTP, on the application itself: answers, refusals, and the namespace's policies."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.schema.builders import field, optional, protobuf_native, record

BASE = "/admin/v2/schemas/public/default/orders"
NAMESPACE = "/admin/v2/namespaces/public/default"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def admin() -> AsyncIterator[httpx.AsyncClient]:
    broker = await Broker().start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await broker.close()


def payload(definition: Any = "", kind: str = "AVRO", **properties: str) -> dict[str, Any]:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    return {"type": kind, "schema": text, "properties": properties}


def told(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json()


async def test_life_of_a_schema(admin: httpx.AsyncClient) -> None:
    assert told(await admin.get(f"{BASE}/schema")) == (404, {"reason": "Schema not found"})
    assert (await admin.get(f"{BASE}/schemas")).status_code == 404
    assert (await admin.get(f"{BASE}/metadata")).status_code == 404
    first = await admin.post(f"{BASE}/schema", json=payload(record("a"), owner="me"))
    assert told(first) == (202, {"version": 0})
    wider = payload(record("a", optional("b")))
    assert told(await admin.post(f"{BASE}/schema", json=wider)) == (202, {"version": 1})
    assert told(await admin.post(f"{BASE}/schema", json=wider)) == (202, {"version": 1})
    latest = (await admin.get(f"{BASE}-partition-7/schema")).json()
    assert (latest["version"], latest["type"], latest["data"]) == (1, "AVRO", wider["schema"])
    assert latest["timestamp"] > 0
    older = (await admin.get(f"{BASE}/schema/0")).json()
    assert older["properties"] == {"owner": "me"}
    listed = (await admin.get(f"{BASE}/schemas")).json()["getSchemaResponses"]
    assert [each["version"] for each in listed] == [0, 1]
    index = [{"ledgerId": -1, "entryId": -1, "version": version} for version in (0, 1)]
    where = {"info": index[1], "index": index}
    assert told(await admin.get(f"{BASE}/metadata")) == (200, where)
    for version in (2, -1, 2**70):
        assert (await admin.get(f"{BASE}/schema/{version}")).status_code == 404
    assert (await admin.get(f"{BASE}/schema/x")).status_code == 400

    assert told(await admin.delete(f"{BASE}/schema")) == (200, {"version": 2})
    assert (await admin.get(f"{BASE}/schema")).status_code == 404
    assert (await admin.get(f"{BASE}/schema/0")).status_code == 404
    text = payload(kind="STRING")
    assert told(await admin.post(f"{BASE}/schema", json=text)) == (202, {"version": 3})
    assert told(await admin.delete(f"{BASE}/schema?force=true")) == (200, {"version": -1})
    assert told(await admin.post(f"{BASE}/schema", json=text)) == (202, {"version": 0})


async def test_compatibility_and_version_change_nothing(admin: httpx.AsyncClient) -> None:
    for path, answer in (
        ("compatibility", {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}),
        ("version", {"version": -1}),
    ):
        found = await admin.post(f"{BASE}/{path}", json=payload(record("a")))
        assert told(found) == (202, answer)
    assert (await admin.get(f"{BASE}/schema")).status_code == 404
    await admin.post(f"{BASE}/schema", json=payload(record("a")))
    other = payload(record("b"))
    answer = (await admin.post(f"{BASE}/compatibility", json=other)).json()
    assert answer == {"compatibility": False, "schemaCompatibilityStrategy": "FULL"}
    assert (await admin.post(f"{BASE}/version", json=other)).json() == {"version": -1}
    spelled = payload(record("a", doc="text"))
    assert (await admin.post(f"{BASE}/version", json=spelled)).json() == {"version": 0}


async def test_key_value_is_shown_as_json(admin: httpx.AsyncClient) -> None:
    text = json.dumps({"key": "", "value": record("a")})
    types = {"key.schema.type": "STRING", "value.schema.type": "JSON"}
    posted = await admin.post(f"{BASE}/schema", json=payload(text, "KEY_VALUE", **types))
    assert told(posted) == (202, {"version": 0})
    found = (await admin.get(f"{BASE}/schema")).json()
    assert json.loads(found["data"]) == {"key": "", "value": record("a")}
    assert found["properties"] == types


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (payload("{"), 422),
        (payload("x", "STRING"), 422),
        (payload("", "AUTO_CONSUME"), 422),
        (payload("", "BYTES"), 422),
        (payload("", "avro"), 422),
        (payload("{}", "KEY_VALUE"), 422),
        (payload("", "KEY_VALUE"), 422),
        (payload("{}", "PROTOBUF_NATIVE"), 422),
        (payload(json.dumps("x" * 600_000)), 422),
        (payload(record("b")), 409),
        (payload(kind="STRING"), 409),
        (payload(protobuf_native("p.M").data.decode(), "PROTOBUF_NATIVE"), 409),
        ({"schema": "x"}, 400),
        ({"type": "AVRO", "schema": {}}, 400),
        ({"type": "AVRO", "properties": {"a": 1}}, 400),
        ([], 400),
        (None, 400),
    ],
)
async def test_refused_bodies_have_no_effect(
    admin: httpx.AsyncClient, body: Any, status: int
) -> None:
    await admin.post(f"{BASE}/schema", json=payload(record("a")))
    refused = await admin.post(f"{BASE}/schema", content=json.dumps(body), headers=JSON)
    assert refused.status_code == status
    assert refused.json()["reason"]
    assert len((await admin.get(f"{BASE}/schemas")).json()["getSchemaResponses"]) == 1


async def test_names_that_cannot_be(admin: httpx.AsyncClient) -> None:
    assert (await admin.get("/admin/v2/schemas/public/default/%2E/schema")).status_code in (
        404,
        412,
    )
    path = "/admin/v2/schemas/public/nowhere/t/schema"
    for response in (await admin.post(path, json=payload(record("a"))), await admin.delete(path)):
        assert told(response) == (404, {"reason": "Namespace does not exist"})
    assert (await admin.get(path)).status_code == 404


async def test_strategies_of_a_namespace(admin: httpx.AsyncClient) -> None:
    path = f"{NAMESPACE}/schemaCompatibilityStrategy"
    assert told(await admin.get(path)) == (200, "UNDEFINED")
    assert told(await admin.get(f"{path}?applied=true")) == (200, "FULL")
    old = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy"
    assert (await admin.get(old)).status_code == 204
    assert (await admin.put(old, json="ForwardTransitive")).status_code == 204
    assert told(await admin.get(f"{path}?applied=true")) == (200, "FORWARD_TRANSITIVE")
    assert (await admin.put(path, json="BACKWARD")).status_code == 204
    assert told(await admin.get(path)) == (200, "BACKWARD")
    await admin.post(f"{BASE}/schema", json=payload(record("a")))
    narrower = payload(record(field("a", "long")))
    assert (await admin.post(f"{BASE}/schema", json=narrower)).status_code == 202
    assert (await admin.post(f"{BASE}/schema", json=payload(record("a")))).json() == {"version": 0}
    for wrong in ("WRONG", 3, ["FULL"]):
        assert (await admin.put(path, json=wrong)).status_code == 400
        assert (await admin.put(old, json=wrong)).status_code == 400
    assert (await admin.put(path)).status_code == 204
    assert told(await admin.get(path)) == (200, "UNDEFINED")


@pytest.mark.parametrize(
    ("name", "before"), [("isAllowAutoUpdateSchema", True), ("schemaValidationEnforced", False)]
)
async def test_flags_of_a_namespace(admin: httpx.AsyncClient, name: str, before: bool) -> None:
    path = f"{NAMESPACE}/{name}"
    assert told(await admin.get(path)) == (200, before)
    assert (await admin.post(path, json=not before)).status_code == 204
    assert told(await admin.get(path)) == (200, not before)
    assert told(await admin.get(f"{path}?applied=true")) == (200, not before)
    for wrong in ("x", 1, None):
        assert (await admin.post(path, json=wrong)).status_code == 400
    nowhere = path.replace("default", "nowhere")
    assert (await admin.get(nowhere)).status_code == 404
    assert (await admin.post(nowhere, json=True)).status_code == 404


async def test_policies_at_creation(admin: httpx.AsyncClient) -> None:
    path = "/admin/v2/namespaces/public/strict"
    wrong = {"schema_compatibility_strategy": "WRONG"}
    assert (await admin.put(path, json=wrong)).status_code == 400
    policies = {"schema_compatibility_strategy": "FORWARD", "is_allow_auto_update_schema": False}
    assert (await admin.put(path, json=policies)).status_code == 204
    assert told(await admin.get(f"{path}/schemaCompatibilityStrategy")) == (200, "FORWARD")
    assert told(await admin.get(f"{path}/isAllowAutoUpdateSchema")) == (200, False)
    # An administrator adds versions where clients may not
    posted = await admin.post("/admin/v2/schemas/public/strict/t/schema", json=payload(record("a")))
    assert posted.status_code == 202


async def test_schemas_go_with_their_namespace(admin: httpx.AsyncClient) -> None:
    namespace, schema = (
        "/admin/v2/namespaces/public/short",
        "/admin/v2/schemas/public/short/t/schema",
    )
    assert (await admin.put(namespace)).status_code == 204
    assert (await admin.post(schema, json=payload(record("a")))).status_code == 202
    assert (await admin.delete(namespace)).status_code == 204
    assert (await admin.put(namespace)).status_code == 204
    assert (await admin.get(schema)).status_code == 404
