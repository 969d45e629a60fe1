"""Records, markers and answers that are written by hand have the bytes that protobuf writes."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.connection.consumer_commands import encode_ack_answers
from magnetar.broker.connection.transaction_commands import encode_answer
from magnetar.broker.protocol import pulsar_api_pb2 as api
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import encode, encode_body, varint
from magnetar.broker.transaction.coordinator_records import (
    encode_group,
    encode_new,
    encode_partitions,
    encode_status,
    encode_subscriptions,
    entry_records,
)
from magnetar.broker.transaction.markers import ABORT, COMMIT, end_marker
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import (
    TransactionRecord,
    TransactionRecords,
)

_UINT64: Final = st.integers(0, (1 << 64) - 1)
_GIVEN_OUT: Final = st.integers(0, (1 << 63) - 1)
_MS: Final = st.integers(-(1 << 63), (1 << 63) - 1)
_NAMES: Final = st.lists(st.text(max_size=200), max_size=4)
_STATUS: Final = st.sampled_from(TransactionRecord.Status.values())


def _record(least: int, most: int, given_out: int, operation: Any, **more: Any) -> bytes:
    record = TransactionRecord(
        operation=operation, leastBits=least, mostBits=most, maxLocalTxnId=given_out, **more
    )
    return record.SerializeToString()


@given(_UINT64, _UINT64, _GIVEN_OUT, _UINT64, _MS, st.text(max_size=200))
def test_new(least: int, most: int, given_out: int, start: int, timeout: int, owner: str) -> None:
    more: dict[str, Any] = {"owner": owner} if owner else {}
    more |= {"startTime": start, "timeoutMs": timeout % (1 << 64)}
    wanted = _record(least, most, given_out, TransactionRecord.NEW, **more)
    assert encode_new(least, most, given_out, start, timeout, owner) == wanted


@given(_UINT64, _UINT64, _GIVEN_OUT, _NAMES)
def test_partitions(least: int, most: int, given_out: int, names: list[str]) -> None:
    wanted = _record(least, most, given_out, TransactionRecord.ADD_PARTITION, partitions=names)
    assert encode_partitions(least, most, given_out, names) == wanted


@given(_UINT64, _UINT64, _GIVEN_OUT, _NAMES)
def test_subscriptions(least: int, most: int, given_out: int, names: list[str]) -> None:
    pairs = list(zip(names, reversed(names), strict=True))
    stored = [TransactionRecord.Subscription(topic=x, subscription=y) for x, y in pairs]
    operation = TransactionRecord.ADD_SUBSCRIPTION
    wanted = _record(least, most, given_out, operation, subscriptions=stored)
    assert encode_subscriptions(least, most, given_out, pairs) == wanted


@given(_UINT64, _UINT64, _GIVEN_OUT, _STATUS, _STATUS)
def test_status(least: int, most: int, given_out: int, expected: Any, new: Any) -> None:
    more = {"expectedStatus": expected, "newStatus": new}
    wanted = _record(least, most, given_out, TransactionRecord.UPDATE, **more)
    assert encode_status(least, most, given_out, expected, new) == wanted


@given(st.lists(st.binary(max_size=300), max_size=3))
def test_groups(partitions: list[bytes]) -> None:
    entries = [encode_partitions(1, 2, 3, [each.hex()]) for each in partitions]
    records = [TransactionRecord.FromString(entry) for entry in entries]
    group = encode_group(entries)
    assert group[4:] == TransactionRecords(records=records).SerializeToString()
    assert entry_records(group) == records


@pytest.mark.parametrize("name", ["NewTxn", "AddPartitionToTxn", "AddSubscriptionToTxn", "EndTxn"])
@given(_UINT64, _UINT64, _UINT64)
def test_answers(name: str, request_id: int, least: int, most: int) -> None:
    kind = getattr(api, f"Command{name}Response")
    wanted = kind(request_id=request_id, txnid_least_bits=least, txnid_most_bits=most)
    assert encode_answer(kind, request_id, least, most) == encode(wanted)


@given(_UINT64, st.lists(_UINT64), _UINT64, _UINT64)
def test_answers_to_acknowledgements(
    consumer: int, request_ids: list[int], least: int, most: int
) -> None:
    wanted = [
        api.CommandAckResponse(
            consumer_id=consumer, request_id=x, txnid_least_bits=least, txnid_most_bits=most
        )
        for x in request_ids
    ]
    frames = encode_ack_answers(consumer, TransactionId(most, least), request_ids)
    assert frames == b"".join(map(encode, wanted))


@given(_UINT64, _UINT64, _GIVEN_OUT, st.booleans())
def test_end_markers(least: int, most: int, now_ms: int, commit: bool) -> None:
    """The fields are Pulsar's, see Markers.newTxnCommitMarker."""
    metadata = api.MessageMetadata(
        producer_name="pulsar.txn.marker",
        sequence_id=(1 << 64) - 1,
        publish_time=now_ms,
        marker_type=COMMIT if commit else ABORT,
        txnid_least_bits=least,
        txnid_most_bits=most,
    )
    wanted = make_header(metadata, 0), encode_body(metadata, b"")
    assert end_marker(TransactionId(most, least), now_ms, commit=commit) == wanted


@given(_UINT64)
def test_numbers(number: int) -> None:
    """As a field of protobuf has it."""
    assert b"\x08" + varint(number) == api.CommandNewTxn(request_id=number).SerializeToString()
