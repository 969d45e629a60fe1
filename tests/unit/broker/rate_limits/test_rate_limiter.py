"""Who waits for a rate and when it goes on, by a clock that the test moves."""

import asyncio
import random
from functools import partial
from typing import Any, cast

import pytest

from magnetar.broker.connection.connection import Connection
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter, RateLimiter, renewed
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST
from tests.manual_clock import ManualLoop
from tests.unit.broker.dispatch.builders import settle
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"


class Source:
    """A client that publishes a piece whenever it is read."""

    def __init__(self, throttle: PublishRateLimiter, piece: int) -> None:
        self.throttle, self.piece = throttle, piece
        self.sent = 0
        self.paused = False

    def read(self) -> None:
        self.sent += self.piece
        self.throttle.charge(cast("Any", self), self.piece, 0)

    def pause_publishing(self, limit: PublishRateLimiter) -> None:
        assert not self.paused
        self.paused = True

    def resume_publishing(self, limit: PublishRateLimiter) -> None:
        assert self.paused
        self.paused = False


@pytest.mark.parametrize("seed", range(20))
def test_many_sources_share_a_limit(seed: int) -> None:
    """Five minutes of greed: the rate holds at every moment, and everybody gets a fair part."""
    rng, loop = random.Random(seed), ManualLoop()
    rate = rng.choice((10, 500, 20_000))
    throttle = PublishRateLimiter(Rate(rate, 0), cast("Any", loop))
    sources = [Source(throttle, rng.randint(1, 50)) for _ in range(rng.randint(1, 12))]
    reads = 0
    while loop.time() < 300:
        loop.advance(rng.randint(1, 20))
        for source in rng.sample(sources, len(sources)):
            if not source.paused:
                source.read()
                reads += 1
        total = sum(source.sent for source in sources)
        assert total <= rate * loop.time() + rate + 50 * (len(sources) + 1)
    offered_max = sum(source.piece for source in sources) * reads / len(sources)
    assert total >= min(rate * 300 * 0.9, offered_max * 0.5)
    rounds = [source.sent / source.piece for source in sources]
    assert min(rounds) >= max(rounds) * 0.4


def test_the_line_is_served_in_order_and_one_at_a_time() -> None:
    loop = ManualLoop()
    throttle = RateLimiter(Rate(10, 0), cast("Any", loop))
    throttle.take(11, 0)
    woken: list[str] = []

    def go_on(who: str) -> None:
        woken.append(who)
        throttle.take(1, 0)

    for who in ("a", "b", "c"):
        throttle.wait(who, partial(go_on, who))
    throttle.wait("a", lambda: woken.append("twice"))
    throttle.leave("b")
    loop.advance(199)
    assert woken == []
    loop.advance(1)
    assert woken == ["a"]
    loop.advance(99)
    assert woken == ["a"]
    loop.advance(2)
    assert woken == ["a", "c"]
    loop.advance(1_000)
    assert (throttle.waiting, loop.timers) == (0, 0)  # nobody waits: no timer


def test_a_higher_limit_ends_the_wait_sooner_and_none_at_once() -> None:
    loop = ManualLoop()
    throttle: RateLimiter | None = RateLimiter(Rate(1, 0), cast("Any", loop))
    assert throttle is not None
    throttle.take(101, 0)
    woken: list[str] = []
    throttle.wait("a", lambda: woken.append("a"))
    throttle.wait("b", lambda: woken.append("b"))
    assert renewed(throttle, Rate(1_000, 0), RateLimiter) is throttle
    loop.advance(101)
    assert woken == ["a"]
    throttle.take(10_000, 0)
    assert renewed(throttle, Rate(0, 0), RateLimiter) is None
    assert woken == ["a", "b"]


def test_a_rate_relative_to_another() -> None:
    loop = ManualLoop()
    throttle = RateLimiter(Rate(10, 0, 2, relative_to_publish=True), cast("Any", loop))
    throttle.change(throttle.rate, 90, 5_000)
    loop.advance(2_000)
    assert throttle.room()[0] == 100  # messages; bytes stay without a limit
    assert throttle.room()[1] > 1 << 60


# --- connections


async def limited(broker: Broker, messages: int, size: int = 0) -> tuple[Client, ManualLoop]:
    """A producer on a topic with a publish rate a second, by a clock of the test's."""
    client = broker.client()
    await client.receive_one()
    await client.produce()
    loop = ManualLoop()
    topic = broker.service.topics[TOPIC]
    topic.rate_limits.publish = PublishRateLimiter(Rate(messages, size), cast("Any", loop))
    return client, loop


async def test_a_client_over_the_rate_is_not_read_and_refused_nothing(broker: Broker) -> None:
    client, loop = await limited(broker, 100)
    client.feed(b"".join(message(n) for n in range(300)))
    assert len(receipts(await client.receive(300))) == 300  # what was read is stored
    assert not client.reads()
    loop.advance(2_009)
    assert not client.reads()
    loop.advance(1)
    assert client.reads()
    client.feed(message(300))
    receipts(await client.receive(1))
    assert not client.reads()
    assert broker.service.topics[TOPIC].stats()["publishRateLimitedTimes"] == 2


