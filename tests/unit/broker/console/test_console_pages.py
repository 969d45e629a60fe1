"""The pages of a broker's own console: whole, equal to REST, as their visitor may see them."""

import asyncio
import gc
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from html import unescape
from importlib import resources
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from jinja2.runtime import Context, Macro
from starlette.types import ASGIApp

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.cli.main import build_parser
from magnetar.broker.console import server
from magnetar.broker.console.console import Console, FragmentCache, find_page
from magnetar.broker.console.formats import segment
from magnetar.broker.console.index_view import (
    RANGES,
    SUBSCRIPTION_COLUMNS,
    TOPIC_COLUMNS,
    range_of,
    recent_of,
)
from magnetar.broker.console.pages import PAGES
from magnetar.broker.console.server import console_app
from magnetar.broker.console.source import Changes, NamespaceSums, Source
from magnetar.broker.http.page_answers import PAGE_HEADERS
from magnetar.broker.http.routes import console as console_routes
from magnetar.broker.http.server.app import create_app
from magnetar.broker.index import broker_index
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from tests.console_paths import path_of
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

TOPIC = "persistent/public/default/orders"
HTML = {"Accept": "text/html"}


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def make_topic(client: httpx.AsyncClient, *subscriptions: str) -> None:
    assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
    for name in subscriptions:
        assert (await client.put(f"/admin/v2/{TOPIC}/subscription/{name}")).is_success


@pytest.mark.parametrize("number", [0, 1, 12])
async def test_every_page_with_few_and_many_things(client: httpx.AsyncClient, number: int) -> None:
    for index in range(number):
        path = f"/admin/v2/persistent/public/default/t{index}"
        assert (await client.put(path)).is_success
        assert (await client.put(f"{path}/subscription/s")).is_success
    (me,) = (await client.get("/admin/v2/brokers/standalone")).json()
    names = {"domain": "persistent", "tenant": "public", "namespace": "default", "topic": "t0"}
    names |= {"broker": me, "policy": "messageTTL", "role": "billing", "setting": "maxTenants"}
    for key in PAGES:
        if "{most}" in key:  # test_console_transactions.py: this broker has no transactions
            continue
        path = path_of(key, names)
        page = await client.get(f"/console/{path}")
        found = number or "{topic}" not in key or key.endswith(("/produce", "/schema/new"))
        assert page.status_code == (200 if found else 404), path
        assert found or "not found" in page.text, path
        assert not found or 'class="fail"' not in page.text, path
        assert page.text.rstrip().endswith("</html>"), path


async def test_numbers_are_those_of_rest(client: httpx.AsyncClient) -> None:
    await make_topic(client, "billing", "audit")
    for text in ("a", "b", "c"):
        body = {"producerName": "p", "messages": [{"payload": text}]}
        assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    stats = (await client.get(f"/admin/v2/{TOPIC}/stats")).json()
    page = (await client.get(f"/console/topic/{TOPIC}/subscriptions")).text
    shown = dict(re.findall(r"<dt>([^<]+)</dt><dd[^>]*>([^<]+?)\s*<", page))
    assert stats["subscriptions"]["billing"]["msgBacklog"] == 3
    assert shown["Largest backlog"] == "3"
    assert shown["Stored"] == f"{stats['storageSize']} B"
    explained = (await client.get(f"/admin/v2/{TOPIC}/explain")).json()["billing"]
    opened = (await client.get(f"/console/topic/{TOPIC}/subscriptions?open=billing")).text
    assert explained["message"] in unescape(opened)
    assert f'data-reason="{explained["reason"]}"' in opened


