"""Apache BookKeeper's client, shell and auto-recovery, and Pulsar's broker, on bookies of ours."""

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookkeeper.bookie_protocol.digests import DigestType
from tests.apache_bookies import ApacheBookie, needs_bookkeeper
from tests.autorecovery_process import AutoRecoveryProcess
from tests.bookie_process import BookieProcess, running_bookies
from tests.integration.test_apache_bookkeeper import RECEIVE_MS, append_all, read_all, said, send
from tests.integration.test_apache_layout import (
    ENTRIES,
    are_copied,
    ledgers_at,
    markers_at,
    uri_of,
)
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pulsar_broker import PulsarBroker, needs_pulsar
from tests.waiting import eventually
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = needs_bookkeeper
DIGESTS = list(DigestType) if NIGHTLY else [DigestType.CRC32C, DigestType.HMAC]
RACES = 100
# Apache's client calls the types by other names than its metadata.
CLIENT_NAMES = {DigestType.HMAC: "MAC"}


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path) as server:
        yield server


async def test_apaches_client_writes_and_recovers_ledgers_here(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """What one writes and leaves open, the other recovers and reads, over both versions."""
    shell = ApacheBookie(tmp_path / "shell", uri_of(zookeeper))  # it is never started
    bookies = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    with running_bookies(bookies):
        async with ledgers_at(zookeeper, 3) as ledgers:
            for number, digest in enumerate(DIGESTS):
                v2 = number % 2 == 0
                name = CLIENT_NAMES.get(digest, digest.name)
                words = "write", name, "pw", "25", "25"
                said = await asyncio.to_thread(shell.ledgers, *words, v2=v2)
                ids = [each.removeprefix("ledger ") for each in said]
                expected = [b"entry %d" % entry for entry in range(25)]
                assert await read_all(ledgers, int(ids[0]), b"pw") == expected  # recovered by us
                # The second one is recovered by them.
                said = await asyncio.to_thread(shell.ledgers, "read", name, "pw", *ids, v2=not v2)
                assert said == ["last 24", *(f"read entry {n}" for n in range(25))] * 2
            ours = await ledgers.create(3, 3, 2, password=b"pw")
            await append_all(ours, ENTRIES)
            said = await asyncio.to_thread(
                shell.ledgers, "read", "CRC32C", "pw", str(ours.ledger_id), v2=True
            )
            assert said[1:] == [f"read {n}" for n in range(100)]
        await asyncio.to_thread(shell_commands, shell, bookies, ours.ledger_id)


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: half a minute of Java")
@pytest.mark.parametrize("ours", [3, 1])
async def test_clients_of_both_kinds_recover_a_ledger_at_once(
    zookeeper: ZooKeeperProcess, tmp_path: Path, ours: int
) -> None:
    """While Apache's client writes it: both find the same end, behind all it had acknowledged."""
    with contextlib.ExitStack() as stack:
        for number in range(ours):
            stack.enter_context(BookieProcess(tmp_path / f"o{number}", zookeeper.url()))
        theirs = [ApacheBookie(tmp_path / f"a{n}", uri_of(zookeeper)) for n in range(3)]
        for each in theirs[ours:]:
            stack.enter_context(each)
        async with ledgers_at(zookeeper, 3) as ledgers:
            java = theirs[0].start_ledgers("race", "CRC32C", "pw", str(RACES), v2=True)
            with java:
                assert java.stdout is not None
                for _ in range(RACES):
                    line = await asyncio.to_thread(said, java.stdout, "ledger ")
                    found = await read_all(ledgers, int(line.split()[1]), b"pw")
                    end = await asyncio.to_thread(said, java.stdout, "last ")
                    last, acknowledged = map(int, end.split()[1:])
                    assert 99 <= acknowledged <= last
                    assert found == [b"entry %d" % entry for entry in range(last + 1)]


def shell_commands(shell: ApacheBookie, bookies: list[BookieProcess], ledger_id: int) -> None:
    words = ("-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "200")
    assert "200 entries written" in shell.shell("simpletest", *words)
    read = shell.shell("readledger", "-ledgerid", str(ledger_id), "-msg")
    assert read.count("Eid=") == 100, read
    info = shell.shell("bookieinfo")
    assert all(each.bookie_id in info for each in bookies), info
    endpoints = shell.shell("endpointinfo", "-b", bookies[0].bookie_id)
    assert "bookie-rpc" in endpoints, endpoints


@pytest.mark.skipif(not NIGHTLY, reason="make nightly: JVMs that start")
async def test_apaches_auto_recovery_copies_from_and_to_our_bookies(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """So an operator can roll bookies one by one, in both directions, with either daemon."""
    uri = uri_of(zookeeper)
    ours = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(3)]
    theirs = ApacheBookie(tmp_path / "a0", uri)
    with running_bookies(ours), theirs:
        async with ledgers_at(zookeeper, 4) as ledgers, markers_at(zookeeper) as (_, markers):
            ids = []
            for digest in (DigestType.CRC32C, DigestType.HMAC):
                name = CLIENT_NAMES.get(digest, digest.name)
                said = await asyncio.to_thread(theirs.ledgers, "write", name, "pw", "25", v2=True)
                ids.append(int(said[0].removeprefix("ledger ")))
            for each in ids:
                assert len(await read_all(ledgers, each, b"pw")) == 25
            for lost, daemon in (
                (ours[0], theirs.autorecovery("theirs")),
                (theirs, AutoRecoveryProcess(tmp_path, "ours", zookeeper.url())),
            ):
                lost.kill()
                with daemon:
                    if lost is theirs:
                        for each in ids:
                            await markers.mark(each, [lost.bookie_id])
                    await eventually(partial(are_copied, ledgers, ids, lost.bookie_id))
                ours[0].start() if lost is not theirs else None
            expected = [b"entry %d" % entry for entry in range(25)]
            for each in ids:
                assert await read_all(ledgers, each, b"pw") == expected
            said = await asyncio.to_thread(
                theirs.ledgers, "read", "MAC", "pw", str(ids[1]), v2=True
            )
            assert said[0] == "last 24"


@needs_pulsar
def test_pulsars_broker_runs_on_our_bookies(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    """Three hold a ledger; one that is killed is replaced by the fourth. A client goes on after the
    broker was stopped in good order."""
    topic, texts = "persistent://public/default/on-ours", [b"%d" % n for n in range(300)]
    bookies = [BookieProcess(tmp_path / f"o{n}", zookeeper.url()) for n in range(4)]
    broker = PulsarBroker(tmp_path / "pulsar", zookeeper.port)
    broker.set_up()
    with running_bookies(bookies):
        with broker:
            with client_of(broker.service_url) as client:
                client.subscribe(topic, "s")  # else a closed ledger would be deleted
            send(broker.service_url, topic, texts[:200])
            bookies[0].kill()
            send(broker.service_url, topic, texts[200:])
            broker.kill()  # so that the next one recovers its ledgers
        bookies[0].start()
        with broker, client_of(broker.service_url) as client:
            consumer = client.subscribe(topic, "s")
            assert [consumer.receive(RECEIVE_MS).data() for _ in texts] == texts
            later = [b"later %d" % n for n in range(100)]
            send(broker.service_url, topic, later)
            broker.stop()
            broker.start()
            left = set(later)  # what isn't acknowledged may come again
            while left:
                left.discard(consumer.receive(RECEIVE_MS).data())
