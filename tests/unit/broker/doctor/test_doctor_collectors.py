"""Faults planted where facts come from: bookies, other brokers, topics of a real broker."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest

from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.service_info import RACKS_PATH
from magnetar.broker.dispatch.explanation import STALL_MS
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter
from magnetar.broker.service.bookie_cluster import BookieCluster
from magnetar.bundles.bookie_affinity import BookieAffinity
from magnetar.loadbalance.registry import BROKERS_ROOT
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.broker.doctor.test_doctor import TOPIC, found
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually


@pytest.mark.parametrize(
    ("told", "data", "expected"),
    [
        ({"total_bytes": 100, "free_bytes": 10}, {}, {"disk-full"}),
        ({"read_only": True}, {}, {"bookie-read-only", "bookies-too-few"}),
        ({"clock_ms": 1_700_000_000_000 + 70_000}, {}, {"clock-skew"}),
        ({}, {"inLimbo": True, "ledgersInLimbo": 4}, {"bookie-in-limbo"}),
        ({}, {"disputes": [7]}, {"ledgers-in-dispute"}),
        (None, {}, {"bookie-silent"}),
    ],
)
async def test_what_a_bookie_says(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    told: dict[str, Any] | None,
    data: dict[str, Any],
    expected: set[str],
) -> None:
    pool, kind = BookiePool(), type(broker.bookie)
    broker.service.bookie_cluster = BookieCluster(pool, broker.service.store)
    pool.add(cast(Any, broker.bookie))
    status, says = await cast(Any, broker.bookie).info(), dict[str, Any]()

    async def check_data(_: object) -> bytes:
        return orjson.dumps(says)

    async def info(_: object) -> object:
        if told is None:
            raise BookieUnavailableError("it hangs")
        return replace(status, **told)

    monkeypatch.setattr(kind, "check_data", check_data)
    assert await found(broker) == {}
    says |= data
    monkeypatch.setattr(kind, "info", info)
    assert set(await found(broker)) == expected


GROUP, FEW = "bookie-group-unknown", "bookie-groups-too-few"


@pytest.mark.parametrize(
    ("affinity", "of_bookie", "expected"),
    [
        (BookieAffinity("ssd"), {"ssd"}, {}),
        (BookieAffinity("ssd", "hdd"), {"ssd"}, {GROUP: "group hdd"}),
        (BookieAffinity("ssd"), set(), {FEW: "no bookie is in group ssd: bookies of no group"}),
        (
            BookieAffinity("ssd"),
            {"hdd"},
            {FEW: "0 of 1 bookies that take new ledgers may be taken"},
        ),
        (None, {"ssd"}, {FEW: "0 of 1 bookies that take new ledgers may be taken by strict"}),
        (None, set(), {}),
    ],
)
async def test_groups_of_bookies(
    monkeypatch: pytest.MonkeyPatch,
    affinity: BookieAffinity | None,
    of_bookie: set[str],
    expected: dict[str, str],
) -> None:
    """With ``strictBookieAffinityEnabled`` and one bookie."""
    broker = await Broker(strict_bookie_affinity_enabled=True).start()
    store, name = broker.service.store, cast(Any, broker.bookie).bookie_id
    pool = BookiePool(store)
    broker.service.bookie_cluster = BookieCluster(pool, store)
    pool.add(cast(Any, broker.bookie))

    async def check_data(_: object) -> bytes:
        return b"{}"

    monkeypatch.setattr(type(broker.bookie), "check_data", check_data)
    await broker.service.bundles.factory.set_bookie_affinity("public/default", affinity)
    racks = {group: {name: {"rack": "/r"}} for group in of_bookie}
    await store.put(RACKS_PATH, orjson.dumps(racks))
    await pool.start()
    findings = await found(broker)
    assert findings.keys() == expected.keys()
    for check, text in expected.items():
        assert text in findings[check].sentence
        assert findings[check].subject.endswith(
            "default" if affinity else "without groups of bookies"
        )
    await pool.close()
    await broker.close()


async def test_another_broker_with_other_settings_and_another_clock(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await Broker(max_message_size=1_000_000).start()
    other.cluster.now_ms += 10_000
    registration = {"webServiceUrl": "http://127.0.0.1:1", "brokerVersionString": "0.0.1"}
    await broker.service.store.put(f"{BROKERS_ROOT}/127.0.0.1:1", orjson.dumps(registration))

    async def ask(*_: object, **__: object) -> Any:
        return orjson.loads(orjson.dumps(await other.service.doctor.broker_report()))

    monkeypatch.setattr(broker.service.broker_client, "ask", ask)
    findings = await found(broker)
    assert findings["settings-differ"].subject == "maxMessageSize"
    assert findings["clock-skew"].subject == "127.0.0.1:1"
    assert "10 s ahead of" in findings["clock-skew"].sentence
    assert "broker-silent" not in findings
    await other.close()


async def ready(broker: Broker, port: int) -> Client:
    client = broker.client(port=port)
    await client.receive_one()
    return client


async def test_a_partition_without_a_consumer(broker: Broker) -> None:
    await broker.service.directory.create_partitioned(TopicName.parse(TOPIC), 2)
    for number in range(2):
        name = f"{TOPIC}-partition-{number}"
        topic = await broker.service.loader.load(TopicName.parse(name), create=True)
        await topic.create_subscription("s", EARLIEST)
        producer = await ready(broker, 5000 + number)
        await producer.produce(name)
        producer.feed(message(0))
        receipts(await producer.receive(1))
    client = await ready(broker, 6000)
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = f"{TOPIC}-partition-0", "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    client.send(command)
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    idle = (await found(broker))["partition-idle"]
    assert idle.subject == f"{TOPIC}-partition-1, subscription s"


async def test_producers_that_get_no_receipts(broker: Broker) -> None:
    topic = await broker.service.loader.load(TopicName.parse(TOPIC), create=True)
    client = await ready(broker, 5000)
    await client.produce(TOPIC)
    client.feed(message(0))
    receipts(await client.receive(1))
    release = broker.hold_storage()
    client.feed(message(1))
    ledger = cast(Any, topic).ledger
    await eventually(lambda: ledger.pending_bytes > 0)
    assert "publish-stuck" not in await found(broker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ledger), "pending_ms", STALL_MS)
        assert (await found(broker))["publish-stuck"].subject == TOPIC
    release()
    receipts(await client.receive(1))
    throttle: Any = PublishRateLimiter(Rate(1, 0), asyncio.get_running_loop())
    broker.service.publish_throttle = throttle
    client.feed(message(2) + message(3))
    receipts(await client.receive(2))
    limited = (await found(broker))["publish-rate-limited"]
    assert (limited.subject, str(limited.severity)) == (TOPIC, "note")
    throttle.close()
