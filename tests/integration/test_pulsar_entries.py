"""What Apache Pulsar's broker stored is served by ours, and what ours stored by Pulsar's."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pulsar
import pytest
from pulsar import InitialPosition

from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.broker.migration.pulsar_metadata_pb2 import ManagedLedgerNode
from magnetar.broker.migration.swap import SwapPlace, swap
from magnetar.broker.pulsar_settings import BROKER_TIMESTAMP, MESSAGE_INDEX
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import CREATE_ONLY
from tests.apache_bookies import needs_bookkeeper, start_bookies
from tests.broker_process import BrokerProcess
from tests.encryption_keys import encryption_keys
from tests.official_client import client_of
from tests.pulsar_broker import PulsarBroker, needs_pulsar
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = [needs_bookkeeper, needs_pulsar]
RECEIVE_MS = 60_000
TOPIC = "persistent://public/default/entries"
LOG = "public/default/persistent/entries"
BATCH = 10
LARGE = random.Random(1).randbytes(11_000_000)  # of three chunks


@dataclass
class Cluster:
    """Apache's ZooKeeper and bookies; brokers of either kind are put on them."""

    zookeeper: ZooKeeperProcess
    folder: Path
    pulsar: PulsarBroker
    more: tuple[str, ...] = ()
    """Settings of our broker."""

    @property
    def ledgers_uri(self) -> str:
        return f"zk+hierarchical://127.0.0.1:{self.zookeeper.port}/ledgers"

    def ours(self, name: str) -> BrokerProcess:
        settings = [f"bookkeeperMetadataServiceUri={self.ledgers_uri}", "clusterName=standalone"]
        settings += [f"managedLedgerDefault{x}=3" for x in ("EnsembleSize", "WriteQuorum")]
        settings += ["managedLedgerDefaultAckQuorum=2"]
        settings += ["acknowledgmentAtBatchIndexLevelEnabled=true", *self.more]
        options = [word for each in settings for word in ("--set", each)]
        return BrokerProcess(self.folder / name, self.zookeeper.url("/magnetar"), *options)


@pytest.fixture
def settings() -> dict[str, str]:
    """Of Pulsar's broker."""
    return {"acknowledgmentAtBatchIndexLevelEnabled": "true"}


@pytest.fixture
def cluster(tmp_path: Path, settings: dict[str, str]) -> Iterator[Cluster]:
    with ZooKeeperProcess(tmp_path) as zookeeper:
        bookies = start_bookies(tmp_path, zookeeper.port)
        broker = PulsarBroker(tmp_path / "pulsar", zookeeper.port, settings)
        broker.set_up()
        try:
            yield Cluster(zookeeper, tmp_path, broker)
        finally:
            for process in (broker, *bookies):
                if process.is_running:
                    process.kill()


@pytest.fixture
def keys(tmp_path: Path) -> pulsar.CryptoKeyReader:
    return encryption_keys(tmp_path)


def produce(url: str, keys: pulsar.CryptoKeyReader) -> list[bytes]:
    """Entries of each kind; their payloads in order."""
    sent: list[bytes] = []
    with client_of(url) as client:
        for kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
            options = {"compression_type": getattr(pulsar.CompressionType, kind)}
            single = client.create_producer(TOPIC, batching_enabled=False, **options)
            sent.append(b"%s alone" % kind.encode())
            single.send(sent[-1], properties={"kind": kind}, partition_key=kind)
            sent += send_batch(client, kind, **options)
        sent += send_batch(client, "sealed", encryption_key="key", crypto_key_reader=keys)
        chunks = client.create_producer(TOPIC, batching_enabled=False, chunking_enabled=True)
        chunks.send(LARGE)
    return [*sent, LARGE]


def send_batch(client: pulsar.Client, name: str, **options: object) -> list[bytes]:
    """One entry."""
    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=60_000,
        **options,
    )
    texts = [b"%s %d" % (name.encode(), number) for number in range(BATCH)]
    results: list[pulsar.Result] = []
    for text in texts:
        producer.send_async(text, lambda result, _: results.append(result))
    producer.flush()
    producer.close()
    assert results == [pulsar.Result.Ok] * BATCH
    return texts


def received(
    url: str, keys: pulsar.CryptoKeyReader, count: int, acknowledged: list[int] | None = None
) -> list[tuple[bytes, str]]:
    """Payload and id of so many messages of the subscription; some are acknowledged."""
    found: list[pulsar.Message] = []
    with client_of(url) as client:
        consumer = client.subscribe(
            *(TOPIC, "s", pulsar.ConsumerType.Shared),
            initial_position=InitialPosition.Earliest,
            crypto_key_reader=keys,
            batch_index_ack_enabled=True,
        )
        found = [consumer.receive(RECEIVE_MS) for _ in range(count)]
        for number in acknowledged or []:
            consumer.acknowledge(found[number])
        with pytest.raises(pulsar.Timeout):
            consumer.receive(1)  # there are no more
        consumer.close()
    return [(each.data(), str(each.message_id())) for each in found]


