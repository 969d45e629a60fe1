"""A cluster of Pulsar's with transactions that have ended, in memory, as its brokers left it."""

import struct
from typing import Any, Final

from magnetar.broker.migration import pulsar_metadata_pb2 as nodes
from magnetar.broker.migration.pulsar_schemas import index_entry, locator, schema_entry
from magnetar.broker.migration.system_events import event_entry
from magnetar.broker.migration.transactions import SNAPSHOT_SCHEMA, SNAPSHOTS
from magnetar.broker.protocol import pulsar_api_pb2 as wire
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.schema.definition import SchemaDefinition, StoredSchema
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.metadata.store import MetadataStore
from tests.unit.broker.migration.recorded_cluster import NOW_MS, Cluster, RecordedLedgers

TOPIC: Final = "persistent://acme/orders/paid"
LOGS: Final = "/managed-ledgers/acme/orders/persistent"
PENDING: Final = f"{LOGS}/paid-s%252Bb__transaction_pending_ack"
"""Pulsar encodes the subscription's name twice."""
COORDINATOR: Final = "/managed-ledgers/pulsar/system/persistent/__transaction_log_3"
ASSIGN: Final = "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign"
COMMIT, ABORT = 21, 22
LOG, ACKS, RECORDS, EVENTS, SCHEMA = 200, 201, 202, 203, 204
"""Ledgers."""
COMMITTED, ABORTED, LATE = 7, 8, 6
"""Sequences with messages in the topic; no marker ends the last one."""
LAST: Final = 41
"""The highest sequence that was given out."""
Record = pb.TransactionRecord
Ack = pb.PendingAckRecord


def record(
    least: int, operation: "pb.TransactionRecord.Operation.ValueType", **more: Any
) -> pb.TransactionRecord:
    return Record(leastBits=least, mostBits=3, operation=operation, maxLocalTxnId=LAST, **more)


def entry(least: int | None, marker_type: int | None = None) -> bytes:
    """Of the topic; those of the committed transaction have metadata of the broker's in front."""
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if least is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = 3, least
    if marker_type is not None:
        metadata.marker_type = marker_type
    body = bytes(encode_body(metadata, b""))
    stamp = wire.BrokerEntryMetadata(broker_timestamp=1).SerializeToString()
    is_stamped = least == COMMITTED
    return b"\x0e\x02" + struct.pack(">I", len(stamp)) + stamp + body if is_stamped else body


def snapshot_record(*aborted: int) -> dict[str, Any]:
    """What was aborted in front of the topic's first entry, by markers in its ledger."""
    return {
        "topicName": TOPIC,
        "maxReadPositionLedgerId": LOG,
        "maxReadPositionEntryId": -1,
        "aborts": [
            {"txnIdMostBits": 3, "txnIdLeastBits": least, "ledgerId": LOG, "entryId": 0}
            for least in aborted
        ],
    }


async def put_log(
    store: MetadataStore, path: str, ledger_id: int, cursor: str, last_acked: int, **more: str
) -> None:
    node = nodes.ManagedLedgerNode(ledgers=[nodes.LedgerRow(ledgerId=ledger_id)])
    node.properties.extend(nodes.KeyValue(key=key, value=value) for key, value in more.items())
    position = nodes.ManagedCursorNode(
        cursorsLedgerId=-1, markDeleteLedgerId=ledger_id, markDeleteEntryId=last_acked
    )
    await store.put(path, node.SerializeToString())
    await store.put(f"{path}/{cursor}", position.SerializeToString())


async def put_snapshots(store: MetadataStore, ledgers: RecordedLedgers, *entries: bytes) -> None:
    """The system topic, with its schema."""
    ledgers.put(EVENTS, entries)
    await put_log(store, f"{LOGS}/{SNAPSHOTS}", EVENTS, "c", -1)
    stored = StoredSchema(0, NOW_MS, SchemaDefinition("AVRO", SNAPSHOT_SCHEMA))
    ledgers.put(SCHEMA, [schema_entry(f"acme/orders/{SNAPSHOTS}", stored, [])])
    position = nodes.NestedPosition(ledgerId=SCHEMA, entryId=0)
    await store.put(f"/schemas/acme/orders/{SNAPSHOTS}", locator([index_entry(stored, position)]))


async def transactional_cluster() -> Cluster:
    """One topic with a subscription ``s+b``, and coordinator 3."""
    cluster = Cluster()
    store, ledgers = cluster.pulsar, cluster.ledgers
    ledgers.put(
        LOG,
        [
            *(entry(None), entry(COMMITTED), entry(ABORTED), entry(COMMITTED, COMMIT)),
            *(entry(ABORTED, ABORT), entry(LATE), entry(None)),
        ],
    )
    await put_log(store, f"{LOGS}/paid", LOG, "s%2Bb", -1)
    acks = [
        Ack(operation=Ack.ACK, positions=[Ack.Position(ledgerId=LOG, entryId=1, batchSize=0)]),
        Ack(operation=Ack.ACK, positions=[Ack.Position(ledgerId=LOG, entryId=6, batchSize=0)]),
        *(Ack(operation=Ack.COMMIT), Ack(operation=Ack.ABORT)),
    ]
    for each, least in zip(acks, (10, 11, 10, 11), strict=True):
        each.mostBits, each.leastBits = 3, least
    ledgers.put(ACKS, [each.SerializeToString() for each in acks])
    await put_log(store, PENDING, ACKS, "__pending_ack_state", -1)
    records = [record(40, Record.NEW), record(40, Record.UPDATE, newStatus=Record.COMMITTED)]
    ledgers.put(RECORDS, [each.SerializeToString() for each in records])
    await put_log(store, COORDINATOR, RECORDS, "transaction.subscription", 1, max_local_txn_id="9")
    await store.put(ASSIGN, b'{"partitions":4}')
    await store.put("/admin/clusters/standalone", b"{}")
    event = event_entry(TOPIC, snapshot_record(), (SNAPSHOT_SCHEMA, 0), 0, NOW_MS)
    await put_snapshots(store, ledgers, event)
    return cluster
