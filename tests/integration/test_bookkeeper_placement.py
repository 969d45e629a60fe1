"""Bookie processes in three zones: ledgers follow the policy, and a lost zone stops nobody."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.quorum import write_sets
from magnetar.bookkeeper.layout.find_layout import find_layout
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.factory import connect_store
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.official_client import open_client
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")
ZONES = ("z0", "z1", "z2")
SETTINGS = (
    "bookkeeperEnsemblePlacementPolicy=zone-aware",
    "bookkeeper_enforceMinNumFaultDomainsForWrite=true",
    "managedLedgerDefaultEnsembleSize=3",
    "managedLedgerDefaultWriteQuorum=3",
    "managedLedgerDefaultAckQuorum=2",
    "bookkeeperClientTimeoutInSeconds=2",
    # Short, so that new ledgers come back to a zone that came back.
    "bookkeeperClientHealthCheckQuarantineTimeInSeconds=1",
)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperProcess
) -> "Iterator[Cluster]":
    """One for all tests, which leave it whole."""
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), zookeeper.url("/zones"), stack)


def options(*settings: str) -> list[str]:
    return [*SESSION, *(part for text in settings for part in ("--set", text))]


class Cluster:
    """Two bookies of different upgrade domains in each zone, and a broker."""

    def __init__(self, folder: Path, url: str, stack: contextlib.ExitStack) -> None:
        self.url = url
        self.bookies = {
            f"{zone}-u{domain}": BookieProcess(
                folder / f"{zone}-u{domain}",
                url,
                *("--id", f"{zone}-u{domain}"),
                *options(f"networkLocation=/{zone}/u{domain}"),
            )
            for zone in ZONES
            for domain in range(2)
        }
        for bookie in self.bookies.values():
            bookie.launch()
            stack.push(bookie)
        for bookie in self.bookies.values():
            bookie.wait_until_ready()
        self.broker = stack.enter_context(
            BrokerProcess(folder / "broker", url, *options(*SETTINGS))
        )
        self.client = open_client(self.broker.service_url)
        stack.callback(self.client.close)
        self._topics = (f"public/default/t{number}" for number in itertools.count())

    def zone(self, name: str) -> list[BookieProcess]:
        return [bookie for key, bookie in self.bookies.items() if key.startswith(name)]

    def new_producer(self) -> pulsar.Producer:
        """On a topic, and so a ledger, of its own."""
        return self.client.create_producer(next(self._topics), batching_enabled=False)

    def write_to_new_topic(self) -> None:
        with contextlib.closing(self.new_producer()) as producer:
            producer.send(b"one")

    @contextlib.contextmanager
    def writing(self, producers: Sequence[pulsar.Producer]) -> Iterator[None]:
        """Messages are sent before, during and after; every one must be acknowledged."""
        results: list[pulsar.Result] = []
        stop = threading.Event()
        sent = itertools.count()

        def send_all() -> None:
            while not stop.is_set():
                for producer in producers:
                    producer.send_async(b"x" * 100, lambda result, _: results.append(result))
                    next(sent)
                stop.wait(0.01)

        sender = threading.Thread(target=send_all, daemon=True)
        sender.start()
        try:
            wait_until(lambda: len(results) >= 2 * len(producers), "receipts are missing")
            yield
            received = len(results)
            wait_until(lambda: len(results) >= received + len(producers), "no receipts any more")
        finally:
            stop.set()
            sender.join(60)
        assert not sender.is_alive(), "the client's library never comes back"
        total = next(sent)
        wait_until(lambda: len(results) == total, "receipts are missing")
        assert set(results) == {pulsar.Result.Ok}

    def newest_ledger(self) -> int:
        return max((ledger.ledger_id for ledger in self.ledgers()), default=-1)

    def wait_for_ledgers_in_all_zones(self) -> None:
        known = self.newest_ledger()

        def is_back() -> bool:
            self.write_to_new_topic()
            return any(
                zones_of(ledger.segments[0].bookies) == set(ZONES)
                for ledger in self.ledgers()
                if ledger.ledger_id > known
            )

        wait_until(is_back, "new ledgers don't use all zones")

    def ledgers(self) -> list[LedgerMetadata]:
        async def read() -> list[LedgerMetadata]:
            store = await connect_store(self.url)
            try:
                ledgers = LedgerStore(store, await find_layout(store))
                ids = [id_ async for part in ledgers.ranges() for id_ in part.ledger_ids]
                found = [await ledgers.read(id_) for id_ in ids]
                return [each.metadata for each in found if each is not None]
            finally:
                await store.close()

        return asyncio.run(asyncio.wait_for(read(), 60))


def zones_of(bookies: Sequence[str]) -> set[str]:
    return {bookie.partition("-")[0] for bookie in bookies}


def assert_rules_hold(ledgers: Sequence[LedgerMetadata]) -> None:
    """Invariant 41: two zones at least; two bookies of a zone are of two upgrade domains."""
    for ledger in ledgers:
        for segment in ledger.segments:
            for slots in write_sets(ledger.ensemble_size, ledger.write_quorum):
                members = [segment.bookies[slot] for slot in slots]
                assert len(zones_of(members)) >= 2, segment
                assert len(set(members)) == len(members), segment


def test_a_lost_zone_stops_no_topic(cluster: Cluster) -> None:
    producers = [cluster.new_producer() for _ in range(6)]
    for producer in producers:
        producer.send(b"before")
    with cluster.writing(producers):
        for bookie in cluster.zone("z1"):
            bookie.kill()
    late = [cluster.new_producer() for _ in range(2)]
    for producer in late:
        producer.send(b"without a zone")

    def have_left() -> bool:
        for producer in producers:  # a failure behind a quorum is seen to with the next entry
            producer.send(b"on")
        moved = [each for each in cluster.ledgers() if len(each.segments) > 1]
        zones = [zones_of(each.last_segment.bookies) for each in moved]
        return bool(moved) and zones == [{"z0", "z2"}] * len(moved)

    wait_until(have_left, "a ledger stays in the lost zone, or none was in it")
    assert_rules_hold(cluster.ledgers())

    for bookie in cluster.zone("z1"):
        bookie.start()
    cluster.wait_for_ledgers_in_all_zones()
    assert_rules_hold(cluster.ledgers())


def test_a_rolling_restart_by_upgrade_domain_under_load(cluster: Cluster) -> None:
    cluster.wait_for_ledgers_in_all_zones()
    producers = [cluster.new_producer() for _ in range(4)]
    for zone in ZONES:
        for domain in range(2):
            bookie = cluster.bookies[f"{zone}-u{domain}"]
            with cluster.writing(producers):
                assert bookie.stop() == 0
            with cluster.writing(producers):
                bookie.start()
    assert_rules_hold(cluster.ledgers())


def test_an_operators_racks_count_at_once(cluster: Cluster) -> None:
    """Zone 2 is said to be part of zone 1: then an ensemble may have no bookie of one of them."""
    cluster.wait_for_ledgers_in_all_zones()
    admin = f"{cluster.broker.admin_url}/admin/v2/bookies/racks-info"
    refused = httpx.post(f"{admin}/z2-u0?group=default", json={"rack": "/flat"})
    assert refused.status_code == 412
    assert "/zone/upgrade-domain" in refused.json()["reason"]
    for domain in range(2):
        place = {"rack": f"/z1/of-z2-{domain}"}
        answer = httpx.post(f"{admin}/z2-u{domain}?group=g", json=place)
        assert answer.status_code == 204
    known = cluster.newest_ledger()

    def is_followed() -> bool:
        cluster.write_to_new_topic()
        newest = [each for each in cluster.ledgers() if each.ledger_id > known]
        assert all("z0" in zones_of(each.segments[0].bookies) for each in newest)
        return any(zones_of(each.segments[0].bookies) != set(ZONES) for each in newest)

    wait_until(is_followed, "ledgers are placed as if nobody had moved")
    for domain in range(2):
        assert httpx.delete(f"{admin}/z2-u{domain}").status_code == 204
    cluster.wait_for_ledgers_in_all_zones()


def test_quorums_that_cannot_be_placed_are_refused(cluster: Cluster) -> None:
    answer = httpx.post(
        f"{cluster.broker.admin_url}/admin/v2/namespaces/public/default/persistence",
        json={
            "bookkeeperEnsemble": 5,
            "bookkeeperWriteQuorum": 3,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        },
    )
    assert answer.status_code == 400
    assert "multiple of the write quorum" in answer.json()["reason"]


def test_settings_that_no_cluster_could_satisfy_are_refused_at_start(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    url = zookeeper.url("/refused")
    two_copies = options("bookkeeperEnsemblePlacementPolicy=zone-aware")
    broker = BrokerProcess(tmp_path / "broker", url, *two_copies)
    assert "write quorum above the 2 zones" in broker.refuse_to_start()
