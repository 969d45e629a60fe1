"""Brokers over ledgers that Apache BookKeeper's clients may open, too: lost sessions with
ZooKeeper, and a broker of Pulsar and one of ours that fence each other.

Histories are judged by clients: what was acknowledged is read, in order.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.apache_bookies import needs_bookkeeper, start_bookies
from tests.bookie_process import BookieProcess, running_bookies
from tests.broker_process import BrokerProcess
from tests.child_process import ChildProcess
from tests.cluster_tools import all_go_on, stop_and_check
from tests.cluster_traffic import TopicTraffic
from tests.integration.test_apache_layout import uri_of
from tests.integration.test_migrate_in_place import migrate
from tests.nightly import NIGHTLY
from tests.official_client import client_of, open_client
from tests.pulsar_broker import PulsarBroker, needs_pulsar
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = [
    needs_bookkeeper,
    pytest.mark.skipif(not NIGHTLY, reason="make nightly: brokers whose sessions end"),
]
TOPIC = "persistent://public/default/fenced"
SESSION = "metadataStoreSessionTimeoutMillis=3000"
QUORUMS = {"EnsembleSize": 3, "WriteQuorum": 3, "AckQuorum": 2}


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path / "zk") as server:
        yield server


def options_of(zookeeper: ZooKeeperProcess) -> list[str]:
    settings = [f"bookkeeperMetadataServiceUri={uri_of(zookeeper)}", SESSION]
    settings += [f"managedLedgerDefault{name}={value}" for name, value in QUORUMS.items()]
    return [word for each in settings for word in ("--set", each)]


@pytest.mark.parametrize("which", ["ledgers", "metadata", "both"])
def test_a_brokers_session_with_zookeeper_is_lost(
    zookeeper: ZooKeeperProcess, tmp_path: Path, which: str
) -> None:
    """It goes on by itself; topics that need nothing of that ZooKeeper are served meanwhile."""
    bookies = start_bookies(tmp_path, zookeeper.port)
    with ZooKeeperProcess(tmp_path / "zk2") as other:
        of_metadata = zookeeper if which == "both" else other
        url = of_metadata.url("/magnetar")
        victim = other if which == "metadata" else zookeeper
        try:
            with BrokerProcess(tmp_path / "broker", url, *options_of(zookeeper)) as broker:
                topics = [f"persistent://public/default/lost-{n}" for n in range(3)]
                traffic = [TopicTraffic(broker.service_url, each, 50, 0.01) for each in topics]
                for each in traffic:
                    each.start()
                all_go_on(traffic, "the start")
                lost = broker.log.count("session_lost")
                victim.pause()
                if which == "ledgers":
                    all_go_on(traffic, "the pause: open ledgers need no ZooKeeper")
                sessions = 2 if which == "both" else 1
                wait_until(lambda: broker.log.count("session_lost") == lost + sessions)
                if which == "ledgers":
                    all_go_on(traffic, "the session's end")
                victim.resume()
                all_go_on(traffic, "the next session")
                bookies[0].kill()  # its ledgers need another one, and get it from ZooKeeper
                bookies[0].start()
                later = TopicTraffic(broker.service_url, f"{topics[0]}-new", 50, 0.01)
                later.start()
                all_go_on([*traffic, later], "a bookie was killed")
                stop_and_check(broker.service_url, [*traffic, later])
        finally:
            for bookie in bookies:
                bookie.stop()


class Sender(threading.Thread):
    """Sends numbers from ``first`` on, as fast as it can, until it can't."""

    def __init__(self, url: str, first: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[int] = set()
        self.failed: list[pulsar.Result] = []
        self.end = first
        self._url = url
        self._stop_ = threading.Event()

    def run(self) -> None:
        client = open_client(self._url, operation_timeout_seconds=10)
        producer = client.create_producer(
            TOPIC, batching_enabled=False, max_pending_messages=200, block_if_queue_full=True
        )
        while not self._stop_.is_set():
            number, self.end = self.end, self.end + 1
            producer.send_async(b"%d" % number, lambda result, _, n=number: self._on(n, result))
        client.shutdown()

    def _on(self, number: int, result: pulsar.Result) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(number)
        else:
            self.failed.append(result)
            self._stop_.set()

    def stop(self) -> None:
        self._stop_.set()
        self.join(150)
        assert not self.is_alive()


@contextlib.contextmanager
def stopped_among_sends(broker: ChildProcess, url: str, first: int = 0) -> Iterator[Sender]:
    """It is stopped in the middle of them, and goes on at the end."""
    sender = Sender(url, first)
    sender.start()
    wait_until(lambda: len(sender.acknowledged) > 2_000)
    broker.pause()
    try:
        yield sender
    finally:
        broker.resume()
    wait_until(lambda: sender.failed or not broker.is_running)
    sender.stop()


def numbers_at(url: str) -> list[int]:
    """All of the topic."""
    with client_of(url) as client:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(int(reader.read_next(60_000).data()))
        return found


def check_stored(found: list[int], *senders: Sender) -> None:
    """What any broker acknowledged is there, in order, once; more only of what was sent."""
    for each in senders:
        assert each.acknowledged <= set(found), sorted(each.acknowledged - set(found))[:9]
    assert found == sorted(set(found))
    assert max(found) < senders[-1].end


def is_migrated(zookeeper: ZooKeeperProcess, *words: str) -> bool:
    """Once the session of the stopped broker has ended."""
    return "may start" in migrate(zookeeper, *words, "--accept-data-loss")


@needs_pulsar
def test_pulsars_broker_and_ours_fence_each_other(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """One that is stopped and wakes up after a swap has lost its ledger, and acknowledges nothing
    that the other one doesn't have."""
    settings = {
        "metadataStoreSessionTimeoutMillis": "3000",
        "zooKeeperSessionTimeoutMillis": "3000",
    }
    theirs = PulsarBroker(tmp_path / "pulsar", zookeeper.port, settings)
    theirs.set_up()
    bookies = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    url, options = zookeeper.url("/magnetar"), options_of(zookeeper)
    with running_bookies(bookies):
        with theirs:
            with client_of(theirs.service_url) as client:
                client.subscribe(TOPIC, "keeper")
            with stopped_among_sends(theirs, theirs.service_url) as one:
                wait_until(lambda: is_migrated(zookeeper))
                with BrokerProcess(tmp_path / "first", url, *options) as ours:
                    before = numbers_at(ours.service_url)
        with (
            BrokerProcess(tmp_path / "second", url, *options) as ours,
            contextlib.ExitStack() as on,
        ):
            check_stored(numbers_at(ours.service_url), one)
            assert one.acknowledged <= set(before)
            with stopped_among_sends(ours, ours.service_url, one.end) as other:
                wait_until(lambda: is_migrated(zookeeper, "--back"))
                on.enter_context(theirs)
                before = numbers_at(theirs.service_url)
            check_stored(numbers_at(theirs.service_url), one, other)
            assert other.acknowledged <= set(before)
