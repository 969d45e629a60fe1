"""Seeded schedules of keys, batches and compactions: who reads compacted is told of each message
what became of it, and the subscription of compactions how much lies behind the last one.

Without a process: what compacts is its core.
"""

import random
from struct import pack
from typing import Any, NamedTuple

import pytest

from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.message_explanation import explain_message
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.orphan_ledgers import COMPACTION_CURSOR
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.simulation.simulator import seeds
from tests.simulation.test_topic_compaction import Failure, InlineProcess
from tests.unit.broker.doubles import Broker, Client, message, receipts

TOPIC = "persistent://public/default/t"
SEEDS = seeds(3)
STEPS = 40


class Kept(NamedTuple):
    """A message as its producer has sent it."""

    position: Position
    at: int
    """Its index in its batch; -1: it is alone."""
    key: str
    """"": it has none."""
    has_value: bool

    @property
    def id(self) -> str:
        entry = f"{self.position[0]}:{self.position[1]}"
        return entry if self.at < 0 else f"{entry}:-1:{self.at}"


class CompactedWorld:
    """A topic that is read compacted by one subscription, and as it is by another one."""

    def __init__(self, topic: PersistentTopic, producer: Client, seed: int) -> None:
        self.topic, self.producer, self.rng = topic, producer, random.Random(seed)
        self.sent: list[Kept] = []
        self.told: set[tuple[Reason, str]] = set()

    def subscription(self, name: str) -> PersistentSubscription:
        found = self.topic.subscriptions[name]
        assert isinstance(found, PersistentSubscription)
        return found

    async def publish(self) -> None:
        rng, count = self.rng, self.rng.choice([1, 1, 3])
        parts = [(rng.choice(["a", "b", "c", ""]), rng.random() < 0.8) for _ in range(count)]
        fields: dict[str, Any] = {}
        if count == 1:
            key, has_value = parts[0]
            payload = b"value" if has_value else b""
            fields = {"partition_key": key} if key else {}
        else:
            payload = b"".join(single(key, has_value=has_value) for key, has_value in parts)
            fields["num_messages_in_batch"] = count
        self.producer.feed(message(len(self.sent), payload, **fields))
        ((_, ledger_id, entry_id),) = receipts(await self.producer.receive(1))
        for index, (key, has_value) in enumerate(parts):
            at = index if count > 1 else -1
            self.sent.append(Kept((ledger_id, entry_id), at, key, has_value))

    async def compact(self) -> None:
        topic = self.topic
        if topic.compaction is None:
            topic.compaction = topic._new_compaction()
            topic.compaction.start_process = lambda partition, _: InlineProcess(Failure())
        before = self.horizon
        topic.compact()
        assert topic.compaction._run is not None
        if COMPACTION_CURSOR in topic.subscriptions:
            self.check_behind(before, is_running=True)
        await topic.compaction._run
        assert (topic.compaction.status, topic.compaction.last_error) == ("SUCCESS", "")
        assert self.horizon == self.sent[-1].position

    @property
    def horizon(self) -> Position:
        return EARLIEST if self.topic.compacted is None else self.topic.compacted.horizon

    # --- what is told

    def check_behind(self, horizon: Position, *, is_running: bool = False) -> None:
        behind = len({each.position for each in self.sent if each.position > horizon})
        found = self.subscription(COMPACTION_CURSOR).explain(None)
        self.told.add((found.reason, ""))
        if not behind:
            assert found.reason is Reason.CAUGHT_UP
            return
        assert found.reason is Reason.NOT_COMPACTED
        assert found.message.split()[0] == str(behind)
        assert ("is under way" in found.next) == is_running

    def expected(self, asked: Kept) -> str:
        """What a compaction did with it, "": it is there."""
        newest = [
            each for each in self.sent if each.key == asked.key and each.position <= self.horizon
        ][-1]
        if not asked.key:
            return "it has no key."
        if not asked.has_value:
            return "it has no value and removed its key."
        if not newest.has_value:
            return "by a later message without a value, which removed its key."
        return "" if newest == asked else f"away by {newest.id}."

    async def check(self) -> None:
        for asked in self.sent:
            log = await explain_message(self.subscription("log"), asked.position, asked.at)
            assert log.reason is not Reason.COMPACTED_AWAY, asked
            found = await explain_message(self.subscription("table"), asked.position, asked.at)
            is_behind = asked.position > self.horizon
            if is_behind or not (says := self.expected(asked)):
                assert found.reason is not Reason.COMPACTED_AWAY, (asked, found)
                self.told.add((found.reason, ""))
                continue
            assert found.reason is Reason.COMPACTED_AWAY, (asked, found)
            assert found.message.endswith(says), (asked, found)
            self.told.add((found.reason, says if says.startswith(("it", "by")) else "newer"))
        if COMPACTION_CURSOR in self.topic.subscriptions:
            self.check_behind(self.horizon)


def single(key: str, *, has_value: bool) -> bytes:
    """A message of a batch."""
    payload = b"value" if has_value else b""
    part = pb.SingleMessageMetadata(payload_size=len(payload))
    if key:
        part.partition_key = key
    data = part.SerializeToString()
    return pack(">I", len(data)) + data + payload


async def subscribe(broker: Broker, name: str, port: int, *, read_compacted: bool) -> None:
    client = broker.client(port=port)
    await client.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    asked = command.subscribe
    asked.topic, asked.subscription, asked.subType = TOPIC, name, pb.CommandSubscribe.Exclusive
    asked.consumer_id = asked.request_id = 1
    asked.read_compacted = read_compacted
    asked.initialPosition = pb.CommandSubscribe.Earliest
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_told_of_each_message_is_what_compactions_did(seed: int) -> None:
    broker = await Broker().start()
    topic = await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    assert isinstance(topic, PersistentTopic)
    await subscribe(broker, "table", 5001, read_compacted=True)
    await subscribe(broker, "log", 5002, read_compacted=False)
    producer = broker.client()
    await producer.receive_one()
    await producer.produce()
    world = CompactedWorld(topic, producer, seed)
    await world.publish()
    for _ in range(STEPS):
        await (world.compact if world.rng.random() < 0.15 else world.publish)()
        await world.check()
    assert {
        *((Reason.NOT_COMPACTED, ""), (Reason.CAUGHT_UP, "")),
        *((Reason.COMPACTED_AWAY, "newer"), (Reason.COMPACTED_AWAY, "it has no key.")),
        (Reason.COMPACTED_AWAY, "it has no value and removed its key."),
        (
            Reason.COMPACTED_AWAY,
            "by a later message without a value, which removed its key.",
        ),
    } <= world.told
    await broker.close()
