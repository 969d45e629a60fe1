"""Ledgers on Apache BookKeeper's own bookies, and its shell on our ledgers."""

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pulsar
import pytest
from crc32c import crc32c
from pulsar import InitialPosition

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.client.config import ClientConfig, ReadConfig
from magnetar.bookkeeper.errors import (
    LedgerError,
    LedgerFencedError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
)
from magnetar.bookkeeper.ledgers import Ledgers, WriteHandle, connect_ledgers
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    FRAME_PADDING_BYTES,
    MAX_MESSAGE_BYTES,
    encode_body,
    stored_bytes_max,
)
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.metadata.factory import connect_store
from magnetar.pipeline.admin import Admin, ClusterAccess, parse_access
from magnetar.pipeline.batch_source import BatchReader
from magnetar.pipeline.options import parse_read_options
from magnetar.pipeline.plan_reader import PlanReader
from magnetar.pipeline.read_plan import BatchQuota, EntryIterator, EntryRange, InputSplit
from magnetar.pipeline.split_reader import SplitReader
from tests.apache_bookies import ApacheBookie, needs_bookkeeper, start_bookies
from tests.broker_process import BrokerProcess
from tests.certificates import Authority
from tests.child_process import suspend
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.raw_client import RawClient
from tests.waiting import eventually, wait_until
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = needs_bookkeeper
RECEIVE_MS = 60_000
MESSAGE = pb.MessageMetadata(producer_name="raw", sequence_id=0, publish_time=1 << 40)
"""As long as that of a ``RawClient``."""
LEDGER_FENCED, LEDGER_CLOSED = -101, -11
"""``BKException.Code``. No bookie sends what would be LEDGER_CLOSED: the client says so of adds
that are under way when its handle closes, or come afterwards. It closes by the application, by an
error that nothing helps against, or because the metadata say that another client closed the ledger.
"""


@dataclass
class Apache:
    zookeeper: ZooKeeperProcess
    bookies: list[ApacheBookie]

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://127.0.0.1:{self.zookeeper.port}/ledgers"

    def of(self, bookie_id: str) -> ApacheBookie:
        return next(each for each in self.bookies if each.bookie_id == bookie_id)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    folder: Path = tmp_path_factory.mktemp("apache")
    with ZooKeeperProcess(folder) as zookeeper:
        bookies = start_bookies(folder, zookeeper.port, 4)
        found = Apache(zookeeper, bookies)
        try:
            asyncio.run(registered(found))  # they listen before
            yield found
        finally:
            for bookie in bookies:
                if bookie.is_running:
                    bookie.stop()


async def registered(apache: Apache) -> None:
    async with connect_ledgers(apache.uri) as ledgers:
        pool = ledgers.client.bookies
        await eventually(lambda: len(pool.writable) == len(apache.bookies))


async def append_all(ledger: WriteHandle, entries: list[bytes]) -> None:
    for start in range(0, len(entries), 50):
        await ledger.append_all(entries[start : start + 50])


async def read_all(ledgers: Ledgers, ledger_id: int, password: bytes = b"") -> list[bytes]:
    view = await ledgers.open(ledger_id, password=password)
    return [entry async for _, entry in view.entries()]


async def test_what_is_written_is_read_and_the_shell_knows_it(apache: Apache) -> None:
    entries = [b"%d" % number * (number % 7) for number in range(400)]
    async with connect_ledgers(apache.uri) as ledgers:
        ledger = await ledgers.create(4, 2, 2, password=b"pw", custom_metadata={"who": b"tests"})
        await append_all(ledger, entries)
        assert await ledger.close() == 399
        assert await read_all(ledgers, ledger.ledger_id, b"pw") == entries
        with pytest.raises(UnauthorizedAccessError):
            await ledgers.open(ledger.ledger_id, password=b"other")
    shell = apache.bookies[0].shell
    told = await asyncio.to_thread(shell, "ledgermetadata", "-ledgerid", str(ledger.ledger_id))
    assert "state=CLOSED" in told
    assert "lastEntryId=399" in told
    assert "digestType=CRC32C" in told


