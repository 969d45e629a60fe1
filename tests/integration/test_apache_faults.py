"""Faults of bookies of both kinds in one cluster: lost sessions, full disks, other clusters' disks,
pauses. What was acknowledged is judged by who reads it from outside.

Kills are in test_apache_layout.py and test_apache_clients.py.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.errors import EntryDigestError, LedgerError, UnauthorizedAccessError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.ledgers import Ledgers
from magnetar.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore
from tests.apache_bookies import ApacheBookie, needs_bookkeeper
from tests.bookie_process import BookieProcess, running_bookies
from tests.integration.failure_tools import fill, small_disk
from tests.integration.test_apache_bookkeeper import append_all, read_all, said
from tests.integration.test_apache_layout import ledgers_at, uri_of
from tests.nightly import NIGHTLY
from tests.waiting import eventually
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = [
    needs_bookkeeper,
    pytest.mark.skipif(not NIGHTLY, reason="make nightly: bookies whose sessions and disks end"),
]
SESSION = ("--set", "zkTimeout=2000")
LOOKS_OFTEN = ("--set", "diskCheckInterval=200", *SESSION)
#: Of tmpfs. Our bookies keep 256 MiB free.
DISK_MB = 320


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def store_at(zookeeper: ZooKeeperProcess) -> AsyncIterator[MetadataStore]:
    store = await connect_store(zookeeper.url())
    try:
        yield store
    finally:
        await store.close()


async def registered(store: MetadataStore, bookie_id: str, *, read_only: bool = False) -> bytes:
    """The value of its node; nothing if there is none."""
    found = await store.get(BookKeeperLayout().bookie_path(bookie_id, read_only=read_only))
    return b"" if found is None else found.value


async def write_on_all(ledgers: Ledgers, bookies: int) -> None:
    """Each of them is needed, and takes what it is given."""
    ledger = await ledgers.create(bookies, bookies, bookies)
    await append_all(ledger, [b"x"] * 50)
    await ledger.close()
    assert await read_all(ledgers, ledger.ledger_id) == [b"x"] * 50


async def test_bookies_register_again_after_their_session(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """One whose session ends while it is stopped comes back as it was, whichever kind it is."""
    ours = BookieProcess(tmp_path / "o0", zookeeper.url(), *SESSION)
    others = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in (1, 2)]
    theirs = ApacheBookie(tmp_path / "a0", uri_of(zookeeper), {"zkTimeout": "2000"})
    with running_bookies([ours, *others]), theirs:
        async with ledgers_at(zookeeper, 4) as ledgers, store_at(zookeeper) as store:
            ledger = await ledgers.create(4, 4, 3)
            victims: list[BookieProcess | ApacheBookie] = [ours, theirs]
            for victim in victims:
                node = await registered(store, victim.bookie_id)
                assert node
                await append_all(ledger, [b"before"] * 50)
                victim.pause()
                await append_all(ledger, [b"meanwhile"] * 50)
                await eventually(partial(is_gone, store, victim.bookie_id))
                victim.resume()
                await eventually(partial(registered, store, victim.bookie_id))
                assert await registered(store, victim.bookie_id) == node
                await eventually(lambda: len(ledgers.client.bookies.writable) == 4)
                await write_on_all(ledgers, 4)
            await ledger.close()
            expected = ([b"before"] * 50 + [b"meanwhile"] * 50) * 2
            assert await read_all(ledgers, ledger.ledger_id) == expected
        listed = theirs.shell("listbookies", "-rw")
        ids = [theirs.bookie_id, *(each.bookie_id for each in (ours, *others))]
        assert all(each in listed for each in ids), listed


async def is_gone(store: MetadataStore, bookie_id: str) -> bool:
    return not await registered(store, bookie_id)


async def test_a_session_that_ends_with_zookeeper(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Writers go on without it. Ours counts its session as lost by its own clock."""
    ours = BookieProcess(tmp_path / "o0", zookeeper.url(), *SESSION)
    theirs = [
        ApacheBookie(tmp_path / f"a{n}", uri_of(zookeeper), {"zkTimeout": "2000"}) for n in (0, 1)
    ]
    with running_bookies([ours]), theirs[0], theirs[1]:
        async with ledgers_at(zookeeper, 3) as ledgers:
            ledger = await ledgers.create(3, 3, 2)
            await append_all(ledger, [b"before"] * 50)
            zookeeper.kill()
            await append_all(ledger, [b"meanwhile"] * 500)
            await eventually(lambda: "session_lost" in ours.log)
            await append_all(ledger, [b"later"] * 50)
            await asyncio.to_thread(zookeeper.start)
            async with store_at(zookeeper) as store:
                for bookie_id in (ours.bookie_id, *(each.bookie_id for each in theirs)):
                    await eventually(partial(registered, store, bookie_id))
            await ledger.close()
            assert len(await read_all(ledgers, ledger.ledger_id)) == 600
            await write_on_all(ledgers, 3)


