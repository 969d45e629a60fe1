"""Repair under a broker, with real processes: a bookie dies for good, a worker dies at work."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pulsar
import pytest

from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.bookkeeper.replication.decommission import DecommissionState, decommission
from magnetar.bookkeeper.replication.fragments import fragments_of
from magnetar.bookkeeper.replication.replica_reader import ReplicaStatus, read_replica
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.managed_ledger.orphan_ledgers import COMPONENT, COMPONENT_VALUE, LOG_NAME
from tests.autorecovery_process import AutoRecoveryProcess
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.official_client import open_client
from tests.waiting import eventually

BOOKIES = 4

SESSION = ("--set", "zkTimeout=4000")
MESSAGES = 1200


def recovery(folder: Path, url: str, name: str, *settings: str) -> AutoRecoveryProcess:
    grace, pause = "openLedgerRereplicationGracePeriod=1000", "rwRereplicateBackoffMs=500"
    wanted = (grace, pause, "zoneSettleTime=1.0", *settings)
    options = [word for setting in wanted for word in ("--set", setting)]
    return AutoRecoveryProcess(folder, name, url, *SESSION, *options)


class Cluster:
    """What an operator would look at."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers = ledgers
        self.markers = UnderReplicationStore(
            ledgers.store, lambda: time.time_ns() // 1_000_000, ledgers.client.ledgers.layout
        )

    async def metadata(self) -> list[LedgerMetadata]:
        store = self.ledgers.client.ledgers
        ids = [i async for found in store.ranges() for i in found.ledger_ids]
        found = [await store.read(i) for i in ids]
        return [each.metadata for each in found if each is not None]

    async def is_repaired(self, lost: str) -> bool:
        if [ids async for ids in self.markers.ledger_ids()]:
            return False
        return not any(
            lost in segment.bookies
            for metadata in await self.metadata()
            for segment in metadata.segments
        )

    async def read_alone(self, metadata: LedgerMetadata, index: int, slot: int) -> int:
        """Read everything that one slot of one segment owns, from its bookie only; the count."""
        fragment = fragments_of(metadata)[index]
        count = 0
        for first, end in fragment.runs_of(slot):
            while first < end:
                found = await read_replica(
                    self.ledgers.client.bookies,
                    fragment.bookies[slot],
                    metadata.ledger_id,
                    first,
                    end - first,
                    1 << 20,
                    30.0,
                )
                assert found.answer is ReplicaStatus.GOOD, (metadata, slot, first, found.answer)
                first += len(found.packets)
                count += len(found.packets)
        return count


@pytest.fixture
async def cluster(url: str, bookies: list[BookieProcess]) -> AsyncIterator[Cluster]:
    async with connect_ledgers(url) as ledgers:
        yield Cluster(ledgers)


async def leave(cluster: Cluster, bookie: str) -> list[DecommissionState]:
    """Decommission; the session of the killed process may still keep its registration."""

    async def run() -> list[DecommissionState]:
        store = cluster.ledgers.store
        states = decommission(bookie, store, cluster.ledgers.client.ledgers, cluster.markers)
        return [state async for state in states]

    found: list[DecommissionState] = []

    async def is_done() -> bool:
        with contextlib.suppress(BookkeeperError):
            found.extend(await run())
        return bool(found)

    await eventually(is_done)
    return found


def send(client: pulsar.Client, topic: str, first: int, count: int) -> None:
    producer = client.create_producer(topic, block_if_queue_full=True, batching_enabled=False)
    results: list[pulsar.Result] = []
    for number in range(first, first + count):
        producer.send_async(b"%d " % number * 50, lambda result, _id: results.append(result))
    producer.flush()
    deadline = time.monotonic() + 60
    while len(results) < count:
        assert time.monotonic() < deadline, "receipts are missing"
        time.sleep(0.01)
    assert set(results) == {pulsar.Result.Ok}
    producer.close()


def keep(client: pulsar.Client, topic: str) -> None:
    """A subscription: without one, closed ledgers would be trimmed."""
    client.subscribe(topic, "keeper").close()


def check(client: pulsar.Client, topic: str, count: int) -> None:
    """All of it from the start, in order."""
    consumer = client.subscribe(topic, "keeper")
    for number in range(count):
        assert consumer.receive(60_000).data() == b"%d " % number * 50
    consumer.close()


