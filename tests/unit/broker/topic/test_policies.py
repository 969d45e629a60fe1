"""Policies of loaded topics: delivered live, enforced where something is asked of the topic."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.errors import NamespaceNotFoundError, NotAllowedError, PreconditionFailedError
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.resources.resources import topic_policies_path
from magnetar.broker.topic.topic import Topic
from magnetar.metadata.errors import MetadataWriteError
from tests.unit.broker.doubles import Broker, Client, message
from tests.unit.managed_ledger.cluster import eventually

NAMESPACE = "public/default"
TOPIC = "persistent://public/default/t"


def name_of(text: str) -> TopicName:
    return TopicName.parse(text)


async def loaded(broker: Broker, name: str = TOPIC) -> Topic:
    return await broker.service.loader.load(name_of(name), create=True)


async def set_namespace(broker: Broker, **fields: object) -> None:
    await broker.service.policies.update_namespace(NAMESPACE, lambda old: {**old, **fields})


async def set_topic(broker: Broker, name: str = TOPIC, **fields: object) -> None:
    await broker.service.policies.update_topic(
        name_of(name), lambda _: {"local": fields} if fields else {}
    )


async def subscribe(
    client: Client, subscription: str, consumer: int, **fields: Any
) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = TOPIC, subscription
    command.subscribe.subType = fields.pop("sub_type", pb.CommandSubscribe.Shared)
    command.subscribe.consumer_id = command.subscribe.request_id = consumer
    client.send(command)
    return await client.receive_one()


async def connected(broker: Broker, port: int = 5000) -> Client:
    client = broker.client(port=port)
    await client.receive_one()
    return client


def code(answer: pb.BaseCommand) -> int:
    assert answer.type == pb.BaseCommand.ERROR, answer
    return answer.error.error


# --- delivery


async def test_topics_of_a_namespace_share_its_policies(broker: Broker) -> None:
    first, second = await loaded(broker), await loaded(broker, TOPIC + "2")
    assert first.policies is second.policies
    await set_namespace(broker, message_ttl_in_seconds=7)
    assert first.policies is second.policies
    assert first.policies.message_ttl_s == 7


async def test_topics_share_policies_that_are_decoded_anew_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write's own event empties the cache; it may come between two topics of one round."""
    first, second = await loaded(broker), await loaded(broker, TOPIC + "2")
    policies, resources = broker.service.policies, broker.service.resources
    renew = policies._renew_topic

    async def renew_and_read_again(
        topic: Topic, namespace: EffectivePolicies, *, read_own: bool
    ) -> None:
        await renew(topic, namespace, read_own=read_own)
        resources.config_changed(policies._config)

    monkeypatch.setattr(policies, "_renew_topic", renew_and_read_again)
    await set_namespace(broker, message_ttl_in_seconds=7)
    assert first.policies is second.policies
    assert first.policies.message_ttl_s == 7


async def test_a_change_by_another_broker_reaches_the_topic(broker: Broker) -> None:
    topic = await loaded(broker)
    path, store = f"/admin/policies/{NAMESPACE}", broker.service.store
    found = await store.get(path)
    assert found is not None
    document = {**json.loads(found.value), "message_ttl_in_seconds": 9}
    await store.put(path, json.dumps(document).encode())
    await eventually(lambda: topic.policies.message_ttl_s == 9)
    own = {"local": {"message_ttl_in_seconds": 3}}
    path = "/admin/topic-policies/public/default/persistent/t"
    await store.put(path, json.dumps(own).encode())
    await eventually(lambda: topic.policies.message_ttl_s == 3)
    await store.delete(path)
    await eventually(lambda: topic.policies.message_ttl_s == 9)