async def test_our_bookie_with_a_full_disk_below_apaches_client(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Read-only, as BookKeeper's shell says, then back. Its writer takes another bookie."""
    others = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    shell = ApacheBookie(tmp_path / "shell", uri_of(zookeeper))  # it is never started
    with small_disk(tmp_path / "small", DISK_MB) as disk:
        small = BookieProcess(disk / "b", zookeeper.url(), *LOOKS_OFTEN)
        with running_bookies([small, *others]):
            async with ledgers_at(zookeeper, 4) as ledgers, store_at(zookeeper) as store:
                await write_through_a_full_disk(ledgers, store, disk, small.bookie_id, shell)


async def test_apaches_bookie_with_a_full_disk(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    others = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    with small_disk(tmp_path / "small", DISK_MB) as disk:
        settings = {
            "journalDirectories": str(tmp_path / "journal"),
            "diskUsageThreshold": "0.6",
            "diskUsageWarnThreshold": "0.5",
            "diskCheckInterval": "200",
        }
        small = ApacheBookie(disk, uri_of(zookeeper), settings)
        with running_bookies(others), small:
            async with ledgers_at(zookeeper, 4) as ledgers, store_at(zookeeper) as store:
                await write_through_a_full_disk(ledgers, store, disk, small.bookie_id, small)


async def write_through_a_full_disk(
    ledgers: Ledgers, store: MetadataStore, disk: Path, bookie_id: str, shell: ApacheBookie
) -> None:
    """Ours and theirs write all the time: to four bookies, then to the three that are left."""
    ledger = await ledgers.create(3, 3, 2)
    java = shell.start_ledgers("go-on", "CRC32C", "", v2=True)
    with java:
        assert java.stdout is not None
        ledger_id = int((await asyncio.to_thread(said, java.stdout, "ledger ")).split()[1])
        await append_all(ledger, [b"before"] * 100)
        filler = fill(disk)
        await eventually(partial(registered, store, bookie_id, read_only=True))
        assert await is_gone(store, bookie_id)
        assert bookie_id in await asyncio.to_thread(shell.shell, "listbookies", "-ro")
        await append_all(ledger, [b"full"] * 1000)
        new = await ledgers.create(3, 3, 3)
        await append_all(new, [b"new"] * 50)
        assert bookie_id not in (await members(ledgers, new.ledger_id))
        await new.close()
        filler.unlink()
        await eventually(partial(registered, store, bookie_id))
        await eventually(lambda: len(ledgers.client.bookies.writable) == 4)
        await write_on_all(ledgers, 4)
        await ledger.close()
        found = await read_all(ledgers, ledger.ledger_id)
        assert found == [b"before"] * 100 + [b"full"] * 1000
        of_java = await read_all(ledgers, ledger_id)  # it is fenced by that
        _, acknowledged, _ = (await asyncio.to_thread(said, java.stdout, "last ")).split()
        assert 0 < int(acknowledged) <= len(of_java)
        assert of_java == [b"entry %d" % number for number in range(len(of_java))]


async def members(ledgers: Ledgers, ledger_id: int) -> set[str]:
    metadata = await ledgers.metadata(ledger_id)
    assert metadata is not None
    return {name for segment in metadata.segments for name in segment.bookies}


async def test_a_disk_of_another_cluster_and_a_disk_that_is_lost(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """No bookie of either kind starts with either, and each says why."""
    ours = BookieProcess(tmp_path / "o0", zookeeper.url())
    theirs = ApacheBookie(tmp_path / "a0", uri_of(zookeeper))
    with ours, theirs:
        pass
    async with store_at(zookeeper) as store:
        instance = await store.get("/ledgers/INSTANCEID")
        assert instance is not None
        await store.put("/ledgers/INSTANCEID", b"another-cluster")
        told = await asyncio.to_thread(ours.refuse_to_start)
        assert f"belongs to cluster {instance.value.decode()}, not another-cluster" in told
        told = await asyncio.to_thread(theirs.refuse_to_start)
        assert "InvalidCookieException" in told
        await store.put("/ledgers/INSTANCEID", instance.value)
    theirs.wipe()
    shutil.rmtree(ours.data)
    assert "its data directory is empty" in await asyncio.to_thread(ours.refuse_to_start)
    assert "InvalidCookieException" in await asyncio.to_thread(theirs.refuse_to_start)


async def test_a_bookie_of_ours_is_stopped_among_adds_of_apaches_client(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Two of three are enough. It has got the rest when it wakes up, in the same segment."""
    bookies = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    shell = ApacheBookie(tmp_path / "shell", uri_of(zookeeper))  # it is never started
    with running_bookies(bookies):
        async with ledgers_at(zookeeper, 3) as ledgers:
            java = shell.start_ledgers("go-on", "MAC", "pw", v2=True)
            with java:
                assert java.stdout is not None
                ledger_id = int((await asyncio.to_thread(said, java.stdout, "ledger ")).split()[1])
                view = await ledgers.open(ledger_id, recover=False, password=b"pw")
                for _ in range(3):
                    bookies[2].pause()
                    await view.wait(view.last_confirmed + 100, 60.0)
                    bookies[2].resume()
                    await view.wait(view.last_confirmed + 100, 60.0)
                metadata = await ledgers.metadata(ledger_id)
                assert metadata is not None
                assert len(metadata.segments) == 1
                found = await read_all(ledgers, ledger_id, b"pw")
                _, acknowledged, _ = (await asyncio.to_thread(said, java.stdout, "last ")).split()
            assert 600 <= int(acknowledged) <= len(found)
            assert found == [b"entry %d" % number for number in range(len(found))]


async def test_a_wrong_password_and_a_wrong_digest(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Each client says so, Apache's by BookKeeper's names, whichever bookies have the ledger."""
    uri = uri_of(zookeeper)
    ours = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in (0, 1)]
    theirs = ApacheBookie(tmp_path / "a0", uri)
    with running_bookies(ours), theirs:
        async with ledgers_at(zookeeper, 3) as ledgers:
            ledger = await ledgers.create(3, 3, 3, password=b"pw", digest_type="HMAC")
            await append_all(ledger, [b"x"] * 20)
            number = str(ledger.ledger_id)
            for v2 in (False, True):
                told = partial(theirs.ledgers_error, v2=v2)
                assert (
                    await asyncio.to_thread(told, "read", "MAC", "wrong", number)
                    == "BKUnauthorizedAccessException"
                )
            # Nobody of them has fenced it.
            await append_all(ledger, [b"y"] * 20)
            with pytest.raises(UnauthorizedAccessError):
                await ledgers.open(ledger.ledger_id, password=b"wrong")
            await append_all(ledger, [b"z"] * 20)
            await ledger.close()
            # As if somebody had changed the metadata: bookies check the key, readers the digest.
            async with store_at(zookeeper) as store:
                path = ledger_path(ledger.ledger_id)
                found = await store.get(path)
                assert found is not None
                metadata = BookKeeperLayout().decode_ledger(ledger.ledger_id, found.value)
                stored = LedgerMetadataFormat.FromString(metadata.stored)
                stored.digestType = LedgerMetadataFormat.CRC32
                changed = replace(metadata, stored=stored.SerializeToString())
                await store.put(path, BookKeeperLayout().encode_ledger(changed))
            async with ledgers_at(zookeeper, 3) as others:
                view = await others.open(ledger.ledger_id, password=b"pw")
                with pytest.raises(EntryDigestError, match="entry 0 is corrupt"):
                    await view.read(0, 9)
            for v2 in (False, True):
                error = theirs.ledgers_error("read", "CRC32", "pw", number, v2=v2)
                assert error == "BKDigestMatchException"


async def test_lists_of_entries_that_only_some_bookies_give(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """Apache's with DbLedgerStorage never answer. Who asks is told to read, soon or at once."""
    uri = uri_of(zookeeper)
    sorted_ = {"ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage"}
    ours = BookieProcess(tmp_path / "o0", zookeeper.url())
    silent, told = ApacheBookie(tmp_path / "a0", uri), ApacheBookie(tmp_path / "a1", uri, sorted_)
    with ours, silent, told:
        async with ledgers_at(zookeeper, 3) as ledgers:
            ledger = await ledgers.create(3, 3, 3)
            await append_all(ledger, [b"x"] * 50)
            for each in (ours, told):
                client = ledgers.client.bookies.client(each.bookie_id)
                assert await client.list_entries(ledger.ledger_id) == [(0, 50)]
            client = ledgers.client.bookies.client(silent.bookie_id)
            for wait_s in (15, 1):
                async with asyncio.timeout(wait_s):
                    with pytest.raises(LedgerError, match="list entries") as raised:
                        await client.list_entries(ledger.ledger_id)
                    assert raised.value.code == codes.UNKNOWN_LEDGER_STATE
            found = await client.read_entries(ReadRequest(ledger.ledger_id, 0, 50, 1 << 20))
            assert len(found.packets) == 50
            await ledger.close()


@pytest.mark.parametrize("digest", ["MAC", "CRC32", "DUMMY"])
def test_an_explicit_lac_survives_kills_of_our_bookies(
    zookeeper: ZooKeeperProcess, tmp_path: Path, digest: str
) -> None:
    """Only clients of the ledger can make its digest."""
    ours = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    theirs = ApacheBookie(tmp_path / "client", uri_of(zookeeper))
    with running_bookies(ours):
        (ledger,) = theirs.ledgers("write-lac", digest, "pw", "20")
        for bookie in ours:
            bookie.kill()
        for bookie in ours:
            bookie.start()
        # The last entry says 18.
        assert theirs.ledgers("read-lac", digest, "pw", ledger.split()[1]) == ["last 19"]
