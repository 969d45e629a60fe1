"""Our bookies with metadata in Apache BookKeeper's form, beside BookKeeper's own tools."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from pulsar import InitialPosition

from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.bookkeeper.replication.auditor_elector import AUDITOR_PATH, read_auditor
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore
from tests.apache_bookies import ApacheBookie, needs_bookkeeper
from tests.autorecovery_process import AutoRecoveryProcess
from tests.bookie_process import BookieProcess, running_bookies
from tests.broker_process import BrokerProcess
from tests.integration.test_apache_bookkeeper import RECEIVE_MS, append_all, read_all, send
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.waiting import eventually
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = needs_bookkeeper
QUORUMS = ("EnsembleSize", "WriteQuorum", "AckQuorum")
ENTRIES = [b"%d" % number for number in range(100)]


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path) as server:
        yield server


def uri_of(zookeeper: ZooKeeperProcess) -> str:
    return f"zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers"


@asynccontextmanager
async def ledgers_at(zookeeper: ZooKeeperProcess, bookies: int) -> AsyncIterator[Ledgers]:
    async with connect_ledgers(uri_of(zookeeper)) as ledgers:
        await eventually(lambda: len(ledgers.client.bookies.writable) == bookies)
        yield ledgers


async def test_bookkeepers_shell_knows_a_cluster_of_ours(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = uri_of(zookeeper)
    bookies = [BookieProcess(tmp_path / f"o{n}", uri) for n in range(3)]
    shell = ApacheBookie(tmp_path / "shell", uri)  # it is never started
    with running_bookies(bookies):
        async with ledgers_at(zookeeper, 3) as ledgers:
            ledger = await ledgers.create(3, 2, 2, custom_metadata={"who": b"us"})
            await append_all(ledger, ENTRIES)
            await ledger.close()
            assert await read_all(ledgers, ledger.ledger_id) == ENTRIES
        listed = shell.shell("listbookies", "-rw")
        assert all(each.bookie_id in listed for each in bookies), listed
        store = await connect_store(zookeeper.url())
        try:
            instance_id = await store.get("/ledgers/INSTANCEID")
            layout = await store.get("/ledgers/LAYOUT")
        finally:
            await store.close()
        assert instance_id is not None
        assert layout is not None
        assert layout.value == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        assert instance_id.value.decode() in shell.shell("whatisinstanceid")
        metadata = shell.shell("ledgermetadata", "-ledgerid", str(ledger.ledger_id))
        assert "state=CLOSED" in metadata, metadata
        assert "lastEntryId=99" in metadata, metadata
        assert f"ledgerID: {ledger.ledger_id}" in shell.shell("listledgers")
        cookie = shell.shell("cookie_get", bookies[0].bookie_id)
        assert instance_id.value.decode() in cookie
        assert str(tmp_path / "o0") in cookie


@pytest.mark.skipif(not NIGHTLY, reason="half a minute of Java")
async def test_bookkeepers_shell_moves_our_ledgers(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Of a bookie that runs, and of one that was stopped, which our auto-recovery copies."""
    uri = uri_of(zookeeper)
    bookies = [BookieProcess(tmp_path / f"o{n}", uri) for n in range(4)]
    shell = ApacheBookie(tmp_path / "shell", uri)  # it is never started
    ours = AutoRecoveryProcess(tmp_path, "ours", zookeeper.url())
    with running_bookies(bookies), ours:
        async with ledgers_at(zookeeper, 4) as ledgers:
            ids = []
            for _ in range(4):
                ledger = await ledgers.create(3, 2, 2)
                await append_all(ledger, ENTRIES)
                await ledger.close()
                ids.append(ledger.ledger_id)

            async def named(bookie: BookieProcess) -> bool:
                found = [await ledgers.metadata(each) for each in ids]
                segments = [segment for each in found if each for segment in each.segments]
                return any(bookie.bookie_id in each.bookies for each in segments)

            assert await named(bookies[0])
            await asyncio.to_thread(shell.shell, "recover", "-f", bookies[0].bookie_id)
            assert not await named(bookies[0])
            # Our auditor has written the delay of its settings; the shell makes it an operator's.
            delay = "/ledgers/underreplication/lostBookieRecoveryDelay"
            async with markers_at(zookeeper) as (store, _):
                assert (found := await store.get(delay)) is not None
                assert found.value == b"+0"
                told = await asyncio.to_thread(shell.shell, "lostbookierecoverydelay", "-get")
                assert "value in ZK: 0" in told, told
                await asyncio.to_thread(shell.shell, "triggeraudit")
                assert (found := await store.get(delay)) is not None
                assert found.value == b"0"
            await asyncio.to_thread(shell.shell, "lostbookierecoverydelay", "-s", "1")
            assert await named(bookies[1])
            bookies[1].stop()
            words = ("decommissionbookie", "-bookieid", bookies[1].bookie_id)
            told = await asyncio.to_thread(shell.shell, *words)
            assert "properly replicated" in told, told
            assert not await named(bookies[1])
            for each in ids:
                assert await read_all(ledgers, each) == ENTRIES


