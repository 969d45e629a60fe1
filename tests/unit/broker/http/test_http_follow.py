"""New messages of a topic as they are stored: all that a filter finds, bounded, nothing left."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import urlencode

import httpx
import orjson
import pytest

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging import message_follow, message_search
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.http.messaging.message_filter import parse_filter
from magnetar.broker.http.messaging.message_follow import (
    BYTES_PER_S,
    FOLLOWERS_MAX,
    MESSAGES_PER_S,
    Followers,
    FollowStep,
    Pace,
    follow_steps,
)
from magnetar.broker.http.messaging.message_mask import MASK
from magnetar.broker.http.messaging.message_search import MessageSearch, Place, Search
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol.messages import OutgoingMessage, encode_batch
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.persistent_topic import PersistentTopic
from tests.asgi_client import AsgiClient
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of
from tests.unit.managed_ledger.cluster import eventually

NAME = TopicName.parse("persistent://public/default/orders")
TOPIC = "persistent/public/default/orders"
PATH = f"/admin/v2/{TOPIC}/messages/follow"
WAIT_S = 30
ENDED = FollowStep(Place((-9, -9)))


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
        yield client


async def publish(http: httpx.AsyncClient, *texts: str, topic: str = TOPIC) -> None:
    messages = [{"payload": each, "key": each[:1]} for each in texts]
    answer = await http.post(f"/topics/{topic}", json={"messages": messages})
    assert answer.is_success, answer.text


async def loaded(broker: Broker) -> PersistentTopic:
    topic = await broker.service.loader.load(NAME, create=False)
    assert isinstance(topic, PersistentTopic)
    return topic


class Following:
    """A follower, from now on or a place on."""

    def __init__(
        self,
        broker: Broker,
        http: httpx.AsyncClient,
        topic: PersistentTopic,
        start: Place | None = None,
        text: str = "",
        alive_s: float = WAIT_S,
    ) -> None:
        schemas = http._transport.app.state.rest_publishers.schemas  # type: ignore[attr-defined]
        end = topic.ledger.offsets.next_position(topic.ledger.last_confirmed)
        search = Search(start or Place(end), MESSAGES_PER_S, parse_filter(text))
        self.follower = Followers(broker.service).open(topic, "me", None)
        searching = MessageSearch(schemas, NAME, broker.service.config.max_message_size)
        self._steps = follow_steps(self.follower, searching, search, alive_s)

    async def step(self) -> FollowStep | None:
        step = await asyncio.wait_for(anext(self._steps, ENDED), WAIT_S)
        return step and replace(step, messages=orjson.loads(orjson.dumps(step.messages)))

    async def texts(self, count: int) -> tuple[list[str], Place]:
        """Of the next messages, and where to go on."""
        found: list[str] = []
        while True:
            step = await self.step()
            assert step is not None
            found += [each["payload"] for each in step.messages]
            if len(found) >= count:
                return found, step.next

    async def ended(self) -> None:
        while await self.step() != ENDED:
            pass

    async def close(self) -> None:
        await self._steps.aclose()
        self.follower.close()


async def test_what_is_stored_from_now_on(broker: Broker, http: httpx.AsyncClient) -> None:
    await publish(http, "old")
    topic = await loaded(broker)
    following = Following(broker, http, topic)
    begin = await following.step()
    assert begin is not None
    assert (begin.messages, begin.found) == ([], 0)
    await publish(http, "a", "b")
    assert (await following.texts(2))[0] == ["a", "b"]
    await publish(http, "c")
    assert (await following.texts(1))[0] == ["c"]
    assert not topic.subscriptions
    assert not topic.ledger.cursors
    await following.close()
    assert topic.watchers == ()


async def test_the_filter_is_the_brokers(broker: Broker, http: httpx.AsyncClient) -> None:
    topic = await loaded_after(broker, http, "x")
    following = Following(broker, http, topic, text="key = b")
    await publish(http, *(f"{'ab'[n % 2]}{n}" for n in range(100)))
    found, _ = await following.texts(50)
    assert found == [f"b{n}" for n in range(1, 100, 2)]
    await following.close()


async def loaded_after(broker: Broker, http: httpx.AsyncClient, *texts: str) -> PersistentTopic:
    await publish(http, *texts)
    return await loaded(broker)


async def test_nothing_is_lost_and_nothing_comes_twice_after_a_pause(
    broker: Broker, http: httpx.AsyncClient
) -> None:
    topic = await loaded_after(broker, http, "x")
    producer = await LocalProducer.open(
        broker.service, NAME, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    place, seen, sent = None, list[str](), list[str]()
    for turn in range(6):
        following = Following(broker, http, topic, place)
        await following.step()  # it begins here
        names = [f"{turn}.{n}" for n in range(3)]
        sent += names
        messages = [OutgoingMessage(each.encode(), n) for n, each in enumerate(names)]
        producer.publish([encode_batch("p", messages, 5)], lambda *_: None)
        found, place = await following.texts(3)
        seen += found
        await following.close()
        sent.append(f"paused {turn}")
        await publish(http, sent[-1])
    following = Following(broker, http, topic, place)
    seen += (await following.texts(1))[0]
    assert seen == sent
    await following.close()
    first = await http.get(f"/admin/v2/{TOPIC}/messages")
    batch = [each for each in first.json()["messages"] if "batchIndex" in each]
    ledger, entry = map(int, batch[0]["messageId"].split(":"))
    following = Following(broker, http, topic, Place((ledger, entry), 2))
    assert (await following.texts(1))[0][0] == "0.2"
    await following.close()


async def test_of_too_many_the_last_ones_are_shown(broker: Broker, http: httpx.AsyncClient) -> None:
    topic = await loaded_after(broker, http, "x")
    following = Following(broker, http, topic)
    await following.step()
    await publish(http, *map(str, range(1000)))
    step = await following.step()
    assert step is not None
    assert (step.found, len(step.messages)) == (1000, MESSAGES_PER_S)
    assert step.messages[-1]["payload"] == "999"
    await publish(http, "a", "b")  # when the second is over
    assert (await following.texts(2))[0] == ["a", "b"]
    await following.close()


async def test_of_large_ones_a_mebibyte_is_shown(broker: Broker, http: httpx.AsyncClient) -> None:
    topic = await loaded_after(broker, http, "x")
    following = Following(broker, http, topic)
    await following.step()
    await publish(http, *("x" * 400_000 for _ in range(5)))
    step = await following.step()
    assert step is not None
    assert (step.found, len(step.messages)) == (5, 2)
    await following.close()


async def test_who_cannot_keep_up_goes_on_at_the_end(
    broker: Broker, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "ENTRIES_MAX", 10)
    topic = await loaded_after(broker, http, "x")
    following = Following(broker, http, topic)
    await following.step()
    await publish(http, *map(str, range(50)))
    step = await following.step()
    assert step is not None
    assert (step.found, step.skipped) == (10, 40)
    await publish(http, "next")
    assert (await following.texts(1))[0] == ["next"]
    await following.close()


async def test_a_sign_of_life(broker: Broker, http: httpx.AsyncClient) -> None:
    following = Following(broker, http, await loaded(broker), alive_s=0.01)
    await following.step()
    assert [await following.step() for _ in range(4)][1:] == [None] * 3
    await following.close()


async def test_a_topic_that_closes_ends_it(broker: Broker, http: httpx.AsyncClient) -> None:
    following = Following(broker, http, await loaded(broker), alive_s=9 * WAIT_S)
    await following.step()
    await publish(http, "a")
    await following.texts(1)
    waiting = asyncio.ensure_future(following.step())
    await asyncio.sleep(0)
    assert (await http.put(f"/admin/v2/{TOPIC}/unload")).is_success
    assert await waiting == ENDED


async def test_it_ends_after_some_minutes(
    broker: Broker, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_follow, "SECONDS_MAX", 0.0)
    following = Following(broker, http, await loaded(broker))
    await following.ended()


async def test_there_are_at_most_so_many(broker: Broker, http: httpx.AsyncClient) -> None:
    topic, followers = await loaded(broker), Followers(broker.service)
    half = [followers.open(topic, "a", None) for _ in range(FOLLOWERS_MAX // 2)]
    with pytest.raises(ApiError, match="You follow 16 topics"):
        followers.open(topic, "a", None)
    others = [followers.open(topic, f"b{n}", None) for n in range(FOLLOWERS_MAX // 2)]
    with pytest.raises(ApiError, match="32 clients follow"):
        followers.open(topic, "c", None)
    half[0].close()
    half[0].close()
    others.append(followers.open(topic, "a", None))
    followers.close_all()
    assert len(followers) == 0
    assert topic.watchers == ()
    assert all(each.closed for each in (*half, *others))


def test_pace() -> None:
    pace = Pace(10.0)
    assert pace.wait_s(10.2) == 0
    pace.took(MESSAGES_PER_S - 1, BYTES_PER_S - 5)
    assert pace.room(10.2) == (1, 5)
    pace.took(1, 0)
    assert pace.wait_s(10.25) == 0.75
    assert pace.room(10.999) == (0, 5)
    assert pace.room(11.0) == (MESSAGES_PER_S, BYTES_PER_S)
    pace.took(MESSAGES_PER_S, 0)
    assert pace.wait_s(11.0) == 1.0
    assert pace.wait_s(12.0) == 0
    pace.took(1, 3 * BYTES_PER_S)
    assert pace.wait_s(12.5) == 0.5


@pytest.mark.parametrize("path", [PATH, f"/console/topic/{TOPIC}/messages/follow"])
async def test_a_client_that_leaves_leaves_nothing(broker: Broker, path: str) -> None:
    app = create_app(broker.service)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        topic = await loaded_after(broker, http, "x")
        client = AsgiClient(app, path, "filter=key%20%3D%20b")
        assert (await client.read())["status"] == 200
        first = json.loads(await client.piece())
        assert (first["found"], first["shown"]) == (0, 0)
        assert len(app.state.followers) == 1
        await publish(http, "a1", "b<1>")
        line, counts = (await client.piece()).splitlines()
        assert json.loads(line)["payload"] == "b<1>"
        assert json.loads(counts)["found"] == 1
        await client.leave()
        assert len(app.state.followers) == 0
        assert topic.watchers == ()
        before = asyncio.all_tasks()
        client = AsgiClient(app, path)
        await client.leave()  # before anything was sent
        assert len(app.state.followers) == 0
        assert asyncio.all_tasks() - before == set()


async def test_server_sent_events(broker: Broker) -> None:
    app = create_app(broker.service)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await publish(http, "x")
        client = AsgiClient(app, PATH, accept="text/event-stream")
        headers = dict((await client.read())["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert (await client.piece()).startswith("id: ")
        await publish(http, "one\ntwo")
        data, event, empty = (await client.piece()).split("\n\n")
        assert json.loads(data.removeprefix("data: "))["payload"] == "one\ntwo"
        place = event.split("\n")[0].removeprefix("id: ")
        assert empty == ""
        await client.leave()
        await publish(http, "meanwhile")
        scope_client = AsgiClient(app, PATH, f"position={place}")
        await scope_client.read()
        await scope_client.piece()
        assert "meanwhile" in await scope_client.piece()
        await scope_client.leave()


@pytest.mark.parametrize(
    "text", ["", 'value !~ "4111"', "value.card != 4111", "property.card !~ ^4"]
)
@pytest.mark.parametrize("payload", ["cut", "whole", "none"])
@pytest.mark.parametrize("number", ["4111", "9222"])
async def test_masked_values_are_in_no_message_and_tell_a_filter_nothing(
    broker: Broker, text: str, payload: str, number: str
) -> None:
    app = create_app(broker.service)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        await publish(http, "x")
        query = urlencode({"filter": text, "masked": "card", "payload": payload})
        client = AsgiClient(app, PATH, query)
        assert (await client.read())["status"] == 200
        await client.piece()
        values = [{"card": number, "b": 1}, {"a": {"card": number}}, {"card": [number * 20_000]}]
        messages = [
            {"payload": json.dumps(each), "properties": {"card": number}} for each in values
        ]
        assert (await http.post(f"/topics/{TOPIC}", json={"messages": messages})).is_success
        *lines, counts = (await client.piece()).splitlines()
        drawn = r'"producerName":"[^"]*"'  # with digits by chance
        assert number not in re.sub(drawn, "", "".join(lines))
        assert json.loads(counts)["found"] == 3
        assert [json.loads(line)["properties"] for line in lines] == [{"card": MASK}] * len(lines)
        await client.leave()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{PATH}?filter=%3D", 400),
        (f"{PATH}?position=yesterday", 400),
        (f"{PATH}?payload=hex", 400),
        (PATH.replace("orders", "nothing"), 404),
        (PATH.replace("/persistent/", "/non-persistent/"), 405),
    ],
)
async def test_what_is_refused(http: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await http.get(path)
    assert answer.status_code == status, answer.text
    page = path.replace("/admin/v2/", "/console/topic/")
    if "payload" not in path:
        assert (await http.get(page)).status_code == status


async def test_values_that_are_withheld() -> None:
    for contents, is_shown in (("metadata", True), ("off", False)):
        broker = await Broker(web_console_messages=contents).start()
        app = create_app(broker.service)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await publish(http, "x")
            path = f"/console/topic/{TOPIC}/messages/follow"
            refused = await http.get(path, params={"filter": 'value ~ "s"'})
            assert refused.status_code == 403
            client = AsgiClient(app, path)
            assert (await client.read())["status"] == (200 if is_shown else 403)
            if is_shown:
                await client.piece()
                await publish(http, "secret")
                text = await client.piece()
                assert '"key":"s"' in text
                assert "secret" not in text
            await client.leave()
        await broker.close()


async def test_a_right_that_is_taken_away_ends_it() -> None:
    topic = "persistent/t1/ns/orders"
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "admin") as admin:
            await publish(admin, "x", topic=topic)
            path = "/admin/v2/namespaces/t1/ns/permissions/joe"
            assert (await admin.post(path, json=["consume"])).is_success
            async with client_of(app, "joe") as joe:
                reading = asyncio.create_task(joe.get(f"/admin/v2/{topic}/messages/follow"))
                await eventually(lambda: len(app.state.followers) == 1)
                assert (await admin.delete(path)).is_success
                assert (await asyncio.wait_for(reading, WAIT_S)).status_code == 200
                assert len(app.state.followers) == 0
                again = await joe.get(f"/admin/v2/{topic}/messages/follow")
                assert again.status_code == 401