async def test_a_write_is_applied_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own event, which comes as well, finds nothing new."""
    topic, policies = await loaded(broker), broker.service.policies
    applied: list[int] = []
    monkeypatch.setattr(
        topic, "policies_changed", lambda: applied.append(topic.policies.message_ttl_s)
    )

    async def settled(changes: int) -> None:
        await eventually(
            lambda: policies.follower.changes >= changes and policies.follower._task is None
        )

    before = policies.follower.changes
    await set_namespace(broker, message_ttl_in_seconds=1)
    await settled(before + 2)
    await set_topic(broker, message_ttl_in_seconds=2)
    await settled(before + 4)
    assert applied == [1, 2]


async def test_topics_of_other_namespaces_are_not_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.service.resources.create_namespace("public/other", ["standalone"], 4)
    await loaded(broker, "persistent://public/other/t")
    await loaded(broker)
    await loaded(broker, TOPIC + "2")
    policies, seen = broker.service.policies, set[str]()
    renew = policies._renew_topic

    async def note(topic: Topic, namespace: EffectivePolicies, *, read_own: bool) -> None:
        seen.add(topic.full_name)
        await renew(topic, namespace, read_own=read_own)

    monkeypatch.setattr(policies, "_renew_topic", note)
    await set_namespace(broker, message_ttl_in_seconds=5)
    assert seen == {TOPIC, TOPIC + "2"}
    seen.clear()
    await set_topic(broker, message_ttl_in_seconds=6)
    assert seen == {TOPIC}


async def test_partitions_have_their_partitioned_topic_s_policies(broker: Broker) -> None:
    await broker.service.directory.create_partitioned(name_of(TOPIC), 2)
    parts = [await loaded(broker, f"{TOPIC}-partition-{index}") for index in range(2)]
    other = await loaded(broker, TOPIC + "-other")
    await set_topic(broker, max_producers_per_topic=4)
    assert [part.policies.max_producers for part in parts] == [4, 4]
    assert other.policies.max_producers == 0
    await broker.service.loader.unload(str(parts[0].name))
    assert (await loaded(broker, parts[0].full_name)).policies.max_producers == 4
    assert broker.service.policies.defaults.max_producers == 0


async def test_own_policies_go_with_the_topic_and_with_the_namespace(broker: Broker) -> None:
    await loaded(broker)
    await set_topic(broker, max_producers_per_topic=4)
    await broker.service.directory.delete(name_of(TOPIC))
    assert await broker.service.resources.topic_policies(name_of(TOPIC)) is None
    assert (await loaded(broker)).policies.max_producers == 0
    await set_topic(broker, max_producers_per_topic=4)
    await set_topic(broker)
    assert await broker.service.resources.topic_policies(name_of(TOPIC)) is None
    await broker.service.directory.delete(name_of(TOPIC))
    await broker.service.directory.create_partitioned(name_of(TOPIC), 1)
    await set_topic(broker, max_producers_per_topic=4)
    await broker.service.directory.delete(name_of(TOPIC).partition(0))
    assert await broker.service.resources.topic_policies(name_of(TOPIC)) is not None
    await broker.service.directory.delete_partitioned(name_of(TOPIC))
    assert await broker.service.resources.topic_policies(name_of(TOPIC)) is None


async def test_a_change_during_the_load_isn_t_missed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document is read, then it changes, then the topic is registered."""
    of = broker.service.policies.of

    async def of_and_change(name: TopicName) -> Any:
        policies = await of(name)
        monkeypatch.setattr(broker.service.policies, "of", of)
        await set_namespace(broker, message_ttl_in_seconds=11)
        return policies

    monkeypatch.setattr(broker.service.policies, "of", of_and_change)
    topic = await loaded(broker)
    await eventually(lambda: topic.policies.message_ttl_s == 11)