async def test_a_partitioned_topic_is_one_row(client: httpx.AsyncClient) -> None:
    topic = "persistent/public/default/wide"
    assert (await client.put(f"/admin/v2/{topic}/partitions", json=12)).is_success
    for name in ("billing", "audit"):
        assert (await client.put(f"/admin/v2/{topic}/subscription/{name}")).is_success
    for partition in (1, 1, 7):
        body = {"producerName": "p", "messages": [{"payload": "x"}]}
        path = f"/topics/{topic}-partition-{partition}"
        assert (await client.post(path, json=body)).is_success
    await make_topic(client, "s")
    asked = "/admin/v2/topics-index?grouped=true"
    plain, wide = (await client.get(asked)).json()["topics"]
    stats = (await client.get(f"/admin/v2/{topic}/partitioned-stats")).json()
    assert (plain["partitions"], wide["partitions"]) == (0, 12)
    for field in ("msgRateIn", "msgRateOut", "msgThroughputIn", "storageSize"):
        assert wide[field] == stats[field], field
    subscriptions = stats["subscriptions"]
    assert wide["msgBacklog"] == sum(each["msgBacklog"] for each in subscriptions.values()) == 6
    assert wide["subscriptionCount"] == len(subscriptions)
    page = (await client.get("/console/topics")).text
    assert "12 p<span" in page
    assert "2 shown of 2" in page
    assert "-partition-" not in page
    page = (await client.get("/console/topics?sort=msgBacklog")).text
    assert "Here each partition is a row." in page
    assert "13 shown of 13" in page
    for wrong in ("sort=msgBacklog", "view=backlog"):
        assert (await client.get(f"{asked}&{wrong}")).status_code == 400


