"""``magnetar console`` in front of a cluster: the same pages of Magnetar and of Apache Pulsar.

    pytest tests/interop/console --service-url pulsar://127.0.0.1:6650 \\
        --admin-url http://127.0.0.1:8080
"""

import asyncio
import json
import re
import time
from html import unescape
from typing import Any
from urllib.parse import unquote

import httpx
import pulsar
import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.pages import PAGES
from magnetar.broker.console.server import console_app
from tests.asgi_client import AsgiClient
from tests.console_paths import path_of
from tests.interop.console.visitor import LOCAL, post, reason_of, rest, step
from tests.official_client import client_of
from tests.waiting import wait_until


class Payment(pulsar.schema.Record):  # type: ignore[misc]  # of a library without types
    status = pulsar.schema.String()
    cents = pulsar.schema.Integer()


async def test_every_page_is_whole(console: httpx.AsyncClient, topic: str, admin_url: str) -> None:
    parts = dict(zip(("domain", "tenant", "namespace", "topic"), topic.split("/"), strict=True))
    (cluster,) = [each for each in await rest(admin_url, "clusters") if each != "global"]
    parts |= {"policy": "messageTTL", "role": "billing", "setting": "maxTenants"}
    parts["broker"] = (await rest(admin_url, f"brokers/{cluster}"))[0]
    for key in PAGES:
        if "{most}" in key:  # a server without transactions has none
            continue
        path = path_of(key, parts)
        page = await console.get(f"/console/{path}")
        assert page.status_code == 200, path
        assert 'class="fail"' not in page.text, path
        assert page.text.rstrip().endswith("</html>"), path


async def test_numbers_are_those_of_rest(
    console: httpx.AsyncClient, topic: str, admin_url: str
) -> None:
    stats = await rest(admin_url, f"{topic}/stats")
    page = (await console.get(f"/console/topic/{topic}/subscriptions?open=billing")).text
    shown = dict(re.findall(r"<dt>([^<]+)</dt><dd[^>]*>([^<]+?)\s*<", page))
    assert stats["subscriptions"]["billing"]["msgBacklog"] == 3
    assert shown["Largest backlog"] == "3"
    assert "No consumer is connected." in unescape(page)
    assert 'data-reason="noConsumer"' in page


async def test_grants_of_a_role(console: httpx.AsyncClient, admin_url: str) -> None:
    role = f"billing-{time.time_ns()}"
    async with httpx.AsyncClient() as client:
        url = f"{admin_url}/admin/v2/namespaces/public/default/permissions/{role}"
        assert (await client.post(url, json=["consume"])).is_success
        assert f"<b>{role}</b>" in (await console.get("/console/roles")).text
        page = (await console.get(f"/console/roles/{role}")).text
        assert '<td class="n">public/default</td><td>namespace</td><td>consume</td>' in page
        assert (await client.delete(url)).is_success
    assert "It has no grant here." in (await console.get(f"/console/roles/{role}")).text


async def test_brokers_are_shown_as_rest_tells_them(
    console: httpx.AsyncClient, topic: str, admin_url: str, service_url: str
) -> None:
    (cluster,) = [each for each in await rest(admin_url, "clusters") if each != "global"]
    (name,) = await rest(admin_url, f"brokers/{cluster}")
    report = await rest(admin_url, "broker-stats/load-report")
    page = (await console.get("/console/brokers")).text
    assert f"<b>{name}</b>" in page
    assert report["brokerVersionString"] in page
    path = f"/console/brokers/{name}"
    page = (await console.get(path)).text
    for bundle in await rest(admin_url, f"brokers/{cluster}/{name}/ownedNamespaces"):
        assert f'<td class="n">{bundle}</td>' in page
    with client_of(service_url) as client:
        producer = client.create_producer(f"persistent://{topic.partition('/')[2]}")

        async with asyncio.timeout(120):
            # Figures of Pulsar are a snapshot, which is taken anew by and by.
            while "1 / 0" not in page:
                await asyncio.sleep(1)
                page = (await console.get(f"{path}/connections")).text
        producer.close()
    assert "read it back: ok" in (await console.get(f"{path}/health")).text
    changed = (await console.get(f"{path}/settings")).text
    assert 'class="fail"' not in changed


