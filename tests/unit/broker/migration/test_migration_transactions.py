"""What is left of transactions that have ended is carried both ways; open ones are refused."""

import struct
from collections.abc import AsyncIterator

import pytest
from pyroaring import BitMap

from magnetar.broker.migration import marker
from magnetar.broker.migration.doomed_ledgers import is_doomed
from magnetar.broker.migration.errors import PulsarFormatError, SwapRefusedError
from magnetar.broker.migration.marker import Serving
from magnetar.broker.migration.own_logs import OwnLogs
from magnetar.broker.migration.pulsar_cluster import PulsarCluster
from magnetar.broker.migration.pulsar_forms import cursor_node, image_of_node, log_node
from magnetar.broker.migration.system_events import event_entry
from magnetar.broker.migration.transactions import (
    INDEXES,
    SNAPSHOT_SCHEMA,
    SNAPSHOTS,
    TopicSnapshots,
    replayed,
    snapshot_entries,
    snapshot_of_index,
    unended,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.buffer import SEALED_COUNT, TopicTransactionBuffer
from magnetar.broker.transaction.buffer_recovery import (
    TRANSACTIONS_PROPERTY,
)
from magnetar.broker.transaction.pending_ack_log import (
    OWN_NAME,
    PENDING_ACKS,
    PULSARS_NAME,
    pending_ack_log_name,
)
from magnetar.broker.transaction.topic_transactions import TRANSACTION_PROPERTIES
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot
from magnetar.managed_ledger.cursor.cursor_store import CursorNode, encode_node
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo, encode_info
from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.stored_info import StoredManagedLedger, read_stored
from magnetar.metadata.errors import MetadataError
from tests.unit.broker.migration.recorded_cluster import (
    NOW_MS,
    Cluster,
    FailingWrites,
    tree_of,
)
from tests.unit.broker.migration.transactional_cluster import (
    ABORT,
    ABORTED,
    ACKS,
    ASSIGN,
    COMMIT,
    COMMITTED,
    COORDINATOR,
    LAST,
    LATE,
    LOG,
    LOGS,
    PENDING,
    RECORDS,
    TOPIC,
    Ack,
    Record,
    entry,
    put_snapshots,
    record,
    snapshot_record,
    transactional_cluster,
)

OURS = "acme/orders/persistent/paid"
GONE = {TransactionId(3, ABORTED), TransactionId(3, LATE)}


def open_records() -> list[pb.TransactionRecord]:
    subscription = Record.Subscription(topic="persistent://a/b/in", subscription="s")
    return [
        record(7, Record.UPDATE, newStatus=Record.COMMITTED),  # its begin is deleted
        record(8, Record.NEW, startTime=NOW_MS - 90_000),
        record(8, Record.ADD_PARTITION, partitions=["persistent://a/b/out"]),
        record(9, Record.NEW),
        record(8, Record.ADD_SUBSCRIPTION, subscriptions=[subscription]),
        record(9, Record.UPDATE, newStatus=Record.ABORTING),
        record(9, Record.UPDATE, newStatus=Record.ABORTED),
        record(10, Record.NEW, startTime=NOW_MS - 1_000),
        record(10, Record.UPDATE, newStatus=Record.COMMITTING),
    ]


def group_of(records: list[pb.TransactionRecord]) -> bytes:
    group = pb.TransactionRecords(records=records)
    return struct.pack(">HH", 0x0E01, 1) + group.SerializeToString()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    found = await transactional_cluster()
    yield found
    await found.close()


async def own(cluster: Cluster, name: str) -> StoredManagedLedger:
    found = await read_stored(cluster.ours, name)
    assert found is not None
    return found


async def aborted(cluster: Cluster) -> set[TransactionId]:
    """What one of our brokers knows after it has loaded the topic."""
    logs = OwnLogs(cluster.ours, cluster.ledgers, lambda: NOW_MS)
    buffer = await logs.buffer(OURS, (await own(cluster, OURS)).info)
    assert not buffer.open
    return set(buffer.aborted)


async def told(cluster: Cluster) -> set[TransactionId]:
    """What one of Pulsar's knows."""
    theirs = PulsarCluster(cluster.pulsar, cluster.ledgers)
    snapshot = (await theirs.snapshots("acme/orders"))[TOPIC]
    log = await theirs.log(OURS)
    assert log is not None
    buffer = await theirs.buffer(log, snapshot)
    assert not buffer.open
    return set(buffer.aborted)


async def put_own_log(cluster: Cluster, name: str, ledger_id: int, cursor: str = "c") -> None:
    """A log of ours is one ledger longer."""
    path, stored = f"/managed-ledgers/{name}", await read_stored(cluster.ours, name)
    info = ManagedLedgerInfo() if stored is None else stored.info
    last, size = cluster.ledgers.ends[ledger_id]
    info = info.with_ledger(ledger_id).with_closed(ledger_id, last + 1, size, NOW_MS)
    await cluster.ours.put(path, encode_info(info))
    if stored is None:
        await cluster.ours.put(f"{path}/{cursor}", encode_node(CursorNode(EARLIEST), "x"))


async def work(cluster: Cluster, naming: int = OWN_NAME) -> None:
    """As our brokers would have left it: one more aborted, one committed, one acknowledged."""
    entries = [entry(50), entry(51), entry(51, ABORT), entry(50, COMMIT), entry(None)]
    cluster.ledgers.put(900, entries)
    await put_own_log(cluster, OURS, 900)
    ack = Ack(operation=Ack.ACK, positions=[Ack.Position(ledgerId=900, entryId=0)])
    acks = [ack, Ack(operation=Ack.COMMIT)]
    for each in acks:
        each.mostBits, each.leastBits = 3, 52
    cluster.ledgers.put(901, [each.SerializeToString() for each in acks])
    await put_own_log(cluster, pending_ack_log_name(OURS, "s+b", naming), 901)
    path = f"{LOGS}/paid/s%2Bb"
    node = CursorNode((LOG, 6), properties={PENDING_ACKS: naming, "n": 2})
    await cluster.ours.put(path, encode_node(node, "x"))
    records = [
        Record(operation=Record.NEW, mostBits=3, leastBits=52, maxLocalTxnId=1052),
        record(52, Record.UPDATE, newStatus=Record.COMMITTED),
    ]
    cluster.ledgers.put(902, [each.SerializeToString() for each in records])
    await put_own_log(cluster, COORDINATOR.removeprefix("/managed-ledgers/"), 902)


# --- forth


async def test_what_was_aborted_is_known_to_a_load_of_ours(cluster: Cluster) -> None:
    report = await cluster.forward().run()
    assert await aborted(cluster) == GONE
    assert TransactionId(3, COMMITTED) not in await aborted(cluster)
    assert report.counts["aborted transactions"] == 2
    assert report.counts["messages or batches"] == 7
    assert f"note: {OURS}: messages of 1 transactions came after their ends, and are aborted" in (
        report.lines()
    )


async def test_what_was_committed_is_acknowledged(cluster: Cluster) -> None:
    """A broker that was killed hadn't stored it with the cursor."""
    await cluster.forward().run()
    image = (await own(cluster, OURS)).cursors["s+b"].node.image("")
    assert (image.mark_delete, image.acked) == ((LOG, -1), {LOG: BitMap([1])})


async def test_sequences_go_on(cluster: Cluster) -> None:
    """The property is that of the last change of ledgers: the last record counts more."""
    await cluster.forward().run()
    name = COORDINATOR.removeprefix("/managed-ledgers/")
    assert (await own(cluster, name)).info.properties == {"max_local_txn_id": str(LAST)}
    assert (await tree_of(cluster.ours))[ASSIGN] == b'{"partitions":4}'


async def test_sequences_go_on_where_the_log_has_no_entries(cluster: Cluster) -> None:
    cluster.ledgers.put(RECORDS, [])
    await cluster.forward().run()
    name = COORDINATOR.removeprefix("/managed-ledgers/")
    assert (await own(cluster, name)).info.properties == {"max_local_txn_id": "9"}


async def test_a_topic_whose_transactions_were_committed_costs_nothing(cluster: Cluster) -> None:
    del cluster.ledgers.stored[LOG][4:6]
    del cluster.ledgers.stored[LOG][2]
    cluster.ledgers.put(LOG, cluster.ledgers.stored[LOG])
    await cluster.forward().run()
    info = (await own(cluster, OURS)).info
    assert [row.ledger_id for row in info.ledgers] == [LOG]
    assert not set(TRANSACTION_PROPERTIES) & info.properties.keys()


async def test_a_terminated_topic_is_read_from_its_begin(cluster: Cluster) -> None:
    """No entry can be put behind its last one."""
    found = await cluster.pulsar.get(f"{LOGS}/paid")
    assert found is not None
    node = log_node(found.value, "")
    node.terminatedPosition.ledgerId, node.terminatedPosition.entryId = LOG, 6
    await cluster.pulsar.put(f"{LOGS}/paid", node.SerializeToString())
    await cluster.forward().run()
    info = (await own(cluster, OURS)).info
    assert ([row.ledger_id for row in info.ledgers], info.terminated) == ([LOG], (LOG, 6))
    assert await aborted(cluster) == GONE
    await cluster.backward().run()
    assert await told(cluster) == GONE


async def test_snapshots_of_many_aborted_transactions(cluster: Cluster) -> None:
    many = range(100, 100 + 2 * SEALED_COUNT + 5)
    event = event_entry(TOPIC, snapshot_record(*many), (SNAPSHOT_SCHEMA, 0), 0, NOW_MS)
    await put_snapshots(cluster.pulsar, cluster.ledgers, event)
    await cluster.forward().run()
    snapshots = (await own(cluster, OURS)).info.ledgers[-1]
    assert snapshots.entries == 3, "two are of sealed ones"
    wanted = GONE | {TransactionId(3, each) for each in many}
    assert await aborted(cluster) == wanted
    await cluster.backward().run()
    assert await told(cluster) == wanted


def test_snapshots_in_segments() -> None:
    index = {
        "indexList": [{"sequenceID": 5, "abortedMarkLedgerID": 4}],
        "snapshot": {
            "maxReadPositionLedgerId": 6,
            "maxReadPositionEntryId": 2,
            "aborts": [{"mostSigBits": 1, "leastSigBits": 2}],
        },
    }
    segment = {"aborts": [{"mostSigBits": 1, "leastSigBits": each} for each in (7, 8)]}
    found = snapshot_of_index(index, {5: segment}, 9)
    assert (found.uptoLedger, found.uptoEntry) == (6, 2)
    columns = (found.abortedMost, found.abortedLeast, found.abortedLedger)
    assert list(zip(*columns, strict=True)) == [(1, 7, 4), (1, 8, 4), (1, 2, 9)]
    with pytest.raises(KeyError):
        snapshot_of_index(index, {}, 9)


def test_an_index_is_deleted_on_the_way_back() -> None:
    """Brokers of Pulsar that write segments read the snapshot then."""
    snapshots = TopicSnapshots({}, {TOPIC: {}})
    snapshots.put(TopicName.parse(TOPIC), TopicTransactionBuffer(EARLIEST), (LOG, 6))
    (_, records), index = snapshots.changes()
    assert records.keys() == {TOPIC}
    assert index == (INDEXES, {TOPIC: None})


def test_a_snapshot_of_what_nobody_aborted() -> None:
    buffer = TopicTransactionBuffer(EARLIEST)
    buffer.restore(TransactionSnapshot(uptoLedger=1, uptoEntry=2))
    assert len(snapshot_entries(buffer, 3, NOW_MS)) == 1


# --- what is open


@pytest.mark.parametrize("is_batched", [False, True])
def test_what_a_coordinator_has_not_ended(is_batched: bool) -> None:
    """One that is about to be committed isn't in all of its topics yet."""
    records = open_records()
    entries = [each.SerializeToString() for each in records]
    if is_batched:
        entries = [group_of(records[:4]), group_of(records[4:])]
    core = replayed(3, entries, "")
    assert [(x.transaction.least, x.status) for x in unended(core)] == [
        (8, "OPEN"),
        (10, "COMMITTING"),
    ]


def test_a_log_of_another_form_is_told() -> None:
    with pytest.raises(PulsarFormatError, match="somewhere"):
        replayed(3, [b"\xff\xff\xff"], "somewhere")


OPEN = [
    "refused: transaction coordinator 3: transaction (3,8) is OPEN, it began 90 s ago: "
    "persistent://a/b/in s, persistent://a/b/out",
    "refused: transaction coordinator 3: transaction (3,10) is COMMITTING, it began 1 s ago: "
    "it is empty",
]


async def test_an_open_transaction_is_refused_whatever_is_accepted(cluster: Cluster) -> None:
    cluster.ledgers.put(RECORDS, [each.SerializeToString() for each in open_records()])
    found = await cluster.pulsar.get(f"{COORDINATOR}/transaction.subscription")
    assert found is not None
    node = cursor_node(found.value, "")
    node.markDeleteEntryId = 0
    await cluster.pulsar.put(found.path, node.SerializeToString())
    before = await tree_of(cluster.pulsar)
    cluster.ledgers.put(LOG, [*cluster.ledgers.stored[LOG], entry(10)])
    report = await cluster.forward(write=False).run()
    assert any("messages of 1 transactions" in each for each in report.lines()), "the late one"
    assert [each for each in report.lines() if each.startswith("refused")] == OPEN
    with pytest.raises(SwapRefusedError) as caught:
        await cluster.forward(accept_loss=True).run()
    assert set(OPEN) <= set(caught.value.lines)
    assert await tree_of(cluster.pulsar) == before
    assert await marker.read_marker(cluster.ours) is None


async def test_nor_is_it_carried_back(cluster: Cluster) -> None:
    await cluster.forward().run()
    cluster.ledgers.put(900, [each.SerializeToString() for each in open_records()])
    name = COORDINATOR.removeprefix("/managed-ledgers/")
    await put_own_log(cluster, name, 900)
    before = await tree_of(cluster.pulsar)
    report = await cluster.backward(write=False).run()
    assert [each for each in report.lines() if each.startswith("refused")] == OPEN
    with pytest.raises(SwapRefusedError):
        await cluster.backward(accept_loss=True).run()
    assert set(await tree_of(cluster.pulsar)) == set(before)
    found = await marker.read_marker(cluster.ours)
    assert found is not None
    assert found.serving is Serving.MAGNETAR


# --- back


async def test_back_without_a_change(cluster: Cluster) -> None:
    await cluster.forward().run()
    report = await cluster.backward().run()
    assert not report.findings
    assert await told(cluster) == GONE
    nodes = await tree_of(cluster.pulsar)
    assert PENDING not in nodes
    coordinator = log_node(nodes[COORDINATOR], "")
    assert not coordinator.ledgers, "their last record would count more than the property"
    assert [(x.key, x.value) for x in coordinator.properties] == [("max_local_txn_id", str(LAST))]
    assert not {ACKS, RECORDS} & cluster.ledgers.ends.keys()
    assert not log_node(nodes[f"{LOGS}/paid"], "").properties


@pytest.mark.parametrize("naming", [PULSARS_NAME, OWN_NAME])
async def test_what_was_done_meanwhile(cluster: Cluster, naming: int) -> None:
    await cluster.forward().run()
    await work(cluster, naming)
    report = await cluster.backward().run()
    assert not report.findings
    assert await told(cluster) == GONE | {TransactionId(3, 51)}
    nodes = await tree_of(cluster.pulsar)
    cursor = cursor_node(nodes[f"{LOGS}/paid/s%2Bb"], "")
    image = image_of_node(cursor, {900: 5})
    assert (image.mark_delete, image.acked) == ((LOG, 6), {900: BitMap([0])})
    assert image.properties == {"n": 2}
    coordinator = log_node(nodes[COORDINATOR], "")
    assert [x.value for x in coordinator.properties] == ["1052"], "ours gave out some ahead"
    assert not {901, 902} & cluster.ledgers.ends.keys()


async def test_back_where_pulsar_never_had_a_transaction() -> None:
    """Its topic of snapshots is made, with its schema."""
    cluster = await transactional_cluster()
    for path in (f"{LOGS}/{SNAPSHOTS}", COORDINATOR, PENDING, f"/schemas/acme/orders/{SNAPSHOTS}"):
        await cluster.pulsar.delete_recursive(path)
    del cluster.ledgers.stored[LOG][1:6]
    cluster.ledgers.put(LOG, cluster.ledgers.stored[LOG])
    await cluster.forward().run()
    await work(cluster)
    info = (await own(cluster, OURS)).info.with_properties({TRANSACTIONS_PROPERTY: f"{LOG}:1"})
    await cluster.ours.put(f"{LOGS}/paid", encode_info(info))
    await cluster.backward().run()
    assert await told(cluster) == {TransactionId(3, 51)}
    await cluster.close()


async def test_forth_again(cluster: Cluster) -> None:
    await cluster.forward().run()
    await work(cluster)
    await cluster.backward().run()
    await cluster.forward().run()
    assert await aborted(cluster) == GONE | {TransactionId(3, 51)}
    await cluster.backward().run()
    assert await told(cluster) == GONE | {TransactionId(3, 51)}


async def test_snapshots_of_deleted_topics_are_deleted(cluster: Cluster) -> None:
    await cluster.forward().run()
    await cluster.ours.delete_recursive(f"{LOGS}/paid")
    await cluster.backward().run()
    theirs = PulsarCluster(cluster.pulsar, cluster.ledgers)
    assert await theirs.snapshots("acme/orders") == {}


@pytest.mark.parametrize("way", ["forth", "back"])
@pytest.mark.parametrize("lost_answer", [False, True])
async def test_a_failure_at_any_write_is_mended_by_another_run(lost_answer: bool, way: str) -> None:
    """And leaves no ledger behind."""
    ledgers = 0
    for n in range(1, 200):
        cluster = await transactional_cluster()
        if way == "back":
            await cluster.forward().run()
            await work(cluster)
        stores = [cluster.pulsar, cluster.ours]
        writes = FailingWrites(n, lost_answer=lost_answer, stores=stores, ledgers=cluster.ledgers)
        step = cluster.forward if way == "forth" else cluster.backward
        failed = False
        try:
            await step().run()
        except MetadataError:
            failed = True
            if not await is_done(cluster, way):
                await step().run()
        assert await (aborted if way == "forth" else told)(cluster) >= GONE, n
        ledgers = ledgers or len(cluster.ledgers.ends)
        assert len(cluster.ledgers.ends) == ledgers, n
        await cluster.close()
        if not failed:
            assert writes.left > 0
            assert n > 15
            return
    raise AssertionError("no run without a failure")


async def is_done(cluster: Cluster, way: str) -> bool:
    found = await marker.read_marker(cluster.ours)
    if way == "forth":
        return found is not None and found.serving is Serving.MAGNETAR
    is_over = found is not None and found.serving is Serving.PULSAR
    return is_over and not await is_doomed(cluster.ours)


async def test_a_swap_that_is_given_up_leaves_no_ledger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(cluster.ledgers.ends)

    async def fail(*_: object) -> None:
        raise MetadataError("planted")

    monkeypatch.setattr(cluster.pulsar, "delete", fail)  # of the last step
    with pytest.raises(MetadataError):
        await cluster.forward().run()
    assert len(cluster.ledgers.ends) == len(before) + 1
    monkeypatch.undo()
    await cluster.backward().run()
    assert set(cluster.ledgers.ends) == before
