"""Figures of sums, lists and tabs: each is what REST tells of the topics at that moment."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from html import unescape
from typing import Any

import httpx
import pytest

from magnetar.broker.console.formats import number, short, size
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker

SENT = {"public/default/a": 3, "public/default/b": 1, "shop/orders/wide": 4}
SUBSCRIPTIONS = ("audit", "billing")
PARTITIONS = 3


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        await fill(found)
        yield found


async def fill(client: httpx.AsyncClient) -> None:
    tenant = {"allowedClusters": ["standalone"], "adminRoles": []}
    assert (await client.put("/admin/v2/tenants/shop", json=tenant)).is_success
    assert (await client.put("/admin/v2/namespaces/shop/orders")).is_success
    wide = "/admin/v2/persistent/shop/orders/wide"
    assert (await client.put(f"{wide}/partitions", json=PARTITIONS)).is_success
    for name, count in SENT.items():
        for subscription in SUBSCRIPTIONS:
            path = f"/admin/v2/persistent/{name}/subscription/{subscription}"
            assert (await client.put(path)).status_code in (204, 409)
        messages = [{"payload": "x" * 40, "key": f"k{each}"} for each in range(count)]
        body = {"producerName": "p", "messages": messages}
        assert (await client.post(f"/topics/persistent/{name}", json=body)).is_success


async def stats_of(client: httpx.AsyncClient, name: str) -> dict[str, Any]:
    kind = "partitioned-stats?perPartition=true" if name.endswith("wide") else "stats"
    found: dict[str, Any] = (await client.get(f"/admin/v2/persistent/{name}/{kind}")).json()
    return found


def backlog_of(stats: Mapping[str, Any]) -> int:
    return sum(each["msgBacklog"] for each in stats["subscriptions"].values())


async def shown(
    client: httpx.AsyncClient, path: str
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Figures by their title, and the rows of tables by titles of their columns."""
    page = await client.get(f"/console/{path}")
    assert page.status_code == 200, path
    figures = re.findall(r"(?s)<dt>([^<]+)</dt><dd[^>]*>(.*?)</dd>", page.text)
    rows = list[dict[str, str]]()
    for table in re.findall(r"(?s)<table.*?</table>", page.text):
        titles = [_text(each) for each in re.findall(r"(?s)<th\b[^>]*>(.*?)</th>", table)]
        for row in re.findall(r"(?s)<tr id.*?</tr>|<tr><td.*?</tr>", table):
            cells = [_text(each) for each in re.findall(r"(?s)<td[^>]*>(.*?)</td>", row)]
            rows.append(dict(zip(titles, cells, strict=False)))
    return {title: _text(value) for title, value in figures}, rows


def _text(markup: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", markup)).strip()


def summed(found: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Messages that wait, and bytes that are stored."""
    return sum(map(backlog_of, found)), sum(each["storageSize"] for each in found)


async def test_sums_of_the_cluster_and_of_its_namespaces(client: httpx.AsyncClient) -> None:
    stats = {name: await stats_of(client, name) for name in SENT}
    backlog, stored = summed(list(stats.values()))
    assert backlog == 2 * sum(SENT.values())
    figures, rows = await shown(client, "")
    assert figures["Backlog"].split()[0] == short(backlog)
    assert figures["Stored"] == size(stored)
    (broker,) = [each for each in rows if "Topics" in each]
    assert broker["Topics"] == str(2 + PARTITIONS)
    _, listed = await shown(client, "namespaces")
    of_namespace = {each["Namespace"]: each for each in listed if "Namespace" in each}
    for space, topics in (("public/default", 2), ("shop/orders", PARTITIONS)):
        found = [each for name, each in stats.items() if name.startswith(space)]
        backlog, stored = summed(found)
        row = of_namespace[space]
        assert (row["Topics"], row["Backlog"]) == (str(topics), number(backlog))
        assert row["Stored"] == size(stored)
        figures, _ = await shown(client, f"ns/{space}")
        assert figures["Topics and partitions"] == row["Topics"]
        assert (figures["Backlog"], figures["Stored"]) == (row["Backlog"], row["Stored"])
        _, of_tenant = await shown(client, f"tenant/{space.partition('/')[0]}")
        assert {**of_tenant[0], "Namespace": ""} == {**row, "Namespace": ""}


async def test_rows_of_lists(client: httpx.AsyncClient) -> None:
    _, topics = await shown(client, "topics")
    names = [name for row in topics for name in SENT if row["Topic ↑"].startswith(name)]
    assert names == sorted(SENT)
    for name, row in zip(names, topics, strict=True):
        stats = await stats_of(client, name)
        assert row["Backlog"] == number(backlog_of(stats)), name
        assert row["Stored"] == size(stats["storageSize"])
        assert row["Subs"] == str(len(stats["subscriptions"]))
        assert row["Prod / cons"] == "0 / 0"
    _, subscriptions = await shown(client, "subscriptions?namespace=public%2Fdefault")
    for name in ("public/default/a", "public/default/b"):
        of_topic = (await stats_of(client, name))["subscriptions"]
        rows = [each for each in subscriptions if each["Topic"] == name]
        assert len(rows) == len(SUBSCRIPTIONS)
        for row in rows:
            (of_row,) = [each for key, each in of_topic.items() if key in row["Subscription"]]
            assert row["Backlog ↓"] == number(of_row["msgBacklog"])
            assert row["Unacknowledged"] == number(of_row["unackedMessages"])
            assert row["Consumers"] == number(len(of_row["consumers"]))


async def test_tabs_of_topics(client: httpx.AsyncClient) -> None:
    wide = await stats_of(client, "shop/orders/wide")
    _, rows = await shown(client, "topic/persistent/shop/orders/wide/partitions")
    assert len(rows) == PARTITIONS
    for row in rows:
        part = wide["partitions"][f"persistent://shop/orders/wide-partition-{row['Partition']}"]
        assert row["Backlog"] == number(
            max(each["msgBacklog"] for each in part["subscriptions"].values())
        )
        assert row["Stored"] == size(part["storageSize"])
    internal = "/admin/v2/persistent/public/default/a/internalStats"
    ledgers = (await client.get(internal)).json()
    figures, rows = await shown(client, "topic/persistent/public/default/a/storage")
    assert figures["Stored"] == size(ledgers["totalSize"])
    assert [each["Ledger"] for each in rows] == [str(e["ledgerId"]) for e in ledgers["ledgers"]]
    assert sum(int(each["Entries"]) for each in rows) == ledgers["numberOfEntries"]
    assert rows[-1]["Size"] == size(ledgers["currentLedgerSize"])
