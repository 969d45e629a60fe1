"""Seeded schedules against a whole topic: what is told of its producers, and of consumers that it
refuses, is what they were told themselves.
"""

import random
from typing import Any

import pytest

from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.dispatch.refusal import RECENT_MS
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import LATEST
from magnetar.metadata.loop_turns import run_at_once
from tests.simulation.simulator import seeds
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
STEPS = 60
SEEDS = seeds(3)
REASONS = {
    *(Reason.CAUGHT_UP, Reason.NO_PRODUCER, Reason.PRODUCER_REFUSED, Reason.STORING),
    *(Reason.QUOTA_HELD, Reason.PUBLISH_RATE_LIMITED, Reason.STORAGE_FAILED, Reason.TERMINATED),
    *(Reason.PRODUCERS_QUEUED, Reason.DUPLICATES),
    *(Reason.NO_CONSUMER, Reason.CONSUMER_REFUSED, Reason.NO_PERMITS),
}


class TopicWorld:
    """A topic with one subscription, and what its clients know of it."""

    def __init__(self, broker: Broker, topic: PersistentTopic, seed: int) -> None:
        self.broker, self.topic = broker, topic
        self.rng = random.Random(seed)
        self.producers: list[Client] = []
        self.queue: list[Client] = []
        """They wait for exclusive access, in this order."""
        self.owner: Client | None = None
        self.consumer: Client | None = None
        self.backlog = self.sequence = self.port = 0
        self.must_encrypt = self.is_limited = self.has_quota = False
        self.producer_refused_ms: int | None = None
        self.was_consumer_refused = False
        self.seen: set[Reason] = set()

    @property
    def now_ms(self) -> int:
        return self.broker.cluster.now_ms

    async def client(self) -> Client:
        self.port += 1
        client = self.broker.client(port=5000 + self.port)
        await client.receive_one()
        return client

    async def policy(self, **fields: Any) -> None:
        await self.broker.service.policies.update_namespace(
            "public/default", lambda old: {**old, **fields}
        )

    # --- what happens

    async def produce(self) -> None:
        client = await self.client()
        self.broker.cluster.now_ms += 1  # behind the last message
        answer, _ = await client.produce()
        if answer.type == pb.BaseCommand.ERROR:
            assert self.must_encrypt or self.has_quota or self.owner or self.queue
            self.producer_refused_ms = self.now_ms
            client.lose()
        else:
            self.producers.append(client)
            self.producer_refused_ms = None

    async def ask_for_all(self) -> None:
        """A producer wants the topic for itself, and waits for that."""
        client = await self.client()
        self.broker.cluster.now_ms += 1
        answer, _ = await client.produce(producer_access_mode=pb.WaitForExclusive)
        if answer.type == pb.BaseCommand.ERROR:
            assert self.must_encrypt or self.has_quota
            self.producer_refused_ms = self.now_ms
            client.lose()
            return
        self.producer_refused_ms = None
        is_owner = not (self.producers or self.queue)
        assert answer.producer_success.producer_ready == is_owner
        if is_owner:
            self.owner = client
            self.producers.append(client)
        else:
            self.queue.append(client)

    async def publish(self) -> None:
        if not self.producers:
            return
        client = self.rng.choice(self.producers)
        self.broker.cluster.now_ms += 1
        client.feed(message(self.sequence))
        self.sequence += 1
        receipts(await client.receive(1))
        self.backlog += 1
        self.producer_refused_ms = None

    async def leave(self) -> None:
        """One of them, or of those that wait; the first of these may have the topic then."""
        if not (there := [*self.producers, *self.queue]):
            return
        client = self.rng.choice(there)
        client.lose()
        (self.producers if client in self.producers else self.queue).remove(client)
        self.owner = None if client is self.owner else self.owner
        if not self.producers and self.queue:
            self.owner = self.queue.pop(0)
            assert (await self.owner.receive_one()).producer_success.producer_ready
            self.producers.append(self.owner)
        count = len(self.producers), len(self.queue)
        registry = self.topic.registry
        await eventually(lambda: (len(registry.by_name), len(registry.waiting)) == count)

    async def encryption(self) -> None:
        """Those that don't encrypt are closed, and come back no more."""
        self.must_encrypt = not self.must_encrypt
        await self.policy(encryption_required=self.must_encrypt)
        if self.must_encrypt:
            await eventually(lambda: not list(self.topic.registry))
            self.producers.clear()
            self.queue.clear()
            self.owner = None

    async def subscribe(self) -> None:
        client = await self.client()
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription = TOPIC, "s"
        command.subscribe.subType = pb.CommandSubscribe.Shared
        command.subscribe.consumer_id = command.subscribe.request_id = 1
        client.send(command)
        if (await client.receive_one()).type == pb.BaseCommand.ERROR:
            assert self.consumer is not None
            self.was_consumer_refused = True
            client.lose()
        else:
            self.consumer, self.was_consumer_refused = client, False

    async def end_consumer(self) -> None:
        if self.consumer is not None:
            self.consumer.lose()
            self.consumer = None
            await eventually(lambda: not self.topic.subscriptions["s"].consumers)

    async def skip(self) -> None:
        found = self.topic.subscriptions["s"]
        assert isinstance(found, PersistentSubscription)
        found.clear_backlog()
        self.backlog = 0

    async def time(self) -> None:
        self.broker.cluster.now_ms += self.rng.choice([1, 1_000, RECENT_MS])

    async def step(self) -> None:
        does = (
            *(self.produce, self.produce, self.publish, self.publish, self.leave, self.encryption),
            *(self.subscribe, self.subscribe, self.end_consumer, self.skip, self.time),
            *(self.ask_for_all, self.leave),
        )
        await self.rng.choice(does)()
        self.check()

    # --- what is told

    def is_recent(self, at_ms: int | None) -> bool:
        return at_ms is not None and self.now_ms - at_ms < RECENT_MS

    def of_producers(self) -> Reason | None:
        refused = self.producer_refused_ms
        if self.is_recent(refused) or (refused is not None and not self.producers):
            return Reason.PRODUCER_REFUSED
        if self.queue:
            return Reason.PRODUCERS_QUEUED
        return None if self.producers else Reason.NO_PRODUCER

    def check(self, publishing: Reason | None = None) -> None:
        """Args:
        publishing: what is the matter with the storage, or with limits.
        """
        publishing = publishing or self.of_producers()
        told = run_at_once(self.topic.explain_publishing())
        assert (None if told is None else told.reason) is publishing
        if told is not None and publishing is Reason.PRODUCERS_QUEUED:
            assert told.details == {"waitingProducers": len(self.queue)}
            assert ("Another producer" in told.message) == (self.owner is None)
        expected = publishing or Reason.CAUGHT_UP
        if self.backlog:
            expected = Reason.NO_PERMITS
            if self.consumer is None:
                refused = self.was_consumer_refused
                expected = Reason.CONSUMER_REFUSED if refused else Reason.NO_CONSUMER
        found = self.topic.subscriptions["s"].explain(told)
        assert found.reason is expected, found
        self.seen.add(found.reason)
        if publishing is not None:
            self.seen.add(publishing)

    async def with_refusals(self) -> None:
        """What chance may leave out."""
        while self.producers or self.queue:
            await self.leave()
        for _ in range(3):  # one has the topic, two wait
            await self.ask_for_all()
            self.check()
        while self.queue:
            await self.leave()
            self.check()
        await self.leave()
        for flag in (True, False):
            if self.must_encrypt is not flag:
                await self.encryption()
            await self.produce()
            self.check()
        await self.publish()
        await self.end_consumer()
        for accepted in (1, 2):  # the second time another one is refused before
            for _ in range(accepted):
                await self.subscribe()
                self.check()
            await self.end_consumer()
            self.check()

    async def with_duplicates(self, client: Client) -> None:
        """What is sent again isn't stored, and is told of until something is."""
        await self.policy(deduplicationEnabled=True)
        topic = self.topic
        await eventually(lambda: topic.deduplication is not None and topic.deduplication.judges)
        for sequence, told in ((self.sequence, None), (0, Reason.DUPLICATES)):
            client.feed(message(sequence))
            receipts(await client.receive(1))
            self.producer_refused_ms = None
            await self.skip()
            self.check(told)
        await self.policy(deduplicationEnabled=False)
        await eventually(lambda: topic.deduplication is None)
        self.sequence += 1

    async def with_faults(self) -> None:
        """One after the other, each once, and each ends."""
        await self.skip()
        client, service = self.producers[0], self.broker.service
        await self.with_duplicates(client)
        release = self.broker.hold_storage()
        client.feed(message(self.sequence))
        await eventually(lambda: self.topic.ledger.pending_bytes > 0)
        self.producer_refused_ms = None
        self.check(Reason.STORING)
        release()
        receipts(await client.receive(1))
        self.sequence, self.backlog = self.sequence + 1, 1
        self.check()
        quota = {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}
        await self.policy(backlog_quota_map={"destination_storage": quota})
        self.check(Reason.QUOTA_HELD)
        await self.policy(backlog_quota_map={})
        await self.skip()
        throttle: Any = PublishRateLimiter(Rate(1, 0), service.loop)
        service.publish_throttle = throttle
        client.feed(message(self.sequence) + message(self.sequence + 1))
        receipts(await client.receive(2))
        await self.skip()
        self.check(Reason.PUBLISH_RATE_LIMITED)
        throttle.close()
        self.check()
        self.topic.fenced = True
        self.check(Reason.STORAGE_FAILED)
        self.topic.fenced = False
        await self.topic.terminate()
        self.check(Reason.TERMINATED)


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_told_is_what_clients_were_told(seed: int) -> None:
    broker = await Broker().start()
    topic = await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    assert isinstance(topic, PersistentTopic)
    await topic.create_subscription("s", LATEST)
    world = TopicWorld(broker, topic, seed)
    await world.policy(max_consumers_per_subscription=1)
    world.check()
    for _ in range(STEPS):
        await world.step()
    await world.with_refusals()
    await world.with_faults()
    assert world.seen == REASONS
    await broker.close()