@asynccontextmanager
async def markers_at(
    zookeeper: ZooKeeperProcess,
) -> AsyncIterator[tuple[MetadataStore, UnderReplicationStore]]:
    store = await connect_store(zookeeper.url())
    try:
        yield store, UnderReplicationStore(store, lambda: 0, BookKeeperLayout())
    finally:
        await store.close()


async def marked(markers: UnderReplicationStore) -> list[int]:
    return [ledger_id async for ids in markers.ledger_ids() for ledger_id in ids]


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: JVMs that start")
async def test_both_kinds_of_auto_recovery_know_each_others_nodes(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    uri = uri_of(zookeeper)
    bookies = [BookieProcess(tmp_path / f"o{n}", uri) for n in range(3)]
    shell = ApacheBookie(tmp_path / "shell", uri)  # it is never started
    ours = AutoRecoveryProcess(tmp_path, "ours", zookeeper.url())
    theirs = shell.autorecovery("theirs")
    with running_bookies(bookies[:2]), theirs:
        async with ledgers_at(zookeeper, 2) as ledgers, markers_at(zookeeper) as (store, markers):
            layout = BookKeeperLayout()
            ids = []
            for _ in range(3):
                ledger = await ledgers.create(2, 2, 2)
                await append_all(ledger, ENTRIES)
                await ledger.close()
                ids.append(ledger.ledger_id)

            await eventually(lambda: is_auditor(store, "theirs"))
            with ours:
                await eventually(lambda: votes(store, 2))
                assert await read_auditor(store, layout) == "theirs"
                lost = bookies[1].bookie_id
                bookies[1].kill()
                await eventually(lambda: is_marked(markers, ids))
                # As Apache's auditor wrote it; workers of both kinds change it meanwhile.
                await eventually(lambda: names_only(markers, ids[0], lost))

                theirs.stop()
                await eventually(lambda: is_auditor(store, "ours"))
                assert "ours" in shell.shell("whoisauditor")
                await eventually(lambda: has_reason(markers, ids[0]))  # our worker found no target
                listed = shell.shell("listunderreplicated", "-printmissingreplica")
                assert all(str(each) in listed for each in ids), listed
                assert lost in listed, listed

                assert "DISABLED" in (said := shell.shell("autorecovery", "-disable").upper()), said
                assert not await markers.is_enabled()
                shell.shell("autorecovery", "-enable")
                assert await markers.is_enabled()
                await markers.set_lost_bookie_delay_s(1)
                assert "1" in shell.shell("lostbookierecoverydelay", "-get")
                shell.shell("lostbookierecoverydelay", "-set", "2")
                assert await markers.lost_bookie_delay_s() == 2

                with running_bookies(bookies[2:]):
                    await eventually(lambda: is_marked(markers, []))
                    for each in ids:
                        metadata = await ledgers.metadata(each)
                        assert metadata is not None
                        assert lost not in metadata.segments[0].bookies
                        assert await read_all(ledgers, each) == ENTRIES


async def is_auditor(store: MetadataStore, name: str) -> bool:
    return await read_auditor(store, BookKeeperLayout()) == name


async def votes(store: MetadataStore, count: int) -> bool:
    return len(await store.children(AUDITOR_PATH)) == count


async def is_marked(markers: UnderReplicationStore, ledger_ids: list[int]) -> bool:
    return await marked(markers) == ledger_ids


async def names_only(markers: UnderReplicationStore, ledger_id: int, lost: str) -> bool:
    marker = await markers.read(ledger_id)
    return marker is not None and lost in marker.bookies and not marker.suspects


async def has_reason(markers: UnderReplicationStore, ledger_id: int) -> bool:
    marker = await markers.read(ledger_id)
    return marker is not None and marker.reason != ""


async def test_an_older_cluster_is_converted(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    bookies = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    store = await connect_store(zookeeper.url())
    await store.put("/ledgers/idgen", b"0")  # as there was in clusters of before
    await store.close()
    with running_bookies(bookies):
        async with ledgers_at(zookeeper, 3) as ledgers:
            closed = await ledgers.create(3, 2, 2, password=b"pw")
            await append_all(closed, ENTRIES)
            await closed.close()
            left_open = await ledgers.create(3, 3, 2)
            await append_all(left_open, ENTRIES)
            first_ids = closed.ledger_id, left_open.ledger_id
        code, said = await asyncio.to_thread(convert, zookeeper)
        assert code == 1, said
        assert said.count("is registered: stop it") == 3, said

    code, said = await asyncio.to_thread(convert, zookeeper, "--dry-run")
    assert code == 0, said
    assert "2 ledgers, 3 cookies" in said, said
    code, said = await asyncio.to_thread(convert, zookeeper)
    assert code == 0, said
    assert "done" in said, said
    code, said = await asyncio.to_thread(convert, zookeeper)
    assert (code, "nothing to do" in said) == (0, True), said

    with running_bookies(bookies):
        async with ledgers_at(zookeeper, 3) as ledgers:
            assert await read_all(ledgers, closed.ledger_id, b"pw") == ENTRIES
            assert await read_all(ledgers, left_open.ledger_id) == ENTRIES  # by recovery
            new = await ledgers.create(3, 3, 2)
            await append_all(new, ENTRIES)
            await new.close()
            assert await read_all(ledgers, new.ledger_id) == ENTRIES
            assert new.ledger_id >= 1 << 32
        shell = ApacheBookie(tmp_path / "shell", uri_of(zookeeper))
        listed = shell.shell("listledgers")
        for each in (*first_ids, new.ledger_id):
            assert f"ledgerID: {each}" in listed, listed
        assert str(tmp_path / "o0") in shell.shell("cookie_get", bookies[0].bookie_id)


def convert(zookeeper: ZooKeeperProcess, *options: str) -> tuple[int, str]:
    words = ("metadata", "convert", "--metadata", zookeeper.url(), *options)
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.broker.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


async def test_one_ledger_on_bookies_of_both_kinds(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Apache's bookies join a cluster of ours; one that is lost is replaced by the other kind."""
    uri = uri_of(zookeeper)
    ours = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(2)]
    theirs = [ApacheBookie(tmp_path / f"a{n}", uri) for n in range(2)]
    with running_bookies(ours), theirs[0], theirs[1]:
        async with ledgers_at(zookeeper, 4) as ledgers, markers_at(zookeeper) as (_, markers):
            on_all = await ledgers.create(4, 4, 3)
            await append_all(on_all, ENTRIES)
            pairs = []
            for _ in range(6):
                ledger = await ledgers.create(2, 2, 2)
                await append_all(ledger, ENTRIES)
                await ledger.close()
                pairs.append(ledger.ledger_id)
            await on_all.close()
            for each in (on_all.ledger_id, *pairs):
                assert await read_all(ledgers, each) == ENTRIES

            with AutoRecoveryProcess(tmp_path, "recovery", zookeeper.url()):
                for lost in (theirs[1], ours[1]):
                    lost.kill()
                    for each in pairs:
                        await markers.mark(each, [lost.bookie_id])
                    await eventually(partial(are_copied, ledgers, pairs, lost.bookie_id))
            for each in pairs:
                assert await read_all(ledgers, each) == ENTRIES


async def are_copied(ledgers: Ledgers, ledger_ids: list[int], lost: str) -> bool:
    for ledger_id in ledger_ids:
        metadata = await ledgers.metadata(ledger_id)
        assert metadata is not None
        if any(lost in segment.bookies for segment in metadata.segments):
            return False
    return True


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: JVMs that start")
def test_a_brokers_ledgers_are_on_bookies_of_both_kinds(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """One setting, whichever kind of bookie is at the other end of it."""
    uri = f"zk+hierarchical://127.0.0.1:{zookeeper.port}/bk/ledgers"
    ours = [BookieProcess(tmp_path / f"o{n}", zookeeper.url("/bk")) for n in range(2)]
    theirs = ApacheBookie(tmp_path / "a0", uri)
    settings = [f"bookkeeperMetadataServiceUri={uri}", "metadataStoreSessionTimeoutMillis=3000"]
    settings += [f"managedLedgerDefault{each}=2" for each in QUORUMS]
    options = [word for each in settings for word in ("--set", each)]
    url, topic = zookeeper.url("/brokers"), "persistent://public/default/both"
    texts = [b"%d" % number for number in range(300)]
    with running_bookies(ours), theirs:
        with BrokerProcess(tmp_path / "broker", url, *options) as broker:
            answer = httpx.get(f"{broker.admin_url}/admin/v2/bookies/state").json()
            states = {each["bookieId"]: each["state"] for each in answer["bookies"]}
            ids = [*(each.bookie_id for each in ours), theirs.bookie_id]
            assert states == dict.fromkeys(ids, "writable"), states
            send(broker.service_url, topic, texts[:200])
            ours[0].kill()
            send(broker.service_url, topic, texts[200:])
            broker.kill()
        with (
            BrokerProcess(tmp_path / "broker2", url, *options) as broker,
            client_of(broker.service_url) as client,
        ):
            consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
            assert [consumer.receive(RECEIVE_MS).data() for _ in texts] == texts