async def test_one_who_opens_a_ledger_fences_its_writer(apache: Apache) -> None:
    async with connect_ledgers(apache.uri) as ledgers, connect_ledgers(apache.uri) as others:
        ledger = await ledgers.create(3, 3, 2)
        await append_all(ledger, [b"x"] * 120)
        assert await read_all(others, ledger.ledger_id) == [b"x"] * 120
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"y")
        found = await others.metadata(ledger.ledger_id)
        assert found is not None
        assert (found.last_entry, found.length) == (119, 120)


async def test_a_killed_bookie_is_replaced_and_nothing_is_lost(apache: Apache) -> None:
    entries = [b"%04d" % number for number in range(300)]
    async with connect_ledgers(apache.uri) as ledgers:
        ledger = await ledgers.create(3, 3, 3)
        await append_all(ledger, entries[:100])
        before = await ledgers.metadata(ledger.ledger_id)
        assert before is not None
        victim = apache.of(before.last_segment.bookies[1])
        victim.kill()
        await append_all(ledger, entries[100:])
        await ledger.close()
        after = await ledgers.metadata(ledger.ledger_id)
        assert after is not None
        assert victim.bookie_id not in after.last_segment.bookies
        assert len(after.segments) == 2
        assert await read_all(ledgers, ledger.ledger_id) == entries
    victim.start()
    await registered(apache)


async def test_a_reader_follows_a_growing_ledger(apache: Apache) -> None:
    async with connect_ledgers(apache.uri) as ledgers:
        ledger = await ledgers.create(3, 3, 2)
        await append_all(ledger, [b"a"] * 10)
        view = await ledgers.open(ledger.ledger_id, recover=False)
        # The last one is confirmed to bookies by the next add only.
        assert view.last_confirmed < 9
        waiting = asyncio.create_task(view.wait(8, 20.0))
        await ledger.append(b"b")
        await ledger.append(b"c")
        assert await waiting >= 9
        assert await view.read(0, 9) == [b"a"] * 10
        await ledger.close()


def said(lines: Iterable[str], begin: str) -> str:
    """The next line that begins so."""
    return next(line for line in lines if line.startswith(begin))


def send(url: str, topic: str, texts: list[bytes], *, keyed: bool = False) -> None:
    """Returns once all are acknowledged.

    Args:
        keyed: each text is its key, too.
    """
    with client_of(url) as client:
        producer = client.create_producer(topic, block_if_queue_full=True)
        results: list[pulsar.Result] = []
        for text in texts:
            key = text.decode() if keyed else None
            producer.send_async(text, lambda result, _: results.append(result), partition_key=key)
        producer.flush()
        assert results == [pulsar.Result.Ok] * len(texts)


def counted_past_the_broker(cluster: ClusterAccess, topic: str) -> int:
    """Messages, as a task of Spark reads them: from the bookies that the broker names."""
    with Admin(cluster) as admin:
        snapshot = admin.segments(topic)
    assert snapshot.bookie_protocol == "bookie-rpc"
    pieces = tuple(EntryRange(each, 0, each.entries) for each in snapshot.ledgers if each.entries)
    split = InputSplit(
        *(snapshot.topic, pieces, snapshot.bookies),
        *(snapshot.instance_id, snapshot.bookie_token, snapshot.bookie_protocol),
    )
    with SplitReader(split, cluster, fail_on_data_loss=True) as reader:
        entries = sum(len(run.bodies) for run in reader.runs())
    assert entries == sum(each.entries for each in snapshot.ledgers)
    counter, walk = PlanReader(cluster, compacted=False), EntryIterator(BatchQuota())
    assert counter.walk(snapshot, list(pieces), walk) is None
    counter.close()
    return walk.messages


def keys_past_the_broker(broker: BrokerProcess, topic: str) -> list[bytes]:
    """Of the compacted view, as the source of Spark reads it."""
    path = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/compaction"
    httpx.put(path).raise_for_status()
    wait_until(lambda: httpx.get(path).json()["status"] == "SUCCESS")
    options = {"adminUrl": broker.admin_url, "subscribe": topic, "readCompacted": "true"}
    wanted = parse_read_options(options, streaming=False)
    reader = BatchReader(parse_access(options), ("key",), wanted)
    rows = [each for part in reader.partitions() for each in reader.read(part)]
    return [key for batch in rows for key in batch["key"].to_pylist()]


