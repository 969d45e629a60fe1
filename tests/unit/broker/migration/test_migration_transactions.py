"""Transactions in what Pulsar has stored: none is missed, and none that has ended is refused."""

import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.broker.migration import marker
from magnetar.broker.migration import pulsar_metadata_pb2 as nodes
from magnetar.broker.migration.errors import PulsarFormatError, SwapRefusedError
from magnetar.broker.migration.transactions import (
    TransactionBuffer,
    buffer_of_index,
    buffer_of_snapshot,
    open_transactions,
)
from magnetar.broker.protocol import pulsar_api_pb2 as wire
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.transaction_id import TransactionId
from tests.unit.broker.migration.recorded_cluster import Cluster, restore, tree_of

Record = pb.TransactionRecord
COMMIT, ABORT = 21, 22
COORDINATOR = "/managed-ledgers/pulsar/system/persistent/__transaction_log_3"


def record(
    least: int, operation: "pb.TransactionRecord.Operation.ValueType", **more: Any
) -> pb.TransactionRecord:
    return Record(leastBits=least, mostBits=3, operation=operation, **more)


def log_of_coordinator() -> list[pb.TransactionRecord]:
    subscription = Record.Subscription(topic="persistent://a/b/in", subscription="s")
    return [
        record(7, Record.UPDATE, newStatus=Record.COMMITTED),  # its begin is deleted
        record(8, Record.NEW),
        record(8, Record.ADD_PARTITION, partitions=["persistent://a/b/out"]),
        record(9, Record.NEW),
        record(8, Record.ADD_SUBSCRIPTION, subscriptions=[subscription]),
        record(9, Record.UPDATE, newStatus=Record.ABORTING),
        record(9, Record.UPDATE, newStatus=Record.ABORTED),
        record(10, Record.NEW),
        record(10, Record.UPDATE, newStatus=Record.COMMITTING),
    ]


@pytest.mark.parametrize("batched", [False, True])
def test_what_a_coordinator_has_not_ended(batched: bool) -> None:
    """One that is about to be committed isn't in all of its topics yet."""
    records = log_of_coordinator()
    entries = [each.SerializeToString() for each in records]
    if batched:
        groups = (records[:4], records[4:])
        whole = [pb.TransactionRecords(records=each).SerializeToString() for each in groups]
        entries = [struct.pack(">HH", 0x0E01, 1) + each for each in whole]
    assert open_transactions(entries, "") == {
        (3, 8): ({"persistent://a/b/out"}, {"persistent://a/b/in s"}),
        (3, 10): (set(), set()),
    }


def test_a_log_of_another_form_is_told() -> None:
    with pytest.raises(PulsarFormatError, match="somewhere"):
        open_transactions([b"\xff\xff\xff"], "somewhere")


def entry(least: int | None, marker_type: int | None = None) -> bytes:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if least is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = 3, least
    if marker_type is not None:
        metadata.marker_type = marker_type
    body = bytes(encode_body(metadata, b""))
    stamp = wire.BrokerEntryMetadata(broker_timestamp=1).SerializeToString()
    return b"\x0e\x02" + struct.pack(">I", len(stamp)) + stamp + body if least == 1 else body


def test_what_a_topic_has_behind_its_snapshot() -> None:
    buffer = TransactionBuffer((1, 1))
    for each in (entry(None), entry(0), entry(1), entry(2), entry(0, COMMIT), entry(1, ABORT)):
        buffer.add(each, 5, "")
    assert buffer.findings([5]) == [
        "has messages of transactions (3,2), which are open",
        "has messages of transactions (3,1), which were aborted",
    ]
    buffer.add(entry(2, COMMIT), 6, "")
    assert buffer.findings([6]) == [], "the ledger of the other one is gone"


def test_a_snapshot() -> None:
    aborts = [
        {"txnIdMostBits": 0, "txnIdLeastBits": least, "ledgerId": least % 2, "entryId": 0}
        for least in range(14)
    ]
    position = {"maxReadPositionLedgerId": 4, "maxReadPositionEntryId": 2}
    buffer = buffer_of_snapshot({"topicName": "t", **position, "aborts": aborts})
    assert buffer.after == (4, 2)
    assert buffer.findings([1, 4]) == [
        "has messages of transactions (0,1), (0,3), (0,5), (0,7), (0,9) and 2 more, "
        "which were aborted"
    ]
    assert buffer_of_snapshot({**position, "aborts": None}).findings([4]) == []


def test_snapshots_in_segments() -> None:
    record = {
        "indexList": [{"abortedMarkLedgerID": 4}],
        "snapshot": {
            "maxReadPositionLedgerId": 6,
            "maxReadPositionEntryId": 2,
            "aborts": [{"mostSigBits": 1, "leastSigBits": 2}],
        },
    }
    buffer = buffer_of_index(record)
    assert (buffer.after, buffer.aborted) == ((6, 2), {TransactionId(1, 2): None})
    assert "has messages of aborted transactions" in buffer.findings([4, 6])
    assert buffer.findings([6]) == ["has messages of transactions (1,2), which were aborted"]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    found = Cluster()
    await restore(found.pulsar)
    yield found
    await found.close()


async def test_an_open_transaction_is_refused_whatever_is_accepted(cluster: Cluster) -> None:
    """The cursor of the coordinator's log has passed what it has deleted."""
    entries = [each.SerializeToString() for each in log_of_coordinator()]
    ledger_id = await cluster.ledgers.create(entries, {})
    node = nodes.ManagedLedgerNode(ledgers=[nodes.LedgerRow(ledgerId=ledger_id)])
    cursor = nodes.ManagedCursorNode(
        cursorsLedgerId=-1, markDeleteLedgerId=ledger_id, markDeleteEntryId=4
    )
    await cluster.pulsar.put(COORDINATOR, node.SerializeToString())
    await cluster.pulsar.put(f"{COORDINATOR}/c", cursor.SerializeToString())
    before = await tree_of(cluster.pulsar)
    with pytest.raises(SwapRefusedError) as caught:
        await cluster.forward(accept_loss=True).run()
    where = "pulsar/system/persistent/__transaction_log_3"
    told = [line for line in caught.value.lines if line.startswith("refused")]
    assert told == [f"refused: {where}: transaction (3,10) is open: it is empty"]
    assert await tree_of(cluster.pulsar) == before
    assert await marker.read_marker(cluster.ours) is None
    await cluster.pulsar.delete(f"{COORDINATOR}/c")
    report = await cluster.forward(write=False).run()
    text = "transaction (3,8) is open: persistent://a/b/out, persistent://a/b/in s"
    assert f"refused: {where}: {text}" in report.lines()
