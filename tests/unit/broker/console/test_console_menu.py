"""Counts in the menu: those of REST, as each visitor may see them, and never worth a long wait."""

import asyncio
import re
from html import unescape
from typing import Any

import httpx
import pytest

from magnetar.broker.console import kept_reads
from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.kept_reads import Age, KeptReads
from magnetar.broker.console.source import Source
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of


def counts_of(page: str) -> dict[str, str]:
    """Titles of the menu's entries that have a count."""
    shown = page.partition('<nav class="nav"')[2].partition("</nav>")[0]
    found = re.findall(r'</svg>([^<]+)<span class="mu">([^<]+)</span></a>', shown)
    return {unescape(title): count for title, count in found}


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pages: on a busy machine counts take longer than a page waits for them."""
    monkeypatch.setattr(kept_reads, "_WAIT_S", 60.0)


@pytest.mark.usefixtures("patience")
async def test_counts_are_those_of_rest(broker: Broker) -> None:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        base = "/admin/v2/persistent/public/default"
        assert (await client.put(f"{base}/wide/partitions", json=3)).is_success
        for topic in ("a", "b", "wide"):
            if topic != "wide":
                assert (await client.put(f"{base}/{topic}")).is_success
            assert (await client.put(f"{base}/{topic}/subscription/s")).is_success
        schema = {"type": "INT32", "schema": "", "properties": {}}
        url = "/admin/v2/schemas/public/default/a/schema"
        assert (await client.post(url, json=schema)).is_success
        page = (await client.get("/console/settings")).text
        subscriptions = (await client.get("/admin/v2/subscriptions-index")).json()["total"]
    assert subscriptions == 5
    assert counts_of(page) == {
        "Brokers": "1",
        "Bookies": "0",
        "Namespaces": "1",
        "Topics": "3",
        "Subscriptions": "5",
        "Schemas": "1",
    }


@pytest.mark.usefixtures("patience")
async def test_each_role_has_its_own_counts() -> None:
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        shown = []
        for role in ("admin", "prod", "admin"):
            async with client_of(app, role) as client:
                shown.append(counts_of((await client.get("/console/topics")).text))
    assert shown[0] == shown[2]
    assert "Brokers" in shown[0]
    assert "Brokers" not in shown[1]
    assert "Topics" in shown[1]


class SlowSource:
    """A cluster whose counts come when they are let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.calls = 0

    async def counts(self) -> dict[str, int]:
        self.calls += 1
        await self.let.wait()
        return {"topics": self.calls}


@pytest.mark.parametrize(("most_s", "kept_s"), [(60, 50), (30, 30)])
async def test_a_page_does_not_wait_for_slow_counts(most_s: float, kept_s: float) -> None:
    now_s = [100.0]
    source: Any = SlowSource()
    counts = KeptReads[dict[str, int]](lambda: now_s[0], Age(10, 50, most_s))
    assert await counts.of("anna", source.counts) is None
    assert await counts.of("anna", source.counts) is None
    now_s[0] += 1
    source.let.set()
    assert await counts.of("anna", source.counts) == {"topics": 1}
    now_s[0] += kept_s - 0.1  # the call took a second
    assert await counts.of("anna", source.counts) == {"topics": 1}
    now_s[0] += 0.2
    assert await counts.of("anna", source.counts) == {"topics": 2}
    assert await counts.of("bert", source.counts) == {"topics": 3}


async def test_a_mistake_is_told_until_the_answer_is_there(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by pages that don't wait for it, and where there was an answer before."""
    now_s, failing = [100.0], asyncio.Event()

    async def fail() -> dict[str, int]:
        await failing.wait()
        raise KeyError("owner")

    source: Any = SlowSource()
    source.let.set()
    counts = KeptReads[dict[str, int]](lambda: now_s[0], Age(10, 50, 60))
    assert await counts.of("anna", source.counts) == {"topics": 1}
    now_s[0] += 60
    assert await counts.of("anna", fail) == {"topics": 1}  # that of before, meanwhile
    assert await counts.of("bert", fail) is None
    failing.set()
    await asyncio.wait([*counts._reading.values()])
    failing.clear()
    for who in ("anna", "bert"):
        with pytest.raises(AdminError, match=r"KeyError, a mistake .* a page of the console lacks"):
            await counts.of(who, fail)
    assert "a page of the console lacks an answer" in caplog.text
    assert "KeyError" in caplog.text
    failing.set()
    await asyncio.wait([*counts._reading.values()])
    assert await counts.of("anna", source.counts) == {"topics": 2}


@pytest.mark.usefixtures("patience")
async def test_the_overview_says_that_looking_failed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(source: Source) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Source, "findings", fail)
    monkeypatch.setattr(Source, "counts", fail)  # a page without these numbers needs no words
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = (await client.get("/console/")).text
    assert "Looking for" not in page
    assert "What needs attention can't be told" in page
    (said,) = re.findall(r'<p class="fail">(.*?)</p>', page)
    assert "What needs attention: ZeroDivisionError, a mistake of the console; its log says" in said


@pytest.mark.usefixtures("patience")
async def test_many_findings_leave_room_for_figures(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def many(source: Source) -> Any:
        return [
            {"check": "c", "severity": "warning", "sentence": f"fault {n}", "command": "c"}
            for n in range(7)
        ]

    monkeypatch.setattr(Source, "findings", many)
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = (await client.get("/console/")).text
    assert "7 things need attention" in page
    assert re.findall(r'<li id="finding-(\d)">', page) == list("1234567")
    shown, folded = page.split('<details id="findings-more"><summary>2 more</summary>')
    assert "fault 4" in shown
    assert "fault 5" in folded


async def test_a_refusal_reaches_the_page_that_waits_and_is_not_kept() -> None:
    async def refused() -> dict[str, int]:
        raise AdminError(403, "not for you")

    source: Any = SlowSource()
    source.let.set()
    counts = KeptReads[dict[str, int]](lambda: 1.0, Age(10, 50, 60))
    for _ in range(2):
        with pytest.raises(AdminError, match="not for you"):
            await counts.of("anna", refused)
    assert await counts.of("anna", source.counts) == {"topics": 1}


async def test_counts_of_the_last_visitors_are_kept() -> None:
    source: Any = SlowSource()
    source.let.set()
    counts = KeptReads[dict[str, int]](lambda: 1.0, Age(10, 50, 60))
    for number in range(500):
        await counts.of(str(number), source.counts)
    assert len(counts._known) == 200
