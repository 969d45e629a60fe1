"""Backlog quotas of loaded topics: refused and dismissed producers, evictions, figures."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST, LATEST
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
PUBLISHED_MS = 1_700_000_000_000  # of doubles.message; the broker's clock starts there
PAYLOAD = bytes(1_000)
REFUSED = {
    "producer_request_hold": pb.ProducerBlockedQuotaExceededError,
    "producer_exception": pb.ProducerBlockedQuotaExceededException,
}


async def set_quota(broker: Broker, action: str, *, size: int = -1, seconds: int = -1) -> None:
    kind = "message_age" if seconds > 0 else "destination_storage"
    quota = {"limitSize": size, "limitTime": seconds, "policy": action}
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "backlog_quota_map": {kind: quota}}
    )


async def filled(broker: Broker, count: int = 20) -> tuple[Client, PersistentTopic]:
    """``count`` messages of a kilobyte, one a second, for the subscription "s"."""
    client = broker.client()
    await client.receive_one()
    await client.produce()
    topic = broker.service.topics[TOPIC]
    assert isinstance(topic, PersistentTopic)
    await topic.create_subscription("s", EARLIEST)
    for n in range(count):
        client.feed(message(n, PAYLOAD, publish_time=PUBLISHED_MS + 1_000 * n))
    assert len(receipts(await client.receive(count))) == count
    return client, topic


def cursor(topic: PersistentTopic, name: str = "s") -> Any:
    return topic.subscriptions[name].cursor


@pytest.mark.parametrize("action", REFUSED)
async def test_producers_end_and_new_ones_are_refused_until_the_backlog_is_small(
    broker: Broker, action: str
) -> None:
    client, topic = await filled(broker)
    await set_quota(broker, action, size=10_000)
    client.feed(message(20, PAYLOAD))
    receipts(await client.receive(1))  # between two checks nobody is stopped
    await broker.service.background_tasks.check_backlogs()
    closed = await client.receive_one()
    assert closed.type == pb.BaseCommand.CLOSE_PRODUCER
    assert not topic.producers
    refused, _ = await client.produce()
    assert refused.type == pb.BaseCommand.ERROR
    assert refused.error.error == REFUSED[action]
    assert refused.error.message == "Cannot create producer on topic with backlog quota exceeded"
    cursor(topic).ack_cumulative(topic.ledger.last_confirmed)
    created, _ = await client.produce()
    assert created.type == pb.BaseCommand.PRODUCER_SUCCESS
    await broker.service.background_tasks.check_backlogs()
    await client.expect_nothing()
    assert topic.producers


async def test_what_is_under_way_is_answered_before_the_producer_ends(broker: Broker) -> None:
    client, topic = await filled(broker)
    await set_quota(broker, "producer_request_hold", size=10_000)
    release = broker.hold_storage()
    client.feed(message(20, PAYLOAD) + message(21, PAYLOAD))
    await broker.service.background_tasks.check_backlogs()
    client.feed(message(22, PAYLOAD))  # will come again: its producer is about to end
    await broker.service.background_tasks.check_backlogs()  # a second time changes nothing
    await client.expect_nothing()
    release()
    commands = await client.receive(3)
    assert [sequence_id for sequence_id, _, _ in receipts(commands[:2])] == [20, 21]
    assert commands[2].type == pb.BaseCommand.CLOSE_PRODUCER
    assert topic.messages_in == 22
    assert not topic.producers


async def test_a_queued_exclusive_producer_hears_why(broker: Broker) -> None:
    client, topic = await filled(broker)
    await topic.delete_subscription("s")
    waiting = broker.client(port=5_001)
    await waiting.receive_one()
    queued, _ = await waiting.produce(producer_access_mode=pb.WaitForExclusive)
    assert queued.producer_success.producer_ready is False
    await topic.create_subscription("s", EARLIEST)
    await set_quota(broker, "producer_exception", size=10_000)
    await broker.service.background_tasks.check_backlogs()
    assert (await waiting.receive_one()).error.error == pb.ProducerBlockedQuotaExceededException
    assert (await client.receive_one()).type == pb.BaseCommand.CLOSE_PRODUCER
    assert not list(topic.registry)


async def test_eviction_moves_the_slow_subscriptions_and_only_them(broker: Broker) -> None:
    client, topic = await filled(broker)
    fast = await topic.create_subscription("fast", EARLIEST)
    ledger_id = topic.ledger.last_confirmed[0]
    fast.acknowledge_cumulative(None, (ledger_id, 15))
    await set_quota(broker, "consumer_backlog_eviction", size=10_000)
    await broker.service.background_tasks.check_backlogs()
    # A kilobyte and its head and metadata: eight fit into nine tenths of the limit.
    assert (cursor(topic).state.backlog, cursor(topic, "fast").state.backlog) == (8, 4)
    assert topic.stats()["backlogSize"] <= 9_000
    assert topic.backlog.evictions == {"destination_storage": 1, "message_age": 0}
    assert topic.subscriptions["s"].stats(0)["msgExpired"] == 0
    await client.expect_nothing()  # producers stay
    await broker.service.background_tasks.check_backlogs()
    assert cursor(topic).state.backlog == 8


async def test_eviction_by_age_drops_what_is_too_old(broker: Broker) -> None:
    _, topic = await filled(broker)
    await set_quota(broker, "consumer_backlog_eviction", seconds=60)
    broker.cluster.now_ms = PUBLISHED_MS + 60_999
    await broker.service.background_tasks.check_backlogs()
    assert cursor(topic).state.backlog == 20
    broker.cluster.now_ms = PUBLISHED_MS + 65_000
    await broker.service.background_tasks.check_backlogs()
    assert cursor(topic).state.backlog == 15
    assert topic.backlog.evictions["message_age"] == 1


async def test_age_bars_producers(broker: Broker) -> None:
    client, topic = await filled(broker)
    await set_quota(broker, "producer_exception", seconds=60)
    broker.cluster.now_ms = PUBLISHED_MS + 61_000
    refused, _ = await client.produce(producer_id=2, producer_name="second")
    assert refused.error.error == pb.ProducerBlockedQuotaExceededException
    await broker.service.background_tasks.check_backlogs()
    assert (await client.receive_one()).type == pb.BaseCommand.CLOSE_PRODUCER
    cursor(topic).ack_cumulative((topic.ledger.last_confirmed[0], 0))
    created, _ = await client.produce()
    assert created.type == pb.BaseCommand.PRODUCER_SUCCESS


async def test_without_subscriptions_nothing_is_exceeded(broker: Broker) -> None:
    client, topic = await filled(broker)
    topic.ledger.new_non_durable_cursor(EARLIEST, "reader")
    await topic.delete_subscription("s")
    await set_quota(broker, "producer_request_hold", size=10)
    await broker.service.background_tasks.check_backlogs()
    await client.expect_nothing()
    assert topic.stats()["backlogSize"] == 0


async def test_the_figures(broker: Broker) -> None:
    _, topic = await filled(broker)
    await set_quota(broker, "producer_request_hold", size=1 << 40)
    await topic.create_subscription("late")
    broker.cluster.now_ms = PUBLISHED_MS + 90_500
    stats = topic.stats()
    assert stats["backlogQuotaLimitSize"] == 1 << 40
    assert stats["backlogQuotaLimitTime"] == -1
    assert stats["oldestBacklogMessageAgeSeconds"] == 90
    assert stats["oldestBacklogMessageSubscriptionName"] == "s"
    assert stats["backlogSize"] == topic.ledger.total_bytes
    assert stats["subscriptions"]["s"]["backlogSize"] == topic.ledger.total_bytes
    assert stats["subscriptions"]["late"]["backlogSize"] == 0
    cursor(topic).ack([(topic.ledger.last_confirmed[0], n) for n in (0, 1, 2)])
    assert topic.stats()["oldestBacklogMessageAgeSeconds"] == 87
    topic.subscriptions["s"].clear_backlog()  # type: ignore[attr-defined] # a persistent one
    stats = topic.stats()
    assert stats["oldestBacklogMessageAgeSeconds"] == -1
    assert "oldestBacklogMessageSubscriptionName" not in stats


async def test_the_broker_s_default_and_the_timer() -> None:
    broker = await Broker(
        backlog_quota_default_limit_bytes=10_000,
        backlog_quota_default_retention_policy="consumer_backlog_eviction",
        backlog_quota_check_interval_in_seconds=30,
    ).start()
    try:
        _, topic = await filled(broker)
        background_tasks = broker.service.background_tasks
        background_tasks.on_sweep(PUBLISHED_MS + 29_999)
        await asyncio.sleep(0)
        assert cursor(topic).state.backlog == 20
        background_tasks.on_sweep(PUBLISHED_MS + 30_000)
        await eventually(lambda: cursor(topic).state.backlog == 8)
    finally:
        await broker.close()


async def test_unused_subscriptions_expire(broker: Broker) -> None:
    client, topic = await filled(broker, 2)
    background_tasks = broker.service.background_tasks
    await topic.create_subscription("used", EARLIEST)
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t", "connected"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = 9
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    await background_tasks.expire_subscriptions(PUBLISHED_MS + 10**9)
    assert set(topic.subscriptions) == {"s", "used", "connected"}  # by default none expires
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "subscription_expiration_time_minutes": 1}
    )
    broker.cluster.now_ms = PUBLISHED_MS + 30_000
    topic.subscriptions["used"].acknowledge(None, [topic.ledger.offsets.first_position()])
    idle = topic.subscriptions["s"]
    assert isinstance(idle, PersistentSubscription)
    assert (
        idle.expire_upto(topic.ledger.offsets.first_position()) == 1
    )  # what the broker does is no use
    await background_tasks.expire_subscriptions(PUBLISHED_MS + 60_000)
    assert set(topic.subscriptions) == {"s", "used", "connected"}  # exactly as long as they may
    await background_tasks.expire_subscriptions(PUBLISHED_MS + 60_001)
    assert set(topic.subscriptions) == {"used", "connected"}
    broker.cluster.now_ms = PUBLISHED_MS + 90_001
    client.lose()
    await background_tasks.expire_subscriptions(PUBLISHED_MS + 90_001)
    assert set(topic.subscriptions) == {"connected"}
    await background_tasks.expire_subscriptions(PUBLISHED_MS + 150_002)
    assert not topic.subscriptions
    assert not topic.ledger.cursors


async def test_retention_and_persistence_reach_loaded_topics(broker: Broker) -> None:
    _, topic = await filled(broker, 1)
    await broker.service.policies.update_namespace(
        "public/default",
        lambda old: {
            **old,
            "retention_policies": {"retentionTimeInMinutes": 7, "retentionSizeInMB": 3},
            "persistence": {
                "bookkeeperEnsemble": 3,
                "bookkeeperWriteQuorum": 2,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 0,
            },
        },
    )
    config = topic.ledger.config
    assert (config.retention_ms, config.retention_bytes) == (420_000, 3 << 20)
    assert (config.ensemble_size, config.write_quorum, config.ack_quorum) == (3, 2, 1)


async def test_a_topic_that_asks_for_more_bookies_than_there_are_has_no_producers(
    broker: Broker,
) -> None:
    persistence = {
        "bookkeeperEnsemble": 2,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0,
    }
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "persistence": persistence}
    )
    client = broker.client()
    await client.receive_one()
    refused, _ = await client.produce()
    assert refused.error.error == pb.PersistenceError
    assert refused.error.message == "2 bookies are asked for, 1 are missing"
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "persistence": None}
    )
    created, _ = await client.produce()
    assert created.type == pb.BaseCommand.PRODUCER_SUCCESS
    client.feed(message(0))
    receipts(await client.receive(1))
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "persistence": persistence}
    )
    created, _ = await client.produce(producer_id=2, producer_name="second")
    assert created.type == pb.BaseCommand.PRODUCER_SUCCESS  # the ledger of now takes more


def explained(topic: PersistentTopic) -> dict[str, Explanation]:
    publishing = run_at_once(topic.explain_publishing())
    return {name: each.explain(publishing) for name, each in topic.subscriptions.items()}


async def test_others_have_their_turns_while_very_many_subscriptions_are_looked_at(
    broker: Broker,
) -> None:
    _, topic = await filled(broker)
    for number in range(20):
        await topic.create_subscription(f"more{number}", LATEST)
    await set_quota(broker, "producer_exception", size=10_000)
    assert explained(topic)["more0"].reason is Reason.QUOTA_HELD
    assert sum(1 for _ in topic.explain_publishing()) > 20


@pytest.mark.parametrize("action", [*REFUSED, "consumer_backlog_eviction"])
async def test_a_subscription_without_backlog_is_told_whose_backlog_stops_producers(
    broker: Broker, action: str
) -> None:
    _, topic = await filled(broker)
    await topic.create_subscription("done", LATEST)
    assert explained(topic)["done"].reason is Reason.CAUGHT_UP
    await set_quota(broker, action, size=10_000)
    found = explained(topic)
    assert found["s"].reason is Reason.NO_CONSUMER
    if action not in REFUSED:
        assert found["done"].reason is Reason.CAUGHT_UP
        return
    assert (found["done"].reason, found["done"].details["subscription"]) == ("quotaHeld", "s")
    waits = "Producers wait" if action == "producer_request_hold" else "Producers are refused"
    assert waits in found["done"].message
    await set_quota(broker, action, size=100_000)
    assert explained(topic)["done"].reason is Reason.CAUGHT_UP
    await topic.terminate()
    assert explained(topic)["done"].reason is Reason.TERMINATED


async def test_a_subscription_is_told_why_nothing_is_published(broker: Broker) -> None:
    client, topic = await filled(broker, 1)
    await topic.create_subscription("done", LATEST)
    service: Any = topic.service
    service.publish_throttle = PublishRateLimiter(Rate(1, 0), service.loop)
    client.feed(message(1) + message(2))
    receipts(await client.receive(2))
    done = topic.subscriptions["done"]
    assert isinstance(done, PersistentSubscription)
    done.clear_backlog()
    found = explained(topic)["done"]
    assert (found.reason, found.details["scope"]) == (Reason.PUBLISH_RATE_LIMITED, "broker")
    assert found.details["waitingProducers"] == 1
    service.publish_throttle.close()
    assert explained(topic)["done"].reason is Reason.CAUGHT_UP
    topic.fenced = True
    assert explained(topic)["done"].reason is Reason.STORAGE_FAILED
    topic.fenced = False
    topic.ledger.append_path().core.append([b"h"], [b"0123456789"], lambda *_: None, 0)
    found = explained(topic)["done"]
    assert (found.reason, found.details["pendingBytes"]) == (Reason.STORING, 11)
