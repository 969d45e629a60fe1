"""REST produce by schema: values as typed consumers read them, versions, refusals."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.broker.http.server.app import create_app
from magnetar.broker.schema.definition import SCHEMA_TYPES
from tests.unit.broker.doubles import Broker
from tests.unit.broker.schema.builders import avro, key_value, optional, plain, record
from tests.unit.broker.schema.builders import protobuf_native as native

PATH = "/topics/persistent/public/default/orders"
SCHEMA = "/admin/v2/schemas/public/default/orders/schema"
ORDER = json.dumps(record("a", optional("b")))


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    broker = await Broker().start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.put(f"{PATH}/subscription/s/session")
        yield client
        await client.delete(f"{PATH}/subscription/s/session")
    await broker.close()


def info(kind: str, schema: str | bytes = "", **properties: str) -> str:
    data = schema.encode() if isinstance(schema, str) else schema
    text = base64.b64encode(data).decode()
    return json.dumps({"name": "n", "type": kind, "schema": text, "properties": properties})


async def produce(
    http: httpx.AsyncClient, *values: str, key: str | None = None, **asked: Any
) -> dict[str, Any]:
    messages = [{"payload": value} | ({} if key is None else {"key": key}) for value in values]
    answer = await http.post(PATH, json={"messages": messages, **asked})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def taken(http: httpx.AsyncClient, count: int, **query: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        answer = await http.get(f"{PATH}/subscription/s/messages", params={"max": count, **query})
        assert answer.status_code == 200, answer.text
        assert answer.json()["messages"], "nothing came in time"
        messages += answer.json()["messages"]
    return messages


def raw(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["payload"])


async def test_text_is_a_string_schema(http: httpx.AsyncClient) -> None:
    assert (await produce(http, "x"))["schemaVersion"] == 0
    stored = (await http.get(SCHEMA)).json()
    assert (stored["type"], stored["version"]) == ("STRING", 0)
    assert stored["properties"] == {"__charset": "UTF-8"}
    (message,) = await taken(http, 1)
    assert (message["payload"], message["schemaVersion"]) == ("x", 0)


async def test_values_are_encoded_and_wrong_ones_named(http: httpx.AsyncClient) -> None:
    answer = await produce(
        http, '{"a": 1, "b": "x"}', '{"a": "no"}', '{"a": 2}', valueSchema=info("AVRO", ORDER)
    )
    results = answer["messagePublishResults"]
    assert [each["errorCode"] for each in results] == [0, 2, 0]
    assert [each["schemaVersion"] for each in results] == [0, 0, 0]
    assert results[1]["errorMsg"] == "a must be an int, not 'no'"
    assert "messageId" not in results[1]
    first, second = await taken(http, 2, payload="base64")
    assert (raw(first), raw(second)) == (b"\x02\x02\x02x", b"\x04\x00")
    assert (await http.get(SCHEMA)).json()["data"] == ORDER


async def test_versions(http: httpx.AsyncClient) -> None:
    wider = json.dumps(record("a", optional("b"), optional("c")))
    assert (await produce(http, '{"a":1}', valueSchema=info("AVRO", ORDER)))["schemaVersion"] == 0
    assert (await produce(http, '{"a":1}', valueSchema=info("AVRO", wider)))["schemaVersion"] == 1
    assert (await produce(http, '{"a":1}', schemaVersion=0))["schemaVersion"] == 0
    messages = await taken(http, 3, payload="base64")
    assert [(each["schemaVersion"], raw(each)) for each in messages] == [
        (0, b"\x02\x00"),
        (1, b"\x02\x00\x00"),
        (0, b"\x02\x00"),
    ]


@pytest.mark.parametrize(
    ("definition", "text", "data"),
    [
        (plain("INT32"), "5", struct.pack(">i", 5)),
        (plain("BYTES"), "abc", b"abc"),
        (avro(record("a"), "JSON"), '{"a": 1}', b'{"a": 1}'),
        (native("p.Order"), '{"a": 1}', b"\x08\x01"),
        (key_value(plain("STRING"), plain("INT8")), "5", b"\0\0\0\x01k\0\0\0\x01\x05"),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
async def test_types(http: httpx.AsyncClient, definition: Any, text: str, data: bytes) -> None:
    schema = info(definition.type, definition.data, **definition.properties)
    answer = await produce(http, text, key="k", valueSchema=schema)
    assert answer["messagePublishResults"][0]["errorCode"] == 0, answer
    (message,) = await taken(http, 1, payload="base64")
    assert raw(message) == data
    assert ("schemaVersion" in message) is (definition.type != "BYTES")


async def test_keys_with_a_schema_stay_outside_of_the_payload(http: httpx.AsyncClient) -> None:
    schemas = {"keySchema": info("AVRO", ORDER), "valueSchema": info("INT32")}
    answer = await produce(http, "5", "x", key='{"a": 1}', **schemas)
    assert [each["errorCode"] for each in answer["messagePublishResults"]] == [0, 2]
    nothing = await produce(http, "5", **schemas)
    assert nothing["messagePublishResults"][0]["errorCode"] == 2
    (message,) = await taken(http, 1, payload="base64")
    assert (message["key"], raw(message)) == ("AgA=", struct.pack(">i", 5))
    stored = (await http.get(SCHEMA)).json()
    assert stored["type"] == "KEY_VALUE"
    assert json.loads(stored["data"]) == {"key": json.loads(ORDER), "value": ""}
    assert stored["properties"]["kv.encoding.type"] == "SEPARATED"
    assert stored["properties"]["value.schema.type"] == "INT32"


async def test_a_key_schema_alone_goes_with_text(http: httpx.AsyncClient) -> None:
    await produce(http, "v", key="7", keySchema=info("INT8"))
    (message,) = await taken(http, 1)
    assert (message["key"], message["payload"]) == ("Bw==", "v")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"schemaVersion": 7}, 404),
        ({"schemaVersion": -2}, 404),
        ({"schemaVersion": 2**63 - 1}, 404),
        ({"schemaVersion": []}, 400),
        ({"schemaVersion": True}, 400),
        ({"valueSchema": "{"}, 400),
        ({"valueSchema": 5}, 400),
        ({"valueSchema": "\ud800"}, 400),
        ({"valueSchema": "{}"}, 400),
        ({"keySchema": "[]"}, 400),
        ({"valueSchema": '{"type": "INT8", "properties": {"a": 1}}'}, 400),
        ({"valueSchema": '{"type": "INT8", "schema": "*"}'}, 422),
        ({"valueSchema": '{"type": "INT8", "schema": 5}'}, 422),
        ({"valueSchema": info("INT8", "x")}, 422),
        ({"valueSchema": info("NONSENSE")}, 422),
        ({"valueSchema": info("AUTO_CONSUME")}, 422),
        ({"valueSchema": info("AVRO", '{"type": "rec')}, 422),
        ({"valueSchema": info("KEY_VALUE", "x")}, 422),
        ({"keySchema": info("KEY_VALUE"), "valueSchema": info("INT8")}, 422),
        ({"valueSchema": info("PROTOBUF", ORDER)}, 501),
        ({"keySchema": info("PROTOBUF", ORDER)}, 501),
    ],
    ids=str,
)
async def test_refused_schemas_leave_nothing(
    http: httpx.AsyncClient, asked: dict[str, Any], status: int
) -> None:
    body = json.dumps({"messages": [{"payload": "1", "key": "k"}], **asked})
    answer = await http.post(PATH, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.json()["reason"]
    assert (await http.get(SCHEMA)).status_code == 404


async def test_incompatible_schemas_are_refused(http: httpx.AsyncClient) -> None:
    await produce(http, '{"a": 1}', valueSchema=info("JSON", ORDER))
    for asked in ({}, {"valueSchema": info("INT8")}, {"valueSchema": info("AVRO", ORDER)}):
        answer = await http.post(PATH, json={"messages": [{"payload": "1"}], **asked})
        assert answer.status_code == 409, asked
        assert "JSON" in answer.json()["reason"]
    policy = "/admin/v2/namespaces/public/default/isAllowAutoUpdateSchema"
    assert (await http.post(policy, json=False)).status_code == 204
    wider = info("JSON", json.dumps(record("a", optional("b"), optional("c"))))
    answer = await http.post(PATH, json={"messages": [{"payload": "1"}], "valueSchema": wider})
    assert answer.status_code == 409
    assert (await produce(http, '{"a": 1}', schemaVersion=0))["schemaVersion"] == 0


async def test_calls_at_once_are_checked_by_their_own_schemas(http: httpx.AsyncClient) -> None:
    """They share a producer, which the first of them opens."""
    await produce(http, '{"a": 1}', valueSchema=info("AVRO", ORDER))
    wrong, right = info("INT8"), info("AVRO", ORDER)
    for name in ("", "till"):
        answers = await asyncio.gather(
            *(
                http.post(
                    PATH,
                    json={
                        "producerName": name,
                        "messages": [{"payload": '{"a": 1}'}],
                        "valueSchema": schema,
                    },
                )
                for schema in (wrong, right, wrong, right, right)
            )
        )
        assert [each.status_code for each in answers] == [409, 200, 409, 200, 200]


async def test_many_values_leave_the_loop(http: httpx.AsyncClient) -> None:
    """More text than is encoded on the loop, and a definition that a thread parses."""
    large = json.dumps(record(*(f"f{n}" for n in range(300)), "a"))
    value = json.dumps({f"f{n}": n for n in range(300)} | {"a": 1})
    answer = await produce(http, *[value] * 20, valueSchema=info("AVRO", large))
    assert [each["errorCode"] for each in answer["messagePublishResults"]] == [0] * 20


TYPES = sorted(SCHEMA_TYPES | {"NONE", "AUTO_CONSUME", "X"})
DEFINITIONS = [
    b"",
    b"{}",
    b'"int"',
    b'["null", "string"]',
    ORDER.encode(),
    b'{"type":"record","name":"N","fields":[{"name":"n","type":["null","N"]}]}',
    b'{"type":"array","items":{"type":"map","values":["null","bytes"]}}',
    b'{"type":"enum","name":"E","symbols":["A","A"]}',
    b'{"type":"fixed","name":"F","size":-1}',
    b'{"type":{"type":{"type":"int"}}}',
    b'{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
    b'{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"error","name":"R"}}]}',
    native("p.Order").data,
    key_value(plain("STRING"), plain("INT8")).data,
]
TEXTS = ["", "5", '{"a":1}', '{"a":{"int":1}}', "[null]", '["A"]', '"A"', "null", "{", '{"n":{}}']


@st.composite
def schema_infos(draw: st.DrawFn) -> str:
    data = draw(st.one_of(st.sampled_from(DEFINITIONS), st.binary(max_size=40)))
    properties = draw(
        st.dictionaries(
            st.sampled_from(["key.schema.type", "value.schema.type", "kv.encoding.type"]),
            st.sampled_from([*TYPES, "INLINE", "SEPARATED"]),
        )
    )
    return info(draw(st.sampled_from(TYPES)), data, **properties)


async def test_any_request_has_an_answer(http: httpx.AsyncClient) -> None:
    """No schema and no value ends in an internal error; what was stored can be shown."""

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        asked=st.fixed_dictionaries(
            {},
            optional={
                "valueSchema": schema_infos(),
                "keySchema": schema_infos(),
                "schemaVersion": st.integers(-2, 3),
            },
        ),
        values=st.lists(
            st.tuples(
                st.one_of(st.sampled_from(TEXTS), st.text(st.characters(codec="utf-8"))),
                st.none() | st.sampled_from(TEXTS),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def collect(asked: dict[str, Any], values: list[tuple[str, str | None]]) -> None:
        messages = [{"payload": value, "key": key} for value, key in values]
        requests.append({"messages": messages, **asked})

    requests: list[dict[str, Any]] = []
    collect()
    for number, body in enumerate(requests):
        path = f"/topics/persistent/public/default/fuzz{number}"
        await http.put(f"{path}/subscription/s/session")
        answer = await http.post(path, json=body)
        assert answer.status_code in (200, 400, 404, 409, 422, 501), (body, answer.text)
        taken_now = await http.get(f"{path}/subscription/s/messages?decode=true&waitMs=0")
        assert taken_now.status_code == 200, body
        await http.delete(f"{path}/subscription/s/session")