async def test_a_message_is_produced(
    console: httpx.AsyncClient, topic: str, service_url: str
) -> None:
    path = f"/console/topic/{topic}/produce"
    more = {"key": "k", "properties": "a=1", "event": "2026-11-28T09:00:00Z"}
    assert (await post(console, path, value="<b>hi", **more)).status_code == 303
    assert (await post(console, path, value="later", delay="2s", **more)).status_code == 303
    assert (await post(console, path, value="late", delay="3s")).status_code == 303
    refused = await post(console, path, value="x", topic="persistent://public/nowhere/x")
    assert refused.status_code >= 400
    assert 'role="alert"' in refused.text
    messages = read_with_delays(service_url, topic.replace("/", "://", 1), 3)
    assert [each.data() for each in messages] == [b"<b>hi", b"later", b"late"]
    first, later, late = messages
    assert (first.partition_key(), first.properties()) == ("k", {"a": "1"})
    assert first.event_timestamp() == later.event_timestamp() == 1795856400000
    assert late.event_timestamp() == 0


def read_with_delays(service_url: str, topic: str, count: int) -> list[pulsar.Message]:
    """What a subscription gets that holds delayed messages back, behind the topic's first three."""
    found = []
    with client_of(service_url) as client:
        consumer = client.subscribe(topic, "billing", pulsar.ConsumerType.Shared)
        for _ in range(3 + count):
            found.append(consumer.receive(60_000))
            consumer.acknowledge(found[-1])
    return found[3:]


async def test_a_value_that_does_not_fit_its_schema(
    console: httpx.AsyncClient, topic: str, admin_url: str, service_url: str
) -> None:
    name = topic.rpartition("/")[2]
    schema = {"type": "INT32", "schema": "", "properties": {}}
    async with httpx.AsyncClient() as client:
        url = f"{admin_url}/admin/v2/schemas/public/default/{name}/schema"
        assert (await client.post(url, json=schema)).is_success
    path = f"/console/topic/{topic}/produce"
    assert "(INT32, version 0)" in (await console.get(path)).text
    refused = await post(console, path, value="seven")
    assert refused.status_code == 400
    assert (await post(console, path, value="7")).status_code == 303
    (found,) = read_with_delays(service_url, topic.replace("/", "://", 1), 1)
    assert found.data() == b"\0\0\0\x07"


async def test_bytes_are_produced_and_produced_again(
    console: httpx.AsyncClient, topic: str, service_url: str, admin_url: str
) -> None:
    path = f"/console/topic/{topic}/produce"
    more = {"key": "AP8=", "key_encoding": "base64", "properties": "a=1", "event": "7"}
    sent = await post(console, path, value="/wA=", encoding="base64", **more)
    assert sent.status_code == 303
    message_id = unquote(sent.headers["location"].rpartition("stored=")[2]).rsplit(":", 1)[0]
    again = f"{path}?from={message_id}"
    fields = dict(
        re.findall(r'<input name="(\w+)" value="([^"]*)"', (await console.get(again)).text)
    )
    (value,) = re.findall(r"data-filter>\n([^<]*)<", (await console.get(again)).text)
    assert value == "/wA="
    fields |= {"value": value, "encoding": "base64", "key_encoding": "base64"}
    assert (await post(console, again, **fields, properties="a=1")).status_code == 303
    for each in read_with_delays(service_url, topic.replace("/", "://", 1), 2):
        assert each.data() == b"\xff\0"
        assert (each.partition_key(), each.event_timestamp()) == ("AP8=", 7)
        assert each.properties() == {"a": "1"}
    async with httpx.AsyncClient() as client:
        name = topic.rpartition("/")[2]
        answer = await client.get(f"{admin_url}/admin/v2/schemas/public/default/{name}/schema")
        assert answer.status_code == 404  # producing bytes has given the topic none


