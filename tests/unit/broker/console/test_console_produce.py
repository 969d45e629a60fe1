"""The form that sends a message: what is typed is what is stored, as its visitor may."""

import base64
import json
import re
import shlex
import time
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console.draft import Draft, command_of, delivery_of, draft_again
from magnetar.broker.console.pulsar_source import PulsarSource
from magnetar.broker.console.schema_form import ActionError
from magnetar.broker.console.source import TopicSchema
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.console.test_console_actions import token_in
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

TOPIC = "persistent/public/default/orders"
PAGE = f"/console/topic/{TOPIC}/produce"
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        assert (await found.put(f"/admin/v2/{TOPIC}")).is_success
        yield found


async def stored(client: httpx.AsyncClient, topic: str = TOPIC) -> list[dict[str, Any]]:
    answer = await client.get(f"/admin/v2/{topic}/messages")
    return list(answer.json()["messages"])


async def send(client: httpx.AsyncClient, path: str = PAGE, **fields: str) -> httpx.Response:
    token = token_in(await client.get(path))
    return await client.post(path, data={"token": token, **fields})


def fields_in(page: httpx.Response) -> dict[str, str]:
    """What a browser would send."""
    inputs = re.findall(r'<input [^>]*?name="(\w+)" value="([^"]*)"', page.text)
    areas = re.findall(r'<textarea name="(\w+)"[^>]*>\n?(.*?)</textarea>', page.text, re.DOTALL)
    chosen = re.findall(r'name="(\w+)">(?:(?!</select>).)*?value="(\w+)" selected', page.text)
    found = {name: unescape(text) for name, text in (*inputs, *areas, *chosen) if name != "q"}
    return {name: re.sub("\r\n|\r|\n", "\r\n", text) for name, text in found.items()}


async def test_what_is_typed_is_stored(client: httpx.AsyncClient) -> None:
    before_ms = int(time.time() * 1000)
    done = await send(
        client,
        value="<b>hi</b>\r\nthere",
        key="k1",
        properties="a=1\r\nb = two ",
        event="2026-11-28T09:00:00Z",
        delay="5m",
    )
    assert done.status_code == 303, done.text
    (found,) = await stored(client)
    shown = {name: found[name] for name in ("payload", "key", "properties", "eventTime")}
    assert shown == {
        "payload": "<b>hi</b>\nthere",
        "key": "k1",
        "properties": {"a": "1", "b": "two"},
        "eventTime": 1795856400000,
    }
    assert found["deliverAtTime"] >= before_ms + 300_000
    assert "schemaVersion" not in found
    schemas = await client.get("/admin/v2/schemas/public/default/orders/schema")
    assert schemas.status_code == 404  # the topic has none, as before
    after = await client.get(
        str(httpx.URL(f"http://localhost{PAGE}").join(done.headers["location"]))
    )
    assert f"Stored as <code>{found['messageId']}</code>" in after.text
    (link,) = re.findall(r'href="([^"]*)">Show it', after.text)
    page = await client.get(str(httpx.URL(f"http://localhost{PAGE}").join(unescape(link))))
    assert "&lt;b&gt;hi&lt;/b&gt;" in page.text
    assert "<b>hi" not in page.text


async def test_bytes_of_a_value_and_of_a_key(client: httpx.AsyncClient) -> None:
    data = base64.b64encode(b"\xff\x00\n").decode()
    done = await send(client, value=data, encoding="base64", key="/w==", key_encoding="base64")
    assert done.status_code == 303, done.text
    (found,) = await stored(client)
    assert (found["payload"], found["encoding"]) == (data, "base64")
    assert (found["key"], found["keyEncoding"]) == ("/w==", "base64")


async def test_values_are_checked_by_the_topics_schema(client: httpx.AsyncClient) -> None:
    schema = {"type": "AVRO", "schema": json.dumps(AVRO), "properties": {}}
    path = "/admin/v2/schemas/public/default/orders/schema"
    assert (await client.post(path, json=schema)).is_success
    assert "(AVRO, version 0)" in (await client.get(PAGE)).text
    refused = await send(client, value='{"id": "x"}')
    assert refused.status_code == 400
    assert "id must be a long, not 'x'" in unescape(refused.text)
    assert fields_in(refused)["value"] == '{"id": "x"}'
    refused = await send(client, value='{"id": 7}', schema="5")
    assert refused.status_code == 404
    assert await stored(client) == []
    assert (await send(client, value='{"id": 7}')).status_code == 303
    (found,) = await stored(client)
    assert (found["payload"], found["schemaVersion"]) == ({"id": 7}, 0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"delay": "soon"}, "a time is a number and s, m, h or d"),
        ({"event": "yesterday"}, "a time is 2026-11-28T09:00:00Z"),
        ({"event": "1900-01-01"}, "a time is 2026-11-28T09:00:00Z"),
        ({"properties": "no equals sign"}, "a property is a line: name=value"),
        ({"properties": '{"a": 1}'}, "the values of properties are texts"),
        ({"properties": "{"}, "the properties are no JSON"),
        ({"partition": "-1"}, "a partition is a number"),
        ({"schema": "latest"}, "a schema version is a number"),
        ({"topic": "orders"}, "a topic is persistent://tenant/namespace/topic"),
        ({"topic": "http://a/b/c"}, "a topic is persistent://tenant/namespace/topic"),
        ({"value": "!", "encoding": "base64"}, "is not base64"),
        ({"value": "ü", "encoding": "base64"}, "is not base64"),
        ({"encoding": "hex"}, "encoding must be text or base64"),
        ({"key": "?", "key_encoding": "base64"}, "is not base64"),
        ({"value": "x" * 300_000}, "longer than 256 KiB"),
    ],
)
async def test_what_makes_no_sense_is_named_and_nothing_is_stored(
    client: httpx.AsyncClient, fields: dict[str, str], why: str
) -> None:
    refused = await send(client, **{"value": "v", **fields})
    assert refused.status_code == 400
    assert why in unescape(refused.text)
    assert await stored(client) == []


