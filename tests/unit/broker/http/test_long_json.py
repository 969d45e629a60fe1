"""JSON of long values: the same as of short ones, in pieces that are no longer than these."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import StreamingResponse

from magnetar.broker.console import console, local_api
from magnetar.broker.console.admin_api import value_of
from magnetar.broker.console.local_api import LocalApi
from magnetar.broker.http import streamed_answers
from magnetar.broker.http.server.app import create_app
from magnetar.broker.http.streamed_answers import json_pieces, let_go, long_json, long_names
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of

TOPIC = "persistent/public/default/t"
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text(max_size=3)),
    lambda children: (
        st.lists(children, max_size=9) | st.dictionaries(st.text(max_size=3), children, max_size=9)
    ),
    max_leaves=60,
)


@given(VALUES)
async def test_a_long_value_is_encoded_as_a_short_one(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed_answers, "_ELEMENTS", 2)
        patch.setattr(streamed_answers, "_FIELDS_MAX", 3)
        pieces = [piece async for piece in json_pieces(value)]
    assert b"".join(pieces) == orjson.dumps(value)


async def test_pieces_are_short_however_long_the_value_is() -> None:
    consumers = [{"consumerName": f"consumer-{number}"} for number in range(1_000)]
    found = {str(number): {"consumers": consumers[:number]} for number in range(0, 1_000, 100)}
    value = {"msgRateIn": 0.0, "subscriptions": found, "publishers": consumers}
    pieces = [piece async for piece in json_pieces({"partitions": {"a": value, "b": value}})]
    assert orjson.loads(b"".join(pieces)) == {"partitions": {"a": value, "b": value}}
    assert max(map(len, pieces)) < 4_096


def test_a_long_value_is_freed_a_part_at_a_step() -> None:
    """As an explanation of each of 10,000 subscriptions, which is 2 ms in one go."""
    value = {str(number): {"reason": "caught-up"} for number in range(300)}
    assert sum(1 for _ in let_go(value)) == 300
    assert value == {}
    parts = {"msgRateIn": 1.0, "subscriptions": {str(number): value for number in range(3)}}
    assert sum(1 for _ in let_go(parts)) == 3
    assert parts == {"msgRateIn": 1.0, "subscriptions": {}}


@pytest.mark.parametrize("count", [0, 1, 2_000, 2_001, 9_000])
async def test_names_are_encoded_as_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, no piece has more than two thousand."""
    names = [f"persistent://public/default/{n:025}" for n in range(count)]
    dumps = list[int]()

    def noted(value: Any) -> bytes:
        dumps.append(len(value))
        return orjson.dumps(value)

    monkeypatch.setattr(streamed_answers, "orjson", SimpleNamespace(dumps=noted))
    request = cast(Request, SimpleNamespace(scope={"state": {}, "http_version": "1.1"}))
    answer = await long_names(request, names)
    if isinstance(answer, StreamingResponse):
        pieces = [cast(bytes, piece) async for piece in answer.body_iterator]
    else:
        pieces = [bytes(answer.body)]
    assert b"".join(pieces) == orjson.dumps(names)
    assert max(dumps, default=0) <= 2_000
    assert (len(pieces) > 1) is (count == 9_000)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_value_that_others_have_is_not_taken_apart(is_shared: bool) -> None:
    value = {"subscriptions": {str(number): {"msgBacklog": number} for number in range(5)}}
    encoded = orjson.dumps(value)
    request = cast(Request, SimpleNamespace(scope={"state": {}, "http_version": "1.1"}))
    answer = await long_json(request, value, is_shared=is_shared)
    assert bytes(answer.body) == encoded
    assert (orjson.dumps(value) == encoded) is is_shared


async def fill(broker: Broker, subscriptions: int, producers: int) -> None:
    async with client_of(create_app(broker.service), None) as client:
        assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
        for number in range(subscriptions):
            path = f"/admin/v2/{TOPIC}/subscription/a-service-with-a-name-{number}"
            assert (await client.put(path)).is_success
    peer = broker.client(port=5000)
    await peer.receive_one()
    for number in range(1, producers + 1):
        await peer.produce(
            f"persistent://{TOPIC[11:]}", producer_name=f"p{number}", producer_id=number
        )


async def test_who_asks_in_this_process_gets_the_value_that_others_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody encodes it for him, or reads it again."""
    await fill(broker, 3, 2)
    app, read = create_app(broker.service), list[bytes]()

    def noted(status: int, content: bytes, asked: str, request_id: str) -> Any:
        read.append(content)
        return value_of(status, content, asked, request_id)

    monkeypatch.setattr(local_api, "value_of", noted)
    scope = {"type": "http", "app": app, "state": {}, "method": "GET", "headers": []}

    class Visit:
        def __init__(self) -> None:
            self.scope = scope

        async def receive(self) -> Any:
            await asyncio.Event().wait()

    api = LocalApi(Visit())  # type: ignore[arg-type]
    async with client_of(app, None) as client:
        assert (await client.put(f"/admin/v2/{TOPIC}-wide/partitions", json=2)).is_success
        for path in (f"{TOPIC}/stats", f"{TOPIC}-wide/partitioned-stats"):
            found = await api.call("GET", f"/admin/v2/{path}")
            assert found == orjson.loads(orjson.dumps(found)), path
            assert found.keys() == (await client.get(f"/admin/v2/{path}")).json().keys()
        for path in ("namespaces-index", "broker-stats/load-report"):  # of which others have parts
            for _ in range(2):
                found = await api.call("GET", f"/admin/v2/{path}")
                assert found == orjson.loads(orjson.dumps(found)), path
                assert found.keys() == (await client.get(f"/admin/v2/{path}")).json().keys()
    assert read == []


async def test_no_part_of_a_page_is_long_however_many_things_it_shows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which no turn of the loop makes more than some pieces: not a whole table."""
    await fill(broker, 120, 120)
    for number in range(300):
        await broker.service.resources.create_namespace(f"public/space-{number}", ["c"], 4, {})
    longest = dict[str, int]()
    in_turns = console._in_turns

    async def measured(pieces: Any) -> bytes:
        found = list(pieces)
        longest[path] = max(map(len, found))
        return await in_turns(found)

    monkeypatch.setattr(console, "_in_turns", measured)
    async with client_of(create_app(broker.service), None) as client:
        for path in (
            *(f"topic/{TOPIC}/{tab}" for tab in ("subscriptions", "producers", "storage")),
            *(f"topic/{TOPIC}", "tenant/public", "namespaces", "topics", "subscriptions"),
        ):
            page = await client.get(f"/console/{path}")
            assert page.status_code == 200
            assert len(page.text) > 8_192
    assert max(longest.values()) < 4_096, longest
