"""A broker with its embedded bookie whose metadata live in a real ZooKeeper."""

import asyncio
import os
import signal
from pathlib import Path

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
