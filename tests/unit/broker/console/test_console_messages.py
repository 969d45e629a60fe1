"""Messages in the console: looks at a value, columns, deliveries, and the page without a topic."""

import json
import re
import threading
from collections.abc import AsyncIterator
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console import messages_page
from magnetar.broker.console.highlight import text_of
from magnetar.broker.console.message_view import (
    BODY_MAX,
    columns_of,
    hex_dump,
    indented,
    messages_view,
)
from magnetar.broker.console.pulsar_cursors import delivery_of
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.http.messaging import message_search
from magnetar.broker.http.server.app import create_app
from magnetar.broker.transaction.transaction_id import TransactionId
from tests.unit.broker.doubles import Broker, message

TOPIC = "persistent/public/default/orders"
TAB = f"/console/topic/{TOPIC}/messages"


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def send(client: httpx.AsyncClient, *payloads: str) -> list[str]:
    """Their ids, as pages have them."""
    messages = [{"payload": each} for each in payloads]
    body = {"producerName": "p", "messages": messages, "valueSchema": '{"type":"BYTES"}'}
    answer = await client.post(f"/topics/{TOPIC}", json=body)
    found = answer.json()["messagePublishResults"]
    return [":".join(each["messageId"].split(":")[:2]) for each in found]


async def opened(client: httpx.AsyncClient, **query: str) -> str:
    page = await client.get(TAB, params=query)
    assert page.status_code == 200
    return page.text


def value_in(page: str) -> str:
    return unescape(re.findall(r'<pre tabindex="0"[^>]*>(.*?)</pre>', page, re.DOTALL)[0])


async def test_a_value_has_three_looks(client: httpx.AsyncClient) -> None:
    (message_id,) = await send(client, '{"b":"\u202e<i>"}')
    raw = value_in(await opened(client, id=message_id, show="raw"))
    assert raw == '{"b":"⟨U+202E⟩<i>"}'
    dump = value_in(await opened(client, id=message_id, show="hex"))
    assert dump.startswith("00000000  7b 22 62 22 3a 22 e2 80 ae 3c 69 3e 22 7d ")
    assert dump.endswith('  {"b":"...<i>"}')
    page = await opened(client, id=message_id)
    assert [*re.findall(r'show=(\w+)">(\w+)</a>', page)] == [("raw", "Raw"), ("hex", "Hex")]


def test_json_that_was_sent_has_a_line_for_each_member() -> None:
    text = '{"a":1.10,"b":{},"c":[1,{"x":"y, {\\"z\\": 1}"}]}'
    shown = indented(text)
    assert shown.split("\n") == [
        "{",
        '  "a": 1.10,',
        '  "b": {},',
        '  "c": [',
        "    1,",
        "    {",
        '      "x": "y, {\\"z\\": 1}"',
        "    }",
        "  ]",
        "}",
    ]
    for other in ("hello", "[", '{"a": 1', "7", ""):
        assert indented(other) == other


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
    )
)
def test_json_is_indented_as_the_library_does(value: Any) -> None:
    if isinstance(value, dict | list):
        wanted = json.dumps(value, indent=2, ensure_ascii=False)
        assert indented(json.dumps(value, ensure_ascii=False)) == wanted


@pytest.mark.parametrize("is_decoded", [False, True])
def test_a_value_of_deep_nesting_isnt_written_whole(is_decoded: bool) -> None:
    """It would be 400 times as long as what was sent."""
    text = "[" * 200 + "0," * 10_000 + "0" + "]" * 200
    payload = json.loads(text) if is_decoded else text
    found = {"messages": [{"messageId": "1:1", "size": 9, "payload": payload}], "next": None}
    (row,) = messages_view({**found, "entriesRead": 1, "bytesRead": 9}, [("0",)])["rows"]
    assert row.body.startswith("[\n  [\n    [\n")
    assert BODY_MAX < len(row.body) < BODY_MAX + 1_000
    assert [text_of(cell) for cell in row.cells] == ["[" * 80 + "…"]