async def test_bytes_count_without_the_broker_s_heads(broker: Broker) -> None:
    client, loop = await limited(broker, 0, 10_000)
    client.feed(message(0, bytes(9_900)))  # metadata and checksum make it 9,9xx
    assert client.reads()
    client.feed(message(1, bytes(200)))
    assert not client.reads()
    loop.advance(1_000)
    assert client.reads()


async def test_no_limit_is_left_when_the_policy_goes(broker: Broker) -> None:
    client, _ = await limited(broker, 1)
    client.feed(message(0) + message(1) + message(2))
    assert not client.reads()
    await broker.service.policies.update_namespace(
        "public/default",
        lambda old: {**old, "message_ttl_in_seconds": 60},  # whose rate is unlimited
    )
    assert client.reads()
    topic = broker.service.topics[TOPIC]
    assert topic.rate_limits.publish is None
    assert topic.stats()["publishRateLimitedTimes"] == 1
    client.feed(b"".join(message(n) for n in range(3, 1_000)))
    assert client.reads()


async def test_policies_make_and_change_the_limit(broker: Broker) -> None:
    client = broker.client()
    await client.receive_one()
    await client.produce()
    for messages in (5, 7):
        rate = {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": -1}
        await broker.service.policies.update_namespace(
            "public/default",
            lambda old, rate=rate: {**old, "publishMaxMessageRate": {"standalone": rate}},  # type: ignore[misc] # a lambda
        )
        throttle = broker.service.topics[TOPIC].rate_limits.publish
        assert throttle is not None
        assert throttle.rate == Rate(messages, 0)


async def test_reads_are_small_while_a_low_limit_holds(broker: Broker) -> None:
    """Or one read would bring thousands of messages, and the next one would be an hour away."""
    client, loop = await limited(broker, 1)
    connection: Connection = client.connection
    whole = len(connection.get_buffer(-1))
    client.feed(message(0) + message(1))
    assert len(connection.get_buffer(-1)) == 1_024
    data = b"".join(message(n, bytes(3_000)) for n in range(2, 5))
    loop.advance(2_000)
    client.feed(data)  # in pieces: frames larger than a read are put together as ever
    assert len(receipts(await client.receive(5))) == 5
    topic = broker.service.topics[TOPIC]
    topic.rate_limits.apply()  # the namespace has no such policy
    broker.cluster.now_ms += 3_600_000
    connection.on_sweep(broker.service.clock())
    assert len(connection.get_buffer(-1)) == whole
    topic.rate_limits.publish = PublishRateLimiter(Rate(1_000, 0), cast("Any", loop))
    assert (await client.receive_one()).type == pb.BaseCommand.PING
    await client.produce(producer_id=2)
    assert len(connection.get_buffer(-1)) == 1_000 * 100 // 8  # before there is anything to pause


async def test_one_connection_waits_for_several_limits(broker: Broker) -> None:
    client, loop = await limited(broker, 1)
    broker.service.publish_throttle = PublishRateLimiter(Rate(10, 0), cast("Any", loop))
    client.feed(b"".join(message(n) for n in range(21)))
    loop.advance(2_000)
    assert not client.reads()  # the broker's is over, the topic's isn't
    loop.advance(20_000)
    assert client.reads()


async def test_a_client_that_leaves_while_it_waits(broker: Broker) -> None:
    client, loop = await limited(broker, 1)
    client.feed(message(0) + message(1))
    client.lose()
    loop.advance(60_000)
    assert broker.service.topics[TOPIC].rate_limits.publish.waiting == 0  # type: ignore[union-attr] # limited
    await client.connection.check_liveness()


async def test_a_topic_that_is_unloaded_lets_its_clients_go(broker: Broker) -> None:
    client, _ = await limited(broker, 1)
    client.feed(message(0) + message(1))
    assert not client.reads()
    await broker.service.loader.unload(str(broker.service.topics[TOPIC].name))
    assert client.reads()


# --- producers inside of the broker


class RecordingContext:
    def __init__(self) -> None:
        self.stored = 0
        self.errors: list[Exception] = []

    def __call__(
        self, index: int, count: int, ledger_id: int, first_entry_id: int, error: Exception | None
    ) -> None:
        if error is None:
            self.stored += count
        else:
            self.errors.append(error)


def entry(number: int) -> tuple[pb.MessageMetadata, bytes, int]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    return metadata, b"\x0e\x01body", number


async def local_producer(broker: Broker) -> tuple[LocalProducer, ManualLoop]:
    _, loop = await limited(broker, 10)
    producer = await LocalProducer.open(
        broker.service,
        broker.service.topics[TOPIC].name,
        "local",
        generated=False,
        remote="127.0.0.1:0",
        client_version="test",
    )
    return producer, loop


async def test_calls_of_a_local_producer_go_on_one_after_the_other(broker: Broker) -> None:
    producer, loop = await local_producer(broker)
    context = RecordingContext()
    order: list[int] = []
    producer.publish([entry(n) for n in range(20)], context)
    assert producer.held

    async def call(number: int) -> None:
        await producer.ready()
        order.append(number)
        producer.publish([entry(number)] * 10, context)

    calls = [asyncio.create_task(call(number)) for number in range(3)]
    await settle()
    calls[0].cancel()  # its client left
    await settle()
    loop.advance(1_099)
    await settle()
    assert order == []
    loop.advance(1)
    await settle()
    assert order == [1]
    loop.advance(1_000)
    await settle()
    assert order == [1, 2]
    await eventually(lambda: context.stored == 40)
    assert not context.errors


async def test_a_turn_is_given_away_when_its_call_is_gone(broker: Broker) -> None:
    producer, loop = await local_producer(broker)
    producer.publish([entry(n) for n in range(11)], RecordingContext())
    first, second = (asyncio.create_task(producer.ready()) for _ in range(2))
    await settle()
    loop.advance(200)
    first.cancel()  # after its turn came and before it ran
    await settle()
    assert second.done()


async def test_who_comes_anew_waits_like_the_others(broker: Broker) -> None:
    """Or a client that connects, or calls, for each message would never be slowed down."""
    first, loop = await local_producer(broker)
    first.publish([entry(n) for n in range(21)], RecordingContext())
    first.close()
    throttle = broker.service.topics[TOPIC].rate_limits.publish
    assert throttle is not None
    assert throttle.waiting == 0
    second = await LocalProducer.open(
        broker.service,
        broker.service.topics[TOPIC].name,
        "second",
        generated=False,
        remote="127.0.0.1:0",
        client_version="test",
    )
    client = broker.client(port=5_001)
    await client.receive_one()
    await client.produce(producer_name="third")
    assert (second.held, client.reads()) == (True, False)
    loop.advance(1_201)
    assert (second.held, client.reads()) == (False, True)


async def test_a_closed_producer_holds_nobody(broker: Broker) -> None:
    producer, _ = await local_producer(broker)
    producer.publish([entry(n) for n in range(1_000)], RecordingContext())
    call = asyncio.create_task(producer.ready())
    await settle()
    producer.close()
    await asyncio.wait_for(call, 30)
    assert not producer.held


# --- subscribing


async def test_a_consumer_that_subscribes_too_often_is_refused(broker: Broker) -> None:
    await broker.service.policies.update_namespace(
        "public/default",
        lambda old: {
            **old,
            "clusterSubscribeRate": {
                "standalone": {
                    "subscribeThrottlingRatePerConsumer": 2,
                    "ratePeriodInSecond": 3_600,
                }
            },
        },
    )
    client = broker.client()
    await client.receive_one()
    await client.produce()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t", "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    close = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
    command.subscribe.consumer_id = close.close_consumer.consumer_id = 1
    answers = []
    for request_id in range(10, 16, 2):
        command.subscribe.request_id, close.close_consumer.request_id = request_id, request_id + 1
        client.send(command)
        answers.append(await client.receive_one())
        client.send(close)
        await client.receive_one()
    assert [answer.type for answer in answers] == [
        *(pb.BaseCommand.SUCCESS, pb.BaseCommand.SUCCESS, pb.BaseCommand.ERROR)
    ]
    assert answers[2].error.error == pb.NotAllowedError
    assert answers[2].error.message == "Subscribe limited by subscribe rate limit per consumer."
    command.subscribe.consumer_id = 2  # another consumer has its own
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS


async def test_delayed_delivery_of_a_loaded_topic_is_switched_off(broker: Broker) -> None:
    client = broker.client()
    await client.receive_one()
    await client.produce()
    topic = broker.service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)
    await topic.create_subscription("s", EARLIEST)
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t", "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, 10
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    client.send(flow)
    later_ms = broker.service.clock() + 3_600_000
    client.feed(message(0, deliver_at_time=later_ms) + message(1))
    kinds = [answer.type for answer in await client.receive(3)]
    assert kinds.count(pb.BaseCommand.MESSAGE) == 1
    assert topic.subscriptions["s"].stats(0)["msgDelayed"] == 1
    await broker.service.policies.update_namespace(
        "public/default",
        lambda old: {**old, "delayed_delivery_policies": {"active": False, "tickTime": 1_000}},
    )
    assert (await client.receive_one()).message.message_id.entryId == 0
    client.feed(message(2, deliver_at_time=later_ms))
    kinds = [answer.type for answer in await client.receive(2)]
    assert kinds.count(pb.BaseCommand.MESSAGE) == 1
