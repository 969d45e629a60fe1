"""``magnetar migrate in-place`` with Apache Pulsar's own broker, forth and back and forth again."""

import asyncio
import re
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from magnetar.bookkeeper.ledgers import connect_ledgers
from tests.apache_bookies import PROGRAMS, needs_bookkeeper, start_bookies
from tests.broker_process import BrokerProcess
from tests.compacted_history import CompactedHistory
from tests.encryption_keys import encryption_keys
from tests.migrate_command import migrate_in_place
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pulsar_broker import JAVA, PulsarBroker, needs_pulsar
from tests.swap_history import History
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = [needs_bookkeeper, needs_pulsar]
NAMESPACE = "public/swap"
TRANSACTIONS = "public/transactions"
DIGEST_SPACE = "public/digests"
BUCKETS = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
DIGESTS = ("CRC32", "DUMMY", "CRC32C")
MESSAGES = 1_000 if NIGHTLY else 60
PASSWORD = "of all ledgers"
POLICIES: dict[str, Any] = {
    f"/namespaces/{NAMESPACE}/messageTTL": 86_400,
    f"/namespaces/{NAMESPACE}/antiAffinity": "apart",
    f"/namespaces/{NAMESPACE}/persistence/bookieAffinity": {
        "bookkeeperAffinityGroupPrimary": "ssd",
        "bookkeeperAffinityGroupSecondary": "hdd",
    },
    f"/namespaces/{NAMESPACE}/dispatchRate": {
        "dispatchThrottlingRateInMsg": 1_000_000,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": False,
    },
    f"/namespaces/{NAMESPACE}/permissions/somebody": ["produce", "consume"],
    f"/persistent/{NAMESPACE}/alone/maxConsumers": 77,
    f"/persistent/{NAMESPACE}/parts/maxProducers": 78,
    f"/persistent/{NAMESPACE}/alone/permissions/another": ["consume"],
    "/clusters/standalone/namespaceIsolationPolicies/own": {
        "namespaces": ["other/.*"],
        "primary": ["nowhere"],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "80"},
        },
    },
}
PROPERTIES = {
    f"/persistent/{NAMESPACE}/alone/properties": {"owner": "someone"},
    f"/persistent/{NAMESPACE}/alone/subscription/shared/properties": {"zone": "ü"},
}
ASKED = (
    *(path for path in POLICIES if "/permissions/" not in path),
    *PROPERTIES,
    *("/tenants/public", "/namespaces/public", f"/namespaces/{NAMESPACE}/permissions"),
    *(f"/namespaces/{NAMESPACE}/retention", f"/schemas/{NAMESPACE}/parts/schemas"),
    *(f"/persistent/{NAMESPACE}", f"/persistent/{NAMESPACE}/partitioned"),
    *(f"/persistent/{NAMESPACE}/parts/{x}" for x in ("partitions", "subscriptions")),
    f"/persistent/{NAMESPACE}/alone/permissions",
)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path) as found:
        bookies = start_bookies(tmp_path, found.port)
        try:
            yield found
        finally:
            for bookie in bookies:
                bookie.stop()


@pytest.fixture
def keys(tmp_path: Path) -> pulsar.CryptoKeyReader:
    return encryption_keys(tmp_path)


def migrate(zookeeper: ZooKeeperProcess, *words: str) -> str:
    code, told = migrate_in_place(zookeeper.url(), *words)
    assert code == 0, told
    return told


def ours(zookeeper: ZooKeeperProcess, log: Path) -> BrokerProcess:
    uri = f"zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers"
    settings = (
        *(f"bookkeeperMetadataServiceUri={uri}", "clusterName=standalone"),
        *(f"managedLedgerDefault{x}=3" for x in ("EnsembleSize", "WriteQuorum")),
        *("managedLedgerDefaultAckQuorum=2", "acknowledgmentAtBatchIndexLevelEnabled=true"),
        *(f"managedLedgerPassword={PASSWORD}", "transactionCoordinatorEnabled=true"),
    )
    options = [word for each in settings for word in ("--set", each)]
    return BrokerProcess(log, zookeeper.url("/magnetar"), *options)


def set_policies(admin_url: str) -> None:
    with httpx.Client(base_url=f"{admin_url}/admin/v2", timeout=60) as http:
        for path, value in POLICIES.items():
            answer = http.post(path, json=value)
            assert answer.is_success, f"{path}: {answer.text}"
        for path, value in PROPERTIES.items():
            answer = http.put(path, json=value)
            assert answer.is_success, f"{path}: {answer.text}"