def test_our_broker_serves_what_pulsar_stored(
    cluster: Cluster, keys: pulsar.CryptoKeyReader
) -> None:
    """With the same ids, and without what was acknowledged: whole, in holes, within batches."""
    with cluster.pulsar as broker:
        sent = produce(broker.service_url, keys)
        half = [number for number in range(len(sent)) if number < 14 or number % 3 == 0]
        before = received(broker.service_url, keys, len(sent), half)
    assert [data for data, _ in before] == sent
    report = asyncio.run(swap(SwapPlace.of(f"zk:127.0.0.1:{cluster.zookeeper.port}"), None))
    assert report.losses == []
    left = [each for number, each in enumerate(before) if number not in half]
    with cluster.ours("ours") as broker:
        assert received(broker.service_url, keys, len(left)) == left
        with client_of(broker.service_url) as client:
            client.create_producer(TOPIC).send(b"later")
        left.append((b"later", ""))
        again = received(broker.service_url, keys, len(left))
    assert again[:-1] == left[:-1]
    assert again[-1][0] == b"later"


def test_pulsars_broker_serves_what_ours_stored(
    cluster: Cluster, keys: pulsar.CryptoKeyReader
) -> None:
    """It needs the list of ledgers in its own form, which is written here by hand."""
    with cluster.ours("ours") as broker:
        sent = produce(broker.service_url, keys)
        before = received(broker.service_url, keys, len(sent))
    assert [data for data, _ in before] == sent
    asyncio.run(list_ledgers(cluster))
    with cluster.pulsar as theirs:
        assert received(theirs.service_url, keys, len(sent)) == before


async def list_ledgers(cluster: Cluster) -> None:
    info = ManagedLedgerNode()
    async with connect_ledgers(cluster.ledgers_uri) as ledgers:
        async for found in ledgers.client.ledgers.ranges():
            for ledger_id in found.ledger_ids:
                metadata = await ledgers.metadata(ledger_id)
                assert metadata is not None
                names = metadata.custom_metadata
                if names["component"] != b"managed-ledger":
                    continue
                assert names["pulsar/managed-ledger"] == LOG.encode()
                row = info.ledgers.add(ledgerId=ledger_id, timestamp=1_700_000_000_000)
                row.entries, row.size = metadata.last_entry + 1, metadata.length
    store = await connect_store(f"zk:127.0.0.1:{cluster.zookeeper.port}")
    await store.put(f"/managed-ledgers/{LOG}", info.SerializeToString(), CREATE_ONLY)
    await store.close()


@pytest.mark.parametrize(
    "settings", [{"brokerEntryMetadataInterceptors": f"{BROKER_TIMESTAMP},{MESSAGE_INDEX}"}]
)
def test_our_broker_goes_on_with_pulsars_indexes(
    cluster: Cluster, settings: dict[str, str], keys: pulsar.CryptoKeyReader
) -> None:
    """Both tell the same of the same entries, over REST."""
    cluster.more = tuple(f"{name}={value}" for name, value in settings.items())
    with cluster.pulsar as broker:
        ids = [message_id for _, message_id in kept(broker.service_url, keys)]
        before = shown(broker.admin_url, ids)
        by_index = found_by_index(broker.admin_url)
    # A message, a batch of ten; from the last one on nothing is stored.
    assert [index for index, _ in before] == ["0", "10"]
    assert all(time for _, time in before)
    asyncio.run(swap(SwapPlace.of(f"zk:127.0.0.1:{cluster.zookeeper.port}"), None))
    with cluster.ours("ours") as ours:
        assert shown(ours.admin_url, ids) == before
        assert found_by_index(ours.admin_url) == by_index
        more = [message_id for _, message_id in kept(ours.service_url, keys)][2:]
        assert [index for index, _ in shown(ours.admin_url, more)] == ["11", "21"]


def kept(url: str, keys: pulsar.CryptoKeyReader) -> list[tuple[bytes, str]]:
    """One message and one batch more; ids of all entries of the topic."""
    with client_of(url) as client:
        client.create_producer(TOPIC, batching_enabled=False).send(b"alone")
        send_batch(client, "batch")
        consumer = client.subscribe(
            TOPIC, "reads", initial_position=InitialPosition.Earliest, crypto_key_reader=keys
        )
        found: dict[str, bytes] = {}
        while True:
            try:
                each = consumer.receive(2_000)
            except pulsar.Timeout:
                break
            place = each.message_id()
            found.setdefault(f"{place.ledger_id()}/entry/{place.entry_id()}", each.data())
    return [(data, place) for place, data in found.items()]


def shown(admin_url: str, ids: list[str]) -> list[tuple[str, str]]:
    """Index and time of the broker of each entry."""
    answers = [
        httpx.get(f"{admin_url}/admin/v2/persistent/public/default/entries/ledger/{each}")
        for each in ids
    ]
    prefix = "X-Pulsar-Broker-Entry-METADATA-"
    return [(x.headers[f"{prefix}index"], x.headers[f"{prefix}timestamp"][:19]) for x in answers]


def found_by_index(admin_url: str) -> list[tuple[int, int]]:
    """Ledger and entry of each message, by its index."""
    url = f"{admin_url}/admin/v2/persistent/public/default/entries/getMessageIdByIndex"
    answers = [httpx.get(url, params={"index": number}) for number in range(12)]
    assert [each.status_code for each in answers] == [200] * 11 + [404]
    return [(each.json()["ledgerId"], each.json()["entryId"]) for each in answers[:11]]
