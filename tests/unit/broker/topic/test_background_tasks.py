"""Expiry of messages and leaked ledgers, as the sweep begins them."""

import asyncio

import pytest

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.ledger_info_chunks import chunks_path
from magnetar.managed_ledger.orphan_ledgers import custom_metadata
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.read_path import ReadPath
from magnetar.metadata.errors import MetadataError
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
PUBLISHED_MS = 1_700_000_000_000  # of doubles.message; the broker's clock starts there


async def backlog_of_three(broker: Broker) -> PersistentTopic:
    """Messages published 0, 10 and 20 s after the start, for the subscription "s"."""
    client = broker.client()
    await client.receive_one()
    await client.produce()
    topic = broker.service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)
    await topic.create_subscription("s", EARLIEST)
    for n in range(3):
        client.feed(message(n, publish_time=PUBLISHED_MS + 10_000 * n))
    assert len(receipts(await client.receive(3))) == 3
    return topic


def backlog(topic: PersistentTopic) -> int:
    cursor = topic.subscriptions["s"].cursor
    assert cursor is not None
    return cursor.state.backlog


async def test_messages_expire_by_the_namespace_s_policy(broker: Broker) -> None:
    topic, background_tasks = (
        await backlog_of_three(broker),
        broker.service.background_tasks,
    )
    broker.cluster.now_ms = PUBLISHED_MS + 3_600_000
    await background_tasks.expire_messages(broker.service.clock())
    assert backlog(topic) == 3  # by default nothing expires
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": 60}
    )
    await background_tasks.expire_messages(PUBLISHED_MS + 60_000)
    assert backlog(topic) == 3  # exactly as old as they may be
    await background_tasks.expire_messages(PUBLISHED_MS + 70_001)
    assert backlog(topic) == 1
    assert topic.subscriptions["s"].stats(0)["msgExpired"] == 2
    await background_tasks.expire_messages(PUBLISHED_MS + 80_001)
    assert backlog(topic) == 0


async def test_a_namespace_may_switch_the_broker_s_default_off() -> None:
    broker = await Broker(ttl_duration_default_in_seconds=60).start()
    topic, background_tasks = (
        await backlog_of_three(broker),
        broker.service.background_tasks,
    )
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": 0}
    )
    await background_tasks.expire_messages(PUBLISHED_MS + 3_600_000)
    assert backlog(topic) == 3
    await broker.service.policies.update_namespace(
        "public/default",
        lambda old: {key: old[key] for key in old if key != "message_ttl_in_seconds"},
    )
    background_tasks.on_sweep(PUBLISHED_MS + 299_999)
    assert backlog(topic) == 3
    background_tasks.on_sweep(PUBLISHED_MS + 300_000)  # the interval's default: 5 minutes
    await eventually(lambda: backlog(topic) == 0)
    await broker.close()


async def test_an_expired_message_isn_t_delivered_again(broker: Broker) -> None:
    """Pending at a Shared consumer when it expires: permits and counts stay right."""
    topic = await backlog_of_three(broker)
    client: Client = broker.client(port=5001)
    await client.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t", "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    client.send(command)
    await client.receive_one()
    flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, 10
    client.send(flow)
    await client.expect_something()
    subscription = topic.subscriptions["s"]
    await eventually(lambda: subscription.stats(0)["unackedMessages"] == 3)
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": 60}
    )
    await broker.service.background_tasks.expire_messages(PUBLISHED_MS + 70_001)
    assert subscription.stats(0)["unackedMessages"] == 1
    client.take()
    redeliver = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    redeliver.redeliverUnacknowledgedMessages.consumer_id = 1
    client.send(redeliver)
    await client.expect_something()
    assert [each.message.message_id.entryId for each in client.take()] == [2]


async def test_ledgers_of_crashed_owners_are_deleted_a_minute_after_the_start(
    broker: Broker,
) -> None:
    client = broker.ledgers._client
    leaked = await client.create_ledger(
        LedgerConfig(), custom_metadata("public/default/persistent/gone")
    )
    chunk = f"{chunks_path('/managed-ledgers/public/default/persistent/gone')}/0000000000-gone-1"
    await broker.cluster.store.put(chunk, b"x")
    background_tasks, start_ms = (
        broker.service.background_tasks,
        broker.service.clock(),
    )
    found: list[int] = []
    delete = client.delete_ledger

    async def note(ledger_id: int) -> None:
        found.append(ledger_id)
        await delete(ledger_id)

    client.delete_ledger = note  # type: ignore[method-assign]  # to see it once
    background_tasks.on_sweep(start_ms + 59_999)
    await asyncio.sleep(0.01)
    assert found == []
    for _ in range(2):
        background_tasks.on_sweep(start_ms + 60_000)
    await eventually(lambda: not background_tasks._running)
    assert found == [leaked.ledger_id]
    assert await client.read_ledger_metadata(leaked.ledger_id) is None
    assert not await broker.cluster.store.exists(chunk)


@pytest.mark.parametrize("name", ["expiry", "backlog check"])
async def test_a_topic_that_cannot_be_read_keeps_no_other_from_its_turn(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await Broker(
        ttl_duration_default_in_seconds=60,
        backlog_quota_default_limit_second=60,
        backlog_quota_default_retention_policy="consumer_backlog_eviction",
    ).start()
    client = broker.client()
    await client.receive_one()
    topics: list[PersistentTopic] = []
    for number, topic_name in enumerate("ab", 1):
        await client.produce(topic_name, producer_id=number)
        topic = broker.service.topics[f"persistent://public/default/{topic_name}"]
        assert isinstance(topic, PersistentTopic)
        await topic.create_subscription("s", EARLIEST)
        client.feed(message(0, producer_id=number))
        await client.receive_one()
        assert topic.ledger.log_cache is not None
        topic.ledger.log_cache.clear()
        topics.append(topic)
    client.lose()
    failing = True
    read = ReadPath._reader

    async def reader(self: ReadPath, ledger_id: int) -> object:
        if failing and ledger_id == topics[0].ledger.last_confirmed[0]:
            raise MetadataError("connection loss")  # as opening a closed ledger may
        return await read(self, ledger_id)

    monkeypatch.setattr(ReadPath, "_reader", reader)
    work = broker.service.background_tasks.rounds[name].work
    for hour in (1, 2, 3):
        broker.cluster.now_ms = PUBLISHED_MS + 3_600_000 * hour
        await work(broker.cluster.now_ms)
    assert [backlog(topic) for topic in topics] == [1, 0]
    assert len([x for x in caplog.messages if "failed for 1" in x]) == 1, "once, not each round"
    failing = False
    await work(broker.cluster.now_ms)
    assert backlog(topics[0]) == 0
    await broker.close()