def answers(admin_url: str) -> dict[str, Any]:
    with httpx.Client(base_url=f"{admin_url}/admin/v2", timeout=60) as http:
        found = {path: http.get(path) for path in ASKED}
    for path, answer in found.items():
        assert answer.is_success, f"{path}: {answer.text}"
    return {path: in_order(answer.json()) for path, answer in found.items()}


def in_order(value: Any) -> Any:
    """Lists of names are sets."""
    if isinstance(value, dict):
        return {name: in_order(each) for name, each in value.items()}
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return sorted(value)
    return value


async def compacted_ledgers(zookeeper: ZooKeeperProcess, namespace: str) -> int:
    """How many there are, of the topics of a namespace."""
    uri = f"zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers"
    async with connect_ledgers(uri) as ledgers:
        found = [await ledgers.metadata(each) async for each in ledgers.ids()]
    topics = [each.custom_metadata.get("pulsar/compactedTopic", b"") for each in found if each]
    return sum(f"{namespace}/".encode() in topic for topic in topics)


def test_pulsars_cluster_forth_and_back_and_forth(
    zookeeper: ZooKeeperProcess, tmp_path: Path, keys: pulsar.CryptoKeyReader
) -> None:
    """Each broker shows what all before it have left; then it adds its own."""
    history = History(NAMESPACE, MESSAGES, keys)
    compacted = CompactedHistory("public/compacted", MESSAGES)
    theirs = PulsarBroker(
        tmp_path / "pulsar",
        zookeeper.port,
        {
            "acknowledgmentAtBatchIndexLevelEnabled": "true",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "managedLedgerPassword": PASSWORD,
            "managedLedgerDigestType": "MAC",
        },
    )
    theirs.set_up()
    with theirs:
        history.make(theirs.admin_url)
        history.work(theirs.service_url, whole_batches=False)
        compacted.make(theirs.admin_url)
        compacted.work(theirs.service_url, theirs.admin_url)
        set_policies(theirs.admin_url)
        before = answers(theirs.admin_url)
    for turn, words in enumerate(((), ("--back",), ())):
        told = migrate(zookeeper, *words)
        assert "lost:" not in told
        assert "compacted" not in told or "2 compacted ledgers" in told
        # Pulsar's broker forgets acknowledgements within batches at its start, whoever wrote them.
        is_theirs = bool(words)
        with theirs if is_theirs else ours(zookeeper, tmp_path / f"ours{turn}") as broker:
            assert answers(broker.admin_url) == before
            history.look(broker.service_url, whole_batches=is_theirs)
            history.work(broker.service_url, whole_batches=is_theirs)
            compacted.look(broker.service_url)
            compacted.work(broker.service_url, broker.admin_url)
    assert asyncio.run(compacted_ledgers(zookeeper, compacted.namespace)) == 2


