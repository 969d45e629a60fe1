"""Clients that a topic doesn't accept: what explain and the doctor tell of them."""

import random

import httpx
import pytest

from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.dispatch.refusal import RECENT_MS
from magnetar.broker.doctor.doctor import Doctor
from magnetar.broker.doctor.findings import Finding
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.topic import Topic
from magnetar.managed_ledger.position import LATEST
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
EXCLUSIVE, WAIT = pb.Exclusive, pb.WaitForExclusive


async def ready(broker: Broker, port: int = 5000) -> Client:
    client = broker.client(port=port)
    await client.receive_one()
    return client


async def subscribe(client: Client, consumer_id: int = 1, **fields: object) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = TOPIC, "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = consumer_id
    for name, value in fields.items():
        setattr(command.subscribe, name, value)
    client.send(command)
    return await client.receive_one()


def explained(topic: Topic) -> Explanation:
    return topic.subscriptions["s"].explain(run_at_once(topic.explain_publishing()))


async def with_subscription(broker: Broker) -> Topic:
    topic = await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    await topic.create_subscription("s", LATEST)
    return topic


async def findings(broker: Broker) -> dict[str, Finding]:
    report = await Doctor(broker.service).cluster_report()
    return {each.subject: each for each in report.findings if each.check == "client-refused"}


async def test_a_producer_that_is_refused(broker: Broker) -> None:
    topic = await with_subscription(broker)
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "encryption_required": True}
    )
    client = await ready(broker)
    answer, _ = await client.produce(producer_name="p")
    assert answer.type == pb.BaseCommand.ERROR
    found = explained(topic)
    assert found.reason is Reason.PRODUCER_REFUSED
    assert found.message == (
        "Every message is acknowledged. No producer is connected. Producer p of 10.0.0.1:5000 was"
        " refused 0 ms ago: Encryption is required in this namespace."
    )
    told = (await findings(broker))[TOPIC]
    assert str(told.severity) == "warning"
    assert told.command == f"magnetar admin topics explain-publishing {TOPIC}"
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "encryption_required": False}
    )
    await client.produce(producer_name="p")
    assert explained(topic).reason is Reason.CAUGHT_UP


async def test_a_consumer_whose_subscription_is_not_made(broker: Broker) -> None:
    await with_subscription(broker)
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "subscription_types_enabled": ["Exclusive"]}
    )
    client = await ready(broker)
    assert (await subscribe(client, subscription="new")).type == pb.BaseCommand.ERROR
    told = (
        "A consumer of 10.0.0.1:5000 was refused 0 ms ago: Subscription of type Shared is disabled."
    )
    finding = (await findings(broker))[f"{TOPIC}, subscription new"]
    assert told in finding.sentence
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        path = f"/admin/v2/{TOPIC.replace('://', '/')}/subscription"
        assert (await http.get(f"{path}/new/explain")).json()["reason"].endswith(told)
        assert "refused" not in (await http.get(f"{path}/other/explain")).json()["reason"]
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "subscription_types_enabled": []}
    )
    assert (await subscribe(client, 2, subscription="new")).type == pb.BaseCommand.SUCCESS
    assert await findings(broker) == {}


async def test_a_message_that_is_refused(broker: Broker) -> None:
    topic = await with_subscription(broker)
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "max_message_size": 100}
    )
    client = await ready(broker)
    await client.produce(producer_name="p")
    broker.cluster.now_ms += 1
    client.feed(message(0, payload=b"x" * 200))
    assert (await client.receive_one()).type == pb.BaseCommand.SEND_ERROR
    found = explained(topic)
    assert found.reason is Reason.PRODUCER_REFUSED
    assert "A message of producer p of 10.0.0.1:5000 was refused" in found.message
    broker.cluster.now_ms += 1
    client.feed(message(1))
    receipts(await client.receive(1))
    assert explained(topic).reason is not Reason.PRODUCER_REFUSED


async def test_consumers_that_are_refused(broker: Broker) -> None:
    topic = await with_subscription(broker)
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "max_consumers_per_subscription": 1}
    )
    one, two = [await ready(broker, 5000 + n) for n in range(2)]
    await one.produce()
    one.feed(message(0))
    receipts(await one.receive(1))
    assert (await subscribe(one)).type == pb.BaseCommand.SUCCESS
    assert (await subscribe(two, consumer_name="c2")).type == pb.BaseCommand.ERROR
    found = explained(topic)
    assert found.reason is Reason.NO_PERMITS
    assert found.message.endswith(
        "Consumer c2 of 10.0.0.1:5001 was refused 0 ms ago: Subscription reached max consumers"
        " limit."
    )
    label = f"{TOPIC}, subscription s"
    told = (await findings(broker))[label]
    assert str(told.severity) == "note"
    assert told.command == f"magnetar admin topics explain {TOPIC} -s s"
    one.lose()
    subscription = topic.subscriptions["s"]
    await eventually(lambda: not subscription.consumers)
    found = explained(topic)
    assert (found.reason, found.next.split(":")[0]) == (
        Reason.CONSUMER_REFUSED,
        "Delivery starts when a consumer is accepted",
    )
    broker.cluster.now_ms += RECENT_MS
    assert label not in await findings(broker)
    assert (await subscribe(two)).type == pb.BaseCommand.SUCCESS
    assert explained(topic).reason is Reason.NO_PERMITS


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_told_of_producers_fits_what_they_were_told(
    broker: Broker, seed: int
) -> None:
    rng, topic = random.Random(seed), await with_subscription(broker)
    clients = {number: await ready(broker, 5000 + number) for number in range(4)}
    owner: int | None = None
    queue: list[int] = []
    shared: set[int] = set()
    was_refused = False
    for step in range(40):
        number = rng.choice(list(clients))
        client = clients[number]
        if number in {owner, *queue, *shared}:
            client.lose()
            clients[number] = await ready(broker, 5100 + step)
            queue = [each for each in queue if each != number]
            shared.discard(number)
            owner = None if owner == number else owner
            if owner is None and not shared and queue:
                owner = queue.pop(0)
                assert (await clients[owner].receive_one()).producer_success.producer_ready
        else:
            mode = rng.choice([pb.Shared, EXCLUSIVE, WAIT])
            answer, _ = await client.produce(producer_access_mode=mode)
            was_refused = answer.type == pb.BaseCommand.ERROR
            if not was_refused and mode == pb.Shared:
                shared.add(number)
            elif not was_refused and answer.producer_success.producer_ready:
                owner = number
            elif not was_refused:
                queue.append(number)
        expected = Reason.CAUGHT_UP if owner is not None or shared else Reason.NO_PRODUCER
        if was_refused:
            expected = Reason.PRODUCER_REFUSED
        elif queue:
            expected = Reason.PRODUCERS_QUEUED
        found = explained(topic)
        assert found.reason is expected, step
        if expected is Reason.PRODUCERS_QUEUED:
            assert found.details == {"waitingProducers": len(queue)}
