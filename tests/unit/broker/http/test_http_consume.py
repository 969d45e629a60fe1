"""REST consume by schema, and streams: NDJSON, server-sent events, windows, acknowledgement."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import httpx
import orjson
import pytest

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.consumed_message import ConsumedMessage
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.http.messaging.rest_consume import (
    AckResults,
    RestSession,
    RestSessions,
    SessionOptions,
    message_of,
    parse_message_id_text,
    parse_token,
)
from magnetar.broker.http.messaging.rest_produce import RestPublishers
from magnetar.broker.http.messaging.value_schemas import (
    LATE,
    RAW,
    STRING,
    DecodedValue,
    ValueSchemas,
)
from magnetar.broker.http.server.app import create_app
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import (
    HEAVY_BYTES,
    Message,
    OutgoingMessage,
    encode_batch,
    encode_single,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter
from magnetar.broker.schema.compatibility import Strategy
from magnetar.broker.schema.definition import SchemaDefinition, version_bytes
from magnetar.broker.schema.registry import SchemaRules
from magnetar.broker.subscription.consumer import SHARED
from magnetar.broker.topic.persistent_topic import PersistentTopic
from tests.manual_clock import ManualLoop
from tests.unit.broker.doubles import Broker
from tests.unit.broker.schema.builders import avro, key_value, optional, plain, record
from tests.unit.managed_ledger.cluster import eventually

NAME = TopicName.parse("persistent://public/default/orders")
OPTIONS = SessionOptions(SHARED, False, 60_000)
ORDER = record("a", optional("b"))


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
async def session(broker: Broker) -> AsyncIterator[RestSession]:
    sessions = RestSessions(broker.service)
    yield await sessions.get_or_open(NAME, "s", "", OPTIONS, "127.0.0.1:1")
    sessions.close_all()


def message(payload: bytes, stamp: bytes, key: str | None = None) -> Message:
    return Message(-1, 0, payload, key, {}, 5, 0, 0, "p", None, stamp, key is not None)


async def register(broker: Broker, *definitions: SchemaDefinition) -> None:
    rules = SchemaRules(Strategy.ALWAYS_COMPATIBLE)
    for definition in definitions:
        await broker.service.schemas.register(NAME, definition, rules)


async def decoded(schemas: ValueSchemas, messages: list[Message]) -> list[DecodedValue | None]:
    """As ``schemas.decode``, with values read from the JSON that they are."""
    return [
        each and replace(each, value=orjson.loads(orjson.dumps(each.value)))
        for each in await schemas.decode(NAME, messages)
    ]


async def test_values_by_their_versions(broker: Broker) -> None:
    separated = SchemaDefinition(
        "KEY_VALUE",
        key_value(plain("INT8"), plain("STRING")).data,
        {
            "key.schema.type": "INT8",
            "value.schema.type": "STRING",
            "kv.encoding.type": "SEPARATED",
        },
    )
    await register(broker, avro(ORDER), plain("INT16"), separated, avro(ORDER, "PROTOBUF"))
    schemas = ValueSchemas(broker.service.schemas)
    encrypted = message(b"\x02\x00", version_bytes(0))
    encrypted.encryption = pb.MessageMetadata()
    found = await decoded(
        schemas,
        [
            message(b"\x02\x02\x02x", version_bytes(0)),
            message(b"\x00\x05", version_bytes(1)),
            message(b"v", version_bytes(2), "Bw=="),
            message(b"\xff", version_bytes(0)),
            message(b"x", version_bytes(3)),
            message(b"x", version_bytes(9)),
            message(b"x", b"odd"),
            message(b"x", b""),
            message(b"v", version_bytes(2), "*"),
            encrypted,
        ],
    )
    assert found[0] == DecodedValue("AVRO", {"a": 1, "b": "x"})
    assert found[1] == DecodedValue("INT16", 5)
    assert found[2] == DecodedValue("KEY_VALUE", {"key": 7, "value": "v"})
    errors = [each.error for each in found[3:7] if each is not None]
    assert errors[0].startswith("not what this AVRO schema writes")
    assert errors[1:] == [
        "values of its schema aren't shown",
        "its schema isn't known",
        "its schema isn't known",
    ]
    assert found[7] is None
    assert found[8] is not None
    assert found[8].error
    assert found[9] is None
    many = [message(b"\x02\x02\x02x", version_bytes(0))] * 20_000
    assert set(map(str, await decoded(schemas, many))) == {str(found[0])}


async def test_a_value_that_json_can_t_hold_hurts_no_other(broker: Broker) -> None:
    """Ten bytes of AVRO, or JSON 255 levels deep, made the answer 500 for their batch, for ever."""
    await register(broker, avro("long"), avro(record(), "JSON"), plain("INT16"))
    deep = b"[" * 254 + b"]" * 254
    payloads = [(b"\xff" * 9 + b"\x7f", 0), (deep, 1), (b"\x00\x05", 2)]
    messages = [message(payload, version_bytes(version)) for payload, version in payloads]
    found = await ValueSchemas(broker.service.schemas).decode(NAME, messages)
    shown = [
        message_of(ConsumedMessage(-1, 1, 2, each, 0), as_base64=False, decoded=value)
        for each, value in zip(messages, found, strict=True)
    ]
    answer = orjson.loads(orjson.dumps(shown))
    assert ["decodeError" in each for each in answer] == [True, True, False]
    assert answer[2]["payload"] == 5


async def test_a_call_s_values_end_with_its_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(broker, avro(ORDER))
    monkeypatch.setattr("magnetar.broker.http.messaging.value_schemas._CALL_S", 0.0)
    found = await decoded(
        ValueSchemas(broker.service.schemas), [message(b"\x00\x00", version_bytes(0))]
    )
    assert found == [DecodedValue("AVRO", error=LATE)]


def test_a_message_shows_its_schema() -> None:
    delivery = ConsumedMessage(-1, 1, 2, message(b"\x02\x00", version_bytes(3), "Bw=="), 0)
    shown = message_of(delivery, as_base64=False, decoded=DecodedValue("AVRO", {"a": 1}))
    assert (shown["payload"], shown["encoding"]) == ({"a": 1}, "json")
    assert (shown["schemaVersion"], shown["schemaType"]) == (3, "AVRO")
    assert (shown["key"], shown["keyEncoding"]) == ("Bw==", "base64")
    shown = message_of(delivery, as_base64=True, decoded=DecodedValue("", error="why"))
    assert (shown["payload"], shown["encoding"], shown["decodeError"]) == ("AgA=", "base64", "why")
    assert "schemaType" not in shown
    delivery = ConsumedMessage(-1, 1, 2, message(b"x", b""), 0)
    assert "schemaVersion" not in message_of(delivery, as_base64=False)


async def test_decode_over_http(http: httpx.AsyncClient) -> None:
    path = "/topics/persistent/public/default/orders"
    await http.put(f"{path}/subscription/s/session")
    schema = base64.b64encode(json.dumps(ORDER).encode()).decode()
    value_schema = json.dumps({"type": "AVRO", "schema": schema})
    body = {"messages": [{"payload": '{"a": 4}'}], "valueSchema": value_schema}
    assert (await http.post(path, json=body)).status_code == 200
    answer = await http.get(f"{path}/subscription/s/messages?decode=true")
    (shown,) = answer.json()["messages"]
    assert shown["payload"] == {"a": 4, "b": None}
    assert (shown["schemaType"], shown["schemaVersion"]) == ("AVRO", 0)
    await http.delete(f"{path}/subscription/s/session")


# --- streams


async def publish(broker: Broker, *texts: str) -> None:
    messages = [OutgoingMessage(text.encode(), -1) for text in texts]
    await RestPublishers(broker.service).produce(NAME, "", messages, STRING, 0)


def texts(deliveries: list[ConsumedMessage]) -> list[str]:
    return [delivery.message.payload.decode() for delivery in deliveries]


async def batch(stream: AsyncIterator[list[ConsumedMessage]], count: int) -> list[ConsumedMessage]:
    """The next ``count`` messages, signs of life left out."""
    found: list[ConsumedMessage] = []
    while len(found) < count:
        found += await asyncio.wait_for(anext(stream), 30)
    return found


async def test_the_window_bounds_a_stream(broker: Broker, session: RestSession) -> None:
    stream = session.stream(2, alive_s=0.05, auto_ack=False)
    await publish(broker, "1", "2", "3", "4")
    first = await batch(stream, 2)
    assert texts(first) == ["1", "2"]
    assert await asyncio.wait_for(anext(stream), 30) == []  # a sign of life, and no message
    tokens = [message_of(each, as_base64=False)["token"] for each in first]
    session.acknowledge([parse_token(tokens[0])], negative=False)
    assert texts(await batch(stream, 1)) == ["3"]
    session.acknowledge([parse_token(each) for each in tokens[1:]], negative=True)
    again = await batch(stream, 1)
    assert (texts(again)[0] in "24", session.busy) == (True, True)
    await stream.aclose()
    assert not session.busy


async def test_auto_ack(broker: Broker, session: RestSession) -> None:
    stream = session.stream(2, alive_s=0.05, auto_ack=True)
    await publish(broker, *"12345")
    assert texts(await batch(stream, 5)) == list("12345")
    assert await asyncio.wait_for(anext(stream), 30) == []
    topic = await broker.service.loader.load(NAME, create=False)
    assert topic.stats()["subscriptions"]["s"]["msgBacklog"] == 0
    await stream.aclose()


async def test_what_a_leaving_client_has_not_got_comes_again(
    broker: Broker, session: RestSession
) -> None:
    stream = session.stream(10, alive_s=0.05, auto_ack=True)
    await publish(broker, "1")
    assert texts(await batch(stream, 1)) == ["1"]
    await stream.aclose()  # in the middle of writing it
    again = await session.poll(1, 30_000)
    assert [(each.message.payload, each.redelivery_count) for each in again] == [(b"1", 1)]


async def test_a_closed_session_ends_its_stream(session: RestSession) -> None:
    stream = session.stream(10, alive_s=30, auto_ack=False)
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    session.close()
    assert await asyncio.wait_for(waiting, 30) is None


@pytest.mark.parametrize(
    ("query", "status"),
    [("window=0", 400), ("window=10001", 400), ("autoAck=maybe", 400), ("payload=hex", 400)],
)
async def test_bad_parameters(http: httpx.AsyncClient, query: str, status: int) -> None:
    path = "/topics/persistent/public/default/orders/subscription/s/stream"
    answer = await http.get(f"{path}?{query}")
    assert answer.status_code == status, answer.text


async def test_acknowledgement_by_message_id(broker: Broker, session: RestSession) -> None:
    name = TopicName.parse("persistent://public/default/orders")
    producer = await LocalProducer.open(
        broker.service, name, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    batch_entry = encode_batch("p", [OutgoingMessage(b"%d" % n, n) for n in range(2)], 5)
    single = encode_single("p", OutgoingMessage(b"2", 2), 5)
    producer.publish([batch_entry, single], _stored)
    deliveries: list[ConsumedMessage] = []
    while len(deliveries) < 3:
        deliveries += await session.poll(3 - len(deliveries), 30_000)
    ids = [message_of(each, as_base64=False)["messageId"] for each in deliveries]
    assert ids[1].endswith(":-1:1")
    keys = [parse_message_id_text(each) for each in ids]
    assert session.acknowledge(keys[:1], negative=True).done == [0]
    again = await session.poll(1, 30_000)
    assert [each.message.payload for each in again] == [b"0"]
    named = [*keys, keys[0], *map(parse_message_id_text, ("99:0:-1", "99:0:-1:0"))]
    settled = session.acknowledge(named, negative=False)
    assert settled == AckResults(done=[0, 1, 2], already=[3], unknown=[4, 5])
    assert session.acknowledge(keys[2:], negative=False).already == [0]
    await session.stored()
    topic = await broker.service.loader.load(name, create=False)
    assert isinstance(topic, PersistentTopic)
    for _ in range(3000):
        if topic.stats()["subscriptions"]["s"]["msgBacklog"] == 0:
            break
        await asyncio.sleep(0.01)
    assert topic.stats()["subscriptions"]["s"]["msgBacklog"] == 0
    assert session.acknowledge(keys, negative=False).already == [0, 1, 2]
    producer.publish([batch_entry], _stored)
    for _ in range(3000):
        if (last := topic.ledger.last_confirmed) > keys[2][1:3]:
            break
        await asyncio.sleep(0.01)
    # It exists, but how large its batch is isn't known before it has been delivered.
    with pytest.raises(ApiError, match="need their token"):
        session.acknowledge([(-1, *last, 1, -1)], negative=False)
    producer.close()


async def test_a_part_of_a_batch_is_acknowledged_once(broker: Broker, session: RestSession) -> None:
    name = TopicName.parse("persistent://public/default/orders")
    producer = await LocalProducer.open(
        broker.service, name, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    messages = [OutgoingMessage(b"%d" % n, n) for n in range(3)]
    producer.publish([encode_batch("p", messages, 5)], _stored)
    deliveries: list[ConsumedMessage] = []
    while len(deliveries) < 3:
        deliveries += await session.poll(3 - len(deliveries), 30_000)
    keys = [delivery.key for delivery in deliveries]
    assert session.acknowledge([keys[1]], negative=False).done == [0]
    assert session.acknowledge(keys[:2], negative=False) == AckResults([0], [1], [])
    beyond = (*keys[0][:3], 3, 3)
    assert session.acknowledge([beyond, keys[2]], negative=False) == AckResults([1], [], [0])
    assert session.acknowledge(keys, negative=True).already == [0, 1, 2]
    producer.close()


async def test_an_answer_names_what_there_was_not(http: httpx.AsyncClient) -> None:
    base = "/topics/persistent/public/default/settled/subscription/s"
    body = {"messageIds": ["5:5:-1"]}
    for path in (f"{base}/ack", f"{base}/nack"):  # and nothing is created by asking
        assert (await http.post(path, json=body)).status_code == 404
    assert (await http.put(f"{base}/session")).status_code == 200
    message = {"messages": [{"payload": "x"}]}
    await http.post("/topics/persistent/public/default/settled", json=message)
    taken = (await http.get(f"{base}/messages?waitMs=30000")).json()["messages"][0]
    body = {"tokens": [taken["token"]], "messageIds": ["5:5:-1", taken["messageId"]]}
    given = await http.post(f"{base}/nack", json=body)
    expected = {"alreadyAcknowledged": [taken["messageId"]], "unknown": ["5:5:-1"]}
    assert given.json() == {"returned": 1, **expected}
    assert (await http.post(f"{base}/ack", json=body)).json() == {"acknowledged": 1, **expected}
    again = await http.post(f"{base}/ack", json={"tokens": [taken["token"]]})
    assert again.json() == {
        "acknowledged": 0,
        "alreadyAcknowledged": [taken["token"]],
        "unknown": [],
    }


def _stored(
    index: int, count: int, ledger_id: int, first_entry_id: int, error: Exception | None
) -> None:
    assert error is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:2",
        "1:2:-2",
        "1:2:3:4:5",
        "a:b:c",
        f"{2**63}:1:-1",
        "1:2:-1:",
        5,
        None,
        "1:2:9999999999",
    ],
)
def test_bad_message_ids(text: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse_message_id_text(text)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [[], {}, {"tokens": []}, {"tokens": "x"}, {"messageIds": ["x"]}, {"messageIds": {"a": 1}}],
)
async def test_bad_acknowledgements(http: httpx.AsyncClient, body: Any) -> None:
    path = "/topics/persistent/public/default/orders/subscription/s/ack"
    answer = await http.post(path, json=body)
    assert answer.status_code == 400, answer.text


def test_long_texts_are_written_in_pieces() -> None:
    text = '\0"\\\u20ac' * 600_000
    delivery = ConsumedMessage(-1, 1, 2, Message(-1, 0, text.encode(), None, {}, 1, 0, 0, "p"), 0)
    shown = message_of(delivery, as_base64=False)
    assert isinstance(shown["payload"], orjson.Fragment)
    assert orjson.loads(orjson.dumps(shown))["payload"] == text


async def test_a_large_call_publishes_before_a_later_small_one() -> None:
    """Its entries are made in a thread. Higher sequence ids before them would make duplicates."""
    broker = await Broker(broker_deduplication_enabled=True).start()
    service, begun, gate = broker.service, asyncio.Event(), asyncio.Event()

    async def held(work: Callable[[], Any]) -> Any:
        begun.set()
        await gate.wait()
        return work()

    service.schemas.in_value_thread = held  # type: ignore[method-assign]
    publishers = RestPublishers(service)

    def call(body_bytes: int) -> asyncio.Task[str]:
        messages = [OutgoingMessage(b"x", -1)]
        return asyncio.create_task(publishers.produce(NAME, "p", messages, RAW, 1, body_bytes))

    try:
        large = call(HEAVY_BYTES + 1)
        await begun.wait()
        small = call(0)
        for _ in range(1000):  # turns of the loop, of which storing it takes some ten
            await asyncio.sleep(0)
        gate.set()
        (first,) = results_of(await large)
        (second,) = results_of(await small)
        assert first["errorCode"] == second["errorCode"] == 0
        ids = [[int(x) for x in each["messageId"].split(":")] for each in (first, second)]
        assert [-1, -1] < ids[0][:2] < ids[1][:2]
    finally:
        await broker.close()


async def test_calls_that_the_storage_does_not_answer_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.broker.http.messaging.rest_produce.ANSWER_TIMEOUT_S", 0.05)
    broker = await Broker().start()
    try:
        await broker.service.loader.load(NAME, create=True)
        publishers, release = RestPublishers(broker.service), broker.hold_storage()
        for _ in range(2):  # the second one needs the timer again
            calls = (
                publishers.produce(NAME, "", [OutgoingMessage(text, -1)], RAW, 1)
                for text in (b"x", b"y")
            )
            for answer in await asyncio.gather(*calls):
                (late,) = results_of(answer)
                assert (late["errorCode"], "in time" in late["errorMsg"]) == (1, True)
        release()
    finally:
        await broker.close()


@pytest.fixture
async def deduplicating() -> AsyncIterator[Broker]:
    broker = await Broker(broker_deduplication_enabled=True).start()
    yield broker
    await broker.close()


def results_of(answer: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(answer)["messagePublishResults"]
    return results


async def test_a_call_that_a_rate_holds_back_publishes_before_a_later_one(
    deduplicating: Broker,
) -> None:
    """The later one's higher sequence ids would make duplicates of its messages."""
    broker, loop = deduplicating, ManualLoop()
    topic = await broker.service.loader.load(NAME, create=True)
    throttle = topic.rate_limits.publish = PublishRateLimiter(Rate(10, 0), cast("Any", loop))
    publishers = RestPublishers(broker.service)

    def call(count: int) -> asyncio.Task[str]:
        messages = [OutgoingMessage(b"x", -1) for _ in range(count)]
        return asyncio.create_task(publishers.produce(NAME, "p", messages, RAW, 1))

    release = broker.hold_storage()  # a call that is answered takes its producer along
    calls = [call(20)]
    await eventually(lambda: throttle.waiting == 1)
    calls.append(call(5))
    for _ in range(100):  # it is published unless the rate holds it back
        await asyncio.sleep(0)
    assert not calls[1].done()
    calls.append(call(1))  # runs before the one whose turn the next line brings
    loop.advance(5_000)
    for _ in range(100):
        await asyncio.sleep(0)
    release()
    ids = [int(x["messageId"].split(":")[1]) for each in calls for x in results_of(await each)]
    assert ids == [*range(26)]