async def test_what_can_t_be_read_holds_on_until_it_can(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.service.store_follower._RETRY_S", 0.01)
    topic = await loaded(broker)
    resources = broker.service.resources
    read = resources.policies
    failures = 0

    async def fail(namespace: str) -> Any:
        nonlocal failures
        failures += 1
        raise MetadataWriteError("/admin", OSError("gone"))

    monkeypatch.setattr(resources, "policies", fail)
    await set_namespace(broker, message_ttl_in_seconds=5)
    assert topic.policies.message_ttl_s == 0
    await eventually(lambda: failures > 1)
    monkeypatch.setattr(resources, "policies", read)
    await eventually(lambda: topic.policies.message_ttl_s == 5)


async def test_a_damaged_document_keeps_nobody_else_from_the_news(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.service.store_follower._RETRY_S", 0.01)
    damaged, sound = await loaded(broker), await loaded(broker, TOPIC + "2")
    path = topic_policies_path(name_of(TOPIC))
    await broker.service.store.put(path, b"{")
    service = broker.service
    await service.policies.config_changed(
        replace(service.config, ttl_duration_default_in_seconds=5)
    )
    assert sound.policies.message_ttl_s == 5
    assert damaged.policies.message_ttl_s == 0
    await service.store.put(path, b"{}")
    await eventually(lambda: damaged.policies.message_ttl_s == 5)


async def test_a_writer_waits_for_its_own_news_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await loaded(broker)
    policies = broker.service.policies
    renew = policies._renew_topic

    async def renew_and_write_again(
        topic: Topic, namespace: EffectivePolicies, *, read_own: bool
    ) -> None:
        await asyncio.sleep(0)
        await renew(topic, namespace, read_own=read_own)
        policies.follower.invalidate(NAMESPACE)  # others write all the time

    monkeypatch.setattr(policies, "_renew_topic", renew_and_write_again)
    async with asyncio.timeout(30):
        await set_namespace(broker, message_ttl_in_seconds=5)
    assert topic.policies.message_ttl_s == 5
    monkeypatch.undo()


async def test_one_topic_s_trouble_is_not_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await loaded(broker), await loaded(broker, TOPIC + "2")

    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(first, "policies_changed", fail)
    await set_namespace(broker, message_ttl_in_seconds=5)
    assert (first.policies.message_ttl_s, second.policies.message_ttl_s) == (5, 5)
    assert "not applied" in caplog.text


async def test_switched_off_topics_have_no_own_policies() -> None:
    broker = await Broker(topic_level_policies_enabled=False).start()
    await set_topic(broker, max_producers_per_topic=4)
    assert (await loaded(broker)).policies.max_producers == 0
    await broker.close()


async def test_without_a_namespace_there_are_no_policies(broker: Broker) -> None:
    with pytest.raises(NamespaceNotFoundError):
        await broker.service.policies.of(name_of("persistent://no/where/t"))


# --- enforcement: the namespace's limit, raised or lowered by the topic's


@pytest.mark.parametrize("level", [set_namespace, set_topic])
async def test_fewer_consumers_are_for_those_that_come(broker: Broker, level: Any) -> None:
    client = await connected(broker)
    assert (await subscribe(client, "s", 1)).type == pb.BaseCommand.SUCCESS
    assert (await subscribe(client, "s", 2)).type == pb.BaseCommand.SUCCESS
    await level(broker, max_consumers_per_topic=1)
    assert code(await subscribe(client, "u", 3)) == pb.ConsumerBusy
    topic = broker.service.topics[TOPIC]
    assert "u" not in topic.subscriptions
    assert len(topic.subscriptions["s"].consumers) == 2, "who is there stays"
    await level(broker, max_consumers_per_topic=3, max_consumers_per_subscription=2)
    assert code(await subscribe(client, "s", 4)) == pb.ConsumerBusy
    assert (await subscribe(client, "u", 5)).type == pb.BaseCommand.SUCCESS


@pytest.mark.parametrize("level", [set_namespace, set_topic])
async def test_subscriptions_are_counted_with_those_being_opened(
    broker: Broker, level: Any
) -> None:
    topic = await loaded(broker)
    await level(broker, max_subscriptions_per_topic=2)
    results = await asyncio.gather(
        *(topic.create_subscription(f"s{n}") for n in range(2)), return_exceptions=True
    )
    assert not any(isinstance(result, Exception) for result in results)
    with pytest.raises(NotAllowedError, match="maximum number of subscriptions"):
        await topic.create_subscription("s3")
    client = await connected(broker)
    assert code(await subscribe(client, "s4", 1)) == pb.NotAllowedError
    assert (await subscribe(client, "s0", 2)).type == pb.BaseCommand.SUCCESS
    await level(broker, max_subscriptions_per_topic=0)
    assert (await subscribe(client, "s4", 3)).type == pb.BaseCommand.SUCCESS


@pytest.mark.parametrize("field", ["max_consumers_per_topic", "max_subscriptions_per_topic"])
async def test_many_consumers_at_once_don_t_slip_through(broker: Broker, field: str) -> None:
    await loaded(broker)
    await set_namespace(broker, **{field: 1})
    client = await connected(broker)
    for number in range(5):
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription = TOPIC, f"s{number}"
        command.subscribe.subType = pb.CommandSubscribe.Shared
        command.subscribe.consumer_id = command.subscribe.request_id = number
        client.send(command)
    answers = await client.receive(5)
    kinds = [answer.type for answer in answers]
    assert kinds.count(pb.BaseCommand.SUCCESS) == 1, answers


async def test_types_of_subscriptions_can_be_switched_off_and_on(broker: Broker) -> None:
    client = await connected(broker)
    assert (await subscribe(client, "s", 1)).type == pb.BaseCommand.SUCCESS
    await set_namespace(broker, subscription_types_enabled=["Exclusive"])
    assert code(await subscribe(client, "s", 2)) == pb.NotAllowedError
    await set_topic(broker, subscription_types_enabled=["Shared"])
    assert (await subscribe(client, "s", 3)).type == pb.BaseCommand.SUCCESS
    exclusive = pb.CommandSubscribe.Exclusive
    assert code(await subscribe(client, "e", 4, sub_type=exclusive)) == pb.NotAllowedError


async def test_a_topic_may_forbid_that_consuming_creates_a_subscription(broker: Broker) -> None:
    await loaded(broker)
    client = await connected(broker)
    never = {"allowAutoSubscriptionCreation": False}
    await set_topic(broker, autoSubscriptionCreationOverride=never)
    assert code(await subscribe(client, "s", 1)) == pb.SubscriptionNotFound
    await broker.service.topics[TOPIC].create_subscription("s")
    assert (await subscribe(client, "s", 2)).type == pb.BaseCommand.SUCCESS


async def test_messages_above_the_topic_s_size_are_refused_in_turn(broker: Broker) -> None:
    client = await connected(broker)
    await client.produce()
    client.feed(message(0, payload=b"x" * 500))
    assert (await client.receive_one()).type == pb.BaseCommand.SEND_RECEIPT
    await set_topic(broker, max_message_size=200)
    client.feed(message(1) + message(2, payload=b"x" * 500) + message(3))
    first, second, third = await client.receive(3)
    assert first.send_receipt.sequence_id == 1
    assert (second.send_error.sequence_id, second.send_error.error) == (2, pb.NotAllowedError)
    assert third.send_receipt.sequence_id == 3
    await set_topic(broker, max_message_size=0)
    client.feed(message(4, payload=b"x" * 500))
    assert (await client.receive_one()).type == pb.BaseCommand.SEND_RECEIPT


async def test_a_namespace_has_room_for_so_many_topics(broker: Broker) -> None:
    service = broker.service
    await set_namespace(broker, max_topics_per_namespace=3)
    for wrong in (4, 5):
        with pytest.raises(PreconditionFailedError, match="maximum number of topics"):
            await service.directory.create_partitioned(name_of(TOPIC), wrong)
    assert await service.directory.partitions(name_of(TOPIC)) is None
    await service.directory.create_partitioned(name_of(TOPIC), 2)
    with pytest.raises(PreconditionFailedError):
        await service.directory.update_partitions(name_of(TOPIC), 4)
    assert await service.directory.partitions(name_of(TOPIC)) == 2
    results = await asyncio.gather(
        *(service.directory.create(name_of(f"{TOPIC}{n}")) for n in range(4)),
        return_exceptions=True,
    )
    refused = [result for result in results if result is not None]
    assert len(refused) == 3
    assert all(isinstance(error, PreconditionFailedError) for error in refused)
    assert len(await service.directory.names(NAMESPACE)) == 3
    await loaded(broker, "persistent://public/default/__change_events")  # a system topic may


async def test_an_inactive_topic_goes_when_its_own_policy_says_so(broker: Broker) -> None:
    await loaded(broker)
    kept = await loaded(broker, TOPIC + "2")
    own = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 30,
        "deleteWhileInactive": True,
    }
    await set_topic(broker, inactive_topic_policies=own)
    await set_topic(
        broker, kept.full_name, inactive_topic_policies={**own, "deleteWhileInactive": False}
    )
    start = broker.service.clock()
    background_tasks = broker.service.background_tasks
    await background_tasks.delete_inactive(start + 29_000)
    assert TOPIC in broker.service.topics
    await background_tasks.delete_inactive(start + 31_000)
    assert TOPIC not in broker.service.topics
    await background_tasks.delete_inactive(start + 3_600_000)
    assert kept.full_name in broker.service.topics


async def test_a_topic_may_have_its_own_time_to_live(broker: Broker) -> None:
    await set_namespace(broker, message_ttl_in_seconds=100)
    topic = await loaded(broker)
    await set_topic(broker, message_ttl_in_seconds=5)
    assert topic.policies.message_ttl_s == 5
    await set_topic(broker, message_ttl_in_seconds=0)
    assert topic.policies.message_ttl_s == 0