def test_a_broker_keeps_its_topics_there(apache: Apache, tmp_path: Path) -> None:
    """A broker is killed, a bookie too: what was acknowledged comes from those that are left."""
    url = apache.zookeeper.url("/magnetar")
    settings = [f"bookkeeperMetadataServiceUri={apache.uri}", "managedLedgerDefaultAckQuorum=2"]
    settings += [f"managedLedgerDefault{name}=3" for name in ("EnsembleSize", "WriteQuorum")]
    settings += ["metadataStoreSessionTimeoutMillis=3000", "managedLedgerDigestType=CRC32"]
    options = [word for each in settings for word in ("--set", each)]
    topic, texts = "persistent://public/default/kept", [b"%d" % number for number in range(600)]
    with BrokerProcess(tmp_path / "broker", url, *options) as broker:
        send(broker.service_url, topic, texts[:300])
        with client_of(broker.service_url) as client:
            consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
            for _ in range(100):
                consumer.acknowledge(consumer.receive(RECEIVE_MS))
            consumer.close()
        answer = httpx.get(f"{broker.admin_url}/admin/v2/bookies/state").json()
        victim = apache.of(answer["bookies"][0]["bookieId"])
        victim.kill()
        send(broker.service_url, topic, texts[300:])
        broker.kill()
    with BrokerProcess(tmp_path / "broker2", url, *options) as broker:
        with client_of(broker.service_url) as client:
            consumer = client.subscribe(topic, "s")
            found = [consumer.receive(RECEIVE_MS).data() for _ in texts[100:]]
        assert found == texts[100:]
        assert counted_past_the_broker(ClusterAccess((broker.admin_url,)), topic) == len(texts)
        table = f"{topic}-table"
        send(broker.service_url, table, [b"1", b"2"] * 50 + [b"3"], keyed=True)
        assert keys_past_the_broker(broker, table) == [b"1", b"2", b"3"]
    victim.start()
    asyncio.run(registered(apache))
    counts = asyncio.run(pulsars_counts(apache, b"public/default/persistent/kept"))
    assert sum(counts) == len(texts)


async def pulsars_counts(apache: Apache, log_name: bytes) -> list[int]:
    """Messages of each stored entry of a topic, for a reader that knows Pulsar's form alone."""
    names = {
        "application": b"pulsar",
        "component": b"managed-ledger",
        "pulsar/managed-ledger": log_name,
    }
    counts: list[int] = []
    async with connect_ledgers(apache.uri) as ledgers:
        async for found in ledgers.client.ledgers.ranges():
            for ledger_id in found.ledger_ids:
                metadata = await ledgers.metadata(ledger_id)
                if metadata is None or not names.items() <= metadata.custom_metadata.items():
                    continue
                for entry in await read_all(ledgers, ledger_id):
                    assert entry[:2] == b"\x0e\x01"
                    end = 10 + int.from_bytes(entry[6:10])
                    assert int.from_bytes(entry[2:6]) == crc32c(entry[6:])
                    counts.append(MessageMetadata.FromString(entry[10:end]).num_messages_in_batch)
    return counts


async def bookies_of_all(apache: Apache, ledger_ids: list[int]) -> set[str]:
    async with connect_ledgers(apache.uri) as ledgers:
        found = [await ledgers.metadata(each) for each in ledger_ids]
    return {name for each in found if each is not None for name in each.last_segment.bookies}