async def test_a_topic_that_is_not_there_and_a_partition_that_is_not(
    client: httpx.AsyncClient,
) -> None:
    refused = await send(client, topic="persistent://public/nowhere/x", value="v")
    assert refused.status_code == 404
    assert 'role="alert"' in refused.text
    refused = await send(client, value="v", partition="3")
    assert refused.status_code == 404
    assert "has no partition 3" in refused.text


async def test_one_partition(client: httpx.AsyncClient) -> None:
    path = "/admin/v2/persistent/public/default/parts/partitions"
    assert (await client.put(path, json=3)).is_success
    topic = "persistent/public/default/parts"
    page = f"/console/topic/{topic}/produce"
    done = await send(client, page, value="v", partition="2")
    assert done.status_code == 303
    (found,) = await stored(client, f"{topic}-partition-2")
    after = await client.get(
        str(httpx.URL(f"http://localhost{page}").join(done.headers["location"]))
    )
    (link,) = re.findall(r'href="([^"]*)">Show it', after.text)
    shown = await client.get(str(httpx.URL(f"http://localhost{page}").join(unescape(link))))
    assert found["messageId"] in shown.text
    (again,) = re.findall(r'href="([^"]*)">Produce again', shown.text)
    form = await client.get(str(httpx.URL(str(shown.url)).join(unescape(again))))
    assert fields_in(form)["partition"] == "2"


@pytest.mark.parametrize(
    "message",
    [
        {"payload": "</textarea><script>alert(1)</script>", "key": '"><i>', "eventTime": "5"},
        {"payload": "\n two lines\n", "properties": {"a=b": "c\nd", " e": "f "}},
        {"payload": "a\r\nb\0c\rd"},
        {"payload": "/wA=", "encoding": "base64", "key": "/w==", "keyEncoding": "base64"},
        {"payload": "", "properties": {"x": "", "{": "}"}},
    ],
)
async def test_again_makes_the_same_message(
    client: httpx.AsyncClient, message: dict[str, Any]
) -> None:
    body = {"messages": [message], "valueSchema": '{"type":"BYTES"}'}
    assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    (first,) = await stored(client)
    path = f"{PAGE}?from={first['messageId']}"
    form = await client.get(path)
    assert "<script>alert" not in form.text
    fields = fields_in(form)
    assert fields["topic"] == "persistent://public/default/orders"
    assert (await client.post(path, data=fields)).status_code == 303
    first, second = await stored(client)
    same = ("payload", "encoding", "key", "keyEncoding", "properties", "eventTime")
    assert [second.get(name) for name in same] == [first.get(name) for name in same]


@pytest.mark.parametrize("contents", ["metadata", "off"])
async def test_values_that_are_withheld_are_not_filled_in(contents: str) -> None:
    broker = await Broker(web_console_messages=contents).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"messages": [{"payload": "secret"}]}
        assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
        (found,) = await stored(client)
        form = await client.get(f"{PAGE}?from={found['messageId']}")
        assert "secret" not in form.text
        assert "withholds" in form.text
    await broker.close()


async def test_a_message_that_is_gone(client: httpx.AsyncClient) -> None:
    page = await client.get(f"{PAGE}?from=99:1")
    assert "There is no message 99:1 any more" in page.text
    page = await client.get(f"{PAGE}?from=%3Cscript%3E")
    assert "<script>" not in page.text.split("</head>")[1]


async def test_a_form_that_is_not_ours_and_a_console_that_is_read_only(
    client: httpx.AsyncClient,
) -> None:
    for data in ({}, {"token": "x", "value": "v"}, {"token": "é", "value": "v"}):
        assert (await client.post(PAGE, data=data)).status_code == 403
    assert await stored(client) == []
    broker = await Broker(web_console_read_only=True).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
        assert (await other.put(f"/admin/v2/{TOPIC}")).is_success
        assert "This console is read-only." in (await other.get(PAGE)).text
        assert 'orders/produce"' not in (await other.get(f"/console/topic/{TOPIC}")).text
        assert (await other.post(PAGE, data={"token": "x", "value": "v"})).status_code == 403
        assert await stored(other) == []
    await broker.close()


