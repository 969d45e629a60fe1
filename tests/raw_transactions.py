"""Commands of transactions for tests that must see every frame."""

from typing import Any

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import Position, RawClient

C = pb.BaseCommand
COORDINATORS = 16
"""Of a cluster."""

Transaction = tuple[int, int]
"""Coordinator and sequence."""


def assigned(number: int) -> str:
    """Who serves this topic has the coordinator."""
    return f"persistent://pulsar/system/transaction_coordinator_assign-partition-{number}"


def _ask(client: RawClient, command: C, field: str) -> Any:
    request = getattr(command, field)
    request.request_id = request_id = next(client.request_ids)
    client.send(command)
    answer, _ = client.wait_for(
        lambda c: any(value.request_id == request_id for kind, value in c.ListFields()[1:])
    )
    return answer.ListFields()[1][1]


def _named(kind: int, field: str, transaction: Transaction) -> tuple[C, Any]:
    command = C(type=kind)  # type: ignore[arg-type] # plain ints are fine at run time
    request = getattr(command, field)
    request.txnid_most_bits, request.txnid_least_bits = transaction
    return command, request


def connect_to_coordinator(client: RawClient, number: int = 0) -> pb.CommandTcClientConnectResponse:
    """To one whose partition the broker serves."""
    command = C(type=C.TC_CLIENT_CONNECT_REQUEST)
    command.tcClientConnectRequest.tc_id = number
    answer: pb.CommandTcClientConnectResponse = _ask(client, command, "tcClientConnectRequest")
    return answer


def begin(client: RawClient, number: int = 0, ttl_ms: int = 60_000) -> Transaction:
    command = C(type=C.NEW_TXN)
    command.newTxn.tc_id, command.newTxn.txn_ttl_millis = number, ttl_ms
    answer = _ask(client, command, "newTxn")
    assert not answer.HasField("error"), answer
    return answer.txnid_most_bits, answer.txnid_least_bits


def add_partitions(
    client: RawClient, transaction: Transaction, *topics: str
) -> pb.CommandAddPartitionToTxnResponse:
    command, request = _named(C.ADD_PARTITION_TO_TXN, "addPartitionToTxn", transaction)
    request.partitions.extend(topics)
    answer: pb.CommandAddPartitionToTxnResponse = _ask(client, command, "addPartitionToTxn")
    return answer


def add_subscription(
    client: RawClient, transaction: Transaction, topic: str, subscription: str
) -> pb.CommandAddSubscriptionToTxnResponse:
    command, request = _named(C.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn", transaction)
    request.subscription.add(topic=topic, subscription=subscription)
    answer: pb.CommandAddSubscriptionToTxnResponse = _ask(client, command, "addSubscriptionToTxn")
    return answer


def end(
    client: RawClient, transaction: Transaction, *, commit: bool = True
) -> pb.CommandEndTxnResponse:
    command, request = _named(C.END_TXN, "endTxn", transaction)
    request.txn_action = pb.COMMIT if commit else pb.ABORT
    answer: pb.CommandEndTxnResponse = _ask(client, command, "endTxn")
    return answer


def send(
    client: RawClient, transaction: Transaction, sequence_id: int, payload: bytes, producer: int
) -> pb.BaseCommand:
    """The receipt, or the error."""
    most, least = transaction
    bits = {"txnid_most_bits": most, "txnid_least_bits": least}
    client.send_bytes(client.send_frame(sequence_id, payload, producer, **bits))
    return client.wait_for(lambda c: c.type in (C.SEND_RECEIPT, C.SEND_ERROR))[0]


def acknowledge(
    client: RawClient, transaction: Transaction, position: Position, consumer: int
) -> pb.CommandAckResponse:
    command, request = _named(C.ACK, "ack", transaction)
    request.consumer_id, request.ack_type = consumer, pb.CommandAck.Individual
    request.message_id.add(ledgerId=position[0], entryId=position[1])
    answer: pb.CommandAckResponse = _ask(client, command, "ack")
    return answer


def end_on_participant(
    client: RawClient, transaction: Transaction, subscription: str = ""
) -> pb.CommandEndTxnOnPartitionResponse | pb.CommandEndTxnOnSubscriptionResponse:
    """Commit it as its coordinator does, on a topic or on a subscription."""
    topic = "persistent://public/default/x"
    if subscription:
        field = "endTxnOnSubscription"
        command, request = _named(C.END_TXN_ON_SUBSCRIPTION, field, transaction)
        request.subscription.topic, request.subscription.subscription = topic, subscription
    else:
        field = "endTxnOnPartition"
        command, request = _named(C.END_TXN_ON_PARTITION, field, transaction)
        request.topic = topic
    request.txn_action = pb.COMMIT
    answer: pb.CommandEndTxnOnPartitionResponse | pb.CommandEndTxnOnSubscriptionResponse
    answer = _ask(client, command, field)
    return answer
