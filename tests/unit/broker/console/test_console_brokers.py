"""Pages of brokers: equal to REST, silent ones, clusters without a leader."""

import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from magnetar.broker.console.admin_api import AdminApi, AdminError
from magnetar.broker.console.broker_view import LoadReports, broker_row, bundle_rows
from magnetar.broker.console.brokers_page import few_brokers
from magnetar.broker.console.console import ClusterLook, Console
from magnetar.broker.console.formats import number, segment, short
from magnetar.broker.console.pulsar_source import PulsarSource
from magnetar.broker.console.snapshot import connections_of
from magnetar.broker.console.source import Source
from magnetar.broker.console.views import Ask
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

TOPIC = "persistent://public/default/orders"


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def text_of(client: httpx.AsyncClient, path: str) -> str:
    page = await client.get(f"/console/{path}")
    assert page.status_code == 200
    return unescape(page.text)


async def test_numbers_are_those_of_rest(client: httpx.AsyncClient, broker: Broker) -> None:
    for name in ("a", "b", "c"):
        path = f"/admin/v2/persistent/public/default/{name}"
        assert (await client.put(path)).is_success
        body = {"producerName": "p", "messages": [{"payload": "x"}]}
        assert (
            await client.post(f"/topics/persistent/public/default/{name}", json=body)
        ).is_success
    me = broker.service.broker_id
    report = (await client.get("/admin/v2/broker-stats/load-report")).json()
    assert report["numTopics"] == 3
    listed = await text_of(client, "brokers")
    assert f'<td class="r hide3">{report["numTopics"]}</td>' in listed
    assert f'<td class="r hide3">{report["numBundles"]}</td>' in listed
    page = await text_of(client, f"brokers/{segment(me)}")
    assert f'<dt>Topics</dt><dd>3</dd><dd class="s">{report["numBundles"]} bundles' in page
    assert f"<dt>In</dt><dd>{short(report['msgRateIn'])} <small>/s" in page
    rows = dict(re.findall(r'<td class="n">([^<]+)</td><td class="r">([^<]+)</td>', page))
    owned = await client.get(f"/admin/v2/brokers/standalone/{me}/ownedNamespaces")
    load = report["lastStats"]
    assert rows == {name: number(load.get(name, {}).get("topics")) for name in owned.json()}


async def test_clients_one_by_one(client: httpx.AsyncClient, broker: Broker) -> None:
    path = f"brokers/{segment(broker.service.broker_id)}/connections"
    assert "No client is connected." in await text_of(client, path)
    for port in range(101):
        broker.client(port=port + 1)
    page = await text_of(client, path)
    assert "100 shown of 101" in page
    (following,) = re.findall(r'rel="next" href="([^"]+)"', page)
    page = await text_of(client, path + following)
    assert "1 shown of 101" in page
    assert 'rel="next"' not in page


async def test_settings_that_were_changed() -> None:
    broker = await Broker(max_tenants=7).start()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(broker.service)), base_url="http://localhost"
    ) as client:
        page = await text_of(client, f"brokers/{segment(broker.service.broker_id)}/settings")
        assert '<td class="n">maxTenants</td><td class="v">7</td>' in page
        runtime = "/admin/v2/brokers/configuration/runtime"
        every = (await client.get(runtime)).json()
        changed = (await client.get(f"{runtime}?changed=true")).json()
        assert changed.items() < every.items()
        assert "maxTopicsPerNamespace" not in changed
        assert page.count('<td class="v">') == len(changed)
    await broker.close()


async def test_figures_are_for_those_who_may_ask_for_them() -> None:
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        path = f"brokers/{segment(broker.service.broker_id)}"
        async with client_of(app, "admin") as client:
            assert "Direct memory" in await text_of(client, path)
        async with client_of(app, "ten") as client:
            for each in ("brokers", path, f"{path}/connections", f"{path}/settings"):
                page = await text_of(client, each)
                assert 'class="fail"' in page
                assert "silent" not in page
                assert "Direct memory" not in page.partition("<main")[2] or each == "brokers"


