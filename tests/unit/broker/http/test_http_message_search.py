"""Messages are searched where they are stored: what a filter finds, and where a search goes on."""

import asyncio
import threading
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.http.messaging import message_search, rest_consume
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.http.messaging.message_filter import FilterError, Searched, parse_filter
from magnetar.broker.http.messaging.message_mask import MASK
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import OutgoingMessage, encode_batch
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker

TOPIC = "persistent/public/default/orders"


def searched(value: object = None, **more: Any) -> Searched:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    fields: dict[str, Any] = {
        "key": "c-1",
        "properties": {"region": "eu"},
        "producer": "shop",
        "size": 1500,
        "publish_ms": 1_700_000_000_000,
        "event_ms": 0,
        "sequence": 7,
        "text": lambda: text,
        "json": lambda: value,
    }
    return Searched(**fields | more)


PAYMENT = {"status": "declined", "amount": 1290, "items": [{"id": "a"}], "ok": False, "n": None}
PAYMENT |= {"big": 9007199254740993, "code": "01234", "price": 1234567.5}


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("", True),
        ('key = "c-1"', True),
        ("key = c-2", False),
        ('key != "c-1"', False),
        ("key ~ ^c-", True),
        ("key !~ ^c-", False),
        ('value.status = "declined" and value.amount > 1000', True),
        ("value.status = declined AND value.amount > 1290", False),
        ("value.items.0.id = a", True),
        ("value.items.1.id = a", False),
        ("value.ok = false", True),
        ('value.amount = "1290"', True),
        ("value.missing = 1", False),
        ("value.missing != 1", True),
        ("value.status > 5", False),
        ('value ~ "decl"', True),
        ("size > 1kB", True),
        ("size > 1.5kB", False),
        ("size >= 1.46kiB", True),
        ("property.region = eu and property.x != y", True),
        ("property.region ~ '^(eu|us)$'", True),
        ("producer = shop and sequence = 7", True),
        ("publish > 2023-11-14T00:00:00Z", True),
        ("publish > 2023-11-15", False),
        ("event > 0", False),
        (r'key = "c\-1"', True),
        ("value.n = null", True),
        ("value.n != null", False),
        ("value.missing = null", False),
        ("value.ok = 0", False),
        ("value.big = 9007199254740993", True),
        ("value.big = 9007199254740992", False),
        ("value.code = 01234", True),
        ("value.code = 1234", False),
        ("value.price = 1234567.5", True),
        ('value.price ~ "1234567"', True),
        ("value.amount = 1_290", False),
        ("key = c-2 or key = c-1", True),
        ("key = c-1 OR key = c-2 and size > 1MB", True),
        ("key = c-2 and size > 1 or key = c-1 and size > 1MB", False),
        ("key = c-2 and size > 1 or key = c-1 and size > 1 or key = c-3", True),
        ("key = or or key = c-3", False),
    ],
)
def test_filters(text: str, is_found: bool) -> None:
    assert parse_filter(text)(searched(PAYMENT)) is is_found


@pytest.mark.parametrize(
    "text",
    [
        *("key", "key =", "= 1", "key = a xor key = b", "key = a key = b", "nothing = 1"),
        *("key = a or", "or key = a", "key = a or or key = b", "(key = a)", "key = a and or"),
        *("key.x = 1", "property. = 1", "size > big", "publish > yesterday", "key ~ '('"),
        *('key = "open', "key = a and", " or ".join(["key = a"] * 21), "x" * 2001),
        " and ".join(["key ~ a"] * 6),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(FilterError):
        parse_filter(text)


_FIELDS = st.sampled_from(
    ["key", "value", "value.amount", "value.items.0", "value.0", "value.²", "size", "property.x"]
)
_SIGNS = st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "~", "!~"])
_WORDS = st.sampled_from(["1", "-1.5", "true", "null", "x", '"a b"', "1kB", "2024-01-01", "("])


@given(st.lists(st.tuples(_FIELDS, _SIGNS, _WORDS), max_size=4))
def test_any_comparison_of_any_value_has_an_answer(terms: list[tuple[str, str, str]]) -> None:
    try:
        found = parse_filter(" or ".join(" ".join(term) for term in terms))
    except FilterError:
        return
    deep = orjson.loads("[" * 1_000 + "]" * 1_000)
    values: tuple[Any, ...] = (PAYMENT, "text", None, 5, [1, "a"], {"amount": [{}]})
    fields = [searched(value) for value in values]
    for each in (*fields, searched("", json=lambda: deep), searched("", json=lambda: [deep])):
        assert isinstance(found(each), bool)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        found = parse_filter(text)
    except FilterError:
        return
    assert isinstance(found(searched(PAYMENT)), bool)