def test_rows_of_a_dump() -> None:
    assert hex_dump(b"") == ""
    rows = hex_dump(bytes(range(60, 77))).split("\n")
    assert rows[0] == f"00000000  {bytes(range(60, 76)).hex(' ')}  <=>?@ABCDEFGHIJK"
    assert rows[1] == "00000010  4c" + " " * 45 + "  L"


async def test_a_long_value_is_loaded_when_it_is_asked_for(client: httpx.AsyncClient) -> None:
    (long,) = await send(client, "x" * 100_000 + "end")
    page = await opened(client, id=long)
    assert "Load all" in page
    assert len(value_in(page)) == 65_536 - 1  # the last letter may not be whole
    page = await opened(client, id=long, all="1")
    assert value_in(page).endswith("xend")
    assert "Load all" not in page
    assert value_in(await opened(client, id=long, all="1", show="hex")).endswith("  end")
    (longer,) = await send(client, "x" * (BODY_MAX + 10))
    page = await opened(client, id=longer, all="1")
    assert value_in(page) == "x" * (BODY_MAX - 1)  # the last letter may not be whole
    assert "More of a long value is in the export." in page


@pytest.mark.parametrize(
    "settings", [{"web_console_messages": "metadata"}, {"web_console_masked_fields": "pin"}]
)
async def test_no_look_has_what_is_withheld(settings: dict[str, str]) -> None:
    broker = await Broker(**settings).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        ids = await send(client, '{"pin":"0815"}', '{"pin":"0815","x":"' + "y" * 70_000 + '"}')
        for message_id in ids:
            for show in ("", "raw", "hex"):
                for every in ("", "1"):
                    page = await opened(client, id=message_id, show=show, all=every, columns=".pin")
                    assert message_id in page
                    assert "0815" not in page
                    assert "30 38 31 35" not in page
    await broker.close()


async def test_what_was_found_is_marked_and_nothing_of_a_message_is_markup(
    client: httpx.AsyncClient,
) -> None:
    (message_id,) = await send(client, '{"status":"<b>no</b>","<u>":1}')
    page = await opened(
        client, id=message_id, filter='value.status ~ "no" and value ~ "<u>"', columns=".status"
    )
    assert '<td class="hide3">&lt;b&gt;<mark>no</mark>&lt;/b&gt;</td>' in page
    status = "&#34;status&#34;:{}&#34;<mark>&lt;b&gt;no&lt;/b&gt;</mark>&#34;,"
    line = "{" + status.format("") + "&#34;<mark>&lt;u&gt;</mark>"
    lines = "{\n  " + status.format(" ") + "\n  &#34;<mark>&lt;u&gt;</mark>"
    assert line in page
    assert lines in page, "the opened value"
    assert not re.findall("<b>no|<u>", page)


async def test_fields_are_columns(client: httpx.AsyncClient) -> None:
    await send(client, '{"status":"declined","card":{"brand":["visa"]}}', "no JSON")
    columns = ".status, value.card.brand.0 .card"
    page = await opened(client, columns=columns, position="earliest")
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", page.partition('id="follow-rows"')[2])
    assert heads[3:6] == [".status", ".card.brand.0", ".card"]
    rows = re.findall(r"</code></td>((?:<td class=\"hide3\">[^<]*</td>){3})", page)
    cells = [[unescape(x) for x in re.findall(r">([^<]*)</td>", row)] for row in rows]
    assert cells == [["declined", "visa", '{"brand": ["visa"]}'], ["–"] * 3]
    assert "columns=.status" in page  # links keep them