async def test_values_of_avro_are_produced_to_partitions(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    name = f"public/default/avro-{time.time_ns()}"
    schema = pulsar.schema.AvroSchema(Payment)
    async with httpx.AsyncClient() as client:
        url = f"{admin_url}/admin/v2/persistent/{name}/partitions"
        assert (await client.put(url, json=3)).is_success
    with client_of(service_url) as client:
        consumer = client.subscribe(f"persistent://{name}", "s", schema=schema)
        path = f"/console/topic/persistent/{name}/produce"
        text = '{"status": {"string": "paid"}, "cents": {"int": 5}}'
        sent = await post(console, path, value=text, partition="1")
        assert sent.status_code == 303, sent.text
        assert sent.headers["location"].endswith("%3A1")
        assert "no partition 7" in (await post(console, path, value=text, partition="7")).text
        assert (await post(console, path, value='{"cents": "five"}')).status_code == 400
        found = consumer.receive(30_000)
        assert (found.value().status, found.value().cents) == ("paid", 5)
        assert "-partition-1" in found.topic_name()
        consumer.close()


async def test_new_messages_are_followed(
    console: httpx.AsyncClient, topic: str, service_url: str, admin_url: str
) -> None:
    tab = f"/console/topic/{topic}/messages"
    assert (await console.get(f"{tab}/follow?filter=%3D")).status_code == 400
    app = console._transport.app  # type: ignore[attr-defined]
    client = AsgiClient(app, f"{tab}/follow", "filter=value%20%3D%20new")
    assert (await client.read())["status"] == 200
    assert json.loads(await client.piece())["found"] == 0
    for value in ("other", "new"):
        assert (await post(console, f"/console/topic/{topic}/produce", value=value)).is_redirect
    line, counts = (await client.piece()).splitlines()
    assert json.loads(line)["payload"] == "new"
    await client.leave()
    await asyncio.to_thread(batch, service_url, topic, "a", "b", "c")
    place = json.loads(counts)["next"]
    client = AsgiClient(app, f"{tab}/follow", f"position={place}")
    await client.read()
    await client.piece()
    *lines, _ = (await client.piece()).splitlines()
    shown = [json.loads(each) for each in lines]
    assert [each["payload"] for each in shown] == ["a", "b", "c"]
    async with httpx.AsyncClient() as other:
        assert (await other.put(f"{admin_url}/admin/v2/{topic}/unload")).is_success
    await client.leave()
    place = f"{shown[0]['messageId']}:1"
    client = AsgiClient(app, f"{tab}/follow", f"position={place}")
    await client.read()
    await client.piece()
    assert json.loads((await client.piece()).splitlines()[0])["payload"] == "b"
    await client.leave()

    def names() -> set[str]:
        return set(httpx.get(f"{admin_url}/admin/v2/{topic}/stats").json()["subscriptions"])

    await asyncio.to_thread(wait_until, lambda: names() == {"billing"}, "readers have left", 60)


def batch(service_url: str, topic: str, *texts: str) -> None:
    """In one entry."""
    with client_of(service_url) as client:
        producer = client.create_producer(
            topic.replace("/", "://", 1),
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,
        )
        for text in texts:
            producer.send_async(text.encode(), lambda *_: None)
        producer.flush()
        producer.close()


def rows_of(page: str) -> list[tuple[str, str]]:
    """Id and value of each message that a page shows."""
    page = re.sub("</?mark>", "", page)
    rows = re.findall(
        r'<tr id="m[\d-]+".*?<code>([\d:]+)</code>.*?<td class="n"><code>(.*?)</code>', page
    )
    return [(id_, unescape(value)) for id_, value in rows]


async def found(console: httpx.AsyncClient, topic: str, **query: str) -> list[tuple[str, str]]:
    page = await console.get(f"/console/topic/{topic}/messages", params=query)
    assert page.status_code == 200
    assert 'class="fail"' not in page.text
    return rows_of(page.text)


async def test_messages_are_read_from_any_place(
    console: httpx.AsyncClient, topic: str, service_url: str
) -> None:
    name = topic.replace("/", "://", 1)
    with client_of(service_url) as client:
        consumer = client.subscribe(name, "billing", pulsar.ConsumerType.Shared)
        consumer.acknowledge(consumer.receive(30_000))
        consumer.close()  # which waits for the acknowledgement
    every = await found(console, topic, position="earliest")
    assert [value for _, value in every] == ["0", "1", "2"]
    assert await found(console, topic) == every[::-1]
    assert await found(console, topic, before=every[2][0]) == every[1::-1]
    assert await found(console, topic, before=every[0][0]) == []
    assert await found(console, topic, id=every[1][0]) == every[1:]
    assert await found(console, topic, filter='value = "2"') == every[2:]
    assert await found(console, topic, position="latest", subscription="billing") == every[1:]
    assert await found(console, topic, position="2020-01-01T00:00:00Z") == every
    assert await found(console, topic, position="2120-01-01T00:00:00Z") == []
    missing = await console.get(f"/console/topic/{topic}/messages?subscription=nobody")
    assert "Subscription nobody not found" in unescape(missing.text)


async def test_reading_leaves_nothing_behind(
    console: httpx.AsyncClient, topic: str, admin_url: str
) -> None:
    before = await rest(admin_url, f"{topic}/stats")
    assert len(await found(console, topic, position="earliest")) == 3
    after = await rest(admin_url, f"{topic}/stats")
    assert after["subscriptions"].keys() == before["subscriptions"].keys() == {"billing"}
    assert after["subscriptions"]["billing"]["msgBacklog"] == 3


async def test_batches_chunks_and_properties_are_searched(
    console: httpx.AsyncClient, topic: str, service_url: str
) -> None:
    name = topic.replace("/", "://", 1)
    with client_of(service_url) as client:
        batches = client.create_producer(
            name,
            batching_enabled=True,
            batching_max_publish_delay_ms=10_000,
            compression_type=pulsar.CompressionType.ZSTD,
        )
        for number in range(5):
            batches.send_async(
                b"batched-%d" % number,
                lambda *_: None,
                partition_key=f"k-{number}",
                properties={"region": "eu" if number % 2 else "us"},
            )
        batches.flush()
        batches.close()
    hits = await found(console, topic, filter="property.region = eu")
    assert [value for _, value in hits] == ["batched-1", "batched-3"]
    assert [id_.count(":") for id_, _ in hits] == [2, 2]
    assert await found(console, topic, position=hits[1][0], filter="key = k-3") == hits[1:]
    page = await console.get(f"/console/topic/{topic}/messages?id={hits[1][0]}")
    shown = dict(re.findall(r"<dt>([^<]+)</dt><dd[^>]*>(?:<code>)?([^<]+)", page.text))
    assert shown["Key"] == "k-3"
    assert shown["Compression"] == "ZSTD"
    assert shown["Messages of its batch"] == "5"


async def test_messages_of_partitions_and_schemas(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    name = f"public/default/console-parts-{time.time_ns()}"
    async with httpx.AsyncClient() as client:
        made = await client.put(f"{admin_url}/admin/v2/persistent/{name}/partitions", json=2)
        assert made.is_success
    with client_of(service_url) as client:
        for partition in range(2):
            producer = client.create_producer(
                f"persistent://{name}-partition-{partition}",
                schema=pulsar.schema.AvroSchema(Payment),
            )
            producer.send(Payment(status="declined", cents=partition))
            producer.close()
    for partition in range(2):
        query = {"partition": str(partition), "filter": "value.status = declined"}
        ((_, value),) = await found(console, f"persistent/{name}", **query)
        assert json.loads(value) == {"status": "declined", "cents": partition}


@pytest.mark.parametrize(("contents", "masked"), [("metadata", ""), ("off", ""), ("full", "pin")])
async def test_what_is_withheld_of_messages(
    topic: str, admin_url: str, service_url: str, contents: str, masked: str
) -> None:
    with client_of(service_url) as client:
        producer = client.create_producer(topic.replace("/", "://", 1))
        producer.send(b'{"pin":"0815","b":"shown"}', partition_key="key-1")
        producer.close()
    options: dict[str, Any] = {"contents": contents, "masked_fields": masked}
    async with console_app(admin_url, ClientAuth(), bind_address="127.0.0.1", **options) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL, timeout=60) as client:
            tab = f"/console/topic/{topic}/messages"
            page = (await client.get(tab)).text
            filtered = [
                len(rows_of((await client.get(tab, params={"filter": text})).text))
                for text in ('value ~ "08"', "value.pin = 0815", "value.b = shown", "key = key-1")
            ]
            files = [(await client.get(f"{tab}.{kind}")).text for kind in ("csv", "ndjson")]
    assert "0815" not in page + "".join(files)
    assert ("key-1" in page, "shown" in page) == (contents != "off", contents == "full")
    assert filtered == {"metadata": [0, 0, 0, 1], "off": [0] * 4, "full": [0, 0, 1, 1]}[contents]


async def test_a_search_goes_on_where_it_was_cut(
    console: httpx.AsyncClient, topic: str, service_url: str
) -> None:
    with client_of(service_url) as client:
        producer = client.create_producer(topic.replace("/", "://", 1), batching_enabled=False)
        for number in range(3, 120):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
    values, query = [], {"position": "earliest"}
    for _ in range(3):
        page = (await console.get(f"/console/topic/{topic}/messages", params=query)).text
        values += [int(value) for _, value in rows_of(page)]
        on = re.search(r'rel="next" href="[^"]*position=([\d%A-F]+)', page)
        query = {"position": unquote(on[1]) if on else ""}
    assert values == list(range(120))
    assert not query["position"]
    last = await found(console, topic)
    assert [int(value) for _, value in last] == list(range(119, 69, -1))  # the newest first


async def test_a_cluster_that_is_silent_is_told() -> None:
    with pytest.raises(AdminError, match="TCP: "):
        async with console_app("http://127.0.0.1:1", ClientAuth(), bind_address="127.0.0.1"):
            pass


async def test_other_names_and_other_sites_are_refused(console: httpx.AsyncClient) -> None:
    foreign = await console.get("/console/", headers={"Host": "evil.example"})
    assert foreign.status_code == 421
    cross = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert (await console.post("/console/topics", headers=cross)).status_code == 403


async def test_a_schema_is_checked_then_stored(
    console: httpx.AsyncClient, topic: str, admin_url: str
) -> None:
    fields = '[{"name":"id","type":"long"}]'
    first = '{"type":"record","name":"Order","fields":%s}' % fields  # noqa: UP031
    more = '{"type":"record","name":"Order","fields":%s}'
    page = f"/console/topic/{topic}/schema"
    kind = {"type": "AVRO"}
    added = fields[:-1] + ',{"name":"paid","type":"boolean","default":false}]'
    broken = fields[:-1] + ',{"name":"paid","type":"string"}]'
    assert (await post(console, f"{page}/new", do="upload", definition=first, **kind)).is_redirect
    checked = await post(console, f"{page}/new", do="check", definition=more % added, **kind)
    assert "It is compatible" in checked.text
    checked = await post(console, f"{page}/new", do="check", definition=more % broken, **kind)
    assert 'role="alert"' in checked.text  # Pulsar answers 500, with the reason
    assert "compatib" in checked.text
    stored = await post(console, f"{page}/new", do="upload", definition=more % added, **kind)
    assert stored.is_redirect
    shown = unescape((await console.get(page)).text)
    assert "Changes since version 0" in shown
    found = await rest(admin_url, f"schemas/{topic.partition('/')[2]}/schemas")
    assert [each["version"] for each in found["getSchemaResponses"]] == [0, 1]


@pytest.mark.parametrize(
    ("name", "typed", "rest_value"),
    [
        ("messageTTL", {"value": "3600"}, 3600),
        ("maxConsumers", {"value": "7"}, 7),
        ("deduplicationEnabled", {"value": "false"}, False),
        ("subscriptionTypesEnabled", {"value.Shared": "on"}, ["Shared"]),
        ("schemaCompatibilityStrategy", {"value": "FORWARD"}, "FORWARD"),
        (
            "retention",
            {"value.retentionTimeInMinutes": "10", "value.retentionSizeInMB": "-1"},
            {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
        ),
        ("publishRate", {"value.publishThrottlingRateInMsg": "1000"}, None),
    ],
)
async def test_a_policy_is_set_and_removed(
    console: httpx.AsyncClient,
    topic: str,
    admin_url: str,
    name: str,
    typed: dict[str, str],
    rest_value: Any,
) -> None:
    tab = f"/console/topic/{topic}/policies"
    page = f"{tab}/{name}"
    if name == "publishRate":
        typed = typed | {"value.publishThrottlingRateInByte": "-1"}
    shown = await post(console, page, do="show", **typed)
    assert f"magnetar admin topicPolicies set-{word_of(name)}" in unescape(shown.text)
    assert (await post(console, page, do="set", **typed)).is_redirect
    if rest_value is not None:
        assert await rest(admin_url, f"{topic}/{name}") == rest_value
    assert source_of(await console.get(tab), name) == "topic"
    assert (await post(console, page, do="remove")).is_redirect
    assert source_of(await console.get(tab), name) != "topic"


def word_of(name: str) -> str:
    special = {"messageTTL": "message-ttl", "deduplicationEnabled": "deduplication"}
    return special.get(name, re.sub("([A-Z])", lambda m: "-" + m[1].lower(), name))


def source_of(page: httpx.Response, name: str) -> str:
    (row,) = [each for each in re.findall(r"<tr>.*?</tr>", page.text) if f">{name}<span" in each]
    return str(re.findall(r'<span class="tag[ a]*">(.*?)</span>', row)[0])


async def test_policies_of_a_namespace_hold_for_its_topics(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    name = f"policies-{time.time_ns()}"
    space = f"/console/ns/public/{name}/policies"
    quota = {"value.limitSize": "1000000", "value.limitTime": "-1"}
    hold = {"value.policy": "producer_request_hold"}
    async with httpx.AsyncClient() as client:
        url = f"{admin_url}/admin/v2"
        assert (await client.put(f"{url}/namespaces/public/{name}", json={})).is_success
        assert (await client.put(f"{url}/persistent/public/{name}/t")).is_success
        refused = await post(console, f"{space}/backlogQuota%2Fdestination_storage", do="set")
        assert refused.status_code == 400
        for key, typed in (
            ("messageTTL", {"value": "77"}),
            ("backlogQuota%2Fdestination_storage", quota | hold),
        ):
            answer = await post(console, f"{space}/{key}", do="set", **typed)
            assert answer.is_redirect, re.findall(r'role="alert">(.*?)<', answer.text)
        listed = await console.get(space)
        assert source_of(listed, "messageTTL") == "namespace"
        assert source_of(listed, "backlogQuota/destination_storage") == "namespace"
        assert source_of(listed, "maxConsumersPerTopic") == "broker"
        tab = await console.get(f"/console/topic/persistent/public/{name}/t/policies")
        assert source_of(tab, "messageTTL") == "namespace"
        assert source_of(tab, "backlogQuota/destination_storage") == "namespace"
        assert (await post(console, f"{space}/messageTTL", do="remove")).is_redirect
        assert source_of(await console.get(space), "messageTTL") == "broker"
        assert (await client.delete(f"{url}/persistent/public/{name}/t")).is_success
        assert (await client.delete(f"{url}/namespaces/public/{name}")).is_success


async def test_a_message_is_looked_at(
    console: httpx.AsyncClient, topic: str, service_url: str
) -> None:
    with client_of(service_url) as client:
        consumer = client.subscribe(
            topic.replace("/", "://", 1), "billing", pulsar.ConsumerType.Shared
        )
        first, second = consumer.receive(30_000), consumer.receive(30_000)
        consumer.acknowledge(second)
        consumer.close()
        producer = client.create_producer(topic.replace("/", "://", 1), batching_enabled=False)
        producer.send(b'{"a":{"b":"\xc3\xa9"}}' + b" " * 70_000 + b"!")
        producer.close()
    ids = [
        f"{each.message_id().ledger_id()}:{each.message_id().entry_id()}"
        for each in (first, second)
    ]
    tab = f"/console/topic/{topic}/messages"
    for message_id, words in zip(
        ids, ("billing not acknowledged", "billing acknowledged"), strict=True
    ):
        page = (await console.get(tab, params={"id": message_id})).text
        shown = re.sub(
            r"<[^>]+>", "", page.partition("<dt>Delivered to</dt>")[2].partition("</dd>")[0]
        )
        assert words in shown
    rows = await found(console, topic, columns=".a.b")
    (last,) = [id_ for id_, value in rows if value.startswith('{"a"')]

    async def body(**query: str) -> str:
        page = (await console.get(tab, params={"id": last, **query})).text
        return unescape(re.findall(r'<pre tabindex="0"[^>]*>(.*?)</pre>', page, re.DOTALL)[0])

    assert (await body(show="hex")).startswith("00000000  7b 22 61 22 3a 7b 22 62 22 3a 22 c3 a9 ")
    assert len(await body(show="raw")) < 65_536
    assert (await body(show="raw", all="1")).endswith(" !")
    page = (
        await console.get("/console/messages", params={"topic": topic.replace("/", "://", 1)})
    ).text
    assert len(rows_of(page)) == 4


async def test_from_a_tenant_to_a_subscription_and_back(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    """What pages create is what REST tells, and they delete it again."""
    tenant = f"forms-{time.time_ns()}"
    (cluster,) = [each for each in await rest(admin_url, "clusters") if each != "global"]
    space, topic = f"ns/{tenant}/web", f"topic/persistent/{tenant}/web/orders"
    plain = f"topic/persistent/{tenant}/web/plain"
    box = {f"allowedClusters.{cluster}": "on"}
    for path, typed in (
        ("do/create-tenant", {"new_name": tenant, "adminRoles": "ops", **box}),
        (f"tenant/{tenant}/do/change", {"adminRoles": "ops, dev", **box}),
        (f"tenant/{tenant}/do/create-namespace", {"new_name": "web", "bundles": "2"}),
        (f"{space}/do/create-topic", {"new_name": "plain", "domain": "persistent"}),
        (
            f"{space}/do/create-topic",
            {"new_name": "orders", "domain": "persistent", "partitions": "2"},
        ),
        (f"{topic}/do/partitions", {"value": "3"}),
        (f"{topic}/do/subscribe", {"new_name": "s+1", "position": "earliest"}),
        (f"{plain}/do/subscribe", {"new_name": "s+1", "position": "latest"}),
    ):
        done = await step(console, path, **typed)
        assert done.is_redirect, (path, reason_of(done))
        behind = await console.get(
            str(httpx.URL(f"/console/{path}").join(done.headers["location"]))
        )
        assert behind.status_code == 200, path
    found = await rest(admin_url, f"tenants/{tenant}")
    assert (sorted(found["adminRoles"]), found["allowedClusters"]) == (["dev", "ops"], [cluster])
    assert (await rest(admin_url, f"namespaces/{tenant}/web/bundles"))["numBundles"] == 2
    assert (await rest(admin_url, f"{topic[6:]}/partitions"))["partitions"] == 3
    assert await rest(admin_url, f"{topic[6:]}/subscriptions") == ["s+1"]
    assert "<b>web</b>" in (await console.get(f"/console/tenant/{tenant}")).text
    refused = await step(console, f"{space}/do/create-topic", new_name="plain", domain="persistent")
    assert (refused.status_code, bool(reason_of(refused))) == (409, True)
    refused = await step(console, f"{space}/do/delete", name=f"{tenant}/web")
    assert (refused.status_code, bool(reason_of(refused))) == (409, True)
    for path, name in (
        (f"{plain}/do/unsubscribe?subscription=s%2B1", "s+1"),
        (f"{plain}/do/delete", "plain"),
        (f"{topic}/do/delete", "orders"),
        (f"{space}/do/delete", f"{tenant}/web"),
        (f"tenant/{tenant}/do/delete", tenant),
    ):
        done = await step(console, path, name=name)
        assert done.is_redirect, (path, reason_of(done))
    assert tenant not in await rest(admin_url, "tenants")


async def test_a_subscription_begins_where_it_is_told(
    console: httpx.AsyncClient, topic: str, admin_url: str
) -> None:
    second = (await found(console, topic, position="earliest"))[1][0]
    for name, position in (("all", "earliest"), ("new", "latest"), ("from", "message id")):
        typed = {"new_name": name, "position": position, "id": second}
        done = await step(console, f"topic/{topic}/do/subscribe", **typed)
        assert done.is_redirect, reason_of(done)
    stats = (await rest(admin_url, f"{topic}/stats"))["subscriptions"]
    backlogs = {name: each["msgBacklog"] for name, each in stats.items()}
    assert backlogs == {"billing": 3, "all": 3, "new": 0, "from": 2}


async def test_steps_of_a_namespace_and_its_roles(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    name = f"steps-{time.time_ns()}"
    space, topic = f"ns/public/{name}", f"persistent/public/{name}/t"
    base, rest_space = f"{admin_url}/admin/v2", f"namespaces/public/{name}"
    async with httpx.AsyncClient() as client:
        bundles = {"bundles": {"numBundles": 2}}
        assert (await client.put(f"{base}/{rest_space}", json=bundles)).is_success
        for subscription in ("one", "two"):
            url = f"{base}/{topic}/subscription/{subscription}"
            assert (await client.put(url)).is_success

    def send() -> None:
        with client_of(service_url) as producing:
            producer = producing.create_producer(topic.replace("/", "://", 1))
            producer.send(b"x")
            producer.close()

    async def backlogs() -> list[int]:
        found = (await rest(admin_url, f"{topic}/stats"))["subscriptions"]
        return [found[each]["msgBacklog"] for each in ("one", "two")]

    await asyncio.to_thread(send)
    confirm = {"name": f"public/{name}"}
    for subscription, left in (("one", [0, 1]), ("", [0, 0])):
        path = f"{space}/do/clear-backlog"
        done = await step(console, path, subscription=subscription, **confirm)
        assert done.is_redirect, reason_of(done)
        assert await backlogs() == left
    before = (await rest(admin_url, f"{rest_space}/bundles"))["boundaries"]
    typed = {"algorithm": "range_equally_divide", "unload": "false"}
    done = await step(console, f"{space}/do/split", bundle=f"{before[0]}_{before[1]}", **typed)
    assert done.is_redirect, reason_of(done)
    after = (await rest(admin_url, f"{rest_space}/bundles"))["boundaries"]
    assert len(after) == len(before) + 1
    for bundle in (f"{after[0]}_{after[1]}", ""):
        done = await step(console, f"{space}/do/unload", bundle=bundle)
        assert done.is_redirect, reason_of(done)
    for place, path in ((space, rest_space), (f"topic/{topic}", topic)):
        boxes = {"actions.produce": "on", "actions.consume": "on"}
        done = await step(console, f"{place}/do/grant", role="a b", **boxes)
        assert done.is_redirect, reason_of(done)
        granted = await rest(admin_url, f"{path}/permissions")
        assert sorted(granted["a b"]) == ["consume", "produce"]
        done = await step(console, f"{place}/do/revoke", role="a b")
        assert done.is_redirect, reason_of(done)
        assert await rest(admin_url, f"{path}/permissions") == {}
    assert (await step(console, f"topic/{topic}/do/delete", name="t")).is_redirect
    assert (await step(console, f"{space}/do/delete", **confirm)).is_redirect


async def test_a_schema_is_deleted(console: httpx.AsyncClient, topic: str, admin_url: str) -> None:
    name = topic.rpartition("/")[2]
    url = f"{admin_url}/admin/v2/schemas/public/default/{name}/schema"
    async with httpx.AsyncClient() as client:
        schema = {"type": "INT32", "schema": "", "properties": {}}
        for force in ("false", "true"):
            assert (await client.post(url, json=schema)).is_success
            path = f"topic/{topic}/do/delete-schema"
            assert (await step(console, path, name=name, force=force)).is_redirect
            assert (await client.get(url)).status_code == 404


async def test_a_dynamic_setting_is_set_and_removed(
    console: httpx.AsyncClient, admin_url: str
) -> None:
    path = "settings/maxConcurrentLookupRequest/do"
    refused = await step(console, f"{path}/set", value="many")
    assert refused.status_code in (400, 412)
    assert 'aria-invalid="true"' in refused.text
    assert reason_of(refused)
    done = await step(console, f"{path}/set", value="49999")
    assert done.is_redirect, reason_of(done)
    values = await rest(admin_url, "brokers/configuration/values")
    assert values["maxConcurrentLookupRequest"] == "49999"
    page = (await console.get("/console/settings")).text
    assert '<span class="tag a">49999</span>' in page
    assert (await step(console, f"{path}/delete")).is_redirect
    values = await rest(admin_url, "brokers/configuration/values")
    assert "maxConcurrentLookupRequest" not in values
    assert (await console.get("/console/settings/clusterName/do/set")).status_code == 404
