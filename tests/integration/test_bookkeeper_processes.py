"""A broker, three bookies and a real ZooKeeper as processes: killed, paused, restarted."""

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.layout.find_layout import find_layout
from magnetar.bookkeeper.layout.service_info_format import decode_registration
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_NAME, ServiceInfo
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.metadata.factory import connect_store
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.certificates import Authority
from tests.history import (
    Consumer,
    Producer,
    Session,
    assert_sessions,
    assert_stored,
    client_of,
    final_session,
    publish_last,
    read_all,
    wait_for_receipts,
)
from tests.official_client import open_client
from tests.raw_client import Position
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

TOPIC = "persistent://public/default/history"
# A paused bookie is given up after the first, a killed broker's nodes vanish after the second.
SETTINGS = ("--set", "bookkeeperClientTimeoutInSeconds=2")
SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")


@pytest.fixture
def broker(tmp_path: Path, url: str, bookies: list[BookieProcess]) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker", url, *SETTINGS, *SESSION) as process:
        yield process


def read_ledgers(url: str) -> list[LedgerMetadata]:
    """Metadata of all ledgers of the cluster."""

    async def read() -> list[LedgerMetadata]:
        store = await connect_store(url)
        try:
            ledgers = LedgerStore(store, await find_layout(store))
            ids = [id_ async for part in ledgers.ranges() for id_ in part.ledger_ids]
            found = [await ledgers.read(id_) for id_ in ids]
            return [each.metadata for each in found if each is not None]
        finally:
            await store.close()

    return asyncio.run(read())


def test_the_official_client_over_a_cluster(
    url: str, bookies: list[BookieProcess], broker: BrokerProcess
) -> None:
    """Two copies of everything, and a bookie killed in mid-load."""
    client = open_client(broker.service_url)
    with contextlib.closing(client):
        consumer = client.subscribe("public/default/killed", "reader")
        producer = client.create_producer(
            "public/default/killed", block_if_queue_full=True, batching_enabled=False
        )
        results: list[pulsar.Result] = []
        for number in range(3000):
            producer.send_async(b"%d" % number, lambda result, _id: results.append(result))
            if number == 1000:
                # Any ensemble of two holds one of these two.
                bookies[0].kill()
        producer.flush()
        wait_until(lambda: len(results) == 3000, "receipts are missing")
        assert set(results) == {pulsar.Result.Ok}
        for number in range(3000):
            message = consumer.receive(60_000)
            assert message.data() == b"%d" % number
            consumer.acknowledge(message)
    for ledger in read_ledgers(url):
        assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (2, 2, 2)
        if ledger.last_segment.first_entry > 0:  # changed in mid-life: away from the killed one
            assert bookies[0].bookie_id not in ledger.last_segment.bookies


@pytest.mark.slow
def test_history_survives_what_happens_to_processes(
    url: str, zookeeper: ZooKeeperProcess, bookies: list[BookieProcess], broker: BrokerProcess
) -> None:
    """All are killed, bookies paused, too: no receipt is lost, nothing changes place."""
    with client_of(broker.service_url) as reader:  # holds back trimming, never acknowledges
        reader.subscribe(TOPIC, "keeper")
    story = _Story(broker)
    story.begin()
    for bookie in (bookies[0], bookies[1]):
        story.go_on(200)
        bookie.kill()
        story.go_on(200)
        bookie.start()
        _wait_until_registered(url, bookies)
    story.go_on(200)
    bookies[2].pause()
    story.go_on(200)  # past the timeout, if it was in the ensemble
    bookies[2].resume()
    _wait_until_registered(url, bookies)
    zookeeper.kill()
    story.go_on(200)  # an outage of the metadata isn't one of the messages
    zookeeper.start()
    _wait_until_registered(url, bookies)
    story.go_on(200)
    broker.kill()
    story.end()
    broker.start()
    _wait_until_served(broker.service_url)
    story.begin()
    story.go_on(200)
    broker.kill()
    story.end()
    broker.start()
    _wait_until_served(broker.service_url)
    history = read_all(broker.service_url, story.publish_last())
    assert_stored(history, story.acknowledged, story.next_number)
    assert_sessions(history, [*story.sessions, final_session(broker.service_url)])
    changed = [ledger for ledger in read_ledgers(url) if len(ledger.segments) > 1]
    assert changed, "no ensemble was changed under load"


def test_a_cluster_over_mutual_tls(tmp_path: Path, url: str) -> None:
    authority = Authority(tmp_path)
    bookie_pair, broker_pair = authority.sign("bookie"), authority.sign("broker")
    of_bookies = {
        "tlsCertificatePath": bookie_pair.certificate,
        "tlsKeyPath": bookie_pair.key,
        "tlsTrustPath": authority.certificate,
        "tlsClientAuthentication": "true",
    }
    of_broker = {
        "bookkeeperTLSCertificateFilePath": broker_pair.certificate,
        "bookkeeperTLSKeyFilePath": broker_pair.key,
        "bookkeeperTLSTrustCertsFilePath": authority.certificate,
    }
    with contextlib.ExitStack() as stack:
        for number in range(2):
            options = [*SESSION, *_set(of_bookies)]
            stack.enter_context(BookieProcess(tmp_path / f"bookie-{number}", url, *options))
        options = [*SETTINGS, *SESSION, *_set(of_broker)]
        broker = stack.enter_context(BrokerProcess(tmp_path / "broker", url, *options))
        client = pulsar.Client(broker.service_url)
        stack.enter_context(contextlib.closing(client))
        consumer = client.subscribe("public/default/secret", "reader")
        client.create_producer("public/default/secret").send(b"not in clear")
        assert consumer.receive(60_000).data() == b"not in clear"