async def test_the_last_messages_begin_with_the_newest_and_lead_to_earlier_ones(
    client: httpx.AsyncClient,
) -> None:
    ids = await send(client, *(f"m{number}" for number in range(120)))
    page = await opened(client)
    shown = _ids(page)
    assert shown == ids[:69:-1]
    pages = [shown]
    while earlier := re.search(r'rel="prev" href="\?([^"]+)"', page):
        page = (await client.get(f"/console/topic/{TOPIC}/messages?{unescape(earlier[1])}")).text
        pages.append(_ids(page))
    assert pages == [ids[:69:-1], ids[69:19:-1], ids[19::-1]]
    (later,) = set(re.findall(r'rel="next" href="\?([^"]+)"', page))
    page = (await client.get(f"/console/topic/{TOPIC}/messages?{unescape(later)}")).text
    assert _ids(page) == ids[20:70]
    # A message is opened on the page that it was found on, also when there are newer ones.
    row = re.search(rf'href="\?([^"]+)"><code>{ids[100]}<', await opened(client))
    assert row is not None
    await send(client, "new")
    page = (await client.get(f"/console/topic/{TOPIC}/messages?{unescape(row[1])}")).text
    assert _ids(page) == shown
    assert value_in(page) == "m100"


def _ids(page: str) -> list[str]:
    return re.findall(r"<tr id=\"m\d[^>]*>.*?<code>([\d:]+)<", page)


