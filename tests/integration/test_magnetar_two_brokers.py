"""Two embedded brokers, threads of one process, under load of every kind at once.

Both have topics of the same names. What each gives out is exactly what it was given: every message
once for every subscription, none of the other's, with its payload, key, properties and id, none
before its time. State that belongs to the process and not to one broker breaks this when the
interpreter switches threads while it is used; the test makes it switch ten times as often. (With a
hundred times, a dozen threads that wait for the interpreter wake up 200,000 times a second: on a
busy machine they did nothing else for a quarter of an hour.)
"""

import asyncio
import base64
import json
import logging
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import pulsar
import pytest
from websockets.asyncio.client import connect

import magnetar
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body
from magnetar.embedding import EmbeddedBroker
from tests import stalls
from tests.official_client import open_client
from tests.raw_client import RawClient, encode_command

PLAIN, BATCHED, DELAYED, TYPED, REST, SOCKET, TOPICS = 500, 250, 50, 100, 100, 100, 5
FLOOD, ROUNDS = 1000, 2
ORDERS = PLAIN + BATCHED + DELAYED
DELAY_MS = 300
KEYS = 7
# What is parsed differs in everything.
NUMBER = {"one": 1, "two": 2}
PADDING = {"one": 20, "two": 300}  # bytes
_S_MAX = 60.0

Fact = tuple[bytes, str, tuple[tuple[str, str], ...]]
"""A message's payload, key and properties."""
Place = tuple[int, int, int]
"""Ledger, entry, index in the batch."""