def test_ledgers_keep_to_the_group_that_racks_info_says(apache: Apache, tmp_path: Path) -> None:
    """The node has the form and the place of Pulsar's; a namespace may have groups of its own."""
    members, others = (
        {each.bookie_id for each in part} for part in (apache.bookies[:2], apache.bookies[2:])
    )
    settings = [f"bookkeeperMetadataServiceUri={apache.uri}", "bookkeeperClientIsolationGroups=ssd"]
    settings += [f"managedLedgerDefault{n}=2" for n in ("EnsembleSize", "WriteQuorum", "AckQuorum")]
    options = [word for each in settings for word in ("--set", each)]
    with BrokerProcess(tmp_path / "broker", apache.zookeeper.url("/groups"), *options) as broker:
        racks = f"{broker.admin_url}/admin/v2/bookies/racks-info"
        try:
            info = {"rack": "/r1", "hostname": "host"}
            groups = {"ssd": dict.fromkeys(members, info), "hdd": dict.fromkeys(others, info)}
            for group, bookies in groups.items():
                for name in bookies:
                    done = httpx.post(f"{racks}/{name}", params={"group": group}, json=info)
                    assert done.is_success
            assert asyncio.run(node_of(apache, "/bookies")) == groups
            assert bookies_of_new_topics(apache, broker, "public/default") == members
            archive = f"{broker.admin_url}/admin/v2/namespaces/public/archive"
            assert httpx.put(archive).is_success
            affinity = {"bookkeeperAffinityGroupPrimary": "hdd"}
            assert httpx.post(f"{archive}/persistence/bookieAffinity", json=affinity).is_success
            assert bookies_of_new_topics(apache, broker, "public/archive") == others
        finally:
            for name in members | others:
                httpx.delete(f"{racks}/{name}")


def bookies_of_new_topics(apache: Apache, broker: BrokerProcess, namespace: str) -> set[str]:
    """Those that store the first ledgers of eight topics."""
    ledger_ids = []
    for number in range(8):
        topic = f"persistent://{namespace}/grouped-{number}"
        send(broker.service_url, topic, [b"x"])
        path = topic.replace("://", "/")
        stats = httpx.get(f"{broker.admin_url}/admin/v2/{path}/internalStats").json()
        ledger_ids += [each["ledgerId"] for each in stats["ledgers"]]
    return asyncio.run(bookies_of_all(apache, ledger_ids))


async def node_of(apache: Apache, path: str) -> object:
    store = await connect_store(apache.zookeeper.url())
    try:
        found = await store.get(path)
        return None if found is None else json.loads(found.value)
    finally:
        await store.close()


@pytest.mark.parametrize("v2", [False, True] if NIGHTLY else [True])
async def test_a_writer_of_apaches_client_is_fenced_by_ours(apache: Apache, v2: bool) -> None:
    """It writes on meanwhile: one of both ends the ledger, with all that was acknowledged."""
    java = apache.bookies[0].start_ledgers("go-on", "CRC32C", "", v2=v2)
    with java:
        assert java.stdout is not None
        ledger_id = int((await asyncio.to_thread(said, java.stdout, "ledger ")).split()[1])
        async with connect_ledgers(apache.uri) as ledgers:
            for _ in range(5):  # it has acknowledged some
                view = await ledgers.open(ledger_id, recover=False)
                await view.wait(view.last_confirmed, 20.0)
            found = await read_all(ledgers, ledger_id)
        _, acknowledged, code = (await asyncio.to_thread(said, java.stdout, "last ")).split()
        assert found == [b"entry %d" % number for number in range(len(found))]
        assert 0 < int(acknowledged) <= len(found)
        # Closed: one bookie told of the fence before two had acknowledged the add. That closes the
        # handle, but in its turn: the acknowledgements came in front of it, and the next add fails.
        assert int(code) in (LEDGER_FENCED, LEDGER_CLOSED)


async def test_adds_that_a_close_overtakes_are_not_in_the_ledger(apache: Apache) -> None:
    """Apache's client refuses each of them by LEDGER_CLOSED. All others are there."""
    run = partial(apache.bookies[0].ledgers, "close-early", "CRC32C", "", "500", v2=True)
    lines = [line.split() for line in await asyncio.to_thread(run)]
    begin = max(at for at, line in enumerate(lines) if line[0] == "ledger")
    counts = {int(code): int(count) for _, code, count in lines[begin + 1 :]}
    assert set(counts) == {0, LEDGER_CLOSED}
    assert sum(counts.values()) == 500
    async with connect_ledgers(apache.uri) as ledgers:
        found = await read_all(ledgers, int(lines[begin][1]))
    assert found == [b"entry %d" % number for number in range(counts[0])]


async def has_entry(client: BookieClient, request: ReadRequest) -> bool:
    return (await client.read_entries(request)).code == codes.OK


