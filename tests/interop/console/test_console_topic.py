"""The page of one topic, beside REST: its clients and its ledgers."""

import re
from datetime import datetime

import httpx

from tests.interop.console.visitor import rest
from tests.official_client import client_of


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
