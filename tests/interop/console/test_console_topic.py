"""The page of one topic, beside REST: its clients and its ledgers."""

import asyncio
import re
import time
from datetime import datetime
from html import unescape
from urllib.parse import unquote

import httpx

from tests.interop.console.visitor import post, reason_of, rest
from tests.official_client import client_of
from tests.waiting import eventually


async def test_ledgers_say_from_when_until_when_they_were_written(
    console: httpx.AsyncClient, admin_url: str, service_url: str, topic: str
) -> None:
    async with httpx.AsyncClient() as client:
        assert (await client.put(f"{admin_url}/admin/v2/{topic}/unload")).is_success
    with client_of(service_url) as client_:
        producer = client_.create_producer(topic.replace("/", "://", 1))
        producer.send(b"in the next ledger")
        producer.close()
    info = await rest(admin_url, f"{topic}/internal-info")
    page = (await console.get(f"/console/topic/{topic}/storage")).text
    rows = re.findall(r"<tr><td><code>(\d+)</code></td>(.*?)</tr>", page)
    assert [int(number) for number, _ in rows] == [each["ledgerId"] for each in info["ledgers"]]
    first, last = (re.findall(r'datetime="([^"]+)"', row) for _, row in rows)
    closed_ms = info["ledgers"][0]["timestamp"]
    (shown,) = first
    assert round(datetime.fromisoformat(shown).timestamp() * 1000) == closed_ms
    (began,) = last
    assert began >= shown
    assert '<td class="nw">open</td>' in rows[1][1]


async def test_a_producer_is_found_by_a_part_of_its_name(
    console: httpx.AsyncClient, service_url: str, topic: str
) -> None:
    with client_of(service_url) as client:
        name = topic.replace("/", "://", 1)
        makers = [client.create_producer(name, producer_name=f"maker-{n}") for n in range(21)]
        tab = f"/console/topic/{topic}/producers"
        page = (await console.get(tab)).text
        assert len(re.findall(r'<td class="n">maker-', page)) == len(makers)
        assert 'name="client"' in page
        page = (await console.get(tab, params={"client": "R-2"})).text
        assert re.findall(r'<td class="n">(maker-\d+)', page) == ["maker-2", "maker-20"]
        assert "2 shown of 2, 21 in all" in page