def test_a_filter_has_no_code_in_it() -> None:
    """A pattern that others need exponential time for is RE2's, and fields reach into JSON only."""
    found = parse_filter('value ~ "(a+)+$"')
    assert found(searched("a" * 5000 + "!")) is False
    assert parse_filter("value.__class__ = x")(searched({"a": 1})) is False
    (term,) = parse_filter(f"value ~ '{'(' * 500}{')' * 500}'")._terms
    assert term.pattern.groups == 0  # else a page of messages takes a minute


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


async def publish(client: httpx.AsyncClient, *payloads: str, **fields: Any) -> None:
    body = {"producerName": "p", "messages": [{"payload": each, **fields} for each in payloads]}
    assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success


async def search(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get(f"/admin/v2/{TOPIC}/messages", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_all_messages_page_by_page_and_no_cursor_moves(client: httpx.AsyncClient) -> None:
    assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
    assert (await client.put(f"/admin/v2/{TOPIC}/subscription/s")).is_success
    for number in range(7):
        await publish(client, f'{{"n":{number}}}', key="even" if number % 2 == 0 else "odd")
    before = (await client.get(f"/admin/v2/{TOPIC}/internalStats")).json()["cursors"]
    texts: list[str] = []
    position = "earliest"
    while position:
        page = await search(client, position=position, limit=3)
        texts += [each["payload"] for each in page["messages"]]
        position = page["next"]
    assert texts == [f'{{"n":{number}}}' for number in range(7)]
    odd = await search(client, filter="key = odd and value.n > 1")
    assert [each["payload"] for each in odd["messages"]] == ['{"n":3}', '{"n":5}']
    assert (odd["next"], odd["entriesRead"]) == (None, 7)
    last = await search(client, position="latest", limit=2)
    assert [each["payload"] for each in last["messages"]] == ['{"n":5}', '{"n":6}']
    assert [each["payload"] for each in (await search(client, subscription="s"))["messages"]] == [
        *texts,
    ]
    first = (await search(client, limit=1))["messages"][0]
    since = await search(client, timestamp=first["publishTime"])
    assert len(since["messages"]) == 7
    after = (await client.get(f"/admin/v2/{TOPIC}/internalStats")).json()["cursors"]
    assert after == before


@pytest.fixture
async def batches(broker: Broker, client: httpx.AsyncClient) -> None:
    """Five entries of 100 messages, ``m0`` to ``m499``."""
    name = TopicName.parse("persistent://public/default/orders")
    producer = await LocalProducer.open(
        broker.service, name, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    for first in range(0, 500, 100):
        stored = asyncio.get_running_loop().create_future()
        messages = [OutgoingMessage(b"m%d" % n, n) for n in range(first, first + 100)]
        entry = encode_batch("p", messages, 5, pb.ZSTD)
        producer.publish([entry], lambda *_, stored=stored: stored.set_result(None))
        await stored
    producer.close()


async def test_batches_page_by_page(client: httpx.AsyncClient, batches: None) -> None:
    """A page may end within one; the next one goes on there."""
    texts: list[str] = []
    position = "earliest"
    while position:
        page = await search(client, position=position, limit=30)
        assert len(page["messages"]) <= 30
        texts += [each["payload"] for each in page["messages"]]
        position = page["next"]
    assert texts == [f"m{number}" for number in range(500)]


@pytest.mark.parametrize("limit", [1, 30, 150, 500])
async def test_the_last_ones_are_the_last(
    client: httpx.AsyncClient, batches: None, limit: int
) -> None:
    page = await search(client, position="latest", limit=limit)
    expected = [f"m{number}" for number in range(500 - limit, 500)]
    assert [each["payload"] for each in page["messages"]] == expected
    found = await search(client, position="latest", limit=30, filter="sequence = 499")
    assert [each["payload"] for each in found["messages"]] == ["m499"]


@pytest.mark.parametrize("limit", [1, 30, 150, 500])
async def test_all_messages_page_by_page_backwards(
    client: httpx.AsyncClient, batches: None, limit: int
) -> None:
    texts: list[str] = []
    asked = {"position": "latest"}
    while asked:
        page = await search(client, **asked, limit=limit)
        texts[:0] = [each["payload"] for each in page["messages"]]
        assert len(page["messages"]) <= limit
        asked = {"before": page["previous"]} if page["previous"] else {}
    assert texts == [f"m{number}" for number in range(500)]


async def test_a_page_in_front_of_a_message_has_what_the_filter_finds_there(
    client: httpx.AsyncClient,
) -> None:
    await publish(client, *(f"m{number}" for number in range(9)))
    ids = [each["messageId"] for each in (await search(client))["messages"]]
    page = await search(client, before=ids[6], limit=4, filter="value ~ [135]")
    assert [each["payload"] for each in page["messages"]] == ["m3", "m5"]
    assert page["previous"] == ids[2]
    page = await search(client, before=ids[2], limit=4, filter="value ~ [135]")
    assert [each["payload"] for each in page["messages"]] == ["m1"]
    assert page["previous"] is None
    for first in ("earliest", ids[0]):
        assert (await search(client, before=first))["messages"] == []
    forwards = await search(client, position=ids[3], limit=2)
    assert (forwards["previous"], forwards["next"]) == (ids[3], f"{ids[4]}:1")


async def test_a_search_that_takes_too_long_goes_on_where_it_stopped(
    client: httpx.AsyncClient, batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "SECONDS_MAX", -1.0)
    found: list[dict[str, Any]] = []
    position, calls = "earliest", 0
    while position and calls < 600:
        page = await search(client, position=position, filter="value ~ m4.9", limit=500)
        found += page["messages"]
        position, calls = page["next"], calls + 1
    assert [each["payload"] for each in found] == [f"m4{n}9" for n in range(10)]
    assert calls > 100


async def test_what_a_message_has(client: httpx.AsyncClient) -> None:
    await publish(client, "héllo", key="k", properties={"a": "b"}, eventTime=5)
    (found,) = (await search(client))["messages"]
    assert found["messageId"].count(":") == 1
    assert (found["payload"], found["encoding"]) == ("héllo", "json")
    assert (found["key"], found["properties"], found["eventTime"]) == ("k", {"a": "b"}, 5)
    assert (found["size"], found["compression"], found["producerName"]) == (6, "NONE", "p")
    (bare,) = (await search(client, payload="none"))["messages"]
    assert "payload" not in bare


async def test_a_long_value_is_cut_between_letters(client: httpx.AsyncClient) -> None:
    text = "x" + "é" * 40_000
    await publish(client, text)
    (cut,) = (await search(client))["messages"]
    assert cut["isCut"]
    assert cut["size"] == len(text.encode())
    assert text.startswith(cut["payload"])
    assert len(cut["payload"].encode()) >= message_search._PAYLOAD_BYTES - 2
    (whole,) = (await search(client, payload="whole"))["messages"]
    assert whole["payload"] == text


async def test_a_whole_value_is_written_off_the_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five megabytes took the loop eleven milliseconds."""
    threads: list[int] = []
    described = rest_consume.described

    def noted(*args: Any, **options: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return described(*args, **options)

    monkeypatch.setattr(message_search, "described", noted)
    await publish(client, "x")
    assert (await search(client, payload="whole"))["messages"][0]["payload"] == "x"
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_search_is_cut_where_it_has_read_enough(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "ENTRIES_MAX", 4)
    monkeypatch.setattr(message_search, "_ENTRIES_AT_ONCE", 2)
    for number in range(10):
        await publish(client, str(number))
    found: list[dict[str, Any]] = []
    position, calls = "earliest", 0
    while position:
        page = await search(client, position=position, filter="value = 9")
        found += page["messages"]
        position, calls = page["next"], calls + 1
        assert page["entriesRead"] <= 4
    assert [each["payload"] for each in found] == ["9"]
    assert calls == 3


async def test_refusals(client: httpx.AsyncClient) -> None:
    await publish(client, "x")
    path = f"/admin/v2/{TOPIC}/messages"
    for query, status in (
        ({"filter": "key >"}, 400),
        ({"position": "first"}, 400),
        ({"position": "1:-1"}, 400),
        ({"subscription": "nobody"}, 404),
        ({"limit": "0"}, 400),
    ):
        answer = await client.get(path, params=query)
        assert answer.status_code in (status, 422), query
        assert answer.json()["reason"]
    assert (await client.get(path.replace("orders", "none"))).status_code == 404


async def test_a_value_as_it_was_sent(client: httpx.AsyncClient) -> None:
    text = "x" + "é" * 40_000
    await publish(client, text)
    (cut,) = (await search(client, raw=True))["messages"]
    assert (cut["isCut"], cut["encoding"]) == (True, "base64")
    assert b64decode(cut["payload"]) == text.encode()[: message_search._PAYLOAD_BYTES]
    (whole,) = (await search(client, raw=True, payload="whole"))["messages"]
    assert b64decode(whole["payload"]).decode() == text
    assert whole["entrySize"] > whole["size"] == len(text.encode())
    (hidden,) = (await search(client, raw=True, payload="whole", masked="pin"))["messages"]
    assert (hidden["payload"], hidden["isMasked"]) == (MASK, True)
    (none,) = (await search(client, raw=True, payload="none"))["messages"]
    assert "payload" not in none
