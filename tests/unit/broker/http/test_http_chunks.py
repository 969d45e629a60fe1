"""Chunked messages put together: order, repeats, bounds, expiry."""

import random
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from magnetar.broker.http.messaging import internal_consumer as feed_module
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import CHUNKS_MAX, ByteBudget, ChunkAssembler, JoinedMessage
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.messages import parse_message_id
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker

EXPIRE_MS = 1_000
BASE = "/topics/persistent/public/default/chunks/subscription/s"


def chunk(uuid: str, number: int, count: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=5,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=count,
    )


class Line:
    """An assembler that is fed entries in order."""

    def __init__(self, bytes_max: int = 1_000, shared_max: int = 10_000) -> None:
        self.shared = ByteBudget(shared_max)
        self.core = ChunkAssembler(bytes_max, self.shared, pending_max=3, expire_ms=EXPIRE_MS)
        self.entry = -1

    def add(
        self, uuid: str, number: int, count: int, data: bytes = b"x", now_ms: int = 0
    ) -> JoinedMessage | None:
        self.entry += 1
        position = (1, self.entry)
        return self.core.add(chunk(uuid, number, count), memoryview(data), position, now_ms)


def test_chunks_are_joined_also_between_others() -> None:
    line = Line()
    assert line.add("a", 0, 3, b"1") is None
    assert line.add("b", 0, 2, b"x") is None
    assert line.add("a", 1, 3, b"2") is None
    assert line.add("b", 1, 2, b"y") == JoinedMessage(b"xy", ((1, 1), (1, 3)))
    assert line.core.pending_bytes == 2
    assert line.add("a", 2, 3, b"3") == JoinedMessage(b"123", ((1, 0), (1, 2), (1, 4)))
    assert (len(line.core), line.core.pending_bytes, line.core.next_deadline_ms) == (0, 0, None)


def test_a_redelivery_begins_again() -> None:
    line = Line()
    line.add("a", 0, 2, b"old")
    assert line.core.add(chunk("a", 0, 2), memoryview(b"1"), (1, 0), 0) is None
    assert line.core.add(chunk("a", 1, 2), memoryview(b"2"), (1, 1), 0) == JoinedMessage(
        b"12", ((1, 0), (1, 1))
    )


def test_a_chunk_that_came_twice_counts_once() -> None:
    line = Line()
    line.add("a", 0, 3, b"1")
    line.add("a", 1, 3, b"2")
    assert line.add("a", 1, 3, b"2") is None
    joined = line.add("a", 2, 3, b"3")
    assert joined == JoinedMessage(b"123", ((1, 0), (1, 1), (1, 2), (1, 3)))


@pytest.mark.parametrize("numbers", [[1], [0, 2], [0, 2, 1], [5, 6]])
def test_what_lacks_a_chunk_is_given_up_in_time(numbers: list[int]) -> None:
    line = Line()
    for number in numbers:
        assert line.add("a", number, 3, now_ms=10) is None
    line.core.expire(10 + EXPIRE_MS - 1)
    assert line.core.given_up == []
    assert line.core.next_deadline_ms == 10 + EXPIRE_MS
    line.core.expire(10 + EXPIRE_MS)
    assert line.core.given_up == [(1, n) for n in range(len(numbers))]
    assert (len(line.core), line.core.pending_bytes) == (0, 0)


def test_the_oldest_makes_room() -> None:
    line = Line()
    for uuid in "abcd":
        line.add(uuid, 0, 2)
    assert line.core.put_back == [(1, 0)]
    assert line.core.given_up == []
    assert line.add("b", 1, 2) is not None


