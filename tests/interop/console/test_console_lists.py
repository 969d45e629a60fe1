"""Lists of the console: rows, order, filter, files, and what is made from them."""

import asyncio
import csv
import io
import re
import time
from typing import Any
from urllib.parse import quote

import httpx

from magnetar.broker.console.kept_order import KeptOrder
from tests.interop.console.visitor import reason_of, rest, step
from tests.official_client import client_of


async def test_a_partitioned_topic_is_one_row(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    name = f"public/default/wide-{time.time_ns()}"
    async with httpx.AsyncClient() as client:
        url = f"{admin_url}/admin/v2/persistent/{name}"
        assert (await client.put(f"{url}/partitions", json=3)).is_success
        assert (await client.put(f"{url}/subscription/s")).is_success
    with client_of(service_url) as client:
        producer = client.create_producer(f"persistent://{name}", batching_enabled=False)
        for _ in range(6):
            producer.send(b"x")
        producer.close()
    stats = await rest(admin_url, f"persistent/{name}/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 6
    page = (await console.get("/console/topics", params={"q": name})).text
    assert "1 shown of 1" in page
    assert "3 p<span" in page
    async with asyncio.timeout(150):
        # Pulsar's statistics of all topics are a minute old, the snapshot of them a bit more.
        while '<td class="r">6</td>' not in page:
            await asyncio.sleep(1)
            page = (await console.get("/console/topics", params={"q": name})).text


async def test_lists_are_sorted_filtered_and_cut(console: httpx.AsyncClient, topic: str) -> None:
    name = topic.rpartition("/")[2]
    page = (await console.get("/console/topics", params={"q": name})).text
    assert f"<b>{name}</b>" in page
    assert "1 shown of 1" in page
    nothing = (await console.get("/console/topics", params={"q": name + "x"})).text
    assert "Nothing matches." in nothing
    for sort in ("msgBacklog", "storageSize", "msgRateIn"):
        answer = await console.get("/console/topics", params={"sort": sort, "order": "desc"})
        assert 'aria-sort="descending"' in answer.text
        assert 'class="fail"' not in answer.text


async def test_the_menu_counts_what_pages_list(console: httpx.AsyncClient, topic: str) -> None:
    async with asyncio.timeout(60):
        while True:  # pages don't wait long for counts
            page = (await console.get("/console/topics")).text
            menu = page.partition('<nav class="nav"')[2].partition("</nav>")[0]
            counts = dict(re.findall(r'</svg>([^<]+)<span class="mu">([^<]+)</span></a>', menu))
            if "Topics" in counts:
                break
    assert counts["Brokers"] == "1"
    assert counts.keys() >= {"Bookies", "Namespaces", "Subscriptions"}
    (shown,) = re.findall(r"<h1>Topics</h1><span class=\"mu\">([^<]+)<", page)
    assert counts["Topics"] == shown.partition(" in ")[0]


async def test_schemas_are_listed(console: httpx.AsyncClient, topic: str, admin_url: str) -> None:
    name = topic.rpartition("/")[2]
    url = f"{admin_url}/admin/v2/schemas/public/default/{name}/schema"
    async with httpx.AsyncClient() as client:
        for kind in ("STRING", "INT32"):
            strategy = f"{admin_url}/admin/v2/{topic}/schemaCompatibilityStrategy"
            assert (await client.put(strategy, json="ALWAYS_COMPATIBLE")).is_success
            body: dict[str, Any] = {"type": kind, "schema": "", "properties": {}}
            assert (await client.post(url, json=body)).is_success
        stored = (await client.get(url)).json()
    assert (stored["type"], stored["version"]) == ("INT32", 1)
    assert ">INT32 v1</span>" in (await console.get(f"/console/topic/{topic}")).text
    for path, shown in (
        ("topics", '<td class="mu hide2 hide3">INT32 v1</td>'),
        ("schemas", '<td>INT32</td><td class="r">1</td>'),
    ):
        page = (await console.get(f"/console/{path}", params={"q": name})).text
        assert shown in page, path
    assert '<td class="hide3">ALWAYS_COMPATIBLE</td>' in page
    cookie = {"Cookie": f"magnetar-starred={quote(topic.replace('/', '://', 1), safe='')}"}
    assert "INT32 v1" in (await console.get("/console/topics?view=starred", headers=cookie)).text


async def test_lists_are_files(console: httpx.AsyncClient, topic: str) -> None:
    name = topic.replace("/", "://", 1)
    answer = await console.get("/console/topics.csv", params={"q": name})
    (row,) = csv.DictReader(io.StringIO(answer.text, newline=""))
    assert row["topic"] == name
    answer = await console.get("/console/schemas.csv")
    assert answer.status_code == (200 if "schema" in row else 501)
    page = (await console.get("/console/schemas")).text
    assert ("schemas.csv" in page) == ("schema" in row)


async def test_a_topic_is_created_from_the_list(console: httpx.AsyncClient, admin_url: str) -> None:
    name = f"listed-{time.time_ns()}"
    for typed, path in (
        ({"new_name": f"public/default/{name}"}, f"persistent/public/default/{name}"),
        (
            {"new_name": f"public/default/{name}-p", "partitions": "2"},
            f"persistent/public/default/{name}-p",
        ),
    ):
        done = await step(console, "topics/do/create-topic", domain="persistent", **typed)
        assert done.is_redirect, reason_of(done)
        assert done.headers["location"] == f"../../topic/{path}"
        partitions = (await rest(admin_url, f"{path}/partitions"))["partitions"]
        assert partitions == int(typed.get("partitions", "0"))
    refused = await step(console, "topics/do/create-topic", new_name="orders", domain="persistent")
    assert (refused.status_code, reason_of(refused)) == (400, "Name: tenant/namespace/topic")


async def test_a_starred_topic_has_figures_of_now(console: httpx.AsyncClient, topic: str) -> None:
    name = topic.replace("/", "://", 1)
    cookie = {"Cookie": f"magnetar-starred={quote(name, safe='')}"}
    page = (await console.get("/console/topics?view=starred", headers=cookie)).text
    assert "1 shown of 1" in page
    assert f"<b>{topic.rpartition('/')[2]}</b>" in page
    backlog, oldest = re.findall(r'<td class="r">([^<]+)</td>', page)
    assert backlog == "3"
    assert re.fullmatch(r"[\d.]+ (ms|s|min)", oldest)


async def test_rows_keep_their_order_until_somebody_sorts_again(
    console: httpx.AsyncClient, topic: str, admin_url: str
) -> None:
    """Also those that the list would no longer have on this page; one that is gone is left out."""
    full = topic.replace("/", "://", 1)
    other = f"{topic}-other"
    async with httpx.AsyncClient() as client:
        assert (await client.put(f"{admin_url}/admin/v2/{other}")).is_success
    path = {"q": other.rpartition("/")[2], "sort": "storageSize"}
    async with asyncio.timeout(150):  # Pulsar's list of names is a snapshot
        page = ""
        while "1 shown of 1" not in page:
            page = (await console.get("/console/topics", params=path)).text
            await asyncio.sleep(0.2)
    kept = KeptOrder.of([(f"{full}-other",), (f"{full}-gone",), (full,)])
    answer = await console.get(
        "/console/topics", params=path, headers={"Magnetar-Fragment": kept.text}
    )
    name = topic.rpartition("/")[2]
    assert re.findall(r"<b>([^<]+)</b>", answer.text[answer.text.index("<tbody") :]) == [
        f"{name}-other",
        name,
    ]
    assert f'data-order="{kept.text}"' in answer.text
    assert "sort again</a>" in answer.text
