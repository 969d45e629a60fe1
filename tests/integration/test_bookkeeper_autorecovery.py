"""Bookies, auto-recovery and ZooKeeper as processes: killed, returned, by one, by zones."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.bookkeeper.replication.fragments import fragments_of
from magnetar.bookkeeper.replication.replica_reader import ReplicaStatus, read_replica
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from tests.autorecovery_process import AutoRecoveryProcess, parse_metrics, read_page, run_command
from tests.bookie_process import BookieProcess
from tests.waiting import eventually

SESSION = ("--set", "zkTimeout=4000")
ENTRIES = 50
LEDGERS = 8


@contextlib.contextmanager
def bookies_of(folder: Path, url: str, *places: str) -> Iterator[list[BookieProcess]]:
    """One bookie for each place."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, place in enumerate(places):
            options = (*SESSION, "--id", f"bookie-{number}", "--set", f"networkLocation={place}")
            bookie = BookieProcess(folder / f"bookie-{number}", url, *options)
            bookie.launch()
            started.append(stack.push(bookie))
        for bookie in started:
            bookie.wait_until_ready()
        yield started


def restart(bookie: BookieProcess) -> None:
    """At any free port: others may have taken its old one meanwhile. Its name stays."""
    bookie.port = 0
    bookie.start()


def recovery(folder: Path, url: str, name: str, **settings: object) -> AutoRecoveryProcess:
    wanted = {"openLedgerRereplicationGracePeriod": 500, "zoneSettleTime": 3.0, **settings}
    options = [word for key, value in wanted.items() for word in ("--set", f"{key}={value}")]
    return AutoRecoveryProcess(folder, name, url, *SESSION, *options)


class Cluster:
    """A client, and what an operator would look at."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers = ledgers
        self.marks = UnderReplicationStore(
            ledgers.store, lambda: time.time_ns() // 1_000_000, ledgers.client.ledgers.layout
        )
        self.ids: list[int] = []

    async def write(self, count: int, quorum: int = 2) -> None:
        """Closed ledgers, and by chance some more: until each bookie has one."""
        for number in range(count + 100):
            if number >= count:
                names = self.ledgers.client.bookies.writable
                if not names - {name for name in names if await self.naming(name)}:
                    break
            ledger = await self.ledgers.create(quorum, quorum, quorum)
            await ledger.append_all([_body(ledger.ledger_id, n) for n in range(ENTRIES)])
            await ledger.close()
            self.ids.append(ledger.ledger_id)

    async def metadata(self) -> list[LedgerMetadata]:
        found = [await self.ledgers.metadata(ledger_id) for ledger_id in self.ids]
        assert None not in found
        return [each for each in found if each is not None]

    async def naming(self, *bookies: str) -> list[int]:
        """Ledgers that name one of them."""
        return [
            each.ledger_id
            for each in await self.metadata()
            if any(set(bookies) & set(segment.bookies) for segment in each.segments)
        ]

    async def marked(self) -> set[int]:
        return {each async for ids in self.marks.ledger_ids() for each in ids}

    async def repaired(self, *bookies: str) -> None:
        """Wait until nothing names them and no marker is left."""

        async def done() -> bool:
            return not await self.naming(*bookies) and not await self.marked()

        await eventually(done)

    async def check_copies(self) -> None:
        """Every entry on every bookie that should hold it, read from that very bookie."""
        pool = self.ledgers.client.bookies
        for metadata in await self.metadata():
            for fragment in fragments_of(metadata):
                for slot, bookie in enumerate(fragment.bookies):
                    for first, end in fragment.runs_of(slot):
                        at = first
                        while at < end:
                            got = await read_replica(
                                pool, bookie, fragment.ledger_id, at, end - at, 1 << 20, 30.0
                            )
                            assert got.answer is ReplicaStatus.GOOD, (
                                metadata,
                                bookie,
                                at,
                                got.answer,
                            )
                            for number, packet in enumerate(got.packets, at):
                                assert bytes(packet).endswith(_body(fragment.ledger_id, number))
                            at += len(got.packets)


def _body(ledger_id: int, entry_id: int) -> bytes:
    return b"ledger %d, entry %d" % (ledger_id, entry_id)


@pytest.fixture
async def cluster(url: str) -> AsyncIterator[Cluster]:
    async with connect_ledgers(url) as ledgers:
        yield Cluster(ledgers)


async def registered(cluster: Cluster, count: int) -> None:
    """The client's pool has seen so many writable bookies."""

    async def are_there() -> bool:
        return len(cluster.ledgers.client.bookies.writable) == count

    await eventually(are_there)