def test_the_rest_of_what_made_room_comes_again_too() -> None:
    """Taken for a message without its beginning it would be acknowledged, and the message lost."""
    line = Line()
    for uuid in "abcd":
        line.add(uuid, 0, 3)
    line.add("a", 1, 3)
    line.add("a", 2, 3)
    assert line.core.put_back == [(1, 0), (1, 4), (1, 5)]
    line.core.expire(EXPIRE_MS)
    assert not set(line.core.given_up) & set(line.core.put_back)
    for number, entry in enumerate((0, 4)):
        assert line.core.add(chunk("a", number, 3), memoryview(b"x"), (1, entry), 0) is None
    joined = line.core.add(chunk("a", 2, 3), memoryview(b"x"), (1, 5), 0)
    assert joined == JoinedMessage(b"xxx", ((1, 0), (1, 4), (1, 5)))


def test_bytes_make_room_too() -> None:
    line = Line(bytes_max=10)
    line.add("a", 0, 2, b"x" * 6)
    line.add("b", 0, 2, b"x" * 6)
    assert line.core.put_back == [(1, 0)]
    assert line.core.pending_bytes == 6


def test_others_memory_makes_room_here() -> None:
    line = Line(shared_max=10)
    line.add("a", 0, 2, b"x" * 4)
    line.add("b", 0, 2, b"x" * 4)
    assert line.core.put_back == []
    line.shared.used += 6  # another client's
    line.add("b", 0, 2, b"x" * 4)
    assert line.core.put_back == [(1, 0)]
    line.shared.used += 4
    line.add("b", 0, 2, b"x" * 4)  # now there is no room at all
    assert (len(line.core), line.core.pending_bytes, line.shared.used) == (0, 0, 10)
    line.shared.used = 0
    assert line.add("b", 0, 2, b"x") is None
    line.core.close()
    assert (line.shared.used, len(line.core)) == (0, 0)


def test_a_message_that_is_too_large_is_given_up() -> None:
    line = Line(bytes_max=10)
    line.add("a", 0, 3, b"x" * 6)
    line.add("a", 1, 3, b"x" * 6)
    assert line.core.given_up == [(1, 0), (1, 1)]
    assert line.core.pending_bytes == 0
    assert line.add("b", 0, CHUNKS_MAX + 1) is None
    assert line.core.pending_bytes == 0


@pytest.mark.parametrize("seed", range(30))
def test_any_order_keeps_the_bounds(seed: int) -> None:
    """Every position is joined, given up, put back or pending, once; memory stays bounded."""
    rng = random.Random(seed)
    line = Line(bytes_max=50)
    settled: list[tuple[int, int]] = []
    for now_ms in range(0, 20_000, 50):
        count = rng.randint(2, 4)
        data = b"x" * rng.randint(0, 20)
        joined = line.add(rng.choice("abcde"), rng.randrange(count), count, data, now_ms)
        if joined is not None:
            settled += joined.positions
        line.core.expire(now_ms)
        assert len(line.core) <= 3
        assert 0 <= line.core.pending_bytes <= 70
    line.core.expire(10**9)
    assert (len(line.core), line.core.pending_bytes, line.shared.used) == (0, 0, 0)
    settled += line.core.given_up + line.core.put_back
    assert len(settled) == len(set(settled))
    # what began again before it was complete was delivered again: its new positions count
    assert set(settled) <= {(1, n) for n in range(line.entry + 1)}


class _Stored:
    def __init__(self) -> None:
        self.ids: list[tuple[int, int]] = []

    def __call__(
        self, index: int, count: int, ledger_id: int, first_entry_id: int, error: Exception | None
    ) -> None:
        assert error is None
        self.ids += [(ledger_id, first_entry_id + n) for n in range(count)]


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
        await client.delete(f"{BASE}/session")