class Order(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    broker = pulsar.schema.String(required=True)
    number = pulsar.schema.Integer(required=True)


@dataclass(frozen=True)
class Seen:
    fact: Fact
    at_ms: int
    consumer: int = 0
    place: Place = (0, 0, 0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def made(broker: str, kind: str, number: int) -> Fact:
    payload = f"{broker} {kind} {number} ".encode() + b"." * PADDING[broker]
    return payload, f"{broker}-{kind}-{number % KEYS}", (("broker", broker), ("n", str(number)))


def as_json(fact: Fact, payload: str) -> dict[str, Any]:
    return {"payload": payload, "key": fact[1], "properties": dict(fact[2])}


def from_client(message: Any, consumer: int = 0) -> Seen:
    properties = tuple(sorted(message.properties().items()))
    fact = bytes(message.data()), message.partition_key(), properties
    return Seen(fact, now_ms(), consumer, place(message.message_id()))


def from_json(message: dict[str, Any], payload: bytes) -> Seen:
    properties = tuple(sorted(message["properties"].items()))
    return Seen((payload, message["key"], properties), now_ms())


def place(message_id: Any) -> Place:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


@dataclass
class Load:
    """All that is sent to one broker and all that comes from it."""

    name: str
    broker: EmbeddedBroker
    pool: ThreadPoolExecutor
    together: threading.Barrier
    client: Any = None
    sent: dict[str, list[Fact]] = field(default_factory=lambda: defaultdict(list))  # by topic
    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))  # by name
    receipts: dict[Fact, Place] = field(default_factory=dict)
    due_ms: dict[Fact, int] = field(default_factory=dict)
    results: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        """Subscribe, then do everything at once, then wait for the last acknowledgement."""
        url = f"ws{self.broker.web_url.removeprefix('http')}/ws/v2"
        kept = httpx.Limits(max_connections=8)
        async with httpx.AsyncClient(
            base_url=self.broker.web_url, timeout=_S_MAX, limits=kept
        ) as http:
            await self.in_thread(self.subscribe)
            consume = "/topics/persistent/public/default/orders/subscription/rest"
            assert (await http.put(f"{consume}/session")).status_code == 200
            topic = "persistent/public/default"
            async with (
                connect(f"{url}/consumer/{topic}/orders/socket?subscriptionType=Shared") as taking,
                connect(f"{url}/producer/{topic}/web") as giving,
            ):
                await asyncio.gather(
                    self.in_thread(self.produce_plain),
                    self.in_thread(self.produce_batched),
                    self.in_thread(self.produce_typed),
                    self.in_thread(self.produce_flood),
                    self.in_thread(self.read),
                    self.produce_by_rest(http),
                    self.consume_by_rest(http, consume),
                    self.produce_by_socket(giving),
                    self.consume_by_socket(taking),
                    self.administer(http),
                )
                await self.settle(http)

    def in_thread(self, do: Callable[[], None]) -> Awaitable[None]:
        return asyncio.get_running_loop().run_in_executor(self.pool, do)

    def subscribe(self) -> None:
        self.client = open_client(self.broker.service_url)
        kinds = pulsar.ConsumerType
        for subscription, kind, topic, count in (
            ("exclusive", kinds.Exclusive, "orders", 1),
            ("failover", kinds.Failover, "orders", 2),
            ("shared", kinds.Shared, "orders", 2),
            ("key_shared", kinds.KeyShared, "orders", 2),
            ("client", kinds.Shared, "web", 2),
            ("flood", kinds.Exclusive, "flood", 1),
        ):
            for consumer in range(count):
                listener = self.listener(subscription, consumer)
                self.client.subscribe(topic, subscription, kind, message_listener=listener)
        self.client.subscribe(
            "typed",
            "typed",
            schema=pulsar.schema.JsonSchema(Order),
            message_listener=self.listener("typed", 0),
        )

    def listener(self, subscription: str, number: int) -> Callable[[Any, Any], None]:
        seen = self.seen[subscription]

        def take(consumer: Any, message: Any) -> None:
            seen.append(from_client(message, number))
            if subscription in ("exclusive", "flood"):
                consumer.acknowledge_cumulative(message)
            else:
                consumer.acknowledge(message)

        return take

    def send(self, producer: Any, topic: str, fact: Fact, content: Any, **options: Any) -> None:
        def sent(result: Any, message_id: Any) -> None:
            self.results[result.name] += 1
            if result == pulsar.Result.Ok:
                self.receipts[fact] = place(message_id)

        self.sent[topic].append(fact)
        producer.send_async(
            content, sent, partition_key=fact[1], properties=dict(fact[2]), **options
        )

    def produce_plain(self) -> None:
        producer = self.client.create_producer("orders", max_pending_messages=PLAIN + DELAYED)
        later = timedelta(milliseconds=DELAY_MS)
        for number in range(PLAIN):
            fact = made(self.name, "plain", number)
            self.send(producer, "orders", fact, fact[0])
            if number % (PLAIN // DELAYED) == 0:
                fact = made(self.name, "delayed", number)
                self.due_ms[fact] = now_ms() + DELAY_MS
                self.send(producer, "orders", fact, fact[0], deliver_after=later)
        producer.flush()

    def produce_batched(self) -> None:
        producer = self.client.create_producer(
            "orders",
            max_pending_messages=BATCHED,
            batching_enabled=True,
            batching_max_messages=50,
            batching_type=pulsar.BatchingType.KeyBased,
        )
        for number in range(BATCHED):
            fact = made(self.name, "batched", number)
            self.send(producer, "orders", fact, fact[0])
        producer.flush()

    def produce_typed(self) -> None:
        schema = pulsar.schema.JsonSchema(Order)
        producer = self.client.create_producer("typed", schema=schema, max_pending_messages=TYPED)
        for number in range(TYPED):
            value = Order(broker=self.name, number=number)
            fact = (schema.encode(value), *made(self.name, "typed", number)[1:])
            self.send(producer, "typed", fact, value)
        producer.flush()

    def produce_flood(self) -> None:
        """Unbatched SENDs, encoded before, as fast as a socket takes them, at both brokers at once.

        Here the brokers parse at the same time; other clients share the interpreter with them.
        """
        topic, producer_id = "persistent://public/default/flood", NUMBER[self.name]
        with RawClient(self.broker.service_url) as client:
            client.look_up(topic)
            client.create_producer(topic, producer_id)
            for number in range(ROUNDS):
                first = NUMBER[self.name] * 1_000_000 + number * FLOOD
                numbers = range(first, first + FLOOD)
                facts = [made(self.name, "flood", each) for each in numbers]
                self.sent["flood"] += facts
                frames = b"".join(map(self.frame, numbers, facts))
                self.together.wait(_S_MAX)
                client.send_bytes(frames)
                for each in numbers:
                    receipt = client.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt
                    assert (receipt.producer_id, receipt.sequence_id) == (producer_id, each)

    def frame(self, number: int, fact: Fact) -> bytes:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = NUMBER[self.name], number
        metadata = pb.MessageMetadata(
            producer_name=f"flood-{self.name}",
            sequence_id=number,
            publish_time=now_ms(),
            partition_key=fact[1],
            properties=[pb.KeyValue(key=key, value=value) for key, value in fact[2]],
        )
        return encode_command(command, encode_body(metadata, fact[0]))

    def read(self) -> None:
        reader = self.client.create_reader("orders", pulsar.MessageId.earliest)
        for _ in range(ORDERS):
            self.seen["reader"].append(from_client(reader.read_next(int(_S_MAX * 1000))))

    async def produce_by_rest(self, http: httpx.AsyncClient) -> None:
        for first in range(0, REST, 20):
            facts = [made(self.name, "rest", number) for number in range(first, first + 20)]
            self.sent["web"] += facts
            body = {"messages": [as_json(fact, fact[0].decode()) for fact in facts]}
            answer = await http.post("/topics/persistent/public/default/web", json=body)
            assert answer.status_code == 200, answer.text
            codes = [each.get("errorCode", 0) for each in answer.json()["messagePublishResults"]]
            assert codes == [0] * 20

    async def consume_by_rest(self, http: httpx.AsyncClient, path: str) -> None:
        seen = self.seen["rest"]
        while len(seen) < ORDERS:
            answer = await http.get(f"{path}/messages", params={"max": 500, "waitMs": 30_000})
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            assert messages, f"{len(seen)} of {ORDERS} came"
            seen += (from_json(each, each["payload"].encode()) for each in messages)
            tokens = [each["token"] for each in messages]
            answer = await http.post(f"{path}/ack", json={"tokens": tokens})
            assert answer.json() == {
                "acknowledged": len(tokens),
                "alreadyAcknowledged": [],
                "unknown": [],
            }

    async def produce_by_socket(self, socket: Any) -> None:
        for number in range(SOCKET):
            fact = made(self.name, "socket", number)
            self.sent["web"].append(fact)
            message = as_json(fact, base64.b64encode(fact[0]).decode())
            await socket.send(json.dumps({**message, "context": str(number)}))
        async with asyncio.timeout(_S_MAX):
            answers = [json.loads(await socket.recv()) for _ in range(SOCKET)]
        assert [answer["result"] for answer in answers] == ["ok"] * SOCKET
        assert [answer["context"] for answer in answers] == [str(each) for each in range(SOCKET)]

    async def consume_by_socket(self, socket: Any) -> None:
        seen = self.seen["socket"]
        async with asyncio.timeout(_S_MAX):
            while len(seen) < ORDERS:
                message = json.loads(await socket.recv())
                seen.append(from_json(message, base64.b64decode(message["payload"])))
                await socket.send(json.dumps({"messageId": message["messageId"]}))

    async def administer(self, http: httpx.AsyncClient) -> None:
        """Create topics at this broker only, and look at what there is."""
        for number in range(TOPICS):
            mine = f"{self.name}-{number}"
            path = f"/admin/v2/persistent/public/default/{mine}"
            assert (await http.put(path)).status_code == 204
            listed = (await http.get("/admin/v2/persistent/public/default")).json()
            local = {each.rpartition("/")[2] for each in listed}
            assert local == {
                *("orders", "web", "typed", "flood"),
                *(f"{self.name}-{each}" for each in range(number + 1)),
            }
            stats = await self.stats(http, "orders")
            assert stats["msgInCounter"] <= ORDERS
            assert (await self.stats(http, mine))["msgInCounter"] == 0

    async def stats(self, http: httpx.AsyncClient, topic: str) -> dict[str, Any]:
        answer = await http.get(f"/admin/v2/persistent/public/default/{topic}/stats")
        stats: dict[str, Any] = answer.json()
        return stats

    async def settle(self, http: httpx.AsyncClient) -> None:
        """Until every message is acknowledged; then none can come a second time."""
        counts = {"orders": ORDERS, "web": REST + SOCKET, "typed": TYPED, "flood": FLOOD * ROUNDS}
        for topic, count in counts.items():
            deadline = time.monotonic() + _S_MAX
            while True:
                stats = await self.stats(http, topic)
                durable = {
                    name: (each["msgBacklog"], each["unackedMessages"], each["msgOutCounter"])
                    for name, each in stats["subscriptions"].items()
                    if each["isDurable"]
                }
                if set(durable.values()) == {(0, 0, count)}:
                    break
                assert time.monotonic() < deadline, (self.name, topic, durable)
                await asyncio.sleep(0.05)
            assert stats["msgInCounter"] == count

    def verify(self) -> None:
        assert self.results == {"Ok": ORDERS + TYPED}
        assert len(self.sent["orders"]) == ORDERS
        names = ("exclusive", "failover", "shared", "key_shared", "reader", "rest", "socket")
        for name in names:
            self.verify_facts(name, "orders")
        self.verify_facts("client", "web")
        self.verify_facts("typed", "typed")
        self.verify_facts("flood", "flood")
        for name in ("shared", "key_shared", "rest", "socket"):
            early = [s for s in self.seen[name] if s.at_ms < self.due_ms.get(s.fact, 0)]
            assert early == [], f"{self.name}: {name}: {len(early)} before their time"
        for name in ("exclusive", "failover", "shared", "key_shared", "reader", "typed"):
            wrong = [s for s in self.seen[name] if self.receipts[s.fact] != s.place]
            assert wrong == [], f"{self.name}: {name}: {len(wrong)} with another id than receipts"
        assert len(set(self.receipts.values())) >= ORDERS
        for name in ("exclusive", "failover", "key_shared", "reader", "flood"):
            self.verify_order(name)

    def verify_facts(self, name: str, topic: str) -> None:
        sent, seen = Counter(self.sent[topic]), Counter(each.fact for each in self.seen[name])
        missing, more = list((sent - seen).elements()), list((seen - sent).elements())
        assert (missing[:3], more[:3]) == ([], []), (
            f"{self.name}: {name}: {len(missing)} missing, {len(more)} too many"
        )

    def verify_order(self, name: str) -> None:
        """Messages of one key come in the order in which they were sent, to one consumer.

        Not delayed ones: what is read after its time doesn't wait for what is in the index, as in
        Pulsar.
        """
        by_key: dict[str, list[Seen]] = defaultdict(list)
        for each in self.seen[name]:
            by_key[each.fact[1]].append(each)
        for key, seen in by_key.items():
            if "-delayed-" in key:
                continue
            numbers = [int(dict(each.fact[2])["n"]) for each in seen]
            assert numbers == sorted(numbers), f"{self.name}: {name}: order of {key}"
            assert len({each.consumer for each in seen}) == 1, f"{self.name}: {name}: {key}"


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s / 10)
    yield
    sys.setswitchinterval(interval_s)
    stalls.skip("threads that switch so often compute for twice as long")


@pytest.mark.usefixtures("frequent_switches")
async def test_each_broker_gives_out_what_it_was_given_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Without it a message may come up to a tick, a second, before its time, as in Pulsar.
    exact: dict[str, Any] = {"isDelayedDeliveryDeliverAtTimeStrict": True}
    async with magnetar.embedded(**exact) as one, magnetar.embedded(**exact) as two:
        with ThreadPoolExecutor(10) as pool:
            together = threading.Barrier(2)
            loads = Load("one", one, pool, together), Load("two", two, pool, together)
            try:
                await asyncio.gather(*(load.run() for load in loads))
            finally:
                for load in loads:
                    if load.client is not None:
                        load.client.close()
        for load in loads:
            load.verify()
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