async def test_a_killed_bookie_after_its_delay(tmp_path: Path, url: str, cluster: Cluster) -> None:
    """Four bookies, one dies: nothing within the delay, then all by itself."""
    with bookies_of(tmp_path, url, *["/zone/ud"] * 4) as bookies:
        await registered(cluster, 4)
        await cluster.write(LEDGERS)
        with recovery(tmp_path, url, "r1", lostBookieRecoveryDelay=8) as process:
            victim = bookies[0]
            affected = await cluster.naming(victim.bookie_id)
            assert affected
            victim.kill()
            await eventually(lambda: _metric(process, "auditor_lost_bookies", 1))
            seen = time.monotonic()
            while time.monotonic() < seen + 3:  # the delay is eight seconds
                assert await cluster.marked() == set()
                await asyncio.sleep(0.1)
            assert await cluster.naming(victim.bookie_id) == affected
            await cluster.repaired(victim.bookie_id)
            await cluster.check_copies()
            metrics = process.metrics()
            name = 'replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED{worker="0"}'
            assert metrics[name] == len(affected)
            assert process.stop() == 0


async def _metric(process: AutoRecoveryProcess, name: str, value: float) -> bool:
    return (await asyncio.to_thread(process.metrics)).get(name) == value


async def _lose_a_zone(
    cluster: Cluster, bookies: list[BookieProcess], process: AutoRecoveryProcess
) -> None:
    for bookie in bookies[:3]:
        bookie.kill()
    await eventually(lambda: _metric(process, 'auditor_zone_down{zone="a"}', 1))
    await eventually(lambda: _metric(process, "auditor_replication_disabled", 1))
    assert await cluster.marked() == set()


async def test_a_zone_that_is_lost_waits_for_an_operator(
    tmp_path: Path, url: str, cluster: Cluster
) -> None:
    places = [f"/{zone}/ud{number}" for zone in "ab" for number in range(3)]
    with bookies_of(tmp_path, url, *places) as bookies:
        await registered(cluster, 6)
        await cluster.write(LEDGERS)
        gone = [bookie.bookie_id for bookie in bookies[:3]]
        affected = await cluster.naming(*gone)
        assert affected
        with recovery(tmp_path, url, "r1") as process:
            await _lose_a_zone(cluster, bookies, process)
            assert "zone down: a 0/3" in run_command(url, "--status")
            assert process.status()["zones"]["a"]["state"] == "held"
            quiet = time.monotonic()
            while time.monotonic() < quiet + 3:
                assert await cluster.marked() == set()
                assert await cluster.naming(*gone) == affected
                await asyncio.sleep(0.1)
            assert run_command(url, "--enable") == "automatic repair is on"
            # What has a copy in the other zone gets its second one there.
            whole = [m for m in await cluster.metadata() if not _is_lost(m, gone)]
            lost = {m.ledger_id for m in await cluster.metadata()} - {m.ledger_id for m in whole}

            async def is_repaired() -> bool:
                return set(await cluster.naming(*gone)) == lost == await cluster.marked()

            await eventually(is_repaired)
            # Down it still is, and says so.
            assert await _metric(process, 'auditor_zone_down{zone="a"}', 1)
            # What had both copies there was no zone-aware placement: it waits for the zone.
            for bookie in bookies[:3]:
                restart(bookie)
            await eventually(lambda: _metric(process, 'auditor_zone_down{zone="a"}', 0))

            async def is_clear() -> bool:
                return not await cluster.marked()

            await eventually(is_clear)
            await cluster.check_copies()


def _is_lost(metadata: LedgerMetadata, gone: list[str]) -> bool:
    return any(set(segment.bookies) <= set(gone) for segment in metadata.segments)


async def test_inside_bookies(tmp_path: Path, url: str, cluster: Cluster) -> None:
    """Every bookie is a candidate and a worker; the one that audits is killed."""
    settings = {
        "autoRecoveryDaemonEnabled": "true",
        "zoneSettleTime": "0.5",
        "openLedgerRereplicationGracePeriod": "500",
        "httpServerEnabled": "true",
        "httpServerPort": "0",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with contextlib.ExitStack() as stack:
        bookies = []
        for number in range(4):
            name = ("--id", f"bookie-{number}")
            bookie = BookieProcess(tmp_path / f"bookie-{number}", url, *SESSION, *name, *options)
            bookies.append(stack.enter_context(bookie))
            assert "ignored" not in bookie.log
        await registered(cluster, 4)
        await cluster.write(LEDGERS)
        open_ledger = await cluster.ledgers.client.create_ledger(LedgerConfig(3, 3, 2))
        open_ledger.append([b""], [_body(open_ledger.ledger_id, 0)])
        cluster.ids.append(open_ledger.ledger_id)
        web = bookies[0].log.split("magnetar bookie: ")[1].split(" ")[0]
        assert '"isAuditor": true' in read_page(f"{web}/api/v1/autorecovery/status")
        assert '"Auditor": "bookie-0"' in read_page(f"{web}/api/v1/autorecovery/who_is_auditor")
        assert parse_metrics(read_page(f"{web}/metrics"))["auditor_is_auditor"] == 1
        assert await cluster.naming("bookie-0")
        bookies[0].kill()
        await cluster.repaired("bookie-0")
        await cluster.check_copies()