class TransactedTopic:
    """A topic on one broker after another, and what each must show of it.

    Attributes:
        seen: committed and plain messages, in order.
    """

    def __init__(self, local: str) -> None:
        self.name = f"persistent://{TRANSACTIONS}/{local}"
        self.seen, self._acked = list[str](), 0

    def work(self, service_url: str, *words: str) -> None:
        """By Apache's own client, see ``tests/apache/Transactions.java``."""
        command = [*JAVA, str(PROGRAMS / "Transactions.java"), service_url, self.name, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        for number, word in enumerate(words, 2):
            self._acked += word == "commit-ack"
            if word in ("plain", "commit"):
                self.seen += [f"{word} {number} {each}" for each in range(2)]

    def look(self, service_url: str) -> None:
        """A reader gets all of it; the subscription what no committed transaction acknowledged."""
        with client_of(service_url) as client:
            assert received(client, self.name) == self.seen
            consumer = client.subscribe(
                self.name, "acked", initial_position=InitialPosition.Earliest
            )
            left = [consumer.receive(60_000).data().decode() for _ in self.seen[self._acked :]]
            assert left == self.seen[self._acked :]
            with pytest.raises(pulsar.Timeout):
                consumer.receive(300)


def highest_sequence(admin_url: str) -> int:
    """Of all coordinators: those that were given out."""
    stats = httpx.get(f"{admin_url}/admin/v3/transactions/coordinatorStats", timeout=60)
    stats.raise_for_status()
    return max(int(each["leastSigBits"]) for each in stats.json().values())


def test_transactions_forth_and_back_and_forth(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """The first broker is killed: acknowledgements that were committed are in one log alone."""
    settings = {"transactionCoordinatorEnabled": "true", "managedLedgerPassword": PASSWORD}
    theirs = PulsarBroker(tmp_path / "pulsar", zookeeper.port, settings)
    theirs.set_up()
    mixed, alone = TransactedTopic("mixed"), TransactedTopic("open")
    with theirs:
        admin = f"{theirs.admin_url}/admin"
        httpx.put(f"{admin}/v2/namespaces/{TRANSACTIONS}", json={}).raise_for_status()
        retention = f"{admin}/v2/namespaces/{TRANSACTIONS}/retention"
        for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        httpx.post(retention, json=for_ever).raise_for_status()
        mixed.work(theirs.service_url, "plain", "commit", "abort", "plain", "commit-ack")
        alone.work(theirs.service_url, "plain", "open")
    code, told = migrate_in_place(zookeeper.url(), "--accept-data-loss")
    assert code == 1
    refused = [line for line in told.splitlines() if line.startswith("refused: ")]
    assert len(refused) == 1, told
    assert "is OPEN, it began " in refused[0]
    assert refused[0].endswith(f" s ago: {alone.name}")
    with theirs:
        mixed.work(theirs.service_url, "abort-ack", "commit-ack")  # it loads coordinators
        for most, least in re.findall(r"transaction \((\d+),(\d+)\) is OPEN", told):
            path = f"{admin}/v3/transactions/abortTransaction/{most}/{least}"
            httpx.post(path, timeout=60).raise_for_status()
        mixed.look(theirs.service_url)
        last = highest_sequence(theirs.admin_url)
        theirs.kill()
    # Its session has to end first.
    wait_until(lambda: migrate_in_place(zookeeper.url())[0] == 0)
    for turn in range(3 if NIGHTLY else 2):
        is_theirs = turn == 1
        if turn:
            told = migrate(zookeeper, *(("--back",) if is_theirs else ()))
            assert "lost:" not in told
        with theirs if is_theirs else ours(zookeeper, tmp_path / f"ours{turn}") as broker:
            for each in (mixed, alone):
                each.look(broker.service_url)
            steps = ("abort", "commit-ack", "plain", "commit", "abort-ack", "abort")
            mixed.work(broker.service_url, *steps)
            mixed.look(broker.service_url)
            assert highest_sequence(broker.admin_url) > last
            last = highest_sequence(broker.admin_url)


def test_ledgers_of_every_digest_chunks_and_indexes_of_delays(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Each digest by a broker of its own."""
    chunked = "chunks " * 1_000_000  # more than a frame
    for digest in DIGESTS:
        settings = {
            "managedLedgerDigestType": digest,
            "managedLedgerPassword": PASSWORD,
            "delayedDeliveryTrackerFactoryClassName": BUCKETS,
            "delayedDeliveryMinIndexCountPerBucket": "5",
        }
        theirs = PulsarBroker(tmp_path / digest, zookeeper.port, settings)
        if digest == DIGESTS[0]:
            theirs.set_up()
        with theirs, client_of(theirs.service_url) as client:
            admin = f"{theirs.admin_url}/admin/v2"
            if digest == DIGESTS[0]:
                httpx.put(f"{admin}/namespaces/{DIGEST_SPACE}", json={}).raise_for_status()
            topic = f"persistent://{DIGEST_SPACE}/{digest}"
            consumer = client.subscribe(topic, "s", ConsumerType.Shared)
            producer = client.create_producer(topic, chunking_enabled=True)
            producer.send(chunked.encode())
            for number in range(20):
                producer.send(b"", deliver_after=timedelta(hours=1, seconds=number))
            # An index is stored once a message of the next ledger is seen.
            path = f"{admin}/persistent/{DIGEST_SPACE}/{digest}/unload"
            httpx.put(path, timeout=60).raise_for_status()
            producer.send(b"", deliver_after=timedelta(hours=2))
            producer.send(b"last")
            while consumer.receive(60_000).data() != b"last":
                pass
    told = migrate(zookeeper)
    assert told.count("with an index of delayed messages") == len(DIGESTS), told
    with (
        ours(zookeeper, tmp_path / "ours") as broker,
        client_of(broker.service_url) as client,
    ):
        for digest in DIGESTS:
            topic = f"persistent://{DIGEST_SPACE}/{digest}"
            assert received(client, topic) == [chunked, *[""] * 21, "last"]
            consumer = client.subscribe(topic, "s", ConsumerType.Shared)
            found = {consumer.receive(60_000).data() for _ in range(2)}
            assert found == {chunked.encode(), b"last"}, "the others are delayed still"
            with pytest.raises(pulsar.Timeout):
                consumer.receive(300)


def received(client: pulsar.Client, topic: str) -> list[str]:
    """By a reader, which must also find the end."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = list[str]()
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data().decode())
    reader.close()
    return found