def _set(settings: Mapping[str, object]) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


class _Story:
    """A producer and a consumer at a time, and what all of them were told."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.acknowledged: dict[int, Position] = {}
        self.sessions: list[Session] = []
        self.next_number = 0
        self._broker = broker

    def begin(self) -> None:
        url = self._broker.service_url
        self._producer = Producer(url, self.next_number, 1000)
        self._consumer = Consumer(url)
        self._consumer.start()
        self._producer.start()

    def go_on(self, receipts: int) -> None:
        """Wait for so many more receipts."""
        wait_for_receipts(self._producer, len(self._producer.receipts) + receipts)

    def end(self) -> None:
        """The broker is gone: note what the two were told."""
        self._producer.join()
        self._consumer.join()
        self.acknowledged.update(self._producer.receipts)
        self.next_number = self._producer.next_number
        self.sessions.append(self._consumer.session)

    def publish_last(self) -> Position:
        last = publish_last(self._broker.service_url, self.next_number)
        self.acknowledged[self.next_number] = last
        self.next_number += 1
        return last


def _wait_until_served(url: str) -> None:
    """The killed broker's bundles are its own until its session ends."""

    def served() -> bool:
        with client_of(url) as client:
            return isinstance(client.create_producer(TOPIC), pb.CommandProducerSuccess)

    wait_until(served, "the topic is not served again")


def _registered(url: str) -> dict[str, ServiceInfo]:
    async def read() -> dict[str, ServiceInfo]:
        store = await connect_store(url)
        try:
            infos: dict[str, ServiceInfo] = {}
            for name in await store.children(AVAILABLE_PATH):
                if name != READ_ONLY_NAME:
                    found = await store.get(f"{AVAILABLE_PATH}/{name}")
                    if found is not None:
                        infos[name] = decode_registration(name, found.value)
            return infos
        finally:
            await store.close()

    return asyncio.run(read())


def _wait_until_registered(url: str, bookies: list[BookieProcess]) -> None:
    names = {bookie.bookie_id for bookie in bookies}
    wait_until(lambda: set(_registered(url)) == names, "not all bookies are registered")


def test_a_bookie_registers_with_place_and_address(tmp_path: Path, url: str) -> None:
    journal = ("--set", f"journalDirectories={tmp_path / 'journal'}")
    place = ("--set", "networkLocation=/zone-a/ud3")
    web = ("--set", "httpServerEnabled=true", "--set", "httpServerPort=0")
    bookie = BookieProcess(tmp_path / "bookie", url, "--id", "bookie-7", *journal, *place, *web)
    with bookie:
        assert bookie.bookie_id == "bookie-7"
        (info,) = _registered(url).values()
        assert (tmp_path / "journal" / "journal").is_dir()
        assert replace(info, rpc_address=None) == ServiceInfo(
            "bookie-7", "/zone-a/ud3", ("127.0.0.1", bookie.port)
        )
        assert info.rpc_address is not None
        found = re.search(r"^magnetar bookie: (http://\S+) ", bookie.log, re.MULTILINE)
        assert found is not None, bookie.log
        assert "bookie_journal_JOURNAL_SYNC" in httpx.get(f"{found[1]}/metrics").text
        assert httpx.get(f"{found[1]}/api/v1/bookie/is_ready").status_code == 200
        assert bookie.stop() == 0
        assert _registered(url) == {}


def test_a_bookie_refuses_what_is_not_its_own(
    tmp_path: Path, zookeeper: ZooKeeperProcess, url: str
) -> None:
    with BookieProcess(tmp_path / "bookie", url) as bookie:
        duplicate = BookieProcess(tmp_path / "bookie", url)
        assert "another process uses it" in duplicate.refuse_to_start()
        other_bookie = BookieProcess(
            tmp_path / "stranger", url, "--id", "x", "--port", str(bookie.port)
        )
        assert f"127.0.0.1:{bookie.port}" in other_bookie.refuse_to_start()
    port = ("--port", str(bookie.port))  # the id follows from it
    foreign = BookieProcess(tmp_path / "bookie", zookeeper.url("/another-cluster"), *port)
    assert "belongs to cluster" in foreign.refuse_to_start()
    renamed = BookieProcess(tmp_path / "bookie", url, "--id", "another")
    assert "belongs to bookie" in renamed.refuse_to_start()
    emptied = BookieProcess(tmp_path / "empty", url, *port)
    assert "its data directory is empty" in emptied.refuse_to_start()


def test_a_wrong_setting_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    bookie = BookieProcess(tmp_path / "bookie", "etcd://127.0.0.1:1")
    assert "only ZooKeeper" in bookie.refuse_to_start()
    assert not bookie.data.exists()
