"""Entries of a topic's log that clients never see: ends of transactions, snapshots of them.

Rules: docs/formats/transaction-logs.md.
"""

from typing import Final

from google.protobuf.message import DecodeError

from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import (
    MalformedFrameError,
    checked_body,
    encode_body,
    parse_entry_body,
    varint,
)
from magnetar.broker.protocol.plain_sends import scan_transaction
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import TransactionSnapshot

COMMIT: Final = 21
ABORT: Final = 22
SNAPSHOT: Final = 90
"""Which transactions were open there and which aborted. Ours: Pulsar's brokers skip it, too."""
SEALED: Final = 91
"""Aborted transactions that snapshots behind it don't repeat."""
_PRODUCER: Final = "pulsar.txn.marker"


def end_marker(transaction: TransactionId, now_ms: int, *, commit: bool) -> tuple[bytes, bytes]:
    """Head and body of the entry that ends a transaction in a topic.

    Written by hand, in the bytes that protobuf would write: it takes a third of the time.
    """
    data = b"%b\x18%b\xa0\x01%c\xb0\x01%b\xb8\x01%b" % (
        _FROM_BROKER,
        varint(now_ms),
        COMMIT if commit else ABORT,
        varint(transaction.least),
        varint(transaction.most),
    )
    return b"".join((_END_HEAD[:8], now_ms.to_bytes(8), _END_HEAD[16:])), checked_body(data)


def snapshot_marker(snapshot: TransactionSnapshot, now_ms: int) -> tuple[bytes, bytes]:
    """Head and body. One without a position is `SEALED`."""
    kind = SNAPSHOT if snapshot.HasField("uptoLedger") else SEALED
    metadata, payload = _metadata(kind, now_ms), snapshot.SerializeToString()
    return make_header(metadata, len(payload)), encode_body(metadata, payload)


def _metadata(kind: int, now_ms: int) -> MessageMetadata:
    return MessageMetadata(
        producer_name=_PRODUCER,
        publish_time=now_ms,
        sequence_id=2**64 - 1,  # -1 in Pulsar
        marker_type=kind,
    )


_FROM_BROKER: Final = bytes(
    MessageMetadata(producer_name=_PRODUCER, sequence_id=2**64 - 1).SerializePartialToString()
)
_END_HEAD: Final = make_header(
    MessageMetadata(marker_type=COMMIT, txnid_least_bits=0, txnid_most_bits=0), 0
)
"""Its bytes 8 to 15 are the time."""
MARKER_BODY: Final = encode_body(_metadata(0, 0), b"")
"""Stands for an entry that nobody may see."""


def parse_metadata(body: bytes | memoryview) -> MessageMetadata | None:
    """None: no client can read the entry, and it belongs to no transaction."""
    try:
        return parse_entry_body(body)[0]
    except (MalformedFrameError, DecodeError):
        return None


def transaction_in(body: bytes | memoryview) -> tuple[int, TransactionId, int] | None:
    """Marker type or 0, transaction, and when it was published.

    None: no client can read the entry, or it is no marker and belongs to no transaction.
    """
    if scan_transaction is not None and (found := scan_transaction(body)) is not None:
        kind, most, least, publish_time = found
        return kind, TransactionId(most, least), publish_time
    if (metadata := parse_metadata(body)) is None:
        return None
    if not metadata.marker_type and not metadata.HasField("txnid_least_bits"):
        return None
    return metadata.marker_type, transaction_of(metadata), metadata.publish_time


def transaction_of(metadata: MessageMetadata) -> TransactionId:
    """REQUIRES: it has both halves."""
    return TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def end_in(body: bytes | memoryview) -> tuple[TransactionId, bool] | None:
    """The transaction that a marker ends, and whether it commits; None: it is another entry."""
    metadata = parse_metadata(body)
    if metadata is None or metadata.marker_type not in (COMMIT, ABORT):
        return None
    return transaction_of(metadata), metadata.marker_type == COMMIT


def snapshot_in(body: bytes | memoryview) -> tuple[int, TransactionSnapshot] | None:
    """`SNAPSHOT` or `SEALED`, and what it holds; None: it is another entry."""
    try:
        metadata, payload = parse_entry_body(body)
        if metadata.marker_type not in (SNAPSHOT, SEALED):
            return None
        return metadata.marker_type, TransactionSnapshot.FromString(bytes(payload))
    except (MalformedFrameError, DecodeError):
        return None
