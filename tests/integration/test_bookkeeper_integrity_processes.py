"""Bookies as processes: bytes flipped under one, a disk lost; messages stay, copies agree."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pulsar
import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.factory import connect_store
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.integration.test_bookkeeper_processes import poll, read_ledgers
from tests.official_client import client_of

T = TypeVar("T")
TOPIC = "public/default/upkeep"
SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")
BOOKIE = (
    *SESSION,
    *("--set", "flushInterval=200"),
    *("--set", "openLedgerRereplicationGracePeriod=500"),
    *("--set", "httpServerEnabled=true", "--set", "httpServerPort=0"),
)
BROKER = (
    *SESSION,
    *("--set", "bookkeeperClientTimeoutInSeconds=2"),
    *("--set", "managedLedgerDefaultEnsembleSize=3"),
    *("--set", "managedLedgerDefaultWriteQuorum=3"),
    *("--set", "managedLedgerDefaultAckQuorum=2"),
)
Holdings = dict[tuple[int, int], dict[str, bytes | None]]


class Cluster:
    """Three bookies, a broker and a ZooKeeper."""

    def __init__(self, folder: Path, url: str, stack: contextlib.ExitStack) -> None:
        self.url = url
        self.bookies = [BookieProcess(folder / f"bookie-{n}", url, *BOOKIE) for n in range(3)]
        for bookie in self.bookies:
            bookie.launch()
            stack.push(bookie)
        for bookie in self.bookies:
            bookie.wait_until_ready()
        self.broker = BrokerProcess(folder / "broker", url, *BROKER)
        stack.enter_context(self.broker)

    def ask(self, call: Callable[[BookieConnector], Awaitable[T]]) -> T:
        """Something of the bookies themselves."""

        async def run() -> T:
            store = await connect_store(self.url)
            connector = BookieConnector(store, TransportConfig())
            try:
                return await call(connector)
            finally:
                await connector.close()
                await store.close()

        return asyncio.run(run())

    def check_data(self, bookie_id: str, **what: bool) -> dict[str, Any]:
        async def check(connector: BookieConnector) -> dict[str, Any]:
            status: dict[str, Any] = json.loads(
                await connector.connect(bookie_id).check_data(**what)
            )
            return status

        return self.ask(check)

    def closed_ledgers(self) -> list[LedgerMetadata]:
        return [each for each in read_ledgers(self.url) if each.state is LedgerState.CLOSED]

    def holdings(self, ledgers: list[LedgerMetadata]) -> Holdings:
        """What each bookie answers with for each entry that it should hold."""

        async def read(connector: BookieConnector) -> Holdings:
            found: Holdings = {}
            for ledger in ledgers:
                for entry_id in range(ledger.last_entry + 1):
                    segment = ledger.segment_of(entry_id)
                    slots = quorum.write_set(entry_id, ledger.ensemble_size, ledger.write_quorum)
                    copies = found.setdefault((ledger.ledger_id, entry_id), {})
                    for slot in slots:
                        bookie_id = segment.bookies[slot]
                        reply = await connector.connect(bookie_id).read_entries(
                            ReadRequest(ledger.ledger_id, entry_id, 1, 1)
                        )
                        is_there = reply.code == codes.OK
                        copies[bookie_id] = bytes(reply.packets[0]) if is_there else None
            return found

        return self.ask(read)


@pytest.fixture
def cluster(tmp_path: Path, url: str) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, url, stack)


def send(cluster: Cluster, first: int, count: int) -> None:
    with client_of(cluster.broker.service_url) as client:
        client.subscribe(TOPIC, "keeper").close()  # acknowledges nothing: nothing is trimmed
        producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
        results: list[pulsar.Result] = []
        for number in range(first, first + count):
            producer.send_async(message(number), lambda result, _id: results.append(result))
        producer.flush()
        poll(lambda: len(results) == count, "not all are acknowledged")
        assert set(results) == {pulsar.Result.Ok}
    poll(lambda: _all_agree(cluster), "a bookie lacks entries")


def _all_agree(cluster: Cluster) -> bool:
    """Of each ledger all bookies have the same: two of three suffice for a receipt."""
    ledgers = [each.ledger_id for each in read_ledgers(cluster.url)]

    async def ask(connector: BookieConnector) -> bool:
        for ledger_id in ledgers:
            runs = [
                await connector.connect(each.bookie_id).list_entries(ledger_id)
                for each in cluster.bookies
            ]
            if runs[1:] != runs[:-1]:
                return False
        return True

    return cluster.ask(ask)


def page(bookie: BookieProcess, path: str, method: str = "GET") -> httpx.Response:
    found = re.findall(r"^magnetar bookie: (http://\S+) ", bookie.log, re.MULTILINE)
    return httpx.request(method, f"{found[-1]}{path}", timeout=60)


def message(number: int) -> bytes:
    return b"message %06d " % number + b"." * 100


def check_messages(cluster: Cluster, count: int) -> None:
    with client_of(cluster.broker.service_url) as client:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        for number in range(count):
            assert reader.read_next(60_000).data() == message(number)


def flip(folder: Path, what: bytes) -> None:
    """Flip a bit of these bytes in the bookie's entry logs.

    In all copies: a recovery has written some entries again.
    """
    places = 0
    for path in folder.glob("entry-log/*.log"):
        data, at = path.read_bytes(), -1
        with path.open("r+b") as file:
            while (at := data.find(what, at + 1)) >= 0:
                file.seek(at)
                file.write(bytes([what[0] ^ 1]))
                places += 1
    assert places, f"{what!r} isn't in the entry logs"


def end_ledgers(cluster: Cluster) -> None:
    """A new owner closes what is open; recovery gives all three bookies every entry."""
    cluster.broker.kill()
    cluster.broker.start()
    poll(lambda: _serves(cluster), "the topic is not served again")


def _serves(cluster: Cluster) -> bool:
    with client_of(cluster.broker.service_url) as client:
        try:
            client.create_reader(TOPIC, pulsar.MessageId.earliest).close()
        except pulsar.PulsarException:
            return False
        return True


def test_flipped_bytes_are_found_and_repaired_while_it_runs(cluster: Cluster) -> None:
    send(cluster, 0, 400)
    end_ledgers(cluster)
    victim = cluster.bookies[1]
    assert victim.stop() == 0  # everything is in its entry logs
    victim.start()
    before = cluster.holdings(cluster.closed_ledgers())
    assert len(before) >= 400
    for number in (7, 8, 250):
        flip(victim.data, message(number))
    assert page(victim, "/api/v1/bookie/data").json()["damagedEntriesFound"] == 0
    assert page(victim, "/api/v1/bookie/data/scrub", "PUT").status_code == 200
    poll(
        lambda: cluster.check_data(victim.bookie_id)["damagedEntriesRepaired"] == 3,
        "never repaired",
    )
    after = cluster.holdings(cluster.closed_ledgers())
    for key, copies in before.items():
        assert set(after[key].values()) == set(copies.values())
        assert len(set(after[key].values())) == 1  # all three agree
        assert None not in after[key].values()
    assert cluster.check_data(victim.bookie_id)["damagedEntries"] == 0
    assert "damaged: entry-log/" in victim.log
    metrics = page(victim, "/metrics").text
    assert re.search(r"^bookie_DAMAGED_ENTRIES_REPAIRED\S* 3$", metrics, re.MULTILINE), metrics
    assert re.search(r"^bookie_DAMAGED_ENTRIES\S* 0$", metrics, re.MULTILINE)
    assert re.search(r"^bookie_LIMBO\S* 0$", metrics, re.MULTILINE)
    assert "repaired" in victim.log
    check_messages(cluster, 400)


def test_a_lost_disk_is_filled_again_and_no_message_is_missing(cluster: Cluster) -> None:
    send(cluster, 0, 300)
    victim = cluster.bookies[0]
    victim.kill()
    shutil.rmtree(victim.data)
    assert "its data directory is empty" in victim.refuse_to_start()
    again = BookieProcess(victim.data, cluster.url, *BOOKIE, "--set", "acceptDataLoss=true")
    again.port = victim.port
    with again:
        assert again.bookie_id == victim.bookie_id
        end_ledgers(cluster)  # a recovery while it is in limbo, or just after
        poll(lambda: not cluster.check_data(again.bookie_id)["inLimbo"], "limbo never ended")
        send(cluster, 300, 50)
        check_messages(cluster, 350)
        holdings = cluster.holdings(cluster.closed_ledgers())
        mine = [
            copies[again.bookie_id] for copies in holdings.values() if again.bookie_id in copies
        ]
        assert len(mine) >= 300
        assert None not in mine
        for copies in holdings.values():
            assert len({copy for copy in copies.values() if copy is not None}) == 1
        again.kill()
        again.start()
        assert cluster.check_data(again.bookie_id)["inLimbo"] is False
        assert again.stop() == 0