async def test_a_stopped_bookie_goes_on_and_nothing_is_written_again(apache: Apache) -> None:
    """SIGSTOP under load: two of three are enough, and it gets its entries when it wakes up."""
    entries = [b"%06d" % number for number in range(2_000)]
    async with connect_ledgers(apache.uri) as ledgers:
        ledger = await ledgers.create(3, 3, 2)
        await append_all(ledger, entries[:100])
        metadata = await ledgers.metadata(ledger.ledger_id)
        assert metadata is not None
        names = metadata.last_segment.bookies
        stopped = apache.of(names[2])
        suspend(stopped.pid)
        try:
            await append_all(ledger, entries[100:])
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        await ledger.close()
        closed = await ledgers.metadata(ledger.ledger_id)
        assert closed is not None
        assert len(closed.segments) == 1
        for name in names:  # each bookie of its own
            client = ledgers.client.bookies.client(name)
            last = ReadRequest(ledger.ledger_id, len(entries) - 1, 1, 1 << 20)
            await eventually(partial(has_entry, client, last))  # it may be behind
        assert await read_all(ledgers, ledger.ledger_id) == entries


async def test_a_stopped_bookie_holds_up_one_read(apache: Apache) -> None:
    """The first read that asks it waits for its time-out; those of other ledgers ask it last."""
    entries = [b"%06d" % number for number in range(30)]
    config = ClientConfig(reads=ReadConfig(reorder=True))
    protocol = ProtocolConfig(read_timeout_s=1.0)
    async with connect_ledgers(apache.uri, config=config, protocol=protocol) as ledgers:
        by_first: defaultdict[str, list[int]] = defaultdict(list)  # which bookie is asked first
        while all(len(ledger_ids) < 3 for ledger_ids in by_first.values()):
            ledger = await ledgers.create(3, 3, 2)
            await append_all(ledger, entries)
            await ledger.close()
            metadata = await ledgers.metadata(ledger.ledger_id)
            assert metadata is not None
            first = metadata.last_segment.bookies[ledger.ledger_id % 3]
            by_first[first].append(ledger.ledger_id)
        name = max(by_first, key=lambda each: len(by_first[each]))
        stopped = apache.of(name)
        suspend(stopped.pid)
        try:
            for ledger_id in by_first[name]:
                assert await read_all(ledgers, ledger_id) == entries
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        assert ledgers.client.replicas.metrics.fell_over == 1


async def test_a_bookie_whose_disk_is_lost_doesnt_start(apache: Apache, tmp_path: Path) -> None:
    """Its cookie says so. Nothing that was acknowledged is lost."""
    victim = ApacheBookie(tmp_path / "lost", apache.uri)
    await asyncio.to_thread(victim.start)
    entries = [b"%05d" % number for number in range(600)]
    async with connect_ledgers(apache.uri) as ledgers:
        await eventually(lambda: victim.bookie_id in ledgers.client.bookies.writable)
        ledger = await ledgers.create(5, 5, 3)
        await append_all(ledger, entries[:300])
        victim.kill()
        victim.wipe()
        with pytest.raises(NotEnoughBookiesError):  # nobody can take its place
            await append_all(ledger, entries[300:])
        assert "InvalidCookieException" in await asyncio.to_thread(victim.refuse_to_start)
        found = await read_all(ledgers, ledger.ledger_id)
        assert found[:300] == entries[:300]
        assert found == entries[: len(found)]


def test_a_message_that_no_frame_of_bookies_takes_is_refused(
    apache: Apache, tmp_path: Path
) -> None:
    """The largest frame that a broker takes: its ledger goes on. A bit less is stored."""
    url = apache.zookeeper.url("/large")
    setting = f"bookkeeperMetadataServiceUri={apache.uri}"
    frame_max = 4 + MAX_MESSAGE_BYTES + FRAME_PADDING_BYTES
    around = len(RawClient.send_frame(1, b""))
    fits = stored_bytes_max(MAX_MESSAGE_BYTES) - len(encode_body(MESSAGE, b""))
    with (
        BrokerProcess(tmp_path / "broker", url, "--set", setting) as broker,
        RawClient(broker.service_url) as client,
    ):
        client.look_up("persistent://public/default/large")
        client.create_producer("persistent://public/default/large")
        client.send_bytes(RawClient.send_frame(0, bytes(fits)))
        first, _ = client.expect(pb.BaseCommand.SEND_RECEIPT)
        for number, size in enumerate((fits + 1, frame_max - around), 1):
            client.send_bytes(RawClient.send_frame(number, bytes(size)))
            refused, _ = client.expect(pb.BaseCommand.SEND_ERROR)
            assert refused.send_error.error == pb.NotAllowedError
        client.send_bytes(RawClient.send_frame(3, b"small"))
        last, _ = client.expect(pb.BaseCommand.SEND_RECEIPT)
    ids = [each.send_receipt.message_id for each in (first, last)]
    assert [(each.ledgerId, each.entryId) for each in ids] == [
        (ids[0].ledgerId, number) for number in (0, 1)
    ]