async def test_a_bookie_dies_for_good(
    tmp_path: Path, url: str, bookies: list[BookieProcess], cluster: Cluster
) -> None:
    """Many closed ledgers, an idle open one, one that is written to: all get whole again, and
    each new copy suffices alone. The official client finds every message."""
    settings = (
        *("--set", "managedLedgerMaxEntriesPerLedger=100"),
        *("--set", "managedLedgerMinLedgerRolloverTimeMinutes=0"),
    )
    busy, idle = "public/default/busy", "public/default/idle"
    with (
        BrokerProcess(tmp_path / "broker", url, *settings) as broker,
        contextlib.closing(open_client(broker.service_url)) as client,
    ):
        for topic in (busy, idle):
            await asyncio.to_thread(keep, client, topic)
        await asyncio.to_thread(send, client, busy, 0, MESSAGES)
        await asyncio.to_thread(send, client, idle, 0, 10)
        before = {m.ledger_id: m for m in await cluster.metadata()}
        assert len(before) > MESSAGES // 100
        # One that the idle topic's ledger is on, too: nobody writes, so nobody else notices.
        (open_ledger,) = [m for m in before.values() if _is_data_of(m, b"idle")]
        name = open_ledger.last_segment.bookies[0]
        (victim,) = [bookie for bookie in bookies if bookie.bookie_id == name]
        affected = [m for m in before.values() if any(name in s.bookies for s in m.segments)]
        assert affected
        with recovery(tmp_path, url, "r1") as worker:
            victim.kill()
            await asyncio.to_thread(send, client, busy, MESSAGES, 200)
            await eventually(lambda: cluster.is_repaired(name))
            states = await leave(cluster, name)
            assert states[-1].done
            cookie = cluster.ledgers.client.ledgers.layout.cookie_path(name)
            assert not await cluster.ledgers.store.exists(cookie)
            copied = 0
            for metadata in await cluster.metadata():
                old = before.get(metadata.ledger_id)
                for index, segment in enumerate(old.segments if old is not None else ()):
                    for slot, bookie in enumerate(segment.bookies):
                        if bookie == name:
                            copied += await cluster.read_alone(metadata, index, slot)
            assert copied > 0
            assert worker.stop() == 0
        await asyncio.to_thread(send, client, idle, 10, 10)
        await asyncio.to_thread(check, client, busy, MESSAGES + 200)
        await asyncio.to_thread(check, client, idle, 20)
        assert broker.stop() == 0


def _is_data_of(metadata: LedgerMetadata, topic: bytes) -> bool:
    custom = metadata.custom_metadata
    is_data = custom.get(COMPONENT) == COMPONENT_VALUE
    return is_data and custom[LOG_NAME].rpartition(b"/")[2] == topic


async def test_a_worker_is_killed_at_work(
    tmp_path: Path, url: str, bookies: list[BookieProcess], cluster: Cluster
) -> None:
    """The next one goes on with the same target, and copies nothing twice."""
    count, size = 400, 100_000
    writer = await cluster.ledgers.create(2, 2, 2)
    for first in range(0, count, 50):
        await writer.append_all([b"%d" % (first + n) + bytes(size) for n in range(50)])
    await writer.close()
    metadata = await cluster.ledgers.metadata(writer.ledger_id)
    assert metadata is not None
    name = metadata.segments[0].bookies[0]
    (victim,) = [bookie for bookie in bookies if bookie.bookie_id == name]
    copied = "replication_worker_NUM_ENTRIES_WRITTEN"
    with recovery(tmp_path, url, "slow", "replicationRateByBytes=3000000") as first_worker:
        victim.kill()
        deadline = time.monotonic() + 60
        while _sum(first_worker, copied) < 80:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        first_worker.kill()
    current = await cluster.ledgers.metadata(writer.ledger_id)
    assert current is not None
    assert name in current.segments[0].bookies  # half copies aren't named
    with recovery(tmp_path, url, "fast") as second_worker:
        await eventually(lambda: cluster.is_repaired(name))
        resumed = _sum(second_worker, "replication_worker_entries_resumed")
        assert resumed >= 80
        assert resumed + _sum(second_worker, copied) == count
        assert second_worker.stop() == 0
    current = await cluster.ledgers.metadata(writer.ledger_id)
    assert current is not None
    assert await cluster.read_alone(current, 0, 0) == count


def _sum(process: AutoRecoveryProcess, name: str) -> float:
    return sum(value for series, value in process.metrics().items() if series.startswith(name))
