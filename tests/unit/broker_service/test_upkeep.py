"""Expiry of messages and leaked ledgers, as the sweep begins them."""

from __future__ import annotations

import asyncio

from bookkeeper.client.config import LedgerConfig
from broker.protocol import pulsar_api_pb2 as pb
from broker.service.persistent_topic import PersistentTopic
from managed_ledger.leaks import custom_metadata
from managed_ledger.position import EARLIEST
from tests.unit.broker_service.doubles import Broker, Client, message, receipts
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
    return cursor.backlog


async def test_messages_expire_by_the_namespace_s_policy(broker: Broker) -> None:
    topic, upkeep = await backlog_of_three(broker), broker.service._sweeper.upkeep
    broker.cluster.now_ms = PUBLISHED_MS + 3_600_000
    await upkeep.expire_messages(broker.service.clock())
    assert backlog(topic) == 3  # by default nothing expires
    await broker.service.resources.update_policies(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": 60}
    )
    await upkeep.expire_messages(PUBLISHED_MS + 60_000)
    assert backlog(topic) == 3  # exactly as old as they may be
    await upkeep.expire_messages(PUBLISHED_MS + 70_001)
    assert backlog(topic) == 1
    assert topic.subscriptions["s"].stats(0)["msgExpired"] == 2
    await upkeep.expire_messages(PUBLISHED_MS + 80_001)
    assert backlog(topic) == 0


async def test_a_namespace_may_switch_the_broker_s_default_off() -> None:
    broker = await Broker(ttl_duration_default_in_seconds=60).start()
    topic, upkeep = await backlog_of_three(broker), broker.service._sweeper.upkeep
    await broker.service.resources.update_policies(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": 0}
    )
    await upkeep.expire_messages(PUBLISHED_MS + 3_600_000)
    assert backlog(topic) == 3
    await broker.service.resources.update_policies(
        "public/default",
        lambda old: {key: old[key] for key in old if key != "message_ttl_in_seconds"},
    )
    upkeep.on_sweep(PUBLISHED_MS + 299_999)
    assert backlog(topic) == 3
    upkeep.on_sweep(PUBLISHED_MS + 300_000)  # the interval's default: 5 minutes
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
    await broker.service.resources.update_policies(
        "public/default", lambda old: {**old, "message_ttl_in_seconds": 60}
    )
    await broker.service._sweeper.upkeep.expire_messages(PUBLISHED_MS + 70_001)
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
    upkeep, start_ms = broker.service._sweeper.upkeep, broker.service.clock()
    found: list[int] = []
    delete = client.delete_ledger

    async def note(ledger_id: int) -> None:
        found.append(ledger_id)
        await delete(ledger_id)

    client.delete_ledger = note  # type: ignore[method-assign]  # to see it once
    upkeep.on_sweep(start_ms + 59_999)
    await asyncio.sleep(0.01)
    assert found == []
    for _ in range(2):
        upkeep.on_sweep(start_ms + 60_000)
    await eventually(lambda: not upkeep._running)
    assert found == [leaked.ledger_id]
    assert await client.read_ledger_metadata(leaked.ledger_id) is None