class Hurt(AdminApi):
    """Two brokers, none of which leads; one is silent when it is told to be."""

    def __init__(self) -> None:
        self.silent = ""
        self.name = "b1:8080"

    def at(self, broker: str) -> AdminApi:
        peer = Hurt()
        peer.name, peer.silent = broker, self.silent
        return peer

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        if self.name == self.silent:
            raise AdminError(503, "no route to host")
        if path.endswith("/leaderBroker"):
            raise AdminError(404, "Couldn't find leader broker")
        answers: dict[str, Any] = {
            "whoami": {"authenticationEnabled": False},
            "clusters": ["c"],
            "brokers/c": ["b1:8080", "b2:8080"],
            "broker-stats/load-report": {"numTopics": 5, "cpu": {"usage": 50.0, "limit": 200.0}},
            "brokers/c/b2%3A8080/ownedNamespaces": {},
        }
        return answers[path.removeprefix("/admin/v2/")]


@pytest.mark.parametrize("kind", [Source, PulsarSource])
async def test_a_silent_broker_and_no_leader(kind: type[Source]) -> None:
    cluster = Hurt()
    source = kind(cluster)
    console = Console(ClusterLook("c", source.product, "4"), lambda _: source)

    async def page(request: Request) -> Response:
        return await console.respond(request, request.url.path.lstrip("/"))

    app = Starlette(routes=[Route("/{path:path}", page)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        whole = (await client.get("/brokers")).text
        assert "no leader is elected" in whole
        assert "silent since" not in whole
        cluster.silent = "b2:8080"
        hurt = (await client.get("/brokers")).text
        assert hurt.count("silent since") == 1
        assert hurt.count('<td class="r hide3">5</td>') == 2
        detail = (await client.get("/brokers/b2%3A8080")).text
        assert "Silent since" in detail
        assert "no route to host" in detail
        cluster.silent = ""
        assert "silent since" not in (await client.get("/brokers")).text


@pytest.mark.parametrize("kind", [Source, PulsarSource])
async def test_the_overview_marks_each_broker(kind: type[Source]) -> None:
    cluster = Hurt()
    source = kind(cluster)
    ask = Ask(source, {}, {}, findings=source.findings)
    found = await few_brokers(ask)
    assert [(each.kind, each.name) for each in found["rows"]] == [
        *(("o", "b1:8080"), ("o", "b2:8080"))
    ]
    assert (found["more"], found["leader"]) == (0, "")
    cluster.silent = "b2:8080"
    assert [each.kind for each in (await few_brokers(ask))["rows"]] == ["o", "e"]


def test_since_when_a_broker_is_silent() -> None:
    watch = LoadReports()
    watch.silent("b", "first", 100)
    watch.silent("b", "second", 200)
    assert (watch.of("b").silent_ms, watch.of("b").why) == (100, "second")
    assert broker_row(watch.of("b")).resources == []
    watch.told("b", {"numTopics": 1})
    assert watch.of("b").silent_ms is None
    watch.silent("b", "third", 300)
    assert watch.of("b").silent_ms == 300
    assert broker_row(watch.of("b")).topics == 1
    watch.keep([])
    assert watch.of("b").silent_ms is None


def test_a_bundle_that_the_load_report_does_not_know() -> None:
    (row,) = bundle_rows({"t/n/0x0_0x1": {"is_active": True}}, None)
    assert (row.topics, row.is_active) == (None, True)


def test_connections_that_statistics_name() -> None:
    def client(address: str, since: str) -> dict[str, str]:
        return {"address": address, "connectedSince": since, "clientVersion": "x"}

    stats: dict[str, dict[str, Any]] = {
        "t1": {
            "publishers": [client("/10.0.0.1:1", "2026-01-02T00:00:00Z")],
            "subscriptions": {"s": {"consumers": [client("/10.0.0.1:1", "2026-01-01T00:00:00Z")]}},
        },
        "t2": {"publishers": [client("10.0.0.2:1", "2025-01-01T00:00:00Z")]},
    }
    assert [
        (each["address"], each["producers"], each["consumers"], each["connectedSince"][:4])
        for each in connections_of(stats)
    ] == [("10.0.0.2:1", 1, 0, "2025"), ("10.0.0.1:1", 1, 1, "2026")]