async def test_bookies_with_tls(apache: Apache, tmp_path: Path) -> None:
    """They want our certificate and show theirs; without TLS, or with another authority, nobody."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server, client = authority.sign("bookie"), authority.sign("client")
    settings = {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(server.key),
        "tlsCertificatePath": str(server.certificate),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(authority.certificate),
    }
    uri = f"zk+hierarchical://127.0.0.1:{apache.zookeeper.port}/tls/ledgers"
    store = await connect_store(apache.zookeeper.url("/tls"))  # BookKeeper makes only the last one
    await store.close()
    bookie = ApacheBookie(tmp_path / "bookie", uri, settings)
    await asyncio.to_thread(bookie.shell, "initnewcluster")
    await asyncio.to_thread(bookie.start)
    good = TlsFiles(str(client.certificate), str(client.key), str(authority.certificate))
    strange = TlsFiles(str(client.certificate), str(client.key), str(other.certificate))
    try:
        async with connect_ledgers(uri, tls=good) as ledgers:
            await eventually(lambda: ledgers.client.bookies.writable)
            ledger = await ledgers.create(1, 1, 1)
            await append_all(ledger, [b"x" * 1000] * 200)
            assert (await ledgers.client.bookies.client(bookie.bookie_id).info()).total_bytes
            assert await read_all(ledgers, ledger.ledger_id) == [b"x" * 1000] * 200
        async with connect_ledgers(uri, tls=strange) as ledgers:
            with pytest.raises(LedgerError, match=r"(?i)certificate"):
                await ledgers.client.bookies.client(bookie.bookie_id).info()
    finally:
        bookie.stop()
    plain = apache.bookies[0].bookie_id
    async with connect_ledgers(apache.uri, tls=good) as ledgers:
        with pytest.raises(LedgerError, match="it has no TLS"):
            await ledgers.client.bookies.client(plain).info()


#: Names of Apache's client, and ours.
DIGESTS = {"CRC32": "CRC32", "MAC": "HMAC", "CRC32C": "CRC32C", "DUMMY": "DUMMY"}


@pytest.mark.parametrize("name", DIGESTS if NIGHTLY else ["MAC"])
async def test_apaches_ledgers_are_recovered_and_read(apache: Apache, name: str) -> None:
    """Its client has died; ours closes the ledger, then its client reads it."""
    java = apache.bookies[0].ledgers
    (line,) = await asyncio.to_thread(java, "write", name, "pw", "40")
    ledger_id = line.removeprefix("ledger ")
    async with connect_ledgers(apache.uri) as ledgers:
        found = await read_all(ledgers, int(ledger_id), b"pw")
        assert found == [b"entry %d" % number for number in range(40)]
    if NIGHTLY:  # a JVM takes three seconds
        said = await asyncio.to_thread(java, "read", name, "pw", ledger_id)
        assert said == ["last 39", *(f"read entry {number}" for number in range(40))]


@pytest.mark.parametrize("name", DIGESTS if NIGHTLY else ["CRC32"])
async def test_our_ledgers_are_recovered_and_read_by_apaches_client(
    apache: Apache, name: str
) -> None:
    async with connect_ledgers(apache.uri) as ledgers:
        ledger = await ledgers.create(4, 3, 2, password=b"pw", digest_type=DIGESTS[name])
        await append_all(ledger, [b"e%d" % number for number in range(40)])
        words = ("read", name, "pw", str(ledger.ledger_id))
        said = await asyncio.to_thread(apache.bookies[0].ledgers, *words, v2=True)
        assert said == ["last 39", *(f"read e{number}" for number in range(40))]
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"late")