async def test_what_compaction_left_is_read_also_when_the_log_is_trimmed(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    topic = f"persistent/public/default/console-{time.time_ns()}"
    tab = f"/console/topic/{topic}/messages"

    async def values(**query: str) -> list[str]:
        page = (await console.get(tab, params=query)).text
        assert 'class="fail"' not in page
        return re.findall(r'<td class="n"><code>(\w+)</code>', page)

    with client_of(service_url) as client:
        producer = client.create_producer(topic.replace("/", "://", 1), batching_enabled=False)
        for number, key in enumerate("aabcb"):
            producer.send(b"v%d" % number, partition_key=key)
        producer.close()
    async with httpx.AsyncClient(base_url=f"{admin_url}/admin/v2/") as client_:
        assert (await client_.put(f"{topic}/compaction")).is_success
        await eventually(lambda: _ended(admin_url, f"{topic}/compaction", "SUCCESS"))
        assert await values(readCompacted="true") == ["v1", "v3", "v4"]
        assert await values(readCompacted="true", filter='key = "b"') == ["v4"]
        assert await values() == ["v4", "v3", "v2", "v1", "v0"]  # the newest first
        assert (await client_.put(f"{topic}/unload")).is_success
        async with asyncio.timeout(60):
            while await values():
                assert (await client_.post(f"{topic}/trim")).is_success
    found = await values(readCompacted="true")
    assert found == ["v1", "v3", "v4"]
    page = (await console.get(tab, params={"readCompacted": "true"})).text
    link = unescape(re.findall(r'<td class="nw"><a href="([^"]+)"', page)[0])
    opened = (await console.get(f"{tab}{link}&show=raw")).text
    assert ">v1</pre>" in opened
    file = (await console.get(f"{tab}.ndjson", params={"readCompacted": "true"})).text
    assert len(file.splitlines()) == len(found)


async def _ended(admin_url: str, path: str, status: str) -> bool:
    return bool((await rest(admin_url, path))["status"] == status)


async def test_an_offload_is_asked_for_and_says_how_it_ended(
    console: httpx.AsyncClient, admin_url: str, topic: str
) -> None:
    tab = f"/console/topic/{topic}/storage"
    (asked,) = re.findall(r'do/offload\?value=([^"]+)"', (await console.get(tab)).text)
    (last,) = (await rest(admin_url, f"{topic}/internalStats"))["ledgers"]
    assert unquote(asked) == f"{last['ledgerId']}:0"
    refused = await post(console, f"/console/topic/{topic}/do/offload", value="12")
    assert (refused.status_code, reason_of(refused)) == (
        400,
        "Message id: ledger:entry is needed, as 12:0",
    )
    done = await post(console, f"/console/topic/{topic}/do/offload", value=unquote(asked))
    assert done.headers["location"].endswith(f"topic/{topic}/storage")
    # Neither server under test has a driver.
    await eventually(lambda: _ended(admin_url, f"{topic}/offload", "ERROR"))
    reason = (await rest(admin_url, f"{topic}/offload"))["lastError"]
    assert f"the last one failed: {reason}" in unescape((await console.get(tab)).text)


async def test_a_search_goes_on_to_the_end_of_the_topic(
    console: httpx.AsyncClient, service_url: str, topic: str
) -> None:
    """It reads 12,000 entries a step at most, or for five seconds."""
    with client_of(service_url) as client:
        producer = client.create_producer(
            topic.replace("/", "://", 1), batching_enabled=False, max_pending_messages=0
        )
        for _ in range(12_100):
            producer.send_async(b"x", None)
        producer.flush()
        producer.close()
    tab = f"/console/topic/{topic}/messages"
    page = (await console.get(tab, params={"filter": 'key = "none"'})).text
    (told,) = re.findall(r'<div class="none" role="status">(.*?)</div>', page, re.DOTALL)
    assert "http-equiv" not in told
    read, parts = list[int](), list[int]()
    while told:
        assert 'class="fail"' not in page
        read += [int(text.replace(",", "")) for text in re.findall(r"in ([\d,]+) entr", told)]
        parts += [int(text) for text in re.findall(r"(\d+) % of the topic", told)]
        going_on = re.findall(r'content="0;url=([^"]+)"', told) or re.findall(
            r'href="([^"]+)', told
        )
        page = (await console.get(tab + unescape(going_on[0]))).text
        (told,) = re.findall(r'<div class="none" role="status">(.*?)</div>', page, re.DOTALL) or [
            ""
        ]
    assert read == sorted(set(read))
    assert len(parts) == len(read)
    assert parts == sorted(parts)
    assert parts[-1] <= 100
    assert "Nothing was found." in page


async def test_a_non_persistent_topic_has_no_messages_to_read(
    console: httpx.AsyncClient, admin_url: str
) -> None:
    topic = f"non-persistent/public/default/console-{time.time_ns()}"
    async with httpx.AsyncClient() as client:
        assert (await client.put(f"{admin_url}/admin/v2/{topic}")).is_success
    page = await console.get(f"/console/topic/{topic}/messages")
    assert (page.status_code, 'class="fail"' in page.text) == (200, False)
    assert "A non-persistent topic stores nothing" in page.text


async def test_partitions_that_no_client_has_used(
    console: httpx.AsyncClient, admin_url: str
) -> None:
    topic = f"persistent/public/default/console-{time.time_ns()}"
    async with httpx.AsyncClient(base_url=f"{admin_url}/admin/v2/") as client:
        assert (await client.put(f"{topic}/partitions", json=3)).is_success
    for tab in ("", "/partitions"):
        page = (await console.get(f"/console/topic/{topic}{tab}")).text
        assert re.findall(r'id="partition-(\d)"', page) == ["0", "1", "2"]
    async with httpx.AsyncClient(base_url=f"{admin_url}/admin/v2/") as client:
        # Apache Pulsar then has no log of it.
        await client.delete(f"{topic}-partition-1")
    page = (await console.get(f"/console/topic/{topic}/storage")).text
    assert 'class="fail"' not in page
    page = (await console.get(f"/console/topic/{topic}/messages", params={"partition": 1})).text
    assert re.search(
        "Partition 1 stores nothing: no client|Topic partitions were not yet created", page
    )


async def test_a_producer_of_a_partitioned_topic_has_a_name_and_an_address(
    console: httpx.AsyncClient, admin_url: str, service_url: str
) -> None:
    topic = f"persistent/public/default/console-{time.time_ns()}"
    async with httpx.AsyncClient(base_url=f"{admin_url}/admin/v2/") as client:
        assert (await client.put(f"{topic}/partitions", json=2)).is_success
    with client_of(service_url) as client_:
        client_.create_producer(topic.replace("/", "://", 1))
        page = (await console.get(f"/console/topic/{topic}/producers")).text
        stats = await rest(admin_url, f"{topic}/partitioned-stats?perPartition=true")
    (name,) = re.findall(r'<td class="n">(.*?)<span class="sub">127.0.0.1:\d+', page)
    parts = stats["partitions"].values()
    assert name in [each["producerName"] for part in parts for each in part["publishers"]]
