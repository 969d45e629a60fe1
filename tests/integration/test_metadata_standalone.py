"""A broker with its embedded bookie whose metadata live in a real ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import EventType, MetadataEvent
from tests.child_process import suspend
from tests.standalone_process import StandaloneProcess
from tests.unit.metadata.event_log import EventLog
from tests.zookeeper_process import ZooKeeperProcess

BOOKIES = "/ledgers/available"
TOPIC = "persistent://public/default/on-zookeeper"


def _options(zookeeper: ZooKeeperProcess, chroot: str) -> list[str]:
    settings = {
        "metadataStoreUrl": zookeeper.url(chroot),
        "configurationMetadataStoreUrl": zookeeper.url(chroot),
        "metadataStoreSessionTimeoutMillis": "6000",
    }
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _produce(client: pulsar.Client, numbers: range) -> None:
    producer = client.create_producer(TOPIC)
    for number in numbers:
        producer.send(b"%d" % number)
    producer.close()


def _consume(client: pulsar.Client, count: int) -> list[int]:
    consumer = client.subscribe(TOPIC, "reader", initial_position=pulsar.InitialPosition.Earliest)
    numbers = list[int]()
    for _ in range(count):
        message = consumer.receive(30_000)
        numbers.append(int(message.data()))
        consumer.acknowledge(message)
    consumer.close()
    return numbers


def test_messages_survive_kill_nine_on_zookeeper(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    with StandaloneProcess(tmp_path / "data", *_options(zookeeper, "/broker/one")) as broker:
        client = pulsar.Client(broker.service_url)
        _produce(client, range(50))
        broker.kill()
        client.close()
        broker.start(same_ports=True)
        client = pulsar.Client(broker.service_url)
        _produce(client, range(50, 100))
        assert _consume(client, 100) == list(range(100))
        client.close()
        told = httpx.get(
            f"{broker.admin_url}/admin/v2/brokers/internal-configuration", timeout=60
        ).json()
        assert told["metadataStoreUrl"] == zookeeper.url("/broker/one")
        assert not (tmp_path / "data" / "metadata").exists()


async def test_a_paused_broker_comes_back_under_a_new_session(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    store = await connect_store(zookeeper.url("/broker/two"))
    log = EventLog[MetadataEvent]()
    store.watch(BOOKIES, log)

    async def registrations(kind: EventType) -> None:
        def has_one(events: list[MetadataEvent]) -> bool:
            return any(each.type is kind and each.path != BOOKIES for each in events)

        await log.until(has_one)

    options = _options(zookeeper, "/broker/two")
    with StandaloneProcess(tmp_path / "data", *options) as broker:
        client = await asyncio.to_thread(pulsar.Client, broker.service_url)
        producer = await asyncio.to_thread(client.create_producer, TOPIC)
        log.events.clear()
        suspend(broker.pid)
        try:
            await registrations(EventType.DELETED)  # the ensemble has ended its session
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await registrations(EventType.CREATED)
        await asyncio.to_thread(producer.send, b"after")
        assert "session_reestablished" in broker.log
        await asyncio.to_thread(client.close)
    await store.close()


def test_topics_serve_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    with (
        ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper,
        StandaloneProcess(tmp_path / "data", *_options(zookeeper, "/broker")) as broker,
    ):
        client = pulsar.Client(broker.service_url)
        producer = client.create_producer(TOPIC)
        producer.send(b"0")
        zookeeper.kill()
        sent = 1
        deadline = time.monotonic() + 60.0
        while "session_lost" not in broker.log:
            assert time.monotonic() < deadline
            producer.send(b"%d" % sent)
            sent += 1
        answer = httpx.get(f"{broker.admin_url}/admin/v2/persistent/public/default", timeout=30.0)
        assert answer.status_code == 503
        assert "session" in answer.json()["reason"]
        zookeeper.start()
        producer.send(b"%d" % sent)
        _produce(client, range(sent + 1, sent + 50))
        assert _consume(client, sent + 50) == list(range(sent + 50))
        client.close()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("metadataStoreUrl=etcd:http://127.0.0.1:1", "etcd"),
        ("metadataStoreUrl=zk:127.0.0.1:no", "host:port"),
        ("configurationMetadataStoreUrl=zk:127.0.0.1:2181", "configurationMetadataStoreUrl"),
    ],
)
def test_stores_that_do_not_exist_are_refused(tmp_path: Path, setting: str, reason: str) -> None:
    assert reason in StandaloneProcess(tmp_path / "data", "--set", setting).refuse_to_start()


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    broker = StandaloneProcess(
        tmp_path / "data",
        *("--set", "metadataStoreUrl=zk:127.0.0.1:1/nobody"),
        *("--set", "metadataStoreStartTimeoutSeconds=1"),
    )
    said = broker.refuse_to_start()
    assert "zk:127.0.0.1:1/nobody" in said
    assert "127.0.0.1:1: " in said