async def test_a_message_is_the_visitors_own() -> None:
    """What REST refuses to a role, the form refuses too."""
    page = "/console/topic/persistent/t1/ns/orders/produce"
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "admin") as client:
            assert (await client.put("/admin/v2/persistent/t1/ns/orders")).is_success
        async with client_of(app, "prod") as client:
            assert (await send(client, page, value="v")).status_code == 303
        async with client_of(app, "cons") as client:
            refused = await send(client, page, value="v")
            assert refused.status_code in (401, 403)
            assert 'role="alert"' in refused.text
        async with client_of(app, "admin") as client:
            assert len(await stored(client, "persistent/t1/ns/orders")) == 1


async def test_the_command_does_the_same(client: httpx.AsyncClient) -> None:
    message = {"payload": "it's <b>", "key": "k", "properties": {"a": "1"}}
    body = {"messages": [message], "valueSchema": '{"type":"BYTES"}'}
    assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    (first,) = await stored(client)
    form = await client.get(f"{PAGE}?from={first['messageId']}")
    (command,) = re.findall(r"command line: <code>(.*?)</code>", form.text, re.DOTALL)
    assert shlex.split(unescape(command)) == [
        *("magnetar", "produce", "persistent://public/default/orders", "-s", ""),
        *("--messages=it's <b>", "--key=k", "--properties=a=1"),
    ]
    refused = await send(client, value="x", delay="9d", partition="0")
    (command,) = re.findall(r"command line: <code>(.*?)</code>", refused.text, re.DOTALL)
    words = shlex.split(unescape(command))
    assert words[1].endswith(f"/topics/{TOPIC}/partitions/0")
    (message,) = json.loads(words[-1])["messages"]
    assert message.keys() == {"payload", "deliverAt"}


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_properties_are_written_so_that_they_are_read_again(properties: dict[str, str]) -> None:
    message = {"messageId": "1:2", "payload": "", "properties": properties}
    draft = draft_again(message, TopicPath.parse("persistent://a/b/c"), "")
    assert delivery_of(draft, 0).message.get("properties", {}) == properties


@pytest.mark.parametrize(
    "fields",
    [
        {"encryptionKeys": ["k"]},
        {"chunkId": 0},
        {"error": "x"},
        {"isMasked": True},
        {"key": "a\nb"},
    ],
)
def test_what_cannot_be_made_again(fields: dict[str, Any]) -> None:
    message = {"messageId": "1:2", "payload": "", **fields}
    with pytest.raises(ActionError, match="can't be filled in"):
        draft_again(message, TopicPath.parse("persistent://a/b/c"), "")


def test_the_pair_of_a_schema_is_filled_in_by_its_parts() -> None:
    shown = {"payload": {"key": {"id": 1}, "value": {"v": 2}}, "encoding": "json"}
    message = {"messageId": "1:2", "schemaType": "KEY_VALUE", "key": "eyJpZCI6MX0=", **shown}
    draft = draft_again(message | {"keyEncoding": "base64"}, TopicPath.parse("a://b/c/d"), "")
    assert (draft.key, draft.key_encoding, draft.value) == ('{"id": 1}', "text", '{"v": 2}')


class TestRestOfPulsar:
    """Its rules: `docs/reference/http-differences.md`."""

    source = PulsarSource(None)  # type: ignore[arg-type] # no call is made
    text = TopicSchema(0, "STRING", "", {})

    def body(self, draft: Draft, schema: TopicSchema | None = text) -> dict[str, Any] | None:
        return self.source.produce_body(delivery_of(draft, 1_000), schema)

    def message(self, draft: Draft) -> dict[str, Any]:
        body = self.body(draft)
        assert body is not None
        (found,) = body["messages"]
        return dict(found)

    def test_a_delay_has_another_name(self) -> None:
        message = self.message(Draft("a/b/c", "v", delay="2s"))
        assert message == {"payload": "v", "deliverAfterMs": 3_000}
        message = self.message(Draft("a/b/c", "v", delay="2s", event="7"))
        assert message == {"payload": "v", "eventTime": "7", "deliverAt": 3_000}

    def test_what_it_would_store_otherwise_has_no_call(self) -> None:
        """Pulsar would store an empty value, or give the topic a schema."""
        schema = TopicSchema(3, "INT32", "", {})
        assert self.body(Draft("a/b/c", "7"), schema) == {
            "messages": [{"payload": "7"}],
            "schemaVersion": 3,
        }
        assert self.body(Draft("a/b/c", "seven"), schema) is None
        assert self.body(Draft("a/b/c", "{}"), TopicSchema(0, "AVRO", json.dumps(AVRO), {})) is None
        assert self.body(Draft("a/b/c", "/w==", encoding="base64")) is None
        assert self.body(Draft("a/b/c", "x"), None) is None
        delivery = delivery_of(Draft("a/b/c", "x", event="7"), 0)
        assert command_of(delivery, None, "http://b", has_schema=False) == ""