async def test_a_partition_over_its_rate_holds_back_no_other(
    deduplicating: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, loop = deduplicating.service, ManualLoop()
    await service.directory.create_partitioned(NAME, 2)
    over, other = [await service.loader.load(NAME.partition(n), create=True) for n in (0, 1)]
    throttle = over.rate_limits.publish = PublishRateLimiter(Rate(10, 0), cast("Any", loop))
    throttle.take(100, 0)
    messages = [OutgoingMessage(b"x", -1, key=key) for key in ("b", "a")]  # partitions 0 and 1
    publishers = RestPublishers(service)
    call = asyncio.create_task(publishers.produce(NAME, "p", messages, RAW, 1))
    await eventually(lambda: other.last_sequence_id("p") == messages[1].sequence_id >= 0)
    assert not call.done()
    assert over.last_sequence_id("p") == -1
    with monkeypatch.context() as patched:
        patched.setattr("magnetar.broker.http.messaging.rest_produce.ANSWER_TIMEOUT_S", 0.05)
        late = [OutgoingMessage(b"x", -1, key="b")]
        work = RestPublishers(service).produce(NAME, "q", late, RAW, 1)
        (refused,) = results_of(await asyncio.wait_for(work, 60))
    assert (refused["errorCode"], "rate" in refused["errorMsg"]) == (1, True)
    loop.advance(60_000)
    assert [x["errorCode"] for x in results_of(await call)] == [0, 0]