async def test_a_topic_of_which_no_partition_was_used_has_a_page(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    await broker.service.resources.create_partitioned(TopicName.parse("unused"), 3)
    for tab in ("", "/subscriptions", "/partitions", "/storage", "/producers"):
        page = await client.get(f"/console/topic/persistent/public/default/unused{tab}")
        assert page.status_code == 200, tab
        assert "3 partitions" in page.text


async def test_views_of_idle_topics_and_of_quotas_have_their_figure(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    await make_topic(client, "s")
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    (topic,) = (await client.get("/admin/v2/topics-index")).json()["topics"]
    quota = {"limitSize": topic["storageSize"], "policy": "producer_exception"}
    quotas = "/admin/v2/namespaces/public/default/backlogQuota"
    assert (await client.post(quotas, json=quota)).is_success
    broker.cluster.now_ms += 8 * 24 * 3600 * 1000
    for view, column, figure in (
        ("idle", "Idle since", r"\d+ d(ays)?"),
        ("nearQuota", "Quota used", "100 %"),
    ):
        page = (await client.get(f"/console/topics?view={view}")).text
        assert f'data-column="{column}"' in page
        assert "1 shown of 1" in page
        assert re.search(rf"(?s)<tr id=.*{figure}.*</tr>", page), view
    page = (await client.get("/console/topics")).text
    assert "Idle for a week<" in page
    assert 'data-column="Idle since"' not in page


async def test_pages_say_that_topics_are_still_being_read(
    client: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        path = f"/admin/v2/persistent/public/default/t{number}"
        assert (await client.put(f"{path}/subscription/s")).is_success
    listed, walk = asyncio.Event(), broker.service.resources.walk_stored_topics

    async def late(namespace: str) -> AsyncIterator[str]:
        await listed.wait()
        async for name in walk(namespace):
            yield name

    async def pages(*, are_partial: bool) -> None:
        lists = ("topics", "subscriptions", "namespaces", "ns/public/default")
        for page in ("", *lists, "find?q=t1", "find?q=nowhere"):
            text = (await client.get(f"/console/{page}")).text
            assert ("Topics are still being read" in text) == are_partial, page
            assert ("/t1" in text) == (page not in ("", *lists[2:], "find?q=nowhere")), page
            if page.startswith("find"):
                assert ("data-live" in text) == ("data-reading" in text) == are_partial
                assert ("Nothing has this" in text) == ("q=t1" not in page and not are_partial)
            assert "No namespace has" not in text, page

    monkeypatch.setattr(broker_index, "_FIRST_ROWS", 1)
    monkeypatch.setattr(broker.service.resources, "walk_stored_topics", late)
    await pages(are_partial=True)
    listed.set()
    await broker.service.index.tables()
    await pages(are_partial=False)


async def test_pages_that_come_at_once_make_one_console(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the broker, when each open page fetches itself."""
    made, make = list[Console](), console_routes._made

    def counted(*given: Any) -> Console:
        made.append(make(*given))
        return made[-1]

    monkeypatch.setattr(console_routes, "_made", counted)
    pages = await asyncio.gather(*(client.get("/console/keys") for _ in range(5)))
    assert [each.status_code for each in pages] == [200] * 5
    assert len(made) == 1


async def test_pages_name_silent_brokers_and_show_the_rest(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {"b2:8080": "Broker b2:8080 has not answered in time"}

    async def namespaces(self: Source, *, partial: bool = False) -> NamespaceSums:
        return NamespaceSums({}, silent=silent)

    async def audit(self: Source) -> Changes:
        return Changes([], silent)

    monkeypatch.setattr(Source, "namespaces", namespaces)
    monkeypatch.setattr(Source, "audit", audit)
    pages = ("", "namespaces", "ns/public/default", "tenant/public", "find?q=a", "audit")
    for page in pages:
        text = (await client.get(f"/console/{page}")).text
        assert text.count("Broker b2:8080 has not answered in time. ") == 1, page
        assert not re.search("No topics yet|No namespace has|No topic is in", text), page


@pytest.mark.parametrize(
    ("contents", "shows_key", "shows_value"),
    [("full", True, True), ("metadata", True, False), ("off", False, False)],
)
async def test_what_of_messages_is_shown(contents: str, shows_key: bool, shows_value: bool) -> None:
    broker = await Broker(web_console_messages=contents).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        message = {"payload": "<i>secret</i>", "key": "<b>key-1"}
        body = {"producerName": "p", "messages": [message]}
        assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
        page = (await client.get(f"/console/topic/{TOPIC}/messages")).text
    await broker.close()
    assert ("&lt;b&gt;key-1" in page) == shows_key
    assert ("&lt;i&gt;secret&lt;/i&gt;" in page) == shows_value
    assert "<i>secret" not in page


async def test_a_filter_reveals_no_value_that_is_withheld() -> None:
    broker = await Broker(web_console_messages="metadata").start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"producerName": "p", "messages": [{"payload": '{"pin":1}', "key": "k"}]}
        assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
        shown = []
        for text in ('value ~ "1"', 'value ~ "2"', "value.pin = 1", "value.pin = 2", "key = k"):
            page = await client.get(f"/console/topic/{TOPIC}/messages", params={"filter": text})
            shown.append("1 message in" in page.text)
        assert shown == [False, False, False, False, True]
    await broker.close()


async def test_masked_fields_are_on_no_page_and_in_no_file() -> None:
    broker = await Broker(web_console_masked_fields="pin").start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        messages = [{"payload": '{"pin":"0815","b":"shown"}', "key": "k"}]
        body = {"producerName": "p", "messages": messages, "valueSchema": '{"type":"BYTES"}'}
        assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
        tab = f"/console/topic/{TOPIC}/messages"
        page = (await client.get(tab)).text
        (id_,) = re.findall(r"<code>(\d+:\d+(?::\d+)?)</code></a>", page)
        opened = (await client.get(f"{tab}?id={id_}")).text
        assert "Produce again" not in opened
        files = [(await client.get(f"{tab}.{kind}")).text for kind in ("csv", "ndjson")]
        for text in (page, opened, *files):
            assert "shown" in text
            assert "•••" in text
            assert "0815" not in text
        for text in ("value.pin = 0815", "property.pin = 1"):
            refused = (await client.get(tab, params={"filter": text})).text
            assert "which webConsoleMaskedFields withholds" in refused
        again = await client.get(f"/console/topic/{TOPIC}/produce?from={id_}")
        assert "0815" not in again.text
        assert "withholds a part" in again.text
    await broker.close()


async def test_names_that_are_markup_are_text(client: httpx.AsyncClient) -> None:
    name = "<img src=x onerror=alert(1)>\u202e"
    await make_topic(client)
    path = f"/admin/v2/{TOPIC}/subscription/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%E2%80%AE"
    assert (await client.put(path)).is_success
    for page in (f"topic/{TOPIC}", f"topic/{TOPIC}/storage", "subscriptions"):
        text = (await client.get(f"/console/{page}")).text
        assert "<img" not in text
        assert "\u202e" not in text
    stats = (await client.get(f"/admin/v2/{TOPIC}/stats")).json()
    assert name in stats["subscriptions"]


async def test_an_answer_that_comes_in_pieces(client: httpx.AsyncClient) -> None:
    """Its route looks beside its sending whether the client has left."""
    names = [f"{'s' * 200}{number}" for number in range(900)]
    assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
    for name in names:
        assert (await client.put(f"/admin/v2/{TOPIC}/subscription/{name}")).is_success
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    size = len((await client.get(f"/admin/v2/{TOPIC}/internalStats")).content)
    assert size > 256 * 1024
    async with asyncio.timeout(60):
        page = await client.get(f"/console/topic/{TOPIC}/storage")
    assert names[0] in page.text
    assert names[-1] not in page.text, "the first of many that keep the ledger are named"


@pytest.mark.parametrize("name", [".", "..", "..;", "%2E%2E"])
async def test_names_that_browsers_take_for_steps_of_a_path(
    client: httpx.AsyncClient, broker: Broker, name: str
) -> None:
    """A browser cuts `..`, `%2e%2E` and the like out of an address before it asks.

    No persistent topic is called so, since no node of a metadata store is.
    """
    topic = await broker.service.loader.load(
        TopicName.parse(f"non-persistent://public/default/{name}"), create=True
    )
    peer = broker.client()
    await peer.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = topic.full_name, name
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    peer.send(command)
    assert (await peer.receive_one()).type == pb.BaseCommand.SUCCESS
    for path in ("topics", "subscriptions"):
        text = (await client.get(f"/console/{path}")).text
        links = {unescape(each) for each in re.findall(r'<a [^>]*href="([^"]*)"', text)}
        of_topic = [each for each in links if "topic/non-persistent/public/default/" in each]
        assert of_topic
        for link in of_topic:
            steps = link.partition("?")[0].replace("%2E", ".").split("/")
            assert not {".", ".."} & {*steps}, link
            page = (await client.get(f"/console/{link}")).text
            assert f"<h1>{name}</h1>" in page, link
            assert f"<b>{name}</b>" in page, "its subscription"
    page = f"/console/topic/non-persistent/public/default/{segment(name)}"
    for tail in ("", "/producers", "/policies", "/permissions", f"/subscriptions?open={name}"):
        answer = await client.get(page + tail)
        assert answer.status_code == 200, tail
        assert 'class="fail"' not in answer.text, tail


async def test_links_lead_to_pages(client: httpx.AsyncClient) -> None:
    await make_topic(client, "s")
    for path in ("", "topics", "subscriptions", "namespaces", "brokers", f"topic/{TOPIC}"):
        url = httpx.URL(f"http://localhost/console/{path}")
        text = (await client.get(url)).text
        for link in {unescape(each) for each in re.findall(r'<a [^>]*href="([^"]*)"', text)}:
            assert (await client.get(url.join(link))).status_code == 200, (path, link)


@pytest.mark.parametrize(
    "query",
    [
        *("partition=" + "9" * 5000, "partition=-1", "partition=²", "position=²:1", "id=x"),
        *("filter=key+%3E", "position=1:2:3:4", "subscription=%00", "id=" + "9" * 5000),
    ],
)
async def test_parameters_that_make_no_sense(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.put(f"/admin/v2/{TOPIC}/partitions", json=2)).is_success
    page = await client.get(f"/console/topic/{TOPIC}/messages?{query}")
    assert page.status_code == 200
    assert "(500)" not in page.text


async def test_names_that_are_steps_are_no_pages(client: httpx.AsyncClient) -> None:
    for path in ("topic/%2e%2e/%2e%2e/metrics/x", "brokers/%2e%2e", "topic/x/a/b/c"):
        assert (await client.get(f"/console/{path}")).status_code == 404


async def test_links_are_relative_and_files_are_there_whatever_the_depth(
    client: httpx.AsyncClient,
) -> None:
    await make_topic(client, "s")
    for page in ("", "topics", f"topic/{TOPIC}/storage", "nowhere/at/all/"):
        url = httpx.URL(f"http://localhost/console/{page}")
        text = (await client.get(url)).text
        links = [unescape(each) for each in re.findall(r'(?:href|src|action)="([^"]*)"', text)]
        assert not [each for each in links if each.startswith(("/", "http"))]
        files = [each for each in links if "static/" in each]
        assert len(files) == 7
        for each in files:
            answer = await client.get(url.join(each))
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]


async def test_what_browsers_are_told(client: httpx.AsyncClient) -> None:
    page = await client.get("/console/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["cache-control"] == "no-store"
    assert "magnetar-fragment" in page.headers["vary"]


async def test_what_a_page_fetches_is_its_menu_and_its_middle(client: httpx.AsyncClient) -> None:
    part = await client.get("/console/topics", headers={"Magnetar-Fragment": "1"})
    assert part.text.startswith('<nav class="nav"')
    assert "<main" in part.text
    assert "<header" not in part.text


def test_a_middle_is_shared_for_two_seconds() -> None:
    now_s = [100.0]
    cache = FragmentCache(lambda: now_s[0])
    cache.put(("anna", "topics"), b"hers", 2.0)
    assert cache.get(("bert", "topics"), 2.0) is None
    now_s[0] += 1.9
    assert cache.get(("anna", "topics"), 2.0) == b"hers"
    assert cache.get(("anna", "topics"), 1.0) is None
    now_s[0] += 0.2
    assert cache.get(("anna", "topics"), 4.0) is None
    for number in range(500):
        cache.put(number, b"", 2.0)
    assert len(cache._found) == 200


async def test_roles_do_not_share_what_they_see() -> None:
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        shown = []
        for role in ("admin", "prod"):
            async with client_of(app, role) as client:
                part = await client.get("/console/brokers", headers={"Magnetar-Fragment": "1"})
                shown.append('class="fail"' in part.text)
    assert shown == [False, True]


async def test_only_browsers_are_sent_to_the_console(client: httpx.AsyncClient) -> None:
    sent = await client.get("/", headers=HTML)
    assert (sent.status_code, sent.headers["location"]) == (303, "./console/")
    assert (await client.get("/console", headers=HTML)).headers["location"] == "./console/"
    assert (await client.get("/")).status_code == 404
    assert (await client.post("/console/topics")).status_code == 404


async def test_a_broker_without_a_console() -> None:
    broker = await Broker(web_console_enabled=False).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/", "/console", "/console/", "/console/topics"):
            assert (await client.get(path, headers=HTML)).status_code == 404
    await broker.close()


async def test_a_role_without_rights_is_told_what_it_lacks() -> None:
    """Each call is made as the visitor, by the rules of REST."""
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        shown = {}
        for role in ("admin", "prod"):
            async with client_of(app, role) as client:
                shown[role] = (await client.get("/console/settings")).text
    assert "brokerDeduplicationEnabled" in shown["admin"]
    assert "brokerDeduplicationEnabled" not in shown["prod"]
    assert re.search(r"\((401|403)\)", shown["prod"])


async def test_a_panel_that_fails_says_what_was_asked_and_by_which_request() -> None:
    headers = {"X-Request-ID": "seen-in-the-log"}
    async with authorized_broker() as broker, client_of(create_app(broker.service), "prod") as own:
        page = await own.get("/console/settings", headers=headers)
    assert "prod lacks superuser on the cluster" in page.text
    assert "GET /admin/v2/brokers/configuration/runtime" in page.text
    assert "request <code>seen-in-the-log</code>" in page.text


async def test_a_topic_that_is_not_there_leads_to_names_like_it(client: httpx.AsyncClient) -> None:
    await make_topic(client)
    url = httpx.URL("http://localhost/console/topic/persistent/public/default/order/storage")
    for wrong in (url, url.join("../../elsewhere/orders")):
        page = await client.get(wrong)
        assert page.status_code == 404
        (link,) = re.findall(r'<li><a href="([^"]*)">public/default/orders</a>', page.text)
        assert (await client.get(wrong.join(link))).status_code == 200
    assert "Names like it" not in (await client.get(url.join("zzz"))).text


async def test_empty_lists_say_what_to_type(client: httpx.AsyncClient) -> None:
    """Each is a command of ours."""
    typed = []
    for path in ("topics", "subscriptions", "namespaces"):
        typed += re.findall(r'class="none">.*?<code>(.*?)</code>', (await get(client, path)))
    start = re.search("<pre>(.*?)</pre>", await get(client, ""), re.S)
    assert start is not None
    typed += start[1].splitlines()
    await make_topic(client)
    for tab in ("subscriptions", "producers", "messages", "permissions"):
        text = await get(client, f"topic/{TOPIC}/{tab}")
        typed += re.findall(r'class="none">.*?<code>(.*?)</code>', text)
    assert len(typed) == 9
    for each in typed:
        program, *words = shlex.split(unescape(each))
        assert program == "magnetar"
        build_parser(words).parse_args(words)  # SystemExit: not a command of ours


async def get(client: httpx.AsyncClient, path: str) -> str:
    return (await client.get(f"/console/{path}")).text


def test_the_code_is_loaded_by_the_first_page_only() -> None:
    code = "import sys, magnetar.broker.http.server.app; print('jinja2' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"False"


def test_paths_of_pages() -> None:
    found = find_page("topic/persistent/a/b/c%2Fd/storage")
    assert found is not None
    assert found[1]["topic"] == "c/d"
    assert found[1]["tab"] == "storage"
    assert find_page("topic/persistent/a/b/c/other") is None


async def test_hidden_columns_are_a_cookie_of_each_browser(client: httpx.AsyncClient) -> None:
    await make_topic(client)
    shown = 'value="Prod / cons" checked'
    for accept in (HTML, HTML | {"Magnetar-Fragment": "1"}):  # the second one is shared
        assert shown in (await client.get("/console/topics", headers=accept)).text
        cookie = accept | {"Cookie": "magnetar-columns-topics=Stored&Prod%20%2F%20cons"}
        page = (await client.get("/console/topics", headers=cookie)).text
        assert 'value="Prod / cons"' in page
        assert shown not in page
        assert 'value="Oldest" checked' in page
        other = (await client.get("/console/subscriptions", headers=cookie)).text
        assert 'value="Consumers" checked' in other


def test_every_column_can_be_hidden() -> None:
    style = resources.files("magnetar.broker.console").joinpath("static/console.css").read_text()
    for columns in (TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS):
        for number in range(2, len(columns) + 1):
            assert f"tr>:nth-child({number})" in style


def test_the_script_is_short() -> None:
    """As decision 0066 has it: else the pages are no longer made at the server."""
    files = resources.files("magnetar.broker.console").joinpath("static").iterdir()
    own = [each for each in files if each.name.endswith(".js") and ".min." not in each.name]
    assert sum(len(each.read_text().splitlines()) for each in own) <= 500


def test_charts_show_the_range_that_was_chosen() -> None:
    minutes = range(300)
    history: dict[str, Any] = {
        "since": 0,
        "times": [60_000 * minute for minute in minutes],
        "series": {name: list(minutes) for name in ("msgRateIn", "msgRateOut", "msgBacklog")},
    }
    shown = {each.key: recent_of(history, each).charts for each in RANGES}
    assert {key: charts[0].times_ms[0] / 60_000 for key, charts in shown.items()} == {
        "15m": 284,
        "": 239,
        "5h": 0,
    }
    assert {charts[0].times_ms[-1] for charts in shown.values()} == {299 * 60_000}
    assert [charts[1].lines[0].path.count("L") for charts in shown.values()] == [15, 60, 299]
    assert range_of("no such") == range_of("")
    empty: dict[str, list[float]] = {name: [] for name in history["series"]}
    nothing: dict[str, Any] = {"since": None, "times": [], "series": empty}
    assert recent_of(nothing, RANGES[0]).charts == []


async def test_the_range_of_the_overview_is_in_its_address(client: httpx.AsyncClient) -> None:
    await make_topic(client)
    for query, title in (("", "1 h"), ("?range=15m", "15 min"), ("?range=no", "1 h")):
        page = (await client.get(f"/console/{query}")).text
        ranges = page[page.index('aria-label="Range of the charts"') :]
        assert re.findall(r'aria-current="true">([^<]+)<', ranges[:500]) == [title]
        assert 'href="?range=5h"' in ranges


async def test_starred_topics_have_a_view(client: httpx.AsyncClient) -> None:
    await make_topic(client, "billing")
    wide = "persistent/public/default/wide"
    assert (await client.put(f"/admin/v2/{wide}/partitions", json=2)).is_success
    for topic, number in ((TOPIC, 1), (f"{wide}-partition-0", 2), (f"{wide}-partition-1", 2)):
        assert (await client.put(f"/admin/v2/{topic}/subscription/s")).is_success
        body = {"producerName": "p", "messages": [{"payload": "x"}] * number}
        assert (await client.post(f"/topics/{topic}", json=body)).is_success
    names = ("public/default/orders", "public/default/wide", "public/default/gone")
    stars = "&".join(quote(f"persistent://{name}", safe="") for name in names)
    cookie = {"Cookie": f"magnetar-starred={stars}"}

    async def shown(address: str, headers: dict[str, str] = cookie) -> list[str]:
        page = (await client.get(f"/console/{address}", headers=headers)).text
        assert 'class="fail"' not in page
        return re.findall(r"<b>(\w+)</b>", page[page.index("<tbody") :])

    assert await shown("topics?view=starred") == ["gone", "orders", "wide"]
    assert await shown("topics?view=starred&q=ORD") == ["orders"]
    by_backlog = "topics?view=starred&sort=msgBacklog"
    assert await shown(by_backlog) == ["wide", "orders", "gone"]
    oldest = "topics?view=starred&sort=earliestMsgPublishTimeInBacklogs"
    assert await shown(oldest) == ["orders", "wide", "gone"]
    page = (await client.get(f"/console/{by_backlog}", headers=cookie)).text
    assert re.findall(r'<td class="r(?: ba)?">([^<]+)</td>', page)[::2] == ["4", "2", "–"]
    assert '>Starred<span class="c">3</span>' in page
    assert '>With backlog<span class="c">3</span>' in page
    everything = (await client.get("/console/topics", headers=cookie)).text
    assert '>Starred<span class="c">3</span>' in everything
    nothing = (await client.get("/console/topics?view=starred")).text
    assert "No topic is starred yet" in nothing
    for headers, mark in ((cookie, " checked"), ({}, "")):
        head = (await client.get(f"/console/topic/{TOPIC}", headers=headers)).text
        assert f'value="persistent://public/default/orders"{mark}> Starred' in head


@pytest.mark.parametrize("front", ["broker", "console"])
async def test_refusals_and_crashes_have_the_headers_of_pages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, front: str
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("<b>of a test</b>")

    app: ASGIApp = create_app(broker.service)
    transport = httpx.ASGITransport(app)
    async with AsyncExitStack() as stack:
        if front == "console":
            api = httpx.AsyncClient(transport=transport)
            monkeypatch.setattr(server, "network_steps", a_step)
            monkeypatch.setattr(server, "httpx", SimpleNamespace(AsyncClient=lambda **_: api))
            opened = console_app("http://localhost", ClientAuth(), bind_address="127.0.0.1")
            app = await stack.enter_async_context(opened)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://localhost")
        )
        good = await client.get("/console/keys")
        monkeypatch.setattr(Console, "respond", crash)
        for method, host, status in (
            ("GET", "localhost", 500),
            ("PUT", "localhost", 405),
            ("GET", "evil.example", 421),
        ):
            for accept, kind in (("text/html", "text/html"), ("*/*", "application/json")):
                headers = {"Accept": accept, "Host": host}
                answer = await client.request(method, "/console/topics", headers=headers)
                assert answer.status_code == status
                assert answer.headers["content-type"].startswith(kind)
                assert "RuntimeError" not in answer.text
                assert "of a test" not in answer.text
                assert answer.headers["cache-control"] == "no-store"
                for name in PAGE_HEADERS:
                    assert answer.headers[name] == good.headers[name], (status, accept, name)
        assert (await client.put("/console/topics")).headers["allow"]


async def a_step(*_: object) -> AsyncIterator[tuple[str, str]]:
    yield "TCP", "connected"


async def test_a_page_leaves_no_rings_of_objects(client: httpx.AsyncClient) -> None:
    """Macros of templates and what they are called in: a collection would walk through those of
    150 pages at once."""

    def macros() -> int:
        return sum(isinstance(each, Macro | Context) for each in gc.get_objects())

    for path in ("topics", "", "subscriptions"):
        await client.get(f"/console/{path}")  # what is made once
    gc.collect()
    gc.disable()
    try:
        before = macros()
        for path in ("topics", "", "subscriptions"):
            assert (await client.get(f"/console/{path}")).status_code == 200
        assert macros() == before
    finally:
        gc.enable()
