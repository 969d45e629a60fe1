"""``magnetar migrate in-place`` over real bookies of Apache BookKeeper and a real ZooKeeper.

The cluster begins as one of ours and goes back and forth; Pulsar's side is what the command writes.
What Pulsar itself writes is in ``tests/unit/broker/migration``.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.broker.migration.marker import Marker, Serving, write_marker
from magnetar.metadata.factory import connect_store
from tests.apache_bookies import needs_bookkeeper, start_bookies
from tests.broker_process import BrokerProcess
from tests.migrate_command import migrate_in_place
from tests.official_client import client_of
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = needs_bookkeeper
TOPIC = "persistent://public/default/a topic"
RECEIVE_MS = 60_000


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    folder: Path = tmp_path_factory.mktemp("swap")
    with ZooKeeperProcess(folder) as found:
        bookies = start_bookies(folder, found.port)
        try:
            yield found
        finally:
            for bookie in bookies:
                bookie.stop()


def migrate(zookeeper: ZooKeeperProcess, *words: str) -> str:
    return migrate_in_place(zookeeper.url(), *words)[1]


async def give_to_us(zookeeper: ZooKeeperProcess) -> None:
    """As after a first swap of an empty cluster."""
    store = await connect_store(zookeeper.url("/magnetar"))
    await write_marker(store, Marker(Serving.MAGNETAR))
    await store.close()


def broker_of(zookeeper: ZooKeeperProcess, log: Path, *more: str) -> BrokerProcess:
    uri = f"zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers"
    settings = (
        f"bookkeeperMetadataServiceUri={uri}",
        "acknowledgmentAtBatchIndexLevelEnabled=true",
        *more,
    )
    options = [word for each in settings for word in ("--set", each)]
    return BrokerProcess(log, zookeeper.url("/magnetar"), *options)


def receive_all(client: pulsar.Client, count: int) -> tuple[pulsar.Consumer, list[pulsar.Message]]:
    consumer = client.subscribe(
        TOPIC,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    return consumer, [consumer.receive(RECEIVE_MS) for _ in range(count)]


def test_forth_and_back_and_forth(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    asyncio.run(give_to_us(zookeeper))
    with (
        broker_of(zookeeper, tmp_path / "first") as broker,
        client_of(broker.service_url) as client,
    ):
        consumer, _ = receive_all(client, 0)
        producer = client.create_producer(TOPIC)
        for number in range(100):
            producer.send(b"%d" % number)
        messages = [consumer.receive(RECEIVE_MS) for _ in range(100)]
        for message in messages:
            if int(message.data()) % 3:
                consumer.acknowledge(message)
        consumer.close()
        assert "brokers of Magnetar still registered" in migrate(zookeeper, "--back")
    told = migrate(zookeeper, "--back")
    assert "Pulsar's brokers may start, and Magnetar's refuse to" in told
    assert "100 messages or batches" in told
    assert "34 of them unacknowledged" in told
    told = migrate(zookeeper)
    assert "Magnetar's brokers may start, and Pulsar's refuse to" in told
    assert "34 of them unacknowledged" in told
    with (
        broker_of(zookeeper, tmp_path / "second") as broker,
        client_of(broker.service_url) as client,
    ):
        consumer, messages = receive_all(client, 34)
        assert sorted(int(each.data()) for each in messages) == list(range(0, 100, 3))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)


def test_a_broker_that_was_asleep_during_a_swap_ends(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Its session has ended, so the command didn't see it. It would store what nobody reads."""
    asyncio.run(give_to_us(zookeeper))
    session = "metadataStoreSessionTimeoutMillis=1000"
    with broker_of(zookeeper, tmp_path / "asleep", session) as broker:
        broker.pause()
        wait_until(lambda: "may start" in migrate(zookeeper, "--back"))
        broker.resume()
        wait_until(lambda: not broker.is_running, lambda: broker.log)
        assert broker.take().wait() == 3
        assert "Apache Pulsar's brokers serve this cluster" in broker.log