async def publish(broker: Broker, *chunks: tuple[str, int, int, bytes]) -> _Stored:
    name = TopicName.parse("persistent://public/default/chunks")
    producer = await LocalProducer.open(
        broker.service, name, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    stored = _Stored()
    entries = []
    for uuid, number, count, data in chunks:
        metadata = chunk(uuid, number, count)
        entries.append((metadata, encode_body(metadata, data), metadata.sequence_id))
    producer.publish(entries, stored)
    producer.close()
    return stored


async def take(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get(f"{BASE}/messages", params=query)
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def backlog(http: httpx.AsyncClient) -> int:
    path = "/admin/v2/persistent/public/default/chunks/stats"
    stats = (await http.get(path)).json()["subscriptions"]["s"]
    return int(stats["msgBacklog"])


async def wait_for_no_backlog(http: httpx.AsyncClient) -> None:
    for _ in range(600):
        if await backlog(http) == 0:
            return
        assert await take(http, max=1, waitMs=50) == []
    assert await backlog(http) == 0


async def test_a_chunked_message_is_one_message(broker: Broker, http: httpx.AsyncClient) -> None:
    await http.put(f"{BASE}/session")
    chunks = [("a", 0, 3, b"one "), ("b", 0, 2, b"x"), ("a", 1, 3, b"two "), ("a", 2, 3, b"three")]
    stored = await publish(broker, *chunks)
    (message,) = await take(http, max=1)
    assert message["payload"] == "one two three"
    token = parse_message_id(message["token"])
    assert (token.ledgerId, token.entryId) == stored.ids[3]
    first = token.first_chunk_message_id
    assert (first.ledgerId, first.entryId) == stored.ids[0]
    assert await backlog(http) == 4
    # Given back, all of its chunks come again; acknowledged, all of them are done.
    await http.post(f"{BASE}/nack", json={"tokens": [message["token"]]})
    (again,) = await take(http, max=1)
    assert (again["payload"], again["redeliveryCount"]) == ("one two three", 1)
    await http.post(f"{BASE}/ack", json={"tokens": [again["token"]]})
    await publish(broker, ("b", 1, 2, b"y"))
    (other,) = await take(http, max=1)
    assert other["payload"] == "xy"
    await http.post(f"{BASE}/ack", json={"tokens": [other["token"]]})
    assert await take(http, max=1, waitMs=0) == []
    await wait_for_no_backlog(http)


async def test_an_incomplete_message_is_given_up(
    broker: Broker, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        feed_module,
        "ChunkAssembler",
        lambda size, shared: ChunkAssembler(size, shared, expire_ms=50),
    )
    await http.put(f"{BASE}/session")
    await publish(broker, ("a", 0, 3, b"1"), ("a", 1, 3, b"2"))
    assert await take(http, max=1, waitMs=0) == []
    await wait_for_no_backlog(http)


async def test_a_session_that_ends_frees_its_chunks(
    broker: Broker, http: httpx.AsyncClient
) -> None:
    before = broker.service.chunk_bytes.used
    await http.put(f"{BASE}/session")
    await publish(broker, ("a", 0, 2, b"x" * 500))
    assert await take(http, max=1, waitMs=0) == []
    for _ in range(600):
        if broker.service.chunk_bytes.used == before + 500:
            break
        assert await take(http, max=1, waitMs=50) == []
    assert broker.service.chunk_bytes.used == before + 500
    await http.delete(f"{BASE}/session")
    assert broker.service.chunk_bytes.used == before


async def test_compressed_chunks(broker: Broker, http: httpx.AsyncClient) -> None:
    """Clients compress the whole message and cut it afterwards."""
    from magnetar.broker.protocol.compression import compress

    await http.put(f"{BASE}/session")
    data = bytes(range(256)) * 40
    packed = compress(pb.ZSTD, data)
    name = TopicName.parse("persistent://public/default/chunks")
    producer = await LocalProducer.open(
        broker.service, name, "p", generated=True, remote="127.0.0.1:0", client_version="test"
    )
    half = len(packed) // 2
    entries = []
    for number, part in enumerate((packed[:half], packed[half:])):
        metadata = chunk("z", number, 2)
        metadata.compression, metadata.uncompressed_size = pb.ZSTD, len(data)
        entries.append((metadata, encode_body(metadata, part), metadata.sequence_id))
    producer.publish(entries, _Stored())
    (message,) = await take(http, max=1, payload="base64")
    assert b64decode(message["payload"]) == data
    producer.close()