async def test_columns_are_read_off_the_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty values of 64 KiB took the loop fifty milliseconds."""
    threads: list[int] = []

    def noted(*given: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return messages_view(*given)

    monkeypatch.setattr(messages_page, "messages_view", noted)
    await send(client, '{"status":"declined"}')
    assert "declined" in (await client.get(TAB, params={"columns": ".status"})).text
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_words_that_are_columns() -> None:
    assert columns_of("") == columns_of(". .. value") == []
    assert columns_of(".a value.b.c d") == [("a",), ("b", "c"), ("d",)]
    assert len(columns_of(" ".join(f".f{n}" for n in range(20)))) == 8
    message = {"messageId": "1:2", "size": 9, "payload": "[" * 100_000}
    found = {"messages": [message], "next": None, "entriesRead": 1, "bytesRead": 9}
    assert messages_view(found, [("a",)])["rows"][0].cells == [[("–", False)]]


async def test_what_became_of_a_message(client: httpx.AsyncClient) -> None:
    first, second = await send(client, "a", "b")
    for name in ("billing", "<audit>"):
        path = f"/admin/v2/{TOPIC}/subscription/{quote(name)}"
        body: dict[str, Any] = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        assert (await client.put(path, json=body)).is_success
    skip = f"/admin/v2/{TOPIC}/subscription/billing/skip/1"
    assert (await client.post(skip)).is_success
    shown = _delivered(await opened(client, id=first))
    assert "billing acknowledged" in shown
    assert "<audit> not acknowledged. No consumer is connected." in shown
    assert "billing not acknowledged." in _delivered(await opened(client, id=second))


async def test_of_many_subscriptions_some_are_asked(client: httpx.AsyncClient) -> None:
    (first,) = await send(client, "a")
    for number in range(23):
        path = f"/admin/v2/{TOPIC}/subscription/s{number}"
        assert (await client.put(path)).is_success
    assert "3 subscriptions with less backlog not asked" in _delivered(
        await opened(client, id=first)
    )


def _delivered(page: str) -> str:
    text = page.partition("<dt>Delivered to</dt>")[2].partition("</dd>")[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", "", text)).split())


async def test_the_page_of_messages_asks_for_a_topic(client: httpx.AsyncClient) -> None:
    await send(client, "hello")
    page = (await client.get("/console/messages")).text
    assert "messages?topic=persistent%3A//public/default/orders" in page
    for name in ("orders", "public/default/orders", "persistent://public/default/orders"):
        page = (await client.get("/console/messages", params={"topic": name})).text
        assert "<code>hello</code>" in page
        assert f'name="topic" value="{name}"' in page
    page = (await client.get("/console/messages?topic=order")).text
    assert "Names like it" in page
    assert "default/orders" in page


def test_names_as_people_type_them() -> None:
    assert str(TopicPath.typed("a")) == "persistent://public/default/a"
    assert str(TopicPath.typed("t/n/a/b")) == "persistent://t/n/a/b"
    assert str(TopicPath.typed("non-persistent://t/n/a")) == "non-persistent://t/n/a"


@pytest.mark.parametrize(
    ("message_id", "reason"),
    [
        ("5:1", Reason.ACKNOWLEDGED),
        ("5:2", Reason.PENDING),
        ("5:3", Reason.ACKNOWLEDGED),
        ("5:4:1", Reason.PENDING),
        ("6:0", Reason.ACKNOWLEDGED),
        ("6:7", Reason.NO_CONSUMER),
    ],
)
def test_what_cursors_of_pulsar_tell(message_id: str, reason: Reason) -> None:
    cursor = {
        "markDeletePosition": "5:1",
        "readPosition": "6:7",
        "individuallyDeletedMessages": "[(5:2..5:3],(6:-1..6:2]]",
    }
    assert delivery_of(cursor, {"msgBacklog": 9}, message_id).reason == reason
    fed = {"msgBacklog": 9, "consumers": [{"availablePermits": 5}], "msgRateOut": 1.0}
    stalled = reason == Reason.NO_CONSUMER
    assert delivery_of(cursor, fed, message_id).reason == (Reason.DELIVERING if stalled else reason)


@pytest.mark.parametrize("value", [None, 7, [], {"a": [1, "ä<", {"b": None}]}, ["x" * 150] * 9])
def test_a_row_shows_the_beginning_of_json(value: Any) -> None:
    message = {"messageId": "1:2", "size": 1, "payload": value}
    page = {"messages": [message], "next": None, "entriesRead": 1, "bytesRead": 1}
    (row,) = messages_view(page)["rows"]
    assert row.value == json.dumps(value, ensure_ascii=False)[:200]


async def test_messages_of_transactions_that_no_consumer_gets_are_marked() -> None:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    try:
        sender = broker.client()
        await sender.receive_one()
        await sender.produce()
        for number, least in enumerate((7, 8, 9, 9)):
            sender.feed(message(number, txnid_most_bits=0, txnid_least_bits=least))
        await sender.receive(4)
        topic = broker.service.topics["persistent://public/default/t"]
        await topic.end_transaction(TransactionId(0, 7), -1, commit=True)
        await topic.end_transaction(TransactionId(0, 8), -1, commit=False)
        transport = httpx.ASGITransport(create_app(broker.service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            path = "persistent/public/default/t"
            found = (await client.get(f"/admin/v2/{path}/messages")).json()["messages"]
            states = ["COMMITTED", "ABORTED", "OPEN", "OPEN"]
            assert [each["transactionState"] for each in found] == states
            assert [each["transaction"] for each in found] == ["(0,7)", "(0,8)", "(0,9)", "(0,9)"]
            page = (
                await client.get(f"/console/topic/{path}/messages?id={found[1]['messageId']}")
            ).text
            assert re.findall(r'<span class="tag [aw]">([^<]+)</span>', page) == [
                *("aborted", "aborted", "open transaction", "open transaction")
            ]
            page = (await client.get(f"/console/topic/{path}")).text
            assert "1 committed, 1 aborted" in page
    finally:
        await broker.close()


async def test_an_opened_message_leads_to_the_next_and_tells_its_command(
    client: httpx.AsyncClient,
) -> None:
    ids = await send(client, "a", "b", "c")
    page = await opened(client, id=ids[1], position="earliest", show="hex")
    assert "2 of 3</span>" in page
    steps = dict(re.findall(r'rel="(prev|next)" href="([^"]*)">(?:Previous|Next)<', page))
    for rel, other in (("prev", ids[0]), ("next", ids[2])):
        query = httpx.URL(f"http://localhost{TAB}{unescape(steps[rel])}").params
        assert (query["id"], query["show"]) == (other, "hex")
    last = await opened(client, id=ids[2], position="earliest")
    assert "3 of 3</span>" in last
    assert ">Next<" not in last
    ledger_id, entry_id = ids[1].split(":")
    command = "magnetar topics get-message-by-id persistent://public/default/orders"
    assert f'<code class="as">{command} -l {ledger_id} -e {entry_id}</code>' in page
    assert 'data-copy="code.as"' in page


async def test_reading_begins_at_an_index_where_the_broker_counts(
    client: httpx.AsyncClient,
) -> None:
    await send(client, "without an index")
    assert "is disabled" in await opened(client, position="#1")
    for wrong in ("#", "#x", "#-1", "#²"):
        assert "is no index of a message" in await opened(client, position=wrong)
    interceptor = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
    counting = await Broker(broker_entry_metadata_interceptors=interceptor).start()
    transport = httpx.ASGITransport(create_app(counting.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
        ids = await send(other, "a", "b", "c")
        page = await opened(other, position="#1")
    await counting.close()
    assert [each for each in ids if f">{each}<" in page] == ids[1:]


def progress_of(page: str) -> tuple[str, list[str], str]:
    """What is told of a search that has found nothing: text, addresses of its links, and the one
    that it leads to by itself.
    """
    (told,) = re.findall(r'<div class="none" role="status">(.*?)</div>', page, re.DOTALL)
    (by_itself,) = re.findall(r'http-equiv="refresh" content="0;url=([^"]+)"', told) or [""]
    links = [unescape(each) for each in re.findall(r'href="([^"]+)"', told)]
    return re.sub(r"<[^>]*>", " ", told), links, unescape(by_itself)


async def test_a_search_goes_on_by_itself_until_something_is_found_or_it_is_stopped(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "ENTRIES_MAX", 3)
    await send(client, *(f"m{number}" for number in range(12)), "wanted")
    page = await opened(client, filter='value = "wanted"')
    text, (go_on,), by_itself = progress_of(page)
    assert "Nothing was found in 3 entries" in text
    assert "15 % of the topic are before this place." in text
    assert not by_itself
    page = (await client.get(TAB + go_on)).text
    text, (stop,), by_itself = progress_of(page)
    assert "Nothing was found in 6 entries" in text
    stopped, (again,), none = progress_of((await client.get(TAB + stop)).text)
    assert "Nothing was found in 6 entries" in stopped  # nothing was read for it
    assert (again, none) == (by_itself, "")
    for entries in (9, 12):
        page = (await client.get(TAB + by_itself)).text
        text, _, by_itself = progress_of(page)
        assert f"Nothing was found in {entries} entries" in text
    page = (await client.get(TAB + by_itself)).text
    assert 'role="status">Nothing was found' not in page
    assert "1 message in" in page
    nothing = await opened(client, filter='value = "none"', position="latest")
    assert "Nothing was found." in nothing


@pytest.mark.parametrize("read", ["-1", "x", "²", "9" * 5000])
async def test_what_was_read_before_is_a_number(client: httpx.AsyncClient, read: str) -> None:
    await send(client, "m")
    page = await opened(client, filter="key = 1", go="stop", read=read, readBytes=read)
    text, _, _ = progress_of(page)
    assert "Nothing was found in 0 entries, 0 B." in text


async def test_a_non_persistent_topic_has_no_messages_to_read(client: httpx.AsyncClient) -> None:
    topic = "non-persistent/public/default/ticks"
    assert (await client.put(f"/admin/v2/{topic}")).is_success
    for query in ({}, {"filter": "key = 1"}, {"go": "stop"}):
        page = await client.get(f"/console/topic/{topic}/messages", params=query)
        assert (page.status_code, 'class="fail"' in page.text) == (200, False)
        assert "A non-persistent topic stores nothing" in page.text
